//! Upgrades of a daemon: asked for, and followed to the process that takes over.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Daemon, LOOK, Process, pause};
use crate::clock::now_ns;
use crate::timing;

/// Words of a daemon that say of somebody that he got no processor, or no answer of a file system, in time: sidecores, a
/// disk, its IOhost, a launcher or the new process. An upgrade that is refused or given up for that leaves it as it was.
pub const BUSY: [&str; 9] = [
    "are late",
    "does not answer",
    "do not answer",
    "has not answered",
    "no answer within",
    "in time",
    "silent",
    "it waited for",
    "is under way already",
];

/// Whether an upgrade failed for that.
pub fn is_busy(error: &anyhow::Error) -> bool {
    let why = format!("{error:#}");
    BUSY.iter().any(|busy| why.contains(busy))
}

/// How long queues stood still in an upgrade.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    /// How many.
    pub queues: u64,
    /// The longest, nanoseconds.
    pub longest_ns: u64,
    /// Of that: until all queues were back, until they were handed over, until they were served.
    pub parts: [u64; 3],
}

/// A call for an upgrade, which its daemon may not live to answer.
#[derive(Debug)]
pub struct UpgradeCall {
    child: Child,
    said: std::path::PathBuf,
}

impl UpgradeCall {
    /// Whether it has ended, and the daemon has refused it for one of [`BUSY`].
    ///
    /// # Errors
    /// The system's.
    pub fn is_refused_for_now(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some() && self.says_busy()?)
    }

    fn says_busy(&self) -> Result<bool> {
        let said = std::fs::read_to_string(&self.said)?;
        Ok(BUSY.iter().any(|busy| said.contains(busy)))
    }

    /// Waits for its end: whether the daemon has refused it for one of [`BUSY`], which is counted in the summary.
    ///
    /// # Errors
    /// The system's.
    pub fn was_refused_for_now(mut self) -> Result<bool> {
        self.child.wait()?;
        let is_busy = self.says_busy()?;
        timing::judge(!is_busy, || "an upgrade was refused for now".to_owned())?;
        Ok(is_busy)
    }
}

impl Daemon {
    /// Has another process of the program take over, which is ready when this returns. Its number.
    ///
    /// # Errors
    /// It was refused, or the process before did not end in order.
    pub fn upgrade(&mut self) -> Result<u32> {
        let done = self.ask_to_upgrade("upgrade")?;
        self.follow(&done)
    }

    /// The same, whatever guests lose by it.
    ///
    /// # Errors
    /// As [`Daemon::upgrade`].
    pub fn upgrade_by_force(&mut self) -> Result<u32> {
        let done = self.ask_to_upgrade("upgrade --force")?;
        self.follow(&done)
    }

    /// The same as without; how long queues stood still, as the operator is told. None where the new process was too late
    /// to say so, which is counted in the summary.
    ///
    /// # Errors
    /// As [`Daemon::upgrade`], or it was not told whole.
    pub fn upgrade_measured(&mut self) -> Result<Option<Pause>> {
        let done = self.ask_to_upgrade("upgrade")?;
        self.follow(&done)?;
        if done["pause"].is_null() {
            timing::judge(false, || format!("how long queues stood still came too late: {done}"))?;
            return Ok(None);
        }
        let told = |name: &str| done["pause"][name].as_u64();
        let pause = || {
            let parts = [told("drained_ns")?, told("handed_ns")?, told("started_ns")?];
            Some(Pause { queues: told("queues")?, longest_ns: told("max_ns")?, parts })
        };
        pause().map(Some).with_context(|| format!("no whole pause is told: {done}"))
    }

    /// Asks until it is done, or refused for another reason than [`BUSY`].
    fn ask_to_upgrade(&self, line: &str) -> Result<serde_json::Value> {
        let start = now_ns();
        loop {
            let asked = self.ask(line);
            match asked {
                Err(error)
                    if is_busy(&error)
                        && !timing::are_judged()
                        && u128::from(now_ns() - start) < timing::PATIENCE.as_nanos() =>
                {
                    // Which is counted in the summary.
                    timing::judge(false, || format!("an upgrade was refused for now: {error:#}"))?;
                }
                asked => return asked.with_context(|| self.last_words()),
            }
            pause(LOOK * 100);
        }
    }

    /// Asks for an upgrade until it is refused with `says`: what it said. Whether the machine is too busy for one is not
    /// what is looked at.
    ///
    /// # Errors
    /// It takes place, or is refused for another reason than [`BUSY`].
    pub fn refuses_upgrade(&self, says: &str) -> Result<String> {
        let start = now_ns();
        loop {
            let said = self.refuses("upgrade")?;
            if said.contains(says) {
                return Ok(said);
            }
            let is_busy = BUSY.iter().any(|busy| said.contains(busy)) && !timing::are_judged();
            let is_late = u128::from(now_ns() - start) >= timing::PATIENCE.as_nanos();
            ensure!(is_busy && !is_late, "it says {said:?}, not {says:?}");
            timing::judge(false, || format!("an upgrade was refused otherwise for now: {said}"))?;
            pause(LOOK * 100);
        }
    }

    /// Asks for an upgrade that may never be answered.
    ///
    /// # Errors
    /// The system's.
    pub fn call_upgrade(&self) -> Result<UpgradeCall> {
        let said = self.dir().join("upgrade.said");
        let mut command = Command::new(&self.binary);
        command.arg("upgrade").current_dir(self.dir()).env("SIDECORE_API", "api.sock");
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&said)?);
        Ok(UpgradeCall { child: command.spawn()?, said })
    }

    /// It has ended, somehow, and process `pid` serves in its place.
    ///
    /// # Errors
    /// It goes on, or there is no such process, or that has ended.
    pub fn succeed(&mut self, pid: u32) -> Result<()> {
        self.forget_notices();
        let heir = Process::of(pid).context("the heir")?;
        std::mem::replace(&mut self.process, heir).await_end()?;
        if let Some(mut child) = self.child.take() {
            child.wait()?;
        }
        self.is_alive()
    }

    /// Follows the answer to somebody else's call.
    ///
    /// # Errors
    /// As [`Daemon::upgrade`].
    pub fn follow(&mut self, done: &serde_json::Value) -> Result<u32> {
        let pid = done["pid"].as_u64().context("an upgrade without a pid")? as u32;
        self.forget_notices();
        let heir = Process::of(pid).context("the heir")?;
        std::mem::replace(&mut self.process, heir).await_end()?;
        if let Some(mut child) = self.child.take() {
            let status = child.wait()?;
            ensure!(status.success(), "it handed over and ended with {status}");
        }
        Ok(pid)
    }
}
