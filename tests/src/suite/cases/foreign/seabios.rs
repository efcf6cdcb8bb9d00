//! SeaBIOS boots from a disk of the daemon's: a sector that reads, sums and writes others by the firmware's own
//! driver (`tests/guest/boot/disk.S`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testing::bed::Bed;
use testing::clock::now_ns;
use testing::daemon::{Daemon, pause};
use testing::load::Random;
use testing::place::end_of;

use crate::suite::host::output_of;

const SECTOR: usize = 512;
/// What the boot sector reads: first sector, count.
const BY_CYLINDER: (usize, usize) = (1, 8);
const BY_NUMBER: (usize, usize) = (2048, 64);
/// The sector that it writes, with what it has read from the first one by cylinder.
const WRITTEN: usize = 4096;
const DISK_BYTES: u64 = 16 << 20;
/// The longest that firmware may take, and on a KVM that may not run any.
const BOOT: Duration = Duration::from_secs(240);
const PROBE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// With an emulated processor.
pub(super) fn emulated(bed: &Bed) -> Result<()> {
    boots(bed, &["-accel", "tcg"])
}

/// On KVM: kicks and calls are real ioeventfds and irqfds. A KVM that cannot run a stock kernel may still run
/// firmware; whether it can is tried with QEMU's own disk.
pub(super) fn on_kvm(bed: &Bed) -> Result<()> {
    let kvm = ["-accel", "kvm", "-cpu", "qemu64"];
    let image = bed.folder().join("probe.img");
    fill(bed, &image)?;
    let drive = format!("if=none,id=d,format=raw,file={}", image.display());
    let own = ["-drive", &drive, "-device", "virtio-blk-pci,drive=d,bootindex=0"];
    let mut probe = Firmware::start(bed, "probe", kvm.iter().chain(&own))?;
    if let Err(why) = probe.is_content(PROBE) {
        let here = "this machine's KVM does not run firmware, with QEMU's own disk neither";
        bed.skipped("", format!("{here}: {why:#}"));
        return Ok(());
    }
    boots(bed, &kvm)
}

/// It boots from a disk of a daemon's, and what it wrote is in the image.
fn boots(bed: &Bed, machine: &[&str]) -> Result<()> {
    let image = bed.folder().join("a.img");
    fill(bed, &image)?;
    let mut daemon = Daemon::start(
        "seabios",
        &format!("[[disk]]\nid = \"a\"\npath = \"{}\"\n", image.display()),
    )?;
    let chardev = format!("socket,id=c0,path={},reconnect=1", daemon.socket("a").display());
    let device = "vhost-user-blk-pci,chardev=c0,num-queues=1,bootindex=0";
    let disk = ["-chardev", &chardev, "-device", device];
    let mut firmware = Firmware::start(bed, "seabios", machine.iter().chain(&disk))?;
    let content = firmware.is_content(BOOT).map(|()| "");
    drop(firmware);
    if !bed.check("boots-and-reads", content.with_context(|| daemon.last_words())) {
        return Ok(());
    }
    let disk = File::open(&image)?;
    let is_written = sectors(&disk, WRITTEN, 1)? == sectors(&disk, BY_CYLINDER.0, 1)?;
    bed.same("written-sector", is_written, true);
    daemon.stop()
}

/// Makes the disk: the boot sector with its sums, and sectors that are all different.
fn fill(bed: &Bed, image: &Path) -> Result<()> {
    let disk = File::options().create(true).truncate(true).read(true).write(true).open(image)?;
    disk.set_len(DISK_BYTES)?;
    let mut boot = boot_sector(bed.folder())?;
    ensure!(boot.len() == SECTOR, "the boot sector has {} bytes", boot.len());
    let random = &mut Random(0xb007);
    for (place, (first, count)) in [(506, BY_NUMBER), (508, BY_CYLINDER)] {
        let noise: Vec<u8> =
            std::iter::repeat_with(|| random.below(256) as u8).take(count * SECTOR).collect();
        disk.write_all_at(&noise, (first * SECTOR) as u64)?;
        boot[place..place + 2].copy_from_slice(&words_sum(&noise).to_le_bytes());
    }
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(disk.write_all_at(&boot, 0)?)
}

/// The words of 16 bits added up.
fn words_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    words.fold(0, u16::wrapping_add)
}

fn sectors(disk: &File, first: usize, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count * SECTOR];
    disk.read_exact_at(&mut bytes, (first * SECTOR) as u64)?;
    Ok(bytes)
}

/// Assembles the boot sector.
fn boot_sector(folder: &Path) -> Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/boot/disk.S");
    let (object, binary) = (folder.join("boot.o"), folder.join("boot.bin"));
    let to = "assembling (Debian: apt-get install binutils)";
    output_of(Command::new("as").arg("--32").arg("-o").arg(&object).arg(source)).context(to)?;
    let form = ["-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o"];
    output_of(Command::new("ld").args(form).arg(&binary).arg(&object)).context(to)?;
    Ok(std::fs::read(binary)?)
}

/// A machine without an operating system; killed when dropped.
struct Firmware {
    qemu: Child,
    /// What it says on its first serial port, and what QEMU says.
    console: PathBuf,
    log: PathBuf,
}

impl Firmware {
    fn start<'a>(
        bed: &Bed,
        name: &str,
        devices: impl Iterator<Item = &'a &'a str>,
    ) -> Result<Firmware> {
        let file = |what: &str| bed.folder().join(format!("{name}.{what}"));
        let (console, log) = (file("console"), file("qemu"));
        let said = File::create(&log)?;
        let qemu = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-name", name, "-m", "64"])
            .args(["-machine", "q35,memory-backend=memory", "-nodefaults", "-no-user-config"])
            .args(["-object", "memory-backend-memfd,id=memory,size=64M,share=on"])
            .args(["-no-reboot", "-display", "none"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(devices)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .spawn()
            .context("starting QEMU by setpriv (Debian: apt-get install qemu-system-x86)")?;
        Ok(Firmware { qemu, console, log })
    }

    /// Waits for the boot sector's word, which is `DISKOK`, or `DISKBAD` and the letter of what failed.
    fn is_content(&mut self, within: Duration) -> Result<()> {
        let start = now_ns();
        loop {
            let has_ended = self.qemu.try_wait()?.is_some();
            let said = std::fs::read(&self.console).unwrap_or_default();
            let said = String::from_utf8_lossy(&said).replace('\r', "");
            let word = said.split_once("DISK").filter(|(_, word)| word.contains('\n'));
            match word {
                Some((_, word)) if word.starts_with("OK") => return Ok(()),
                Some(_) => bail!("SeaBIOS said: {}", end_of(&said)),
                None if has_ended => bail!("QEMU has ended: {}", self.complaint()),
                None => {}
            }
            let waited = u128::from(now_ns() - start);
            ensure!(waited < within.as_nanos(), "no word of its disk; it said: {}", end_of(&said));
            pause(LOOK);
        }
    }

    fn complaint(&self) -> String {
        end_of(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Firmware {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
