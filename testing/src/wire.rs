//! A bad wire: what goes over it is lost, doubled and late. By the kernel on a veth pair (netem) where it can, otherwise a
//! process between two daemons that does so to their datagrams (`bad_wire`).
//!
//! Not a shaper: it has no bandwidth. Used by the tests of links.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result};

use crate::namespace::Namespace;

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
        let [from, to] = [from, to].map(|port| format!("127.0.0.1:{port}"));
        Wire::lay_by(Command::new(program), &from, &to, seed, bad)
    }

    /// From one address and port to another, by that program wherever it is: [`Namespace::command`].
    ///
    /// # Errors
    /// It does not start.
    pub fn lay_by(mut program: Command, from: &str, to: &str, seed: u64, bad: Bad) -> Result<Wire> {
        let numbers = [bad.loss_percent, bad.double_percent, bad.delay_us];
        let child = program
            .args([from, to, &seed.to_string()])
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

/// Has the kernel do so to what leaves an interface from here on: whether it can. Not every kernel has netem.
///
/// # Errors
/// There is no `tc`.
pub fn netem(namespace: &Namespace, interface: &str, bad: Bad) -> Result<bool> {
    let Bad { loss_percent, double_percent, delay_us } = bad;
    let rules = format!("loss {loss_percent}% duplicate {double_percent}% delay {delay_us}us");
    let words = format!("qdisc add dev {interface} root netem {rules}");
    Ok(tc(namespace, &words)?.status.success())
}

/// Counts the frames that the kernel lost at that interface.
///
/// # Errors
/// It says nothing of them.
pub fn netem_lost(namespace: &Namespace, interface: &str) -> Result<u64> {
    let output = tc(namespace, &format!("-s qdisc show dev {interface}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let dropped = said.split_once("(dropped ").and_then(|(_, rest)| rest.split_once(','));
    let dropped = dropped.and_then(|(number, _)| number.parse().ok());
    dropped.with_context(|| format!("tc tells no losses of {interface}: {said}"))
}

fn tc(namespace: &Namespace, words: &str) -> Result<Output> {
    let mut command = Command::new("tc");
    command.args(["-n", namespace.netns()]).args(words.split(' '));
    command.output().context("starting tc (Debian: apt-get install iproute2)")
}
