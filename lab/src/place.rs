//! Where guests run on real KVM: for each configuration a serving side and a guest are started, loads are
//! done, and what the kernel counted is told, a JSON line a value.
//!
//! Not what a load is (`guest`), nor how rows are shown (`report`). Run by `./x lab`, on a host with
//! hardware KVM or in L1.

mod cells;
mod children;
mod configurations;
mod serving;
mod tracing;
mod vm;
mod waiting;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::rows::Row;
use cells::{Cell, Experiment};
use children::Children;
use configurations::{Configuration, Device};
use serving::Serving;
use tracing::Tracing;
use vm::{Vm, VmSpec};

/// What the lab is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArguments {
    /// What to measure
    #[arg(value_enum, default_value = "exits")]
    experiment: Experiment,
    /// Only configurations whose name begins so
    #[arg(long, default_value = "")]
    only: String,
    /// Each number once, from half the operations
    #[arg(long)]
    quick: bool,
    /// The sidecore program
    #[arg(long)]
    sidecore: PathBuf,
    /// The guest's kernel
    #[arg(long)]
    kernel: PathBuf,
    /// The guest's initramfs
    #[arg(long)]
    initramfs: PathBuf,
    /// A folder for sockets and logs; it is made
    #[arg(long)]
    dir: PathBuf,
}

/// Where the guest's own CPU is, and the one of what serves it.
pub(crate) const VCPU_CPU: usize = 0;
pub(crate) const SERVER_CPU: usize = 1;

/// A guest or its server that hangs is ended and started once more.
const TRIES: u32 = 2;
/// Of each load.
const TURNS: u32 = 3;

/// Runs what was asked for; rows go to stdout as they are known, progress to stderr.
///
/// # Errors
/// The place is not one (no KVM, no tracing), or a configuration fails each time.
pub(crate) fn run(arguments: &RunArguments) -> Result<()> {
    std::fs::create_dir_all(&arguments.dir)?;
    let tracing = Tracing::start().context("counting exits needs root, tracefs and KVM")?;
    for configuration in arguments.experiment.configurations() {
        let cells = arguments.experiment.cells(configuration);
        if cells.is_empty() || !configuration.name.starts_with(&arguments.only) {
            continue;
        }
        eprintln!("{}: {} loads", configuration.name, cells.len());
        let mut rows = Err(anyhow::anyhow!("not tried"));
        for tried in 1..=TRIES {
            rows = measure(arguments, configuration, &cells, &tracing);
            match &rows {
                Ok(_) => break,
                Err(error) => {
                    eprintln!("{} (time {tried} of {TRIES}): {error:#}", configuration.name)
                }
            }
        }
        for row in rows.with_context(|| format!("configuration {}", configuration.name))? {
            println!("{}", serde_json::to_string(&row)?);
        }
    }
    Ok(())
}

/// One configuration: its serving side and its guest from start to end.
fn measure(
    arguments: &RunArguments,
    configuration: &Configuration,
    cells: &[&Cell],
    tracing: &Tracing,
) -> Result<Vec<Row>> {
    let dir = arguments.dir.join(configuration.name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let mut children = Children::default();
    let served = configuration.serve(&arguments.sidecore, &dir, &mut children);
    let devices = served.map_err(|error| with_ends(&error, &dir))?;
    let spec = VmSpec {
        kernel: &arguments.kernel,
        initramfs: &arguments.initramfs,
        dir: &dir,
        options: &devices,
        machine: configuration.machine(),
    };
    let mut vm = Vm::start(&spec, &mut children).map_err(|error| with_ends(&error, &dir))?;
    // Without the peer, which comes later.
    let serving = Serving { pids: children.pids() };
    if configuration.device == Device::Nic {
        configurations::peer(&mut children)?;
    }
    let turns = if arguments.quick { 1 } else { TURNS };
    let mut rows = Vec::new();
    for cell in cells {
        for _ in 0..turns {
            let turn = cell.turn(configuration, &mut vm, &serving, tracing, arguments.quick);
            rows.extend(turn.map_err(|error| with_ends(&error, &dir))?);
        }
    }
    vm.end();
    Ok(Row::medians(rows))
}

/// An error, and the ends of all logs of a folder, for who reads it.
fn with_ends(error: &anyhow::Error, dir: &Path) -> anyhow::Error {
    let mut said = format!("{error:#}");
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = std::fs::read(&path).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "log") && !text.is_empty() {
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let end = lines.get(lines.len().saturating_sub(8)..).unwrap_or_default().join("\n  ");
            said += &format!("\n{}:\n  {end}", path.display());
        }
    }
    anyhow::anyhow!(said)
}
