//! A machine without guests whose own kernel has a disk and a NIC of an IOhost (docs/decisions/0015-client.md): a guest
//! with Debian's kernel 6.12 and VDUSE, in which `sidecore client` runs.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::Bed;
use testing::clock::now_ns;
use testing::daemon::pause;
use testing::daemon::sidecore_binary;
use testing::fio;
use testing::image::Tree;
use testing::namespace::Namespace;
use testing::place::Place;
use testing::timing::PATIENCE;
use testing::traffic;
use testing::vm::{Boot, Kernel, Vm, build_folder};

use super::must;
use super::world::{self, GUEST, IoHost, Keys, LAN, PORT};

/// What the machine takes besides what any guest does.
const MODULES: [&str; 5] = ["vdpa", "vduse", "virtio_vdpa", "ext4", "crc32c_generic"];
/// The network between the IOhost and the machine, whose own NIC is a tap there.
const WIRE: &str = "10.79.0";
/// Requests that are done while somebody looks.
const BUSY: u64 = 300;

/// The case.
///
/// # Errors
/// A step failed, without which the others are nothing.
pub(super) fn client(bed: &Bed) -> Result<()> {
    let mut site = Site::new(bed)?;
    site.start(bed)?;
    site.disk(bed)?;
    site.net(bed);
    site.kills(bed)?;
    site.resize(bed)?;
    site.removal(bed)?;
    site.end(bed)
}

/// The machine and its IOhost. What dies first stands first.
struct Site {
    machine: Vm,
    iohost: IoHost,
    keys: Keys,
    image: String,
    /// It goes when the IOhost's namespace has.
    _lan: Namespace,
}

impl Site {
    fn new(bed: &Bed) -> Result<Site> {
        bed.say("packing the machine: the guest, the daemon, and the modules for VDUSE");
        let kernel = kernel(bed)?;
        let keys = Keys::new(bed.folder());
        let image = bed.folder().join("db.img").display().to_string();
        let lan = world::lan()?;
        let mut iohost = IoHost::new("a", &lan, file(&keys, &image, Some("256M"))?)?;
        let place = iohost.place();
        place.ip("tuntap add wire0 mode tap")?;
        place.add_address(&format!("{WIRE}.1/24"), "wire0")?;
        place.ip("link set wire0 up")?;
        iohost.start()?;
        bed.say("booting a machine with VDUSE");
        let boot = Boot::new("machine")
            .through(&iohost.place().through())
            .memory_mib(1024)
            .kernel(kernel)
            .qemu(["-netdev", "tap,id=wire,ifname=wire0,script=no,downscript=no"])
            .qemu(["-device", "virtio-net-pci,netdev=wire"]);
        let machine = Vm::boot(bed.folder(), boot)?;
        let own = std::fs::read_to_string(keys.file("machine")?)?;
        machine.run(&format!(
            "mount -t tmpfs run /run; mkdir -p /etc/sidecore
            ip addr add {WIRE}.2/24 dev eth0; ip link set eth0 up
            (umask 077; echo {} >/etc/sidecore/this.key)",
            own.trim()
        ))?;
        Ok(Site { machine, iohost, keys, image, _lan: lan })
    }

    /// Starts `sidecore client`, whose log is `client.log`; its devices are there when this returns.
    fn start(&self, bed: &Bed) -> Result<()> {
        let key = self.keys.public("iohost")?;
        self.machine.run(&format!(
            "SIDECORE_CONFINE=strict sidecore client --iohost {WIRE}.1:{PORT} --iohost-key {key} \
                --key-file /etc/sidecore/this.key --disk db --nic web >>/tmp/client.log 2>&1 &
            echo $! >/tmp/client.pid"
        ))?;
        self.comes_to(bed, "the kernel has the disk", "test -b /dev/vda")?;
        self.comes_to(bed, "the kernel has the NIC", "ip link show eth1")
    }

    /// The command says yes in time.
    fn comes_to(&self, bed: &Bed, check: &str, command: &str) -> Result<()> {
        let came = self.machine.comes_to(&format!("{command} >/dev/null 2>&1"));
        must(bed, check, came.map_err(|error| self.told(error)))
    }

    /// The error, with what the client and the kernel say.
    fn told(&self, error: anyhow::Error) -> anyhow::Error {
        let said = self.machine.run("tail -n 30 /tmp/client.log; dmesg | tail -n 20");
        error.context(said.unwrap_or_else(|error| format!("{error:#}")))
    }

    fn disk(&self, bed: &Bed) -> Result<()> {
        bed.check("size", self.machine.asked("test \"$(cat /sys/block/vda/size)\" = 524288"));
        must(bed, "mkfs.ext4 and mount", fio::file_system(&self.machine))?;
        bed.check("fio --verify", fio::once(&self.machine, 4));
        Ok(())
    }

    fn net(&self, bed: &Bed) {
        let machine = &self.machine;
        let up = machine.run(&format!("ip addr add {GUEST}/24 dev eth1; ip link set eth1 up"));
        bed.check("ping", up.and_then(|_| world::ping(machine)));
        bed.check("ping of 1500 bytes", world::ping_of_1500(machine));
        bed.check("iperf3 to the switch", traffic::tcp(machine, LAN));
        bed.check("iperf3 from the switch", traffic::tcp(machine, &format!("{LAN} -R")));
    }

    /// Under fio --verify: the daemon is killed, the whole of `sidecore client`, and the IOhost.
    fn kills(&mut self, bed: &Bed) -> Result<()> {
        fio::begin(&self.machine, 4)?;
        must(bed, "fio runs", self.is_busy())?;
        bed.say("kill -9 of the daemon");
        let killed = self.machine.asked("kill -9 \"$(pgrep -o -f 'sidecore serve')\"");
        must(bed, "kill -9 of the daemon", killed)?;
        must(bed, "it goes on after a kill of the daemon", self.is_busy())?;
        bed.say("kill -9 of sidecore client, which is started again");
        self.machine.run("kill -9 \"$(cat /tmp/client.pid)\"; sleep 0.5")?;
        self.start(bed)?;
        must(bed, "it goes on after a kill of the client", self.is_busy())?;
        bed.say("kill -9 of the IOhost, which is started again");
        self.iohost.kill()?;
        self.iohost.start()?;
        must(bed, "it goes on after a kill of the IOhost", self.is_busy())?;
        bed.check("fio --verify through all of it", fio::end(&self.machine));
        bed.check("e2fsck", fio::file_system_is_whole(&self.machine));
        bed.check("ping after all of it", world::ping(&self.machine));
        Ok(())
    }

    /// The kernel's disk does hundreds of requests more.
    fn is_busy(&self) -> Result<&'static str> {
        let requests = || -> Result<u64> {
            let said = self.machine.run("awk '{ print $1 + $5 }' /sys/block/vda/stat")?;
            said.trim().parse().with_context(|| format!("no number: {said:?}"))
        };
        let (start, before) = (now_ns(), requests()?);
        loop {
            let now = requests()?;
            if now > before + BUSY {
                return Ok("");
            }
            if u128::from(now_ns() - start) > PATIENCE.as_nanos() {
                let found = fio::is_right(&self.machine).err();
                let found = found.unwrap_or_else(|| anyhow!("fio waits"));
                return Err(self.told(found.context(format!("requests stand at {now}"))));
            }
            pause(Duration::from_millis(100));
        }
    }

    fn resize(&self, bed: &Bed) -> Result<()> {
        self.iohost.reload(&file(&self.keys, &self.image, Some("320M"))?)?;
        self.comes_to(bed, "resize is seen", "grep -qx 655360 /sys/block/vda/size")
    }

    /// Removed at the IOhost: what is mounted waits and goes on when it is back; what nobody has open goes, and comes
    /// again.
    fn removal(&mut self, bed: &Bed) -> Result<()> {
        self.machine.run(
            "mount -t ext4 /dev/vda /mnt && dd if=/dev/zero of=/mnt/file bs=1M count=4 conv=fsync",
        )?;
        bed.say("the IOhost is started again without the disk");
        self.iohost_anew(None)?;
        let said = "grep -q 'vda is in use' /tmp/client.log";
        self.comes_to(bed, "removed while it is mounted: said", said)?;
        self.machine.run(
            "{ dd if=/dev/urandom of=/mnt/other bs=1M count=1 conv=fsync && touch /tmp/wrote; } >/dev/null 2>&1 &",
        )?;
        bed.check("its requests wait", self.machine.asked("sleep 2; test ! -e /tmp/wrote"));
        self.iohost_anew(Some("320M"))?;
        self.comes_to(bed, "there again: they go on", "test -e /tmp/wrote")?;
        bed.check("e2fsck after that", fio::file_system_is_whole(&self.machine));
        self.iohost_anew(None)?;
        self.comes_to(bed, "removed while nobody has it: gone", "! test -b /dev/vda")?;
        bed.check("the NIC stays", world::ping(&self.machine));
        self.iohost_anew(Some("320M"))?;
        self.comes_to(bed, "added at the IOhost: there again", "test -b /dev/vda")?;
        let whole = self.machine.asked("e2fsck -f -n /dev/vda");
        bed.check("e2fsck of what came again", whole);
        Ok(())
    }

    /// The IOhost is started again with a disk of that size, or without one.
    fn iohost_anew(&mut self, size: Option<&str>) -> Result<()> {
        self.iohost.start_anew(&file(&self.keys, &self.image, size)?)
    }

    /// A disk that is mounted is not taken away by the first signal.
    fn end(mut self, bed: &Bed) -> Result<()> {
        must(bed, "mount at the end", self.machine.asked("mount -t ext4 /dev/vda /mnt"))?;
        self.machine.run("kill -TERM \"$(cat /tmp/client.pid)\"")?;
        let said = "test \"$(grep -c 'vda is in use' /tmp/client.log)\" = 2";
        self.comes_to(bed, "a mounted disk stays", said)?;
        let served = "dd if=/dev/zero of=/mnt/file bs=1M count=1 conv=fsync && test -b /dev/vda";
        bed.check("and is served", self.machine.asked(served));
        self.machine.run("umount /mnt")?;
        self.comes_to(bed, "the disk goes when it is free", "! test -b /dev/vda")?;
        self.comes_to(bed, "the NIC goes", "! ip link show eth1")?;
        let nothing = "! pgrep sidecore && test -z \"$(ls /sys/bus/vdpa/devices)\" && test \"$(ls /dev/vduse)\" = control";
        self.comes_to(bed, "nothing is left", &format!("{{ {nothing}; }}"))?;
        self.machine.off()?;
        self.iohost.stop()
    }
}

/// Debian's kernel 6.12, which `./x` unpacks in `build/lab`, and the guest with its modules and the daemon.
fn kernel(bed: &Bed) -> Result<Kernel> {
    let lab = build_folder().join("lab");
    let vmlinuz = lab.join("vmlinuz");
    ensure!(vmlinuz.exists(), "no kernel in {}: ./x test remote unpacks one there", lab.display());
    let mut tree = Tree::guest(&bed.folder().join("tree"), &lab.join("kernel"))?;
    tree.modules("modules", &MODULES)?;
    tree.stripped(&sidecore_binary()?, "bin/sidecore")?;
    let initramfs = bed.folder().join("client.cpio");
    tree.pack(&initramfs)?;
    Ok(Kernel { vmlinuz, initramfs })
}

/// The IOhost's configuration: a disk of that size, or none, and the port of a NIC.
fn file(keys: &Keys, image: &str, size: Option<&str>) -> Result<String> {
    let (mut disk, mut disks) = (String::new(), "");
    if let Some(size) = size {
        disk = format!("[[disk]]\nid = \"db\"\npath = \"{image}\"\nsize = \"{size}\"\n");
        disks = "\"db\"";
    }
    let link = world::link_at_iohost(keys, "")?;
    let client = world::client_of_link(keys, "machine", disks, "\"web\"")?;
    Ok(disk + &world::switch("web", "") + &link + &client)
}
