//! The one program: the daemon, and the commands that talk to it.
//!
//! Here: which command was given, and with which status the program ends. Each command is a file;
//! [`cli`] is their table. What is served, and how, is the libraries' (`manager`, `config`, `host`).
#![forbid(unsafe_code)]

mod check;
mod cli;
mod client;
mod completions;
mod disk;
mod doctor;
mod documents;
mod exits;
mod failure;
mod fixed;
mod group;
mod link;
mod machine;
mod nic;
mod output;
mod overview;
mod process;
mod reload;
mod serve;
mod stage;
mod switch;
mod table;
mod top;
mod trace;
mod typed;
mod version;
mod vmm;

use std::env::VarError;
use std::ffi::OsString;
use std::process::ExitCode;

use config::spec::DaemonSpec;

use crate::cli::{Cli, Command, RemoteCommand};
use crate::client::Client;
use crate::failure::Failure;
use crate::output::Output;
use crate::table::Room;

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    end_with_a_panic();
    let words: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &words),
    };
    let output = Output::of(&cli);
    let options = cli.fields();
    match run(cli, &output) {
        Ok(code) => code,
        Err(failure) => {
            let failure = failure.in_options(&options);
            output.failure(&failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Ends for a command line that is none, in clap's own words for people; help and the version, which were asked for, are
/// text also with `--json`.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    let is_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    // Its list of commands has those that nobody is to give.
    let is_bare = error.kind() == clap::error::ErrorKind::MissingSubcommand;
    let known = fixed::refused(error, words).or_else(|| typed::refused(error, words));
    if (is_json && error.exit_code() != 0) || is_bare || known.is_some() {
        let failure = known.unwrap_or_else(|| Failure::of_words(error));
        Output { json: is_json, room: Room::Whole }.failure(&failure);
        return ExitCode::from(failure.code());
    }
    error.exit()
}

/// Has a panic of any thread end the process, as it does in the program that is shipped: tests find in a development
/// build what users would.
#[cfg(panic = "unwind")]
fn end_with_a_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        say(info);
        std::process::abort();
    }));
}

/// As written on the command line, else as the environment has it, else the usual one.
fn socket_of_the_api(written: Option<String>) -> Result<String, Failure> {
    let of_environment = || match std::env::var("SIDECORE_API") {
        Ok(socket) => Ok(Some(socket)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(socket)) => {
            let hint = "give the API a socket whose name is UTF-8";
            Err(Failure::usage(format!("SIDECORE_API: {socket:?} is not UTF-8"), hint))
        }
    };
    let socket = written.map_or_else(of_environment, |written| Ok(Some(written)))?;
    Ok(socket.unwrap_or_else(|| DaemonSpec::default().api))
}

/// That who names a daemon to ask does not think that one is asked, or is to listen there.
fn refuse_api(cli: &Cli) -> Result<(), Failure> {
    let (what, hint) = match &cli.command {
        // One that takes over has the words of who was started before.
        Command::Serve(args) if !args.heir => {
            ("serve", "the daemon listens where `api` in [daemon] of its file says")
        }
        Command::Link(_) => ("link", "it asks no daemon: leave --api out"),
        _ => return Ok(()),
    };
    match cli.api {
        Some(_) => Err(Failure::usage(format!("`{what}` takes no --api"), hint)),
        None => Ok(()),
    }
}

fn run(cli: Cli, output: &Output) -> Result<ExitCode, Failure> {
    refuse_api(&cli)?;
    let client = Client::new(socket_of_the_api(cli.api)?).within(cli.timeout);
    match cli.command {
        Command::Serve(args) => serve::serve(&args, cli.timeout, output)?,
        Command::Disk(command) => disk::run(command, &client, output)?,
        Command::Nic(command) => nic::run(command, &client, output)?,
        Command::Switch(command) => switch::run(command, &client, output)?,
        Command::Group(command) => group::run(command, &client, output)?,
        Command::Link(command) => link::run(&command, output)?,
        Command::Remote(RemoteCommand::Status) => link::status(&client, output)?,
        Command::Client(args) => machine::client(&args)?,
        Command::Vdpa(command) => machine::vdpa(&command)?,
        Command::Ls => overview::list(&client, output)?,
        Command::Show(args) => overview::show(&args, &client, output)?,
        Command::Sidecores => overview::sidecores(&client, output)?,
        Command::Exits(args) => exits::run(&args, &client, output)?,
        Command::Top(args) => top::run(&args, &client, output)?,
        Command::Reload(args) => reload::run(args, &client, output)?,
        Command::Upgrade(args) => overview::upgrade(&client, args.force, output)?,
        Command::Complete { words } => output.text(&completions::names(&words, &client))?,
        Command::Launcher { words } => serve::launch(&words)?,
        Command::Doctor(args) => doctor::run(&client, args.vmm.as_deref(), output)?,
        Command::Reach { uid, groups, sockets } => doctor::reach::reach(uid, &groups, &sockets)?,
        Command::Completions { shell } => completions::print(shell)?,
        Command::Man { folder } => documents::man(&folder)?,
        Command::Docs { folder } => documents::docs(&folder)?,
    }
    Ok(ExitCode::SUCCESS)
}
