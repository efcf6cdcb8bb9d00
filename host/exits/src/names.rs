//! Names of reasons, ports and registers, as the kernel and its devices have them.

use crate::tally::{Detail, Vendor};

/// Intel's reasons that guests meet (`vmx.h`).
const INTEL: &[(u32, &str)] = &[
    (0, "exception or NMI"),
    (1, "external interrupt"),
    (2, "triple fault"),
    (7, "interrupt window"),
    (8, "NMI window"),
    (9, "task switch"),
    (10, "CPUID"),
    (12, "HLT"),
    (14, "INVLPG"),
    (15, "RDPMC"),
    (16, "RDTSC"),
    (18, "hypercall"),
    (28, "control register"),
    (29, "debug register"),
    (30, "port I/O"),
    (31, "MSR read"),
    (32, "MSR write"),
    (33, "invalid state"),
    (36, "MWAIT"),
    (37, "monitor trap"),
    (39, "MONITOR"),
    (40, "PAUSE"),
    (43, "TPR below threshold"),
    (44, "APIC access"),
    (45, "end of interrupt"),
    (46, "GDTR or IDTR"),
    (47, "LDTR or TR"),
    (48, "EPT violation"),
    (49, "EPT misconfiguration"),
    (51, "RDTSCP"),
    (52, "preemption timer"),
    (54, "WBINVD"),
    (55, "XSETBV"),
    (56, "APIC write"),
    (57, "RDRAND"),
    (58, "INVPCID"),
    (61, "RDSEED"),
    (62, "page log full"),
    (67, "UMWAIT"),
    (68, "TPAUSE"),
    (74, "bus lock"),
    (75, "notify"),
    (84, "MSR read"),
    (85, "MSR write"),
];

/// AMD's (`svm.h`).
const AMD: &[(u32, &str)] = &[
    (0x60, "external interrupt"),
    (0x61, "NMI"),
    (0x62, "SMI"),
    (0x63, "INIT"),
    (0x64, "interrupt window"),
    (0x65, "control register"),
    (0x6e, "RDTSC"),
    (0x6f, "RDPMC"),
    (0x72, "CPUID"),
    (0x74, "IRET"),
    (0x76, "INVD"),
    (0x77, "PAUSE"),
    (0x78, "HLT"),
    (0x79, "INVLPG"),
    (0x7b, "port I/O"),
    (0x7c, "MSR"),
    (0x7f, "shutdown"),
    (0x81, "hypercall"),
    (0x87, "RDTSCP"),
    (0x89, "WBINVD"),
    (0x8a, "MONITOR"),
    (0x8b, "MWAIT"),
    (0x8d, "XSETBV"),
    (0xa2, "INVPCID"),
    (0xa6, "idle HLT"),
    (0x400, "NPF"),
    (0x401, "incomplete IPI"),
    (0x402, "APIC access"),
    (0x403, "VMGEXIT"),
];

/// First and last port, and whose these are, on the machines that QEMU and others make.
const PORTS: &[(u16, u16, &str)] = &[
    (0x20, 0x21, "PIC"),
    (0x40, 0x43, "PIT"),
    (0x60, 0x60, "keyboard"),
    (0x61, 0x61, "PIT, speaker"),
    (0x64, 0x64, "keyboard"),
    (0x70, 0x71, "RTC"),
    (0x80, 0x80, "delay"),
    (0xa0, 0xa1, "PIC"),
    (0x170, 0x177, "IDE"),
    (0x1f0, 0x1f7, "IDE"),
    (0x2f8, 0x2ff, "serial"),
    (0x376, 0x376, "IDE"),
    (0x3c0, 0x3df, "VGA"),
    (0x3f6, 0x3f6, "IDE"),
    (0x3f8, 0x3ff, "serial"),
    (0x402, 0x402, "firmware's log"),
    (0x510, 0x518, "fw_cfg"),
    (0x600, 0x607, "ACPI"),
    (0x608, 0x60b, "ACPI timer"),
    (0xb000, 0xb007, "ACPI"),
    (0xb008, 0xb00b, "ACPI timer"),
    (0xcf8, 0xcff, "PCI configuration"),
];

/// Registers that guests write or read.
const MSRS: &[(u32, &str)] = &[
    (0x10, "TSC"),
    (0x1b, "APIC base"),
    (0x48, "SPEC_CTRL"),
    (0x49, "PRED_CMD"),
    (0x6e0, "TSC_DEADLINE"),
    (0x802, "x2APIC ID"),
    (0x808, "x2APIC TPR"),
    (0x80b, "x2APIC EOI"),
    (0x80f, "x2APIC SPIV"),
    (0x830, "x2APIC ICR"),
    (0x832, "x2APIC LVT timer"),
    (0x838, "x2APIC timer count"),
    (0x839, "x2APIC timer now"),
    (0x83f, "x2APIC self IPI"),
    (0x4b56_4d00, "KVM wall clock"),
    (0x4b56_4d01, "KVM clock"),
    (0x4b56_4d02, "KVM async page faults"),
    (0x4b56_4d03, "KVM steal time"),
    (0x4b56_4d04, "KVM end of interrupt"),
    (0x4b56_4d05, "KVM halt polling"),
    (0xc000_0080, "EFER"),
    (0xc000_0100, "FS base"),
    (0xc000_0101, "GS base"),
    (0xc000_0102, "kernel GS base"),
    (0xc000_0103, "TSC_AUX"),
];

/// First and last register, and what they are.
const MSR_RANGES: &[(u32, u32, &str)] = &[
    (0xc1, 0xc8, "performance counter"),
    (0x186, 0x18d, "performance event"),
    (0x309, 0x30c, "performance counter"),
    (0x38d, 0x390, "performance control"),
    (0x4c1, 0x4c8, "performance counter"),
    (0x800, 0x8ff, "x2APIC"),
    (0x4000_0000, 0x4000_0fff, "Hyper-V"),
    (0xc001_0000, 0xc001_0007, "performance counter"),
    (0xc001_0200, 0xc001_020b, "performance counter"),
];

const APIC: &[(u32, &str)] = &[
    (0x20, "ID"),
    (0x80, "TPR"),
    (0xb0, "EOI"),
    (0xd0, "LDR"),
    (0xe0, "DFR"),
    (0xf0, "SPIV"),
    (0x300, "ICR"),
    (0x310, "ICR2"),
    (0x320, "LVT timer"),
    (0x380, "timer count"),
    (0x390, "timer now"),
    (0x3e0, "timer divider"),
];

/// Hypercalls of KVM (`kvm_para.h`).
const HYPERCALLS: &[(u64, &str)] = &[
    (1, "VAPIC poll"),
    (5, "kick a vCPU"),
    (9, "clock pairing"),
    (10, "IPIs to many"),
    (11, "yield"),
    (12, "map of memory"),
];

/// Places of devices' registers that are the same on all PCs: the first page, and whose.
const PAGES: &[(u64, u64, &str)] = &[
    (0xfec0_0000, 0xfec0_0fff, "IOAPIC"),
    (0xfed0_0000, 0xfed0_03ff, "HPET"),
    (0xfee0_0000, 0xfee0_0fff, "local APIC"),
];

fn of<K: PartialEq + Copy>(table: &[(K, &'static str)], key: K) -> Option<&'static str> {
    table.iter().find(|(its, _)| *its == key).map(|(_, name)| *name)
}

fn within<K: PartialOrd + Copy>(table: &[(K, K, &'static str)], key: K) -> Option<&'static str> {
    let found = table.iter().find(|(first, last, _)| *first <= key && key <= *last);
    found.map(|(_, _, name)| *name)
}

/// The reason, in words.
pub(crate) fn reason(vendor: Vendor, reason: u32) -> String {
    let table = match vendor {
        Vendor::Intel => INTEL,
        Vendor::Amd => AMD,
    };
    let name = of(table, reason).map(str::to_string);
    name.or_else(|| accessed(vendor, reason)).unwrap_or_else(|| format!("reason {reason:#x}"))
}

/// AMD's reasons that have a number in them.
fn accessed(vendor: Vendor, reason: u32) -> Option<String> {
    match reason {
        _ if vendor == Vendor::Intel => None,
        0x00..=0x0f => Some(format!("read of CR{reason}")),
        0x10..=0x1f => Some(format!("write of CR{}", reason - 0x10)),
        0x20..=0x3f => Some("debug register".to_string()),
        0x40..=0x5f => Some(format!("exception {}", reason - 0x40)),
        _ => None,
    }
}

/// What it is about, as a number of its kind; empty where nothing is known.
pub(crate) fn detail(detail: Detail) -> String {
    match detail {
        Detail::None => String::new(),
        Detail::Fault(bits) => match bits {
            bits if bits & 0x10 != 0 => "fetch".to_string(),
            bits if bits & 2 != 0 => "write".to_string(),
            _ => "read".to_string(),
        },
        Detail::Port(port) => format!("{port:#x}"),
        Detail::Msr(register) => format!("{register:#x}"),
        Detail::Hypercall(number) => format!("{number}"),
        Detail::Cpuid(leaf) => format!("{leaf:#x}"),
        Detail::Apic(register) => format!("{register:#x}"),
        Detail::Control(how) => {
            let verb = ["write", "read", "clts", "lmsw"][usize::from(how >> 4 & 3)];
            format!("{verb} of CR{}", how & 15)
        }
        Detail::Vector(vector) => format!("vector {vector}"),
        Detail::Mmio(address) => format!("{address:#x}"),
    }
}

/// Whose that port, register or address is; nothing where that differs from guest to guest.
pub(crate) fn device(detail: Detail) -> Option<&'static str> {
    match detail {
        Detail::Port(port) => within(PORTS, port),
        Detail::Msr(register) => of(MSRS, register).or_else(|| within(MSR_RANGES, register)),
        Detail::Hypercall(number) => of(HYPERCALLS, number),
        Detail::Apic(register) => of(APIC, register),
        Detail::Mmio(address) => within(PAGES, address),
        Detail::Fault(_) => Some("memory"),
        Detail::None | Detail::Cpuid(_) | Detail::Control(_) | Detail::Vector(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_details_have_their_names() {
        assert_eq!(reason(Vendor::Intel, 30), "port I/O");
        assert_eq!(reason(Vendor::Amd, 0x7b), "port I/O");
        assert_eq!(reason(Vendor::Amd, 0x14), "write of CR4");
        assert_eq!(reason(Vendor::Intel, 0x14), "reason 0x14");
        assert_eq!(detail(Detail::Control(0x13)), "read of CR3");
        assert_eq!(detail(Detail::Fault(2)), "write");
        assert_eq!(device(Detail::Port(0x1f7)), Some("IDE"));
        assert_eq!(device(Detail::Msr(0x6e0)), Some("TSC_DEADLINE"));
        assert_eq!(device(Detail::Msr(0x187)), Some("performance event"));
        assert_eq!(device(Detail::Mmio(0xfed0_00f0)), Some("HPET"));
        assert_eq!(device(Detail::Mmio(0xfe00_0000)), None);
    }
}
