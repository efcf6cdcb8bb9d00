//! Which of the global options each command's help shows.
//!
//! Each command takes all of them, wherever they stand on the line; its help shows those that do something there.

use clap::Command;

/// What a command does with the global options.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Uses {
    /// It asks a daemon.
    api: bool,
    /// It prints what programs may read; its errors are JSON in any case.
    json: bool,
    /// It prints tables.
    wide: bool,
}

/// What the command does whose words these are.
fn uses(words: &[&str]) -> Uses {
    let (api, json, wide) = (true, true, false);
    match words {
        ["ls" | "show" | "sidecores" | "top" | "reload"] => Uses { api, json, wide: true },
        // Of those with commands of their own what one of these does.
        ["disk" | "nic" | "switch" | "group"] => Uses { api, json, wide: true },
        ["disk" | "nic" | "switch" | "group", "ls" | "show"] => Uses { api, json, wide: true },
        ["remote", ..] => Uses { api, json, wide: true },
        ["serve"] => Uses { api: false, json, wide: true },
        ["link", ..] => Uses { api: false, json, wide },
        ["client" | "completions" | "man" | "docs", ..] => Uses { api: false, json: false, wide },
        _ => Uses { api, json, wide },
    }
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
    let Uses { api, json, wide } = uses(&words);
    command.args(global.iter().cloned().map(|argument| match argument.get_id().as_str() {
        "api" => argument.hide(!api),
        "wide" => argument.hide(!wide),
        "json" if !json => argument.help("Print errors as JSON"),
        _ => argument,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::Cli;

    fn help(words: &[&str]) -> String {
        let line = ["sidecore"].iter().chain(words).chain(&["--help"]);
        Cli::read(line).expect_err("it is a help").to_string()
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
