//! Runs `./x test`: builds, runs cases side by side, and sums up. `suite --help` says how it is used.
//!
//! Not here: the cases (`tests/src/suite/cases`), and what must be installed (`x.d/test.sh`).
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_macros, reason = "a program prints")]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tests::suite::child::become_program;
use tests::suite::options::{Asked, HELP, read};
use tests::suite::run;

/// The status of a run that was interrupted, as shells have it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    match asked() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn asked() -> Result<ExitCode> {
    match read(std::env::args().skip(1))? {
        Asked::Help => print!("{HELP}"),
        Asked::List => print!("{}", run::list()),
        Asked::Case(name, folder, checks) => return run::be_case(&name, &folder, checks),
        Asked::Apart(words) => become_program(&words)?,
        Asked::Run(options) => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
            let is_good = run::run(&options, root.context("no folder above the tests")?)?;
            return Ok(match is_good {
                Some(true) => ExitCode::SUCCESS,
                Some(false) => ExitCode::FAILURE,
                None => ExitCode::from(INTERRUPTED),
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
