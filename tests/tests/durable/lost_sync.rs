//! Data that the disk could not make stable (reliability H2, H10, P4): no later success hides it, not
//! even that of a daemon started anew.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::slots::{Kind, STATUS_OK};
use tests::faulty::{BAD, F_CONFIG_WCE, F_FLUSH, Faulty, STATUS_IOERR, disk, rule};
use tests::fuse_disk::{Call, FuseDisk, How, When};
use tests::mounts::{Loop, Mount};
use tests::single::Single;

const EIO: i32 = 5;
/// What the operator reads of a disk that lost a sync.
const UNSYNCED: &str = "could not make data stable";

/// H2, P4: for each way to make data stable, a failure is not followed by a success that hides it.
#[test]
fn a_sync_that_failed_once_fails_for_good() -> Result<()> {
    for without in [0, F_FLUSH | F_CONFIG_WCE] {
        for cache in ["direct", "page"] {
            for is_device in [false, true] {
                let what = format!("cache {cache}, device {is_device}, without {without:#x}");
                let disk = disk("h2", false)?;
                let device = is_device.then(|| Loop::over(&disk.path(), 512)).transpose()?;
                let path = device.as_ref().map_or(disk.path(), |device| device.path().into());
                let bed = Faulty::start("fail-h2")?;
                lose_a_sync(&bed, &disk, &path, cache, without).context(what)?;
                bed.finish()?;
            }
        }
    }
    Ok(())
}

/// `path` is the disk, or a device over it.
fn lose_a_sync(
    bed: &Faulty,
    disk: &FuseDisk,
    path: &Path,
    cache: &str,
    without: u64,
) -> Result<()> {
    bed.add(path, &format!("--cache {cache}"))?;
    let mut guest = bed.guest(without)?;
    let single = Single::new(&mut guest)?;
    let queue = guest.queue(0);
    let sync = if without & F_FLUSH != 0 { Kind::Write } else { Kind::Flush };
    single.exercise(queue, 7)?;
    ensure!(single.send(queue, sync, 8)?.status == STATUS_OK, "the disk is well");
    disk.obey(rule(Call::Sync, When::Next(1), How::Error(EIO)));
    let first = single.send(queue, sync, 9)?;
    ensure!(first.status == STATUS_IOERR, "the sync that failed: {first:?}");
    // The disk is well again, and would say so.
    for _ in 0..1000 {
        let later = single.send(queue, sync, 10)?;
        ensure!(
            later.status == STATUS_IOERR,
            "a later one hides it: {later:?}, {:?}",
            disk.counts()
        );
    }
    let read = single.send(queue, Kind::Read, 7)?;
    ensure!(read.status == STATUS_OK, "reads go on: {read:?}");
    bed.await_problem(UNSYNCED)?;
    ensure!(bed.faults("eio")? >= 1, "the failure is not counted");
    // A new front-end is told the same.
    guest.disconnect()?;
    let mut guest = bed.guest(without)?;
    let single = Single::new(&mut guest)?;
    let later = single.send(guest.queue(0), sync, 10)?;
    ensure!(later.status == STATUS_IOERR, "a new front-end is not told: {later:?}");
    guest.disconnect()?;
    // As the text says.
    bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
    bed.add(path, &format!("--cache {cache}"))?;
    let mut guest = bed.guest(without)?;
    let single = Single::new(&mut guest)?;
    let mended = single.send(guest.queue(0), sync, 10)?;
    ensure!(mended.status == STATUS_OK, "added again: {mended:?}");
    Ok(())
}

/// P4 across a crash: the kernel tells a new open nothing of what an old one was told.
#[test]
fn a_lost_sync_outlives_the_daemon() -> Result<()> {
    for cache in ["direct", "page"] {
        let disk = disk("h2-crash", false)?;
        let path = disk.path();
        let path = path.display();
        let file = format!("[[disk]]\nid = \"{BAD}\"\npath = \"{path}\"\ncache = \"{cache}\"\n");
        let mut daemon = Daemon::start("fail-h2-crash", &file)?;
        let flush = |daemon: &Daemon| -> Result<u8> {
            let spec = FrontendSpec::linux();
            let mut guest = daemon.frontend(BAD, &spec)?;
            let single = Single::new(&mut guest)?;
            single.exercise(guest.queue(0), 1)?;
            Ok(single.send(guest.queue(0), Kind::Flush, 0)?.status)
        };
        ensure!(flush(&daemon)? == STATUS_OK, "the disk is well");
        disk.obey(rule(Call::Sync, When::Next(1), How::Error(EIO)));
        ensure!(flush(&daemon)? == STATUS_IOERR, "the flush that lost data ended well");
        is_shown(&daemon)?;
        for _ in 0..2 {
            daemon.kill()?;
            daemon.start_again()?;
            ensure!(flush(&daemon)? == STATUS_IOERR, "cache {cache}: after a restart all is well");
            let problem = daemon.shown(BAD, "problem")?;
            let problem = problem.as_str().unwrap_or_default();
            ensure!(problem.contains("sidecore disk clear"), "what to do is not shown: {problem}");
        }
        // As the text says.
        daemon.ask(&format!("disk clear {BAD}"))?;
        ensure!(flush(&daemon)? == STATUS_OK, "it was cleared");
        let refused = daemon.refuses(&format!("disk clear {BAD}"))?;
        ensure!(refused.contains("has lost no data"), "{refused}");
        daemon.kill()?;
        daemon.start_again()?;
        ensure!(flush(&daemon)? == STATUS_OK, "it was cleared before the restart");
    }
    Ok(())
}

/// The same, where there is no room for the mark's text.
#[test]
fn a_lost_sync_outlives_the_daemon_whose_state_folder_is_full() -> Result<()> {
    let disk = disk("h2-full", false)?;
    let file = format!("[[disk]]\nid = \"{BAD}\"\npath = \"{}\"\n", disk.path().display());
    let mut daemon = Daemon::start("fail-h2-full", &file)?;
    daemon.kill()?;
    let state = daemon.dir().join("state");
    std::fs::remove_dir_all(&state)?;
    let state = Mount::tmpfs(&state, 1 << 20)?;
    daemon.start_again()?;
    let flush = |daemon: &Daemon| -> Result<u8> {
        let spec = FrontendSpec::linux();
        let mut guest = daemon.frontend(BAD, &spec)?;
        let single = Single::new(&mut guest)?;
        single.exercise(guest.queue(0), 1)?;
        Ok(single.send(guest.queue(0), Kind::Flush, 0)?.status)
    };
    ensure!(flush(&daemon)? == STATUS_OK, "the disk is well");
    let fill = std::fs::write(state.path().join("fill"), vec![1; 2 << 20]);
    ensure!(fill.is_err_and(|error| error.kind() == ErrorKind::StorageFull), "there is room left");
    disk.obey(rule(Call::Sync, When::Next(1), How::Error(EIO)));
    ensure!(flush(&daemon)? == STATUS_IOERR, "the flush that lost data ended well");
    is_shown(&daemon)?;
    daemon.kill()?;
    std::fs::remove_file(state.path().join("fill"))?;
    daemon.start_again()?;
    ensure!(flush(&daemon)? == STATUS_IOERR, "after a restart all is well");
    daemon.ask(&format!("disk clear {BAD}"))?;
    ensure!(flush(&daemon)? == STATUS_OK, "it was cleared");
    daemon.stop()
}

fn is_shown(daemon: &Daemon) -> Result<()> {
    await_that("the loss to be shown", || {
        let problem = daemon.shown(BAD, "problem")?;
        Ok(problem.as_str().is_some_and(|problem| problem.contains(UNSYNCED)))
    })
}

/// H10: the kernel keeps pages back and learns only later that they cannot be written.
#[test]
fn a_write_that_fails_after_it_was_done_fails_the_next_flush() -> Result<()> {
    let disk = disk("h10", true)?;
    let bed = Faulty::start("fail-h10")?;
    bed.add(&disk.path(), "--cache page")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    let queue = guest.queue(0);
    disk.obey(rule(Call::Write, When::Always, How::Error(EIO)));
    for block in 0..16 {
        let write = single.send(queue, Kind::Write, block)?;
        ensure!(write.status == STATUS_OK, "the page cache takes it: {write:?}");
    }
    let flush = single.send(queue, Kind::Flush, 0)?;
    ensure!(flush.status == STATUS_IOERR, "the flush of pages that were lost: {flush:?}");
    disk.heal();
    for _ in 0..1000 {
        let flush = single.send(queue, Kind::Flush, 0)?;
        ensure!(flush.status == STATUS_IOERR, "a later flush hides the loss: {flush:?}");
    }
    bed.await_problem(UNSYNCED)?;
    bed.finish()
}
