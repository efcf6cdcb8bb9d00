//! What a platform does to a guest that is at work: a processor and memory that come, sleep, another kernel.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use testing::bed::Bed;
use testing::daemon::{Daemon, pause};
use testing::image::Tree;
use testing::place::{Place, until};
use testing::qmp::Qmp;
use testing::vm::{Boot, EMULATED, Kernel, Vm, boot_words, build_folder, has_kvm};

use super::file;

/// The longest sleep, with the presses of the power button that end it.
const SLEEP: Duration = Duration::from_secs(240);
/// From one press to the next, and twice as long to each one after: pressed too early a button wakes nobody.
const PRESS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(100);

/// A processor and memory come, the machine sleeps and wakes, all while every block is verified. Then another
/// kernel takes the disk over from one that is at work.
pub(super) fn platform(bed: &Bed) -> Result<()> {
    let mut daemon = Daemon::start("platform", &file("a", "64M", 1))?;
    let boot = Boot::new("one")
        .kernel(Kernel { initramfs: image(bed)?, ..Kernel::stock() })
        .cpus("2,maxcpus=3,sockets=3,cores=1,threads=1")
        .qemu(["-m", "size=512M,slots=1,maxmem=1G"])
        .disk(daemon.socket("a"), "");
    let vm = Vm::boot(bed.folder(), boot)?;
    load_begins(&vm)?;
    bed.check("load-before", load_goes_on(&vm));
    bed.check("processor-came", processor_comes(&vm));
    bed.check("load-with-processor", load_goes_on(&vm));
    bed.check("memory-came", memory_comes(&vm));
    bed.check("load-with-memory", load_goes_on(&vm));
    bed.check("slept-and-woke", sleeps(&vm));
    bed.check("load-after-sleep", load_goes_on(&vm));
    bed.check("load-verified", load_ends(&vm));
    bed.check("no-complaint", vm.no_complaint().map(|()| ""));
    load_begins(&vm)?;
    bed.check("load-before-kexec", load_goes_on(&vm));
    let words = boot_words("run=firmware arg.disk=1");
    let load = "/sbin/kexec -l /next/vmlinuz --initrd=/next/initramfs";
    bed.check("kexec-loaded", vm.asked(&format!("{load} --command-line='{words}'")));
    vm.run("( sleep 1; /sbin/kexec -e ) >/dev/null 2>&1 &")?;
    // The driver of the kernel that leaves breaks its device with requests in flight, and says so.
    vm.off_after_another(bed)?;
    daemon.stop()
}

/// The stock guest with kexec, a kernel and a small initramfs for it.
fn image(bed: &Bed) -> Result<std::path::PathBuf> {
    let guest = build_folder().join("guest");
    let small = bed.folder().join("small.cpio");
    let mut tree = Tree::bare(&bed.folder().join("small"), &guest.join("kernel"))?;
    tree.modules("modules", &["virtio_pci", "virtio_blk"])?;
    tree.pack(&small)?;
    let mut tree = Tree::new(&bed.folder().join("platform"), &guest.join("kernel"))?;
    tree.file(&small, "next/initramfs")?;
    tree.file(&Kernel::stock().vmlinuz, "next/vmlinuz")?;
    let kexec = guest.join("kexec/sbin/kexec");
    tree.file(&kexec, "sbin/kexec").context("kexec-tools is not unpacked: ./x test guest")?;
    tree.libraries(&kexec)?;
    tree.modules("button", &["button"])?;
    let image = bed.folder().join("platform.cpio");
    tree.pack_after(&Kernel::stock().initramfs, &image)?;
    Ok(image)
}

/// Rounds of fio --verify, until they are told to end or one finds a fault.
fn load_begins(vm: &Vm) -> Result<()> {
    let round = "fio --ioengine=libaio --direct=1 --filename=/dev/vda --name=load --rw=randwrite \
        --bssplit=512/5:4k/60:16k/20:64k/10:256k/5 --iodepth=32 --size=4m --offset_increment=8m \
        --numjobs=2 --verify=crc32c --verify_fatal=1 --do_verify=1 --randrepeat=0 >/tmp/load.out 2>&1";
    vm.run(&format!(
        "rm -f /tmp/over /tmp/bad /tmp/ended; echo 0 >/tmp/rounds
        {{ n=0; while [ ! -e /tmp/over ]; do
            {round} || {{ cp /tmp/load.out /tmp/bad; break; }}
            n=$((n + 1)); echo $n >/tmp/rounds
        done; echo over >/tmp/ended; }} >/dev/null 2>&1 &"
    ))
    .map(drop)
}

/// Another whole round ends.
fn load_goes_on(vm: &Vm) -> Result<String> {
    let before: u64 = vm.run("cat /tmp/rounds")?.trim().parse()?;
    let more = format!("{{ [ -e /tmp/bad ] || [ \"$(cat /tmp/rounds)\" -gt {} ]; }}", before + 1);
    vm.run_within(SLEEP, &format!("{}; ! cat /tmp/bad 2>/dev/null", until(&more)))
}

fn load_ends(vm: &Vm) -> Result<String> {
    let ended = until("[ -e /tmp/ended ]");
    vm.run(&format!("touch /tmp/over; {ended}; ! cat /tmp/bad 2>/dev/null"))
}

fn processor_comes(vm: &Vm) -> Result<String> {
    let model = if has_kvm() { "host" } else { EMULATED };
    let arguments = json!({
        "driver": format!("{model}-x86_64-cpu"), "id": "cpu2",
        "socket-id": 2, "core-id": 0, "thread-id": 0,
    });
    vm.qmp("device_add", &arguments)?;
    let online = "/sys/devices/system/cpu/cpu2/online";
    let there = until("[ -d /sys/devices/system/cpu/cpu2 ]");
    vm.run(&format!("{there}; [ \"$(cat {online})\" = 1 ] || echo 1 >{online}"))
}

fn memory_comes(vm: &Vm) -> Result<String> {
    let size = 256u64 << 20;
    let memory = json!({
        "qom-type": "memory-backend-memfd", "id": "more", "size": size, "share": true,
    });
    vm.qmp("object-add", &memory)?;
    vm.qmp("device_add", &json!({ "driver": "pc-dimm", "id": "dimm", "memdev": "more" }))?;
    let total = "awk '/MemTotal/ { print int($2 / 1024) }' /proc/meminfo";
    let online = "for m in /sys/devices/system/memory/memory*; do
        grep -q offline $m/state && echo online_movable >$m/state 2>/dev/null; done";
    vm.run(&until(&format!("{{ {online}; [ \"$({total})\" -gt 600 ]; }}")))
}

/// All devices are frozen and brought back, which a driver does by a reset; the power button wakes it. From S3 the
/// firmware of an emulated machine with several processors does not come back.
fn sleeps(vm: &Vm) -> Result<String> {
    vm.run("while read -r module; do insmod \"/button/$module\" || exit 1; done </button/order")?;
    // The button is pressed by a connection of its own thread.
    drop(vm.monitor()?);
    vm.let_monitor_go();
    let (path, awake) = (vm.monitor_path(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| press(&path, &awake));
        let slept = vm.run_within(
            SLEEP,
            "before=$(cat /sys/power/suspend_stats/success)
            # A button that is pressed while devices are frozen calls it off.
            n=0; until echo freeze >/sys/power/state; do n=$((n + 1)); [ $n -lt 20 ] || exit 1; done
            [ \"$(cat /sys/power/suspend_stats/success)\" -gt \"$before\" ]",
        );
        awake.store(true, Ordering::Relaxed);
        slept
    })
}

/// Presses the power button until the guest is awake.
fn press(monitor: &Path, awake: &AtomicBool) {
    let (mut waited, mut gap) = (Duration::ZERO, PRESS);
    while !awake.load(Ordering::Relaxed) {
        pause(LOOK);
        waited += LOOK;
        if waited >= gap {
            (waited, gap) = (Duration::ZERO, gap * 2);
            let asked =
                Qmp::connect(monitor).and_then(|mut qmp| qmp.ask("system_powerdown", &json!({})));
            drop(asked);
        }
    }
}
