//! Moves a guest from one QEMU to another over their monitors (QMP), and says how it went, as JSON.
//!
//! - `ask SOCKET JSON`: one command; prints what it returns.
//! - `move FROM TO URI [SETTING=VALUE..] [PHASE COMMAND]`: a migration from the QEMU whose monitor is FROM to that
//!   of TO (`-` for none), which waits with `-incoming defer`. Settings are QEMU's migration parameters. When
//!   PHASE (setup, active, late, switchover) is there COMMAND is done: `cancel`, or words for a shell; then the
//!   migration has all bandwidth. Prints what `query-migrate` says in the end, and in `stopped-us` and `resumed-us`
//!   when the guest's processors stopped at FROM and ran at TO, as these say (microseconds of the host's clock), if
//!   both did.
//! - `compare PID PID [MOST]`: the guest memory of two QEMUs, page by page. When no more than MOST pages differ the
//!   second one, which has not run, gets those of the first; `mended` says how many.
//!
//! For `x.d/test/migrate.sh`. Not here: what is started, and what is asked of the guest.
#![expect(clippy::disallowed_macros, reason = "a program of the tests prints what it found")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testing::clock::now_ns;
use testing::daemon::pause;

const PAGE: usize = 4096;
const CHUNK: usize = 1 << 20;
/// A migration that takes longer does not converge.
const MOVE_NS_MAX: u64 = 180_000_000_000;
/// So long the destination may take to start what it has received.
const START_NS_MAX: u64 = 90_000_000_000;
/// Bytes a second: as much as there is.
const FAST: u64 = 100_000_000_000;
const LOOK: Duration = Duration::from_millis(2);

/// A monitor.
struct Monitor {
    reader: BufReader<UnixStream>,
    /// What it told of by itself: name, and when, in microseconds.
    events: Vec<(String, u64)>,
}

impl Monitor {
    fn connect(path: &str) -> Result<Monitor> {
        let stream = UnixStream::connect(path).with_context(|| format!("connecting to {path}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut monitor = Monitor { reader: BufReader::new(stream), events: Vec::new() };
        monitor.read()?;
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        self.say(&json!({ "execute": command, "arguments": arguments }))
    }

    fn say(&mut self, command: &Value) -> Result<Value> {
        writeln!(self.reader.get_mut(), "{command}")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {error}");
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
            if let (Some(name), at) = (answer["event"].as_str(), &answer["timestamp"]) {
                let part = |name: &str| at[name].as_u64().unwrap_or(0);
                let at_us = part("seconds") * 1_000_000 + part("microseconds");
                self.events.push((name.to_string(), at_us));
            }
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        let got = self.reader.read_line(&mut line).context("no answer")?;
        ensure!(got > 0, "the monitor is gone");
        Ok(serde_json::from_str(&line)?)
    }

    /// When it told of that last.
    fn told_at(&self, event: &str) -> Option<u64> {
        let told = self.events.iter().rev().find(|(name, _)| name == event);
        told.map(|(_, at_us)| *at_us)
    }

    fn set_capability(&mut self, name: &str) -> Result<()> {
        let one = json!({ "capability": name, "state": true });
        self.ask("migrate-set-capabilities", &json!({ "capabilities": [one] })).map(drop)
    }
}

/// What is done in the middle of a migration.
struct Turn {
    phase: String,
    command: String,
}

impl Turn {
    /// Whether its phase is there, by what `query-migrate` says.
    fn is_now(&self, info: &Value) -> bool {
        let status = info["status"].as_str().unwrap_or_default();
        let syncs = info["ram"]["dirty-sync-count"].as_u64().unwrap_or(0);
        match self.phase.as_str() {
            "setup" => true,
            "active" => status == "active",
            "late" => status == "active" && syncs >= 2,
            _ => status == "pre-switchover",
        }
    }

    fn take(&self, from: &mut Monitor) -> Result<()> {
        if self.command == "cancel" {
            return from.ask("migrate_cancel", &json!({})).map(drop);
        }
        let status = Command::new("sh").args(["-c", &self.command]).status()?;
        ensure!(status.success(), "`{}` gave {status}", self.command);
        Ok(())
    }
}

fn is_over(status: &str) -> bool {
    ["completed", "failed", "cancelled"].contains(&status)
}

fn migrate(from: &str, to: &str, uri: &str, more: &[String]) -> Result<Value> {
    let mut from = Monitor::connect(from)?;
    let mut to = if to == "-" { None } else { Some(Monitor::connect(to)?) };
    if let Some(to) = &mut to {
        to.ask("migrate-incoming", &json!({ "uri": uri }))?;
    }
    let mut settings = json!({});
    let is_setting = |word: &&String| word.contains('=') && !word.contains(' ');
    let count = more.iter().take_while(is_setting).count();
    for (name, value) in more[..count].iter().filter_map(|word| word.split_once('=')) {
        settings[name] = value.parse::<u64>()?.into();
    }
    from.ask("migrate-set-parameters", &settings)?;
    let mut turn = match &more[count..] {
        [] => None,
        [phase, command] => Some(Turn { phase: phase.clone(), command: command.clone() }),
        other => bail!("{other:?} is no phase and command"),
    };
    if turn.as_ref().is_some_and(|turn| turn.phase == "switchover") {
        from.set_capability("pause-before-switchover")?;
    }
    from.ask("migrate", &json!({ "uri": uri }))?;
    let begun = now_ns();
    let mut goes_on = false;
    loop {
        let info = from.ask("query-migrate", &json!({}))?;
        if let Some(now) = turn.take_if(|turn| turn.is_now(&info)) {
            now.take(&mut from)?;
            // A move that was slow so that its phase would be seen is so no longer.
            from.ask("migrate-set-parameters", &json!({ "max-bandwidth": FAST }))?;
            continue;
        }
        let status = info["status"].as_str().unwrap_or_default();
        if is_over(status) {
            ensure!(turn.is_none() || status == "failed", "it was over before its phase: {info}");
            // A destination that was killed is asked nothing.
            let to = to.filter(|_| status == "completed");
            return Ok(with_times(info, &from, to));
        }
        if status == "pre-switchover" && turn.is_none() && !goes_on {
            // Whatever was done did not end it. Once is enough: QEMU says where it was until its thread wakes.
            goes_on = true;
            let state = json!({ "state": "pre-switchover" });
            from.ask("migrate-continue", &state)?;
        }
        ensure!(now_ns() - begun < MOVE_NS_MAX, "it does not converge: {info}");
        pause(LOOK);
    }
}

/// What came of a migration, with the times of the guest's stop and start. One that waits to be told to go on
/// has none.
fn with_times(mut info: Value, from: &Monitor, to: Option<Monitor>) -> Value {
    let Some(mut to) = to else { return info };
    let by = now_ns() + START_NS_MAX;
    while to.told_at("RESUME").is_none() && now_ns() < by {
        // What it tells by itself comes before an answer.
        match to.ask("query-status", &json!({})) {
            Ok(state) if state["status"] != "paused" => pause(LOOK),
            _ => break,
        }
    }
    if let (Some(stopped), Some(resumed)) = (from.told_at("STOP"), to.told_at("RESUME")) {
        (info["stopped-us"], info["resumed-us"]) = (stopped.into(), resumed.into());
    }
    info
}

/// The memory of a QEMU's guest (`memory-backend-memfd`).
fn memory_of(pid: &str) -> Result<File> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = entry?.path();
        let target = std::fs::read_link(&link).unwrap_or_default();
        if target.to_string_lossy().starts_with("/memfd:memory-backend-memfd") {
            return Ok(File::options().read(true).write(true).open(link)?);
        }
    }
    bail!("process {pid} has no memory-backend-memfd")
}

fn compare(one: &str, other: &str, most: usize) -> Result<Value> {
    let (one, other) = (memory_of(one)?, memory_of(other)?);
    let bytes = one.metadata()?.len();
    ensure!(other.metadata()?.len() == bytes, "sizes differ");
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut different: Vec<u64> = Vec::new();
    for at in (0..bytes).step_by(CHUNK) {
        one.read_exact_at(&mut a, at)?;
        other.read_exact_at(&mut b, at)?;
        let pages = (at..).step_by(PAGE).zip(a.chunks(PAGE).zip(b.chunks(PAGE)));
        different.extend(pages.filter(|(_, (a, b))| a != b).map(|(at, _)| at));
    }
    let mends = different.len() <= most;
    for at in different.iter().filter(|_| mends) {
        one.read_exact_at(&mut a[..PAGE], *at)?;
        other.write_all_at(&a[..PAGE], *at)?;
    }
    let first: Vec<&u64> = different.iter().take(8).collect();
    let mended = if mends { different.len() } else { 0 };
    Ok(json!({
        "pages": bytes / PAGE as u64, "different": different.len(), "first": first, "mended": mended,
    }))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let text: Vec<&str> = words.iter().map(String::as_str).collect();
    let answer = match text.as_slice() {
        ["ask", socket, command] => {
            Monitor::connect(socket)?.say(&serde_json::from_str(command)?)?
        }
        ["move", from, to, uri, ..] => migrate(from, to, uri, &words[4..])?,
        ["compare", one, other] => compare(one, other, 0)?,
        ["compare", one, other, most] => compare(one, other, most.parse()?)?,
        _ => bail!("ask SOCKET JSON, move FROM TO URI .., or compare PID PID [MOST]"),
    };
    println!("{answer}");
    Ok(())
}
