//! Images that are no raw disks: sizes of no whole sectors, and formats that hold a disk instead of being
//! one. They are refused with what to do, and a guest may make whatever it likes.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testing::daemon::Daemon;
use testing::frontend::FrontendSpec;
use testing::scratch::Scratch;
use tests::single::Single;

const BYTES: usize = 1 << 20;
/// Formats by how they begin, and where.
const MAGICS: [(&str, usize, &[u8]); 11] = [
    ("qcow2", 0, b"QFI\xfb\0\0\0\x03"),
    ("qcow2", 0, b"QFI\xfb\0\0\0\x01"),
    ("QED", 0, b"QED\0"),
    ("VMDK", 0, b"KDMV"),
    ("VMDK", 0, b"# Disk DescriptorFile"),
    ("VHDX", 0, b"vhdxfile"),
    ("VHD", 0, b"conectix"),
    ("VDI", 64, b"\x7f\x10\xda\xbe"),
    ("Parallels", 0, b"WithoutFreeSpace"),
    ("LUKS", 0, b"LUKS\xba\xbe\0\x01"),
    ("LUKS", 0, b"LUKS\xba\xbe\0\x02"),
];

fn image(folder: &Scratch, name: &str, at: usize, magic: &[u8]) -> Result<PathBuf> {
    let mut bytes = vec![0; BYTES];
    bytes[at..at + magic.len()].copy_from_slice(magic);
    let path = folder.path().join(name);
    std::fs::write(&path, bytes)?;
    Ok(path)
}

#[test]
fn an_image_of_another_format_is_refused_unless_it_is_said_to_be_raw() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "formats-images")?;
    let mut daemon = Daemon::start("formats", "")?;
    for (number, (format, at, magic)) in MAGICS.iter().enumerate() {
        let path = image(&folder, &format!("{number}.img"), *at, magic)?;
        let before = std::fs::read(&path)?;
        for more in ["", " --readonly", " --size 2M", " --cache page"] {
            let said =
                daemon.refuses(&format!("disk add d{number} --path {}{more}", path.display()))?;
            for word in [*format, "--format \"raw\""] {
                ensure!(said.contains(word), "{said:?} has no {word:?}");
            }
            ensure!(*format == "LUKS" || said.contains("qemu-img convert -O raw"), "{said}");
        }
        ensure!(std::fs::read(&path)? == before, "{format}: it was changed");
        daemon.ask(&format!("disk add d{number} --format raw --path {}", path.display()))?;
        daemon.ask(&format!("disk rm d{number}"))?;
    }
    daemon.stop()
}

/// Its guest has encrypted the whole disk: an everyday thing.
#[test]
fn a_guest_may_make_what_its_disk_begins_with() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "formats-guest-images")?;
    let path = image(&folder, "luks.raw", 0, b"")?;
    let disk = format!("[[disk]]\nid = \"d\"\npath = \"{}\"\n", path.display());
    let mut daemon = Daemon::start("formats-guest", &disk)?;
    let spec = FrontendSpec::linux();
    let mut guest = daemon.frontend("d", &spec)?;
    let single = Single::new(&mut guest)?;
    single.exercise(guest.queue(0), 9)?;
    guest.disconnect()?;
    daemon.stop()?;
    encrypt(&path)?;
    for has_label in [true, false] {
        if !has_label {
            // A file system may have no place for one: then it is known by what its guest was on.
            unlabel(&path)?;
        }
        daemon.start_again()?;
        ensure!(daemon.shown("d", "state")? == "waiting", "{}", daemon.ask("show d")?);
        ensure!(daemon.shown("d", "problem")?.is_null(), "{}", daemon.ask("show d")?);
        daemon.kill()?;
    }
    daemon.start_again()?;
    daemon.stop()
}

/// As its guest does it: in place.
fn encrypt(path: &Path) -> Result<()> {
    Ok(std::fs::File::options().write(true).open(path)?.write_all_at(b"LUKS\xba\xbe", 0)?)
}

fn unlabel(path: &Path) -> Result<()> {
    match rustix::fs::removexattr(path, "user.sidecore.image") {
        Err(error) if error != rustix::io::Errno::NODATA => Err(error.into()),
        _ => Ok(()),
    }
}

/// Guests of a daemon that remembered nothing may have encrypted their disks; what is new after it may not
/// be so.
#[test]
fn what_a_daemon_of_an_earlier_version_served_is_served_on() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "formats-old-images")?;
    let paths = ["declared", "added"].map(|name| image(&folder, name, 0, b""));
    let [declared, added] = paths.each_ref().map(|path| path.as_ref().ok());
    let (declared, added) = declared.zip(added).context("images")?;
    let disk = format!("[[disk]]\nid = \"declared\"\npath = \"{}\"\n", declared.display());
    let mut daemon = Daemon::start("formats-old", &disk)?;
    daemon.ask(&format!("disk add added --path {}", added.display()))?;
    daemon.stop()?;
    std::fs::remove_dir_all(daemon.dir().join("state/images"))?;
    for path in [declared, added] {
        unlabel(path)?;
        encrypt(path)?;
    }
    for _ in 0..2 {
        daemon.start_again()?;
        for id in ["declared", "added"] {
            ensure!(
                daemon.shown(id, "problem")?.is_null(),
                "{}",
                daemon.ask(&format!("show {id}"))?
            );
        }
        daemon.stop()?;
    }
    daemon.start_again()?;
    let new = image(&folder, "new", 0, b"LUKS\xba\xbe")?;
    let said = daemon.refuses(&format!("disk add new --path {}", new.display()))?;
    ensure!(said.contains("is a LUKS image"), "{said}");
    daemon.stop()
}

/// Nor is one that a new daemon finds in its file.
#[test]
fn a_new_daemon_takes_no_image_of_another_format() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "formats-new-images")?;
    let luks = image(&folder, "luks", 0, b"LUKS\xba\xbe")?;
    let disk = format!(
        "[[disk]]\nid = \"null\"\nbackend = \"null\"\nsize = \"1M\"\n[[disk]]\nid = \"luks\"\npath = \"{}\"\n",
        luks.display()
    );
    let mut daemon = Daemon::start("formats-new", &disk)?;
    let problem = daemon.shown("luks", "problem")?;
    ensure!(problem.as_str().is_some_and(|text| text.contains("is a LUKS image")), "{problem}");
    daemon.configure(&format!("{disk}format = \"raw\"\n"))?;
    daemon.ask("reload")?;
    ensure!(daemon.shown("luks", "problem")?.is_null(), "{}", daemon.ask("show luks")?);
    daemon.stop()
}

#[test]
fn sizes_of_no_whole_sectors_are_refused_and_never_cut() -> Result<()> {
    let folder = Scratch::new(&std::env::temp_dir(), "formats-odd-images")?;
    let mut daemon = Daemon::start("formats-odd", "")?;
    for bytes in [513, 1000, 8192 + 511, (1 << 20) - 1] {
        let path = folder.path().join(format!("{bytes}.raw"));
        std::fs::write(&path, vec![7; bytes])?;
        for more in ["", " --readonly", " --cache page"] {
            let said = daemon.refuses(&format!("disk add odd --path {}{more}", path.display()))?;
            for word in
                [&format!("has {bytes} bytes") as &str, "no multiple of 512", "truncate -s %512"]
            {
                ensure!(said.contains(word), "{said:?} has no {word:?}");
            }
        }
        ensure!(std::fs::metadata(&path)?.len() == bytes as u64, "it has another length now");
        // Who says how much is to be served knows what is left out.
        let whole = bytes / 512 * 512;
        daemon.ask(&format!("disk add odd --size {whole} --path {}", path.display()))?;
        for size in ["1000", "0", "513"] {
            let said = daemon.refuses(&format!("disk resize odd {size}"))?;
            ensure!(said.contains("512"), "{said}");
        }
        daemon.ask("disk rm odd")?;
        // It is not made longer: it may be a configuration, or a log.
        let said = daemon.refuses(&format!("disk add odd --size 2M --path {}", path.display()))?;
        ensure!(said.contains("may be no disk") && said.contains("truncate -s %512"), "{said}");
        ensure!(std::fs::metadata(&path)?.len() == bytes as u64, "it has another length now");
    }
    for kind in ["memory", "null"] {
        for size in ["1000", "1", "513"] {
            let said = daemon.refuses(&format!("disk add odd --backend {kind} --size {size}"))?;
            ensure!(said.contains("512"), "{said}");
        }
    }
    daemon.stop()
}
