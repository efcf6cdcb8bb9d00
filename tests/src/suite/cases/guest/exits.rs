//! `sidecore exits` on real kernels: their verifiers take its programs, what these count is what the kernel counts, and
//! nothing is left when it is killed.
//!
//! The guest of this machine is the host of another one: KVM in it is real, on a processor that may be emulated. That
//! one's guest is `tests/guest/vmm.c`, of which each function makes one kind of exit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::bed::Bed;
use testing::daemon::sidecore_binary;
use testing::image::Tree;
use testing::vm::{Boot, Kernel, Vm, build_folder, has_kvm};

use super::other_kernel;

/// Functions of `tests/guest/vmm.c`, as `/proc/kallsyms` would have them.
const SYMBOLS: &str = "\
ffffffff80010000 T f_out
ffffffff80010100 T f_mmio
ffffffff80010200 T f_hlt
ffffffff80010300 D end
";
/// Longer than an order takes that counts for seconds on a machine that does little else.
const ORDER: Duration = Duration::from_secs(240);
/// Without what an emulated one does wrong with KVM in it.
const EMULATED: &str = "max,la57=off,vgif=off";
/// Has KVM, and its events twice: to attach a first or second program beside a guest rewrites code that it runs, which
/// an emulated processor may not survive.
const PREPARE: &str = "
    while read -r module; do insmod /kvm/$module; done </kvm/order 2>/tmp/insmod
    [ -e /dev/kvm ] || { echo 0; exit 0; }
    mount -t tracefs tracefs /sys/kernel/tracing; mount -t debugfs debugfs /sys/kernel/debug
    echo 1 >/proc/sys/net/core/bpf_jit_kallsyms
    for instance in one two; do
        mkdir /sys/kernel/tracing/instances/$instance && cd /sys/kernel/tracing/instances/$instance || exit 1
        echo 0 >tracing_on
        for event in kvm/kvm_exit kvm/kvm_entry kvm/kvm_vcpu_wakeup sched/sched_switch kvm/kvm_nested_vmexit \
            kvm/kvm_mmio kvm/kvm_fast_mmio kvm/kvm_msr kvm/kvm_hypercall kvm/kvm_cpuid kvm/kvm_apic \
            kvm/kvm_page_fault; do
            echo 1 >events/$event/enable || exit 1
        done
    done
    echo 1";
/// What is in the kernel of programs, maps and events.
const LEFT: &str = "
    echo $(grep -c '\\[bpf\\]$' /proc/kallsyms) \
        $(cat /proc/[0-9]*/fdinfo/* 2>/dev/null | grep -c ^map_id) \
        $(ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c perf_event)";

/// Debian 12's kernel.
pub(super) fn exits(bed: &Bed) -> Result<()> {
    in_guest(bed, &Kernel::stock(), &build_folder().join("guest/kernel"))
}

/// Debian's newest cloud kernel.
pub(super) fn exits_6_12(bed: &Bed) -> Result<()> {
    match other_kernel(bed)? {
        Some(kernel) => in_guest(bed, &kernel, &build_folder().join("guest/other/kernel")),
        None => Ok(()),
    }
}

fn in_guest(bed: &Bed, kernel: &Kernel, package: &Path) -> Result<()> {
    let boot = Boot::new("host")
        .kernel(Kernel { initramfs: image(bed, kernel, package)?, ..kernel.clone() })
        .cpu(if has_kvm() { "host" } else { EMULATED })
        .cpus("2");
    let vm = Vm::boot(bed.folder(), boot)?;
    if vm.run_within(ORDER, PREPARE)?.trim() != "1" {
        let why = vm.run("cat /tmp/insmod; true")?;
        bed.skipped("", format!("no KVM in a guest here: {}", why.trim()));
        return vm.off();
    }
    vm.run(&format!("printf '{SYMBOLS}' >/tmp/symbols"))?;
    let pid = vm.run("vmm >/tmp/vmm 2>&1 & echo $!")?.trim().to_string();
    bed.check("counted", counted(bed, &vm, &pid));
    bed.check("nothing-left", nothing_left(&vm, &pid));
    bed.check("ended-meanwhile", ended_meanwhile(&vm, &pid));
    vm.off()
}

/// The kernel's guest, the program and KVM.
fn image(bed: &Bed, kernel: &Kernel, package: &Path) -> Result<PathBuf> {
    let mut tree = Tree::new(&bed.folder().join("host"), package)?;
    // The one for the other processor does not load.
    tree.modules("kvm", &["kvm-amd", "kvm-intel"])?;
    tree.stripped(&sidecore_binary()?, "usr/bin/sidecore")?;
    let vmm = bed.folder().join("vmm");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/vmm.c");
    let words = ["-O2", "-Wall", "-Werror", "-static", "-o"];
    let status = Command::new("cc").args(words).arg(&vmm).arg(source).status();
    let status = status.context("starting cc (Debian: apt-get install gcc libc6-dev)")?;
    ensure!(status.success(), "vmm.c does not compile");
    tree.file(&vmm, "usr/bin/vmm")?;
    let image = bed.folder().join("host.cpio");
    tree.pack_after(&kernel.initramfs, &image)?;
    Ok(image)
}

/// Each exit is in a row or said not to be, the functions have theirs, and the kernel counted as many.
fn counted(bed: &Bed, vm: &Vm, pid: &str) -> Result<String> {
    let options = "--kallsyms /tmp/symbols --flame /tmp/exits.svg --json";
    let said = vm.run_within(ORDER, &format!("sidecore exits --vm {pid} --for 3s {options}"))?;
    bed.same("flame", vm.run("grep -c '<title>f_out: ' /tmp/exits.svg")?.trim(), "1");
    let again = format!("sidecore exits --vm {pid} --for 1s {options} 2>&1; echo \"ended: $?\"");
    let refused = vm.run_within(ORDER, &again)?;
    ensure!(refused.contains("File exists") && refused.contains("ended: 2"), "{refused}");
    let report: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let rows: Vec<&Value> = report["rows"].as_array().into_iter().flatten().collect();
    let number = |value: &Value| value.as_u64().context("a number");
    let mut sum = number(&report["edge"]["unfinished"])?;
    for row in rows.iter().copied().chain(report["lost"].as_array().into_iter().flatten()) {
        sum += number(&row["exits"])?;
    }
    bed.same("sum", sum, number(&report["exits"])?);
    bed.same("check", report["check"]["state"].as_str().unwrap_or_default(), "same");
    bed.same("notes", report["notes"].to_string().as_str(), "[]");
    bed.same("without-time", number(&report["without_time"])?, 0);
    let of = |function: &str, reason: &str, detail: &str| {
        let is_it = |row: &&&Value| {
            row["function"] == function && row["reason"] == reason && row["detail"] == detail
        };
        rows.iter().find(is_it).map_or(Ok(0), |row| number(&row["exits"]))
    };
    let mmio = rows.iter().find(|row| row["function"] == "f_mmio").context("f_mmio has a row")?;
    let reason = mmio["reason"].as_str().unwrap_or_default();
    bed.same("mmio", mmio["detail"].as_str().unwrap_or_default(), "0x6000f0");
    let (out, mmio, halts) = (
        of("f_out", "port I/O", "0x608")?,
        of("f_mmio", reason, "0x6000f0")?,
        of("f_hlt", "HLT", "")?,
    );
    // The loop is counted from anywhere in it to anywhere in it.
    ensure!(mmio > 0 && mmio.abs_diff(halts) <= 1 && out.abs_diff(3 * mmio) <= 3, "{report:#}");
    Ok(format!("{out} exits by a port, {mmio} by MMIO, {halts} by HLT"))
}

/// Killed while it counts, it leaves nothing in the kernel.
fn nothing_left(vm: &Vm, pid: &str) -> Result<String> {
    let left = || vm.run_within(ORDER, LEFT).map(|said| said.trim().to_string());
    let before = left()?;
    vm.run(&format!("sidecore exits --vm {pid} --for 10m >/tmp/killed 2>&1 & echo $! >/tmp/pid"))?;
    // All are attached when the last one is.
    let attached = "grep -q '_kvm_exit.*\\[bpf\\]$' /proc/kallsyms && \
        [ $(ls -l /proc/$(cat /tmp/pid)/fd | grep -c perf_event) = 12 ]";
    vm.run_within(ORDER, &testing::place::until(attached))?;
    let during = left()?;
    vm.run("kill -9 $(cat /tmp/pid)")?;
    let gone = format!("[ \"$({LEFT})\" = '{before}' ]");
    vm.run_within(ORDER, &testing::place::until(&gone))?;
    ensure!(before == "0 0 0" && during == "12 4 12", "before {before}, during {during}");
    Ok(format!("programs, maps, events: {before}, then {during}, then {before}"))
}

/// A VM that ends is told as far as it was there.
fn ended_meanwhile(vm: &Vm, pid: &str) -> Result<String> {
    vm.run(&format!("sidecore exits --vm {pid} --for 10m >/tmp/ended 2>&1 & echo $! >/tmp/pid"))?;
    vm.run_within(ORDER, &testing::place::until("grep -q '_kvm_exit.*\\[bpf\\]$' /proc/kallsyms"))?;
    vm.run(&format!("kill -9 {pid}"))?;
    vm.run_within(ORDER, &testing::place::until("[ ! -e /proc/$(cat /tmp/pid) ]"))?;
    let said = vm.run("cat /tmp/ended")?;
    ensure!(said.contains("The VM has ended meanwhile."), "{said}");
    let again = vm.run(&format!("sidecore exits --vm {pid}; echo $?"))?;
    ensure!(again.trim().ends_with('1'), "{again}");
    Ok(String::new())
}
