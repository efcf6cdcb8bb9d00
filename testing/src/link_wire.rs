//! A wire between two daemons, as a process that loses, doubles and delays their datagrams (`bad_wire`).
//!
//! Used by the tests of links.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// What the wire does to datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Bad {
    /// Of a hundred.
    pub loss_percent: u32,
    /// Of a hundred.
    pub double_percent: u32,
    /// The most, microseconds.
    pub delay_us: u32,
}

/// A wire; it ends with this.
#[derive(Debug)]
pub struct Wire(Child);

impl Wire {
    /// From one port of the loopback interface to another, by that program.
    ///
    /// # Errors
    /// It does not start.
    pub fn lay(program: &str, from: u16, to: u16, seed: u64, bad: Bad) -> Result<Wire> {
        let numbers = [bad.loss_percent, bad.double_percent, bad.delay_us];
        let child = Command::new(program)
            .args([format!("127.0.0.1:{from}"), format!("127.0.0.1:{to}"), seed.to_string()])
            .args(numbers.map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Wire(child))
    }

    /// Ends it: what it says of datagrams.
    ///
    /// # Errors
    /// It says nothing.
    pub fn end(mut self) -> Result<String> {
        drop(self.0.stdin.take());
        let mut line = String::new();
        let out = self.0.stdout.take().context("it has no output")?;
        BufReader::new(out).read_line(&mut line)?;
        self.0.wait()?;
        Ok(line.trim().to_string())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
