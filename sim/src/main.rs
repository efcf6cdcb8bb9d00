//! `sim schedule`: the scenarios as tables on standard output and, with `--out`, as files.
//!
//! Not what they are (`sim::scenarios`). Run by `./x sim`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use sim::scenarios::{ALL, Effort, Scenario};

/// Simulations of Sidecore, each from a seed: the same seed gives the same bytes.
#[derive(Debug, Parser)]
#[command(name = "sim")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The scheduler beside a thread for each device and beside plain round robin polling.
    Schedule(Options),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example: sim schedule --quick mixed idle")]
struct Options {
    /// Scenarios: mixed, scaling, imbalance, consolidation, idle, stuck. All of them when none is named.
    scenarios: Vec<String>,
    /// Where the random numbers start.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A fifth of the simulated time.
    #[arg(long)]
    quick: bool,
    /// Writes `tables.md` and the figures, as SVG, into this folder, which is made.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// One JSON object a row instead of tables.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let What::Schedule(options) = Cli::parse().what;
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told when this fails.
            let _ = writeln!(std::io::stderr(), "sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    for name in &options.scenarios {
        anyhow::ensure!(
            ALL.iter().any(|(known, _)| known == name),
            "there is no scenario {name}: choose of {}",
            ALL.map(|(known, _)| known).join(", ")
        );
    }
    let effort = if options.quick { Effort::Quick } else { Effort::Full };
    let wanted = ALL.into_iter().filter(|(name, _)| {
        options.scenarios.is_empty() || options.scenarios.iter().any(|wanted| wanted == name)
    });
    let made: anyhow::Result<Vec<Scenario>> = std::thread::scope(|scope| {
        let seed = options.seed;
        let threads: Vec<_> =
            wanted.map(|(_, make)| scope.spawn(move || make(seed, effort))).collect();
        // Shown in their order, whoever is done first.
        let made = threads.into_iter().map(|thread| {
            let scenario = thread.join().map_err(|_| anyhow::anyhow!("a scenario failed"))?;
            show(&scenario, options.json)?;
            Ok(scenario)
        });
        made.collect()
    });
    let made = made?;
    match &options.out {
        Some(folder) => write(&made, folder, options),
        None => Ok(()),
    }
}

fn show(scenario: &Scenario, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for table in &scenario.tables {
        if json {
            write!(out, "{}", table.json())?;
        } else {
            writeln!(out, "{}", table.text())?;
        }
    }
    Ok(out.flush()?)
}

fn write(made: &[Scenario], folder: &Path, options: &Options) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    for figure in made.iter().flat_map(|scenario| &scenario.figures) {
        write(&format!("{}.svg", figure.name), figure.svg()?)?;
    }
    let quick = if options.quick { " --quick" } else { "" };
    let mut text = format!(
        "# Schedules compared: the tables\n\nWritten by `./x sim schedule{quick} --seed {} --out DIR`; \
         [README.md](README.md) reads them.\n",
        options.seed
    );
    for scenario in made {
        text.push_str(&format!("\n## {}\n", scenario.name));
        for figure in &scenario.figures {
            text.push_str(&format!("\n![{}]({}.svg)\n", figure.title, figure.name));
        }
        for table in &scenario.tables {
            text.push_str(&format!("\n```text\n{}```\n", table.text()));
        }
    }
    write("tables.md", text)
}
