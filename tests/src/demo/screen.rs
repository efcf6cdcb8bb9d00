//! What a person sees: a line for each step with the seconds since the beginning, below them on a terminal what was
//! done last, and in the end all that was checked.

use std::io::{IsTerminal, Write};
use std::path::Path;

use testing::bed::{Kind, Outcome};
use testing::clock::now_ns;

/// Words for a terminal: how they begin, and how they end.
#[derive(Clone, Copy, Debug)]
struct Colours {
    bold: &'static str,
    green: &'static str,
    red: &'static str,
    plain: &'static str,
}

/// The screen.
#[derive(Debug)]
pub struct Screen {
    start: u64,
    is_terminal: bool,
    colours: Colours,
    /// What was done last.
    last: String,
}

impl Screen {
    /// Standard error, from now on.
    pub fn of_stderr() -> Screen {
        let is_terminal = std::io::stderr().is_terminal();
        let mut colours = Colours { bold: "", green: "", red: "", plain: "" };
        if is_terminal && std::env::var_os("NO_COLOR").is_none() {
            colours =
                Colours { bold: "\x1b[1m", green: "\x1b[32m", red: "\x1b[31m", plain: "\x1b[0m" };
        }
        Screen { start: now_ns(), is_terminal, colours, last: String::new() }
    }

    /// Shows a line of what the machines say: a step, more of one, or a check.
    pub fn line(&mut self, line: &str) {
        let Colours { red, plain, .. } = self.colours;
        if let Some(check) = line.strip_prefix("ok ") {
            self.last = check.to_string();
            // How fast a network is, is worth a line; that a check held is said in the end.
            if check.contains("Mbit/s") {
                self.print(&format!("       {check}"));
            }
        } else if let Some(check) = line.strip_prefix("FAIL ") {
            self.print(&format!("  {red}FAIL{plain} {check}"));
        } else if line.is_empty() || line.starts_with(' ') {
            self.print(line);
        } else {
            self.last = line.to_string();
            self.say(line);
        }
        self.tick();
    }

    /// Shows the seconds, and what was done last.
    pub fn tick(&self) {
        if self.is_terminal {
            let last: String = self.last.chars().take(60).collect();
            let _ = write!(std::io::stderr(), "\r\x1b[K{} .. {last}", self.seconds());
        }
    }

    /// Ends the line of seconds.
    pub fn end(&self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Says what it comes to where all was as it should be.
    pub fn verdict(&self, what: &str) {
        let Colours { green, plain, .. } = self.colours;
        if what == "remote" {
            self.say(&format!(
                "{green}passed{plain}: fio --verify and e2fsck found every byte; the guest has waited for IOhosts that \
                 died, and noticed nothing else"
            ));
            self.say("all of it was one machine; what two do to a guest that had writes not flushed: docs/remote.md");
        } else {
            self.say(&format!(
                "{green}done{plain}: fio --verify passed in both guests, and their TCP connections live; nothing in them \
                 has noticed the kill -9"
            ));
            self.say("./x demo remote: a guest whose disk is on another machine, which is killed as well");
        }
    }

    /// Says that something was wrong, and where to look.
    pub fn failure(&self, what: &str, logs: &Path) {
        let Colours { bold, red, plain, .. } = self.colours;
        let wrong = match what {
            "remote" => "FAILED: the guest has noticed, or its image is not whole",
            _ => "the demo found something wrong",
        };
        let closer = if what == "remote" { "./x test remote" } else { "./x test guest net" };
        self.print(&format!("{red}{bold}error:{plain} {wrong}"));
        self.print(&format!("  to do: read what FAIL says above; {closer} looks closer"));
        self.print(&format!("  logs are in {}", logs.display()));
    }

    fn say(&self, words: &str) {
        self.print(&format!("{}  {words}", self.seconds()));
    }

    fn seconds(&self) -> String {
        let Colours { bold, plain, .. } = self.colours;
        format!("{bold}{:4}s{plain}", (now_ns() - self.start) / 1_000_000_000)
    }

    fn print(&self, line: &str) {
        self.end();
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// All that was checked, a line each.
pub fn all_checks(checks: &[Outcome]) -> String {
    let mut text = String::new();
    for check in checks {
        let word = match check.kind() {
            Kind::Pass => "ok",
            Kind::Fail => "FAIL",
            Kind::Skip => "skip",
        };
        let name = if check.check().is_empty() { "the demo" } else { check.check() };
        let detail = check.detail().lines().next().unwrap_or_default();
        text += "\n";
        text += format!("  {word:4}  {name:40} {detail}").trim_end();
    }
    text + "\n"
}
