//! Guests under load, and `kill -9` of their daemon, of their VMM and of both.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testing::bed::{Bed, tests_all};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::fio;
use testing::image::Tree;
use testing::place::Place;
use testing::timing::judge;
use testing::vm::{Boot, Kernel, Vm, build_folder};

/// What of two disks differs.
const FORMATS: [(&str, &str); 2] = [("split", ""), ("packed", ",packed=on")];
/// Programs of the small guest.
const FOR_EXT4: [&str; 2] = ["/usr/sbin/mkfs.ext4", "/usr/sbin/e2fsck"];
/// And for other file systems.
const FOR_OTHERS: [&str; 4] =
    ["/usr/sbin/mkfs.xfs", "/usr/sbin/xfs_repair", "/usr/sbin/mkfs.btrfs", "/usr/bin/btrfs"];

fn disk(id: &str, size: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\npath = \"images/{id}.img\"\nsize = \"{size}\"\nqueues = 2\n")
}

/// Some time below `most`, which nothing else in the test depends on.
fn random_pause(most: Duration) {
    pause(Duration::from_nanos(now_ns() % most.as_nanos() as u64));
}

/// Two disks with two queues, one with split and one with packed rings, fio --verify in a file system on each; a kill
/// comes while requests of both are being served. The guest must not notice.
pub(super) fn daemon_killed(bed: &Bed) -> Result<()> {
    let kills = bed.often(12, 1000);
    let disks = FORMATS.map(|(id, _)| disk(id, "128M")).concat();
    let mut daemon = Daemon::start("killed", &disks)?;
    let mut boot = Boot::new("one");
    for (id, property) in FORMATS {
        boot = boot.disk(daemon.socket(id), &format!("num-queues=2{property}"));
    }
    let vm = Vm::boot(bed.folder(), boot)?;
    for (device, (id, _)) in ["vda", "vdb"].iter().zip(FORMATS) {
        vm.run(&format!("mkfs.ext4 -q -F /dev/{device} && mkdir /mnt/{id} && mount -t ext4 /dev/{device} /mnt/{id}"))?;
    }
    fio::begin_in(
        &vm,
        &FORMATS.map(|(id, _)| ["/mnt/", id].concat()).each_ref().map(String::as_str),
        4,
    )?;
    for kill in 1..=kills {
        for (id, _) in FORMATS {
            served(&daemon, id).with_context(|| format!("after {} kills", kill - 1))?;
        }
        random_pause(Duration::from_millis(500));
        daemon.kill()?;
        daemon.start_again()?;
        bed.say(format!("{kill} kills of {kills}"));
    }
    bed.check("fio-verify", fio::end(&vm));
    for (id, _) in FORMATS {
        let whole = format!(
            "disk=$(grep /mnt/{id} /proc/mounts | cut -d ' ' -f 1); umount /mnt/{id} && e2fsck -f -n $disk"
        );
        bed.check(&format!("{id}-fsck"), vm.asked(&whole));
    }
    vm.off()?;
    bed.passed("kills", format!("{kills} kills, of split and packed rings each"));
    daemon.stop()
}

/// Until the daemon that runs now has served some of that disk.
fn served(daemon: &Daemon, id: &str) -> Result<()> {
    await_that(&format!("a request of disk {id}"), || {
        Ok(daemon.shown(id, "counters")?["requests"].as_u64() > Some(0))
    })
}

/// The VMM goes; what it lent is given back, and the next one is served.
pub(super) fn vmm_killed(bed: &Bed) -> Result<()> {
    let rounds = bed.often(3, 25);
    let kernel = small_guest(bed)?;
    let mut daemon = Daemon::start("vmms", &disk("a", "128M"))?;
    let mut before = None;
    // Round 0 is for what the daemon makes once and keeps: a sidecore's io_uring.
    for round in 0..=rounds {
        let boot = Boot::new(&format!("vmm{round}")).memory_mib(256).kernel(kernel.clone());
        let vm = Vm::boot(bed.folder(), boot.disk(daemon.socket("a"), "num-queues=2"))?;
        if round == rounds {
            is_served(bed, &vm)?;
        }
        load(&vm, &daemon)?;
        random_pause(Duration::from_millis(999));
        vm.kill();
        match before {
            None => before = Some(settled(&daemon)?),
            Some(before) => {
                given_back(&daemon, before).with_context(|| format!("round {round}"))?
            }
        }
        bed.say(format!("{round} VMMs of {rounds}"));
    }
    let (descriptors, mappings) = before.context("there was a round 0")?;
    let told = format!("{rounds} times, {descriptors} descriptors and {mappings} mappings remain");
    bed.passed("given-back", told);
    daemon.stop()
}

/// A guest after others that were killed reads what it wrote.
fn is_served(bed: &Bed, vm: &Vm) -> Result<()> {
    let noise = "dd if=/dev/urandom of=noise bs=1M count=4 && cp noise /mnt/ && sync && \
                 echo 3 >/proc/sys/vm/drop_caches && cmp noise /mnt/noise";
    for (check, words) in [
        ("next-mount", "mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt"),
        ("next-verify", noise),
        ("next-fsck", "umount /mnt && e2fsck -f -n /dev/vda"),
    ] {
        bed.check(check, vm.asked(words));
    }
    vm.no_complaint()
}

/// Four at a time write and read, until they are about to.
fn load(vm: &Vm, daemon: &Daemon) -> Result<()> {
    let each = "while dd if=/dev/zero of=/dev/vda bs=64k count=64 seek=$n oflag=direct && \
                dd if=/dev/vda of=/dev/null bs=4k count=256 iflag=direct; do :; done >/dev/null 2>&1 &";
    vm.run(&format!("for n in 0 100 200 300; do {each} done"))?;
    let count = || Ok::<_, anyhow::Error>(daemon.shown("a", "counters")?["requests"].as_u64());
    let first = count()?;
    await_that("requests of all that write and read", || {
        Ok(count()?.zip(first).is_some_and(|(now, first)| now > first + 100))
    })
}

fn given_back(daemon: &Daemon, before: (usize, usize)) -> Result<()> {
    let start = now_ns();
    let back = await_that("descriptors and mappings", || Ok(daemon.holds()? == before));
    let took = Duration::from_nanos(now_ns() - start);
    judge(took < Duration::from_secs(1), || format!("what a VMM lent was held for {took:?}"))?;
    back.with_context(|| format!("they are not {before:?} but {:?}", daemon.holds()))
}

/// What it holds when no guest's memory is mapped and what is being closed is closed.
fn settled(daemon: &Daemon) -> Result<(usize, usize)> {
    let mut last = None;
    await_that("a daemon that holds no guest's memory", || {
        pause(Duration::from_secs(1));
        let now = daemon.holds()?;
        Ok(last.replace(now) == Some(now) && now.1 == 0)
    })?;
    last.context("it was looked at")
}

/// Both go at once, as when the host's operator ends everything. What the guest has synced is there, and the file system is
/// whole after its journal was replayed: ext4 by the host's tools; with --all xfs and btrfs too, by the guest that boots next.
pub(super) fn both_killed(bed: &Bed) -> Result<()> {
    let kinds: &[&str] = if tests_all() { &["ext4", "xfs", "btrfs"] } else { &["ext4"] };
    let rounds = bed.often(3, 102);
    let kernel = small_guest(bed)?;
    for round in 1..=rounds {
        let kind = kinds[round as usize % kinds.len()];
        let name = format!("round-{round}-{kind}");
        // The others make none that is smaller.
        let mut daemon =
            Daemon::start("both", &disk("a", if kind == "ext4" { "128M" } else { "320M" }))?;
        let boot = |daemon: &Daemon, what: &str| {
            let boot = Boot::new(&format!("{what}{round}")).memory_mib(320).kernel(kernel.clone());
            Vm::boot(bed.folder(), boot.disk(daemon.socket("a"), "num-queues=2"))
        };
        let vm = boot(&daemon, "both")?;
        vm.begin_script("crash", &[("kind", kind)])?;
        vm.await_said("files")?;
        vm.await_said("file-10")?;
        random_pause(Duration::from_millis(999));
        if round % 2 == 1 {
            daemon.kill()?;
            vm.kill();
        } else {
            vm.kill();
            daemon.kill()?;
        }
        let said = vm.last_said("file-").context("the guest has synced files")?;
        if tests_all() {
            daemon.start_again()?;
            let next = boot(&daemon, "next")?;
            let part = bed.part(&name)?;
            let whole = next.script(&part, "crashed", &[("kind", kind), ("last", &said)])?;
            next.off()?;
            daemon.stop()?;
            ensure!(whole, "{name}: the file system is not as it should be");
        } else {
            let image = daemon.dir().join("images/a.img").display().to_string();
            whole_on_host(&image, said.parse()?).context(name)?;
        }
        bed.say(format!("{round} rounds of {rounds}"));
    }
    bed.passed("fsck", format!("clean {rounds} times ({kinds:?}), and what was synced was there"));
    Ok(())
}

/// By the host's tools, of an ext4: the last file that it has is no older than `synced`.
fn whole_on_host(image: &str, synced: u64) -> Result<()> {
    // Status 1: the journal was replayed.
    host("e2fsck", &["-p", image], &[0, 1])?;
    host("e2fsck", &["-f", "-n", image], &[0])?;
    let found = host("debugfs", &["-R", "cat /last", image], &[0])?;
    let is_there = found.trim().parse::<u64>().is_ok_and(|found| found >= synced);
    ensure!(is_there, "the guest had synced file {synced}, the disk has {found:?}");
    Ok(())
}

fn host(program: &str, words: &[&str], fine: &[i32]) -> Result<String> {
    let output = Command::new(program).args(words).output();
    let output = output
        .with_context(|| format!("starting {program} (Debian: apt-get install e2fsprogs)"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_fine = output.status.code().is_some_and(|code| fine.contains(&code));
    ensure!(is_fine, "{program} {words:?} gave {}: {}", output.status, testing::vm::short(&said));
    Ok(said)
}

/// A guest that is soon there: file systems, and what busybox has.
fn small_guest(bed: &Bed) -> Result<Kernel> {
    let kernel = build_folder().join("guest/kernel");
    let mut tree = Tree::bare(&bed.folder().join("tree"), &kernel)?;
    for program in FOR_EXT4.iter().chain(FOR_OTHERS.iter().filter(|_| tests_all())) {
        let copied = tree.program(program.as_ref());
        copied.context("Debian: apt-get install e2fsprogs xfsprogs btrfs-progs")?;
    }
    tree.modules("modules", &["virtio_pci", "virtio_blk"])?;
    if tests_all() {
        tree.modules("file-systems", &["xfs", "btrfs"])?;
    }
    let initramfs = bed.folder().join("small.cpio");
    tree.pack(&initramfs)?;
    Ok(Kernel { initramfs, ..Kernel::stock() })
}
