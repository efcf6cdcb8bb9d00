//! What a test does whose machine lacks something: it says that it is left out, and fails where nothing may be
//! lacking.
//!
//! Called by this crate's tests alone.

use std::io::Write;
use std::path::Path;

/// What `statfs` calls ext4.
const EXT4: u64 = 0xef53;

/// The test `name` is left out, since its machine, or the file system of `folder`, lacks something.
///
/// # Panics
/// The tests run as root on ext4, as `./x test` has them: nothing is lacking there.
pub(crate) fn leave_out(name: &str, why: &str, folder: &Path) {
    let is_ext4 = rustix::fs::statfs(folder).is_ok_and(|facts| facts.f_type as u64 == EXT4);
    let is_root = rustix::process::geteuid().is_root();
    assert!(!(is_ext4 && is_root), "{name} is not to be left out here, although {why}");
    // Past the harness, in one piece; `./x test` counts it.
    let _ = std::io::stderr().write_all(format!("skipped: {why}: {name}\n").as_bytes());
}
