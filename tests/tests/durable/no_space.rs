//! Disks without space: writes wait, and go on by themselves when there is room, whatever happens to their
//! queue, their daemon, or its configuration meanwhile. No request is lost, and each holds what was written.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use testing::content::block_content;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::scratch::Scratch;
use testing::slots::{Kind, STATUS_OK, STATUS_UNWRITTEN, Slots};
use tests::faulty::STATUS_IOERR;
use tests::fuse_disk::{Call, FuseDisk, FuseDiskSpec, How, Rule, When};
use tests::ledger::Order;
use tests::mounts::Mount;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const ID: &str = "small";
const DISK_BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;
/// Writes in flight at a time.
const WRITES: u16 = 40;
/// A block that has been written while there was room.
const EARLY: u64 = 1_000;
const EIO: i32 = 5;
const EDQUOT: i32 = 122;

/// A file system with an image on it, and nothing else.
struct Full {
    _mount: Mount,
    folder: PathBuf,
    _scratch: Scratch,
}

impl Full {
    fn ext4(name: &str) -> Result<Full> {
        let scratch = Scratch::new(&std::env::temp_dir(), name)?;
        let folder = scratch.path().join("ext4");
        let mount = Mount::ext4(&scratch.path().join("ext4.img"), 24 << 20, &folder)?;
        Ok(Full { _mount: mount, folder, _scratch: scratch })
    }

    fn tmpfs(name: &str) -> Result<Full> {
        let scratch = Scratch::new(&std::env::temp_dir(), name)?;
        let folder = scratch.path().join("tmpfs");
        let mount = Mount::tmpfs(&folder, 12 << 20)?;
        Ok(Full { _mount: mount, folder, _scratch: scratch })
    }

    fn image(&self) -> PathBuf {
        self.folder.join("disk.raw")
    }

    /// Takes all the space that there is.
    fn fill(&self) -> Result<()> {
        let mut ballast = File::create(self.folder.join("ballast"))?;
        let mut piece = vec![0xa5; 1 << 20];
        while !piece.is_empty() {
            match ballast.write(&piece) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(28 | EDQUOT)) => {
                    piece.truncate(piece.len() / 2);
                }
                Err(error) => bail!("filling the file system: {error}"),
            }
        }
        Ok(ballast.sync_all()?)
    }

    fn make_room(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.folder.join("ballast"))?)
    }
}

fn spec(format: Format, inflight: bool) -> FrontendSpec {
    let ring = RingSpec { size: 128, format, event_index: true, indirect_entries: 0 };
    FrontendSpec { ring, inflight, ..FrontendSpec::linux() }
}

fn config(path: &Path, more: &str) -> String {
    format!("[[disk]]\nid = \"{ID}\"\npath = \"{}\"\nsize = \"8M\"\n{more}\n", path.display())
}

/// A guest with many writes under way, each of a block of its own.
struct Guest {
    frontend: Frontend,
    slots: Slots,
}

impl Guest {
    fn new(daemon: &Daemon, spec: &FrontendSpec) -> Result<Guest> {
        let mut frontend = daemon.frontend(ID, spec)?;
        let slots = Slots::new(frontend.memory(), WRITES + 1, BLOCK as u32)?;
        Ok(Guest { frontend, slots })
    }

    fn ask(&mut self, slot: u16, kind: Kind, block: u64) -> Result<()> {
        let mut bytes = vec![0; BLOCK];
        if kind == Kind::Write {
            block_content(block, &mut bytes);
        }
        self.slots.write_data(slot, &bytes);
        self.slots.write_header(slot, kind, block * (BLOCK as u64 / 512));
        let (buffers, count) = self.slots.buffers(slot, kind);
        let queue = self.frontend.queue(0);
        queue.driver.arm_calls();
        queue.driver.add(&buffers[..count], slot.into())?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }

    /// How many have ended by now.
    fn take(&mut self) -> Result<usize> {
        let mut ended = 0;
        while self.frontend.queue(0).driver.take_used().is_some() {
            ended += 1;
        }
        let fault = self.frontend.queue(0).driver.fault();
        ensure!(fault.is_none(), "the device broke the rules of the ring: {fault:?}");
        Ok(ended)
    }

    fn await_ends(&mut self, count: usize) -> Result<()> {
        let mut ended = 0;
        await_that("the requests to end", || {
            ended += self.take()?;
            Ok(ended >= count)
        })?;
        ensure!(ended == count, "{ended} requests ended, and {count} were asked");
        Ok(())
    }

    /// One request; its status.
    fn one(&mut self, kind: Kind, block: u64) -> Result<u8> {
        self.ask(WRITES, kind, block)?;
        self.await_ends(1)?;
        Ok(self.slots.status(WRITES))
    }

    fn write_all(&mut self) -> Result<()> {
        (0..WRITES).try_for_each(|slot| self.ask(slot, Kind::Write, u64::from(slot) * 3))
    }

    /// The same, of blocks that nobody has written yet.
    fn write_all_anew(&mut self) -> Result<()> {
        (0..WRITES).try_for_each(|slot| self.ask(slot, Kind::Write, u64::from(slot) * 3 + 1))
    }

    fn statuses(&self) -> Vec<u8> {
        (0..WRITES).map(|slot| self.slots.status(slot)).collect()
    }

    /// All writes have ended well, and are on the disk.
    fn succeed(&mut self, image: &Path) -> Result<()> {
        self.await_ends(WRITES.into())?;
        let statuses = self.statuses();
        ensure!(statuses.iter().all(|status| *status == STATUS_OK), "{statuses:?}");
        ensure!(self.one(Kind::Flush, 0)? == STATUS_OK, "a flush failed");
        let (file, mut found, mut expected) = (File::open(image)?, vec![0; BLOCK], vec![0; BLOCK]);
        for slot in 0..WRITES {
            let block = u64::from(slot) * 3;
            file.read_exact_at(&mut found, block * BLOCK as u64)?;
            block_content(block, &mut expected);
            ensure!(found == expected, "block {block} is not what was written there");
        }
        Ok(())
    }
}

fn log_of(daemon: &Daemon) -> Result<String> {
    Ok(std::fs::read_to_string(daemon.dir().join("log"))?)
}

fn await_log(daemon: &Daemon, words: &str) -> Result<()> {
    let waited = await_that("a line of its log", || Ok(log_of(daemon)?.contains(words)));
    waited.with_context(|| format!("no line says {words:?}:\n{}", daemon.last_words()))
}

fn await_state(daemon: &Daemon, wanted: &str) -> Result<()> {
    let mut state = serde_json::Value::Null;
    await_that("its state", || {
        state = daemon.shown(ID, "state")?;
        Ok(state == wanted)
    })
    .with_context(|| format!("it is {state}, and not {wanted:?}"))
}

fn waiting(daemon: &Daemon) -> Result<u64> {
    let counters = daemon.shown(ID, "counters")?;
    let count = |name: &str| counters[name].as_u64().unwrap_or(0);
    Ok(count("waiting_full") + count("waiting_failed"))
}

/// The guest's writes wait for space.
fn stall(full: &Full, daemon: &Daemon, guest: &mut Guest) -> Result<()> {
    ensure!(guest.one(Kind::Write, EARLY)? == STATUS_OK, "a write while there is room");
    full.fill()?;
    guest.write_all()?;
    await_state(daemon, "no space")?;
    ensure!(guest.take()? < WRITES.into(), "there was room");
    let problem = daemon.shown(ID, "problem")?;
    let says = "there is no space for what its guest writes";
    ensure!(problem.as_str().is_some_and(|text| text.contains(says)), "{problem}");
    Ok(())
}

/// Every kind of file system and cache, ring and front-end.
#[test]
fn writes_without_space_wait_and_go_on_by_themselves() -> Result<()> {
    for (name, cache) in [("ext4", "direct"), ("ext4", "page"), ("tmpfs", "auto")] {
        for format in [Format::Split, Format::Packed] {
            let full =
                if name == "ext4" { Full::ext4("ns-wait")? } else { Full::tmpfs("ns-wait")? };
            let image = full.image();
            let daemon = Daemon::start("no-space", &config(&image, &format!("cache = {cache:?}")))?;
            let mut guest = Guest::new(&daemon, &spec(format, false))?;
            stall(&full, &daemon, &mut guest).with_context(|| format!("{name} {cache}"))?;
            if name == "ext4" {
                // Others of its queue go on: a read, and a flush of what was answered.
                ensure!(guest.one(Kind::Read, EARLY)? == STATUS_OK, "a read meanwhile");
                ensure!(guest.one(Kind::Flush, 0)? == STATUS_OK, "a flush meanwhile");
            }
            let listed = daemon.ask("ls")?;
            ensure!(listed.to_string().contains("no space"), "{listed}");
            full.make_room()?;
            guest.succeed(&image).with_context(|| format!("{name} {cache} {format:?}"))?;
            await_state(&daemon, "running")?;
            let counters = daemon.shown(ID, "counters")?;
            ensure!(counters["errors"] == 0 && waiting(&daemon)? == 0, "{counters}");
            ensure!(counters["stalls"].as_u64().is_some_and(|count| count > 0), "{counters}");
        }
    }
    Ok(())
}

/// What may happen while requests wait, to a guest whose front-end keeps a record of them.
#[test]
fn requests_that_wait_survive_whatever_happens_to_their_queue() -> Result<()> {
    for format in [Format::Split, Format::Packed] {
        for what in ["kill", "upgrade", "stop", "resize", "move"] {
            let full = Full::ext4("ns-what")?;
            let image = full.image();
            let disk = config(&image, "cache = \"direct\"");
            let cpus = if what == "move" { "0-1" } else { "0" };
            let mut daemon = Daemon::with("no-space-what", &disk).cpus(cpus).start()?;
            let mut guest = Guest::new(&daemon, &spec(format, true))?;
            stall(&full, &daemon, &mut guest)?;
            match what {
                "kill" => {
                    daemon.kill()?;
                    daemon.start_again()?;
                    guest.frontend.reconnect(daemon.connect(ID)?)?;
                }
                "upgrade" => drop(daemon.upgrade()?),
                "stop" => guest.frontend.stop_and_go_on()?,
                "resize" => {
                    let larger = disk.replace("8M", "9M");
                    daemon.configure(&larger)?;
                    daemon.ask("reload")?;
                    ensure!(daemon.shown(ID, "size_bytes")? == 9 << 20, "it was not resized");
                }
                _ => {
                    let at = daemon.shown(ID, "queues")?[0]["sidecore"].clone();
                    let to = if at == 0 { 1 } else { 0 };
                    daemon.ask(&format!("disk move {ID} --to {to}"))?;
                }
            }
            await_state(&daemon, "no space").context(what)?;
            full.make_room()?;
            guest.succeed(&image).with_context(|| format!("{what} {format:?}"))?;
            await_state(&daemon, "running")?;
        }
    }
    Ok(())
}

/// Without a record nobody could go on with them: their guest is told.
#[test]
fn requests_that_wait_end_when_their_ring_stops_without_a_record() -> Result<()> {
    let full = Full::ext4("ns-end")?;
    let daemon = Daemon::start("no-space-end", &config(&full.image(), "cache = \"direct\""))?;
    let mut guest = Guest::new(&daemon, &spec(Format::Split, false))?;
    stall(&full, &daemon, &mut guest)?;
    guest.frontend.stop_and_go_on()?;
    guest.await_ends(WRITES.into())?;
    let statuses = guest.statuses();
    ensure!(!statuses.contains(&STATUS_UNWRITTEN), "{statuses:?}");
    ensure!(statuses.contains(&STATUS_IOERR), "{statuses:?}");
    Ok(())
}

/// Another process does not find them either: an upgrade is refused, and says why, until an operator insists.
#[test]
fn an_upgrade_ends_no_request_that_waits_unless_an_operator_insists() -> Result<()> {
    let full = Full::ext4("ns-insist")?;
    let image = full.image();
    let mut daemon = Daemon::start("no-space-insist", &config(&image, "cache = \"direct\""))?;
    let mut guest = Guest::new(&daemon, &spec(Format::Split, false))?;
    stall(&full, &daemon, &mut guest)?;
    let said = daemon.refuses_upgrade("would end with an error")?;
    ensure!(said.contains(&format!("of disk {ID:?} would end with an error")), "{said}");
    ensure!(said.contains("they are in no in-flight record"), "{said}");
    ensure!(said.contains("make room") && said.contains("`--force`"), "{said}");
    await_state(&daemon, "no space")?;
    full.make_room()?;
    guest.succeed(&image)?;
    await_state(&daemon, "running")?;
    daemon.upgrade()?;

    full.fill()?;
    guest.write_all_anew()?;
    await_state(&daemon, "no space")?;
    daemon.upgrade_by_force()?;
    guest.await_ends(WRITES.into())?;
    ensure!(guest.statuses().contains(&STATUS_IOERR), "{:?}", guest.statuses());
    await_log(&daemon, "will end with an error: no in-flight record has them")?;
    await_log(&daemon, "requests that still waited have ended with an error")
}

/// `disk set` holds for those that wait, too.
#[test]
fn an_operator_may_have_them_fail() -> Result<()> {
    let full = Full::ext4("ns-set")?;
    let daemon = Daemon::start("no-space-set", "")?;
    let path = full.image();
    daemon.ask(&format!("disk add {ID} --path {} --size 8M", path.display()))?;
    let mut guest = Guest::new(&daemon, &spec(Format::Split, true))?;
    stall(&full, &daemon, &mut guest)?;
    let view = daemon.ask(&format!("disk set {ID} --on-full error"))?;
    ensure!(view["on_full"] == "error" && view["on_error"] == "error", "{view}");
    guest.await_ends(WRITES.into())?;
    let failed = guest.statuses().iter().filter(|status| **status == STATUS_IOERR).count();
    ensure!(failed > 0, "{:?}", guest.statuses());
    ensure!(daemon.shown(ID, "faults")?["enospc"] == failed, "{}", daemon.shown(ID, "faults")?);
    await_state(&daemon, "running")?;
    await_log(
        &daemon,
        &format!("{failed} requests were failed, since `on_full` is \"error\" now"),
    )?;
    let log = log_of(&daemon)?;
    ensure!(!log.contains("its requests go on"), "none of them did:\n{log}");
    let said = daemon.refuses("disk add m --backend memory --size 1M --on-full wait")?;
    ensure!(said.contains("a memory back-end takes no `--on-full`"), "{said}");
    Ok(())
}

/// A guest that is given errors: the log tells of it once, whatever the guest tells its users.
#[test]
fn errors_that_a_guest_is_given_are_told_once() -> Result<()> {
    let full = Full::tmpfs("ns-error")?;
    let disk = config(&full.image(), "on_full = \"error\"");
    let daemon = Daemon::start("no-space-error", &disk)?;
    let mut guest = Guest::new(&daemon, &spec(Format::Split, true))?;
    ensure!(guest.one(Kind::Write, EARLY)? == STATUS_OK, "a write while there is room");
    // Behind the end of its disk: its own mistake.
    ensure!(guest.one(Kind::Read, 1 << 40)? == STATUS_IOERR, "a read of what is not there");
    full.fill()?;
    let says = "its guest was given I/O errors";
    ensure!(!log_of(&daemon)?.contains(says), "{}", log_of(&daemon)?);
    ensure!(guest.one(Kind::Write, 3)? == STATUS_IOERR, "a write without space");
    await_log(&daemon, &format!("{says}: 1 for want of space"))?;
    let looked = || Ok::<_, anyhow::Error>(daemon.shown(ID, "faults")?["enospc"] == 2);
    ensure!(guest.one(Kind::Write, 6)? == STATUS_IOERR, "a write without space");
    await_that("the count", looked)?;
    ensure!(log_of(&daemon)?.matches(says).count() == 1, "{}", log_of(&daemon)?);
    Ok(())
}

/// A quota, and a medium that fails: with `on_error = "wait"` reads wait, too, and flushes never do.
#[test]
fn a_medium_that_fails_is_waited_for_when_that_is_wished() -> Result<()> {
    let order = Order::default();
    let medium = FuseDiskSpec { size_bytes: DISK_BYTES, writeback_cache: false, order };
    let medium = FuseDisk::mount("ns-medium", &medium)?;
    let path = medium.path();
    let disk = config(&path, "cache = \"direct\"\non_error = \"wait\"");
    let daemon = Daemon::start("no-space-medium", &disk)?;
    let mut guest = Guest::new(&daemon, &spec(Format::Split, true))?;
    let fail = |call, errno| Rule { call, when: When::Always, how: How::Error(errno) };
    for (errno, state) in [(EDQUOT, "no space"), (EIO, "failing")] {
        medium.obey(fail(Call::Write, errno));
        guest.write_all()?;
        await_state(&daemon, state)?;
        medium.heal();
        guest.await_ends(WRITES.into())?;
        ensure!(guest.statuses().iter().all(|status| *status == STATUS_OK), "{errno}");
        await_state(&daemon, "running")?;
    }
    medium.obey(fail(Call::Read, EIO));
    guest.ask(0, Kind::Read, 3)?;
    await_state(&daemon, "failing")?;
    medium.heal();
    guest.await_ends(1)?;
    ensure!(guest.slots.status(0) == STATUS_OK, "a read after the medium is well again");
    medium.obey(fail(Call::Sync, EIO));
    ensure!(guest.one(Kind::Flush, 0)? == STATUS_IOERR, "a flush that failed");
    medium.heal();
    ensure!(guest.one(Kind::Flush, 0)? == STATUS_IOERR, "a flush that failed stays failed");
    Ok(())
}
