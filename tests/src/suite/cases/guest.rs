//! Real guests: a stock Debian kernel in QEMU, on disks of the daemon.
//!
//! What is said in a guest is in `tests/guest/scripts`. Cases that need no boot of their own share the guest of
//! [`shared`], into which each one's disks are plugged.

mod exits;
mod parts;
mod platform;
mod tuned;

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testing::bed::{Bed, tests_all};
use testing::daemon::{Daemon, pause};
use testing::timing::{self, PATIENCE};
use testing::vm::{Boot, Kernel, Vm, build_folder, short};

use crate::suite::{Built, Case, Group};

/// The group.
pub(super) const GROUP: Group = Group::new(
    "guest",
    "real guests (stock Debian kernel in QEMU) on disks of the daemon",
    &[
        Case::run("shared", parts::shared).parts(&parts::NAMES).usually(100),
        Case::run("fio", fio).usually(25),
        Case::command("demo", DEMO).needs_built(Built::Tests).within(1200).usually(60),
        Case::run("queues-64", queues_64),
        Case::run("two-guests", two_guests).usually(35),
        Case::run("pasted", pasted),
        Case::run("platform", platform::platform).usually(60),
        Case::run("kernel-6-12", kernel_6_12).usually(45),
        Case::run("exits", exits::exits).usually(60),
        Case::run("exits-6-12", exits::exits_6_12).usually(60),
        Case::run("tuned", tuned::tuned).needs_built(Built::Tune).usually(60),
        Case::run("tuned-6-12", tuned::tuned_6_12).needs_built(Built::Tune).usually(60),
    ],
);

/// With the compiler that has built the crates ([`crate::suite::build`]), or they were built again.
const DEMO: &[&str] = &["env", "RUSTC_WORKSPACE_WRAPPER=x.d/compiler", "./x", "demo"];

/// One disk of a daemon's file: `what` are its lines.
pub(super) fn disk(id: &str, what: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\n{what}\n")
}

/// A disk of memory.
pub(super) fn memory(id: &str, size: &str, queues: u16) -> String {
    disk(id, &format!("backend = \"memory\"\nsize = \"{size}\"\nqueues = {queues}"))
}

/// A disk on a new file in the daemon's folder `images`.
pub(super) fn file(id: &str, size: &str, queues: u16) -> String {
    disk(id, &format!("path = \"images/{id}.img\"\nsize = \"{size}\"\nqueues = {queues}"))
}

/// How much the script `fio` writes and compares: 72 MiB, or three times as much with `--all`.
fn fio_size() -> [(&'static str, &'static str); 1] {
    [("times", if tests_all() { "3" } else { "1" })]
}

/// Random writes of mixed sizes on a disk on a file, read back and compared.
fn fio(bed: &Bed) -> Result<()> {
    let mut daemon = Daemon::start("fio", &file("a", "256M", 2))?;
    let boot = Boot::new("one").disk(daemon.socket("a"), "num-queues=2");
    let vm = Vm::boot(bed.folder(), boot)?;
    vm.script(bed, "fio", &fio_size())?;
    vm.off()?;
    daemon.stop()
}

/// As many queues as Linux takes: no more than it may have CPUs, of which some are there.
fn queues_64(bed: &Bed) -> Result<()> {
    let mut daemon = Daemon::start("queues", &memory("a", "128M", 64))?;
    let boot = Boot::new("one").cpus("4,maxcpus=64").disk(daemon.socket("a"), "num-queues=64");
    let vm = Vm::boot(bed.folder(), boot)?;
    vm.script(bed, "queues", &[("queues", "64"), ("jobs", "4")])?;
    vm.off()?;
    daemon.stop()
}

/// What `--print qemu` says is pasted into a shell as it is.
fn pasted(bed: &Bed) -> Result<()> {
    let mut daemon = Daemon::start("pasted", "")?;
    let image = daemon.dir().join("images/pasted.img");
    let said = daemon.says(&format!(
        "disk add pasted --path {} --size 64M --queues 2 --memory 512M --print qemu",
        image.display()
    ))?;
    let vm = Vm::boot(bed.folder(), Boot::new("one").pasted(shell_words(&said)?))?;
    let sectors = (64 * 2048).to_string();
    vm.script(bed, "identity", &[("sectors", &sectors), ("serial", "pasted"), ("wce", "1")])?;
    vm.off()?;
    daemon.stop()
}

/// The words that a shell makes of a line.
///
/// # Errors
/// It is no line of a shell's.
pub(super) fn shell_words(line: &str) -> Result<Vec<String>> {
    let script = format!("printf '%s\\0' {line}");
    let output = Command::new("bash").args(["-c", &script]).output()?;
    ensure!(output.status.success(), "{line:?} is no line of a shell's");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_terminator('\0').map(String::from).collect())
}

/// Two guests verify at the same time.
fn two_guests(bed: &Bed) -> Result<()> {
    let disks = memory("a", "192M", 2) + &file("b", "192M", 2);
    let mut daemon = Daemon::start("two", &disks)?;
    let boot = |name: &str, disk: &str| Boot::new(name).disk(daemon.socket(disk), "num-queues=2");
    let one = Vm::start(bed.folder(), boot("one", "a"))?;
    let two = Vm::start(bed.folder(), boot("two", "b"))?;
    one.ready()?;
    two.ready()?;
    let scripts = [one.begin_script("together", &[])?, two.begin_script("together", &[])?];
    let start = testing::clock::now_ns();
    let both = loop {
        if one.has_said("fio") && two.has_said("fio") {
            break Ok("");
        }
        if one.is_script_over(&scripts[0]) || two.is_script_over(&scripts[1]) {
            let late = || "one guest was done before the other one had begun".to_owned();
            break timing::judge(false, late).map(|()| "not at once, on this machine");
        }
        if u128::from(testing::clock::now_ns() - start) > PATIENCE.as_nanos() * 2 {
            break Err(anyhow::anyhow!("the guests did not both come to fio"));
        }
        pause(std::time::Duration::from_millis(20));
    };
    bed.check("both-at-once", both);
    let [first, second] = scripts;
    one.end_script(bed, first, "one-")?;
    two.end_script(bed, second, "two-")?;
    one.off()?;
    two.off()?;
    daemon.stop()
}

/// Split and packed rings with Debian's newest cloud kernel.
fn kernel_6_12(bed: &Bed) -> Result<()> {
    let Some(kernel) = other_kernel(bed)? else { return Ok(()) };
    let disks = file("a", "256M", 2) + &file("b", "256M", 2);
    let mut daemon = Daemon::start("newest", &disks)?;
    let boot = Boot::new("one").kernel(kernel).slots(1);
    let vm = Vm::boot(bed.folder(), boot)?;
    for (id, prefix, packed) in [("a", "", false), ("b", "packed-", true)] {
        vm.plug_disk(id, &daemon.socket(id), 1, json!({ "num-queues": 2, "packed": packed }))?;
        vm.run(&testing::place::until("[ -b /dev/vda ]"))?;
        let script = vm.begin_script("fio", &fio_size())?;
        vm.end_script(bed, script, prefix)?;
        vm.unplug(id)?;
    }
    vm.off()?;
    daemon.stop()
}

/// Debian's newest cloud kernel, which `./x` unpacks in `build/guest/other`, and a guest for it.
fn other_kernel(bed: &Bed) -> Result<Option<Kernel>> {
    let unpacked = build_folder().join("guest/other/kernel");
    let boot = std::fs::read_dir(unpacked.join("boot"));
    let found = boot.into_iter().flatten().flatten().map(|entry| entry.path()).find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
    });
    let Some(vmlinuz) = found else {
        bed.skipped("", "Debian has no newer cloud kernel here");
        return Ok(None);
    };
    let initramfs = bed.folder().join("other.cpio");
    let tree = testing::image::Tree::guest(&bed.folder().join("other"), &unpacked)?;
    tree.pack(&initramfs)?;
    bed.say(format!("guest: {}", vmlinuz.file_name().unwrap_or_default().to_string_lossy()));
    Ok(Some(Kernel { vmlinuz, initramfs }))
}

/// Runs a program of the host's: what it says.
///
/// # Errors
/// It fails.
pub(super) fn host(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program}: {}: {}", output.status, short(&(said + &wrong)));
    Ok(said)
}
