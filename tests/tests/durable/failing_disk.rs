//! Disks that fail (reliability H1, H3-H5, H7, H9, D1, D2): what the medium reports reaches the
//! guest as the right status, one for one, is counted and shown, and nobody else notices.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::{FrontQueue, FrontendSpec};
use testing::load::Random;
use testing::scratch::Scratch;
use testing::slots::{Kind, STATUS_OK};
use testing::timing;
use tests::faulty::{
    Anywhere, BAD, DISK_BYTES, F_CONFIG_WCE, F_FLUSH, Faulty, Piece, STATUS_IOERR, disk, rule,
    sectors,
};
use tests::fuse_disk::{Call, FuseDisk, How, When};
use tests::mounts::{Loop, Mount};
use tests::single::Single;

const BLOCKS: u64 = DISK_BYTES / 4096;
const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EPERM: i32 = 1;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

/// Reads or writes random blocks; gives how many failed, each with IOERR.
fn failures(
    single: &Single,
    queue: &mut FrontQueue,
    kind: Kind,
    count: u64,
    random: &mut Random,
) -> Result<u64> {
    let mut failed = 0;
    for _ in 0..count {
        let ended = single.send(queue, kind, random.below(BLOCKS))?;
        match ended.status {
            STATUS_OK => {}
            STATUS_IOERR => failed += 1,
            other => bail!("{kind:?} ended with status {other}"),
        }
    }
    Ok(failed)
}

/// H1, D1.
#[test]
fn errors_reach_the_guest_one_for_one() -> Result<()> {
    let disk = disk("h1", false)?;
    let mut bed = Faulty::start("fail-h1")?;
    bed.add(&disk.path(), "--cache direct")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    let queue = guest.queue(0);
    let mut random = Random(0x41);
    let mut all = 0;
    for kind in [Kind::Write, Kind::Read] {
        for percent in [1, 20, 100] {
            let call = if kind == Kind::Read { Call::Read } else { Call::Write };
            let tally = |disk: &FuseDisk| {
                let counts = disk.counts();
                if kind == Kind::Read { counts.reads } else { counts.writes }
            };
            let before = tally(&disk);
            disk.obey(rule(call, When::Percent(percent), How::Error(EIO)));
            let seen = failures(&single, queue, kind, 1000, &mut random)?;
            disk.heal();
            let (now, what) = (tally(&disk), format!("{kind:?} at {percent}%"));
            let (calls, injected) = (now.calls - before.calls, now.failed - before.failed);
            ensure!(calls == 1000, "{what}: {calls} calls for 1000 requests");
            ensure!(seen == injected, "{what}: {seen} errors seen, {injected} injected");
            ensure!(percent < 20 || seen > 100, "{what}: only {seen} errors");
            all += seen;
            let after = failures(&single, queue, kind, 100, &mut random)?;
            ensure!(after == 0, "{what}: {after} errors after the disk was well again");
        }
    }
    let shown = bed.faults("eio")?;
    ensure!(shown == all, "{all} errors, shown as {shown}");
    let counted = bed.daemon.shown(BAD, "counters")?["errors"].clone();
    ensure!(counted == all, "{all} errors, counted as {counted}");
    // None of them was a lost sync: flushes go on.
    let flush = single.send(queue, Kind::Flush, 0)?;
    ensure!(flush.status == STATUS_OK, "a flush after failed reads and writes: {flush:?}");
    bed.is_unharmed()?;
    bed.finish()
}

/// What failed is as it was, and what did not fail is there.
#[test]
fn a_failed_write_does_not_hide_another() -> Result<()> {
    let disk = disk("h1-model", false)?;
    let bed = Faulty::start("fail-model")?;
    bed.add(&disk.path(), "--cache auto")?;
    let mut guest = bed.guest(0)?;
    let requests = Anywhere::new(&mut guest, sectors(16))?;
    let mut model = vec![0; DISK_BYTES as usize];
    let mut random = Random(0x10de1);
    disk.obey(rule(Call::Write, When::Percent(20), How::Error(EIO)));
    let mut failed = 0;
    for turn in 0..1000u64 {
        let count = 1 + random.below(16);
        let first = random.below(DISK_BYTES / 512 - count);
        let whole = [Piece { at: 0, len: sectors(count) }];
        let bytes = vec![turn as u8 | 1; sectors(count)];
        match requests.write(guest.queue(0), first, &whole, &bytes)? {
            STATUS_OK => model[sectors(first)..][..bytes.len()].copy_from_slice(&bytes),
            // The page cache of the host may have taken it all the same: old or new, as VIRTIO
            // leaves it. What the disk has is asked for.
            _ => {
                failed += 1;
                let now = disk.bytes(sectors(first), bytes.len());
                model[sectors(first)..][..bytes.len()].copy_from_slice(&now);
            }
        }
    }
    ensure!(failed > 50, "only {failed} writes failed");
    disk.heal();
    let found = disk.bytes(0, DISK_BYTES as usize);
    let differs = found.iter().zip(&model).position(|(found, expected)| found != expected);
    ensure!(differs.is_none(), "byte {differs:?} of the disk is not what was written");
    bed.finish()
}

/// H3: the disk says that it is full.
#[test]
fn a_disk_that_says_it_is_full_is_no_lost_sync() -> Result<()> {
    let disk = disk("h3", false)?;
    let bed = Faulty::start("fail-h3")?;
    bed.add(&disk.path(), "--cache direct --on-full error")?;
    // Stable writes: want of space is about this write, and fails no other.
    let mut guest = bed.guest(F_FLUSH | F_CONFIG_WCE)?;
    let single = Single::new(&mut guest)?;
    let mut random = Random(0x28);
    disk.obey(rule(Call::Write, When::Percent(20), How::Error(ENOSPC)));
    let seen = failures(&single, guest.queue(0), Kind::Write, 500, &mut random)?;
    let injected = disk.counts().writes.failed;
    ensure!(seen == injected && seen > 50, "{seen} errors seen, {injected} injected");
    ensure!(bed.faults("enospc")? == seen, "{seen} errors, shown as {}", bed.faults("enospc")?);
    disk.heal();
    let after = failures(&single, guest.queue(0), Kind::Write, 100, &mut random)?;
    ensure!(after == 0, "{after} errors after space was made");
    bed.finish()
}

/// H3: a quota, a file system that became read-only, a file that may not grow.
#[test]
fn h03_what_a_file_system_refuses_is_an_error_to_that_write_alone() -> Result<()> {
    let disk = disk("h3-refusals", false)?;
    let mut bed = Faulty::start("fail-h3-refusals")?;
    bed.add(&disk.path(), "--cache direct --on-full error")?;
    let mut guest = bed.guest(F_FLUSH | F_CONFIG_WCE)?;
    let single = Single::new(&mut guest)?;
    let mut random = Random(0x33);
    let mut all = 0;
    for errno in [EDQUOT, EROFS, EFBIG, EPERM] {
        let before = disk.counts().writes.failed;
        disk.obey(rule(Call::Write, When::Percent(30), How::Error(errno)));
        let seen = failures(&single, guest.queue(0), Kind::Write, 200, &mut random)?;
        let injected = disk.counts().writes.failed - before;
        ensure!(seen == injected && seen > 20, "{errno}: {seen} seen, {injected} injected");
        let read = failures(&single, guest.queue(0), Kind::Read, 50, &mut random)?;
        ensure!(read == 0, "{errno}: {read} reads failed, too");
        disk.heal();
        let after = failures(&single, guest.queue(0), Kind::Write, 50, &mut random)?;
        ensure!(after == 0, "{errno}: {after} errors when it was over");
        all += seen;
    }
    let faults = bed.daemon.shown(BAD, "faults")?;
    let shown: u64 = ["eio", "enospc", "other"].iter().filter_map(|at| faults[at].as_u64()).sum();
    ensure!(shown == all, "{all} errors, shown as {faults}");
    bed.is_unharmed()?;
    bed.finish()
}

/// H3: file systems that are too small for the image.
#[test]
fn a_full_file_system_is_an_error_to_the_write_that_met_it() -> Result<()> {
    let small = Scratch::new(&std::env::temp_dir(), "fail-full-disks")?;
    let tmpfs = Mount::tmpfs(&small.path().join("tmpfs"), 1 << 20)?;
    let image = small.path().join("ext4.img");
    let ext4 = Mount::ext4(&image, 16 << 20, &small.path().join("ext4"))?;
    for (place, size, caches) in
        [(tmpfs.path(), 4 << 20, &["auto"][..]), (ext4.path(), 24 << 20, &["direct", "page"])]
    {
        for cache in caches {
            let what = format!("{} {cache}", place.display());
            let bed = Faulty::start("fail-full")?;
            fill_up(&bed, &place.join("disk.raw"), size, cache).context(what)?;
            bed.finish()?;
            std::fs::remove_file(place.join("disk.raw"))?;
        }
    }
    Ok(())
}

fn fill_up(bed: &Faulty, path: &Path, size_bytes: u64, cache: &str) -> Result<()> {
    bed.add(path, &format!("--size {size_bytes} --cache {cache} --on-full error --force"))?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    let queue = guest.queue(0);
    let (mut failed, mut written) = (0, Vec::new());
    for block in 0..size_bytes / 4096 {
        match single.send(queue, Kind::Write, block)?.status {
            STATUS_OK => written.push(block),
            STATUS_IOERR => failed += 1,
            other => bail!("block {block}: status {other}"),
        }
    }
    ensure!(failed > 0 && !written.is_empty(), "{failed} failed, {} written", written.len());
    let counted = bed.faults("enospc")?;
    ensure!(counted == failed, "{failed} writes failed, {counted} are shown for want of space");
    for block in written.into_iter().step_by(7) {
        single.send(queue, Kind::Read, block)?;
        single.compare(block)?;
    }
    let flush = single.send(queue, Kind::Flush, 0)?;
    ensure!(flush.status == STATUS_OK, "a flush of what was written: {flush:?}");
    guest.disconnect()?;
    bed.daemon.ask(&format!("disk rm {BAD} --force")).map(drop)
}

/// H3: RLIMIT_FSIZE sends SIGXFSZ, which ends a process that has not said otherwise.
#[test]
fn the_limit_on_file_sizes_is_an_error_to_the_guest() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "fail-fsize-disk")?;
    for cache in ["direct", "page"] {
        let mut bed = Faulty::start("fail-fsize")?;
        bed.add(&folder.path().join("disk.raw"), &format!("--size 4M --cache {cache}"))?;
        let mut guest = bed.guest(0)?;
        let single = Single::new(&mut guest)?;
        let limit = format!("--fsize={}", 1 << 20);
        let pid = bed.daemon.pid().to_string();
        let status =
            std::process::Command::new("prlimit").args(["--pid", &pid, &limit]).status()?;
        ensure!(status.success(), "prlimit: {status}");
        let below = single.send(guest.queue(0), Kind::Write, 10)?;
        ensure!(below.status == STATUS_OK, "below the limit: {below:?}");
        for block in 256..266 {
            let beyond = single.send(guest.queue(0), Kind::Write, block)?;
            ensure!(beyond.status == STATUS_IOERR, "{cache}, beyond the limit: {beyond:?}");
        }
        bed.is_unharmed()?;
        ensure!(bed.faults("enospc")? == 10, "shown: {}", bed.faults("enospc")?);
        bed.finish()?;
    }
    Ok(())
}

/// H4: less than asked, nothing at all, and "come again". FUSE itself makes an error of a short
/// direct write, and the file's end of a short cached read, so each kind goes the other way.
#[test]
fn what_the_disk_does_in_part_is_done_whole() -> Result<()> {
    for (call, cache) in [(Call::Read, "direct"), (Call::Write, "page")] {
        let disk = disk("h4", false)?;
        let bed = Faulty::start("fail-h4")?;
        bed.add(&disk.path(), &format!("--cache {cache}"))?;
        in_part(&bed, &disk, call).with_context(|| format!("{call:?}, cache {cache}"))?;
        bed.finish()?;
    }
    Ok(())
}

fn in_part(bed: &Faulty, disk: &FuseDisk, call: Call) -> Result<()> {
    let mut guest = bed.guest(0)?;
    let requests = Anywhere::new(&mut guest, sectors(64))?;
    let whole = [Piece { at: 0, len: sectors(64) }];
    let queue = guest.queue(0);
    let transfer = |queue: &mut FrontQueue, first, bytes: &[u8]| match call {
        Call::Read => {
            disk.spoil(sectors(first), bytes);
            requests.read(queue, first, &whole)
        }
        _ => Ok((
            requests.write(queue, first, &whole, bytes)?,
            disk.bytes(sectors(first), bytes.len()),
        )),
    };
    let mut random = Random(0x44);
    for (turn, short) in [512, 1024, 4096, 8192, 20480].into_iter().enumerate() {
        let what = format!("at most {short} bytes a call");
        disk.obey(rule(call, When::Always, How::Short(short)));
        let bytes: Vec<u8> = (0..sectors(64)).map(|at| (at / 7 + turn) as u8 | 1).collect();
        let (status, there) = transfer(queue, random.below(1000), &bytes).context(what.clone())?;
        ensure!(status == STATUS_OK, "{what}: status {status}");
        ensure!(there == bytes, "{what}: not all of it was moved");
        disk.heal();
    }
    ensure!(bed.faults("short")? > 0, "short transfers are not counted");
    // No progress at all must not be tried for ever.
    let bytes = vec![1; sectors(64)];
    disk.obey(rule(call, When::Always, How::Short(0)));
    let (status, _) = transfer(queue, 2000, &bytes).context("no progress")?;
    ensure!(status == STATUS_IOERR, "without any progress it ended with {status}");
    disk.heal();
    for number in [EINTR, EAGAIN] {
        disk.obey(rule(call, When::Next(3), How::Error(number)));
        let (status, there) =
            transfer(queue, 3000, &bytes).with_context(|| format!("error {number}"))?;
        ensure!(status == STATUS_OK, "after three times error {number} it ended with {status}");
        ensure!(there == bytes, "after three times error {number} not all of it was moved");
        disk.heal();
    }
    // Of EAGAIN it is io_uring itself that tries for ever.
    disk.obey(rule(call, When::Always, How::Error(EINTR)));
    let (status, _) = transfer(queue, 4000, &bytes).context("always EINTR")?;
    ensure!(status == STATUS_IOERR, "always EINTR: {status}");
    disk.heal();
    Ok(())
}

/// H5, D2: requests take long, or do not end; nobody else waits, and the API answers.
#[test]
fn a_disk_that_waits_holds_up_nobody() -> Result<()> {
    let disk = disk("h5", false)?;
    let mut bed = Faulty::start("fail-h5")?;
    bed.add(&disk.path(), "--cache direct")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    disk.obey(rule(Call::Write, When::Next(1), How::Delay(Duration::from_secs(9))));
    disk.obey(rule(Call::Sync, When::Next(1), How::Hang));
    let late = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| single.send(guest.queue(0), Kind::Write, 1));
        let start = now_ns();
        while !waiting.is_finished() {
            bed.is_unharmed()?;
            let asked = now_ns();
            bed.daemon.ask("ls")?;
            timing::judge(now_ns() - asked < 2_000_000_000, || "the API is held up".to_string())?;
            pause(Duration::from_millis(200));
            ensure!(now_ns() - start < 120_000_000_000, "the slow write does not end");
        }
        waiting.join().map_err(|_| anyhow!("the guest panicked"))?
    })?;
    let flush = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| single.send(guest.queue(0), Kind::Flush, 0));
        pause(Duration::from_secs(2));
        bed.is_unharmed()?;
        ensure!(!hanging.is_finished(), "the flush ended although the disk has not answered");
        disk.heal();
        hanging.join().map_err(|_| anyhow!("the guest panicked"))?
    })?;
    ensure!(late.status == STATUS_OK && late.took_ns > 8_500_000_000, "the slow write: {late:?}");
    ensure!(flush.status == STATUS_OK, "the flush that hung: {flush:?}");
    bed.finish()
}

/// E31: a front-end that stops its queue waits no longer than `drain_timeout` for a disk that does
/// not answer; the next one is served when the disk has.
#[test]
fn a_disk_that_hangs_keeps_its_front_end_for_a_bounded_time() -> Result<()> {
    let disk = disk("e31", false)?;
    let mut bed = Faulty::start("fail-e31")?;
    bed.add(&disk.path(), "--cache direct --drain-timeout 2")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    let mut queues = guest.take_queues();
    disk.obey(rule(Call::Write, When::Next(1), How::Hang));
    single.offer(&mut queues[0], Kind::Write, 1)?;
    await_that("the write to reach the disk", || Ok(disk.counts().writes.calls == 1))?;
    let start = now_ns();
    let stopped = guest.stop_queue(0);
    let took_ns = now_ns() - start;
    ensure!(stopped.is_err(), "GET_VRING_BASE was answered with a request in flight");
    ensure!(took_ns >= 1_900_000_000, "it waited {took_ns} ns, not some 2 s");
    timing::judge(took_ns < 5_000_000_000, || format!("it waited {took_ns} ns, not some 2 s"))?;
    bed.is_unharmed()?;
    bed.await_problem("1 request")?;
    disk.heal();
    drop(guest);
    let mut next = bed.guest(0)?;
    let of_next = Single::new(&mut next)?;
    of_next.exercise(next.queue(0), 3)?;
    // The disk has answered, or the next one were not served. Its first front-end was given up, and hears nothing.
    let lost = single.ended(&mut queues[0]);
    ensure!(lost.is_none(), "the abandoned request was answered: {lost:?}");
    bed.finish()
}

/// H7: the disk is yanked away.
#[test]
fn a_disk_that_vanishes_ends_every_request() -> Result<()> {
    for cache in ["direct", "page"] {
        let mut disk = disk("h7", false)?;
        let mut bed = Faulty::start("fail-h7")?;
        bed.add(&disk.path(), &format!("--cache {cache}"))?;
        let mut guest = bed.guest(0)?;
        let single = Single::new(&mut guest)?;
        single.exercise(guest.queue(0), 5)?;
        // One is in flight when it goes.
        disk.obey(rule(Call::Write, When::Next(1), How::Hang));
        let caught = std::thread::scope(|scope| {
            let hanging = scope.spawn(|| single.send(guest.queue(0), Kind::Write, 6));
            await_that("the write to reach the disk", || Ok(disk.counts().writes.calls >= 2))?;
            disk.vanish()?;
            hanging.join().map_err(|_| anyhow!("the guest panicked"))?
        })?;
        // What it held was answered on the way out, so either is right; it ended.
        ensure!([STATUS_OK, STATUS_IOERR].contains(&caught.status), "{caught:?}");
        for turn in 0..100 {
            let kind = [Kind::Write, Kind::Flush][turn % 2];
            let ended = single.send(guest.queue(0), kind, 100 + turn as u64)?;
            ensure!(ended.status == STATUS_IOERR, "{cache}: {kind:?} of nothing: {ended:?}");
        }
        // After the first flush that failed, the others are not asked of the disk.
        let failed = bed.faults("eio")? + bed.faults("other")?;
        ensure!(failed > 50, "{failed} failures are shown");
        let errors = bed.daemon.shown(BAD, "counters")?["errors"].clone();
        ensure!(errors.as_u64().is_some_and(|errors| errors >= 100), "{errors} errors are shown");
        bed.is_unharmed()?;
        guest.disconnect()?;
        bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
        bed.finish()?;
    }
    Ok(())
}

/// H7: no busy loop over a disk that is gone, nor over one that hangs.
#[test]
fn a_disk_that_is_gone_costs_nothing() -> Result<()> {
    let mut disk = disk("h7-idle", false)?;
    let daemon = Daemon::start("fail-idle", "")?;
    daemon.ask(&format!("disk add {BAD} --path {} --cache direct", disk.path().display()))?;
    let spec = FrontendSpec::linux();
    let mut guest = daemon.frontend(BAD, &spec)?;
    let single = Single::new(&mut guest)?;
    disk.obey(rule(Call::Write, When::Always, How::Hang));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(|| single.send(guest.queue(0), Kind::Write, 6));
        pause(Duration::from_millis(300));
        let before = daemon.cpu_ticks()?;
        pause(Duration::from_secs(2));
        let used = daemon.cpu_ticks()? - before;
        timing::judge(used <= 4, || format!("{used} ticks of 10 ms in 2 s while the disk hangs"))?;
        disk.vanish()?;
        hanging.join().map_err(|_| anyhow!("the guest panicked"))??;
        pause(Duration::from_millis(300));
        let before = daemon.cpu_ticks()?;
        pause(Duration::from_secs(1));
        let used = daemon.cpu_ticks()? - before;
        timing::judge(used <= 3, || {
            format!("{used} ticks of 10 ms in 1 s after the disk has gone")
        })?;
        Ok(())
    })
}

/// H9: buffers at any address and in any pieces, on disks that take only aligned ones.
#[test]
fn buffers_at_odd_addresses_are_moved_whole() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "fail-odd-disks")?;
    let backing = folder.path().join("loop.img");
    std::fs::File::create(&backing)?.set_len(DISK_BYTES)?;
    let large_sectors = Loop::over(&backing, 4096)?;
    let fuse = disk("h9", false)?;
    let plain = folder.path().join("disk.raw");
    for (path, cache) in [
        (large_sectors.path(), "direct"),
        (large_sectors.path(), "page"),
        (plain.as_path(), "direct"),
        (plain.as_path(), "page"),
        (fuse.path().as_path(), "direct"),
    ] {
        let what = format!("{} {cache}", path.display());
        let bed = Faulty::start("fail-odd")?;
        let size = if path == plain { "--size 4M" } else { "" };
        bed.add(path, format!("--cache {cache} {size}").trim_end())?;
        odd_requests(&bed, 1500).context(what)?;
        bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
        bed.finish()?;
        let _ = std::fs::remove_file(&plain);
        large_sectors.zero()?;
    }
    Ok(())
}

fn odd_requests(bed: &Faulty, count: u64) -> Result<()> {
    const ROOM: usize = 64 << 10;
    let mut guest = bed.guest(0)?;
    let requests = Anywhere::new(&mut guest, ROOM)?;
    let mut model = vec![0; DISK_BYTES as usize];
    let mut random = Random(0x0dd);
    for turn in 0..count {
        let sectors_here = 1 + random.below(24);
        let len = sectors(sectors_here);
        let first = random.below(DISK_BYTES / 512 - sectors_here);
        let pieces = odd_pieces(len, &mut random);
        let place = &mut model[sectors(first)..][..len];
        let what = format!("request {turn}: {sectors_here} sectors from {first}, {pieces:?}");
        if random.below(2) == 0 {
            let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
            let status = requests.write(guest.queue(0), first, &pieces, &bytes)?;
            ensure!(status == STATUS_OK, "{what}: status {status}");
            place.copy_from_slice(&bytes);
        } else {
            let (status, found) = requests.read(guest.queue(0), first, &pieces)?;
            ensure!(status == STATUS_OK, "{what}: status {status}");
            ensure!(found == place, "{what}: another content came");
            requests.is_clean_beside(&pieces).context(what)?;
        }
    }
    guest.disconnect()
}

/// Up to four pieces of odd lengths at odd places, in order, not overlapping, `len` bytes in all.
fn odd_pieces(len: usize, random: &mut Random) -> Vec<Piece> {
    let mut left = len;
    let mut at = random.below(4096) as usize;
    let mut pieces = Vec::new();
    for last in [false, false, false, true] {
        let now = if last { left } else { 1 + random.below(left as u64) as usize };
        pieces.push(Piece { at, len: now });
        at += now + random.below(700) as usize;
        left -= now;
        if left == 0 {
            break;
        }
    }
    pieces
}
