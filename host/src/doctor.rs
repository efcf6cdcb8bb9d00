//! What this host offers and lacks for serving guests, each with what it means and what to do.

mod confinement;
mod net;

use std::path::Path;

use serde::Serialize;

use crate::Topology;
use crate::files::Files;

/// Descriptors that a busy host needs: a disk of 8 queues is promised 45.
const NOFILE_WANTED: u64 = 65_536;
/// Memory that may be locked, in bytes: an io_uring takes about 256 KiB of it before Linux 5.12, and
/// each sidecore has one.
const MEMLOCK_WANTED: u64 = 8 << 20;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// What needs it does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What that means for the guests.
    pub means: String,
    /// What to do; empty if nothing.
    pub todo: String,
}

/// What only system calls tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probes {
    /// Whether an io_uring could be made, or why not.
    pub io_uring: Result<(), String>,
    /// Whether `/dev/kvm` could be opened, or why not.
    pub kvm: Result<(), String>,
    /// Most open files, soft and hard; nothing is no limit.
    pub nofile: (Option<u64>, Option<u64>),
    /// Most locked memory in bytes, soft; nothing is no limit.
    pub memlock: Option<u64>,
    /// The cpus that this process may run on.
    pub allowed_cpus: Vec<u32>,
    /// Whether an io_uring could be restricted, or why not.
    pub ring_restrictions: Result<(), String>,
    /// The version of landlock, if there is one.
    pub landlock: Option<u32>,
}

impl Probes {
    /// Asks the kernel. An io_uring is really made, for it may be compiled in and yet forbidden.
    pub fn of_this_process() -> Probes {
        let nofile = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let memlock = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let kvm = std::fs::File::options().read(true).write(true).open("/dev/kvm");
        Probes {
            io_uring: io_uring::IoUring::new(8).map(|_| ()).map_err(|e| e.to_string()),
            kvm: kvm.map(|_| ()).map_err(|e| e.to_string()),
            nofile: (nofile.current, nofile.maximum),
            memlock: memlock.current,
            allowed_cpus: crate::topology::allowed_cpus(),
            ring_restrictions: confinement::restrict_a_ring().map_err(|e| e.to_string()),
            landlock: confine::landlock_abi(),
        }
    }
}

/// This host.
pub fn examine_this_host() -> Vec<Check> {
    examine(Path::new("/"), &Probes::of_this_process())
}

/// Looks at everything, in the order of its weight. `root` is `/` for this host.
pub fn examine(root: &Path, probes: &Probes) -> Vec<Check> {
    let files = Files::below(root);
    let topology = Topology::read(root, &probes.allowed_cpus);
    vec![
        kvm(&files, probes),
        posted_interrupts(&files),
        cores(&topology),
        numa(&topology),
        isolated(&topology),
        autogroup(&files),
        io_uring(&files, probes),
        confinement::filters(&files),
        confinement::rings(probes),
        confinement::landlock(probes),
        confinement::rights(&files),
        ebpf(&files),
        net::taps(&files),
        net::interfaces(&files),
        memlock(&files, probes),
        overcommit(&files),
        nofile(probes),
        hugepages(&files),
    ]
}

fn check(
    name: &'static str,
    state: State,
    found: impl Into<String>,
    means: &str,
    todo: impl Into<String>,
) -> Check {
    Check { name, state, found: found.into(), means: means.to_string(), todo: todo.into() }
}

/// Whether guests of this host can run on its processor, whoever starts them. `root` is `/` for this host.
pub fn has_kvm(root: &Path) -> bool {
    let files = Files::below(root);
    files.exists("dev/kvm") && processor_module(&files).is_some()
}

/// The module by which KVM uses the processor: /dev/kvm alone does not say that stock kernels run.
fn processor_module(files: &Files) -> Option<&'static str> {
    let modules = ["kvm_intel", "kvm_amd"];
    modules.into_iter().find(|module| files.exists(&format!("sys/module/{module}")))
}

fn kvm(files: &Files, probes: &Probes) -> Check {
    match (processor_module(files), &probes.kvm) {
        (Some(module), Ok(())) => check("kvm", State::Ok, module, "guests run on the hardware", ""),
        (Some(module), Err(error)) => check(
            "kvm",
            State::Warn,
            format!("{module}, but /dev/kvm: {error}"),
            "guests of this user run emulated",
            "add the user to the group kvm; Sidecore itself does not need /dev/kvm",
        ),
        (None, _) if files.exists("sys/module/kvm") => check(
            "kvm",
            State::Missing,
            "kvm without kvm_intel or kvm_amd",
            "stock guests run emulated (TCG): correct, but far slower",
            "enable VT-x or AMD-V in the firmware, or nested virtualisation for this machine; then \
             `modprobe kvm_intel` or `modprobe kvm_amd`",
        ),
        (None, _) => check(
            "kvm",
            State::Missing,
            "no kvm module",
            "guests run emulated (TCG): correct, but far slower",
            "enable VT-x or AMD-V in the firmware; then `modprobe kvm_intel` or `modprobe kvm_amd`",
        ),
    }
}

fn posted_interrupts(files: &Files) -> Check {
    let name = "posted interrupts";
    let on = |path: &str| files.text(path).is_some_and(|text| matches!(text.as_str(), "Y" | "1"));
    let means_on = "a call reaches a running guest without an exit";
    let means_off = "each call to a guest costs it an exit";
    if on("sys/module/kvm_intel/parameters/enable_apicv") {
        return check(name, State::Ok, "APICv", means_on, "");
    }
    if on("sys/module/kvm_amd/parameters/avic") {
        return check(name, State::Ok, "AVIC", means_on, "");
    }
    if files.exists("sys/module/kvm_intel") {
        let todo = "if the processor has it: `modprobe -r kvm_intel; modprobe kvm_intel \
                    enable_apicv=1`";
        return check(name, State::Warn, "APICv is off", means_off, todo);
    }
    if files.exists("sys/module/kvm_amd") {
        let todo = "if the processor has it: `modprobe -r kvm_amd; modprobe kvm_amd avic=1`";
        return check(name, State::Warn, "AVIC is off", means_off, todo);
    }
    check(name, State::Missing, "no kvm_intel or kvm_amd", means_off, "see kvm")
}

fn cores(topology: &Topology) -> Check {
    let found = format!("{} cpus on {} cores", topology.cpus.len(), topology.cores().len());
    let cpus = topology.host_cpus();
    let count = usize::from(cpus.auto_count).min(cpus.auto.len());
    let auto: Vec<u32> = cpus.auto.into_iter().take(count).collect();
    let found = format!("{found}; cpus = \"auto\" takes {}", cpus::format(&auto));
    match topology.cores().len() {
        1 => check(
            "cores",
            State::Warn,
            found,
            "the sidecore shares the only core with the guests",
            "give the host a second core",
        ),
        _ => check("cores", State::Ok, found, "a core can be given to I/O", ""),
    }
}

fn numa(topology: &Topology) -> Check {
    let nodes = topology.nodes().len();
    let (found, means) = match nodes {
        1 => ("1 node".to_string(), "all memory is equally near"),
        _ => (
            format!("{nodes} nodes"),
            "a sidecore is fastest for guests whose memory is on its own node",
        ),
    };
    let todo = match nodes {
        1 => "",
        _ => "name cpus of each node that runs guests in `[sidecores] cpus`",
    };
    check("numa", State::Ok, found, means, todo)
}

fn isolated(topology: &Topology) -> Check {
    let isolated: Vec<u32> =
        topology.cpus.iter().filter(|cpu| cpu.isolated).map(|cpu| cpu.cpu).collect();
    if !isolated.is_empty() {
        let found = format!("cpus {}", cpus::format(&isolated));
        return check(
            "isolated cores",
            State::Ok,
            found,
            "nothing else runs on sidecores there",
            "",
        );
    }
    let auto = topology.host_cpus().auto.into_iter().take(1).collect::<Vec<_>>();
    check(
        "isolated cores",
        State::Warn,
        "none",
        "other threads can delay a sidecore by milliseconds",
        format!(
            "for steady latency, boot with `isolcpus=managed_irq,domain,{0} nohz_full={0}`",
            cpus::format(&auto)
        ),
    )
}

/// With it, threads that one session started are one party of a processor. On Linux 6.18 such a party that
/// always had something to run kept the kernel's own threads waiting for seconds; one of them ends direct
/// writes to files.
fn autogroup(files: &Files) -> Check {
    let name = "autogroup";
    match files.number("proc/sys/kernel/sched_autogroup_enabled") {
        Some(1) => check(
            name,
            State::Warn,
            "on",
            "where a sidecore shares its cpu with other busy threads, requests to files can take seconds",
            "`sysctl kernel.sched_autogroup_enabled=0`, or isolated cores",
        ),
        Some(_) => {
            check(name, State::Ok, "off", "the kernel's threads get their turn on every cpu", "")
        }
        None => check(
            name,
            State::Ok,
            "this kernel has none",
            "the kernel's threads get their turn",
            "",
        ),
    }
}

fn io_uring(files: &Files, probes: &Probes) -> Check {
    let name = "io_uring";
    let error = match &probes.io_uring {
        Ok(()) => return check(name, State::Ok, "works", "file back-ends can be served", ""),
        Err(error) => error,
    };
    let sysctl = files.number("proc/sys/kernel/io_uring_disabled");
    let todo = match sysctl {
        Some(2) => "`sysctl kernel.io_uring_disabled=0` (it is 2: off for everybody)",
        Some(1) => {
            "`sysctl kernel.io_uring_disabled=0`, or add the user to the group of \
             kernel.io_uring_group (it is 1: off for the unprivileged)"
        }
        Some(_) => "look for a seccomp filter: containers often forbid io_uring_setup",
        None => "install a kernel of 5.15 or newer with CONFIG_IO_URING",
    };
    check(name, State::Missing, error, "no file back-end; null and memory still work", todo)
}

fn ebpf(files: &Files) -> Check {
    let name = "ebpf";
    let btf = files.exists("sys/kernel/btf/vmlinux");
    // CAP_SYS_ADMIN is bit 21, CAP_PERFMON 38, CAP_BPF 39 (include/uapi/linux/capability.h).
    let has = |bit: u32| net::capabilities(files) & 1 << bit != 0;
    let may = has(21) || (has(38) && has(39));
    let lost = "which vCPU runs cannot be seen, so `redirect` does nothing; everything else works";
    match (btf, may) {
        (true, true) => check(
            name,
            State::Ok,
            "BTF, and the right to load programs",
            "`redirect` can be had by a daemon with these rights",
            "",
        ),
        (true, false) => check(
            name,
            State::Warn,
            "BTF, but no right to load programs",
            lost,
            "run as root, or with AmbientCapabilities=CAP_BPF CAP_PERFMON",
        ),
        (false, _) => check(
            name,
            State::Warn,
            "no BTF (/sys/kernel/btf/vmlinux)",
            lost,
            "use a kernel built with CONFIG_DEBUG_INFO_BTF",
        ),
    }
}

fn memlock(files: &Files, probes: &Probes) -> Check {
    let name = "locked memory";
    let free = files.text("proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.to_string();
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    let free = free.map_or(String::new(), |kib| format!("; {} MiB of memory free", kib >> 10));
    match probes.memlock {
        Some(limit) if limit < MEMLOCK_WANTED => check(
            name,
            State::Warn,
            format!("at most {} KiB{free}", limit >> 10),
            "before Linux 5.12 an io_uring counts as locked memory: disks on files may be refused",
            "LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited`",
        ),
        Some(limit) => check(name, State::Ok, format!("{} MiB{free}", limit >> 20), "enough", ""),
        None => check(name, State::Ok, format!("no limit{free}"), "enough", ""),
    }
}

fn overcommit(files: &Files) -> Check {
    let name = "overcommit";
    match files.number("proc/sys/vm/overcommit_memory") {
        Some(2) => check(
            name,
            State::Warn,
            "vm.overcommit_memory = 2 (strict)",
            "a memory back-end takes its whole size at once, and a large one is refused",
            "`sysctl vm.overcommit_memory=0`, or keep memory back-ends small",
        ),
        Some(mode) => check(
            name,
            State::Ok,
            format!("vm.overcommit_memory = {mode}"),
            "a memory back-end takes only what was written to it",
            "",
        ),
        None => check(
            name,
            State::Warn,
            "vm.overcommit_memory cannot be read",
            "it is not known whether memory back-ends are sparse",
            "mount /proc",
        ),
    }
}

fn nofile(probes: &Probes) -> Check {
    let (soft, hard) = probes.nofile;
    let words = |limit: Option<u64>| limit.map_or("no limit".to_string(), |n| n.to_string());
    // The daemon raises its soft limit to the hard one when it starts.
    match hard {
        Some(hard) if hard < NOFILE_WANTED => check(
            "nofile",
            State::Warn,
            format!("{} open files, at most {hard}", words(soft)),
            "a disk of 8 queues is promised 45; beyond what there is, devices are refused",
            format!("LimitNOFILE={NOFILE_WANTED} in the unit, or `ulimit -Hn {NOFILE_WANTED}`"),
        ),
        _ => check(
            "nofile",
            State::Ok,
            format!("{} open files, at most {}", words(soft), words(hard)),
            "enough; the daemon takes all it may have",
            "",
        ),
    }
}

fn hugepages(files: &Files) -> Check {
    let count = files.number("proc/sys/vm/nr_hugepages").unwrap_or(0);
    check(
        "hugepages",
        State::Ok,
        format!("{count} reserved"),
        "not needed; guests that use them are served from them",
        "",
    )
}

#[cfg(test)]
pub(crate) mod tests;
