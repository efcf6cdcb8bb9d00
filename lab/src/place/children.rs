//! Programs that the lab started: ended when it no longer needs them, whatever happens.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::waiting;

/// How long a program may take to end when it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Those that run, in the order in which they were started; ended in the other.
#[derive(Debug, Default)]
pub(crate) struct Children(Vec<(String, Child)>);

impl Children {
    /// Starts a program; what it says goes to `log`. Gives its pid.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&mut self, name: &str, log: &Path, command: &mut Command) -> Result<u32> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{name}: {command:?}"))?;
        let pid = child.id();
        self.0.push((name.to_string(), child));
        Ok(pid)
    }

    /// Those that run so far.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|(_, child)| child.id()).collect()
    }

    /// All of them still run.
    ///
    /// # Errors
    /// One has ended: which, and how.
    pub(crate) fn are_alive(&mut self) -> Result<()> {
        for (name, child) in &mut self.0 {
            let ended = child.try_wait()?;
            ensure!(ended.is_none(), "{name} has ended: {ended:?}");
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        while let Some((_, mut child)) = self.0.pop() {
            if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            let _ = waiting::until("its end", ENDS_WITHIN, || Ok(child.try_wait()?));
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
