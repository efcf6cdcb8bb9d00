//! Loads a disk that may lose power at any moment, and judges what each cut would leave.
//!
//! The daemon serves a [`FuseDisk`]; a guest of several queues writes, overwrites, zeroes and flushes
//! in one of the modes that VIRTIO 1.2 (5.2.6.2) tells apart. What it sends and sees and what reaches
//! the disk is logged in one order, so the cuts are made afterwards, as many as one likes: at each,
//! every content that the disk may be left with is compared with what was promised by then.

mod guest;

use anyhow::{Context, Result, ensure};
use std::time::Duration;
use testing::frontend::{FrontendSpec, LINUX_FEATURES};
use testing::load::Random;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Journal, Rule, Survivors, When};
use crate::ledger::{History, Order, What};
use crate::mounts::Loop;
use guest::Guest;
use testing::daemon::Daemon;

/// Sectors of the disk.
pub const DISK_SECTORS: u64 = 1024;
/// Queues of the guest.
const QUEUES: u16 = 4;
const F_FLUSH: u64 = 1 << 9;
const F_CONFIG_WCE: u64 = 1 << 11;
/// Of the config space's `writeback`, bytes from its start.
const WCE_AT: u32 = 32;

/// What was negotiated of the write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// FLUSH is offered and not accepted: each write is stable when it is done.
    NoFlush,
    /// FLUSH, and no way to choose.
    Flush,
    /// FLUSH and CONFIG_WCE, `writeback` left at 1.
    WriteBack,
    /// The guest has set `writeback` to 0: each write is stable when it is done.
    WriteThrough,
    /// The guest changes `writeback` from 1 to 0 and back, again and again.
    Switching,
}

impl Mode {
    /// Each one.
    pub const ALL: [Mode; 5] =
        [Mode::NoFlush, Mode::Flush, Mode::WriteBack, Mode::WriteThrough, Mode::Switching];

    fn features(self) -> u64 {
        match self {
            Mode::NoFlush => LINUX_FEATURES & !(F_FLUSH | F_CONFIG_WCE),
            Mode::Flush => LINUX_FEATURES & !F_CONFIG_WCE,
            _ => LINUX_FEATURES,
        }
    }
}

/// What the daemon opens, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file, past the page cache of the host.
    Direct,
    /// A file whose kernel keeps written pages back.
    Page,
    /// A block device over the file: aligned writes go past the page cache, others through it.
    Device,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is negotiated.
    pub mode: Mode,
    /// What the daemon opens, and how.
    pub medium: Medium,
    /// Which ring.
    pub format: Format,
    /// Requests to send.
    pub requests: u64,
    /// Sidecores that share the queues.
    pub cpus: &'static str,
    /// Of all choices.
    pub seed: u64,
}

/// What a run left: enough to judge any moment of it.
#[derive(Debug)]
pub struct Recording {
    history: History,
    journal: Journal,
    survivors: Survivors,
    /// The last moment.
    end: u64,
}

/// Numbers of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Writes, zeroes and discards of the guest.
    pub guest_writes: usize,
    /// Its flushes.
    pub guest_flushes: usize,
    /// Syncs and stable writes of the host's disk.
    pub host_syncs: usize,
    /// Fewer host syncs than this cannot have kept what was promised: so many of the guest's
    /// flushes and write-through writes did not overlap in time, and each needs one within it.
    pub required: usize,
}

/// Runs a daemon with a disk that loses what was not synced, and a guest on it.
///
/// # Errors
/// Something does not start, a request failed, or a read found what cannot be there.
pub fn record(plan: &Plan) -> Result<Recording> {
    let order = Order::default();
    // Through the page cache, a disk whose kernel keeps pages back is the harder one.
    let writeback_cache = plan.medium == Medium::Page;
    let size_bytes = DISK_SECTORS * 512;
    let spec = FuseDiskSpec { size_bytes, writeback_cache, order: order.clone() };
    let disk = FuseDisk::mount("power-disk", &spec)?;
    let up_to = |millis| How::DelayUpTo(Duration::from_millis(millis));
    for (call, percent, how) in
        [(Call::Write, 50, up_to(1)), (Call::Allocate, 50, up_to(1)), (Call::Sync, 80, up_to(2))]
    {
        disk.obey(Rule { call, when: When::Percent(percent), how });
    }
    let device = (plan.medium == Medium::Device).then(|| Loop::over(&disk.path(), 512));
    let device = device.transpose()?;
    let path = device.as_ref().map_or(disk.path(), |device| device.path().into());
    let cache = match plan.medium {
        Medium::Direct => "direct",
        Medium::Page => "page",
        Medium::Device => "auto",
    };
    let text = format!(
        "[[disk]]\nid = \"cut\"\npath = \"{}\"\ncache = \"{cache}\"\nqueues = {QUEUES}\n",
        path.display()
    );
    let daemon = Daemon::with("power", &text).cpus(plan.cpus).start()?;
    let ring = RingSpec { size: 64, format: plan.format, event_index: true, indirect_entries: 0 };
    let spec = FrontendSpec {
        queues: QUEUES,
        ring,
        features: plan.mode.features(),
        ..FrontendSpec::default()
    };
    let mut frontend = daemon.frontend("cut", &spec)?;
    let wce = frontend.config(WCE_AT, 1)?;
    ensure!(wce == [1], "the config space's writeback is {wce:?} at first, not 1");
    let mut guest = Guest::new(frontend, plan, order.clone())?;
    guest.run().with_context(|| format!("{plan:?}"))?;
    let ledger = guest.finish()?;
    let end = order.next();
    drop(daemon);
    let history = ledger.history().cloned().context("no history was kept")?;
    let journal = disk.journal();
    let survivors = journal.survivors();
    Ok(Recording { history, journal, survivors, end })
}

impl Recording {
    /// A moment for a cut: half of them anywhere, half where something had just been promised.
    pub fn moment(&self, random: &mut Random) -> u64 {
        let flushes = self.history.flushes();
        let writes = self.history.writes();
        let (of_flushes, of_writes) = (flushes.len() as u64, writes.len() as u64);
        let after = match random.below(4) {
            0 if of_flushes > 0 => Some(flushes[random.below(of_flushes) as usize].completed),
            1 if of_writes > 0 => writes[random.below(of_writes) as usize].completed,
            _ => None,
        };
        after.unwrap_or_else(|| random.below(self.end)) + 1
    }

    /// Cuts the power at `cut`: whatever part of the unsynced writes is lost, no sector is older
    /// than promised, torn, or another's. Gives how many possible sectors were looked at.
    ///
    /// # Errors
    /// The first sector that breaks a promise.
    pub fn cut(&self, cut: u64) -> Result<u64> {
        let mut looked = 0;
        for sector in self.survivors.sectors() {
            for bytes in self.survivors.of(sector, cut) {
                self.history.after_cut(sector, cut, bytes).with_context(|| {
                    format!("the power was cut at moment {cut} of {}", self.end)
                })?;
                looked += 1;
            }
        }
        // What the guest wrote and the disk has never seen.
        for sector in self.history.sectors() {
            if self.survivors.of(sector, u64::MAX).nth(1).is_none() {
                for bytes in self.survivors.of(sector, cut) {
                    self.history.after_cut(sector, cut, bytes)?;
                    looked += 1;
                }
            }
        }
        Ok(looked)
    }

    /// Counts, for the table.
    pub fn numbers(&self) -> Numbers {
        let (writes, flushes) = (self.history.writes(), self.history.flushes());
        // Discards are not promised to be stable.
        let through = writes.iter().filter(|write| write.through && write.what != What::Discard);
        let mut promises: Vec<(u64, u64)> = through
            .filter_map(|write| Some((write.submitted, write.completed?)))
            .chain(flushes.iter().map(|flush| (flush.submitted, flush.completed)))
            .collect();
        promises.sort_by_key(|(_, completed)| *completed);
        let (mut required, mut free_from) = (0, 0);
        for (submitted, completed) in promises {
            if submitted > free_from {
                (required, free_from) = (required + 1, completed);
            }
        }
        Numbers {
            guest_writes: writes.len(),
            guest_flushes: flushes.len(),
            host_syncs: self.journal.stabilizations(),
            required,
        }
    }
}
