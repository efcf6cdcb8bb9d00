//! The one program: the daemon, and the commands that talk to it.
//!
//! Here: which command was given, and with which status the program ends. Each command is a file;
//! [`cli`] is their table. What is served, and how, is the libraries' (`manager`, `config`, `host`).
#![forbid(unsafe_code)]

mod cli;
mod client;
mod disk;
mod doctor;
mod documents;
mod failure;
mod group;
mod nic;
mod output;
mod overview;
mod serve;
mod switch;
mod table;
mod vmm;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output { json: cli.json };
    match run(cli, &output) {
        Ok(code) => code,
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}

fn run(cli: Cli, output: &Output) -> Result<ExitCode, Failure> {
    let client = Client::new(cli.api);
    match cli.command {
        Command::Serve(args) => serve::serve(&args, output)?,
        Command::Disk(command) => disk::run(command, &client, output)?,
        Command::Nic(command) => nic::run(command, &client, output)?,
        Command::Switch(command) => switch::run(command, &client, output)?,
        Command::Group(command) => group::run(command, &client, output)?,
        Command::Ls => overview::list(&client, output)?,
        Command::Show(args) => overview::show(&args, &client, output)?,
        Command::Sidecores => overview::sidecores(&client, output)?,
        Command::Reload => overview::reload(&client, output)?,
        Command::Doctor => doctor::run(output)?,
        Command::Completions { shell } => documents::completions(shell)?,
        Command::Man { folder } => documents::man(&folder)?,
        Command::Docs { folder } => documents::docs(&folder)?,
    }
    Ok(ExitCode::SUCCESS)
}
