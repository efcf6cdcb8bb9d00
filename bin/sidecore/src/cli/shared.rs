//! The global options: which of them each command's help shows, and how a time is written.
//!
//! Each command takes all of them, wherever they stand on the line; its help shows those that do something there.

use std::time::Duration;

use clap::Command;

/// Longest time that may be asked for: a day.
const TIMEOUT_MS_MAX: u64 = 86_400_000;

/// What a command does with the global options.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Uses {
    /// It asks the daemon that is named.
    api: bool,
    /// It asks a daemon, which its file may name.
    timeout: bool,
    /// It prints what programs may read; its errors are JSON in any case.
    json: bool,
    /// It prints tables.
    wide: bool,
}

/// What the command does whose words these are.
fn uses(words: &[&str]) -> Uses {
    let (api, timeout, json, wide) = (true, true, true, false);
    match words {
        ["ls" | "show" | "sidecores" | "top" | "reload" | "exits"] => {
            Uses { api, timeout, json, wide: true }
        }
        // Of those with commands of their own what one of these does.
        ["disk" | "nic" | "switch" | "group"] => Uses { api, timeout, json, wide: true },
        ["disk" | "nic" | "switch" | "group", "ls" | "show"]
        | ["disk", "stage"]
        | ["disk", "stage", "ls"] => Uses { api, timeout, json, wide: true },
        ["remote", ..] => Uses { api, timeout, json, wide: true },
        ["serve"] => Uses { api: false, timeout, json, wide: true },
        ["link", ..] => Uses { api: false, timeout: false, json, wide },
        ["client" | "completions" | "man" | "docs", ..] => {
            Uses { api: false, timeout: false, json: false, wide }
        }
        _ => Uses { api, timeout, json, wide },
    }
}

/// A time as it is written: a whole number with its unit, `ms`, `s` or `m`; without one, of seconds.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit_ms = match text.strip_prefix(digits) {
        Some("ms") => Some(1),
        Some("s" | "") => Some(1_000),
        Some("m") => Some(60_000),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    let time_ms = number.zip(unit_ms).and_then(|(number, unit)| number.checked_mul(unit));
    let time_ms = time_ms.filter(|time| (1..=TIMEOUT_MS_MAX).contains(time));
    let wanted = "a time from 1ms to a day is wanted, such as 500ms, 5s or 2m";
    time_ms.map(Duration::from_millis).ok_or_else(|| wanted.to_string())
}

/// The commands with helps that show what applies.
pub(super) fn told(root: Command) -> Command {
    let global = root.get_arguments().filter(|argument| argument.is_global_set());
    let global: Vec<clap::Arg> = global.cloned().collect();
    root.mut_subcommands(|command| of(command, &[], &global))
}

fn of(command: Command, above: &[&str], global: &[clap::Arg]) -> Command {
    let name = command.get_name().to_string();
    let words: Vec<&str> = above.iter().copied().chain([name.as_str()]).collect();
    let command = command.mut_subcommands(|command| of(command, &words, global));
    let Uses { api, timeout, json, wide } = uses(&words);
    command.args(global.iter().cloned().map(|argument| match argument.get_id().as_str() {
        "api" => argument.hide(!api),
        "timeout" => argument.hide(!timeout),
        "wide" => argument.hide(!wide),
        "json" if !json => argument.help("Print errors as JSON"),
        _ => argument,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::Cli;
    use super::*;

    fn help(words: &[&str]) -> String {
        let line = ["sidecore"].iter().chain(words).chain(&["--help"]);
        Cli::read(line).expect_err("it is a help").to_string()
    }

    #[test]
    fn a_time_has_a_unit_and_is_bounded() {
        for (text, ms) in [("500ms", 500), ("5s", 5_000), ("7", 7_000), ("2m", 120_000)] {
            assert_eq!(timeout(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "0", "0s", "-1s", "1.5s", "s", "5h", "1 s", "1441m", "99999999999999999999s"]
        {
            assert!(timeout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_help_shows_the_global_options_that_do_something_there() {
        for (line, api, json, wide) in [
            ("", true, true, true),
            ("ls", true, true, true),
            ("disk", true, true, true),
            ("nic show", true, true, true),
            ("remote", true, true, true),
            ("link", false, true, false),
            ("disk add", true, true, false),
            ("upgrade", true, true, false),
            ("doctor", true, true, false),
            ("serve", false, true, true),
            ("link key", false, true, false),
            ("completions", false, false, false),
            ("man", false, false, false),
            ("client", false, false, false),
        ] {
            let help = help(&line.split_whitespace().collect::<Vec<_>>());
            assert_eq!(help.contains("--api <SOCKET>"), api, "{line}: {help}");
            let timeout = api || line == "serve";
            assert_eq!(help.contains("--timeout <TIME>"), timeout, "{line}: {help}");
            assert_eq!(help.contains("Print JSON, errors too"), json, "{line}: {help}");
            assert_eq!(help.contains("Print errors as JSON"), !json, "{line}: {help}");
            assert_eq!(help.contains("--wide"), wide, "{line}: {help}");
        }
    }

    #[test]
    fn a_help_shows_no_value_that_is_refused_there() {
        for line in ["disk add", "disk set", "nic add", "nic set"] {
            let help = help(&line.split(' ').collect::<Vec<_>>());
            assert!(help.contains("- 0660: ") && !help.contains("0666"), "{line}: {help}");
        }
        for line in ["disk rm", "nic rm"] {
            let help = help(&line.split(' ').collect::<Vec<_>>());
            assert!(help.contains("--force") && !help.contains("resize"), "{line}: {help}");
        }
    }

    #[test]
    fn each_command_takes_all_of_them_wherever_they_stand() {
        for line in [
            "sidecore --json --wide --api /a man /m",
            "sidecore man /m --json --wide --api /a",
            "sidecore disk --json --wide --api /a rm a",
            "sidecore disk rm a --json --wide --api /a",
        ] {
            let cli = Cli::read(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(
                (cli.json, cli.wide, cli.api.as_deref()),
                (true, true, Some("/a")),
                "{line}"
            );
        }
    }
}
