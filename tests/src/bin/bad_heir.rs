//! A program that a daemon takes for its new version, and that is none: it says what an heir says, up to
//! a point, and then does what the file `bad_heir` in its folder says.
//!
//! Run by a daemon of `tests/upgrade_refused.rs`, by the name of `sidecore`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use anyhow::{Context, Result, bail};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than a daemon waits for the first word.
const HALT: std::time::Duration = std::time::Duration::from_secs(6);
const HELLO: &str = r#"{"hello":{"version":"bad","formats":[1,2]}}"#;

fn say(text: &str) -> Result<()> {
    let mut none = SendAncillaryBuffer::default();
    sendmsg(
        rustix::stdio::stdin(),
        &[IoSlice::new(text.as_bytes())],
        &mut none,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// The next packet's text; its descriptors are closed.
fn hear() -> Result<String> {
    let mut bytes = vec![0; 128 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(rustix::stdio::stdin(), into, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if got == 0 {
        bail!("the daemon has closed");
    }
    Ok(String::from_utf8_lossy(&bytes[..got]).into_owned())
}

fn hear_until(name: &str) -> Result<()> {
    while !hear()?.starts_with(&format!("{{\"{name}\"")) {}
    Ok(())
}

fn stay() -> Result<()> {
    loop {
        // Even the end of the daemon's side does not end it.
        rustix::event::poll(&mut [], None)?;
    }
}

/// Stops a process, or has it go on.
fn signal(word: &str, pid: &str) -> Result<()> {
    let signal = match word {
        "halt" => Signal::STOP,
        "resume" => Signal::CONT,
        other => bail!("no step {other:?}"),
    };
    let pid = Pid::from_raw(pid.parse()?).context("no process")?;
    Ok(kill_process(pid, signal)?)
}

fn main() -> Result<()> {
    // Its first task is that of a launcher, which a real program would do as the daemon's child.
    let what = std::fs::read_to_string("bad_heir")?;
    let steps: Vec<&str> = what.trim().split(' ').collect();
    for step in steps {
        if let Some((word, pid)) = step.split_once(':') {
            signal(word, pid)?;
            continue;
        }
        match step {
            "hello" => say(HELLO)?,
            "other-format" => say(r#"{"hello":{"version":"bad","formats":[98,99]}}"#)?,
            "junk" => say("\u{1}junk")?,
            "estate" => hear_until("estate")?,
            "ready" => say(r#"{"ready":{}}"#)?,
            "flip" => hear_until("flip")?,
            "taken" => say(r#"{"taken":{}}"#)?,
            "refuse" => say(r#"{"refused":{"why":"it does not feel like it"}}"#)?,
            "one" => drop(hear()?),
            "stay" => stay()?,
            "end" => return Ok(()),
            "wait" => testing::daemon::pause(HALT),
            other => bail!("no step {other:?}"),
        }
    }
    Ok(())
}
