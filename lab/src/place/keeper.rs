//! The program that stays outside while the lab runs in a network namespace of its own: whatever ends the lab,
//! an interrupt, a panic or its own end, what it changed of the kernel is put back.
//!
//! The lab is this program once more, with `--inside`. Its taps and addresses go with the namespace, and the
//! programs it started with it (`children`).

use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{modules, tracing};

/// How a program ended, and the signal that made us end it.
type Ended = (ExitStatus, Option<i32>);

/// Runs the lab inside; `dir` is where it keeps its logs.
///
/// # Errors
/// It failed, or was interrupted.
pub(crate) fn keep(dir: &Path) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the lab needs root: for KVM's events and for taps"
    );
    let before = modules::Before::look();
    modules::are_ours()?;
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).arg("--inside");
    let ended = until_its_end(&command);
    tracing::clear();
    before.restore();
    let (status, interrupted) = ended?;
    let dir = dir.display();
    ensure!(interrupted.is_none(), "interrupted; what is left are logs in {dir}");
    ensure!(status.success(), "the lab ended before its end ({status}): read what it said above");
    Ok(())
}

/// Starts a program, which dies with this one, and waits until it ends; a signal that wants us to end ends it.
fn until_its_end(command: &Command) -> Result<Ended> {
    // Before the start, so that no end is missed.
    let mut signals = Signals::new([SIGCHLD, SIGHUP, SIGINT, SIGTERM])?;
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL"]).arg(command.get_program()).args(command.get_args());
    let child = bound.spawn().with_context(|| format!("{bound:?}"))?;
    wait(child, signals.forever())
}

fn wait(mut child: Child, signals: impl Iterator<Item = i32>) -> Result<Ended> {
    let mut interrupted = None;
    for signal in signals {
        if signal != SIGCHLD {
            interrupted = Some(signal);
            // Nothing in it needs to be told: its children and its namespace go with it.
            child.kill()?;
        }
        if let Some(status) = child.try_wait()? {
            return Ok((status, interrupted));
        }
    }
    Ok((child.wait()?, interrupted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_as_its_program_does() -> Result<()> {
        let mut command = Command::new("sh");
        let (status, interrupted) = until_its_end(command.args(["-c", "exit 3"]))?;
        assert_eq!((status.code(), interrupted), (Some(3), None));
        Ok(())
    }

    #[test]
    fn an_interrupt_ends_the_program_and_is_told() -> Result<()> {
        let mut sleeps = Command::new("sleep");
        let child = sleeps.arg("100").spawn()?;
        let (status, interrupted) = wait(child, [SIGCHLD, SIGINT, SIGCHLD].into_iter())?;
        assert!(!status.success());
        assert_eq!(interrupted, Some(SIGINT));
        Ok(())
    }
}
