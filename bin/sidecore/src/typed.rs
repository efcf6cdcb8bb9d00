//! A command or an option that is none: what is refused, with what was most likely meant.
//!
//! Not here: options of fields that a running device keeps (`fixed`), and what else may be wrong with a line (`failure`).

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use config::near::meant;

use crate::cli::Cli;
use crate::failure::Failure;

/// What those mean who write a command that is none.
const MEANT: &[(&[&str], &str)] = &[
    (&["start", "run", "daemon"], "serve"),
    (&["create", "new", "make", "attach"], "add"),
    (&["delete", "del", "remove", "destroy", "detach"], "rm"),
    (&["info", "get", "describe", "inspect"], "show"),
    (&["update", "modify", "change", "edit"], "set"),
    (&["list", "ps"], "ls"),
    (&["grow", "extend"], "resize"),
    (&["check", "test", "validate"], "serve --check"),
];
/// What the service's supervisor does.
const OF_THE_SERVICE: &[(&[&str], &str)] = &[
    (
        &["stop", "kill", "shutdown", "quit"],
        "the daemon ends on SIGTERM: `systemctl stop sidecore`",
    ),
    (&["restart"], "`sidecore upgrade`, which no guest notices; or `systemctl restart sidecore`"),
    (&["log", "logs", "journal"], "`journalctl -u sidecore`"),
    (&["version"], "`sidecore --version`"),
];

/// What there is to say of a word that is none.
pub(crate) fn refused(error: &clap::Error, words: &[OsString]) -> Option<Failure> {
    let kind = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return None };
    let (line, command) = command_of(words);
    match error.kind() {
        ErrorKind::InvalidSubcommand => Some(no_command(word, &line, &command)),
        _ => Some(no_option(word, &line, &command)),
    }
}

/// The command that was begun, as it is written and as the table has it.
fn command_of(words: &[OsString]) -> (String, clap::Command) {
    let (mut line, mut command) = ("sidecore".to_string(), Cli::told());
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            // With its value.
            let _ = ["--api", "--timeout"].contains(&word).then(|| words.next());
            continue;
        }
        // What follows a command is no command.
        let Some(next) = command.find_subcommand(word).cloned() else { break };
        line = format!("{line} {}", next.get_name());
        command = next;
    }
    (line, command)
}

fn no_command(word: &str, line: &str, command: &clap::Command) -> Failure {
    let names = command.get_subcommands().filter(|it| !it.is_hide_set());
    let names: Vec<&str> = names.map(clap::Command::get_name).collect();
    let of = |table: &[(&[&str], &'static str)]| {
        table.iter().find(|(words, _)| words.contains(&word)).map(|(_, meant)| *meant)
    };
    let is_there = |meant: &&str| meant.split(' ').next().is_some_and(|name| names.contains(&name));
    let is_root = line == "sidecore";
    let hint = match (of(MEANT).filter(is_there), of(OF_THE_SERVICE).filter(|_| is_root)) {
        (Some(meant), _) => format!("did you mean `{line} {meant}`?"),
        (None, Some(other)) => other.to_string(),
        (None, None) => match meant(word, &names) {
            Some(name) => format!("did you mean `{line} {name}`?"),
            None => format!("`{line} --help` lists those that there are"),
        },
    };
    Failure::usage(format!("`{line}` has no command {word:?}"), hint)
}

fn no_option(word: &str, line: &str, command: &clap::Command) -> Failure {
    let lists = format!("`{line} --help` lists what it takes");
    let Some(name) = word.strip_prefix("--") else {
        return Failure::usage(format!("`{line}` does not take {word:?}"), lists);
    };
    let name = name.split('=').next().unwrap_or_default();
    let options = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let options: Vec<&str> = options.filter_map(clap::Arg::get_long).collect();
    let hint = match meant(name, &options) {
        Some(option) => format!("did you mean `--{option}`? {lists}"),
        None => lists,
    };
    Failure::usage(format!("`{line}` has no option --{name}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::read(&words).expect_err("it is refused");
        refused(&error, &words).map(|failure| failure.text()).unwrap_or_default()
    }

    #[test]
    fn what_was_most_likely_meant_is_named_and_nothing_else() {
        for (line, what, hint) in [
            (
                "nic add n --bridge br0",
                "`sidecore nic add` has no option --bridge",
                "did you mean `--switch`?",
            ),
            (
                "disk add x --file f",
                "`sidecore disk add` has no option --file",
                "did you mean `--path`?",
            ),
            (
                "disk add x --image=f",
                "`sidecore disk add` has no option --image",
                "did you mean `--path`?",
            ),
            (
                "disk add x --sise 1G",
                "`sidecore disk add` has no option --sise",
                "did you mean `--size`?",
            ),
            (
                "nic add n --model virtio",
                "has no option --model",
                "`sidecore nic add --help` lists",
            ),
            (
                "upgrade --config f",
                "`sidecore upgrade` has no option --config",
                "`sidecore upgrade --help` lists",
            ),
            ("ls a", "`sidecore ls` does not take \"a\"", "`sidecore ls --help` lists"),
            ("stop", "`sidecore` has no command \"stop\"", "`systemctl stop sidecore`"),
            ("restart", "\"restart\"", "`sidecore upgrade`"),
            ("start", "\"start\"", "did you mean `sidecore serve`?"),
            (
                "disk create x",
                "`sidecore disk` has no command \"create\"",
                "did you mean `sidecore disk add`?",
            ),
            (
                "disk stop x",
                "`sidecore disk` has no command \"stop\"",
                "`sidecore disk --help` lists",
            ),
            ("sidecore disk rm x", "\"sidecore\"", "did you mean"),
            ("nic delet x", "\"delet\"", "`sidecore nic --help` lists"),
            ("nic lnk x up", "\"lnk\"", "did you mean `sidecore nic link`?"),
            ("upgrde", "\"upgrde\"", "did you mean `sidecore upgrade`?"),
            ("frobnicate", "\"frobnicate\"", "`sidecore --help` lists"),
        ] {
            let told = said(&format!("sidecore {line}"));
            assert!(told.contains(what) && told.contains(hint), "{line}: {told}");
            assert!(!told.contains("launcher") && !told.contains("--wide"), "{line}: {told}");
        }
    }
}
