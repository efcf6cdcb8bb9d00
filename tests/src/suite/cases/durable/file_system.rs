//! A guest's ext4 and databases on a disk that loses power: what was synced is there, after every cut.
//!
//! Each boot gives a log of a [`FuseDisk`], in which the cuts are made (`cuts`). The lines that the guest writes
//! (`tests/guest/scripts/power.sh`) are put into the order of the disk's own log, each at the moment when it was read,
//! which is later than when the guest said it. At last the power is cut as if no sync had counted, which must lose
//! something: otherwise nothing was shown.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::Bed;
use testing::daemon::{Daemon, pause};
use testing::load::Random;
use testing::scratch::Scratch;
use testing::vm::{Boot, Vm};

use super::cuts::{Cutter, Loss, Told};
use crate::fuse_disk::{FuseDisk, FuseDiskSpec};
use crate::ledger::Order;

const DISK_BYTES: u64 = 64 << 20;
/// The name of the guest, and of the script that it runs.
const GUEST: &str = "power";
const LOOK: Duration = Duration::from_millis(1);
/// Cuts that are made as if no sync had counted.
const CONTROLS: u64 = 8;

/// A boot, or ten: past the page cache and through it, and with data in the journal too.
pub(super) fn file_system(bed: &Bed) -> Result<()> {
    let seed = std::env::var("POWER_SEED").ok().map(|seed| seed.parse()).transpose()?;
    for number in 1..=bed.often(1, 10) {
        let cache = if number % 2 == 0 { "page" } else { "direct" };
        let options = if number % 3 == 0 { "data=journal" } else { "data=ordered" };
        let order = Order::default();
        let writeback_cache = cache == "page";
        let spec = FuseDiskSpec { size_bytes: DISK_BYTES, writeback_cache, order };
        let disk = FuseDisk::mount("power-fs", &spec)?;
        let told = boot(bed, number, &disk, cache, options)?;
        let found = cuts(bed, &disk, &told, seed.unwrap_or(number));
        let found = found.map(|found| format!("{options}, {cache}: {found}"));
        let name = format!("boot-{number}-cuts");
        if !bed.check(&name, found) {
            break;
        }
    }
    Ok(())
}

/// A guest works on the disk; what it told, and when.
fn boot(bed: &Bed, number: u64, disk: &FuseDisk, cache: &str, options: &str) -> Result<Vec<Told>> {
    let path = disk.path();
    let file = format!(
        "[[disk]]\nid = \"a\"\npath = \"{}\"\nqueues = 2\ncache = \"{cache}\"\n",
        path.display()
    );
    let mut daemon = Daemon::start("power", &file)?;
    let boot = Boot::new(GUEST).disk(daemon.socket("a"), "num-queues=2");
    let vm = Vm::boot(bed.folder(), boot)?;
    let is_over = AtomicBool::new(false);
    let results = bed.folder().join(format!("{GUEST}.results"));
    let seconds = bed.often(8, 20).to_string();
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| listen(&results, &is_over, disk.order()));
        let worked = vm
            .begin_script(GUEST, &[("seconds", &seconds), ("options", options)])
            .and_then(|script| vm.end_script(bed, script, &format!("boot-{number}-")))
            .and_then(|_| vm.off())
            .and_then(|()| daemon.stop());
        is_over.store(true, Ordering::Release);
        let told = listening.join().map_err(|_| anyhow!("the listener panicked"));
        worked.with_context(|| daemon.last_words())?;
        told
    })
}

/// Everything that the guest says is ready, until it is over.
fn listen(results: &Path, is_over: &AtomicBool, order: &Order) -> Vec<Told> {
    let mut told = Vec::new();
    let mut read = 0;
    loop {
        let was_over = is_over.load(Ordering::Acquire);
        let text = std::fs::read_to_string(results).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        for line in text.get(read..whole).unwrap_or_default().lines() {
            if let Some(text) = line.strip_prefix("READY ") {
                told.push(Told { moment: order.next(), text: text.to_owned() });
            }
        }
        read = whole.max(read);
        if was_over {
            return told;
        }
        pause(LOOK);
    }
}

/// Cuts the power at as many moments as are asked for: what was found.
fn cuts(bed: &Bed, disk: &FuseDisk, told: &[Told], seed: u64) -> Result<String> {
    let begun = told.iter().find(|told| told.text == "begun").context("it has not begun")?.moment;
    let end = told.last().map_or(begun, |told| told.moment);
    let journal = disk.journal();
    let scratch = Scratch::new(Path::new("/dev/shm"), "power-fs")?;
    let survivors = journal.survivors();
    let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let size_bytes = DISK_BYTES;
    let cutter = Cutter { survivors: &survivors, size_bytes, told, folder: scratch.path() };
    let (count, mut records) = (bed.often(24, 50), 0);
    for number in 0..count {
        let moment = begun + 1 + random.below(end - begun);
        let how = Loss::ALL[(number % Loss::ALL.len() as u64) as usize];
        bed.say(format!("cut {number} of {count}"));
        records += cutter.cut(moment, how, random).with_context(|| {
            format!("cut {number}, {how:?}, at {moment} of {begun} to {end}, seed {seed}")
        })?;
    }
    let (writes, syncs) = (journal.writes().len(), journal.stabilizations());
    let forgetful = journal.without_syncs_from(begun).survivors();
    let cutter = Cutter { survivors: &forgetful, ..cutter };
    let mut lost = 0;
    for _ in 0..CONTROLS {
        lost += u64::from(cutter.cut(end, Loss::All, random).is_err());
    }
    ensure!(lost > 0, "{CONTROLS} cuts of a disk that does not sync have lost nothing either");
    Ok(format!(
        "seed {seed}: {writes} writes and {syncs} syncs of the host's disk; {count} cuts, each clean after its \
         journal; {records} records looked for, 0 lost. Without syncs {lost} of {CONTROLS} cuts lose some"
    ))
}
