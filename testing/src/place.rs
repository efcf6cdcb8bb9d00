//! A place where commands run: a guest that takes orders, or a namespace. `traffic` goes between two.
//!
//! Not the host itself: what a test does there it does by processes of its own.

use anyhow::{Result, bail, ensure};

/// The shortest wait in a place, seconds: a slow machine is no failure.
const PATIENCE_S: u64 = 60;

/// Something that runs shell commands, in a folder of its own, and has a name for reports.
pub trait Place {
    /// The name for reports.
    fn name(&self) -> &str;

    /// Runs a shell command to its end: its status and what it printed. What it leaves running in the background
    /// holds nothing up.
    ///
    /// # Errors
    /// There is no answer.
    fn does(&self, command: &str) -> Result<(i32, String)>;

    /// Runs a command, which must succeed, and gives what it printed.
    ///
    /// # Errors
    /// Another status than 0, or no answer; the end of what it printed is in the message.
    fn run(&self, command: &str) -> Result<String> {
        let (status, said) = self.does(command)?;
        ensure!(status == 0, told(self.name(), command, status, &said));
        Ok(said)
    }

    /// Runs a command, which must succeed. The detail of that is empty.
    ///
    /// # Errors
    /// As [`Place::run`].
    fn asked(&self, command: &str) -> Result<&'static str> {
        self.run(command).map(|_| "")
    }

    /// Runs a command, which must say no (status 1). Any other status is want of an answer, or a mistake in it.
    ///
    /// # Errors
    /// Another status.
    fn asked_in_vain(&self, command: &str) -> Result<&'static str> {
        match self.does(command)? {
            (1, _) => Ok(""),
            (status, said) => bail!(told(self.name(), command, status, &said)),
        }
    }

    /// Runs a command ten times a second until it succeeds, for a minute at least.
    ///
    /// # Errors
    /// It did not in time.
    fn comes_to(&self, command: &str) -> Result<&'static str> {
        self.asked(&until(command))
    }
}

/// Gives shell words that wait until `command` succeeds, for a minute; their status is 1 when that is over.
pub fn until(command: &str) -> String {
    let looks = PATIENCE_S * 10;
    format!("n=0; until {command}; do n=$((n + 1)); [ $n -lt {looks} ] || exit 1; sleep 0.1; done")
}

/// Gives shell words that wait until somebody listens at that port.
pub fn until_listened(port: u16) -> String {
    until(&format!("grep -qE ':{port:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6"))
}

/// Gives the last lines of what a command printed, as one line.
pub fn end_of(said: &str) -> String {
    let lines: Vec<&str> = said.trim_end().lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" ")
}

fn told(place: &str, command: &str, status: i32, said: &str) -> String {
    format!("`{command}` in {place} gave status {status}: {}", end_of(said))
}
