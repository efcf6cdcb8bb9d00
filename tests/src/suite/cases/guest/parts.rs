//! Cases that share one guest: each one's disks are plugged into it, and pulled out again.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::place::until;
use testing::vm::{Boot, Vm};

use super::{disk, file, fio_size, host, memory};
use crate::suite::names;

/// A case of the shared guest.
type Part = fn(&Bed, &Vm) -> Result<()>;

/// Each by its name. The kernel complains of the last one's writes, so nothing comes after it.
const PARTS: [(&str, Part); 10] = [
    ("fio-memory", fio_memory),
    ("ext4", ext4),
    ("dd", dd),
    ("resize", resize),
    ("hotplug", hotplug),
    ("packed", packed),
    ("discard", discard),
    ("identity", identity),
    ("block-size", block_size),
    ("readonly", readonly),
];

/// Their names.
pub(super) const NAMES: [&str; PARTS.len()] = names(&PARTS);

/// One guest for all of them. A part that fails takes its guest with it, and the next one boots another.
///
/// # Errors
/// A guest does not boot, or does not end in order.
pub(super) fn shared(bed: &Bed) -> Result<()> {
    let mut guest: Option<Vm> = None;
    let mut boots = 0;
    for (name, part) in PARTS.iter().filter(|(name, _)| bed.wants(name)) {
        bed.say(name);
        let part_bed = bed.part(name)?;
        let vm = match guest.take() {
            Some(vm) => vm,
            None => {
                boots += 1;
                Vm::boot(bed.folder(), Boot::new(&format!("guest{boots}")).slots(2))?
            }
        };
        let done = part(&part_bed, &vm).and_then(|()| is_clean(&vm));
        // A guest in which something has failed is nobody else's.
        if part_bed.check("", done.map(|()| "")) && !part_bed.has_failed() {
            guest = Some(vm);
        }
    }
    // The last part's guest may have complained.
    guest.map_or(Ok(()), Vm::off_complaining)
}

/// What a part leaves behind would be the next one's.
fn is_clean(vm: &Vm) -> Result<()> {
    let left = vm.run("ls /sys/block | grep vd; grep /dev/vd /proc/mounts; true")?;
    ensure!(left.trim().is_empty(), "it leaves in the guest: {left}");
    Ok(())
}

/// A disk of the daemon's in a port, until the guest has it as `/dev/NAME`.
fn plug(vm: &Vm, daemon: &Daemon, id: &str, slot: usize, more: serde_json::Value) -> Result<()> {
    vm.plug_disk(id, &daemon.socket(id), slot, more)?;
    let name = if slot == 1 { "vda" } else { "vdb" };
    vm.run(&until(&format!("[ -b /dev/{name} ]"))).map(drop)
}

/// A part with one disk `a` and one script.
fn one_disk(
    bed: &Bed,
    vm: &Vm,
    daemon: &Daemon,
    queues: u16,
    script: &str,
    arguments: &[(&str, &str)],
) -> Result<()> {
    plug(vm, daemon, "a", 1, json!({ "num-queues": queues }))?;
    vm.script(bed, script, arguments)?;
    vm.unplug("a")
}

fn fio_memory(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("fio-memory", &memory("a", "256M", 2))?;
    one_disk(bed, vm, &daemon, 2, "fio", &fio_size())?;
    daemon.stop()
}

/// A file system, checked by the guest, and on the image that it left by the host's own tools.
fn ext4(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("ext4", &file("a", "512M", 1))?;
    one_disk(bed, vm, &daemon, 1, "ext4", &[])?;
    let image = image(&daemon, "a");
    let checked = host("e2fsck", &["-f", "-n", &image]).map(|_| "");
    bed.check("fsck-on-host", checked);
    daemon.stop()
}

fn image(daemon: &Daemon, id: &str) -> String {
    daemon.dir().join(format!("images/{id}.img")).display().to_string()
}

/// Noise from one disk to another, 256 MiB, or a gigabyte.
fn dd(bed: &Bed, vm: &Vm) -> Result<()> {
    let mib = bed.often(256, 1024);
    let noise = bed.folder().join("noise.img");
    let noise_name = noise.display().to_string();
    // Not zeroes: each block is different.
    host(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={noise_name}"),
            "bs=1M",
            &format!("count={mib}"),
            "status=none",
        ],
    )?;
    let first = disk("a", &format!("path = \"{noise_name}\"\nreadonly = true"));
    let mut daemon = Daemon::start("dd", &(first + &memory("b", &format!("{mib}M"), 1)))?;
    let sum = host("cksum", &[&noise_name])?;
    let sum = sum.split(' ').next().unwrap_or_default();
    plug(vm, &daemon, "a", 1, json!({}))?;
    plug(vm, &daemon, "b", 2, json!({}))?;
    vm.script(bed, "dd", &[("cksum", sum), ("mib", &mib.to_string())])?;
    vm.unplug("a")?;
    vm.unplug("b")?;
    std::fs::remove_file(noise)?;
    daemon.stop()
}

/// The disk grows while it is in use, and the guest sees it without doing anything.
fn resize(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("resize", "")?;
    daemon.ask("disk add a --backend memory --size 64M")?;
    plug(vm, &daemon, "a", 1, json!({}))?;
    let (before, after) = ((64 * 2048).to_string(), (96 * 2048).to_string());
    let script = vm.begin_script("resize", &[("before", &before), ("after", &after)])?;
    vm.await_said("resize")?;
    daemon.ask("disk resize a 96M")?;
    vm.end_script(bed, script, "")?;
    vm.unplug("a")?;
    daemon.stop()
}

/// A second disk comes, goes and comes again while the first one works.
fn hotplug(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("hotplug", &(file("a", "64M", 1) + &memory("b", "64M", 1)))?;
    plug(vm, &daemon, "a", 1, json!({}))?;
    let script = vm.begin_script("hotplug", &[])?;
    vm.await_said("plug")?;
    vm.plug_disk("b", &daemon.socket("b"), 2, json!({}))?;
    vm.await_said("unplug")?;
    vm.unplug("b")?;
    vm.await_said("plug-again")?;
    vm.plug_disk("b", &daemon.socket("b"), 2, json!({}))?;
    vm.end_script(bed, script, "")?;
    vm.unplug("b")?;
    vm.unplug("a")?;
    daemon.stop()
}

/// A disk that may not be written: the guest knows, a write is refused, and the image is as it was.
fn readonly(bed: &Bed, vm: &Vm) -> Result<()> {
    let path = bed.folder().join("readonly.img");
    host(
        "dd",
        &["if=/dev/urandom", &format!("of={}", path.display()), "bs=1M", "count=64", "status=none"],
    )?;
    let before = host("cksum", &[&path.display().to_string()])?;
    let what = disk("a", &format!("path = \"{}\"\nreadonly = true", path.display()));
    let mut daemon = Daemon::start("readonly", &what)?;
    one_disk(bed, vm, &daemon, 1, "readonly", &[])?;
    bed.same("image-unchanged", host("cksum", &[&path.display().to_string()])?, before);
    daemon.stop()
}

fn packed(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("packed", &file("a", "256M", 2))?;
    plug(vm, &daemon, "a", 1, json!({ "num-queues": 2, "packed": true }))?;
    let queues = daemon.shown("a", "queues")?;
    let queues = queues.as_array().context("a disk has queues")?;
    let formats: Vec<&str> = queues.iter().filter_map(|queue| queue["format"].as_str()).collect();
    bed.same("ring-format", formats, vec!["packed"; 2]);
    vm.script(bed, "fio", &fio_size())?;
    vm.unplug("a")?;
    daemon.stop()
}

/// Discard and write zeroes; after fstrim the image holds little more than the file system's own blocks.
fn discard(bed: &Bed, vm: &Vm) -> Result<()> {
    let mut daemon = Daemon::start("discard", &file("a", "64M", 1))?;
    one_disk(bed, vm, &daemon, 1, "discard", &[])?;
    let held = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(image(&daemon, "a"))?) / 2;
    let little = if held < 16_384 {
        Ok(format!("{held} KiB held"))
    } else {
        Err(anyhow::anyhow!("the image still holds {held} KiB after fstrim"))
    };
    bed.check("blocks-given-back", little);
    let discards = daemon.shown("a", "counters")?["discards"].as_u64();
    bed.same("counted", discards > Some(0), true);
    daemon.stop()
}

/// What a disk says of itself; and its cache, which the guest switches off and on.
fn identity(bed: &Bed, vm: &Vm) -> Result<()> {
    let serial = "SIDECORE-TEST-0001";
    let what = memory("a", "64M", 1) + &format!("serial = \"{serial}\"\n");
    let mut daemon = Daemon::start("identity", &what)?;
    let sectors = (64 * 2048).to_string();
    let arguments = [("sectors", sectors.as_str()), ("serial", serial), ("wce", "1")];
    one_disk(bed, vm, &daemon, 1, "identity", &arguments)?;
    daemon.stop()
}

/// The partition table is made as on a disk with sectors of 4,096 bytes: read with 512, there is none.
fn block_size(bed: &Bed, vm: &Vm) -> Result<()> {
    let path = bed.folder().join("sectors.img");
    std::fs::File::create(&path)?.set_len(64 << 20)?;
    let Some(device) = loop_device(&path) else {
        bed.skipped("", "needs root and loop devices with sectors of 4,096 bytes");
        return Ok(());
    };
    let table = "printf 'label: gpt\\nstart=1024, size=8192\\n' | sfdisk --quiet";
    let made = host("sh", &["-c", &format!("{table} {device}")]);
    host("losetup", &["-d", &device])?;
    made?;
    let what = disk("a", &format!("path = \"{}\"\nblock_size = 4096", path.display()));
    let mut daemon = Daemon::start("sectors", &what)?;
    let (first, size) = ((1024 * 8).to_string(), (8192 * 8).to_string());
    one_disk(bed, vm, &daemon, 1, "block_size", &[("first", &first), ("size", &size)])?;
    daemon.stop()
}

/// A loop device of those sectors, if this machine has them.
fn loop_device(image: &Path) -> Option<String> {
    let image = image.display().to_string();
    let made = host("losetup", &["--show", "--find", "--sector-size", "4096", &image]);
    made.ok().map(|name| name.trim().to_string())
}
