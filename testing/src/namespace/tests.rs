//! A namespace holds what runs in it, and both go.

use super::*;
use crate::lacking::left_out;

#[test]
fn what_runs_in_a_namespace_goes_with_it() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        left_out("a network namespace needs root");
        return Ok(());
    }
    let namespace = Namespace::new("inside")?;
    let netns = namespace.netns().to_owned();
    assert_eq!(namespace.does("echo here; ls; exit 3")?.0, 3);
    assert_eq!(namespace.asked_in_vain("exit 1")?, "");
    // What stays in the background holds nothing up, and does not outlive the namespace.
    let pid = namespace.run("sleep 1000 & echo $!")?;
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    drop(namespace);
    crate::daemon::await_that("the process to go", || {
        // Its parent is init, which may take its time.
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        Ok(stat.is_empty() || stat.contains(") Z "))
    })?;
    assert!(!Path::new("/run/netns").join(netns).exists());
    Ok(())
}

#[test]
fn namespaces_of_a_process_that_is_gone_are_swept() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        left_out("a network namespace needs root");
        return Ok(());
    }
    // No process has a number this large (PID_MAX_LIMIT).
    let netns = format!("{PREFIX}4194305-0-left");
    ip(&format!("netns add {netns}"))?;
    let kept = Namespace::new("kept")?;
    Namespace::sweep();
    assert!(!Path::new("/run/netns").join(netns).exists());
    assert!(Path::new("/run/netns").join(kept.netns()).exists());
    Ok(())
}
