//! Whether it can be seen here which vCPUs run: tests that need it leave themselves out elsewhere, and say so.

use std::process::Command;

use anyhow::{Context, Result};
use testing::daemon::sidecore_binary;

use testing::lacking::left_out;

/// Asks `sidecore doctor`, and prints why not.
///
/// # Errors
/// It cannot be asked.
pub fn sees_vcpus() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        left_out("seeing which vCPUs run needs root");
        return Ok(false);
    }
    let output = Command::new(sidecore_binary()?).args(["doctor", "--json"]).output()?;
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mut checks = doctor["checks"].as_array().into_iter().flatten();
    let here = checks.find(|check| check["name"] == "ebpf").context("no check")?;
    if here["state"] != "ok" {
        left_out(format_args!("which vCPUs run cannot be seen here: {here}"));
    }
    Ok(here["state"] == "ok")
}
