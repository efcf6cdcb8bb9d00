//! Programs of the host's that cases run.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testing::place::end_of;

/// Runs a program to its end, which must be a good one: what it says on its standard output.
///
/// # Errors
/// It is not there, or fails; the end of what it said is in the message.
pub fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    ensure!(status.success(), "{program} gave {status}: {}", end_of(&format!("{said}{wrong}")));
    Ok(said)
}

/// The path of another program of this crate, which is built beside this one.
///
/// # Errors
/// It is not built.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program has no path")?;
    let path = own.with_file_name(name);
    ensure!(path.exists(), "there is no {}: cargo build --workspace --bins", path.display());
    Ok(path)
}
