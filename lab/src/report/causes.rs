//! What the reasons of exits mean, in the words of AMD's processors and of Intel's, as the kernel writes them.

use super::groups::Experiment;
use super::table::Table;

/// Names, and one phrase.
const MEANINGS: &[(&[&str], &str)] = &[
    (
        &["npf", "EPT_MISCONFIG"],
        "memory of a device: a doorbell (told apart by its ioeventfd), or memory touched first",
    ),
    (&["EPT_VIOLATION"], "memory that is not mapped yet: touched first"),
    (&["hlt", "HLT"], "the guest has nothing to do and waits"),
    (
        &["interrupt", "EXTERNAL_INTERRUPT"],
        "an interrupt of the host: its timer, its devices, or the call to a running vCPU that it has an interrupt",
    ),
    (
        &["msr", "MSR_READ", "MSR_WRITE"],
        "the guest sets its timer (TSC deadline), or ends an interrupt (EOI)",
    ),
    (
        &["vintr", "INTERRUPT_WINDOW", "PENDING_INTERRUPT"],
        "the guest can take interrupts again, and one waits to be injected",
    ),
    (&["io", "IO_INSTRUCTION"], "an I/O port: an emulated device, or a doorbell of an old one"),
    (&["cpuid", "CPUID"], "CPUID: serialises, asks for features; the lab's markers are taken off"),
    (&["pause", "PAUSE_INSTRUCTION"], "the guest spins for a lock"),
    (&["PREEMPTION_TIMER"], "the guest's timer (TSC deadline) has run out"),
    (
        &["APIC_WRITE", "APIC_ACCESS", "EOI_INDUCED"],
        "the guest's interrupt controller, such as its EOI",
    ),
    (
        &["avic_incomplete_ipi", "avic_unaccelerated_access"],
        "what AVIC leaves to the kernel of the guest's interrupt controller",
    ),
    (&["nmi", "EXCEPTION_NMI"], "a fault in the guest, or an NMI of the host"),
    (&["PML_FULL"], "the log of pages written is full"),
    (&["rdtsc", "RDTSC"], "the guest reads its clock"),
    (&["wbinvd", "WBINVD", "invd"], "the guest writes caches back"),
    (&["xsetbv", "XSETBV", "CR_ACCESS"], "a register of control"),
    (&["vmmcall", "VMCALL", "hypercall"], "the guest calls the kernel below it"),
];

/// In one phrase.
pub(super) fn meaning(cause: &str) -> Option<&'static str> {
    let (_, meaning) = MEANINGS.iter().find(|(names, _)| names.contains(&cause))?;
    Some(meaning)
}

/// Those of a run, in the order in which it has them. None if it has none.
pub(super) fn legend(experiments: &[Experiment]) -> Option<Table> {
    let lines = causes(experiments).into_iter().map(|cause| {
        let meaning = meaning(cause).unwrap_or("see the processor's manual");
        vec![cause.to_string(), meaning.to_string()]
    });
    let lines: Vec<Vec<String>> = lines.collect();
    let heads = ["cause", "what it is"].map(String::from).to_vec();
    (!lines.is_empty()).then_some(Table { heads, lines, words: [2, 0] })
}

/// Each cause of a run once.
pub(super) fn causes(experiments: &[Experiment]) -> Vec<&str> {
    let mut causes = Vec::new();
    let loads = experiments.iter().flat_map(|experiment| &experiment.loads);
    for (cause, _) in loads.flat_map(|load| &load.lines).flat_map(|line| line.causes()) {
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::super::groups::{experiments, tests::measured, tests::row};
    use super::*;

    #[test]
    fn the_legend_has_each_cause_of_the_run_once_with_what_it_is() {
        let mut rows = measured();
        rows.push(row("net.udp_rr", "exits_per_op.hlt", "vhost-net", 1.5, "1/op"));
        rows.push(row("net.udp_rr", "exits_per_op.0x7f", "vhost-net", 1.0, "1/op"));
        let text = legend(&experiments(&rows)).map(|table| table.text("")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with("npf    memory of a device: a doorbell"), "{text}");
        assert_eq!(lines[2], "hlt    the guest has nothing to do and waits");
        assert_eq!(lines[3], "0x7f   see the processor's manual");
    }

    #[test]
    fn both_makers_names_are_known() {
        for (amd, intel) in
            [("npf", "EPT_MISCONFIG"), ("hlt", "HLT"), ("vintr", "INTERRUPT_WINDOW")]
        {
            assert!(meaning(amd).is_some());
            assert_eq!(meaning(amd), meaning(intel));
        }
        assert_eq!(legend(&[]).map(|table| table.lines), None);
    }
}
