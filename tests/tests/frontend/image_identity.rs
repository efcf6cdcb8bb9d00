//! Which image a guest is on: one that comes back is served only from the image that it was on, whatever
//! an operator has put in its place meanwhile; and what others do to an image is said.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::slots::{Kind, STATUS_OK};
use tests::single::Single;

const DISK: &str = "vm1";
const BYTES: usize = 1 << 20;
/// What each image is full of.
const FILLS: [(&str, u8); 2] = [("a.raw", 0xaa), ("b.raw", 0xbb)];
/// A block that guests write.
const BLOCK: u64 = 3;

/// A daemon with two images, and a guest on the first.
struct Bed {
    daemon: Daemon,
    guest: Frontend,
}

impl Bed {
    fn start(name: &str) -> Result<Bed> {
        let mut daemon = Daemon::start(name, "")?;
        for (image, fill) in FILLS {
            std::fs::write(path(&daemon, image), vec![fill; BYTES])?;
        }
        declare(&daemon, "a.raw")?;
        daemon.stop()?;
        daemon.start_again()?;
        let guest = Bed::boot(&daemon)?;
        Ok(Bed { daemon, guest })
    }

    /// A VMM that starts fresh, and its guest's first requests.
    fn boot(daemon: &Daemon) -> Result<Frontend> {
        let spec = FrontendSpec { inflight: true, ..FrontendSpec::linux() };
        let mut guest = daemon.frontend(DISK, &spec)?;
        let single = Single::new(&mut guest)?;
        single.exercise(guest.queue(0), BLOCK)?;
        Ok(guest)
    }

    /// The VMM connects again, as QEMU does with `reconnect=1`.
    fn come_back(&mut self) -> Result<()> {
        self.guest.reconnect(self.daemon.connect(DISK)?)
    }

    /// Another process connects, whose guest has written what is in this one's rings.
    fn come_back_as_another(&mut self) -> Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let dialer = env!("CARGO_BIN_EXE_dialer");
        let mut dialer = Command::new(dialer)
            .arg(self.daemon.socket(DISK))
            .stdin(OwnedFd::from(theirs))
            .spawn()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let connection = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        ensure!(dialer.wait()?.success(), "the dialer failed");
        self.guest.reconnect(UnixStream::from(connection.context("no connection came")?))
    }

    /// The guest waits, with words that name both images, and the other image is as it was.
    fn waits(&mut self, words: &[&str]) -> Result<()> {
        let mut shown = serde_json::Value::Null;
        await_that("the guest to wait for its image", || {
            shown = self.daemon.ask(&format!("show {DISK}"))?;
            let problem = shown["problem"].as_str().unwrap_or_default();
            Ok(problem.contains("its guest was on"))
        })?;
        let problem = shown["problem"].as_str().unwrap_or_default();
        for word in words.iter().chain(&["sidecore disk accept vm1"]) {
            ensure!(problem.contains(word), "{problem:?} has no {word:?}");
        }
        ensure!(shown["state"] == "waiting" && shown["queues_attached"] == 0, "{shown}");
        ensure!(shown["refusals"].as_u64() >= Some(1), "{shown}");
        let list = self.daemon.ask("disk ls")?.to_string();
        ensure!(list.contains("waiting"), "{list}");
        let log = self.daemon.last_words();
        ensure!(log.contains("its guest was on"), "{log}");
        is_untouched(&self.daemon, "b.raw")
    }

    /// The guest goes on, and finds what it wrote.
    fn goes_on(&mut self) -> Result<()> {
        let single = Single::new(&mut self.guest)?;
        let ended = single.send(self.guest.queue(0), Kind::Read, BLOCK)?;
        ensure!(ended.status == STATUS_OK, "{ended:?}");
        single.compare(BLOCK)?;
        single.exercise(self.guest.queue(0), BLOCK + 1)
    }
}

/// Its VMM has hung up, and that was heard.
fn is_without_a_guest(daemon: &Daemon) -> Result<()> {
    await_that("the disk to be without a guest", || Ok(daemon.shown(DISK, "state")? == "waiting"))
}

fn is_untouched(daemon: &Daemon, image: &str) -> Result<()> {
    let fill = FILLS.iter().find(|(name, _)| *name == image).map_or(0, |(_, fill)| *fill);
    let bytes = std::fs::read(path(daemon, image))?;
    let is_it = bytes.len() == BYTES && bytes.iter().all(|byte| *byte == fill);
    ensure!(is_it, "{image} was written");
    Ok(())
}

fn path(daemon: &Daemon, image: &str) -> PathBuf {
    daemon.dir().join("images").join(image)
}

fn declare(daemon: &Daemon, image: &str) -> Result<()> {
    let disk = format!("[[disk]]\nid = \"{DISK}\"\npath = \"images/{image}\"\n");
    daemon.configure(&disk)
}

/// A reload that takes its image from a guest is for whoever insists.
fn reload_under_its_guest(daemon: &Daemon) -> Result<()> {
    let refused = daemon.refuses("reload")?;
    ensure!(refused.contains("it would take from guests what they use"), "{refused}");
    daemon.ask("reload --force")?;
    Ok(())
}

/// So is `disk rm`.
fn remove_under_its_guest(daemon: &Daemon) -> Result<()> {
    let refused = daemon.refuses(&format!("disk rm {DISK}"))?;
    ensure!(refused.contains("a guest uses disk \"vm1\""), "{refused}");
    daemon.ask(&format!("disk rm {DISK} --force"))?;
    Ok(())
}

#[test]
fn a_reload_with_another_path_leaves_the_guest_waiting_and_its_own_image_serves_it() -> Result<()> {
    let mut bed = Bed::start("identity-reload")?;
    declare(&bed.daemon, "b.raw")?;
    reload_under_its_guest(&bed.daemon)?;
    bed.come_back()?;
    bed.waits(&["a.raw", "b.raw (inode", "is another image"])?;
    declare(&bed.daemon, "a.raw")?;
    // A guest that waits loses nothing.
    bed.daemon.ask("reload")?;
    bed.come_back()?;
    bed.goes_on()?;
    is_untouched(&bed.daemon, "b.raw")?;
    bed.daemon.stop()
}

/// Whoever finds another file in the image's place puts the image back: a reload opens that, and until then nobody can
/// have the guest go on with a file that has no name any more.
#[test]
fn an_image_that_is_put_back_is_opened_by_a_reload() -> Result<()> {
    let mut bed = Bed::start("identity-back")?;
    bed.daemon.kill()?;
    let (image, kept) = (path(&bed.daemon, "a.raw"), path(&bed.daemon, "kept.raw"));
    std::fs::rename(&image, &kept)?;
    std::fs::copy(path(&bed.daemon, "b.raw"), &image)?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["a.raw", "is another image"])?;
    std::fs::rename(&kept, &image)?;
    let refused = bed.daemon.refuses(&format!("disk accept {DISK}"))?;
    ensure!(refused.contains("is not the image that is open"), "{refused}");
    await_that("a word of what is there", || {
        Ok(bed.daemon.last_words().contains("for which its guest waits: `sidecore reload`"))
    })?;
    let dry = bed.daemon.ask("reload --dry-run")?;
    let effect = &dry["effects"][0];
    ensure!(effect["id"] == DISK && effect["guest_loses"] == false, "{dry}");
    bed.daemon.ask("reload")?;
    bed.come_back()?;
    bed.goes_on()?;
    ensure!(bed.daemon.ask("reload")?["changes"].as_array().is_some_and(Vec::is_empty));
    bed.daemon.stop()
}

#[test]
fn a_smaller_size_at_a_start_leaves_the_guest_waiting() -> Result<()> {
    let mut bed = Bed::start("identity-smaller")?;
    let with_size = |daemon: &Daemon, size: &str| {
        let disk = format!("[[disk]]\nid = \"{DISK}\"\npath = \"images/a.raw\"\n{size}\n");
        daemon.configure(&disk)
    };
    bed.daemon.kill()?;
    with_size(&bed.daemon, "size = \"512K\"")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["1M of", "would have 512K"])?;
    // Still less than its guest was on.
    with_size(&bed.daemon, "size = \"768K\"")?;
    bed.daemon.ask("reload")?;
    bed.waits(&["would have 768K"])?;
    with_size(&bed.daemon, "size = \"1M\"")?;
    bed.daemon.ask("reload")?;
    bed.goes_on()?;
    // Nobody waits for what an operator has accepted.
    bed.daemon.kill()?;
    with_size(&bed.daemon, "size = \"512K\"")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["would have 512K"])?;
    bed.daemon.ask(&format!("disk accept {DISK}"))?;
    bed.goes_on()?;
    bed.daemon.stop()
}

#[test]
fn a_disk_removed_and_added_with_another_path_leaves_the_guest_waiting() -> Result<()> {
    let mut bed = Bed::start("identity-api")?;
    // From here on it is a disk of the API's.
    bed.guest.disconnect()?;
    is_without_a_guest(&bed.daemon)?;
    bed.daemon.configure("")?;
    bed.daemon.ask("reload")?;
    let add = |image| format!("disk add {DISK} --path {}", path(&bed.daemon, image).display());
    let (add_a, add_b) = (add("a.raw"), add("b.raw"));
    bed.daemon.ask(&add_a)?;
    bed.guest = Bed::boot(&bed.daemon)?;
    remove_under_its_guest(&bed.daemon)?;
    bed.daemon.ask(&add_b)?;
    bed.come_back()?;
    bed.waits(&["a.raw", "b.raw (inode", "is another image"])?;
    // Another kind of disk is another image, too.
    for kind in ["--backend null --size 1M", "--backend memory --size 1M"] {
        remove_under_its_guest(&bed.daemon)?;
        bed.daemon.ask(&format!("disk add {DISK} {kind}"))?;
        bed.come_back()?;
        bed.waits(&["a.raw"])?;
    }
    bed.daemon.stop()
}

/// Two disks, and where their guests come to.
fn disks_at(sockets: [&str; 2]) -> String {
    let disk = |id, image, socket| {
        format!("[[disk]]\nid = \"{id}\"\npath = \"images/{image}\"\nsocket = \"{socket}\"\n")
    };
    disk(DISK, "a.raw", sockets[0]) + &disk("vm2", "b.raw", sockets[1])
}

/// The guest of the first image has come to the second disk, and is not served.
fn waits_at_the_other(daemon: &Daemon) -> Result<()> {
    let mut problem = serde_json::Value::Null;
    await_that("the guest to wait", || {
        problem = daemon.shown("vm2", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("its guest was on")))
    })?;
    ensure!(problem.as_str().is_some_and(|text| text.contains("a.raw")), "{problem}");
    is_untouched(daemon, "b.raw")
}

/// A guest is known by the socket that its VMM comes to: that knows nothing of disks' names.
#[test]
fn disks_that_swap_their_sockets_do_not_swap_their_guests() -> Result<()> {
    let mut bed = Bed::start("identity-sockets")?;
    let (own, other) = (format!("{DISK}.sock"), "vm2.sock");
    bed.daemon.kill()?;
    bed.daemon.configure(&disks_at([other, &own]))?;
    bed.daemon.start_again()?;
    bed.guest.reconnect(UnixStream::connect(bed.daemon.dir().join(&own))?)?;
    waits_at_the_other(&bed.daemon)?;
    // Another name of the same disk is no other guest.
    bed.daemon.kill()?;
    let renamed = disks_at([&own, other]).replace(&format!("id = \"{DISK}\""), "id = \"renamed\"");
    bed.daemon.configure(&renamed)?;
    bed.daemon.start_again()?;
    bed.guest.reconnect(UnixStream::connect(bed.daemon.dir().join(&own))?)?;
    bed.goes_on()?;
    ensure!(bed.daemon.shown("renamed", "problem")?.is_null());
    bed.daemon.stop()
}

#[test]
fn a_file_edited_while_the_daemon_was_dead_leaves_the_guest_waiting_until_it_is_accepted()
-> Result<()> {
    let mut bed = Bed::start("identity-killed")?;
    bed.daemon.kill()?;
    declare(&bed.daemon, "b.raw")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["a.raw", "b.raw (inode", "is another image"])?;
    // So it is after one more death, and after an upgrade.
    bed.daemon.kill()?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["a.raw"])?;
    bed.daemon.upgrade()?;
    bed.waits(&["a.raw"])?;
    bed.daemon.ask(&format!("disk accept {DISK}"))?;
    let single = Single::new(&mut bed.guest)?;
    single.exercise(bed.guest.queue(0), BLOCK)?;
    let refused = bed.daemon.refuses(&format!("disk accept {DISK}"))?;
    ensure!(refused.contains("nothing to accept"), "{refused}");
    // What was accepted is what it is on from now on.
    bed.daemon.kill()?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.goes_on()?;
    bed.is_untouched_but_once("a.raw")?;
    bed.daemon.stop()
}

impl Bed {
    /// Nothing but what the guest wrote before it was given another image.
    fn is_untouched_but_once(&self, image: &str) -> Result<()> {
        let bytes = std::fs::read(path(&self.daemon, image))?;
        let after = (BLOCK as usize + 1) * 4096;
        ensure!(bytes[after..].iter().all(|byte| *byte == 0xaa), "{image} was written");
        Ok(())
    }
}

#[test]
fn a_guest_that_starts_fresh_is_served_from_what_is_there() -> Result<()> {
    let mut bed = Bed::start("identity-fresh")?;
    declare(&bed.daemon, "b.raw")?;
    reload_under_its_guest(&bed.daemon)?;
    bed.come_back()?;
    bed.waits(&["a.raw"])?;
    // Where its rings stand its in-flight record alone says, so it is not told that in order.
    drop(bed.guest);
    bed.guest = Bed::boot(&bed.daemon)?;
    ensure!(bed.daemon.shown(DISK, "problem")?.is_null());
    // And from then on it is on that one.
    bed.daemon.kill()?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.goes_on()?;
    bed.daemon.kill()?;
    declare(&bed.daemon, "a.raw")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    await_that("the guest to wait", || {
        let problem = bed.daemon.shown(DISK, "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("a.raw") && text.contains("accept")))
    })?;
    bed.daemon.stop()
}

#[test]
fn another_file_of_the_same_name_is_another_image() -> Result<()> {
    let mut bed = Bed::start("identity-renamed")?;
    bed.daemon.kill()?;
    let (own, other) = (path(&bed.daemon, "a.raw"), path(&bed.daemon, "b.raw"));
    let aside = path(&bed.daemon, "aside.raw");
    std::fs::rename(&own, &aside)?;
    std::fs::copy(&other, &own)?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["what is there now"])?;
    bed.daemon.kill()?;
    // Its own file under whatever name.
    std::fs::rename(&aside, &own)?;
    std::fs::hard_link(&own, path(&bed.daemon, "c.raw"))?;
    declare(&bed.daemon, "c.raw")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.goes_on()?;
    bed.daemon.stop()
}

/// The state of a daemon of an earlier version, or of another host.
#[test]
fn what_nobody_remembers_is_served_and_remembered_from_then_on() -> Result<()> {
    let mut bed = Bed::start("identity-unknown")?;
    bed.daemon.kill()?;
    std::fs::remove_dir_all(bed.daemon.dir().join("state"))?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.goes_on()?;
    bed.daemon.kill()?;
    declare(&bed.daemon, "b.raw")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["a.raw", "b.raw (inode", "is another image"])?;
    // What cannot be read is not taken for nothing.
    bed.daemon.kill()?;
    let kept = bed.daemon.dir().join("state/images").join(DISK);
    let text = std::fs::read_to_string(&kept)?;
    std::fs::write(&kept, &text[..text.len() / 2])?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    is_said(&bed.daemon, "which image its guest was on cannot be read")?;
    is_untouched(&bed.daemon, "b.raw")?;
    bed.daemon.stop()
}

#[test]
fn an_image_that_was_cut_while_the_daemon_was_dead_is_not_filled_with_zeroes() -> Result<()> {
    let mut bed = Bed::start("identity-cut")?;
    bed.daemon.kill()?;
    let image = std::fs::File::options().write(true).open(path(&bed.daemon, "a.raw"))?;
    image.set_len(64 << 10)?;
    let disk = format!("[[disk]]\nid = \"{DISK}\"\npath = \"images/a.raw\"\nsize = \"1M\"\n");
    bed.daemon.configure(&disk)?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["was cut to 64K"])?;
    // That start made it as long as it was; the next one knows it all the same, and so does a reload.
    for _ in 0..2 {
        bed.daemon.kill()?;
        bed.daemon.start_again()?;
        bed.come_back()?;
        bed.waits(&["was cut to 64K"])?;
    }
    bed.daemon.configure(&disk.replace("1M", "2M"))?;
    bed.daemon.ask("reload")?;
    is_said(&bed.daemon, "was cut to 64K")?;
    bed.daemon.ask(&format!("disk accept {DISK}"))?;
    is_well_again(&bed.daemon)?;
    bed.daemon.stop()
}

/// The text of the disk's problem holds `word` some time.
fn is_said(daemon: &Daemon, word: &str) -> Result<()> {
    let mut problem = serde_json::Value::Null;
    await_that(word, || {
        problem = daemon.shown(DISK, "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains(word)))
    })?;
    ensure!(daemon.last_words().contains(word), "the log has no {word:?}: {}", daemon.last_words());
    Ok(())
}

fn is_well_again(daemon: &Daemon) -> Result<()> {
    await_that("no problem", || Ok(daemon.shown(DISK, "problem")?.is_null()))
}

fn set_len(path: &Path, bytes: u64) -> Result<()> {
    Ok(std::fs::File::options().write(true).open(path)?.set_len(bytes)?)
}

#[test]
fn what_others_do_to_an_image_under_its_guest_is_said() -> Result<()> {
    let mut bed = Bed::start("identity-watch")?;
    let (own, aside) = (path(&bed.daemon, "a.raw"), path(&bed.daemon, "aside.raw"));
    std::fs::rename(&own, &aside)?;
    is_said(&bed.daemon, "was removed or renamed")?;
    std::fs::copy(path(&bed.daemon, "b.raw"), &own)?;
    is_said(&bed.daemon, "is another image than the one that the disk is on")?;
    std::fs::rename(&aside, &own)?;
    is_well_again(&bed.daemon)?;
    set_len(&own, 2 * BYTES as u64)?;
    is_said(&bed.daemon, "has grown to 2M")?;
    set_len(&own, BYTES as u64 / 2)?;
    is_said(&bed.daemon, "was cut to 512K")?;
    set_len(&own, BYTES as u64)?;
    is_well_again(&bed.daemon)?;
    bed.goes_on()?;
    bed.daemon.stop()
}

#[test]
fn a_resize_of_an_image_without_its_name_is_refused() -> Result<()> {
    let mut bed = Bed::start("identity-resize")?;
    bed.guest.disconnect()?;
    is_without_a_guest(&bed.daemon)?;
    bed.daemon.configure("")?;
    bed.daemon.ask("reload")?;
    let image = path(&bed.daemon, "a.raw");
    bed.daemon.ask(&format!("disk add {DISK} --path {}", image.display()))?;
    std::fs::remove_file(&image)?;
    for size in ["2M", "1M"] {
        let said = bed.daemon.refuses(&format!("disk resize {DISK} {size}"))?;
        ensure!(said.contains("was removed"), "{said}");
    }
    std::fs::copy(path(&bed.daemon, "b.raw"), &image)?;
    let said = bed.daemon.refuses(&format!("disk resize {DISK} 2M"))?;
    ensure!(said.contains("is another file than the one"), "{said}");
    is_untouched(&bed.daemon, "b.raw")?;
    bed.daemon.stop()
}

/// A backup is moved over the image of a VM that was stopped, and the VM is started: it has the backup, or waits for a
/// reload that opens it, and never goes on with a file that has no name any more.
#[test]
fn a_vm_that_is_started_has_what_its_path_names() -> Result<()> {
    let mut bed = Bed::start("identity-restored")?;
    let (own, other) = (path(&bed.daemon, "a.raw"), path(&bed.daemon, "b.raw"));
    for waits in [true, false] {
        let backup = path(&bed.daemon, "backup.raw");
        std::fs::copy(&other, &backup)?;
        std::fs::rename(&backup, &own)?;
        is_said(&bed.daemon, "is another image than the one that the disk is on")?;
        // It goes on until then, also when its VMM connects anew.
        bed.goes_on()?;
        bed.come_back()?;
        bed.goes_on()?;
        // Not one that only says so: what is open may be the image of whoever had this disk before.
        bed.come_back_as_another()?;
        is_said(&bed.daemon, "is not what is open here, for which its guest waits")?;
        ensure!(bed.daemon.shown(DISK, "queues_attached")? == 0);
        bed.come_back()?;
        bed.goes_on()?;
        drop(bed.guest);
        is_without_a_guest(&bed.daemon)?;
        let spec = FrontendSpec::linux();
        if waits {
            let _fresh = bed.daemon.frontend(DISK, &spec)?;
            is_said(&bed.daemon, "is not what is open here, for which its guest waits")?;
            ensure!(bed.daemon.shown(DISK, "queues_attached")? == 0);
            let shown = bed.daemon.ask("reload --dry-run")?.to_string();
            ensure!(shown.contains("its path names another image than is open"), "{shown}");
            bed.daemon.ask("reload")?;
        } else {
            bed.daemon.ask("reload")?;
        }
        is_well_again(&bed.daemon)?;
        bed.guest = Bed::boot(&bed.daemon)?;
        let written = std::fs::read(&own)?;
        let at = BLOCK as usize * 4096;
        ensure!(written[at..at + 4096] != [FILLS[1].1; 4096], "it writes elsewhere");
        ensure!(written[..at] == vec![FILLS[1].1; at], "it is on another image");
    }
    is_untouched(&bed.daemon, "b.raw")?;
    bed.daemon.stop()
}

/// The disks of two guests swap their sockets, the one guest begins anew on the other's disk, and the daemon dies: what the
/// other guest was on is known all the same.
#[test]
fn a_guest_whose_disk_has_another_guest_meanwhile_waits() -> Result<()> {
    let mut bed = Bed::start("identity-swapped")?;
    let (own, other) = (format!("{DISK}.sock"), "vm2.sock");
    bed.daemon.kill()?;
    bed.daemon.configure(&disks_at([other, &own]))?;
    bed.daemon.start_again()?;
    // A VM that starts is served from what its socket leads to.
    let stream = UnixStream::connect(bed.daemon.dir().join(other))?;
    let spec = FrontendSpec::linux();
    let mut fresh = Frontend::over(stream, spec)?;
    let single = Single::new(&mut fresh)?;
    let ended = single.send(fresh.queue(0), Kind::Read, BLOCK)?;
    ensure!(ended.status == STATUS_OK, "{ended:?}");
    for upgrade in [false, true] {
        if upgrade {
            bed.daemon.upgrade()?;
        } else {
            bed.daemon.kill()?;
            bed.daemon.start_again()?;
        }
        bed.guest.reconnect(UnixStream::connect(bed.daemon.dir().join(&own))?)?;
        waits_at_the_other(&bed.daemon)?;
    }
    bed.daemon.stop()
}

/// Nobody can have a guest go on with an image that has no name any more: it would be lost with the daemon.
#[test]
fn what_has_no_name_is_not_accepted() -> Result<()> {
    let mut bed = Bed::start("identity-nameless")?;
    bed.daemon.kill()?;
    declare(&bed.daemon, "b.raw")?;
    bed.daemon.start_again()?;
    bed.come_back()?;
    bed.waits(&["a.raw", "is another image"])?;
    std::fs::rename(path(&bed.daemon, "b.raw"), path(&bed.daemon, "gone.raw"))?;
    let refused = bed.daemon.refuses(&format!("disk accept {DISK}"))?;
    let names_it = refused.contains("b.raw: No such file or directory");
    ensure!(names_it && refused.contains("put the image back"), "{refused}");
    std::fs::rename(path(&bed.daemon, "gone.raw"), path(&bed.daemon, "b.raw"))?;
    bed.daemon.ask(&format!("disk accept {DISK}"))?;
    let single = Single::new(&mut bed.guest)?;
    single.exercise(bed.guest.queue(0), BLOCK)?;
    bed.daemon.stop()
}
