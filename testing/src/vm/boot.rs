//! What a QEMU is started with.

use std::path::{Path, PathBuf};

/// A kernel and its initramfs.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Of Debian, as its package has it.
    pub vmlinuz: PathBuf,
    /// With `tests/guest/init` and its scripts.
    pub initramfs: PathBuf,
}

impl Kernel {
    /// Debian 12's cloud kernel, and the guest that `./x` has packed.
    pub fn stock() -> Kernel {
        let guest = build_folder().join("guest");
        Kernel { vmlinuz: guest.join("vmlinuz"), initramfs: guest.join("initramfs.cpio") }
    }
}

/// The folder of what `./x` downloads and packs: `SIDECORE_BUILD`, or `build` of the repository.
pub fn build_folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../build");
    std::env::var_os("SIDECORE_BUILD").map_or_else(own, PathBuf::from)
}

/// A vhost-user NIC as QEMU sees it.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// Its MAC address.
    pub mac: String,
    /// Pairs of queues.
    pub queues: u16,
    /// 1,500 if the guest is not told.
    pub mtu: u32,
    /// Further properties of virtio-net-pci, such as `packed=on`.
    pub properties: String,
}

/// Whether QEMU uses the hardware's KVM. `/dev/kvm` alone does not say that stock kernels run.
pub fn has_kvm() -> bool {
    let modules = ["/sys/module/kvm_intel", "/sys/module/kvm_amd"];
    let device = std::fs::File::options().write(true).open("/dev/kvm");
    device.is_ok() && modules.iter().any(|module| Path::new(module).is_dir())
}

/// An emulated vCPU, and its random numbers. A later one says that it copies fast by single bytes (ERMS), and Linux
/// believes it; QEMU does them one after the other. It has wider registers, too, which are saved at each switch.
pub const EMULATED: &str = "Westmere";
const EMULATED_WITH: &str = ",+rdrand";

/// The model of a vCPU, as QEMU's `-cpu` has it.
pub fn model() -> String {
    if has_kvm() { "host".to_string() } else { format!("{EMULATED}{EMULATED_WITH}") }
}

/// A VM that is to be started.
#[derive(Clone, Debug)]
pub struct Boot {
    pub(super) name: String,
    memory_mib: u32,
    /// As after `-smp`.
    cpus: String,
    cpu: Option<String>,
    emulation: &'static str,
    memory: Option<Vec<String>>,
    kernel: Kernel,
    words: String,
    /// In place of QEMU's loading the kernel.
    firmware: Option<Vec<String>>,
    script: String,
    disks: Vec<PathBuf>,
    nics: usize,
    devices: Vec<String>,
    more: Vec<String>,
    pub(super) program: Vec<String>,
    /// The VM whose console and results go on here.
    pub(super) after: Option<String>,
}

impl Boot {
    /// A guest of that name with 2 vCPUs and 512 MiB that takes orders.
    pub fn new(name: &str) -> Boot {
        Boot {
            name: name.to_string(),
            memory_mib: 512,
            cpus: "2".to_string(),
            cpu: None,
            emulation: EMULATION,
            memory: None,
            kernel: Kernel::stock(),
            words: String::new(),
            firmware: None,
            script: "orders".to_string(),
            disks: Vec::new(),
            nics: 0,
            devices: Vec::new(),
            more: Vec::new(),
            program: vec!["qemu-system-x86_64".to_string()],
            after: None,
        }
    }

    /// Its memory, MiB.
    pub fn memory_mib(mut self, mib: u32) -> Boot {
        self.memory_mib = mib;
        self
    }

    /// Its vCPUs, as QEMU's `-smp` has them.
    pub fn cpus(mut self, smp: &str) -> Boot {
        self.cpus = smp.to_string();
        self
    }

    /// Emulated vCPUs run at the same time, for what is measured; see [`EMULATION`].
    pub fn parallel(mut self) -> Boot {
        self.emulation = "tcg,thread=multi";
        self
    }

    /// The vCPU's model.
    pub fn cpu(mut self, model: &str) -> Boot {
        self.cpu = Some(model.to_string());
        self
    }

    /// Arguments that replace those for memory, as `sidecore disk add --print qemu` gives them.
    pub fn pasted(mut self, words: Vec<String>) -> Boot {
        self.memory = Some(words);
        self
    }

    /// Another kernel and initramfs.
    pub fn kernel(mut self, kernel: Kernel) -> Boot {
        self.kernel = kernel;
        self
    }

    /// Words for the kernel's command line; `arg.KEY=VALUE` is `$arg_KEY` in the guest's scripts.
    pub fn words(mut self, words: &str) -> Boot {
        self.words = format!("{} {words}", self.words);
        self
    }

    /// A script that init runs in place of `orders`: the guest takes no orders then.
    pub fn runs(mut self, script: &str) -> Boot {
        self.script = script.to_string();
        self
    }

    /// Firmware boots from a device: QEMU's arguments in place of a kernel's.
    pub fn firmware(mut self, arguments: &[&str]) -> Boot {
        self.firmware = Some(arguments.iter().map(ToString::to_string).collect());
        self
    }

    /// A disk at that socket: device `dN`, N from 0. `properties` are those of
    /// vhost-user-blk-pci; without `num-queues` it has one queue.
    pub fn disk(mut self, socket: impl AsRef<Path>, properties: &str) -> Boot {
        let (number, socket) = (self.disks.len(), socket.as_ref());
        let comma = if properties.is_empty() { "" } else { "," };
        let queues = if properties.contains("num-queues") { "" } else { ",num-queues=1" };
        self.devices.extend([
            "-chardev".to_string(),
            format!("socket,id=c{number},path={},reconnect=1", socket.display()),
            "-device".to_string(),
            format!("vhost-user-blk-pci,id=d{number},chardev=c{number}{queues}{comma}{properties}"),
        ]);
        self.disks.push(socket.to_path_buf());
        self
    }

    /// A NIC at that socket: device `dnN`, `ethN` in the guest, N from 0.
    pub fn nic(mut self, socket: impl AsRef<Path>, options: &NicOptions) -> Boot {
        let name = format!("n{}", self.nics);
        self.devices.extend([
            "-chardev".to_string(),
            format!("socket,id=c{name},path={},reconnect=1", socket.as_ref().display()),
            "-netdev".to_string(),
            format!("vhost-user,id={name},chardev=c{name},queues={}", options.queues),
            "-device".to_string(),
            format!("virtio-net-pci,id=d{name},netdev={name}{}", options.text()),
        ]);
        self.nics += 1;
        self
    }

    /// So many PCIe ports, `slot1` and on, for devices that are plugged.
    pub fn slots(mut self, count: usize) -> Boot {
        for number in 1..=count {
            let port = format!("pcie-root-port,id=slot{number},chassis={number},slot={number}");
            self.more.extend(["-device".to_string(), port]);
        }
        self
    }

    /// Further arguments of QEMU.
    pub fn qemu<W: ToString>(mut self, arguments: impl IntoIterator<Item = W>) -> Boot {
        self.more.extend(arguments.into_iter().map(|word| word.to_string()));
        self
    }

    /// QEMU is started by these words, such as `ip netns exec NAME`.
    pub fn through(mut self, before: &[&str]) -> Boot {
        self.program.splice(0..0, before.iter().map(ToString::to_string));
        self
    }

    /// Another QEMU.
    pub fn program(mut self, program: &str) -> Boot {
        self.program.pop();
        self.program.push(program.to_string());
        self
    }

    /// The guest comes from another VM: what it says goes on in that one's files.
    pub fn after(mut self, name: &str, incoming: &str) -> Boot {
        self.after = Some(name.to_string());
        if !incoming.is_empty() {
            self.more.extend(["-incoming".to_string(), incoming.to_string()]);
        }
        self
    }

    /// Whether an emulated machine that stands still before its kernel may be booted again: firmware asks much of
    /// the daemon's devices, and a guest that moves in has its kernel already.
    pub(super) fn may_boot_again(&self) -> bool {
        !has_kvm() && !self.is_by_firmware() && self.after.is_none()
    }

    /// Whether firmware loads its kernel, from a device.
    pub(super) fn is_by_firmware(&self) -> bool {
        self.firmware.is_some()
    }

    /// Whether it is started with the stock guest, which is packed when it is needed.
    pub(super) fn is_stock(&self) -> bool {
        self.firmware.is_none() && self.kernel.initramfs == Kernel::stock().initramfs
    }

    /// The sockets of its disks.
    pub(super) fn disks(&self) -> &[PathBuf] {
        &self.disks
    }

    /// What follows QEMU's name on its command line.
    pub(super) fn arguments(&self, folder: &Path) -> Vec<String> {
        let file = |what: &str| folder.join(format!("{}.{what}", self.name)).display().to_string();
        let logged = |id: &str| format!("file,id={id},path={},append=on", file(id));
        let accelerator = if has_kvm() { "kvm" } else { self.emulation };
        let model = model();
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
        add(&["-name", &format!("{},debug-threads=on", self.name), "-accel", accelerator]);
        add(&[
            "-cpu",
            self.cpu.as_deref().unwrap_or(&model),
            "-smp",
            &self.cpus,
            "-machine",
            "q35",
        ]);
        match &self.memory {
            Some(pasted) => add(&pasted.iter().map(String::as_str).collect::<Vec<_>>()),
            None => {
                let size = self.memory_mib;
                let memory = format!("memory-backend-memfd,id=memory,size={size}M,share=on");
                add(&["-m", &size.to_string(), "-object", &memory]);
                add(&["-machine", "memory-backend=memory"]);
            }
        }
        add(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        match &self.firmware {
            Some(firmware) => add(&firmware.iter().map(String::as_str).collect::<Vec<_>>()),
            None => {
                let line = boot_words(&format!("run={}{}", self.script, self.words));
                let (kernel, initrd) = (&self.kernel.vmlinuz, &self.kernel.initramfs);
                add(&["-kernel", &kernel.display().to_string()]);
                add(&["-initrd", &initrd.display().to_string(), "-append", &line]);
            }
        }
        add(&["-chardev", &logged("console"), "-serial", "chardev:console"]);
        add(&["-chardev", &logged("results"), "-serial", "chardev:results"]);
        add(&["-serial", &format!("pipe:{}", file("orders"))]);
        add(&["-qmp", &format!("unix:{},server=on,wait=off", file("qmp"))]);
        words.extend(self.devices.iter().chain(&self.more).cloned());
        words
    }
}

/// How processors are emulated: by turns. At the same time, QEMU 7.2 now and then lets one run what another has just
/// replaced, and Linux, which replaces its own code, panics (seen with 6.12 as it booted). It takes no longer where
/// other cases use the cores.
pub const EMULATION: &str = "tcg,thread=single";

/// The command line of a guest's kernel. It calls a processor that did nothing for 120 s locked up, not one whose machine
/// stood still for 20, and does not test its own ciphers, which takes an emulated one half a second.
pub fn boot_words(more: &str) -> String {
    format!(
        "console=ttyS0 quiet mitigations=off no_timer_check cryptomgr.notests panic=-1 \
         sysctl.kernel.hung_task_timeout_secs=40 sysctl.kernel.watchdog_thresh=60 {more}"
    )
}

impl NicOptions {
    /// One pair of queues, 1,500 bytes.
    pub fn new(mac: &str) -> NicOptions {
        NicOptions { mac: mac.to_string(), queues: 1, mtu: 1500, properties: String::new() }
    }

    /// What follows the device's netdev, with a comma before it.
    fn text(&self) -> String {
        let mut text = format!(",mac={}", self.mac);
        if self.mtu != 1500 {
            text += &format!(",host_mtu={}", self.mtu);
        }
        if self.queues > 1 {
            text += ",mq=on";
        }
        if !self.properties.is_empty() {
            text += &format!(",{}", self.properties);
        }
        // QEMU 7.2 without KVM ends when a guest masks an MSI-X vector of a vhost-user NIC
        // (kvm_virtio_pci_irqfd_use is called all the same): emulated guests have none.
        if has_kvm() && self.queues > 1 {
            text += &format!(",vectors={}", 2 * self.queues + 2);
        } else if !has_kvm() && !self.properties.contains("vectors=") {
            text += ",vectors=0";
        }
        text
    }
}
