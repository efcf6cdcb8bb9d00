//! Exits, injections and doorbells, counted by the kernel's own histograms between a load's markers.
//!
//! Not what they mean (`cells`). The histograms are paused; CPUID on the leaf of a marker starts and stops them,
//! so nothing is switched, read or parsed while a load runs.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::orders::{MARKER_BEGIN, MARKER_END};

const ROOT: &str = "/sys/kernel/tracing";
const DOORBELL: &str = "lab/doorbell";
/// KVM's answer to CPUID, whose second argument points to the leaf; what to do with the histograms there, and at
/// which leaf. Two events, because the kernel refuses to start and to stop the same one at one.
const MARKERS: [(&str, &str, u32); 2] =
    [("lab/begin", "enable", MARKER_BEGIN), ("lab/end", "disable", MARKER_END)];
const MARKED: &str = "kvm_cpuid leaf=+0(%si):u32";

/// A histogram: its event, and the key it counts by.
#[derive(Clone, Copy, Debug)]
struct Histogram {
    event: &'static str,
    key: &'static str,
}

const EXITS: Histogram = Histogram { event: "kvm/kvm_exit", key: "exit_reason" };
const INJECTED: Histogram = Histogram { event: "kvm/kvm_inj_virq", key: "common_pid" };
const TO_USER: Histogram = Histogram { event: "kvm/kvm_userspace_exit", key: "reason" };
const DOORBELLS: Histogram = Histogram { event: DOORBELL, key: "common_pid" };
/// From each entry to the next exit, summed.
const IN_GUEST: Histogram =
    Histogram { event: "synthetic/lab_in_guest", key: "common_pid:vals=ns" };
const ALL: [Histogram; 5] = [EXITS, INJECTED, TO_USER, DOORBELLS, IN_GUEST];
/// What makes the event of [`IN_GUEST`]: at an entry the time is kept, at the next exit of the same vCPU the
/// difference is an event.
const SYNTHETIC: &str = "lab_in_guest u64 ns";
const TIMERS: [(&str, &str); 2] = [
    ("kvm/kvm_entry", "hist:keys=vcpu_id:began=common_timestamp"),
    (
        "kvm/kvm_exit",
        "hist:keys=vcpu_id:ns=common_timestamp-$began:onmatch(kvm.kvm_entry).lab_in_guest($ns)",
    ),
];

/// What was counted between two markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// By reason; without the one of the last marker.
    pub(crate) exits: BTreeMap<String, u64>,
    pub(crate) injected: u64,
    pub(crate) to_user: u64,
    pub(crate) doorbells: u64,
    /// Nanoseconds; where the clock of the place allows it.
    pub(crate) in_guest_ns: Option<u64>,
}

/// The kernel's histograms, as long as this lives.
#[derive(Debug)]
pub(crate) struct Tracing {
    /// Exit reasons of this processor, by number.
    reasons: BTreeMap<u64, String>,
}

impl Tracing {
    /// # Errors
    /// Tracing is not there, or somebody else uses what is needed.
    pub(crate) fn start() -> Result<Tracing> {
        ensure!(Path::new(ROOT).join("events/kvm/kvm_exit").exists(), "no KVM events in {ROOT}");
        let format = std::fs::read_to_string(file_of(EXITS.event, "format"))?;
        let is_amd = Path::new("/sys/module/kvm_amd").exists();
        let reasons = reasons_of(&format, is_amd);
        ensure!(!reasons.is_empty(), "the format of kvm_exit is not understood");
        // What an earlier lab left behind.
        clear();
        let tracing = Tracing { reasons };
        let probes = Path::new(ROOT).join("kprobe_events");
        append(&probes, &format!("p:{DOORBELL} ioeventfd_write"))?;
        for (marker, ..) in MARKERS {
            append(&probes, &format!("p:{marker} {MARKED}"))?;
        }
        append(&Path::new(ROOT).join("synthetic_events"), SYNTHETIC)?;
        for (event, timer) in TIMERS {
            append(&file_of(event, "trigger"), timer)?;
        }
        for histogram in ALL {
            let Histogram { event, key } = histogram;
            append(&file_of(event, "trigger"), &format!("hist:keys={key}:pause"))?;
            let name = event.replace('/', ":");
            for (marker, word, leaf) in MARKERS {
                let trigger = format!("{word}_hist:{name} if leaf=={leaf:#x}");
                append(&file_of(marker, "trigger"), &trigger)?;
            }
        }
        Ok(tracing)
    }

    /// Forgets what was counted.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn reset(&self) -> Result<()> {
        for Histogram { event, key } in ALL {
            append(&file_of(event, "trigger"), &format!("hist:keys={key}:clear"))?;
        }
        Ok(())
    }

    /// What was counted since.
    ///
    /// # Errors
    /// The kernel's words are not understood, or there were no markers.
    pub(crate) fn counts(&self) -> Result<Counts> {
        let total = |histogram| -> Result<u64> { Ok(read(histogram)?.values().sum()) };
        let mut exits = BTreeMap::new();
        for (reason, count) in read(EXITS)? {
            let word = self.reasons.get(&reason).cloned();
            exits.insert(word.unwrap_or_else(|| format!("{reason:#x}")), count);
        }
        let markers = ["cpuid", "CPUID"];
        let marker = exits.iter_mut().find(|(reason, _)| markers.contains(&reason.as_str()));
        let (_, marked) = marker.context("the end of the load was not seen")?;
        *marked -= 1;
        exits.retain(|_, count| *count > 0);
        Ok(Counts {
            exits,
            injected: total(INJECTED)?,
            to_user: total(TO_USER)?,
            doorbells: total(DOORBELLS)?,
            in_guest_ns: Some(sum_of(&std::fs::read_to_string(file_of(IN_GUEST.event, "hist"))?)),
        })
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        clear();
    }
}

/// Takes away every trigger and probe of the lab; what is not there is no fault.
fn clear() {
    for Histogram { event, key } in ALL {
        let name = event.replace('/', ":");
        for (marker, word, _) in MARKERS {
            let _ = append(&file_of(marker, "trigger"), &format!("!{word}_hist:{name}"));
        }
        let _ = append(&file_of(event, "trigger"), &format!("!hist:keys={key}"));
    }
    // What uses the synthetic event before the event.
    for (event, timer) in TIMERS.iter().rev() {
        let _ = append(&file_of(event, "trigger"), &format!("!{timer}"));
    }
    let _ = append(&Path::new(ROOT).join("synthetic_events"), &format!("!{SYNTHETIC}"));
    for probe in [DOORBELL, MARKERS[0].0, MARKERS[1].0] {
        let _ = append(&Path::new(ROOT).join("kprobe_events"), &format!("-:{probe}"));
    }
}

fn file_of(event: &str, file: &str) -> PathBuf {
    Path::new(ROOT).join("events").join(event).join(file)
}

fn append(file: &Path, line: &str) -> Result<()> {
    let mut open = OpenOptions::new()
        .append(true)
        .open(file)
        .with_context(|| format!("{}", file.display()))?;
    // One write: the kernel takes each as one command.
    open.write_all(line.as_bytes()).with_context(|| format!("{line:?} to {}", file.display()))
}

fn read(histogram: Histogram) -> Result<BTreeMap<u64, u64>> {
    let file = file_of(histogram.event, "hist");
    Ok(parse(&std::fs::read_to_string(&file)?, histogram.key))
}

/// Lines such as `{ exit_reason:        120 } hitcount:       2000`.
fn parse(text: &str, key: &str) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let Some((head, tail)) = line.split_once("hitcount:") else { continue };
        let Some(value) = head.split_once(&format!("{key}:")).map(|(_, value)| value) else {
            continue;
        };
        let number = |text: &str| {
            let digits: String = text.trim().chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u64>().ok()
        };
        if let (Some(value), Some(count)) = (number(value), number(tail)) {
            *found.entry(value).or_insert(0) += count;
        }
    }
    found
}

/// The sum of `ns:` of lines such as `{ common_pid: 77 } hitcount: 2000  ns: 345`.
fn sum_of(text: &str) -> u64 {
    let value = |line: &str| line.split_once(" ns:")?.1.split_whitespace().next()?.parse().ok();
    text.lines().filter_map(value).fold(0, u64::saturating_add)
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
    fn histograms_are_read_as_the_kernel_writes_them() {
        let text = "# event histogram\n#\n\n{ exit_reason:        120 } hitcount:       2000\n\
                    { exit_reason:       1024 } hitcount:          7\n\nTotals:\n    Hits: 2007\n";
        assert_eq!(parse(text, "exit_reason"), BTreeMap::from([(120, 2000), (1024, 7)]));
        let text =
            "{ common_pid: CPU 0/KVM-77 } hitcount: 5\n{ common_pid:         77 } hitcount: 5\n";
        assert_eq!(parse(text, "common_pid"), BTreeMap::from([(77, 5)]));
        let text = "{ common_pid:   77 } hitcount:   5  ns:   900\n{ common_pid: 78 } hitcount: 1  ns: 100\n";
        assert_eq!(sum_of(text), 1000);
    }

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
