//! Where guests run on real KVM: for each configuration a serving side and its guests are started, loads are
//! done, and what the kernel counted is written, a JSON line a value.
//!
//! Not what a load is (`guest`), nor how rows are shown (`report`). Run by `./x lab`, on a host with
//! hardware KVM or in L1.
//!
//! | file | what |
//! |---|---|
//! | `keeper`, `modules` | what is put back at the end, however it comes |
//! | `experiments`, `configurations`, `cells`, `loads` | what is compared, as data |
//! | `disks`, `nics`, `daemon`, `network`, `cpus` | the serving side, and what it stands on |
//! | `vm`, `guests` | those who are measured |
//! | `asking` | who asks servers in them |
//! | `steering`, `slices` | which vCPU's queue frames went to; how long vCPUs keep a CPU that they share |
//! | `turns` | a load's turns, and the rows they become |
//! | `ledger` | the file of rows, and which stands are done in it |
//! | `tracing`, `counts`, `serving` | what the kernel counted; processor time of those who serve |
//! | `logs` | what programs of others said |

mod asking;
mod cells;
pub(crate) mod configurations;
mod counts;
mod cpus;
mod daemon;
mod disks;
mod experiments;
mod guests;
mod keeper;
mod ledger;
mod loads;
mod logs;
mod modules;
mod network;
mod nics;
mod serving;
mod slices;
mod steering;
mod tracing;
mod turns;
mod vm;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::children::Children;
use crate::rows::{Done, Row};
use crate::waiting;
use configurations::{Device, Site};
use cpus::Cpus;
use experiments::{Experiment, Stand};
use guests::Guests;
use ledger::Ledger;
use network::Seat;
use serving::Serving;
use slices::Slices;
use tracing::{Tracing, is_emulated};
use turns::Bench;
use vm::{FILE_MAX_MIB, Pins, Vm, VmSpec};

/// What is to be measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Choice {
    /// What to measure
    #[arg(value_enum, value_name = "EXPERIMENT", default_values_t = [Experiment::Exits])]
    experiments: Vec<Experiment>,
    /// Each number once, half the operations; of exits fewer configurations
    #[arg(long)]
    quick: bool,
    /// Configurations whose name begins so
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, value_parser = configurations::known)]
    only: String,
}

impl Choice {
    /// Each experiment once, in the order in which they are known.
    pub(crate) fn experiments(&self) -> Vec<Experiment> {
        let mut experiments = self.experiments.clone();
        experiments.sort_unstable();
        experiments.dedup();
        experiments
    }

    /// Whether numbers are taken once.
    pub(crate) fn is_quick(&self) -> bool {
        self.quick
    }

    /// As arguments of `lab run`.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.experiments().into_iter().map(Experiment::name).collect();
        words.extend(self.quick.then(|| "--quick".to_string()));
        words.extend((!self.only.is_empty()).then(|| format!("--only={}", self.only)));
        words
    }
}

/// What the lab is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    choice: Choice,
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
    /// Where rows go, a JSON object a line; what a run that died has finished in it is not measured again
    #[arg(long)]
    rows: PathBuf,
    /// This is the one in the network namespace
    #[arg(long, hide = true)]
    inside: bool,
}

/// A guest or its server that hangs is ended, and started so often.
const TRIES: u32 = 3;
/// From a guest's start to its first word.
const BOOTS_WITHIN: Duration = Duration::from_secs(90);
/// Of one of several vCPUs, which wait for each other on one CPU.
const SEVERAL_BOOT_WITHIN: Duration = Duration::from_secs(240);
/// From the end of a program's line to its own.
const ENDS_WITHIN: Duration = Duration::from_millis(300);
/// Of each load, counted, and as many timed.
const TURNS: u32 = 3;
/// Memory of a guest; of each, when there are several.
const MEMORY_MIB: u32 = 384;
const MEMORY_OF_SEVERAL_MIB: u32 = 256;
const _: () = assert!(MEMORY_MIB <= FILE_MAX_MIB && MEMORY_OF_SEVERAL_MIB <= FILE_MAX_MIB);

/// Runs what was asked for; rows go to their file when a stand is done, progress to stderr.
///
/// # Errors
/// The place is not one (no KVM, no tracing), or a configuration fails each time.
pub(crate) fn run(arguments: &RunArguments) -> Result<()> {
    if !arguments.inside {
        return keeper::keep(&arguments.dir);
    }
    network::ip("link set lo up")?;
    std::fs::create_dir_all(&arguments.dir)?;
    let lab = Lab {
        arguments,
        cpus: Cpus::of_place()?,
        tracing: Tracing::start().context("counting exits needs root, tracefs and KVM")?,
    };
    let mut ledger = Ledger::open(&arguments.rows)?;
    let stands = stands(arguments);
    let (all, mut restarts, mut failed) = (stands.len(), 0, Vec::new());
    for (done, stand) in stands.iter().enumerate() {
        let name = format!("{}, {}", stand.experiment, stand.configuration.name);
        let step = Step { stand, progress: format!("{done} of {all}: {name}") };
        if let Some(before) = ledger.done(&stand.id()) {
            let how = if before.failed { "failed" } else { "was measured" };
            eprintln!("{}: {how} before the place died, and is skipped", step.progress);
            failed.extend(before.failed.then_some(name));
            continue;
        }
        let mut tried = 1;
        let (rows, is_done) = loop {
            let mut rows = Vec::new();
            let Err(error) = lab.measure(&step, &mut rows) else { break (rows, true) };
            eprintln!("{} (time {tried} of {TRIES}): {error:#}", step.progress);
            if tried == TRIES {
                // What it did before it failed was measured as that of others was.
                failed.push(name);
                break (rows, false);
            }
            tried += 1;
            restarts += stand.guests;
        };
        ledger.write(rows, Done { stand_done: stand.id(), failed: !is_done })?;
    }
    let _ = std::fs::remove_dir(&arguments.dir);
    eprintln!("{} of {all}: {restarts} guests were started again", all - failed.len());
    if !failed.is_empty() {
        bail!("could not be measured to the end: {}", failed.join("; "));
    }
    Ok(())
}

/// All that is to be started, an experiment after the other, each once.
fn stands(arguments: &RunArguments) -> Vec<Stand> {
    let choice = &arguments.choice;
    let all = choice.experiments().into_iter().flat_map(|one| one.stands(choice.quick));
    all.filter(|stand| stand.configuration.name.starts_with(&choice.only)).collect()
}

/// What all stands share.
#[derive(Debug)]
struct Lab<'a> {
    arguments: &'a RunArguments,
    cpus: Cpus,
    tracing: Tracing,
}

/// A stand, and how far the lab is with it.
#[derive(Debug)]
struct Step<'a> {
    stand: &'a Stand,
    progress: String,
}

impl Lab<'_> {
    /// One stand from start to end. Its logs stay when it fails.
    /// What is measured before that is in `rows`.
    fn measure(&self, step: &Step<'_>, rows: &mut Vec<Row>) -> Result<()> {
        let stand = step.stand;
        let dir = self.arguments.dir.join(stand.configuration.name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir)?;
        let mut children = Children::default();
        self.measure_in(step, &dir, &mut children, rows).map_err(|error| {
            // One that has ended explains what the others say; its line is closed a little before it has.
            let ended = waiting::until("an end", ENDS_WITHIN, || Ok(children.are_alive().err()));
            let ended = ended.map(|ended| format!("; {ended}")).unwrap_or_default();
            anyhow::anyhow!("{error:#}{ended}{}", logs::ends(&dir))
        })?;
        drop(children);
        let _ = std::fs::remove_dir_all(&dir);
        Ok(())
    }

    fn measure_in(
        &self,
        step: &Step<'_>,
        dir: &Path,
        children: &mut Children,
        rows: &mut Vec<Row>,
    ) -> Result<()> {
        let stand = step.stand;
        let plural = if stand.guests > 1 { "s" } else { "" };
        eprintln!("{}: starting {} guest{plural}", step.progress, stand.guests);
        let site = Site {
            sidecore: &self.arguments.sidecore,
            dir,
            cpus: &self.cpus,
            guests: stand.guests,
            backing: stand.backing,
        };
        let options = stand.configuration.serve(&site, children)?;
        let guests = self.start_guests(stand, &site, &options, children)?;
        // Without the peer, which comes later.
        let mut pids = children.pids();
        let kernels = serving::vhost_threads(&pids);
        if stand.configuration.is_pinned {
            kernels.iter().try_for_each(|thread| vm::pin(*thread, self.cpus.server))?;
        }
        pids.extend(kernels);
        if stand.configuration.device == Device::Nic {
            nics::start_peer(&site, children)?;
        }
        let several = stand.configuration.vcpus() > 1;
        let _slices = (several && is_emulated()).then(Slices::of_emulated).transpose()?;
        let mut bench = Bench {
            experiment: &stand.experiment,
            configuration: stand.configuration,
            cpus: &self.cpus,
            guests,
            serving: Serving { pids },
            steering: stand.configuration.steering(&site),
            tracing: &self.tracing,
            turns: if self.arguments.choice.quick { 1 } else { TURNS },
        };
        for load in &stand.loads {
            let found = bench.measure(load).with_context(|| load.name())?;
            eprintln!("{}: {}", step.progress, told(load.name(), &found));
            rows.extend(found);
        }
        let shares = turns::of_reachable(rows);
        rows.extend(shares);
        Ok(())
    }

    fn start_guests(
        &self,
        stand: &Stand,
        site: &Site<'_>,
        options: &[Vec<String>],
        children: &mut Children,
    ) -> Result<Guests> {
        let memory_mib = if stand.guests > 1 { MEMORY_OF_SEVERAL_MIB } else { MEMORY_MIB };
        let mut ready = Vec::new();
        for (number, options) in options.iter().enumerate() {
            let spec = VmSpec {
                seat: Seat(number),
                kernel: &self.arguments.kernel,
                initramfs: &self.arguments.initramfs,
                vcpus: stand.configuration.vcpus(),
                memory_mib,
                dir: site.dir,
                options,
                machine: stand.configuration.machine(),
            };
            let pins = Pins { vcpu: self.cpus.of_guest(number), rest: self.cpus.server };
            let pins = stand.configuration.is_pinned.then_some(pins);
            // One after the other: of four that boot on one emulated CPU, one often faults.
            let within = if spec.vcpus > 1 { SEVERAL_BOOT_WITHIN } else { BOOTS_WITHIN };
            let mut guest = Vm::start(&spec, pins, children)?.begin(within, children)?;
            guest.wait().with_context(|| format!("guest {number}"))?;
            ready.push(guest);
        }
        Ok(Guests::ready(ready))
    }
}

/// A load's progress in a line: what it came to, as far as it is counted an operation.
fn told(name: String, rows: &[Row]) -> String {
    let sum = |what: &str| {
        let of = rows.iter().filter(|row| row.name.ends_with(what));
        of.map(|row| format!("{:.3}", row.value)).collect::<Vec<_>>().join(" and ")
    };
    let (exits, doorbells) = (sum(".exits_per_op"), sum(".doorbell_exits_per_op"));
    if exits.is_empty() {
        return format!("{name}: {} % of the time in the guest", sum(".tig_percent"));
    }
    format!("{name}: {exits} exits and {doorbells} doorbells an operation")
}
