//! A guest that goes from one VM to another: migrations with something done in the middle, the memory of both
//! compared, QEMU's jobs (snapshots), and a place for traffic that goes along.

use std::cell::{Ref, RefCell};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Vm;
use crate::clock::now_ns;
use crate::daemon::pause;
use crate::place::Place;
use crate::qmp::Qmp;

const PAGE: usize = 4096;
const CHUNK: usize = 1 << 20;
/// A migration that takes longer does not converge.
const MOVE: Duration = Duration::from_secs(180);
/// The longest wait for what a QEMU does by itself: to start what it has received, to end a job.
const WAIT: Duration = Duration::from_secs(90);
/// Between two looks at a migration.
const GLANCE: Duration = Duration::from_millis(2);
/// Bytes a second, as QEMU has it if it is not told.
const USUAL: u64 = 128 << 20;
/// Bytes a second until the first time over was seen, by whoever gets a processor late.
const UNTIL_SEEN: u64 = 30_000_000;
/// Bytes a second: as much as there is.
const FAST: u64 = 100_000_000_000;
/// The longest that the guest may stand still, milliseconds.
const DOWNTIME_MS: u64 = 300;
/// Where QEMU waits if it is told to pause before the switchover.
const PAUSED: &str = "pre-switchover";
const JOB: &str = "job";

/// A moment of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It was asked for.
    Setup,
    /// Memory goes over for the first time.
    Active,
    /// What was written meanwhile goes over.
    Late,
    /// The source has stopped its guest; the destination has not begun.
    Switchover,
}

impl Phase {
    /// Whether it is now, by what `query-migrate` says.
    fn is_now(self, info: &Value) -> bool {
        let status = info["status"].as_str().unwrap_or_default();
        let syncs = info["ram"]["dirty-sync-count"].as_u64().unwrap_or(0);
        match self {
            Phase::Setup => true,
            Phase::Active => status == "active",
            Phase::Late => status == "active" && syncs >= 2,
            Phase::Switchover => status == PAUSED,
        }
    }
}

/// What is done in a phase, with the source's monitor.
type Turn<'a> = Box<dyn FnOnce(&mut Qmp) -> Result<()> + 'a>;

/// A migration that is to be made.
pub struct Move<'a> {
    from: &'a Vm,
    to: Option<&'a Vm>,
    uri: String,
    bandwidth: u64,
    turn: Option<(Phase, Turn<'a>)>,
}

impl<'a> Move<'a> {
    /// From one VM to another, which waits with `-incoming defer`.
    pub fn new(from: &'a Vm, to: &'a Vm) -> Move<'a> {
        let uri = format!("unix:{}", to.file("move").display());
        Move { to: Some(to), ..Move::away(from, &uri) }
    }

    /// To wherever that leads, such as `exec:cat >FILE`.
    pub fn away(from: &'a Vm, uri: &str) -> Move<'a> {
        let uri = uri.to_string();
        Move { from, to: None, uri, bandwidth: USUAL, turn: None }
    }

    /// So many bytes a second at most, until its phase was there.
    pub fn slowly(mut self, bandwidth: u64) -> Move<'a> {
        self.bandwidth = bandwidth;
        self
    }

    /// Does something as soon as a phase is there; from then on it has all bandwidth. The source's monitor is given to
    /// what is done, and not to be had otherwise meanwhile.
    pub fn at(mut self, phase: Phase, act: impl FnOnce(&mut Qmp) -> Result<()> + 'a) -> Move<'a> {
        if phase == Phase::Active {
            self.bandwidth = self.bandwidth.min(UNTIL_SEEN);
        }
        self.turn = Some((phase, Box::new(act)));
        self
    }

    /// Cancels it in that phase.
    pub fn cancelled_at(self, phase: Phase) -> Move<'a> {
        self.at(phase, |from| from.ask("migrate_cancel", &json!({})).map(drop))
    }

    /// Makes it: what came of it. A migration that fails is no error.
    ///
    /// # Errors
    /// QEMU refuses something, its phase was not there, or it is not over in 180 s.
    pub fn make(mut self) -> Result<Moved> {
        self.begin().context("beginning a migration")?;
        let mut from = self.from.monitor()?;
        let start = now_ns();
        let mut goes_on = false;
        let info = loop {
            let info = from.ask("query-migrate", &json!({}))?;
            if let Some((_, act)) = self.turn.take_if(|(phase, _)| phase.is_now(&info)) {
                act(&mut from)?;
                set(&mut from, FAST, DOWNTIME_MS)?;
                continue;
            }
            let status = info["status"].as_str().unwrap_or_default();
            if ["completed", "failed", "cancelled"].contains(&status) {
                break info;
            }
            if status == PAUSED && self.turn.is_none() && !goes_on {
                // Whatever was done did not end it. Once is enough: QEMU says where it was until its thread wakes.
                goes_on = true;
                from.ask("migrate-continue", &json!({ "state": PAUSED }))?;
            }
            let is_late = u128::from(now_ns() - start) > MOVE.as_nanos();
            ensure!(!is_late, "the migration does not converge: {info}");
            pause(GLANCE);
        };
        let is_early = self.turn.is_some() && info["status"] != "failed";
        ensure!(!is_early, "the migration was over before its phase: {info}");
        let mut moved = Moved { info, stopped_us: from.told_at("STOP"), resumed_us: None };
        // A destination that was killed is asked nothing.
        if let Some(to) = self.to.filter(|_| moved.is_completed()) {
            moved.resumed_us = resumed(to)?;
        }
        Ok(moved)
    }

    fn begin(&self) -> Result<()> {
        if let Some(to) = self.to {
            let mut to = to.monitor()?;
            to.forget();
            to.ask("migrate-incoming", &json!({ "uri": self.uri }))?;
        }
        let mut from = self.from.monitor()?;
        from.forget();
        // What is written meanwhile is to be on its way for long enough.
        let is_late = matches!(self.turn, Some((Phase::Late, _)));
        set(&mut from, self.bandwidth, if is_late { 1 } else { DOWNTIME_MS })?;
        let pauses = matches!(self.turn, Some((Phase::Switchover, _)));
        let capability = json!({ "capability": "pause-before-switchover", "state": pauses });
        from.ask("migrate-set-capabilities", &json!({ "capabilities": [capability] }))?;
        from.ask("migrate", &json!({ "uri": self.uri })).map(drop)
    }
}

fn set(from: &mut Qmp, bandwidth: u64, downtime_ms: u64) -> Result<()> {
    let settings = json!({ "max-bandwidth": bandwidth, "downtime-limit": downtime_ms });
    from.ask("migrate-set-parameters", &settings).map(drop)
}

/// When the destination's processors ran. One that waits to be told to go on has no such time.
fn resumed(to: &Vm) -> Result<Option<u64>> {
    let mut to = to.monitor()?;
    let start = now_ns();
    while to.told_at("RESUME").is_none() && u128::from(now_ns() - start) < WAIT.as_nanos() {
        // What it tells by itself comes before an answer.
        match to.ask("query-status", &json!({})) {
            Ok(state) if state["status"] != "paused" => pause(GLANCE),
            _ => break,
        }
    }
    Ok(to.told_at("RESUME"))
}

/// What came of a migration.
#[derive(Clone, Debug)]
pub struct Moved {
    /// As `query-migrate` tells it.
    info: Value,
    /// When the guest's processors stopped at the source, in microseconds of the host's clock.
    stopped_us: Option<u64>,
    /// When they ran at the destination.
    resumed_us: Option<u64>,
}

impl Moved {
    /// Whether the guest is at the destination.
    pub fn is_completed(&self) -> bool {
        self.info["status"] == "completed"
    }

    /// Whether the guest is where it was. Some versions say `completed` of what nobody received.
    pub fn is_called_off(&self) -> bool {
        self.info["status"] == "cancelled" || self.info["status"] == "failed"
    }

    /// When the guest's processors stopped at the source, in microseconds since 1970.
    pub fn stopped_us(&self) -> Option<u64> {
        self.stopped_us
    }

    /// Milliseconds in which the guest stood still, by QEMU's own count.
    pub fn downtime_ms(&self) -> u64 {
        self.info["downtime"].as_u64().unwrap_or(0)
    }

    /// Milliseconds that it took.
    pub fn total_ms(&self) -> u64 {
        self.info["total-time"].as_u64().unwrap_or(0)
    }

    /// Milliseconds from the guest's stop to its start, if it went on by itself.
    pub fn pause_ms(&self) -> Option<u64> {
        let (stopped, resumed) = self.stopped_us.zip(self.resumed_us)?;
        Some((resumed.saturating_sub(stopped) + 500) / 1000)
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// What two guests' memories differ in.
#[derive(Clone, Debug)]
pub struct Compared {
    pages: u64,
    /// In bytes.
    different: Vec<u64>,
    mended: usize,
}

impl Compared {
    /// Where they differ, in bytes.
    pub fn different(&self) -> &[u64] {
        &self.different
    }

    /// Whether the memories are alike, with what was mended.
    pub fn is_alike(&self) -> bool {
        self.pages > 0 && self.different.len() == self.mended
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first: Vec<&u64> = self.different.iter().take(8).collect();
        let (pages, different) = (self.pages, self.different.len());
        write!(f, "{pages} pages, {different} differ, {} of them mended", self.mended)?;
        if different > 0 { write!(f, ", the first at {first:?}") } else { Ok(()) }
    }
}

impl Vm {
    /// Compares the memory of a guest that has come here and has not run with that of the VM that it was at. When
    /// no more than `most` pages differ this one gets those of the other.
    ///
    /// # Errors
    /// A QEMU has no memory that is shared (`memory-backend-memfd`), or the sizes differ.
    pub fn remembers(&self, before: &Vm, most: usize) -> Result<Compared> {
        let (one, other) = (before.memory()?, self.memory()?);
        let bytes = one.metadata()?.len();
        ensure!(other.metadata()?.len() == bytes, "the memories' sizes differ");
        let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut different: Vec<u64> = Vec::new();
        for at in (0..bytes).step_by(CHUNK) {
            one.read_exact_at(&mut a, at)?;
            other.read_exact_at(&mut b, at)?;
            if a != b {
                let pages = (at..).step_by(PAGE).zip(a.chunks(PAGE).zip(b.chunks(PAGE)));
                different.extend(pages.filter(|(_, (a, b))| a != b).map(|(at, _)| at));
            }
        }
        let mends = different.len() <= most;
        for at in different.iter().filter(|_| mends) {
            one.read_exact_at(&mut a[..PAGE], *at)?;
            other.write_all_at(&a[..PAGE], *at)?;
        }
        let mended = if mends { different.len() } else { 0 };
        Ok(Compared { pages: bytes / PAGE as u64, different, mended })
    }

    fn memory(&self) -> Result<File> {
        let pid = self.pid();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
            let link = entry?.path();
            let target = std::fs::read_link(&link).unwrap_or_default();
            if target.to_string_lossy().starts_with("/memfd:memory-backend-memfd") {
                return Ok(File::options().read(true).write(true).open(link)?);
            }
        }
        bail!("guest {} has no memory-backend-memfd", self.name())
    }

    /// Tells a guest that waits to go on, until it runs: what is written to its serial port before would be lost.
    ///
    /// # Errors
    /// QEMU refuses, or the guest does not run in 90 s.
    pub fn goes_on(&self) -> Result<()> {
        self.qmp("cont", &json!({}))?;
        self.runs()
    }

    /// Waits until all of a guest that comes here has come.
    ///
    /// # Errors
    /// It has not in 90 s.
    pub fn has_come(&self) -> Result<()> {
        self.until("arrival", WAIT, || {
            let state = self.qmp("query-status", &json!({}))?;
            Ok((state["status"] != "inmigrate").then_some(()))
        })
    }

    /// Waits until it runs.
    ///
    /// # Errors
    /// It does not in 90 s.
    pub fn runs(&self) -> Result<()> {
        self.until("sign of running", WAIT, || {
            let state = self.qmp("query-status", &json!({}))?;
            Ok((state["status"] == "running").then_some(()))
        })
    }

    /// Stops QEMU itself, for good: it is neither heard nor hears that its daemon is gone.
    ///
    /// # Errors
    /// It has ended.
    pub fn freeze(&self) -> Result<()> {
        let pid = Pid::from_raw(self.pid() as i32).context("QEMU has a number")?;
        Ok(kill_process(pid, Signal::STOP)?)
    }

    /// Gives a command that is a job of QEMU's, such as `snapshot-save`, and waits for its end.
    ///
    /// # Errors
    /// QEMU refuses it, or the job fails or does not end in 90 s.
    pub fn job(&self, command: &str, arguments: &Value) -> Result<()> {
        let mut arguments = arguments.clone();
        arguments["job-id"] = JOB.into();
        self.qmp(command, &arguments)?;
        let ended = self.until(&format!("end of {command}"), WAIT, || {
            let jobs = self.qmp("query-jobs", &json!({}))?;
            let job = jobs.as_array().and_then(|jobs| jobs.first()).cloned();
            Ok(job.filter(|job| job["status"] == "concluded"))
        })?;
        self.qmp("job-dismiss", &json!({ "id": JOB }))?;
        ensure!(ended["error"].is_null(), "{command} failed: {ended}");
        Ok(())
    }
}

/// A guest that goes from VM to VM: a place, wherever it is.
#[derive(Debug)]
pub struct Guest {
    name: String,
    vm: RefCell<Vm>,
}

impl Guest {
    /// The guest in that VM; `name` is its name in reports.
    pub fn new(name: &str, vm: Vm) -> Guest {
        Guest { name: name.to_string(), vm: RefCell::new(vm) }
    }

    /// The VM that it is at. Nobody may hold it when the guest moves.
    pub fn vm(&self) -> Ref<'_, Vm> {
        self.vm.borrow()
    }

    /// It is at another VM now; the one that it was at is killed.
    pub fn moved(&self, to: Vm) {
        drop(self.vm.replace(to));
    }

    /// Ends it, as [`Vm::off`].
    ///
    /// # Errors
    /// As [`Vm::off`].
    pub fn off(self) -> Result<()> {
        self.vm.into_inner().off()
    }
}

impl Place for Guest {
    fn name(&self) -> &str {
        &self.name
    }

    fn does(&self, command: &str) -> Result<(i32, String)> {
        self.vm().does(command)
    }
}
