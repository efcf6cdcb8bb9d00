//! A front-end inside a test guest: the daemon serves devices of the kernel's device mapper that fail
//! (dm-flakey) and that log in which order things became stable (dm-log-writes).
//!
//! Started by tests/guest/scripts/mapper.sh; the case `durable/mapper` puts it there. It prints a
//! line for each check that held, and ends with an error at the first that did not.
#![expect(clippy::disallowed_macros, reason = "a program prints")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use testing::clock::now_ns;
use testing::daemon::Daemon;
use testing::frontend::{Frontend, FrontendSpec, LINUX_FEATURES};
use testing::slots::{Kind, STATUS_OK};
use tests::single::Single;

const DATA: &str = "/dev/vda";
const LOG: &str = "/dev/vdb";
const MAPPED: &str = "mapped";
const STATUS_IOERR: u8 = 1;
const F_FLUSH: u64 = 1 << 9;
const F_CONFIG_WCE: u64 = 1 << 11;

fn main() -> Result<()> {
    let sectors = std::fs::read_to_string("/sys/block/vda/size")?.trim().parse::<u64>()?;
    let mapper = Mapper { sectors };
    mapper.create(&mapper.linear())?;
    errors_of_the_device(&mapper)?;
    up_and_down(&mapper)?;
    a_flush_that_failed(&mapper)?;
    mapper.remove()?;
    mapper.create(&format!("0 {sectors} log-writes {DATA} {LOG}"))?;
    let rounds = logged_writes()?;
    mapper.remove()?;
    let log = Log::read()?;
    for round in &rounds {
        log.holds(round)?;
    }
    println!("dm-log-writes: {} rounds are stable before their marks", rounds.len());
    Ok(())
}

/// One mapped device.
struct Mapper {
    sectors: u64,
}

impl Mapper {
    fn linear(&self) -> String {
        format!("0 {} linear {DATA} 0", self.sectors)
    }

    /// Up and down for so many seconds in turn; when down, `features`, or nothing works.
    fn flakey(&self, up_s: u32, down_s: u32, features: &str) -> String {
        format!("0 {} flakey {DATA} 0 {up_s} {down_s} {features}", self.sectors)
    }

    fn create(&self, table: &str) -> Result<()> {
        dmsetup(&["create", MAPPED, "--table", table])
    }

    fn become_(&self, table: &str) -> Result<()> {
        dmsetup(&["load", MAPPED, "--table", table])?;
        dmsetup(&["suspend", MAPPED])?;
        dmsetup(&["resume", MAPPED])
    }

    fn remove(&self) -> Result<()> {
        dmsetup(&["remove", "--retry", MAPPED])
    }
}

fn dmsetup(arguments: &[&str]) -> Result<()> {
    let output = Command::new("dmsetup").arg("--noudevsync").args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "dmsetup {arguments:?}: {said}");
    Ok(())
}

/// A daemon with the mapped device, and a guest of it.
fn serve(without: u64) -> Result<(Daemon, Frontend)> {
    let disk = format!(
        "[[disk]]\nid = \"{MAPPED}\"\npath = \"/dev/mapper/{MAPPED}\"\ncache = \"direct\"\n"
    );
    let daemon = Daemon::start("mapper", &disk)?;
    let features = LINUX_FEATURES & !without;
    let guest = daemon.frontend(MAPPED, &FrontendSpec { features, ..FrontendSpec::default() })?;
    Ok((daemon, guest))
}

fn all(
    single: &Single,
    guest: &mut Frontend,
    kind: Kind,
    blocks: std::ops::Range<u64>,
    expected: u8,
) -> Result<()> {
    for block in blocks {
        let ended = single.send(guest.queue(0), kind, block)?;
        ensure!(ended.status == expected, "{kind:?} of block {block}: {ended:?}, not {expected}");
        if kind == Kind::Read && expected == STATUS_OK {
            single.compare(block)?;
        }
    }
    Ok(())
}

fn errors_of_the_device(mapper: &Mapper) -> Result<()> {
    let (daemon, mut guest) = serve(0)?;
    let single = Single::new(&mut guest)?;
    all(&single, &mut guest, Kind::Write, 0..40, STATUS_OK)?;
    mapper.become_(&mapper.flakey(0, 3600, "1 error_writes"))?;
    all(&single, &mut guest, Kind::Write, 40..60, STATUS_IOERR)?;
    all(&single, &mut guest, Kind::Read, 0..40, STATUS_OK)?;
    mapper.become_(&mapper.flakey(0, 3600, ""))?;
    all(&single, &mut guest, Kind::Write, 60..70, STATUS_IOERR)?;
    all(&single, &mut guest, Kind::Read, 0..10, STATUS_IOERR)?;
    let eio = daemon.shown(MAPPED, "faults")?["eio"].clone();
    ensure!(eio == 40, "40 requests failed, {eio} are shown");
    mapper.become_(&mapper.linear())?;
    all(&single, &mut guest, Kind::Write, 40..60, STATUS_OK)?;
    all(&single, &mut guest, Kind::Flush, 0..1, STATUS_OK)?;
    all(&single, &mut guest, Kind::Read, 0..60, STATUS_OK)?;
    println!("dm-flakey: 40 errors of the device are 40 IOERR of the guest, and 40 are shown");
    Ok(())
}

/// What ended well is there, whenever the device was down.
fn up_and_down(mapper: &Mapper) -> Result<()> {
    let (_daemon, mut guest) = serve(0)?;
    let single = Single::new(&mut guest)?;
    mapper.become_(&mapper.flakey(1, 1, "1 error_writes"))?;
    let (mut well, mut failed) = (Vec::new(), 0);
    let start = now_ns();
    let mut block = 100;
    while now_ns() - start < 5_000_000_000 {
        match single.send(guest.queue(0), Kind::Write, block)?.status {
            STATUS_OK => well.push(block),
            STATUS_IOERR => failed += 1,
            other => bail!("block {block} ended with {other}"),
        }
        block = 100 + (block - 99) % 4000;
    }
    ensure!(failed > 0 && !well.is_empty(), "{} well, {failed} failed", well.len());
    mapper.become_(&mapper.linear())?;
    for block in &well {
        all(&single, &mut guest, Kind::Read, *block..block + 1, STATUS_OK)?;
    }
    println!("dm-flakey: up and down, {} writes are there, {failed} were refused", well.len());
    Ok(())
}

fn a_flush_that_failed(mapper: &Mapper) -> Result<()> {
    let (_daemon, mut guest) = serve(0)?;
    let single = Single::new(&mut guest)?;
    all(&single, &mut guest, Kind::Write, 0..4, STATUS_OK)?;
    mapper.become_(&mapper.flakey(0, 3600, "1 error_writes"))?;
    all(&single, &mut guest, Kind::Flush, 0..1, STATUS_IOERR)?;
    mapper.become_(&mapper.linear())?;
    all(&single, &mut guest, Kind::Flush, 0..100, STATUS_IOERR)?;
    println!(
        "dm-flakey: after a flush that failed none ends well, though the device is well again"
    );
    Ok(())
}

/// Writes that must be stable where the log has a mark.
struct Round {
    mark: String,
    /// First sectors, of 512 bytes.
    sectors: Vec<u64>,
}

fn logged_writes() -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for (name, without) in [("back", 0), ("through", F_FLUSH | F_CONFIG_WCE)] {
        let (_daemon, mut guest) = serve(without)?;
        let single = Single::new(&mut guest)?;
        for number in 0..16u64 {
            let first = 1000 + rounds.len() as u64 * 16;
            all(&single, &mut guest, Kind::Write, first..first + 10, STATUS_OK)?;
            if without == 0 {
                all(&single, &mut guest, Kind::Flush, 0..1, STATUS_OK)?;
            }
            let mark = format!("{name}-{number}");
            dmsetup(&["message", MAPPED, "0", "mark", &mark])?;
            rounds.push(Round { mark, sectors: (first..first + 10).map(|b| b * 8).collect() });
        }
    }
    Ok(rounds)
}

/// What dm-log-writes has written (Documentation/admin-guide/device-mapper/log-writes.rst, and the
/// structures at the head of drivers/md/dm-log-writes.c).
struct Log {
    entries: Vec<Entry>,
}

struct Entry {
    /// In sectors of 512 bytes.
    sector: u64,
    sectors: u64,
    flags: u64,
    mark: String,
}

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

impl Log {
    fn read() -> Result<Log> {
        let file = File::open(LOG)?;
        let mut block = vec![0; 4096];
        file.read_exact_at(&mut block, 0)?;
        let number = |block: &[u8], at: usize| {
            block[at..at + 8].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        ensure!(number(&block, 0) == MAGIC, "the log has no head");
        let (count, size) = (number(&block, 16), number(&block, 24) & 0xffff_ffff);
        ensure!((512..=4096).contains(&size), "sectors of {size} bytes");
        let (mut entries, mut at) = (Vec::new(), size);
        for _ in 0..count {
            file.read_exact_at(&mut block[..size as usize], at)?;
            let (sector, sectors) = (number(&block, 0), number(&block, 8));
            let (flags, data_len) = (number(&block, 16), number(&block, 24));
            at += size;
            let mut mark = String::new();
            if flags & MARK != 0 {
                let end = 32 + data_len as usize;
                let text = block.get(32..end).context("a mark longer than its block")?;
                mark = String::from_utf8_lossy(text).trim_end_matches('\0').to_string();
            } else if flags & DISCARD == 0 {
                at += sectors * size;
            }
            let (sector, sectors) = (sector * size / 512, sectors * size / 512);
            entries.push(Entry { sector, sectors, flags, mark });
        }
        Ok(Log { entries })
    }

    /// Before its mark each write of the round is in the log, stable by itself or before a flush.
    fn holds(&self, round: &Round) -> Result<()> {
        let end = self.entries.iter().position(|entry| entry.mark == round.mark);
        let before = &self.entries[..end.with_context(|| format!("no mark {}", round.mark))?];
        let flushed = before.iter().rposition(|entry| entry.flags & FLUSH != 0);
        for sector in &round.sectors {
            let written = before.iter().rposition(|entry| {
                let range = entry.sector..entry.sector + entry.sectors;
                entry.flags & (DISCARD | MARK) == 0 && range.contains(sector)
            });
            let at = written
                .with_context(|| format!("{}: sector {sector} was never written", round.mark))?;
            let is_stable = before[at].flags & FUA != 0 || flushed.is_some_and(|flush| flush > at);
            ensure!(is_stable, "{}: sector {sector} was not stable at its mark", round.mark);
        }
        Ok(())
    }
}
