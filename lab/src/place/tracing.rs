//! Exits, injections and doorbells, counted by the kernel's own histograms between a load's markers.
//!
//! Not what they mean (`counts`, `turns`). The histograms are paused; CPUID on the leaf of a marker starts and
//! stops them, so nothing is switched, read or parsed while a load runs.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::counts::{self, Counts, Texts};
use crate::orders::{MARKER_BEGIN, MARKER_END};

const ROOT: &str = "/sys/kernel/tracing";
/// Where the lab's triggers are: histograms and a clock of its own, so what others of this host trace stays as it is.
/// Only the events that the lab makes are seen by all.
const INSTANCE: &str = "/sys/kernel/tracing/instances/lab";
const DOORBELL: &str = "lab/doorbell";
/// KVM's answer to CPUID, whose second argument points to the leaf; what to do with the histograms there, and at
/// which leaf. Two events, because the kernel refuses to start and to stop the same one at one.
const MARKERS: [(&str, &str, u32); 2] =
    [("lab/begin", "enable", MARKER_BEGIN), ("lab/end", "disable", MARKER_END)];
const MARKED: &str = "kvm_cpuid leaf=+0(%si):u32";

/// A histogram: its event, and the keys it counts by.
#[derive(Clone, Copy, Debug)]
struct Histogram {
    event: &'static str,
    keys: &'static str,
}

const EXITS: Histogram = Histogram { event: "kvm/kvm_exit", keys: "common_pid,exit_reason" };
const INJECTED: Histogram = Histogram { event: "kvm/kvm_inj_virq", keys: "common_pid" };
const TO_USER: Histogram = Histogram { event: "kvm/kvm_userspace_exit", keys: "common_pid" };
const DOORBELLS: Histogram = Histogram { event: DOORBELL, keys: "common_pid" };
/// From each entry to the next exit, summed.
const IN_GUEST: Histogram =
    Histogram { event: "synthetic/lab_in_guest", keys: "common_pid:vals=ns" };
/// From each exit to the next entry, summed by the exit's reason.
const OUTSIDE: Histogram =
    Histogram { event: "synthetic/lab_outside", keys: "common_pid,exit_reason:vals=ns" };
const PAUSED: [Histogram; 6] = [EXITS, INJECTED, TO_USER, DOORBELLS, IN_GUEST, OUTSIDE];
/// When each marker was seen, and whose; these count all the time.
const MARKS: &str = "hist:keys=common_pid,common_timestamp";
/// The events of [`IN_GUEST`] and [`OUTSIDE`].
const SYNTHETIC: [&str; 2] = ["lab_in_guest u64 ns", "lab_outside u64 ns; u32 exit_reason"];
/// What makes them: the time is kept at an entry and at an exit, and at the next of the other kind of the same vCPU's
/// thread the difference is an event. In this order: what is kept before what uses it.
const TIMERS: [(&str, &str); 3] = [
    ("kvm/kvm_entry", "hist:keys=common_pid:began=common_timestamp"),
    (
        "kvm/kvm_exit",
        "hist:keys=common_pid:ns=common_timestamp-$began,left=common_timestamp,reason=exit_reason:\
         onmatch(kvm.kvm_entry).lab_in_guest($ns)",
    ),
    (
        "kvm/kvm_entry",
        "hist:keys=common_pid:out=common_timestamp-$left:onmatch(kvm.kvm_exit).lab_outside($out,$reason)",
    ),
];

/// The kernel's tracing, with what the lab needs to know of it.
#[derive(Debug)]
pub(crate) struct Tracing {
    /// Exit reasons of this processor, by number.
    reasons: BTreeMap<u64, String>,
    /// The histograms are attached from the start to the end: to attach one rewrites instructions that others
    /// run, and a kernel on QEMU's TCG did not survive that beside guests (`int3` in `svm_vcpu_run`).
    stays: bool,
}

impl Tracing {
    /// Makes the events that the kernel does not have by itself. They cost nothing until [`Tracing::arm`].
    ///
    /// # Errors
    /// Tracing is not there, or somebody else uses what is needed.
    pub(crate) fn start() -> Result<Tracing> {
        ensure!(Path::new(ROOT).join("events/kvm/kvm_exit").exists(), "no KVM events in {ROOT}");
        let format = std::fs::read_to_string(Path::new(ROOT).join("events/kvm/kvm_exit/format"))?;
        let is_amd = Path::new("/sys/module/kvm_amd").exists();
        let reasons = reasons_of(&format, is_amd);
        ensure!(!reasons.is_empty(), "the format of kvm_exit is not understood");
        // What an earlier lab left behind.
        clear();
        let probes = Path::new(ROOT).join("kprobe_events");
        append(&probes, &format!("p:{DOORBELL} ioeventfd_write"))?;
        for (marker, ..) in MARKERS {
            append(&probes, &format!("p:{marker} {MARKED}"))?;
        }
        for event in SYNTHETIC {
            append(&Path::new(ROOT).join("synthetic_events"), event)?;
        }
        std::fs::create_dir(INSTANCE).context(INSTANCE)?;
        let stays = is_emulated();
        if stays {
            attach()?;
        }
        Ok(Tracing { reasons, stays })
    }

    /// Whether there are no turns without histograms here.
    pub(crate) fn stays(&self) -> bool {
        self.stays
    }

    /// Attaches the histograms, where they are not always: from now on exits cost more, until what is given
    /// is dropped.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn arm(&self) -> Result<Armed<'_>> {
        let armed = Armed { tracing: self };
        if !self.stays {
            attach()?;
        }
        Ok(armed)
    }
}

/// Every trigger.
fn attach() -> Result<()> {
    for (event, timer) in TIMERS {
        append(&file_of(event, "trigger"), timer)?;
    }
    for Histogram { event, keys } in PAUSED {
        append(&file_of(event, "trigger"), &format!("hist:keys={keys}:pause"))?;
        let name = event.replace('/', ":");
        for (marker, word, leaf) in MARKERS {
            let trigger = format!("{word}_hist:{name} if leaf=={leaf:#x}");
            append(&file_of(marker, "trigger"), &trigger)?;
        }
    }
    for (marker, _, leaf) in MARKERS {
        append(&file_of(marker, "trigger"), &format!("{MARKS} if leaf=={leaf:#x}"))?;
    }
    Ok(())
}

/// Whether this machine is QEMU's TCG: it says so in CPUID. Other processors are never emulated here.
pub(crate) fn is_emulated() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let who = std::arch::x86_64::__cpuid(0x4000_0000);
        let who = [who.ebx, who.ecx, who.edx].map(u32::to_le_bytes).concat();
        who == b"TCGTCGTCGTCG"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The kernel counts what is between markers, as long as this lives.
#[derive(Debug)]
pub(crate) struct Armed<'a> {
    tracing: &'a Tracing,
}

impl Armed<'_> {
    /// Forgets what was counted.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn reset(&self) -> Result<()> {
        for Histogram { event, keys } in PAUSED {
            // A guest that died between its markers has left it counting.
            append(&file_of(event, "trigger"), &format!("hist:keys={keys}:pause"))?;
            append(&file_of(event, "trigger"), &format!("hist:keys={keys}:clear"))?;
        }
        for (marker, _, leaf) in MARKERS {
            append(&file_of(marker, "trigger"), &format!("{MARKS}:clear if leaf=={leaf:#x}"))?;
        }
        Ok(())
    }

    /// What was counted since, where guests with these threads of vCPUs had a load.
    ///
    /// # Errors
    /// The kernel's words are not understood, or there were no markers.
    pub(crate) fn counts(&self, guests: &[Vec<u32>]) -> Result<Counts> {
        let text = |event: &str| -> Result<String> {
            let file = file_of(event, "hist");
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
            counts::nothing_is_dropped(&text).with_context(|| format!("{}", file.display()))?;
            Ok(text)
        };
        let texts = Texts {
            exits: text(EXITS.event)?,
            injected: text(INJECTED.event)?,
            to_user: text(TO_USER.event)?,
            doorbells: text(DOORBELLS.event)?,
            in_guest: text(IN_GUEST.event)?,
            outside: text(OUTSIDE.event)?,
            begins: text(MARKERS[0].0)?,
            ends: text(MARKERS[1].0)?,
        };
        Counts::read(&texts, &self.tracing.reasons, guests)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if !self.tracing.stays {
            disarm();
        }
    }
}

/// Takes away every trigger of the lab; what is not there is no fault.
fn disarm() {
    for (marker, word, leaf) in MARKERS {
        let _ = append(&file_of(marker, "trigger"), &format!("!{MARKS} if leaf=={leaf:#x}"));
        for Histogram { event, .. } in PAUSED {
            let name = event.replace('/', ":");
            let _ = append(&file_of(marker, "trigger"), &format!("!{word}_hist:{name}"));
        }
    }
    for Histogram { event, keys } in PAUSED {
        let _ = append(&file_of(event, "trigger"), &format!("!hist:keys={keys}"));
    }
    // What uses the synthetic event before the event.
    for (event, timer) in TIMERS.iter().rev() {
        let _ = append(&file_of(event, "trigger"), &format!("!{timer}"));
    }
}

/// Takes away every trigger and event of the lab, also of one that ended without doing so.
pub(crate) fn clear() {
    disarm();
    let _ = std::fs::remove_dir(INSTANCE);
    for event in SYNTHETIC {
        let _ = append(&Path::new(ROOT).join("synthetic_events"), &format!("!{event}"));
    }
    for probe in [DOORBELL, MARKERS[0].0, MARKERS[1].0] {
        let _ = append(&Path::new(ROOT).join("kprobe_events"), &format!("-:{probe}"));
    }
}

fn file_of(event: &str, file: &str) -> PathBuf {
    Path::new(INSTANCE).join("events").join(event).join(file)
}

fn append(file: &Path, line: &str) -> Result<()> {
    let mut open = OpenOptions::new()
        .append(true)
        .open(file)
        .with_context(|| format!("{}", file.display()))?;
    // One write: the kernel takes each as one command.
    open.write_all(line.as_bytes()).with_context(|| format!("{line:?} to {}", file.display()))
}

/// Pairs such as `{ 0x078, "hlt" }`. The format has those of Intel's processors first, then AMD's.
fn reasons_of(format: &str, is_amd: bool) -> BTreeMap<u64, String> {
    let tables: Vec<&str> = format.split("__print_symbolic").skip(1).collect();
    let table = if is_amd { tables.get(1) } else { tables.first() };
    let table = table.copied().unwrap_or_default();
    let end = table.find("})").unwrap_or(table.len());
    let mut found = BTreeMap::new();
    for pair in table.get(..end).unwrap_or_default().split('{').skip(1) {
        let Some((number, word)) = pair.split_once(',') else { continue };
        let Some(word) = word.split('"').nth(1) else { continue };
        // Exceptions are sums: `0x040 + 14`.
        let sum: Option<u64> = number.split('+').map(|part| value_of(part.trim())).sum();
        if let Some(sum) = sum {
            found.insert(sum, word.replace(' ', "_"));
        }
    }
    found
}

fn value_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_processor() {
        let format = "print fmt: \"%s\", (REC->isa == 1) ? __print_symbolic(REC->exit_reason & 0xffff, { 12, \
                      \"HLT\" }, { 48, \"EPT_VIOLATION\" }) : __print_symbolic(REC->exit_reason, { 0x040 + 14, \
                      \"PF excp\" }, { 0x078, \"hlt\" }, { -1, \"invalid\" }), (REC->isa == 1) ? \"\" : \"\"";
        let amd = reasons_of(format, true);
        assert_eq!(amd.get(&0x78).map(String::as_str), Some("hlt"));
        assert_eq!(amd.get(&0x4e).map(String::as_str), Some("PF_excp"));
        assert_eq!(amd.len(), 2);
        let intel = reasons_of(format, false);
        assert_eq!(intel.get(&48).map(String::as_str), Some("EPT_VIOLATION"));
        assert_eq!(intel.len(), 2);
    }
}
