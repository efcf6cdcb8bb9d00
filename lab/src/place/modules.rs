//! Modules of the place's kernel that the lab needs for its disks: loaded when they are missing, and taken
//! away again by the keeper.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::tracing;
use crate::waiting;

pub(crate) const NULL_BLK: &str = "null_blk";
pub(crate) const BRD: &str = "brd";
const ALL: [&str; 2] = [NULL_BLK, BRD];
/// The first device of each.
const FIRST: [&str; ALL.len()] = ["/dev/nullb0", "/dev/ram0"];
/// Until devices of a module are there, or until those who had them are gone.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);

/// To be asked before anything is loaded: whether no device that the lab writes over is there, which somebody
/// may use without having it mounted. L1's are always the lab's.
///
/// # Errors
/// There is one.
pub(crate) fn are_ours() -> Result<()> {
    if tracing::is_emulated() {
        return Ok(());
    }
    for (module, device) in ALL.iter().zip(FIRST) {
        ensure!(
            !Path::new(device).exists(),
            "{device} is there already, and the lab writes over such devices: if nobody needs its content, \
             `modprobe -r {module}`, then run this again"
        );
    }
    Ok(())
}

/// Has `device` by way of `module`.
///
/// # Errors
/// The module cannot be loaded, or does not make the device.
pub(crate) fn need(module: &str, device: &Path) -> Result<()> {
    if device.exists() {
        return Ok(());
    }
    let output = Command::new("modprobe").arg(module).output().context("modprobe")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{} is missing: {}", device.display(), said.trim());
    waiting::until(&device.display().to_string(), SETTLES_WITHIN, || {
        Ok(device.exists().then_some(()))
    })
}

/// Which are there before the lab begins.
#[derive(Debug)]
pub(crate) struct Before([bool; ALL.len()]);

impl Before {
    pub(crate) fn look() -> Before {
        Before(ALL.map(is_loaded))
    }

    /// Takes away those that were not there.
    pub(crate) fn restore(&self) {
        for (module, was_loaded) in ALL.iter().zip(self.0) {
            if was_loaded || !is_loaded(module) {
                continue;
            }
            // Who had a device of it may be ending.
            let gone = waiting::until("its end", SETTLES_WITHIN, || {
                let status = Command::new("modprobe").args(["-q", "-r", module]).status()?;
                Ok(status.success().then_some(()))
            });
            if let Err(error) = gone {
                eprintln!("the module {module} stays: {error:#}");
            }
        }
    }
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).join("initstate").exists()
}
