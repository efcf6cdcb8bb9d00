//! Programs that the lab started: ended when it no longer needs them, and when it ends, whatever happens.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::waiting;

/// How long a program may take to end when it is told to.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Those that run, in the order in which they were started; ended in the other.
#[derive(Debug, Default)]
pub(crate) struct Children(Vec<(String, Child)>);

impl Children {
    /// Starts a program, which the kernel ends if this one ends without doing so; what it says goes to `log`.
    /// Gives its pid.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&mut self, name: &str, log: &Path, command: &Command) -> Result<u32> {
        let log = File::create(log)?;
        // It becomes the program, under its own pid.
        let mut bound = Command::new("setpriv");
        bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
        bound.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = bound.spawn().with_context(|| format!("{name}: {bound:?}"))?;
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
            if let Some(ended) = child.try_wait()? {
                bail!("{name} has ended: {ended}");
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_ended_is_named_and_the_others_end_with_the_list() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let (log, mut children) = (dir.path().join("log"), Children::default());
        let mut sleeps = Command::new("sleep");
        let pid = children.start("the one that stays", &log, sleeps.arg("100"))?;
        children.start("the one that goes", &log, &Command::new("false"))?;
        let said = waiting::until("its end", ENDS_WITHIN, || {
            Ok(children.are_alive().err().map(|error| error.to_string()))
        })?;
        assert_eq!(said, "the one that goes has ended: exit status: 1");
        assert_eq!(children.pids().first(), Some(&pid));
        drop(children);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        Ok(())
    }
}
