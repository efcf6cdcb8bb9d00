//! The program: reads the command line, and ends with a status. What it does is the library's.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use sidecore_tune::cli::Cli;
use sidecore_tune::output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are no mistakes; a mistake is 2 by clap's own rule.
        Err(said) => said.exit(),
    };
    let output = Output { json: cli.json };
    match sidecore_tune::run(cli, &output) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}
