//! Images and sockets that cannot be used (reliability O1, O3, O10): the operator is told which, why
//! and what to do, and nobody else notices. Images that are not what they seem (O3, O4).

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use testing::daemon::{Daemon, await_that};
use testing::scratch::Scratch;
use testing::slots::{Kind, STATUS_OK};
use tests::faulty::{BAD, Faulty};
use tests::hostile_guest::{DATA, Guest, Layout};
use tests::mounts::{Loop, Mount};
use tests::single::Single;

const STATUS_IOERR: u8 = 1;

/// A folder for images of one test.
fn folder(name: &str) -> Result<Scratch> {
    Scratch::new(&std::env::temp_dir(), name)
}

/// `disk add` is refused, and says all of `words`.
fn is_refused(bed: &Faulty, path: &Path, more: &str, words: &[&str]) -> Result<()> {
    let line = format!("disk add {BAD} --path {} {more}", path.display());
    let said = bed.daemon.refuses(line.trim_end())?;
    for word in words {
        ensure!(said.contains(word), "`{line}` says {said:?}, and not {word:?}");
    }
    let list = bed.daemon.ask("ls")?.to_string();
    ensure!(!list.contains("\"bad\""), "it was refused, and is there: {list}");
    Ok(())
}

#[test]
fn images_that_are_no_disks_are_refused_by_name() -> Result<()> {
    let folder = folder("unusable-images")?;
    let at = |name: &str| folder.path().join(name);
    let bed = Faulty::start("unusable")?;
    let text = |path: &Path| path.display().to_string();

    let missing = at("missing.raw");
    is_refused(&bed, &missing, "", &[&text(&missing), "No such file", "correct `--path`"])?;
    let directory = at("directory");
    std::fs::create_dir(&directory)?;
    is_refused(&bed, &directory, "", &[&text(&directory), "directory"])?;
    is_refused(&bed, &directory, "--readonly", &[&text(&directory), "neither a regular file"])?;
    let empty = at("empty.raw");
    std::fs::write(&empty, "")?;
    is_refused(&bed, &empty, "", &[&text(&empty), "has 0 bytes", "give a size"])?;
    let pipe = at("pipe");
    ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "mkfifo");
    is_refused(&bed, &pipe, "", &[&text(&pipe), "neither a regular file nor a block device"])?;
    let small = at("small.raw");
    std::fs::write(&small, [0; 4096])?;
    let words = [&text(&small), "has 4K", "it is read-only"];
    is_refused(&bed, &small, "--readonly --size 1M", &words.map(|word| word as &str))?;

    let mount = Mount::tmpfs(&at("readonly"), 1 << 20)?;
    let on_it = mount.path().join("disk.raw");
    std::fs::write(&on_it, [0; 4096])?;
    mount.remount("ro")?;
    is_refused(&bed, &on_it, "", &[&text(&on_it), "Read-only file system"])?;
    bed.finish()
}

/// Sectors that are not whole are not served, and not left out without a word.
#[test]
fn an_image_of_odd_length_is_refused_unless_its_size_is_said() -> Result<()> {
    let folder = folder("unusable-odd")?;
    let image = folder.path().join("odd.raw");
    std::fs::write(&image, vec![7; 8192 + 511])?;
    let bed = Faulty::start("unusable-odd-length")?;
    is_refused(&bed, &image, "", &["has 8703 bytes", "no multiple of 512", "truncate -s %512"])?;
    bed.add(&image, "--size 8192")?;
    let mut guest = bed.guest(0)?;
    ensure!(guest.capacity_sectors()? == 16, "the guest sees {}", guest.capacity_sectors()?);
    let single = Single::new(&mut guest)?;
    ensure!(single.send(guest.queue(0), Kind::Read, 1)?.status == STATUS_OK);
    ensure!(single.send(guest.queue(0), Kind::Read, 2)?.status == STATUS_IOERR);
    guest.disconnect()?;
    bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
    ensure!(std::fs::metadata(&image)?.len() == 8192 + 511, "the image has another length now");
    bed.finish()
}

/// What is beyond the new end is an error; what is before it is served.
#[test]
fn an_image_that_is_cut_off_fails_beyond_its_end() -> Result<()> {
    let folder = folder("unusable-cut")?;
    let (image, backing) = (folder.path().join("cut.raw"), folder.path().join("loop.raw"));
    for path in [&image, &backing] {
        std::fs::write(path, vec![7; 1 << 20])?;
    }
    let device = Loop::over(&backing, 512)?;
    for cache in ["direct", "page"] {
        for path in [image.as_path(), device.path()] {
            let what = format!("{} cache {cache}", path.display());
            for whole in [&image, &backing] {
                std::fs::File::options().write(true).open(whole)?.set_len(1 << 20)?;
            }
            let bed = Faulty::start("unusable-cut-off")?;
            bed.add(path, &format!("--cache {cache}"))?;
            let mut guest = bed.guest(0)?;
            let single = Single::new(&mut guest)?;
            single.exercise(guest.queue(0), 3)?;
            for cut in [&image, &backing] {
                std::fs::File::options().write(true).open(cut)?.set_len(512 << 10)?;
            }
            for block in [200, 255] {
                let ended = single.send(guest.queue(0), Kind::Read, block)?;
                ensure!(ended.status == STATUS_IOERR, "{what}: block {block} ended {ended:?}");
            }
            let failed = bed.faults("short")? + bed.faults("eio")?;
            ensure!(failed >= 2, "{what}: {failed} faults are shown");
            single.send(guest.queue(0), Kind::Read, 3)?;
            single.compare(3)?;
            guest.disconnect()?;
            bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
            bed.finish()?;
        }
    }
    Ok(())
}

/// O3: what somebody appends to an image is not served before an operator says so.
#[test]
fn o03_an_image_that_grew_is_served_to_its_old_end_until_it_is_resized() -> Result<()> {
    let folder = folder("unusable-grown")?;
    let image = folder.path().join("grown.raw");
    std::fs::write(&image, vec![7; 1 << 20])?;
    let bed = Faulty::start("unusable-grew")?;
    bed.add(&image, "")?;
    let mut guest = bed.guest(0)?;
    let single = Single::new(&mut guest)?;
    single.exercise(guest.queue(0), 255)?;
    std::fs::File::options().write(true).open(&image)?.set_len(2 << 20)?;
    for kind in [Kind::Read, Kind::Write] {
        let ended = single.send(guest.queue(0), kind, 256)?;
        ensure!(ended.status == STATUS_IOERR, "{kind:?} beyond the old end: {ended:?}");
    }
    ensure!(guest.capacity_sectors()? == 2048, "the guest sees {}", guest.capacity_sectors()?);
    bed.daemon.ask(&format!("disk resize {BAD} 2M"))?;
    ensure!(guest.capacity_sectors()? == 4096, "the guest sees {}", guest.capacity_sectors()?);
    single.exercise(guest.queue(0), 256)?;
    guest.disconnect()?;
    bed.daemon.ask(&format!("disk rm {BAD} --force"))?;
    bed.finish()
}

/// The first sectors of formats whose drivers would open `path`, which is no part of the disk.
fn headers(path: &str) -> [Vec<u8>; 3] {
    let name_at = 104u64;
    let mut qcow2 = b"QFI\xfb\0\0\0\x02".to_vec();
    qcow2.extend(name_at.to_be_bytes());
    qcow2.extend((path.len() as u32).to_be_bytes());
    // Clusters of 64 KiB, 1 GiB, not encrypted.
    qcow2.extend(16u32.to_be_bytes());
    qcow2.extend((1u64 << 30).to_be_bytes());
    qcow2.resize(name_at as usize, 0);
    qcow2.extend(path.bytes());
    let vmdk = format!(
        "# Disk DescriptorFile\nversion=1\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"{path}\" 0\n"
    );
    let mut vhd = b"conectix\0\0\0\x02\0\x01\0\0".to_vec();
    vhd.extend(path.bytes());
    [qcow2, vmdk.into_bytes(), vhd]
}

/// O4: what a guest writes into its first sectors is data; no format is ever guessed.
#[test]
fn o04_a_header_that_a_guest_has_written_means_nothing() -> Result<()> {
    const BLOCK: u32 = 4096;
    let disk = "[[disk]]\nid = \"raw\"\npath = \"images/raw.img\"\nsize = \"1M\"\n";
    let mut daemon = Daemon::start("o04", disk)?;
    let secret = daemon.dir().join("secret");
    std::fs::write(&secret, vec![0x53; 2 << 20])?;
    for mut header in headers(&secret.display().to_string()) {
        header.resize(BLOCK as usize, 0);
        let mut guest = Guest::start(&daemon.socket("raw"), Layout::default())?;
        guest.put(DATA, &header);
        guest.honest(1, 0, BLOCK)?;
        drop(guest);
        daemon.stop()?;
        daemon.start_again()?;
        let shown = daemon.ask("show raw")?;
        ensure!(shown["size_bytes"] == 1 << 20 && shown["problem"].is_null(), "{shown}");
        let mut guest = Guest::start(&daemon.socket("raw"), Layout::default())?;
        for block in 0..256 {
            guest.honest(0, block * 8, BLOCK)?;
            let found = guest.get(DATA, BLOCK as usize);
            let is_right = if block == 0 { found == header } else { found == [0; BLOCK as usize] };
            ensure!(is_right, "block {block}: {:x?}..", &found[..16]);
        }
        drop(guest);
    }
    let image = daemon.dir().join("images/raw.img");
    ensure!(std::fs::metadata(&image)?.len() == 1 << 20, "the image has another length");
    ensure!(std::fs::read(&secret)? == vec![0x53; 2 << 20], "what is not its disk was written");
    daemon.stop()
}

#[test]
fn a_socket_that_is_taken_is_refused_by_name() -> Result<()> {
    let folder = folder("unusable-sockets")?;
    let bed = Faulty::start("unusable-socket")?;
    let image = folder.path().join("disk.raw");
    let file = folder.path().join("file.sock");
    std::fs::write(&file, "mine")?;
    let text = |path: &Path| path.display().to_string();
    let with = |path: &Path| format!("--size 1M --socket {}", path.display());
    is_refused(&bed, &image, &with(&file), &[&text(&file), "is not a socket: move it away"])?;
    ensure!(std::fs::read_to_string(&file)? == "mine", "what was in the way was removed");
    let taken = folder.path().join("taken.sock");
    let listener = UnixListener::bind(&taken)?;
    is_refused(&bed, &image, &with(&taken), &[&text(&taken), "another process listens"])?;
    // What a dead process has left is replaced.
    drop(listener);
    // Other tests of this process start programs, which hold a copy until they run.
    await_that("the socket to be nobody's", || Ok(bed.add(&image, &with(&taken)).is_ok()))?;
    bed.finish()
}

/// O10 and O1: one disk, one daemon, once.
#[test]
fn an_image_in_use_is_refused_with_its_holder() -> Result<()> {
    let folder = folder("unusable-held")?;
    let (image, link, hard) = (
        folder.path().join("disk.raw"),
        folder.path().join("link.raw"),
        folder.path().join("hard.raw"),
    );
    std::fs::write(&image, vec![0; 1 << 20])?;
    std::os::unix::fs::symlink(&image, &link)?;
    std::fs::hard_link(&image, &hard)?;
    let first = Faulty::start("unusable-first")?;
    first.add(&image, "")?;
    let second = Faulty::start("unusable-second")?;
    let pid = first.daemon.pid().to_string();
    for path in [&image, &link, &hard] {
        let text = path.display().to_string();
        is_refused(&second, path, "", &[&text, &pid, "sidecore"])?;
        let again = first.daemon.refuses(&format!("disk add again --path {text}"))?;
        ensure!(again.contains(&text) && again.contains("\"bad\""), "in one daemon: {again:?}");
    }
    // Its own guest has not noticed.
    let mut guest = first.guest(0)?;
    Single::new(&mut guest)?.exercise(guest.queue(0), 1)?;
    drop(guest);
    first.daemon.ask(&format!("disk rm {BAD} --force"))?;
    second.add(&image, "")?;
    second.finish()?;
    first.finish()
}

/// After a crash one missing image must not take the others down; a check of the file still says no.
#[test]
fn a_disk_of_the_file_that_cannot_be_opened_fails_alone() -> Result<()> {
    let disks = "[[disk]]\nid = \"good\"\npath = \"good.raw\"\nsize = \"1M\"\n\
                 [[disk]]\nid = \"missing\"\npath = \"missing.raw\"\n";
    let daemon = Daemon::start("unusable-start", disks)?;
    let spec = testing::frontend::FrontendSpec::default();
    let mut guest = daemon.frontend("good", &spec)?;
    Single::new(&mut guest)?.exercise(guest.queue(0), 1)?;
    let shown = daemon.ask("show missing")?;
    ensure!(shown["state"] == "failed", "{shown}");
    let problem = shown["problem"].as_str().unwrap_or_default();
    ensure!(problem.contains("missing.raw") && problem.contains("No such file"), "{problem}");
    ensure!(problem.contains("correct `path`"), "what to do is missing: {problem}");
    let checked = daemon.refuses("serve --config sidecore.toml --check")?;
    ensure!(checked.contains("missing.raw"), "--check says {checked:?}");
    Ok(())
}

/// The daemon's user may not open it.
#[test]
fn an_image_without_permission_is_shown_with_what_to_do() -> Result<()> {
    let folder = folder("unusable-permission")?;
    let secret = folder.path().join("secret.raw");
    // Of root, and for nobody else; the folder is for all.
    std::fs::write(&secret, vec![0; 4096])?;
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    let disk = format!("[[disk]]\nid = \"secret\"\npath = {secret:?}\n");
    let daemon = Daemon::with("unusable-secret", &disk).as_nobody().start()?;
    ensure!(daemon.shown("secret", "state")? == "failed");
    let said = daemon.shown("secret", "problem")?.to_string();
    for word in ["secret.raw", "Permission denied", "the daemon's user must be able to read it"] {
        ensure!(said.contains(word), "it says {said:?}, and not {word:?}");
    }
    Ok(())
}
