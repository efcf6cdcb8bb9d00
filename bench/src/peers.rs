//! `bench peers`: Sidecore beside SPDK, QEMU and DPDK with the clients that others have made, all that
//! this machine can run in one go.
//!
//! Servers have core 0, clients core 1, rounds take turns. Before and after each row a loop on either
//! core says how much of it was free: what was measured while others worked is measured again, once,
//! and then thrown away. `--write` puts the numbers into `docs/performance/peers.json`, and the table
//! of them between two marks of `docs/performance.md`. Not how any one is run (`blk`, `net`).

mod entries;
mod found;
mod report;
mod share;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::load::BATCH;
use testing::report::Row;

use self::entries::{DiskLoad, ENTRIES, Entry, Work};
use self::found::Found;
use self::report::{Compared, Lacking, Machine, Outcome, Report};
use self::share::Share;
use crate::{blk, net};

/// A number that is kept stands on so many rounds at least, each of two seconds.
const ROUNDS: usize = 3;
/// After so long no row is measured again, and after [`END_NS`] no other one is begun.
const AGAIN_NS: u64 = 30 * MINUTE_NS;
const END_NS: u64 = 38 * MINUTE_NS;
const MINUTE_NS: u64 = 60_000_000_000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter rounds, to see that all of it works; the numbers are not for keeping.
    #[arg(long)]
    quick: bool,
    /// Rounds of each server in each row.
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,
    /// Rows whose names begin so, such as `blk.null` or `net.packed`.
    #[arg(long, value_delimiter = ',', value_name = "PREFIX")]
    only: Vec<String>,
    /// Keep rows that were measured while others worked; they are marked.
    #[arg(long)]
    disturbed: bool,
    /// Write docs/performance/peers.json, and the table of docs/performance.md from it.
    #[arg(long, conflicts_with_all = ["quick", "only", "disturbed"])]
    write: bool,
    /// The sidecore program. Default: beside this one, or SIDECORE_BIN.
    #[arg(long, value_name = "PATH")]
    sidecore: Option<PathBuf>,
}

/// Measures, prints, and writes what is to be kept. There are no rows for the usual table.
pub(crate) fn run(options: &Options, json: bool) -> Result<Vec<Row>> {
    ensure!(options.rounds >= 1, "at least one round");
    ensure!(!options.write || options.rounds >= ROUNDS, "what is kept has {ROUNDS} rounds or more");
    let mut run = Run { options, found: Found::look()?, start_ns: now_ns(), rows: Vec::new() };
    run.all()?;
    let Run { found, rows, .. } = run;
    let report =
        Report { machine: Machine::this(), rounds: options.rounds, rows, lacking: found.lacking };
    print(&report, json)?;
    if options.write {
        table::write(&docs(), &report)?;
    }
    Ok(Vec::new())
}

fn without_spdk(who: &[blk::Peer]) -> Vec<blk::Peer> {
    who.iter().copied().filter(|who| *who != blk::Peer::Spdk).collect()
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn print(report: &Report, json: bool) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    if json {
        for row in &report.rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        for lacking in &report.lacking {
            writeln!(out, "{}", serde_json::to_string(lacking)?)?;
        }
    } else {
        write!(out, "{}", table::markdown(report))?;
    }
    Ok(())
}

/// What goes on while all of it is measured.
struct Run<'a> {
    options: &'a Options,
    found: Found,
    start_ns: u64,
    rows: Vec<Compared>,
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let is_wanted = |entry: &&Entry| {
            let only = &self.options.only;
            only.is_empty() || only.iter().any(|prefix| entry.name.starts_with(prefix.as_str()))
        };
        let mut wanted = ENTRIES.iter().filter(is_wanted).peekable();
        ensure!(wanted.peek().is_some(), "no row has such a name: `bench peers --only blk,net`");
        let wanted: Vec<&Entry> = wanted.collect();
        // Rows of one kind of disk and one client follow each other, and share servers.
        for group in wanted.chunk_by(|one, next| one.work.shares_servers(&next.work)) {
            match group[0].work {
                Work::Disk(load) => self.disks(load, group),
                Work::Pair { ring, what, size } => {
                    self.row(group[0], |run| net::measure(&run.net(), ring, what, size))
                }
                Work::Segments => {
                    self.row(group[0], |run| net::segments(&run.net(), net::Ring::Split));
                }
            }
        }
        Ok(())
    }

    /// Rows of one kind of disk and one client; without SPDK where its target does not start.
    fn disks(&mut self, load: DiskLoad, group: &[&Entry]) {
        if let Err(error) = self.found.client(load.client) {
            return self.not_run(group, &error);
        }
        let options = self.blk(load, group);
        let (error, others) = match self.disks_of(load, group, &options) {
            Ok(()) => return,
            Err(error) => (format!("{error:#}"), without_spdk(&options.who)),
        };
        if others == options.who {
            return self.not_run(group, &error);
        }
        eprintln!("bench: {}: once more without SPDK: {error}", group[0].name);
        let who = format!("spdk in rows such as `{}`", group[0].name);
        self.found.lacking.push(Lacking { who, why: error });
        let options = blk::Options { who: others, ..options };
        if let Err(error) = self.disks_of(load, group, &options) {
            self.not_run(group, &format!("{error:#}"));
        }
    }

    /// # Errors
    /// A server or the client does not start. A row that fails is no error.
    fn disks_of(&mut self, load: DiskLoad, group: &[&Entry], options: &blk::Options) -> Result<()> {
        let mut servers = blk::Servers::start(options, load.backend)?;
        for entry in group {
            if let Work::Disk(DiskLoad { kind, depth, .. }) = entry.work {
                self.row(entry, |_| servers.measure(kind, depth));
            }
        }
        Ok(())
    }

    /// One row, with what the cores had to give; again if that was too little.
    fn row(&mut self, entry: &Entry, mut measure: impl FnMut(&Run<'_>) -> Result<Vec<Row>>) {
        let mut tries = 0;
        let compared = loop {
            tries += 1;
            let passed_ns = now_ns() - self.start_ns;
            if passed_ns > END_NS {
                break Compared::not_run(entry, "the time of one run was over");
            }
            let seconds = passed_ns / 1_000_000_000;
            eprintln!("bench: {seconds:4}s  {}", entry.name);
            let compared = self.once(entry, &mut measure);
            let may_again = tries == 1 && passed_ns < AGAIN_NS && !self.options.disturbed;
            if compared.outcome != Outcome::Disturbed || !may_again {
                break compared;
            }
            eprintln!("bench: {}: others worked meanwhile; once more", entry.name);
        };
        self.rows.push(compared);
    }

    fn once(
        &self,
        entry: &Entry,
        measure: &mut impl FnMut(&Run<'_>) -> Result<Vec<Row>>,
    ) -> Compared {
        let mut measured = || -> Result<(Vec<Row>, Share)> {
            let before = share::of_both()?;
            let rows = measure(self)?;
            Ok((rows, Share { before, after: share::of_both()? }))
        };
        match measured().with_context(|| entry.name.to_owned()) {
            Ok((rows, share)) => Compared::new(entry, &rows, share, self.options.disturbed),
            Err(error) => Compared::not_run(entry, &format!("{error:#}")),
        }
    }

    fn not_run(&mut self, group: &[&Entry], why: &str) {
        eprintln!("bench: {}: not run: {why}", group[0].name);
        self.rows.extend(group.iter().map(|entry| Compared::not_run(entry, why)));
    }

    fn blk(&self, load: DiskLoad, group: &[&Entry]) -> blk::Options {
        let depth = group.iter().filter_map(|entry| match entry.work {
            Work::Disk(load) => Some(load.depth),
            _ => None,
        });
        blk::Options {
            quick: self.options.quick,
            backend: vec![load.backend],
            who: self.found.disk_servers(),
            client: load.client,
            depth: depth.collect(),
            ring: blk::Ring::Split,
            no_event_index: true,
            batch: BATCH,
            rounds: self.options.rounds,
            sidecore: self.options.sidecore.clone(),
        }
    }

    fn net(&self) -> net::Options {
        net::Options {
            quick: self.options.quick,
            what: Vec::new(),
            who: self.found.net_servers(),
            client: self.found.driver(),
            size: Vec::new(),
            ring: Vec::new(),
            any_order: false,
            rounds: self.options.rounds,
            sidecore: self.options.sidecore.clone(),
        }
    }
}
