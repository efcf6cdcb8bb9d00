//! The repository's own checks: `cargo run -p xtask -- tidy`.
//!
//! Not a build system (`./x` is the door) and no part of what is shipped. Run by `./x test unit`.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_macros, reason = "a program prints")]

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- tidy

  tidy   check the rules of STYLE.md that a machine can check; prints `file:line: what, what to do`,
         and exits 1 when there is anything to say";

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args != ["tidy"] {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let report = tidy::run(&root)?;
    for finding in &report.findings {
        println!("{finding}");
    }
    for note in &report.notes {
        println!("tidy: {note}");
    }
    let found = report.findings.len();
    println!("tidy: {} files, {found} finding{}", report.files, if found == 1 { "" } else { "s" });
    Ok(if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
