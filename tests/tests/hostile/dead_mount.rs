//! A file system that answers no more: what is asked of it by name waits for ever, and whoever has nothing
//! there goes on.
//!
//! Not here: disks that hang while they are served (`dead_disk`).

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::FrontendSpec;
use tests::faulty::{disk, rule};
use tests::fuse_disk::{Call, FuseDisk, How, When};
use tests::single::Single;

/// For so long at most the kernel believes what it was told of a name.
const BELIEVED: Duration = Duration::from_secs(2);
/// More than there are threads that open images of one file system.
const MANY: usize = 40;
const RAM: &str = "[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"4M\"\n";

fn hang(disk: &FuseDisk, call: Call) {
    disk.obey(rule(call, When::Always, How::Hang));
}

/// A name of the file system at which nothing lies.
fn name_on(disk: &FuseDisk, number: usize) -> String {
    disk.path().with_file_name(format!("image{number}")).display().to_string()
}

fn is_open(daemon: &Daemon, id: &str) -> Result<()> {
    await_that(&format!("{id} to be open"), || {
        Ok(daemon.shown(id, "problem")?.is_null() && daemon.shown(id, "state")? != "failed")
    })
}

/// Waits until the disk is open, and works on it.
fn works(daemon: &Daemon, id: &str) -> Result<()> {
    is_open(daemon, id)?;
    let mut guest = daemon.frontend(id, &FrontendSpec::default())?;
    Single::new(&mut guest)?.exercise(guest.queue(0), 1)
}

/// Decision 0017: threads that a dead file system keeps are those of its own images.
#[test]
fn a_dead_file_system_keeps_no_other_image_from_being_opened() -> Result<()> {
    // Dropped last: it ends when the file system is gone.
    let daemon;
    let dead = disk("dead-mount", false)?;
    hang(&dead, Call::Name);
    let mut disks = String::new();
    for number in 0..MANY {
        let path = name_on(&dead, number);
        writeln!(disks, "[[disk]]\nid = \"dead{number}\"\npath = \"{path}\"")?;
    }
    disks += "[[disk]]\nid = \"local\"\npath = \"local.img\"\nsize = \"4M\"\n\
              [[disk]]\nid = \"moves\"\npath = \"moves.img\"\nsize = \"4M\"\nmigratable = true\n";
    daemon = Daemon::start("dead-mount-start", &disks)?;
    works(&daemon, "local")?;
    // Its locks are asked for now.
    works(&daemon, "moves")?;
    daemon.ask("disk add more --path more.img --size 4M")?;
    works(&daemon, "more")?;
    daemon.ask("disk resize more 8M")?;
    for number in [0, MANY - 1] {
        let problem = daemon.shown(&format!("dead{number}"), "problem")?.to_string();
        ensure!(problem.contains("its file system has not answered yet"), "{problem}");
    }
    dead.heal();
    await_that("all to be known", || {
        let list = daemon.ask("ls")?;
        let disks = list["disks"].as_array().ok_or_else(|| anyhow!("no disks: {list}"))?;
        Ok(disks.iter().filter(|disk| disk["state"] == "failed").count() == MANY)
    })
}

/// The size of a disk is looked at by threads that may wait, and its operator is told.
#[test]
fn a_resize_at_a_dead_file_system_stops_nobody_else() -> Result<()> {
    let daemon = Daemon::start("dead-mount-resize", RAM)?;
    let dead = disk("dead-mount-size", false)?;
    daemon.ask(&format!("disk add bad --path {} --cache direct", dead.path().display()))?;
    hang(&dead, Call::Name);
    pause(BELIEVED);
    let said = daemon.refuses("disk resize bad 8M")?;
    ensure!(said.contains("file system does not answer"), "{said}");
    works(&daemon, "ram")?;
    dead.heal();
    await_that("the resize", || Ok(daemon.ask("disk resize bad 8M").is_ok()))?;
    ensure!(daemon.shown("bad", "size_bytes")? == 8 << 20);
    Ok(())
}

/// A reload that fails at last does not take its disk from a guest because the image before it is slow to come back.
#[test]
fn a_disk_whose_reload_failed_is_served_as_before_when_its_file_system_answers() -> Result<()> {
    // Dropped last: they end when the file system is gone.
    let (holder, daemon);
    let slow = disk("dead-mount-before", false)?;
    let folder = slow.path().with_file_name("").display().to_string();
    let bad = format!("[[disk]]\nid = \"bad\"\npath = \"{}\"\n", slow.path().display());
    let other =
        |path: &str| format!("[[disk]]\nid = \"other\"\npath = \"{path}\"\nreadonly = true\n");
    daemon = Daemon::start("dead-mount-restore", RAM)?;
    let shared = daemon.dir().join("shared.raw");
    std::fs::write(&shared, vec![0; 4 << 20])?;
    let shared = shared.display().to_string();
    // Another process has it too, which is found when it is locked.
    holder = Daemon::start("dead-mount-holder", &other(&shared))?;
    daemon.configure(&format!("{RAM}{bad}{}", other(&shared)))?;
    daemon.ask("reload")?;
    works(&daemon, "bad")?;
    let taken = format!("[[disk]]\nid = \"bad\"\npath = \"{shared}\"\n");
    daemon.configure(&format!("{RAM}{taken}"))?;
    hang(&slow, Call::Open);
    let said = daemon.refuses("reload --force")?;
    ensure!(said.contains("shared.raw"), "{said}");
    ensure!(daemon.shown("bad", "state")? == "waiting", "{}", daemon.ask("show bad")?);
    works(&daemon, "ram")?;
    slow.heal();
    await_that("the image before", || {
        let shown = daemon.ask("show bad")?;
        let is_it = shown["path"].as_str().is_some_and(|path| path.starts_with(&folder));
        Ok(is_it && shown["problem"].is_null())
    })?;
    works(&daemon, "bad")?;
    drop(holder);
    Ok(())
}

/// The last close of an image, with which its file system is asked once more, is nobody's to wait for.
#[test]
fn a_last_close_that_hangs_stops_nobody_else() -> Result<()> {
    let daemon = Daemon::start("dead-mount-close", RAM)?;
    let dead = disk("dead-mount-last", false)?;
    let image = format!("--path {} --readonly", dead.path().display());
    daemon.ask(&format!("disk add bad {image}"))?;
    // Its name is not asked for: whoever looks at an image has it open.
    hang(&dead, Call::Open);
    hang(&dead, Call::Close);
    // Until no thread is free for it.
    for number in 0..MANY {
        daemon.ask(&format!("disk add dead{number} {image}"))?;
    }
    std::thread::scope(|scope| {
        let removed = scope.spawn(|| daemon.ask("disk rm bad"));
        let beside = await_that("the close to be asked for", || {
            daemon.ask("ls")?;
            Ok(dead.counts().closes.calls > 0)
        });
        let beside = beside.and_then(|()| works(&daemon, "ram"));
        dead.heal();
        removed.join().map_err(|_| anyhow!("a panic"))??;
        beside
    })?;
    daemon.ask(&format!("disk add bad {image}"))?;
    is_open(&daemon, "bad")
}

/// An answer to `disk add` that is late keeps nobody else from his.
#[test]
fn an_add_that_waits_for_its_file_system_is_waited_for_by_nobody_else() -> Result<()> {
    let daemon = Daemon::start("dead-mount-add", RAM)?;
    let dead = disk("dead-mount-new", false)?;
    hang(&dead, Call::Name);
    // Each of them is as long as an answer may be late, 10 s: together longer than a busy machine stands still.
    let attempts = 9;
    let mut was_first = false;
    for number in 0..attempts {
        let line = format!("disk add dead{number} --path {}", name_on(&dead, number));
        // Nothing is late on it: it is waited for as long as is waited for any.
        was_first |= std::thread::scope(|scope| {
            let before = dead.counts().names.calls;
            let added = scope.spawn(|| daemon.ask(&line));
            await_that("it to be looked for", || Ok(dead.counts().names.calls > before))?;
            let beside = daemon.ask("ls");
            let was_first = !added.is_finished();
            dead.heal();
            // It is no image, and is refused or shown.
            let _ = added.join().map_err(|_| anyhow!("a panic"))?;
            beside?;
            anyhow::Ok(was_first)
        })?;
        if was_first {
            break;
        }
        hang(&dead, Call::Name);
    }
    ensure!(was_first, "`ls` was never answered while an image was being opened");
    Ok(())
}

/// A daemon to which a guest was to come, and did not, keeps nothing of its image.
#[test]
fn an_image_that_nobody_waits_for_any_more_is_not_kept_locked() -> Result<()> {
    let daemon = Daemon::start("dead-mount-to", RAM)?;
    let other = Daemon::start("dead-mount-from", RAM)?;
    let slow = disk("dead-mount-lock", false)?;
    daemon.ask(&format!("disk add moves --path {} --migratable", slow.path().display()))?;
    let opens = slow.counts().opens.calls;
    hang(&slow, Call::Open);
    let guest = daemon.frontend("moves", &FrontendSpec::default())?;
    await_that("its image to be asked for", || Ok(slow.counts().opens.calls > opens))?;
    await_that("the guest to wait", || {
        let problem = daemon.shown("moves", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("has not answered yet")))
    })?;
    drop(guest);
    await_that("the guest to be gone", || Ok(daemon.shown("moves", "problem")?.is_null()))?;
    slow.heal();
    await_that("the image to be free", || {
        Ok(other.ask(&format!("disk add here --path {}", slow.path().display())).is_ok())
    })
}

/// Whether images are where they were is looked at on all file systems that answer, and said of the others.
#[test]
fn a_dead_file_system_blinds_nobody_to_what_becomes_of_other_images() -> Result<()> {
    let disks = "[[disk]]\nid = \"local\"\npath = \"local.img\"\nsize = \"4M\"\n";
    let daemon = Daemon::start("dead-mount-watch", disks)?;
    let dead = disk("dead-mount-look", false)?;
    for number in 0..MANY {
        let path = dead.path().display().to_string();
        daemon.ask(&format!("disk add seen{number} --path {path} --readonly"))?;
    }
    let before = dead.counts().names.calls;
    hang(&dead, Call::Name);
    pause(BELIEVED);
    await_that("a look to hang", || Ok(dead.counts().names.calls > before))?;
    // As long as it takes for as many looks as there could be.
    pause(BELIEVED);
    let image = daemon.dir().join("local.img");
    std::fs::rename(&image, daemon.dir().join("elsewhere.img"))?;
    let told = await_that("it to be seen", || {
        let problem = daemon.shown("local", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("was removed or renamed")))
    });
    let overdue = told.and_then(|()| {
        await_that("it to be said that looks are overdue", || {
            Ok(daemon.last_words().contains("images are not looked at"))
        })
    });
    dead.heal();
    overdue
}
