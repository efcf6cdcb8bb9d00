//! How a command fails, and with which status the program ends.

use config::api::ApiError;
use config::{Mistake, Refusal};
use serde_json::{Value, json};

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The daemon refused. Status 1.
    Refused(ApiError),
    /// The configuration file has mistakes. Status 2.
    Config(Refusal),
    /// Wrong usage, or a file that cannot be used. Status 2.
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
    /// The daemon could not start, or broke off. Status 1.
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

    /// The program's exit status.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::NobodyReads => 0,
            Failure::Refused(_) | Failure::Daemon { .. } => 1,
            Failure::Config(_) | Failure::Usage { .. } => 2,
            Failure::Unreachable { .. } => 3,
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
                    .map(|located| {
                        let Mistake { path, right, .. } = &located.mistake;
                        json!({
                            "file": refusal.file,
                            "line": located.line,
                            "column": located.column,
                            "at": path.to_string(),
                            "error": located.mistake.to_string(),
                            "hint": right,
                        })
                    })
                    .collect();
                json!({
                    "error": format!("{} has mistakes", refusal.file),
                    "hint": "correct them; nothing was changed",
                    "mistakes": mistakes,
                })
            }
            Failure::Refused(ApiError { error, hint, .. })
            | Failure::Usage { error, hint }
            | Failure::Unreachable { error, hint }
            | Failure::Daemon { error, hint } => json!({ "error": error, "hint": hint }),
        }
    }
}
