//! Whether it can be seen here which vCPUs run: tests that need it leave themselves out elsewhere, and say so.

use std::process::Command;

use anyhow::{Context, Result};
use bench::server::sidecore_binary;

/// Asks `sidecore doctor`, and prints why not.
///
/// # Errors
/// It cannot be asked.
#[expect(clippy::disallowed_macros, reason = "a test says what it leaves out")]
pub fn sees_vcpus() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        println!("left out, since it needs root: seeing which vCPUs run");
        return Ok(false);
    }
    let output = Command::new(sidecore_binary()?).args(["doctor", "--json"]).output()?;
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mut checks = doctor["checks"].as_array().into_iter().flatten();
    let here = checks.find(|check| check["name"] == "ebpf").context("no check")?;
    if here["state"] != "ok" {
        println!("left out, since which vCPUs run cannot be seen here: {here}");
    }
    Ok(here["state"] == "ok")
}
