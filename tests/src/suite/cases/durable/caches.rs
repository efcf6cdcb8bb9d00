//! The write cache modes of a guest: how often the daemon makes its disk stable for each of them.
//!
//! One guest has them all: each mode is a disk that is plugged. The guest's load is `tests/guest/scripts/durable.sh`:
//! 1,024 writes, 64 of them between two fsyncs.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::place::Place;
use testing::vm::{Boot, Vm};

use crate::mounts::Loop;
use crate::suite::names;

/// The least flushes of 1,024 writes with an fsync after each 64.
const FLUSHES: u64 = 16;
/// The most writes of the load that are under way at once.
const DEPTH: u64 = 8;

type Part = fn(&Bed, &Vm) -> Result<()>;

const PARTS: [(&str, Part); 3] =
    [("write-back", write_back), ("write-through", write_through), ("no-choice", no_choice)];

/// Their names.
pub(super) const NAMES: [&str; PARTS.len()] = names(&PARTS);

/// One guest for all of them. A part that fails takes its guest with it, and the next one boots another.
pub(super) fn caches(bed: &Bed) -> Result<()> {
    let mut guest: Option<Vm> = None;
    for (name, part) in PARTS.iter().filter(|(name, _)| bed.wants(name)) {
        bed.say(name);
        let vm = match guest.take() {
            Some(vm) => vm,
            None => Vm::boot(bed.folder(), Boot::new(name).slots(1))?,
        };
        let part_bed = bed.part(name)?;
        let done = part(&part_bed, &vm);
        if part_bed.check("", done.map(|()| "")) && !part_bed.has_failed() {
            guest = Some(vm);
        }
    }
    guest.map_or(Ok(()), Vm::off)
}

/// What a guest's load has come to.
struct Counts {
    writes: u64,
    flushes: u64,
    syncs: u64,
    /// Flushes that the loop device under the disk was asked for, if there is one.
    device: Option<u64>,
}

fn write_back(bed: &Bed, vm: &Vm) -> Result<()> {
    let counts = load(bed, vm, "back", json!({}))?;
    at_least(bed, "guest-flushes", FLUSHES, counts.flushes);
    at_least(bed, "host-syncs", FLUSHES, counts.syncs);
    let (syncs, flushes) = (counts.syncs, counts.flushes);
    bed.check("host-syncs-no-more", bounded(syncs <= flushes, syncs, "most", flushes));
    counts.device.inspect(|device| at_least(bed, "device-flushes", FLUSHES, *device));
    Ok(())
}

/// The guest has chosen it: it sends no flush, and each write is stable when it has ended.
fn write_through(bed: &Bed, vm: &Vm) -> Result<()> {
    let counts = load(bed, vm, "through", json!({}))?;
    let least = counts.writes / DEPTH;
    at_least(bed, "host-syncs", least, counts.syncs);
    counts.device.inspect(|device| at_least(bed, "device-flushes", least, *device));
    Ok(())
}

/// QEMU does not offer the choice: FLUSH alone, write back.
fn no_choice(bed: &Bed, vm: &Vm) -> Result<()> {
    let counts = load(bed, vm, "back", json!({ "config-wce": false }))?;
    at_least(bed, "guest-flushes", FLUSHES, counts.flushes);
    at_least(bed, "host-syncs", FLUSHES, counts.syncs);
    counts.device.inspect(|device| at_least(bed, "device-flushes", FLUSHES, *device));
    Ok(())
}

fn at_least(bed: &Bed, check: &str, least: u64, got: u64) {
    bed.check(check, bounded(got >= least, got, "least", least));
}

fn bounded(holds: bool, got: u64, kind: &str, bound: u64) -> Result<u64> {
    ensure!(holds, "{got}, {bound} at {kind} are right");
    Ok(got)
}

/// Plugs a disk, on a loop device where that is possible, which counts flushes by itself, and runs the load on it.
fn load(bed: &Bed, vm: &Vm, cache: &str, mut properties: Value) -> Result<Counts> {
    let image = bed.folder().join(format!("{cache}.raw"));
    std::fs::File::create(&image)?.set_len(64 << 20)?;
    let device = Loop::over(&image, 512).ok();
    let path = device.as_ref().map_or(image.clone(), |device| device.path().to_path_buf());
    let disk = format!("[[disk]]\nid = \"a\"\npath = \"{}\"\n", path.display());
    let mut daemon = Daemon::start("caches", &disk)?;
    // It goes when the daemon has closed it, whatever happens here.
    let name = device.as_ref().and_then(|device| Some(device.path().file_name()?.to_owned()));
    drop(device);
    let stat = name.map(|name| PathBuf::from("/sys/block").join(name).join("stat"));
    let before = stat.as_ref().map(flushes_of).transpose()?;
    properties["num-queues"] = 1.into();
    vm.plug_disk("a", &daemon.socket("a"), 1, properties)?;
    vm.comes_to("[ -b /dev/vda ]")?;
    vm.script(bed, "durable", &[("cache", cache)])?;
    let shown = daemon.ask("show a")?;
    let number = |value: &Value| value.as_u64().context("the daemon shows no number");
    let after = stat.as_ref().map(flushes_of).transpose()?;
    let counts = Counts {
        writes: number(&shown["counters"]["writes"])?,
        flushes: number(&shown["counters"]["flushes"])?,
        syncs: number(&shown["faults"]["syncs"])?,
        device: after.zip(before).map(|(after, before)| after - before),
    };
    let Counts { writes, flushes, syncs, device } = &counts;
    let at_device = match device {
        Some(device) => format!("{device} flushes at the device"),
        None => {
            bed.skipped("counted-by-the-device", "needs root and a loop device");
            "the device does not count".to_owned()
        }
    };
    bed.say(format!(
        "{writes} writes and {flushes} flushes of the guest, {syncs} syncs of the daemon, {at_device}"
    ));
    vm.unplug("a")?;
    vm.comes_to("[ ! -b /dev/vda ]")?;
    daemon.stop()?;
    Ok(counts)
}

/// Flushes that a block device was asked for (Documentation/block/stat.rst).
fn flushes_of(stat: &PathBuf) -> Result<u64> {
    let text = std::fs::read_to_string(stat)?;
    let flushes =
        text.split_whitespace().nth(15).context("a kernel that does not count flushes")?;
    Ok(flushes.parse()?)
}
