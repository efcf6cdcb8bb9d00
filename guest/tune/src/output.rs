//! Where commands print: text for people, JSON for programs; and how a command fails.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

/// Why a command did nothing.
#[derive(Debug)]
pub struct Failure {
    /// The program's status: 2 wrong usage or a journal that is not understood, 3 nothing may be changed here.
    pub code: u8,
    /// What was wrong, where, and what to do.
    pub error: String,
}

impl Failure {
    /// Wrong usage, or something on disk that is not understood.
    pub fn usage(error: impl ToString) -> Failure {
        Failure { code: 2, error: error.to_string() }
    }

    /// Nothing may be changed here.
    pub fn here(error: impl ToString) -> Failure {
        Failure { code: 3, error: error.to_string() }
    }
}

impl Output {
    /// Prints a value as JSON, or as the text that is made of it.
    ///
    /// # Errors
    /// The output cannot be written. Whoever reads and has gone has what they wanted.
    pub fn show<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self.json {
            true => serde_json::to_string_pretty(value).map_err(Failure::usage)? + "\n",
            false => text(value),
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::usage(format!("the output cannot be written: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Says why a command did nothing.
    pub fn failure(&self, failure: &Failure) {
        let text = match self.json {
            true => json!({ "error": failure.error, "status": failure.code }).to_string(),
            false => format!("sidecore-tune: {}", failure.error),
        };
        // Nobody is left to be told that this cannot be written.
        let _ = writeln!(io::stderr(), "{text}");
    }
}
