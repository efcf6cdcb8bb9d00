//! Where commands print: tables for people, JSON for programs, and a reader that may go.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::cli::Cli;
use crate::failure::Failure;
use crate::table::Room;

/// Lines and columns of a terminal that does not say how many it has.
const LINES: usize = 24;
const COLUMNS: usize = 80;

/// How to print.
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
    /// Room of a table's lines.
    pub(crate) room: Room,
}

/// Lines and columns of the terminal that the output is; nothing where it is none.
pub(crate) fn screen() -> Option<[usize; 2]> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stdout);
    let [lines, columns] = size.map_or([0, 0], |size| [size.ws_row, size.ws_col].map(usize::from));
    let told = |count: usize, otherwise| if count == 0 { otherwise } else { count };
    Some([told(lines, LINES), told(columns, COLUMNS)])
}

impl Output {
    /// As the command line says; tables as wide as the terminal, whole where there is none.
    pub(crate) fn of(cli: &Cli) -> Output {
        let room = match screen() {
            Some([_, columns]) if !cli.wide => Room::Columns(columns),
            _ => Room::Whole,
        };
        Output { json: cli.json, room }
    }

    /// Prints a value as JSON, or as the text that is made of it.
    pub(crate) fn show<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if !self.json {
            return self.text(&text(value));
        }
        let json = serde_json::to_string_pretty(value).map_err(|error| {
            Failure::usage(format!("no JSON could be made: {error}"), "report it")
        })?;
        self.text(&format!("{json}\n"))
    }

    /// Prints a text as it is.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::NobodyReads),
            Err(error) => Err(Failure::usage(
                format!("the output cannot be written: {error}"),
                "see to where it goes",
            )),
        }
    }

    /// Says something beside the output.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Says why the command failed.
    pub(crate) fn failure(&self, failure: &Failure) {
        let text = match (failure, self.json) {
            (Failure::NobodyReads, _) => return,
            (_, true) => failure.json().to_string(),
            (_, false) => failure.text(),
        };
        self.note(&text);
    }
}
