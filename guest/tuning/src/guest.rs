//! What there is in the guest: vCPUs, devices, interrupts; and what stands against changing it.

use serde::Serialize;

use crate::place::is_name;
use crate::system::{SETTING_BYTES_MAX, System, TABLE_BYTES_MAX, Trouble, text};
use crate::value::{Form, cpus, value};

/// Devices of a kind that are looked at.
const DEVICES_MAX: usize = 1024;
/// Processes whose names are looked at.
const PROCESSES_MAX: usize = 16_384;
/// Capabilities without which settings cannot be changed: CAP_NET_ADMIN and CAP_SYS_ADMIN.
const RIGHTS: u64 = 1 << 12 | 1 << 21;
/// The first namespaces of a kernel, whose numbers are fixed (include/linux/proc_ns.h).
const FIRST_SPACES: [(&str, &str); 2] =
    [("proc/self/ns/user", "user:[4026531837]"), ("proc/self/ns/pid", "pid:[4026531836]")];

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The guest that this program runs in.
    Here,
    /// A tree that stands for one: who this process is does not count.
    Tree,
}

/// A guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Guest {
    /// The kernel's release.
    pub kernel: String,
    /// The number of this start, by which a journal of an earlier one is known.
    pub boot: String,
    /// Its vCPUs that are on.
    pub vcpus: Vec<u32>,
    /// Virtio disks.
    pub disks: Vec<Device>,
    /// Virtio NICs.
    pub nics: Vec<Device>,
    /// Disks of other kinds, but loops and the like.
    pub other_disks: Vec<Device>,
    /// NICs of other kinds that are devices.
    pub other_nics: Vec<Device>,
    /// Interrupts of the queues of NICs with several pairs.
    pub interrupts: Vec<Interrupt>,
    /// Flags of its first processor.
    #[serde(skip)]
    pub flags: Vec<String>,
    /// Names of processes.
    #[serde(skip)]
    pub processes: Vec<String>,
    /// What stands against changing anything.
    pub obstacles: Vec<Obstacle>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Which device has that name: a device that comes later gets another one.
    pub is: String,
}

/// The interrupt of one queue of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupt {
    /// Its NIC.
    pub nic: Device,
    /// Its number.
    pub irq: String,
    /// The vCPU that is to take it.
    pub vcpu: u32,
}

/// Why nothing may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// No guest.
    #[error(
        "this machine is no guest: it has no virtio device, and its processor names no hypervisor; \
         run this in the guest"
    )]
    NoGuest,
    /// A container.
    #[error(
        "this is a container: what it would set is its host's, for all containers; run this in the \
         guest outside of it"
    )]
    Container,
    /// Settings that are read-only.
    #[error(
        "/sys is mounted read-only: mount it writable (mount -o remount,rw /sys), if it is yours"
    )]
    ReadOnly,
    /// No rights.
    #[error("this process may change nothing (no CAP_SYS_ADMIN and CAP_NET_ADMIN): run it as root")]
    NoRights,
}

impl Guest {
    /// Looks at all of it.
    pub fn look(system: &mut dyn System, scope: Scope) -> Guest {
        let line = |system: &mut dyn System, path: &str| {
            let bytes = system.bytes(path, SETTING_BYTES_MAX).unwrap_or_default();
            value(Form::Line, &bytes).unwrap_or_default()
        };
        let kernel = line(system, "proc/sys/kernel/osrelease");
        let boot = line(system, "proc/sys/kernel/random/boot_id");
        let vcpus = cpus(&line(system, "sys/devices/system/cpu/online"));
        let (disks, other_disks) = devices(system, "sys/block", "virtio_blk", "diskseq");
        let (nics, other_nics) = devices(system, "sys/class/net", "virtio_net", "ifindex");
        let mut guest = Guest {
            kernel,
            boot,
            vcpus: vcpus.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![0]),
            disks,
            nics,
            other_disks,
            other_nics,
            flags: flags(system),
            processes: processes(system),
            ..Guest::default()
        };
        guest.interrupts = interrupts(system, &guest);
        guest.obstacles = obstacles(system, &guest, scope);
        guest
    }

    /// Which device has that name; nothing if none has.
    pub fn device(&self, name: &str) -> Option<&Device> {
        let all = self.disks.iter().chain(&self.nics);
        all.into_iter().find(|device| device.name == name)
    }
}

/// Devices of a class by their driver: those of `driver`, and others that have one. The number in the file `once` is
/// never given again.
fn devices(
    system: &mut dyn System,
    class: &str,
    driver: &str,
    once: &str,
) -> (Vec<Device>, Vec<Device>) {
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    let names = system.names(class).unwrap_or_default();
    for name in names.into_iter().filter(|name| is_name(name)).take(DEVICES_MAX) {
        let Ok(is) = system.link(&format!("{class}/{name}")) else { continue };
        let bound = system.link(&format!("{class}/{name}/device/driver"));
        let bound = bound.ok().and_then(|link| value(Form::LinkEnd, link.as_bytes()));
        let number = system.bytes(&format!("{class}/{name}/{once}"), SETTING_BYTES_MAX);
        // Linux before 5.15 has no such number of disks.
        let number = value(Form::Number, &number.unwrap_or_default()).unwrap_or_default();
        let device = Device { name, is: format!("{is}#{number}") };
        match bound {
            Some(bound) if bound == driver => ours.push(device),
            Some(_) => others.push(device),
            // Loops, bridges and the like: no device of the host's.
            None => {}
        }
    }
    (ours, others)
}

fn flags(system: &mut dyn System) -> Vec<String> {
    let told = text(system, "proc/cpuinfo", TABLE_BYTES_MAX).unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("flags"));
    let words = line.and_then(|line| line.split_once(':')).map_or("", |(_, words)| words);
    words.split_whitespace().map(str::to_owned).collect()
}

fn processes(system: &mut dyn System) -> Vec<String> {
    let names = system.names("proc").unwrap_or_default();
    let numbers = names.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let name = |number: String| {
        let bytes = system.bytes(&format!("proc/{number}/comm"), SETTING_BYTES_MAX).ok()?;
        value(Form::Line, &bytes)
    };
    numbers.take(PROCESSES_MAX).filter_map(name).collect()
}

/// Interrupts of NICs' queues, as the kernel names them: `virtio0-input.1`.
fn interrupts(system: &mut dyn System, guest: &Guest) -> Vec<Interrupt> {
    let table = text(system, "proc/interrupts", TABLE_BYTES_MAX).unwrap_or_default();
    let mut all = Vec::new();
    for nic in &guest.nics {
        let device = system.link(&format!("sys/class/net/{}/device", nic.name));
        let Some(device) = device.ok().and_then(|link| value(Form::LinkEnd, link.as_bytes()))
        else {
            continue;
        };
        let mut of_nic: Vec<(String, usize)> =
            table.lines().filter_map(|line| queue_of(line, &device)).take(DEVICES_MAX).collect();
        of_nic.retain(|(irq, _)| is_name(irq));
        // A single pair's interrupts are best left to whoever spreads them.
        if of_nic.iter().any(|(_, queue)| *queue > 0) {
            let vcpu = |queue: usize| guest.vcpus[queue % guest.vcpus.len()];
            let interrupt = |(irq, queue)| Interrupt { nic: nic.clone(), irq, vcpu: vcpu(queue) };
            all.extend(of_nic.into_iter().map(interrupt));
        }
    }
    all
}

/// The interrupt of a line, and its queue, if the line is of a queue of that device.
fn queue_of(line: &str, device: &str) -> Option<(String, usize)> {
    let (irq, rest) = line.trim_start().split_once(':')?;
    let name = rest.split_whitespace().next_back()?;
    let queue = name.strip_prefix(device)?;
    let number = queue.strip_prefix("-input.").or_else(|| queue.strip_prefix("-output."))?;
    let is_number = !irq.is_empty() && irq.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((irq.to_owned(), number.parse().ok()?))
}

fn obstacles(system: &mut dyn System, guest: &Guest, scope: Scope) -> Vec<Obstacle> {
    let mut all = Vec::new();
    let has_virtio = system.names("sys/bus/virtio/devices").is_ok_and(|names| !names.is_empty());
    if !has_virtio && !guest.flags.iter().any(|flag| flag == "hypervisor") {
        all.push(Obstacle::NoGuest);
    }
    if scope == Scope::Tree {
        return all;
    }
    let is_other = |(path, first): &(&str, &str)| match system.link(path) {
        Ok(space) => space != *first,
        // A kernel without such spaces has no containers.
        Err(Trouble::Absent) => false,
        Err(_) => true,
    };
    if FIRST_SPACES.iter().any(is_other) {
        all.push(Obstacle::Container);
    }
    let mounts = text(system, "proc/self/mountinfo", TABLE_BYTES_MAX).unwrap_or_default();
    if is_read_only(&mounts) {
        all.push(Obstacle::ReadOnly);
    }
    let status = text(system, "proc/self/status", SETTING_BYTES_MAX * 4).unwrap_or_default();
    if !has_rights(&status) {
        all.push(Obstacle::NoRights);
    }
    all
}

/// Whether the uppermost mount at /sys may not be written (proc(5), mountinfo).
fn is_read_only(mounts: &str) -> bool {
    let mut of_sys = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(4);
        (words.next()? == "/sys").then(|| words.next().unwrap_or_default())
    });
    of_sys.next_back().is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

fn has_rights(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & RIGHTS == RIGHTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_of_queues_are_found_by_their_names() {
        let line = " 27:    12   0   PCI-MSIX-0000:00:03.0   1-edge      virtio1-input.1";
        assert_eq!(queue_of(line, "virtio1"), Some(("27".to_owned(), 1)));
        assert_eq!(queue_of(line, "virtio10"), None);
        assert_eq!(queue_of("NMI:  0  0  virtio1-input.0", "virtio1"), None);
        assert_eq!(queue_of(" 28: 1 PCI-MSIX virtio1-config", "virtio1"), None);
        assert_eq!(queue_of("", "virtio1"), None);
    }

    #[test]
    fn the_uppermost_mount_of_sys_counts() {
        let line =
            |options: &str| format!("22 1 0:20 / /sys {options} shared:7 - sysfs sysfs rw\n");
        assert!(!is_read_only(&line("rw,nosuid")));
        assert!(is_read_only(&(line("rw") + &line("ro,nosuid"))));
        assert!(!is_read_only(""));
    }

    #[test]
    fn rights_are_both_of_them() {
        assert!(has_rights("Name:\ta\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_rights("CapEff:\t0000000000200000\n"));
        assert!(!has_rights("CapEff:\tzz\n") && !has_rights(""));
    }
}
