//! A network namespace of a test's own: what it makes there goes with it, and nobody else sees it.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::lacking::left_out;

/// Tells a test that it is in its namespace already.
const INSIDE: &str = "SIDECORE_TEST_INSIDE";

/// Runs `body` in a namespace of its own: the test whose closure it is, of this program once more.
/// Without root it is left out.
///
/// # Errors
/// That of `body`, no namespace could be made, or `body` is not a test's own closure.
pub fn in_namespace<Body: FnOnce() -> Result<()>>(body: Body) -> Result<()> {
    let name = test_of::<Body>();
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        // Fewer frames that nobody asked for; the tests bear those that come.
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = std::fs::write(path, "1");
        }
        return body();
    }
    if !rustix::process::geteuid().is_root() {
        left_out("a network namespace needs root");
        return Ok(());
    }
    let own = std::env::current_exe()?;
    // Of a name that no test has none would run, and all would seem well.
    let listed = Command::new(&own).args(["--exact", name, "--list"]).output()?;
    let is_there = listed.stdout.starts_with(format!("{name}: test\n").as_bytes());
    ensure!(is_there, "{name} is no test: call in_namespace with a closure of the test itself");
    let status = Command::new("unshare")
        .args(["--net", "--fork", "--kill-child"])
        .arg(own)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, name)
        .status()
        .context("starting unshare (Debian: apt-get install util-linux)")?;
    ensure!(status.success(), "{name}, in its namespace: {status}");
    Ok(())
}

/// The name of the test that has this closure, as its program lists it: a path without the crate.
fn test_of<Body>() -> &'static str {
    let path = std::any::type_name::<Body>().trim_end_matches("::{{closure}}");
    path.split_once("::").map_or(path, |(_, test)| test)
}

/// Runs `ip` with these words.
///
/// # Errors
/// It failed.
pub fn ip(words: &str) -> Result<()> {
    ensure!(try_ip(words)?, "`ip {words}` failed");
    Ok(())
}

/// The same, which may fail: whether it did not.
///
/// # Errors
/// There is no `ip`.
pub fn try_ip(words: &str) -> Result<bool> {
    let mut command = Command::new("ip");
    let status = command.args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(status.status().context("starting ip (Debian: apt-get install iproute2)")?.success())
}

/// What `ip` prints.
///
/// # Errors
/// There is no `ip`, or it prints no text.
pub fn ip_says(words: &str) -> Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether there is an interface of that name.
///
/// # Errors
/// There is no `ip`.
pub fn has_interface(name: &str) -> Result<bool> {
    try_ip(&format!("link show {name}"))
}
