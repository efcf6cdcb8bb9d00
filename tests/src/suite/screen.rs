//! Progress: a line that is written anew each second on a terminal, and one each ten seconds elsewhere.

use std::io::{IsTerminal, Write};

use testing::clock::now_ns;

/// Nanoseconds between two lines of progress on a terminal, and elsewhere.
const EACH_NS: (u64, u64) = (1_000_000_000, 10_000_000_000);
/// Columns of a terminal that does not say.
const COLUMNS: usize = 100;

/// Where progress is told: standard error.
#[derive(Debug)]
pub struct Screen {
    is_terminal: bool,
    has_colour: bool,
    start_ns: u64,
    shown_ns: u64,
    /// Whether the last line is to be written over.
    is_open: bool,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// As any other.
    Plain,
    /// As what is good.
    Green,
    /// As what is not.
    Red,
    /// As what was not done.
    Yellow,
}

impl Screen {
    /// The screen of a run that begins now.
    pub fn new() -> Screen {
        let is_terminal = std::io::stderr().is_terminal();
        let has_colour = is_terminal && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        Screen { is_terminal, has_colour, start_ns: now_ns(), shown_ns: 0, is_open: false }
    }

    /// Seconds since the run began.
    pub fn seconds(&self) -> f64 {
        (now_ns() - self.start_ns) as f64 / 1e9
    }

    /// A line that stays, with the seconds before it.
    pub fn say(&mut self, ink: Ink, words: &str) {
        let seconds = self.seconds();
        self.write(&format!("{seconds:>5.0}s  {}\n", self.inked(ink, words)));
    }

    /// Lines that stay, as they are.
    pub fn show(&mut self, text: &str) {
        self.write(text);
    }

    /// Words in their colour, where there are colours.
    pub fn inked(&self, ink: Ink, words: &str) -> String {
        let code = match ink {
            Ink::Green => "1;32",
            Ink::Red => "1;31",
            Ink::Yellow => "33",
            Ink::Plain => return words.to_owned(),
        };
        if self.has_colour { format!("\x1b[{code}m{words}\x1b[0m") } else { words.to_owned() }
    }

    /// How far the run is; written if it is time for it.
    pub fn progress(&mut self, words: impl FnOnce() -> String) {
        let now = now_ns();
        let each = if self.is_terminal { EACH_NS.0 } else { EACH_NS.1 };
        if now - self.shown_ns < each {
            return;
        }
        self.shown_ns = now;
        let line = format!("{:>5.0}s  {}", self.seconds(), words());
        if self.is_terminal {
            let columns = columns();
            let line: String = line.chars().take(columns - 1).collect();
            self.write(&line);
            self.is_open = true;
        } else {
            self.write(&format!("{line}\n"));
        }
    }

    fn write(&mut self, text: &str) {
        let before = if std::mem::take(&mut self.is_open) { "\r\x1b[2K" } else { "" };
        let _ = std::io::stderr().write_all(format!("{before}{text}").as_bytes());
    }
}

impl Default for Screen {
    fn default() -> Screen {
        Screen::new()
    }
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 20).unwrap_or(COLUMNS)
}
