//! What is told of a run: how far it is, on standard error, and what it found, on standard output.
//!
//! Progress is a line that is written anew each second on a terminal, and one each ten seconds elsewhere.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two lines of progress on a terminal, and elsewhere.
const EACH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// What a line is begun with that takes the place of the one before.
const OVER: &str = "\r\x1b[2K";

/// Where a run is told of.
#[derive(Debug)]
pub(crate) struct Screen {
    is_terminal: bool,
    /// Whether the last line is to be written over.
    is_open: Mutex<bool>,
}

impl Screen {
    pub(crate) fn new() -> Screen {
        Screen { is_terminal: stderr().is_terminal(), is_open: Mutex::new(false) }
    }

    /// Lines that stay.
    pub(crate) fn say(&self, text: &str) {
        let mut is_open = self.is_open();
        if std::mem::take(&mut *is_open) {
            let _ = write!(stderr(), "{OVER}");
        }
        // Nobody is left to be told when this fails.
        let _ = writeln!(stdout().lock(), "{text}");
    }

    /// Tells how far the run is, until all who work have dropped their ends of `work`.
    pub(crate) fn follow(&self, work: &Receiver<()>, words: impl Fn() -> String) {
        let each = if self.is_terminal { EACH.0 } else { EACH.1 };
        while work.recv_timeout(each) == Err(RecvTimeoutError::Timeout) {
            let mut is_open = self.is_open();
            let words = words();
            let _ = match self.is_terminal {
                true => write!(stderr(), "{OVER}{words}"),
                false => writeln!(stderr(), "{words}"),
            };
            *is_open = self.is_terminal;
        }
    }

    fn is_open(&self) -> MutexGuard<'_, bool> {
        self.is_open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
