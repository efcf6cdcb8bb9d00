//! What a test says whose machine, or whose rights, are not enough for it: one form, which `./x test` counts as
//! skipped (`tests/src/suite/found.rs`). Other crates' tests write the same line by themselves.

use std::fmt::Display;
use std::io::Write;

/// This test, or what is left of it, is not done, since `why`.
///
/// Written past the harness, which keeps what a test that passes has printed, in one piece.
pub fn left_out(why: impl Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}
