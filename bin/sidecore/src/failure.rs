//! How a command fails, and with which status the program ends.

use std::path::Path;

use config::api::ApiError;
use config::mistake::Repeated;
use config::{Mistake, Refusal};
use serde_json::{Value, json};

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The daemon refused. Status 1.
    Refused(ApiError),
    /// The configuration file has mistakes. Status 2.
    Config(Refusal),
    /// Wrong usage, a file that cannot be read, or one that says what cannot be. Status 2: it is the same at each try.
    Usage {
        /// What was wrong.
        error: String,
        /// What to do.
        hint: String,
    },
    /// No daemon could be asked. Status 3.
    Unreachable {
        /// What was tried, and what came of it.
        error: String,
        /// What to do.
        hint: String,
    },
    /// One could be reached, and gave no answer in time. Status 3.
    Silent {
        /// What was asked, and for how long it was waited.
        error: String,
        /// What to do.
        hint: String,
    },
    /// The daemon could not start, or broke off, or what its file names is not so on this host. Status 1: another time
    /// it may be.
    Daemon {
        /// What happened.
        error: String,
        /// What to do.
        hint: String,
    },
    /// Whoever reads our output has gone. Status 0: what they wanted, they have.
    NobodyReads,
}

impl Failure {
    pub(crate) fn usage(error: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::Usage { error: error.into(), hint: hint.into() }
    }

    /// A command line that is none: what clap says of it, without the names of its own parts.
    pub(crate) fn of_words(error: &clap::Error) -> Failure {
        if error.kind() == clap::error::ErrorKind::MissingSubcommand {
            return Failure::usage("a command is missing", "`--help` lists those that there are");
        }
        let said = error.render().to_string();
        let mut parts = said
            .trim()
            .split("\n\n")
            .map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        let first = parts.next().unwrap_or_default();
        let what = match first.strip_prefix("error: ") {
            Some(what) => what.to_string(),
            // The whole help, of a command that is not whole.
            None => {
                return Failure::usage(
                    "a command is missing",
                    "`--help` lists those that there are",
                );
            }
        };
        let hint: Vec<String> =
            parts.filter(|part| !part.starts_with("For more information")).collect();
        Failure::usage(what, hint.join("; "))
    }

    /// What a file that has no mistake names, and this host does not have.
    pub(crate) fn host(error: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::Daemon { error: error.into(), hint: hint.into() }
    }

    /// The program's exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::NobodyReads => 0,
            Failure::Refused(_) | Failure::Daemon { .. } => 1,
            Failure::Config(_) | Failure::Usage { .. } => 2,
            Failure::Unreachable { .. } | Failure::Silent { .. } => 3,
        }
    }

    /// What a daemon that runs with a file that is right would say to it.
    pub(crate) fn at_a_reload(self, pid: u32) -> Failure {
        let Failure::Refused(ApiError { kind, error, hint }) = self else { return self };
        let error = format!("process {pid} runs with this file, and would not reload it: {error}");
        Failure::Refused(ApiError { kind, error, hint })
    }

    /// What the daemon says of fields, said of the options that a command has for them.
    pub(crate) fn in_options(self, options: &[String]) -> Failure {
        let Failure::Refused(ApiError { kind, error, hint }) = self else { return self };
        let told = |text: String| {
            options.iter().fold(text, |text, option| {
                let field = option.replace('-', "_");
                text.replace(&format!("`{field}`"), &format!("`--{option}`"))
                    .replace(&format!("`{field} = "), &format!("`--{option} "))
            })
        };
        Failure::Refused(ApiError { kind, error: told(error), hint: told(hint) })
    }

    /// Mistakes said of the file by another name.
    pub(crate) fn in_file(self, name: &Path) -> Failure {
        let Failure::Config(refusal) = self else { return self };
        Failure::Config(Refusal { file: name.display().to_string(), ..refusal })
    }

    /// What was wrong, and what to do, where the first does not say that.
    pub(crate) fn parts(self) -> (String, String) {
        match self {
            Failure::NobodyReads => Default::default(),
            Failure::Config(refusal) => (refusal.to_string(), String::new()),
            Failure::Refused(ApiError { error, hint, .. })
            | Failure::Usage { error, hint }
            | Failure::Unreachable { error, hint }
            | Failure::Silent { error, hint }
            | Failure::Daemon { error, hint } => (error, hint),
        }
    }

    /// Both, for whoever has more to say.
    pub(crate) fn in_a_sentence(self) -> String {
        match self.parts() {
            (error, hint) if hint.is_empty() => error,
            (error, hint) => format!("{error}: {hint}"),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let (error, hint) = match self {
            Failure::NobodyReads => return String::new(),
            Failure::Config(refusal) => return refusal.to_string(),
            Failure::Refused(ApiError { error, hint, .. })
            | Failure::Usage { error, hint }
            | Failure::Unreachable { error, hint }
            | Failure::Silent { error, hint }
            | Failure::Daemon { error, hint } => (error, hint),
        };
        match hint.is_empty() {
            true => format!("sidecore: {error}"),
            false => format!("sidecore: {error}\n  {hint}"),
        }
    }

    /// For programs: the same fields as the API's refusals.
    pub(crate) fn json(&self) -> Value {
        match self {
            Failure::NobodyReads => Value::Null,
            Failure::Config(refusal) => {
                let mistakes: Vec<Value> = refusal
                    .mistakes
                    .iter()
                    .map(|Repeated { first: located, more, lines }| {
                        let Mistake { path, right, .. } = &located.mistake;
                        json!({
                            "file": refusal.file,
                            "line": located.line,
                            "column": located.column,
                            "at": path.to_string(),
                            "error": located.mistake.to_string(),
                            "hint": right,
                            "more": more,
                            "more_lines": lines,
                        })
                    })
                    .collect();
                json!({
                    "error": format!("{} has mistakes", refusal.file),
                    "hint": "correct them; nothing was changed",
                    "mistakes": mistakes,
                    "hidden": refusal.hidden,
                })
            }
            Failure::Refused(ApiError { error, hint, .. })
            | Failure::Usage { error, hint }
            | Failure::Unreachable { error, hint }
            | Failure::Silent { error, hint }
            | Failure::Daemon { error, hint } => json!({ "error": error, "hint": hint }),
        }
    }
}

#[cfg(test)]
mod tests {
    use config::api::ErrorKind;

    use super::*;

    #[test]
    fn a_hint_of_the_daemon_is_in_the_words_of_the_command_line() {
        let options = ["path", "readonly", "latency-target-us"].map(str::to_string);
        let told = |hint: &str| {
            let refused = ApiError::new(ErrorKind::Refused, "no `latency_target_us`", hint);
            Failure::Refused(refused).in_options(&options).text()
        };
        assert_eq!(
            told("correct `path`, or say `readonly`; see `sidecore ls` and `queues`"),
            "sidecore: no `--latency-target-us`\n  correct `--path`, or say `--readonly`; see \
             `sidecore ls` and `queues`"
        );
    }
}
