//! QEMU's monitor (QMP): commands, and the events that QEMU tells by itself.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clock::now_ns;
use crate::daemon::pause;

/// The longest wait for an answer or an event.
const ANSWER: Duration = Duration::from_secs(90);
/// The longest wait for a command that QEMU refuses for a while.
const REFUSED: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(20);

/// An event: its name, when QEMU says it was (microseconds of the host's clock), and its data.
#[derive(Clone, Debug)]
pub struct Event {
    /// Such as `RESUME`.
    pub name: String,
    /// Microseconds since 1970.
    pub at_us: u64,
    /// Its arguments.
    pub data: Value,
}

/// A connection to the monitor; QEMU has one at a time.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
    events: Vec<Event>,
}

impl Qmp {
    /// Connects, and leaves the mode in which QEMU negotiates.
    ///
    /// # Errors
    /// Nobody listens there, or the answer is none of QEMU's.
    pub fn connect(path: &Path) -> Result<Qmp> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("connecting to QEMU's monitor {}", path.display()))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut qmp = Qmp { reader: BufReader::new(stream), events: Vec::new() };
        qmp.read().context("QEMU's greeting")?;
        qmp.ask("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Gives a command, and what QEMU returns.
    ///
    /// # Errors
    /// QEMU refuses it, or does not answer in 90 s.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.reader.get_mut(), "{line}").context("QEMU's monitor is closed")?;
        loop {
            let mut answer = self.read().with_context(|| format!("as answer to {line}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {line}: {}", error["desc"].as_str().unwrap_or_default());
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
            self.note(&answer);
        }
    }

    /// Gives a command until QEMU does it, as long as it refuses with these words.
    ///
    /// # Errors
    /// QEMU refuses with other words, or for 90 s.
    pub fn ask_until(&mut self, command: &str, arguments: &Value, refusal: &str) -> Result<Value> {
        let start = now_ns();
        loop {
            match self.ask(command, arguments) {
                Err(error)
                    if format!("{error:#}").contains(refusal)
                        && u128::from(now_ns() - start) < REFUSED.as_nanos() => {}
                asked => return asked,
            }
            pause(LOOK);
        }
    }

    /// Waits for an event with that name whose data `fits`; events of before count.
    ///
    /// # Errors
    /// It does not come in 90 s.
    pub fn await_event(&mut self, name: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
        let is_it = |event: &Event| event.name == name && fits(&event.data);
        while !self.events.iter().any(is_it) {
            let said = self.read().with_context(|| format!("while {name} is waited for"))?;
            self.note(&said);
        }
        Ok(())
    }

    /// Forgets the events so far.
    pub fn forget(&mut self) {
        self.events.clear();
    }

    /// When the event of that name was last, in microseconds since 1970.
    pub fn told_at(&self, name: &str) -> Option<u64> {
        let told = self.events.iter().rev().find(|event| event.name == name);
        told.map(|event| event.at_us)
    }

    fn note(&mut self, said: &Value) {
        let Some(name) = said["event"].as_str() else { return };
        let part = |name: &str| said["timestamp"][name].as_u64().unwrap_or(0);
        let at_us = part("seconds") * 1_000_000 + part("microseconds");
        self.events.push(Event { name: name.to_string(), at_us, data: said["data"].clone() });
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        let got = self.reader.read_line(&mut line).context("no answer")?;
        ensure!(got > 0, "QEMU's monitor was closed");
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor said {line:?}"))
    }
}
