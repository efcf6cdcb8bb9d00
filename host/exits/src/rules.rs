//! Which rule of `sidecore-tune` is about a row, by the name of its function or by what it is about.
//!
//! A name and no more: what a rule looks at and sets is in the guest's program, of which nothing here is made.

use crate::tally::Detail;

/// Beginnings of functions' names.
const FUNCTIONS: &[(&str, &str)] = &[
    ("acpi_pm_", "clocksource"),
    ("verify_pmtmr_rate", "clocksource"),
    ("read_hpet", "clocksource"),
    ("i8253_", "clocksource"),
    ("pit_", "clocksource"),
    ("x86_pmu_", "nmi-watchdog"),
    ("intel_pmu_", "nmi-watchdog"),
    ("amd_pmu_", "nmi-watchdog"),
    ("ata_", "emulated-disk"),
    ("ahci_", "emulated-disk"),
    ("piix_", "emulated-disk"),
    ("e1000", "emulated-nic"),
    ("rtl8139_", "emulated-nic"),
    ("pcnet32_", "emulated-nic"),
];

/// Devices ([`crate::names::device`]), whatever the function is.
const DEVICES: &[(&str, &str)] = &[
    ("ACPI timer", "clocksource"),
    ("HPET", "clocksource"),
    ("PIT", "clocksource"),
    ("performance counter", "nmi-watchdog"),
    ("performance event", "nmi-watchdog"),
    ("performance control", "nmi-watchdog"),
    ("IDE", "emulated-disk"),
    ("TSC_DEADLINE", "kernel-words"),
    ("x2APIC timer count", "kernel-words"),
    ("timer count", "kernel-words"),
    ("x2APIC ICR", "irq-affinity"),
    ("ICR", "irq-affinity"),
    ("IPIs to many", "irq-affinity"),
];

/// Reasons, whatever the function is.
const REASONS: &[(&str, &str)] = &[("HLT", "cpuidle-governor"), ("idle HLT", "cpuidle-governor")];

/// The rule for a row; none where no rule is about it.
pub(crate) fn rule(function: Option<&str>, reason: &str, detail: Detail) -> Option<&'static str> {
    let named = |name: &str| {
        FUNCTIONS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, rule)| *rule)
    };
    let device = crate::names::device(detail);
    let about = |of: &str| DEVICES.iter().find(|(its, _)| *its == of).map(|(_, rule)| *rule);
    let by_reason = || REASONS.iter().find(|(its, _)| *its == reason).map(|(_, rule)| *rule);
    function.and_then(named).or_else(|| device.and_then(about)).or_else(by_reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_that_is_named_is_one() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tune-rules.md");
        let page = std::fs::read_to_string(page).expect("the page that sidecore-tune writes");
        for (_, rule) in FUNCTIONS.iter().chain(DEVICES).chain(REASONS) {
            assert!(page.contains(&format!("\n## {rule}\n")), "{rule}");
        }
    }

    #[test]
    fn a_row_has_its_rule_or_none() {
        let row = |function, detail| rule(function, "port I/O", detail);
        assert_eq!(row(Some("acpi_pm_read"), Detail::None), Some("clocksource"));
        assert_eq!(row(None, Detail::Port(0x608)), Some("clocksource"));
        assert_eq!(row(Some("ioread8"), Detail::Port(0x1f7)), Some("emulated-disk"));
        assert_eq!(row(Some("vp_notify"), Detail::Mmio(0xfe00_3000)), None);
        assert_eq!(rule(Some("default_idle"), "HLT", Detail::None), Some("cpuidle-governor"));
    }
}
