//! A made-up tree of files that stands for a guest's `/`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A guest with two vCPUs, disks that have a scheduler, and a NIC with two pairs.
pub(crate) fn make(root: &Path) {
    let file = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let link = |path: &str, to: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    };
    file("proc/cpuinfo", "processor : 0\nflags : fpu hypervisor\n");
    file("proc/sys/kernel/random/boot_id", "6b9f\n");
    file("proc/sys/kernel/osrelease", "6.1.0\n");
    file("proc/sys/kernel/nmi_watchdog", "1\n");
    file("proc/sys/kernel/soft_watchdog", "1\n");
    file("sys/devices/system/cpu/online", "0-1\n");
    let clock = "sys/devices/system/clocksource/clocksource0";
    file(&format!("{clock}/current_clocksource"), "hpet\n");
    file(&format!("{clock}/available_clocksource"), "tsc hpet acpi_pm \n");
    for name in ["vda", "vdb", "vdc"] {
        let device = format!("sys/devices/virtio-{name}");
        link(&format!("sys/block/{name}"), &format!("../devices/virtio-{name}/block/{name}"));
        let disk = format!("{device}/block/{name}");
        link(&format!("{disk}/device"), &format!("../../../virtio-{name}"));
        link(&format!("{device}/driver"), "../../bus/virtio/drivers/virtio_blk");
        file(&format!("{disk}/mq/0/nr_tags"), "256\n");
        file(&format!("{disk}/queue/scheduler"), "[mq-deadline] none\n");
        file(&format!("{disk}/queue/nr_requests"), "64\n");
        file(&format!("{disk}/queue/wbt_lat_usec"), "75000\n");
        file(&format!("{disk}/queue/rq_affinity"), "1\n");
    }
    link("sys/class/net/eth0", "../../devices/virtio7/net/eth0");
    link("sys/devices/virtio7/net/eth0/device", "../../../virtio7");
    link("sys/devices/virtio7/driver", "../../bus/virtio/drivers/virtio_net");
    file("sys/devices/virtio7/features", &"0".repeat(64));
    file("sys/devices/virtio7/net/eth0/gro_flush_timeout", "0\n");
    file("sys/devices/virtio7/net/eth0/napi_defer_hard_irqs", "0\n");
    file("proc/interrupts", " 24: 1 MSI virtio7-input.0\n 25: 1 MSI virtio7-input.1\n");
    file("proc/irq/24/smp_affinity_list", "0-1\n");
    file("proc/irq/25/smp_affinity_list", "0-1\n");
    fs::create_dir_all(root.join("sys/bus/virtio/drivers/virtio_blk")).unwrap();
    fs::create_dir_all(root.join("sys/bus/virtio/drivers/virtio_net")).unwrap();
}

/// All files of settings, by their paths.
pub(crate) fn kept(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.join("proc"), root.join("sys")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                all.insert(entry.path().display().to_string(), fs::read(entry.path()).unwrap());
            }
        }
    }
    all
}

/// The journal's bytes; none if there is no journal.
pub(crate) fn journal(root: &Path) -> Vec<u8> {
    fs::read(root.join("var/lib/sidecore-tune/journal")).unwrap_or_default()
}
