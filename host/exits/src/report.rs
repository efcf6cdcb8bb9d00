//! What was counted, as rows for people and programs.
//!
//! A function of a tally, symbols, and the kernel's own counter. How it looks in a terminal is the program's.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::names;
use crate::rules;
use crate::symbols::{Function, Symbols};
use crate::tally::{Cause, Detail, Place, Sum, Tally};

/// Whose exits, and what is to be said beside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The VMM's process.
    pub process: u32,
    /// The VM's name, if it has one.
    pub name: Option<String>,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

/// The kernel's own counter at four moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Before counting began, and after.
    pub at_start: [u64; 2],
    /// Before it ended, and after.
    pub at_end: [u64; 2],
}

/// Whether the kernel counted as many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Check {
    /// It did.
    Same {
        /// At least.
        least: u64,
        /// At most.
        most: u64,
    },
    /// It did not.
    Other {
        /// At least.
        least: u64,
        /// At most.
        most: u64,
    },
    /// Its counter cannot be read: entries were compared.
    Entries {
        /// Why.
        why: String,
        /// Entries that the programs saw.
        entries: u64,
    },
}

/// Exits of one function, for one reason, about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The guest's function, an address, or what stands for them in brackets.
    pub function: String,
    /// The module that it is in.
    pub module: Option<String>,
    /// Addresses behind the instructions, or of them, in hexadecimal.
    pub addresses: Vec<String>,
    /// Why the guest exited.
    pub reason: String,
    /// The port, register or address.
    pub detail: String,
    /// Whose that is.
    pub device: Option<&'static str>,
    /// How many.
    pub exits: u64,
    /// How long the host was at work for them, nanoseconds.
    pub handling_ns: u64,
    /// How long vCPUs had nothing to do, nanoseconds.
    pub halted_ns: u64,
    /// How long vCPUs could have run and had no processor, nanoseconds.
    pub displaced_ns: u64,
    /// The rule of `sidecore-tune` that is about it.
    pub rule: Option<&'static str>,
}

/// Exits that found no room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Why the guest exited; several reasons together have no name.
    pub reason: Option<String>,
    /// How many.
    pub exits: u64,
}

/// Exits that were under way as counting began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Edge {
    /// When it began: in no other number.
    pub begun_before: u64,
    /// Their time from then on, nanoseconds.
    pub begun_before_ns: u64,
    /// When it ended: in the sum of exits, and in no row.
    pub unfinished: u64,
    /// Their time until then, nanoseconds.
    pub unfinished_ns: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The VMM's process.
    pub process: u32,
    /// The VM's name.
    pub name: Option<String>,
    /// For how long was counted, nanoseconds.
    pub period_ns: u64,
    /// vCPUs that were seen.
    pub vcpus: u64,
    /// Exits: those in rows, lost and unfinished.
    pub exits: u64,
    /// Time of all rows at work, nanoseconds.
    pub handling_ns: u64,
    /// The same without anything to do.
    pub halted_ns: u64,
    /// The same without a processor.
    pub displaced_ns: u64,
    /// What took the host longest first.
    pub rows: Vec<Row>,
    /// Exits that found no room.
    pub lost: Vec<Lost>,
    /// Exits at the edges.
    pub edge: Edge,
    /// Exits without time: their entry was not seen.
    pub without_time: u64,
    /// Whether the kernel counted as many.
    pub check: Check,
    /// What is not known, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Makes it of what was counted. `kernel` is the kernel's own counter, or why it is not known.
    pub fn of(
        tally: &Tally,
        symbols: &Symbols,
        kernel: Result<Counted, String>,
        about: About,
    ) -> Report {
        let total = tally.total();
        let name = |reason| names::reason(tally.vendor, reason);
        let lost = tally.lost.iter();
        let lost = lost.map(|(reason, exits)| Lost { reason: reason.map(name), exits: *exits });
        let edge = Edge {
            begun_before: tally.edge.begun_before,
            begun_before_ns: tally.edge.begun_before_ns,
            unfinished: tally.edge.unfinished,
            unfinished_ns: tally.edge.unfinished_ns,
        };
        let mut notes = about.notes;
        if tally.exits + tally.entries == 0 {
            notes.push(
                "Nothing was seen: the vCPUs stood still, or this KVM emulates its guests (PVM), which \
                 then have no exits"
                    .to_string(),
            );
        }
        let has_addresses = |cause: &Cause| !matches!(cause.place, Place::Anywhere | Place::Low);
        if !tally.sums.is_empty() && !tally.sums.keys().any(has_addresses) {
            notes.push(
                "No exit has an address of a kernel: the guest is in firmware or user space, or its \
                 registers are encrypted (SEV-ES, TDX)"
                    .to_string(),
            );
        }
        Report {
            process: about.process,
            name: about.name,
            period_ns: tally.period_ns,
            vcpus: tally.vcpus,
            exits: tally.exits,
            handling_ns: total.handling_ns,
            halted_ns: total.halted_ns,
            displaced_ns: total.displaced_ns,
            rows: rows(tally, symbols),
            lost: lost.collect(),
            edge,
            without_time: tally.missed,
            check: check(tally, kernel),
            notes,
        }
    }
}

/// The programs and the kernel count at slightly different moments: each vCPU may be between the two.
fn check(tally: &Tally, kernel: Result<Counted, String>) -> Check {
    let counted = match kernel {
        Ok(counted) => counted,
        Err(why) => return Check::Entries { why, entries: tally.entries },
    };
    let least = counted.at_end[0].saturating_sub(counted.at_start[1]).saturating_sub(tally.vcpus);
    let most = counted.at_end[1].saturating_sub(counted.at_start[0]) + tally.vcpus;
    if (least..=most).contains(&tally.exits) {
        Check::Same { least, most }
    } else {
        Check::Other { least, most }
    }
}

/// One for each function, reason and detail.
fn rows(tally: &Tally, symbols: &Symbols) -> Vec<Row> {
    type Key<'a> = (String, Option<&'a str>, u32, Detail);
    let mut found: BTreeMap<Key<'_>, (Sum, Vec<String>)> = BTreeMap::new();
    for (cause, sum) in &tally.sums {
        let (function, module) = function(cause.place, symbols);
        let key = (function, module, cause.reason, cause.detail);
        let (total, addresses) = found.entry(key).or_default();
        total.add(*sum);
        if let Place::At(address) = cause.place {
            addresses.push(format!("{address:#x}"));
        }
    }
    let mut rows: Vec<Row> = found
        .into_iter()
        .map(|((function, module, reason, detail), (sum, addresses))| {
            let reason = names::reason(tally.vendor, reason);
            Row {
                rule: rules::rule(Some(&function), &reason, detail),
                function,
                module: module.map(str::to_string),
                addresses,
                reason,
                detail: names::detail(detail),
                device: names::device(detail),
                exits: sum.exits,
                handling_ns: sum.handling_ns,
                halted_ns: sum.halted_ns,
                displaced_ns: sum.displaced_ns,
            }
        })
        .collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.handling_ns), std::cmp::Reverse(row.exits)));
    rows
}

fn function(place: Place, symbols: &Symbols) -> (String, Option<&str>) {
    match place {
        Place::Anywhere => ("[anywhere]".to_string(), None),
        Place::Low => ("[low]".to_string(), None),
        Place::Nested => ("[nested]".to_string(), None),
        Place::At(address) => match symbols.function(address) {
            Some(Function { name, module }) => (name.to_string(), module),
            None => (format!("{address:#x}"), None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "ffffffff81000000 T _text\nffffffff81000040 t acpi_pm_read\nffffffff81000080 T other\n";

    fn tally() -> Tally {
        let at = |address, detail| Cause { place: Place::At(address), reason: 30, detail };
        let sum = |exits, handling_ns| Sum { exits, handling_ns, ..Sum::default() };
        let mut tally = Tally { exits: 21, entries: 20, vcpus: 2, ..Tally::default() };
        tally.period_ns = 1_000_000_000;
        tally.edge.unfinished = 1;
        tally.lost = vec![(Some(12), 3), (None, 1)];
        let causes = [
            (at(0xffff_ffff_8100_0041, Detail::Port(0x608)), sum(4, 400)),
            (at(0xffff_ffff_8100_0042, Detail::Port(0x608)), sum(2, 100)),
            (at(0xffff_ffff_8100_0081, Detail::Port(0x1f7)), sum(5, 600)),
            (Cause { place: Place::Anywhere, reason: 1, detail: Detail::None }, sum(5, 50)),
        ];
        tally.sums.extend(causes);
        tally
    }

    fn report(kernel: Result<Counted, String>) -> Report {
        let symbols = Symbols::kallsyms(TEXT.as_bytes()).expect("whole");
        Report::of(&tally(), &symbols, kernel, About::default())
    }

    #[test]
    fn addresses_of_one_function_are_one_row_and_the_longest_is_first() {
        let report = report(Err("no debugfs".to_string()));
        let found: Vec<_> = report
            .rows
            .iter()
            .map(|row| {
                (&*row.function, &*row.reason, &*row.detail, row.device, row.exits, row.rule)
            })
            .collect();
        assert_eq!(
            found,
            [
                ("other", "port I/O", "0x1f7", Some("IDE"), 5, Some("emulated-disk")),
                ("acpi_pm_read", "port I/O", "0x608", Some("ACPI timer"), 6, Some("clocksource")),
                ("[anywhere]", "external interrupt", "", None, 5, None),
            ]
        );
        assert_eq!(report.rows[1].addresses, ["0xffffffff81000041", "0xffffffff81000042"]);
        let rows: u64 = report.rows.iter().map(|row| row.exits).sum();
        let lost: u64 = report.lost.iter().map(|lost| lost.exits).sum();
        assert_eq!(rows + lost + report.edge.unfinished, report.exits);
        assert_eq!(report.handling_ns, 1_150);
    }

    #[test]
    fn the_kernel_s_counter_is_right_within_a_vcpu_each() {
        let check = |at_end| report(Ok(Counted { at_start: [100, 101], at_end })).check;
        assert_eq!(check([120, 121]), Check::Same { least: 17, most: 23 });
        assert_eq!(check([124, 125]), Check::Same { least: 21, most: 27 });
        assert_eq!(check([125, 126]), Check::Other { least: 22, most: 28 });
        assert_eq!(check([117, 118]), Check::Other { least: 14, most: 20 });
        let why = "no debugfs".to_string();
        assert_eq!(report(Err(why.clone())).check, Check::Entries { why, entries: 20 });
    }

    #[test]
    fn without_symbols_there_are_addresses_and_without_these_a_word() {
        let none = || Err(String::new());
        let bare = Report::of(&tally(), &Symbols::default(), none(), About::default());
        assert_eq!(bare.rows[0].function, "0xffffffff81000081");
        assert!(bare.notes.is_empty());
        let mut low = tally();
        low.sums.retain(|cause, _| cause.place == Place::Anywhere);
        let low = Report::of(&low, &Symbols::default(), none(), About::default());
        assert!(low.notes[0].contains("encrypted"));
    }
}
