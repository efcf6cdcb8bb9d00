//! Control beside a disk that does not answer, and a RAM disk whose daemon was killed.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::FrontendSpec;
use testing::slots::{Kind, STATUS_OK};
use testing::timing;
use tests::faulty::{BAD, Faulty};
use tests::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Rule, When};
use tests::hostile_guest::{
    D, DATA, End, Guest, HEADER, INDIRECT, Layout, NEXT, STATUS, TABLE, WRITE,
};
use tests::ledger::Order;
use tests::single::Single;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const SECOND_NS: u64 = 1_000_000_000;

/// E31, O5: a removal is answered though the disk is dead, and is done when it is not any more.
#[test]
fn e31_a_disk_that_hangs_is_removed_when_it_answers() -> Result<()> {
    let spec =
        FuseDiskSpec { size_bytes: 4 << 20, writeback_cache: false, order: Order::default() };
    let disk = FuseDisk::mount("dead-rm-disk", &spec)?;
    let mut bed = Faulty::start("dead")?;
    bed.add(&disk.path(), "--cache direct")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    disk.obey(Rule { call: Call::Write, when: When::Next(1), how: How::Hang });
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| single.send(guest.queue(0), Kind::Write, 1));
        await_that("the write to reach the disk", || Ok(disk.counts().writes.calls == 1))?;
        let began = now_ns();
        let removed = bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
        let took = now_ns() - began;
        timing::judge((5..15).contains(&(took / SECOND_NS)), || format!("it took {took} ns"))?;
        let problem = removed["problem"].as_str().unwrap_or_default();
        ensure!(problem.contains("1 request that the disk has not answered"), "{problem}");
        ensure!(problem.contains("removed as soon as they end"), "{problem}");
        bed.is_unharmed()?;
        let refused =
            bed.daemon.refuses(&format!("disk add again --path {}", disk.path().display()))?;
        ensure!(refused.contains("is being removed"), "{refused}");
        disk.heal();
        // Its front-end has gone with the disk, so whether it sees the end is a matter of time.
        let _ = hanging.join().map_err(|_| anyhow!("the guest panicked"))?;
        Ok(())
    })?;
    await_that("the image to be free", || {
        Ok(bed.daemon.ask(&format!("disk add again --path {}", disk.path().display())).is_ok())
    })?;
    bed.finish()
}

/// A new size waits for the requests in flight, and gives up: one that hangs stops one queue, and the next reload does it.
#[test]
fn a_resize_by_reload_gives_up_and_is_done_by_the_next_one() -> Result<()> {
    let spec =
        FuseDiskSpec { size_bytes: 4 << 20, writeback_cache: false, order: Order::default() };
    let disk = FuseDisk::mount("dead-resize-disk", &spec)?;
    let of_size = |size: &str| {
        format!(
            "[[disk]]\nid = \"bad\"\npath = \"{}\"\ncache = \"direct\"\nqueues = 2\nsize = \"{size}\"\n",
            disk.path().display()
        )
    };
    let daemon = Daemon::start("dead-resize", &of_size("4M"))?;
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::linux() };
    let mut guest = daemon.frontend("bad", &spec)?;
    let single = Single::new(&mut guest)?;
    let mut queues = guest.take_queues();
    let [first, second] = &mut queues[..] else { return Err(anyhow!("two queues")) };
    single.exercise(second, 3)?;
    daemon.configure(&of_size("8M"))?;
    let written = disk.counts().writes.calls;
    disk.obey(Rule { call: Call::Write, when: When::Next(1), how: How::Hang });
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| single.send(first, Kind::Write, 1));
        let tried =
            await_that("the write to reach the disk", || Ok(disk.counts().writes.calls > written));
        let tried = tried.and_then(|()| {
            let said = daemon.refuses("reload")?;
            ensure!(said.contains("it has 4M and not 8M: it waits for 1 request"), "{said}");
            // The kernel makes a write to that file wait for the other one.
            let ended =
                single.send(second, Kind::Read, 3).context("the other queue stands still")?;
            ensure!(ended.status == STATUS_OK, "{ended:?}");
            let dry = daemon.ask("reload --dry-run")?;
            ensure!(dry["changes"][0] == "resize disk bad to 8M", "{dry}");
            Ok(())
        });
        disk.heal();
        let _ = hanging.join().map_err(|_| anyhow!("the guest panicked"))?;
        tried
    })?;
    await_that("the problem alone", || {
        let problem = daemon.shown("bad", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.starts_with("it has 4M and not 8M: ")))
    })?;
    daemon.ask("reload")?;
    let shown = daemon.ask("show bad")?;
    ensure!(shown["size_bytes"] == 8 << 20 && shown["problem"].is_null(), "{shown}");
    guest.put_queues(queues);
    Ok(())
}

/// D2: reads that wait in the kernel's threads leave one to the flush of another disk.
#[test]
fn d2_a_disk_that_hangs_holds_up_no_flush_of_another() -> Result<()> {
    const READS: u16 = 100;
    let spec =
        FuseDiskSpec { size_bytes: 4 << 20, writeback_cache: false, order: Order::default() };
    let disk = FuseDisk::mount("dead-flush-disk", &spec)?;
    let disks = "[[disk]]\nid = \"good\"\npath = \"good.img\"\nsize = \"4M\"\n";
    let daemon = Daemon::start("dead-flush", disks)?;
    let served = daemon.shown("good", "served_as")?;
    ensure!(served != "file, in memory", "{} is no disk", daemon.dir().display());
    daemon.ask(&format!("disk add {BAD} --path {} --cache page", disk.path().display()))?;
    let spec = FrontendSpec::linux();
    let mut good = daemon.frontend("good", &spec)?;
    let single = Single::new(&mut good)?;
    let layout = Layout { size: 128, ..Layout::indirect() };
    let mut bad = Guest::start(&daemon.socket(BAD), layout)?;
    disk.obey(Rule { call: Call::Read, when: When::Always, how: How::Hang });
    bad.header(0, 0);
    bad.table(&[D(HEADER, 16, NEXT, 1), D(DATA, 4096, NEXT | WRITE, 2), D(STATUS, 1, WRITE, 0)]);
    let heads: Vec<u16> = (0..READS).collect();
    for head in &heads {
        bad.entry(bad.places()[0], *head, D(TABLE, 48, INDIRECT, 0));
    }
    bad.offer_heads(&heads);
    bad.kick()?;
    await_that("the reads to be taken", || {
        let counters = daemon.shown(BAD, "counters")?;
        Ok(counters["reads"] == READS && disk.counts().reads.calls > 0)
    })?;
    for block in 0..20 {
        for kind in [Kind::Write, Kind::Flush] {
            let ended = single.send(good.queue(0), kind, block)?;
            ensure!(ended.status == STATUS_OK, "{kind:?}: {ended:?}");
            timing::judge(ended.took_ns < SECOND_NS, || format!("{kind:?}: {ended:?}"))?;
        }
    }
    disk.heal();
    for _ in heads {
        ensure!(matches!(bad.end()?, End::Used(..)) && bad.status() == 0, "a read failed");
    }
    Ok(())
}

/// A stop does not wait for a dead disk.
#[test]
fn e31_a_stop_does_not_wait_for_a_disk_that_hangs() -> Result<()> {
    let spec =
        FuseDiskSpec { size_bytes: 4 << 20, writeback_cache: false, order: Order::default() };
    let disk = FuseDisk::mount("dead-stop-disk", &spec)?;
    let mut daemon = Daemon::start("dead-stop", "")?;
    daemon.ask(&format!("disk add {BAD} --path {} --cache direct", disk.path().display()))?;
    let mut guest = daemon.frontend(BAD, &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    disk.obey(Rule { call: Call::Write, when: When::Next(1), how: How::Hang });
    single.offer(guest.queue(0), Kind::Write, 1)?;
    await_that("the write to reach the disk", || Ok(disk.counts().writes.calls == 1))?;
    let began = now_ns();
    daemon.stop()?;
    let took = now_ns() - began;
    timing::judge(took < 4 * SECOND_NS, || format!("it took {took} ns"))?;
    disk.heal();
    // Nobody is left to answer it.
    let lost = single.ended(guest.queue(0));
    ensure!(lost.is_none(), "it was answered with {lost:?}");
    Ok(())
}

/// Decision 0005, "What a crash leaves behind": no guest is handed zeroes for what it wrote.
#[test]
fn a_ram_disk_that_is_gone_is_not_served_as_zeroes() -> Result<()> {
    for format in [Format::Split, Format::Packed] {
        for inflight in [true, false] {
            ram_disk(format, inflight)?;
        }
    }
    Ok(())
}

fn ram_disk(format: Format, inflight: bool) -> Result<()> {
    let disks = "[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"4M\"\nqueues = 2\n";
    let mut daemon = Daemon::start("ram", disks)?;
    let ring = RingSpec { format, ..FrontendSpec::default().ring };
    let spec = FrontendSpec { queues: 2, inflight, ring, ..FrontendSpec::default() };
    let mut guest = daemon.frontend("ram", &spec)?;
    let single = Single::new(&mut guest)?;
    // The second queue only: the first is as fresh as a new guest's.
    let written = single.send(guest.queue(1), Kind::Write, 1)?;
    ensure!(written.status == STATUS_OK, "{written:?}");
    daemon.kill()?;
    daemon.start_again()?;
    guest.reconnect(daemon.connect("ram")?)?;
    await_that("the disk to say why", || {
        let problem = daemon.shown("ram", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("used this RAM disk before")))
    })?;
    pause(Duration::from_millis(20));
    let attached = daemon.shown("ram", "queues_attached")?;
    ensure!(attached == 0, "{format:?}: {attached} queues are served");
    drop(guest);
    // A guest that starts anew is served.
    let mut guest = daemon.frontend("ram", &spec)?;
    let single = Single::new(&mut guest)?;
    let read = single.send(guest.queue(1), Kind::Read, 1)?;
    ensure!(read.status == STATUS_OK, "{read:?}");
    daemon.stop()
}

/// The same for an image that is away when the daemon starts again, and would be made anew.
#[test]
fn an_image_that_was_missing_is_not_served_as_zeroes() -> Result<()> {
    let disks = "[[disk]]\nid = \"img\"\npath = \"img\"\nsize = \"4M\"\n";
    let mut daemon = Daemon::start("image", disks)?;
    let mut guest = daemon.frontend("img", &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    let written = single.send(guest.queue(0), Kind::Write, 1)?;
    ensure!(written.status == STATUS_OK, "{written:?}");
    daemon.kill()?;
    let (image, away) = (daemon.dir().join("img"), daemon.dir().join("away"));
    std::fs::rename(&image, &away)?;
    daemon.start_again()?;
    let problem = daemon.shown("img", "problem")?;
    let says_so = problem.as_str().is_some_and(|text| text.contains("was there before"));
    ensure!(says_so && daemon.shown("img", "state")? == "failed", "{problem}");
    // The socket of the daemon that was killed is there still, and nobody listens.
    ensure!(UnixStream::connect(daemon.socket("img")).is_err(), "somebody listens");
    ensure!(!image.exists(), "an image was made anew");
    daemon.kill()?;
    // Nor is an empty one, which an operator made in its place.
    std::fs::File::create(&image)?;
    daemon.start_again()?;
    guest.reconnect(daemon.connect("img")?)?;
    await_that("the disk to say why", || {
        let problem = daemon.shown("img", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("img was missing or empty")))
    })?;
    pause(Duration::from_millis(20));
    let attached = daemon.shown("img", "queues_attached")?;
    ensure!(attached == 0, "{attached} queues are served");
    daemon.kill()?;
    std::fs::rename(&away, &image)?;
    daemon.start_again()?;
    guest.reconnect(daemon.connect("img")?)?;
    let read = single.send(guest.queue(0), Kind::Read, 1)?;
    ensure!(read.status == STATUS_OK, "{read:?}");
    single.compare(1)?;
    daemon.stop()
}

/// A disk that was made through the API is not made a second time.
#[test]
fn a_kept_disk_whose_image_is_gone_waits_for_it() -> Result<()> {
    let disks = "[[disk]]\nid = \"other\"\nbackend = \"null\"\nsize = \"4M\"\n";
    let mut daemon = Daemon::start("kept", disks)?;
    let image = daemon.dir().join("kept.img");
    daemon.ask(&format!("disk add kept --path {} --size 4M", image.display()))?;
    daemon.stop()?;
    let away = daemon.dir().join("away");
    std::fs::rename(&image, &away)?;
    daemon.start_again()?;
    let problem = daemon.shown("kept", "problem")?;
    ensure!(problem.as_str().is_some_and(|text| text.contains("is missing")), "{problem}");
    ensure!(!image.exists(), "it was made anew");
    std::fs::rename(&away, &image)?;
    daemon.ask("reload")?;
    ensure!(daemon.shown("kept", "state")? == "waiting", "it is not open again");
    daemon.stop()
}
