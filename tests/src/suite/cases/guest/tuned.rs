//! `sidecore-tune`, as it is shipped, in a guest: what it sets is set by a real kernel, and what it takes back is as it
//! was, also where it was killed.
//!
//! Not the interrupts of a NIC's queues: emulated guests' NICs have none of their own ([`NicOptions`]).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::image::Tree;
use testing::vm::{Boot, Kernel, NicOptions, Vm, build_folder};

use super::{memory, other_kernel};
use crate::suite::programs::Programs;

/// Where it is in the guest.
const PROGRAM: &str = "/usr/bin/sidecore-tune";
/// Where its journal is.
const JOURNAL: &str = "/var/lib/sidecore-tune/journal";
/// Times that it is killed, each when its journal has two more records.
const KILLS: usize = 10;
/// All rules that set something.
const ALL: &str = "--rule clocksource --rule nmi-watchdog --rule soft-watchdog --rule halt-poll \
    --rule cpuidle-governor --rule block-scheduler --rule write-back-throttling \
    --rule completion-affinity --rule nic-queues --rule nic-offloads --rule gro-timers \
    --rule nic-coalescing --rule irq-affinity";

/// Everything that the kernel shows of what it might have set, and of what is beside that.
const VALUES: &str = "
    for file in /sys/block/vd*/queue/* /sys/block/vd*/queue/iosched/* /proc/sys/kernel/*watchdog* \
        /sys/devices/system/clocksource/clocksource0/* /sys/devices/system/cpu/cpuidle/* \
        /sys/module/haltpoll/parameters/* /proc/irq/[0-9]*/smp_affinity_list \
        /sys/class/net/eth*/gro_flush_timeout /sys/class/net/eth*/napi_defer_hard_irqs \
        /sys/class/net/eth*/queues/*/[rx]ps_cpus; do
        [ -f \"$file\" ] && echo \"$file $(cat \"$file\" 2>&1)\"
    done >/tmp/values
    for nic in /sys/class/net/eth*; do
        for what in -k -l -c; do ethtool $what \"${nic##*/}\" 2>&1; done
    done >>/tmp/values
    cksum </tmp/values; wc -l </tmp/values";

/// Debian 12's kernel.
pub(super) fn tuned(bed: &Bed) -> Result<()> {
    in_guest(bed, &Kernel::stock(), &build_folder().join("guest/kernel"))
}

/// Debian's newest cloud kernel.
pub(super) fn tuned_6_12(bed: &Bed) -> Result<()> {
    match other_kernel(bed)? {
        Some(kernel) => in_guest(bed, &kernel, &build_folder().join("guest/other/kernel")),
        None => Ok(()),
    }
}

/// In a guest with that kernel, whose package is unpacked in `package`.
fn in_guest(bed: &Bed, kernel: &Kernel, package: &Path) -> Result<()> {
    let nic = "[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"n\"\nmac = \"52:54:00:00:00:07\"\nswitch = \"lan\"\n\
        queues = 2\n";
    let config = memory("a", "64M", 1) + &memory("b", "64M", 2) + nic;
    let mut daemon = Daemon::start("tuned", &config)?;
    let options = NicOptions { queues: 2, ..NicOptions::new("52:54:00:00:00:07") };
    let boot = Boot::new("one")
        .kernel(Kernel { initramfs: image(bed, kernel, package)?, ..kernel.clone() })
        .cpus("2")
        .disk(daemon.socket("a"), "")
        .disk(daemon.socket("b"), "num-queues=2")
        .nic(daemon.socket("n"), &options);
    let vm = Vm::boot(bed.folder(), boot)?;
    unsettle(&vm)?;
    let before = values(&vm)?;
    bed.check("checked", checked(bed, &vm, &before));
    bed.check("applied", applied(bed, &vm));
    bed.check("undone", undone(&vm, &before));
    bed.check("tried", tried(&vm, &before));
    bed.check("killed", killed(bed, &vm, &before));
    vm.off()?;
    daemon.stop()
}

/// The kernel's guest and the program.
fn image(bed: &Bed, kernel: &Kernel, package: &Path) -> Result<PathBuf> {
    let programs = Programs::known()?;
    let program = &programs.plain("sidecore-tune")?.path;
    let size = std::fs::metadata(program)?.len();
    ensure!(size < 4 << 20, "{} has {size} bytes: a guest's program is small", program.display());
    let mut tree = Tree::new(&bed.folder().join("tuned"), package)?;
    tree.modules("deadline", &["mq-deadline"])?;
    tree.file(program, PROGRAM.trim_start_matches('/'))?;
    let image = bed.folder().join("tuned.cpio");
    tree.pack_after(&kernel.initramfs, &image)?;
    Ok(image)
}

/// Sets some of what rules look at to what an untouched guest has not.
fn unsettle(vm: &Vm) -> Result<()> {
    vm.run(
        "while read -r module; do insmod \"/deadline/$module\" || exit 1; done </deadline/order
        echo mq-deadline >/sys/block/vda/queue/scheduler
        ethtool -K eth0 tso off; ethtool -L eth0 combined 1
        for irq in $(awk -F: '/virtio[0-9]*-input/ { print $1 }' /proc/interrupts); do
            echo 0-1 >/proc/irq/$irq/smp_affinity_list
        done
        echo 100 >/sys/block/vda/queue/nr_requests",
    )
    .map(drop)
}

/// A number for all values.
fn values(vm: &Vm) -> Result<String> {
    vm.run(VALUES)
}

/// Compares with all values as they were; on a difference says in what lines.
fn same(vm: &Vm, before: &str, when: &str) -> Result<()> {
    let now = values(vm)?;
    if now == before {
        return Ok(());
    }
    let said = vm.run("diff /tmp/before /tmp/values; true")?;
    anyhow::bail!("{when} the guest is not as it was: {said}")
}

fn checked(bed: &Bed, vm: &Vm, before: &str) -> Result<String> {
    vm.run("cp /tmp/values /tmp/before")?;
    let said = vm.run(&format!("{PROGRAM} check --json --rule block-scheduler; echo $?"))?;
    let (json, status) = said.trim_end().rsplit_once('\n').context("check said nothing")?;
    bed.same("check-status", status.trim(), "1");
    let value: Value = serde_json::from_str(json)?;
    bed.same("obstacles", value["obstacles"].to_string().as_str(), "[]");
    let of = |name: &str| {
        let all = value["findings"].as_array().into_iter().flatten();
        all.filter(|it| it["subject"] == name).map(|it| it["state"].to_string()).collect::<String>()
    };
    bed.same("scheduler-of-one-queue", of("vda").as_str(), "\"settable\"");
    bed.same("scheduler-of-two-queues", of("vdb").as_str(), "\"good\"");
    same(vm, before, "after `check`")?;
    vm.run(&format!("{PROGRAM} check; true"))
}

fn applied(bed: &Bed, vm: &Vm) -> Result<String> {
    let said = vm.run(&format!("{PROGRAM} apply {ALL}"))?;
    let read = |file: &str| vm.run(&format!("cat {file}"));
    let scheduler = read("/sys/block/vda/queue/scheduler")?;
    bed.check("scheduler", is(scheduler.contains("[none]"), &scheduler));
    let timer = read("/sys/class/net/eth0/gro_flush_timeout")?;
    bed.same("gro-timer", timer.trim(), "20000");
    let pairs = vm.run("ethtool -l eth0 | tail -n 1")?;
    bed.check("pairs", is(pairs.trim().ends_with('2'), &pairs));
    let offload = vm.run("ethtool -k eth0 | grep tx-tcp-segmentation:")?;
    bed.check("offload", is(offload.contains(": on"), &offload));
    let again = vm.run(&format!("{PROGRAM} apply {ALL} && {PROGRAM} check >/dev/null"))?;
    bed.same("twice", again.trim(), "nothing is left for `apply` to set; nothing was changed");
    Ok(said)
}

fn is(holds: bool, said: &str) -> Result<&str> {
    ensure!(holds, "{said}");
    Ok(said)
}

fn undone(vm: &Vm, before: &str) -> Result<String> {
    let said = vm.run(&format!("{PROGRAM} undo && [ ! -e {JOURNAL} ]"))?;
    same(vm, before, "after `undo`")?;
    Ok(said)
}

/// One short trial, whatever comes of it.
fn tried(vm: &Vm, before: &str) -> Result<String> {
    let words = "try --rule block-scheduler --measure block:vda --rounds 4 --seconds 1";
    let said = vm.run(&format!("{PROGRAM} {words} && {PROGRAM} undo >/dev/null"))?;
    same(vm, before, "after `try` and `undo`")?;
    Ok(said)
}

/// Killed again and again, each time when there is a little more of its journal; and while it takes that back.
fn killed(bed: &Bed, vm: &Vm, before: &str) -> Result<String> {
    let mut open = 0;
    for at in 0..KILLS {
        let records = 1 + 2 * at;
        let said = vm.run(&format!(
            "{PROGRAM} apply {ALL} >/dev/null 2>&1 & it=$!
            until [ \"$(cat {JOURNAL} 2>/dev/null | wc -l)\" -ge {records} ]; do
                kill -0 $it 2>/dev/null || break
            done
            kill -9 $it; wait $it; [ -s {JOURNAL} ] && echo open
            {PROGRAM} undo >/dev/null 2>&1 & it=$!; usleep {at}0000; kill -9 $it; wait $it
            {PROGRAM} undo >/dev/null && [ ! -e {JOURNAL} ]"
        ))?;
        open += usize::from(said.contains("open"));
        same(vm, before, &format!("after a kill at {records} records and `undo`"))?;
    }
    bed.same("killed-in-the-midst", open, KILLS);
    Ok(format!("{open} of {KILLS} left something to undo"))
}
