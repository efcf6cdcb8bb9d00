//! What a trial measures: short loads of this program's own, or counters of the guest's while its load runs.
//!
//! More is always better: so many a second.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::{Errno, pread};
use rustix::thread::{ClockId as SleepClock, clock_nanosleep_relative};
use rustix::time::{ClockId, clock_gettime};
use tuning::System;
use tuning::guest::Guest;
use tuning::system::{SETTING_BYTES_MAX, text};

use crate::clock::now_ns;

/// Bytes of a read, and what its place and memory are multiples of.
const BLOCK: usize = 4096;
/// Bytes of a sector, whatever the disk's are.
const SECTOR: u64 = 512;
/// One sleep of the load of timers.
const SLEEP: Duration = Duration::from_micros(50);
/// Looks at the clock between two looks at how late it is.
const LOOKS: u64 = 1000;

/// A load, or a counter.
#[derive(Debug)]
pub(crate) enum Load {
    /// Random reads of a disk: it, its blocks, and where they are read to.
    Block { disk: OwnedFd, blocks: u64, memory: Vec<u8>, state: u64 },
    /// Sleeps.
    Timer,
    /// Looks at the clock.
    Clock,
    /// Counters of the guest's: a file, and its words that are added up.
    Counters(Vec<(String, Vec<usize>)>),
}

impl Load {
    /// The load that `--measure` names.
    ///
    /// # Errors
    /// There is none of that name, or the guest has no such device.
    pub(crate) fn new(
        what: &str,
        seed: u64,
        system: &mut dyn System,
        guest: &Guest,
    ) -> Result<Load, String> {
        let (kind, name) = what.split_once(':').unwrap_or((what, ""));
        let is_disk = guest.disks.iter().any(|disk| disk.name == name);
        let is_nic = guest.nics.iter().any(|nic| nic.name == name);
        match (kind, name) {
            ("timer", "") => Ok(Load::Timer),
            ("clock", "") => Ok(Load::Clock),
            ("block", _) if is_disk => Load::block(name, seed, system),
            // Requests that were read and written (Documentation/block/stat.rst).
            ("disk", _) if is_disk => {
                Ok(Load::Counters(vec![(format!("sys/block/{name}/stat"), vec![0, 4])]))
            }
            ("nic", _) if is_nic => {
                let file =
                    |way| (format!("sys/class/net/{name}/statistics/{way}_packets"), vec![0]);
                Ok(Load::Counters(vec![file("rx"), file("tx")]))
            }
            ("block" | "disk", _) => {
                Err(format!("{name:?} is no virtio disk of this guest: `check` names them"))
            }
            ("nic", _) => {
                Err(format!("{name:?} is no virtio NIC of this guest: `check` names them"))
            }
            _ => Err(format!(
                "{what:?} cannot be measured: say block:DISK, timer, clock, disk:DISK or nic:NIC"
            )),
        }
    }

    fn block(name: &str, seed: u64, system: &mut dyn System) -> Result<Load, String> {
        let size = text(system, &format!("sys/block/{name}/size"), SETTING_BYTES_MAX);
        let size = size.ok().and_then(|size| size.trim().parse::<u64>().ok()).unwrap_or(0);
        let blocks = size * SECTOR / BLOCK as u64;
        if blocks == 0 {
            return Err(format!("{name} has not a block of {BLOCK} bytes: choose another disk"));
        }
        let path = format!("/dev/{name}");
        let said = |error: Errno| {
            format!("{path} cannot be read: {}; choose another disk", std::io::Error::from(error))
        };
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let disk = openat(CWD, &path, flags, Mode::empty()).map_err(said)?;
        let kind = FileType::from_raw_mode(fstat(&disk).map_err(said)?.st_mode);
        if kind != FileType::BlockDevice {
            return Err(format!("{path} is no disk: choose another one"));
        }
        // Room for one block at a place of its own multiple, wherever the memory begins.
        Ok(Load::Block { disk, blocks, memory: vec![0; 2 * BLOCK], state: seed })
    }

    /// Runs it for so long: how many a second.
    ///
    /// # Errors
    /// Nothing can be measured.
    pub(crate) fn measure(&mut self, system: &mut dyn System, seconds: u16) -> Result<f64, String> {
        let whole = u64::from(seconds) * 1_000_000_000;
        let start = now_ns();
        let before = self.count(system)?;
        let mut done = 0;
        while now_ns() - start < whole {
            done += self.turn(whole - (now_ns() - start).min(whole))?;
        }
        done += self.count(system)?.saturating_sub(before);
        let took = (now_ns() - start).max(1);
        match done {
            0 => Err("nothing was counted: does the load run?".to_owned()),
            done => Ok(done as f64 * 1e9 / took as f64),
        }
    }

    /// What counters say.
    fn count(&self, system: &mut dyn System) -> Result<u64, String> {
        let Load::Counters(files) = self else { return Ok(0) };
        let mut sum = 0u64;
        for (file, words) in files {
            let text = text(system, file, SETTING_BYTES_MAX);
            let text = text.map_err(|trouble| format!("/{file} {trouble}"))?;
            let all: Vec<&str> = text.split_whitespace().collect();
            for word in words {
                let number = all.get(*word).and_then(|word| word.parse::<u64>().ok());
                let number = number.ok_or_else(|| format!("/{file} is not understood"))?;
                sum = sum.saturating_add(number);
            }
        }
        Ok(sum)
    }

    /// Does a little of the load: how much.
    fn turn(&mut self, left_ns: u64) -> Result<u64, String> {
        match self {
            Load::Timer => {
                sleep(SLEEP);
                Ok(1)
            }
            Load::Clock => {
                for _ in 0..LOOKS {
                    std::hint::black_box(clock_gettime(ClockId::Monotonic));
                }
                Ok(LOOKS)
            }
            Load::Counters(_) => {
                sleep(Duration::from_nanos(left_ns));
                Ok(0)
            }
            Load::Block { disk, blocks, memory, state } => {
                // A linear congruence by Knuth's numbers: places only have to be far apart.
                *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = (*state >> 16) % *blocks * BLOCK as u64;
                let begin = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
                let read = pread(&*disk, &mut memory[begin..begin + BLOCK], place);
                let read = read.map_err(|error| {
                    format!("the disk cannot be read: {}", std::io::Error::from(error))
                })?;
                if read == BLOCK { Ok(1) } else { Err(format!("the disk gave {read} bytes")) }
            }
        }
    }
}

/// Sleeps once: it is the load, or the time in which somebody else's runs.
fn sleep(time: Duration) {
    if let Ok(time) = rustix::time::Timespec::try_from(time) {
        // One that is woken early is measured as what it took.
        let _ = clock_nanosleep_relative(SleepClock::Monotonic, &time);
    }
}
