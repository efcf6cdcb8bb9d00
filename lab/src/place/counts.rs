//! What the kernel counted between the markers of loads, by the thread that runs a guest's vCPU.
//!
//! Not who counts, nor where it is read (`tracing`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::rows::is_halt;

/// A line of a histogram: its keys and values by name.
type Line = BTreeMap<String, u64>;

/// The histograms of a turn, as the kernel writes them.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    /// By `common_pid` and `exit_reason`.
    pub(crate) exits: String,
    /// These by `common_pid`.
    pub(crate) injected: String,
    pub(crate) to_user: String,
    pub(crate) doorbells: String,
    /// With the value `ns`.
    pub(crate) in_guest: String,
    /// By `common_pid` and `exit_reason`, with the value `ns`.
    pub(crate) outside: String,
    /// By `common_pid` and `common_timestamp`.
    pub(crate) begins: String,
    pub(crate) ends: String,
}

/// All of a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    threads: BTreeMap<u64, Counted>,
    /// From the first marker that begins a load to the first that ends one: all that was counted was then.
    pub(crate) window_ns: u64,
}

/// Of one thread, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// By reason; without those of the markers.
    pub(crate) exits: BTreeMap<String, u64>,
    pub(crate) injected: u64,
    pub(crate) to_user: u64,
    pub(crate) doorbells: u64,
    /// Between entry and exit.
    pub(crate) in_guest_ns: u64,
    /// Between exit and the next entry, by the exit's reason. Of the markers' own exits the rest after the marker that
    /// began it all is in, with what the exit took before it.
    pub(crate) outside_ns: BTreeMap<String, u64>,
}

impl Counts {
    /// `reasons` are the processor's words for its exits; `guests` the threads of each that had a load.
    ///
    /// # Errors
    /// A marker is missing, or loads were not all running at the same time.
    pub(crate) fn read(
        texts: &Texts,
        reasons: &BTreeMap<u64, String>,
        guests: &[Vec<u32>],
    ) -> Result<Counts> {
        let mut counts = Counts::default();
        for line in lines(&texts.exits) {
            // The event has other histograms, without it: those that keep times.
            let Some(word) = reason(&line, reasons) else { continue };
            *counts.of(&line).exits.entry(word).or_default() += hits(&line);
        }
        lines(&texts.injected).iter().for_each(|line| counts.of(line).injected += hits(line));
        lines(&texts.to_user).iter().for_each(|line| counts.of(line).to_user += hits(line));
        lines(&texts.doorbells).iter().for_each(|line| counts.of(line).doorbells += hits(line));
        for line in lines(&texts.in_guest) {
            counts.of(&line).in_guest_ns += ns(&line);
        }
        for line in lines(&texts.outside) {
            let Some(word) = reason(&line, reasons) else { continue };
            *counts.of(&line).outside_ns.entry(word).or_default() += ns(&line);
        }
        counts.window(&marks(&texts.begins), &marks(&texts.ends), guests)?;
        Ok(counts)
    }

    fn of(&mut self, line: &Line) -> &mut Counted {
        self.threads.entry(line.get("common_pid").copied().unwrap_or_default()).or_default()
    }

    /// When it was counted; and takes the markers' own exits off.
    fn window(
        &mut self,
        begins: &BTreeMap<u64, u64>,
        ends: &BTreeMap<u64, u64>,
        guests: &[Vec<u32>],
    ) -> Result<()> {
        // Of several vCPUs of a guest one has come to a marker, not always the same.
        let of = |marks: &BTreeMap<u64, u64>, what: &str| -> Result<Vec<(u64, u64)>> {
            let mark = |thread: &u32| marks.get_key_value(&u64::from(*thread));
            let marked =
                |threads: &Vec<u32>| threads.iter().filter_map(mark).max_by_key(|(_, time)| **time);
            let found: Option<Vec<_>> = guests.iter().map(marked).collect();
            let found = found.with_context(|| format!("the {what} of a load was not seen"))?;
            Ok(found.into_iter().map(|(thread, time)| (*thread, *time)).collect())
        };
        let (begun, ended) = (of(begins, "begin")?, of(ends, "end")?);
        let times = |marks: &[(u64, u64)]| marks.iter().map(|(_, time)| *time).collect::<Vec<_>>();
        let first = times(&begun).into_iter().min().context("nobody had a load")?;
        let last = times(&begun).into_iter().max().unwrap_or(first);
        let end = times(&ended).into_iter().min().unwrap_or(first);
        ensure!(last < end, "a guest's load ended before another's began: too short a time");
        self.window_ns = end - first;
        let begun = begun.into_iter().filter(|(_, time)| *time > first);
        for (thread, _) in begun.chain(ended.into_iter().filter(|(_, time)| *time == end)) {
            let Some(counted) = self.threads.get_mut(&thread) else { continue };
            for (reason, count) in &mut counted.exits {
                if reason.eq_ignore_ascii_case("cpuid") {
                    *count = count.saturating_sub(1);
                }
            }
            counted.exits.retain(|_, count| *count > 0);
        }
        Ok(())
    }

    /// What these threads came to together.
    pub(crate) fn sum(&self, threads: &[u32]) -> Counted {
        let mut sum = Counted::default();
        for one in threads.iter().filter_map(|thread| self.threads.get(&u64::from(*thread))) {
            for (reason, count) in &one.exits {
                *sum.exits.entry(reason.clone()).or_default() += count;
            }
            sum.injected += one.injected;
            sum.to_user += one.to_user;
            sum.doorbells += one.doorbells;
            sum.in_guest_ns += one.in_guest_ns;
            for (reason, ns) in &one.outside_ns {
                *sum.outside_ns.entry(reason.clone()).or_default() += ns;
            }
        }
        sum
    }
}

impl Counted {
    /// Of all reasons.
    pub(crate) fn all_exits(&self) -> u64 {
        self.exits.values().sum()
    }

    /// While the guest waited for something to do.
    pub(crate) fn halted_ns(&self) -> u64 {
        self.outside_ns.iter().filter(|(reason, _)| is_halt(reason)).map(|(_, ns)| ns).sum()
    }
}

/// A histogram has places for a number of keys; what finds none is not counted.
///
/// # Errors
/// Something was dropped.
pub(crate) fn nothing_is_dropped(text: &str) -> Result<()> {
    for line in text.lines() {
        let dropped = line.trim().strip_prefix("Dropped:").map_or("0", str::trim);
        ensure!(dropped == "0", "{dropped} events were dropped: other guests of this host fill it");
    }
    Ok(())
}

/// Lines such as `{ common_pid:   77, exit_reason:   120 } hitcount:   2000  ns:   345`.
fn lines(text: &str) -> Vec<Line> {
    let of = |line: &str| {
        let (keys, values) = line.strip_prefix('{')?.split_once('}')?;
        let mut words = keys.split([',', ' ']).chain(values.split(' ')).filter(|w| !w.is_empty());
        let mut found = Line::new();
        while let Some(name) = words.next() {
            let value = words.next()?.parse().ok()?;
            found.insert(name.strip_suffix(':')?.to_string(), value);
        }
        Some(found)
    };
    text.lines().filter_map(|line| of(line.trim())).collect()
}

fn hits(line: &Line) -> u64 {
    line.get("hitcount").copied().unwrap_or_default()
}

fn ns(line: &Line) -> u64 {
    line.get("ns").copied().unwrap_or_default()
}

/// The processor's word for an exit, or its number. None where a line is not by reason.
fn reason(line: &Line, reasons: &BTreeMap<u64, String>) -> Option<String> {
    let reason = line.get("exit_reason")?;
    Some(reasons.get(reason).cloned().unwrap_or_else(|| format!("{reason:#x}")))
}

/// When each thread came to its marker; at its last, if it came there several times.
fn marks(text: &str) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for line in lines(text) {
        if let (Some(thread), Some(time)) = (line.get("common_pid"), line.get("common_timestamp")) {
            let last: &mut u64 = found.entry(*thread).or_default();
            *last = (*last).max(*time);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "# event histogram\n#\n\n\
        { common_pid:         77, exit_reason:        120 } hitcount:       2000\n\
        { common_pid:         77, exit_reason:        114 } hitcount:          1\n\
        { common_pid:         78, exit_reason:        114 } hitcount:          3\n\
        { common_pid:         78, exit_reason:       1024 } hitcount:          7\n\n\
        Totals:\n    Hits: 2010\n    Entries: 4\n\n# event histogram\n\
        { common_pid:         77 } hitcount:       9000\n";

    #[test]
    fn what_is_dropped_is_told_whichever_histogram_dropped_it() {
        assert!(nothing_is_dropped(TWO).is_ok());
        let full = "Totals:\n    Dropped: 0\n# event histogram\nTotals:\n    Dropped: 17\n";
        let said = nothing_is_dropped(full).map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.starts_with("17 events")));
    }

    fn texts() -> Texts {
        let mark = |thread, time| {
            format!("{{ common_pid: {thread}, common_timestamp: {time} }} hitcount: 1\n")
        };
        Texts {
            exits: TWO.to_string(),
            doorbells: "{ common_pid: 77 } hitcount: 5\n{ common_pid: CPU 0/KVM-77 } hitcount: 5\n"
                .to_string(),
            in_guest: "{ common_pid:   77 } hitcount:   5  ns:   900\n\
                       { common_pid:   78 } hitcount:   1  ns:   100\n"
                .to_string(),
            outside: "{ common_pid: 77, exit_reason: 120 } hitcount: 2000  ns: 3500\n\
                      { common_pid: 77, exit_reason: 114 } hitcount: 1  ns: 600\n\
                      { common_pid: 78, exit_reason: 1024 } hitcount: 7  ns: 4900\n"
                .to_string(),
            begins: mark(77, 1000) + &mark(78, 1200),
            ends: mark(77, 6000) + &mark(78, 6500),
            ..Texts::default()
        }
    }

    #[test]
    fn each_thread_has_its_counts_without_its_markers() -> Result<()> {
        let reasons = BTreeMap::from([(120, "hlt".to_string()), (114, "cpuid".to_string())]);
        let counts = Counts::read(&texts(), &reasons, &[vec![77], vec![78]])?;
        assert_eq!(counts.window_ns, 5000);
        let one = counts.sum(&[77]);
        // Its end marker is off; its begin began it all.
        assert_eq!(one.exits, BTreeMap::from([("hlt".to_string(), 2000)]));
        assert_eq!((one.doorbells, one.in_guest_ns, one.injected), (5, 900, 0));
        // Its begin marker is off; its end came after the window's.
        let other = counts.sum(&[78]);
        let left = [("cpuid".to_string(), 2), ("0x400".to_string(), 7)];
        assert_eq!(other.exits, BTreeMap::from(left));
        assert_eq!(counts.sum(&[77, 78]).all_exits(), 2009);
        assert_eq!(counts.sum(&[77, 78]).in_guest_ns, 1000);
        Ok(())
    }

    #[test]
    fn time_in_the_guest_and_outside_by_reason_are_all_of_the_window() -> Result<()> {
        let reasons = BTreeMap::from([(120, "HLT".to_string()), (114, "CPUID".to_string())]);
        let counts = Counts::read(&texts(), &reasons, &[vec![77], vec![78]])?;
        let both = counts.sum(&[77, 78]);
        let outside = [("0x400", 4900), ("CPUID", 600), ("HLT", 3500)];
        assert_eq!(both.outside_ns, outside.map(|(why, ns)| (why.to_string(), ns)).into());
        let all = both.in_guest_ns + both.outside_ns.values().sum::<u64>();
        assert_eq!(all, counts.window_ns * 2);
        assert_eq!((both.halted_ns(), counts.sum(&[78]).halted_ns()), (3500, 0));
        Ok(())
    }

    #[test]
    fn a_guest_of_two_vcpus_has_markers_on_either() -> Result<()> {
        let reasons = BTreeMap::from([(120, "hlt".to_string()), (114, "cpuid".to_string())]);
        let mut apart = texts();
        apart.begins = apart.begins.lines().take(1).map(|line| format!("{line}\n")).collect();
        apart.ends = apart.ends.lines().skip(1).map(|line| format!("{line}\n")).collect();
        let counts = Counts::read(&apart, &reasons, &[vec![77, 78]])?;
        assert_eq!(counts.window_ns, 5500);
        // The one with which it began is before all that was counted; the one that ended it is off.
        let both = counts.sum(&[77, 78]).exits;
        let left = [("cpuid", 3), ("hlt", 2000), ("0x400", 7)];
        assert_eq!(both, left.map(|(why, count)| (why.to_string(), count)).into());
        Ok(())
    }

    #[test]
    fn what_did_not_run_together_is_no_count() {
        let reasons = BTreeMap::new();
        let mut apart = texts();
        apart.begins = apart.begins.replace("1200", "6001");
        let said = Counts::read(&apart, &reasons, &[vec![77], vec![78]])
            .map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("ended before")));
        let said = Counts::read(&texts(), &reasons, &[vec![79]]).map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| said.contains("begin of a load was not seen")));
    }
}
