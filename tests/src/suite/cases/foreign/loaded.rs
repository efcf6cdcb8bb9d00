//! Kernels that firmware loads: OVMF a unified kernel from a disk of the daemon's, iPXE one over HTTP by a NIC.
//!
//! The guest says what it finds (`tests/guest/scripts/firmware.sh`).

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, anyhow};
use testing::bed::Bed;
use testing::daemon::Daemon;
use testing::image::Tree;
use testing::load::Random;
use testing::namespace::Namespace;
use testing::place::end_of;
use testing::vm::{Boot, Kernel, NicOptions, Vm, boot_words, build_folder};

use crate::suite::host::output_of;

/// systemd's, of which a kernel makes a program of EFI's.
const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";
/// OVMF's code, and the variables that a machine begins with.
const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// Of the noise in the unified kernel, and the least that all of it has.
const NOISE_BYTES: usize = 26 << 20;
const UNIFIED_MIB: u64 = 40;
const DISK_BYTES: u64 = 256 << 20;
/// The daemon's end in iPXE's network.
const ADDRESS: &str = "10.9.0.1";

/// OVMF reads a file with one request for each run of sectors that lie together, however long: here the whole kernel.
pub(super) fn ovmf(bed: &Bed) -> Result<()> {
    let unified = unified_kernel(bed, "run=firmware arg.disk=1")?;
    let mib = std::fs::metadata(&unified)?.len() >> 20;
    let is_large = if mib >= UNIFIED_MIB {
        Ok(format!("{mib} MiB"))
    } else {
        Err(anyhow!("the kernel has only {mib} MiB"))
    };
    bed.check("size", is_large);
    let image = bed.folder().join("a.img");
    system_partition(&image, &unified)?;
    let disk = format!("[[disk]]\nid = \"a\"\npath = \"{}\"\n", image.display());
    let mut daemon = Daemon::start("ovmf", &disk)?;
    let variables = bed.folder().join("vars.fd");
    std::fs::copy(VARIABLES, &variables).context("no OVMF (Debian: apt-get install ovmf)")?;
    let flash = |unit: u8, rest: &str| format!("if=pflash,format=raw,unit={unit},{rest}");
    let code = flash(0, &format!("readonly=on,file={CODE}"));
    let variables = flash(1, &format!("file={}", variables.display()));
    let boot = Boot::new("ovmf")
        .memory_mib(1024)
        .firmware(&["-drive", &code, "-drive", &variables])
        .disk(daemon.socket("a"), "num-queues=1,bootindex=0");
    Vm::start(bed.folder(), boot)?.off_by_itself(bed, "").with_context(|| daemon.last_words())?;
    daemon.stop()
}

/// Kernel, initramfs and command line as one program of EFI's; the guest checks that all of it came.
fn unified_kernel(bed: &Bed, words: &str) -> Result<PathBuf> {
    let file = |name: &str| bed.folder().join(name);
    let (noise, initrd, cmdline) = (file("noise"), file("uki.initrd"), file("uki.cmdline"));
    // No part of it is another one's, so a slice that goes astray is seen.
    let random = &mut Random(0x0efa);
    let bytes: Vec<u8> = std::iter::repeat_with(|| random.below(1 << 32) as u32)
        .take(NOISE_BYTES / 4)
        .flat_map(u32::to_le_bytes)
        .collect();
    std::fs::write(&noise, bytes)?;
    let sum = output_of(Command::new("cksum").arg(&noise))?;
    let sum = sum.split(' ').next().unwrap_or_default();
    // It runs little beside busybox: noise is most of what is loaded.
    let mut tree = Tree::bare(&file("pad"), &build_folder().join("guest/kernel"))?;
    tree.program(Path::new("/usr/bin/cksum"))?;
    tree.modules("modules", &["virtio_pci", "virtio_blk"])?;
    tree.file(&noise, "pad")?;
    tree.pack(&initrd)?;
    std::fs::write(&cmdline, boot_words(&format!("{words} arg.sum={sum}")))?;
    let unified = file("uki.efi");
    // Where systemd's stub wants its sections (systemd-stub(7)).
    let sections = [
        ("osrel", Path::new("/etc/os-release"), "0x20000"),
        ("cmdline", &cmdline, "0x30000"),
        ("linux", &Kernel::stock().vmlinuz, "0x2000000"),
        ("initrd", &initrd, "0x4000000"),
    ];
    let mut objcopy = Command::new("objcopy");
    for (name, from, at) in sections {
        objcopy.args(["--add-section", &format!(".{name}={}", from.display())]);
        objcopy.args(["--change-section-vma", &format!(".{name}={at}")]);
    }
    output_of(objcopy.arg(STUB).arg(&unified))
        .context("a unified kernel (Debian: apt-get install binutils systemd-boot-efi)")?;
    Ok(unified)
}

/// A FAT file system on the whole image; `program` is what removable media boot.
fn system_partition(image: &Path, program: &Path) -> Result<()> {
    std::fs::File::create(image)?.set_len(DISK_BYTES)?;
    output_of(Command::new("mkfs.vfat").args(["-F", "32"]).arg(image))
        .context("making a FAT (Debian: apt-get install dosfstools)")?;
    let to = "filling a FAT (Debian: apt-get install mtools)";
    output_of(Command::new("mmd").arg("-i").arg(image).args(["::EFI", "::EFI/BOOT"]))
        .context(to)?;
    let place = "::EFI/BOOT/BOOTX64.EFI";
    output_of(Command::new("mcopy").arg("-i").arg(image).arg(program).arg(place)).context(to)?;
    Ok(())
}

/// iPXE, QEMU's own ROM for a virtio NIC, asks a DHCP server by a switch of the daemon, and loads the kernel over HTTP.
pub(super) fn ipxe(bed: &Bed) -> Result<()> {
    let inside = Namespace::new("host")?;
    let mac = "52:54:00:51:00:01";
    let file = format!(
        "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\ntap = \"lan0\"\n\
         [[nic]]\nid = \"boot\"\nmac = \"{mac}\"\nswitch = \"lan\"\n"
    );
    let mut daemon = Daemon::with("ipxe", &file).through(&inside.through()).start()?;
    inside.add_address(&format!("{ADDRESS}/24"), "lan0")?;
    inside.ip("link set lan0 up")?;
    let servers = Servers::start(bed, &inside)?;
    let nic = NicOptions { properties: "bootindex=0".to_owned(), ..NicOptions::new(mac) };
    let boot = Boot::new("ipxe").firmware(&["-boot", "strict=on"]).nic(daemon.socket("boot"), &nic);
    let booted = Vm::start(bed.folder(), boot)?.off_by_itself(bed, "");
    booted.with_context(|| format!("{}\n{}", servers.said(), daemon.last_words()))?;
    drop(servers);
    daemon.stop()
}

/// A server of DHCP and TFTP with a script for iPXE, and one of HTTP with the kernel; killed when dropped.
struct Servers {
    folder: PathBuf,
    running: Vec<Child>,
}

impl Servers {
    fn start(bed: &Bed, inside: &Namespace) -> Result<Servers> {
        let folder = bed.folder().join("netboot");
        std::fs::create_dir(&folder)?;
        let stock = Kernel::stock();
        symlink(std::fs::canonicalize(stock.vmlinuz)?, folder.join("vmlinuz"))?;
        symlink(std::fs::canonicalize(stock.initramfs)?, folder.join("initramfs"))?;
        let words = boot_words(&format!("run=firmware arg.server={ADDRESS}"));
        let at = format!("http://{ADDRESS}");
        let script = format!("#!ipxe\nkernel {at}/vmlinuz {words}\ninitrd {at}/initramfs\nboot\n");
        std::fs::write(folder.join("boot.ipxe"), script)?;
        let mut servers = Servers { folder: folder.clone(), running: Vec::new() };
        let files = folder.display();
        servers.run(inside, "busybox", &format!("httpd -f -p {ADDRESS}:80 -h {files}"))?;
        servers.run(
            inside,
            "dnsmasq",
            &format!(
                "--keep-in-foreground --conf-file=/dev/null --port=0 --user=root --interface=lan0 \
                 --bind-dynamic --dhcp-range=10.9.0.50,10.9.0.60,1h --dhcp-boot=boot.ipxe --enable-tftp \
                 --tftp-root={files} --leasefile-ro --pid-file= --log-facility=-"
            ),
        )?;
        Ok(servers)
    }

    fn run(&mut self, inside: &Namespace, program: &str, words: &str) -> Result<()> {
        let said = std::fs::File::create(self.folder.join(format!("{program}.said")))?;
        let mut command = inside.command(program);
        command.args(words.split_whitespace()).stdout(said.try_clone()?).stderr(said);
        let started = command.spawn().with_context(|| format!("starting {program}"))?;
        self.running.push(started);
        Ok(())
    }

    /// The end of what they said.
    fn said(&self) -> String {
        let of = |program: &str| {
            let said = std::fs::read_to_string(self.folder.join(format!("{program}.said")));
            format!("{program}: {}", end_of(&said.unwrap_or_default()))
        };
        format!("{}\n{}", of("dnsmasq"), of("busybox"))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.running {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
