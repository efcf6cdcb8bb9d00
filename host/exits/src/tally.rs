//! Rows of exits, made of what the maps hold.
//!
//! A function of bytes and times. Of all exits that the programs saw each is in a row, lost, or unfinished.

use std::collections::BTreeMap;

use bpf::sys::Item;

use crate::layout::*;

/// What the maps hold after counting, and from when to when was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Keys and rows of vCPUs.
    pub vcpus: Vec<Item>,
    /// Keys and sums.
    pub sums: Vec<Item>,
    /// Counters of what found no room.
    pub lost: Vec<u8>,
    /// On the clock of programs, nanoseconds.
    pub armed_ns: u64,
    /// The same.
    pub disarmed_ns: u64,
}

/// Where the guest was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Anywhere: the reason has nothing to do with it.
    Anywhere,
    /// In the lower half of addresses: user space, firmware, real mode, a 32-bit kernel.
    Low,
    /// In a guest of its own.
    Nested,
    /// At that address.
    At(u64),
}

/// What an exit is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Nothing more is known.
    None,
    /// A fault of memory, and the bits of its code.
    Fault(u64),
    /// A port.
    Port(u16),
    /// A model-specific register.
    Msr(u32),
    /// A hypercall.
    Hypercall(u64),
    /// A leaf of CPUID.
    Cpuid(u32),
    /// A register of the local APIC: its place in the APIC's page.
    Apic(u32),
    /// A control register, and how it was accessed (Intel's exit qualification).
    Control(u8),
    /// A vector.
    Vector(u8),
    /// A guest-physical address.
    Mmio(u64),
}

/// Whose way of exits it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vendor {
    /// VMX.
    #[default]
    Intel,
    /// SVM.
    Amd,
}

/// What exits were counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Where the guest was.
    pub place: Place,
    /// The processor's number of the reason.
    pub reason: u32,
    /// What it was about.
    pub detail: Detail,
}

/// How many, and how long: nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Exits.
    pub exits: u64,
    /// Neither halted nor displaced.
    pub handling_ns: u64,
    /// The vCPU had nothing to do.
    pub halted_ns: u64,
    /// The vCPU could have run, and had no processor.
    pub displaced_ns: u64,
}

impl Sum {
    /// Adds another one.
    pub fn add(&mut self, other: Sum) {
        self.exits += other.exits;
        self.handling_ns += other.handling_ns;
        self.halted_ns += other.halted_ns;
        self.displaced_ns += other.displaced_ns;
    }
}

/// Exits at the edges of the time of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Were under way when it began: no exits of that time.
    pub begun_before: u64,
    /// Their time within it.
    pub begun_before_ns: u64,
    /// Were under way when it ended: exits of that time, in no row.
    pub unfinished: u64,
    /// Their time within it.
    pub unfinished_ns: u64,
}

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Whose exits.
    pub vendor: Vendor,
    /// For how long was counted, nanoseconds.
    pub period_ns: u64,
    /// vCPUs that were seen.
    pub vcpus: u64,
    /// Exits that the programs saw: rows, lost and unfinished together.
    pub exits: u64,
    /// Entries.
    pub entries: u64,
    /// Exits without time, since their entry was not seen.
    pub missed: u64,
    /// Exits by cause.
    pub sums: BTreeMap<Cause, Sum>,
    /// Exits that found no room, by reason; without one, several reasons.
    pub lost: Vec<(Option<u32>, u64)>,
    /// Exits at the edges.
    pub edge: Edge,
}

impl Tally {
    /// Understands what the maps hold. What is not as the programs write it is left out, and so is missing from the
    /// sum of rows: the kernel gives it as they wrote it.
    pub fn of(held: &Held) -> Tally {
        let mut tally =
            Tally { period_ns: held.disarmed_ns.saturating_sub(held.armed_ns), ..Tally::default() };
        for (key, sum) in &held.sums {
            if let (Some((cause, vendor)), Some(sum)) = (cause_of(key), sum_of(sum)) {
                tally.vendor = vendor;
                tally.sums.entry(cause).or_default().add(sum);
            }
        }
        for (_, row) in &held.vcpus {
            let word = |nth| long(row, 8 * nth).unwrap_or(0);
            tally.vcpus += 1;
            tally.exits += word(vcpu::EXITS);
            tally.entries += word(vcpu::ENTRIES);
            tally.missed += word(vcpu::MISSED);
            tally.edge.begun_before += word(vcpu::EDGES);
            tally.edge.begun_before_ns += word(vcpu::EDGE_NS);
            if word(vcpu::OPEN) == 1 {
                tally.edge.unfinished += 1;
                tally.edge.unfinished_ns += held.disarmed_ns.saturating_sub(word(vcpu::SINCE));
            }
        }
        let lost = (0..LOST).filter_map(|at| Some((at, long(&held.lost, 8 * at as usize)?)));
        tally.lost = lost
            .filter(|(_, count)| *count > 0)
            .map(|(at, count)| (reason_at(at), count))
            .collect();
        // Those of vCPUs without a row are lost alone.
        tally.exits = tally.exits.max(tally.in_rows() + tally.lost() + tally.edge.unfinished);
        tally
    }

    /// Exits in rows.
    pub fn in_rows(&self) -> u64 {
        self.sums.values().map(|sum| sum.exits).sum()
    }

    /// Exits that found no room.
    pub fn lost(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }

    /// All rows in one.
    pub fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.sums.values().for_each(|sum| total.add(*sum));
        total
    }
}

fn cause_of(bytes: &[u8]) -> Option<(Cause, Vendor)> {
    let number = |at: i16| {
        let four = bytes.get(at as usize..at as usize + 4)?;
        Some(u32::from_ne_bytes(four.try_into().ok()?))
    };
    let vendor = if number(key::VENDOR)? == AMD as u32 { Vendor::Amd } else { Vendor::Intel };
    let value = long(bytes, key::DETAIL as usize)?;
    let place = match long(bytes, key::ADDRESS as usize)? {
        ASYNCHRONOUS => Place::Anywhere,
        LOW => Place::Low,
        NESTED => Place::Nested,
        address => Place::At(address),
    };
    let reason = number(key::REASON)?;
    let detail = detail_of(Kind::of(number(key::KIND)?), value);
    Some((Cause { place, reason, detail: as_msr(vendor, reason, detail) }, vendor))
}

fn detail_of(kind: Kind, value: u64) -> Detail {
    match kind {
        Kind::None => Detail::None,
        Kind::Fault => Detail::Fault(value),
        Kind::Port => Detail::Port(value as u16),
        Kind::Msr => Detail::Msr(value as u32),
        Kind::Hypercall => Detail::Hypercall(value),
        Kind::Cpuid => Detail::Cpuid(value as u32),
        Kind::Apic => Detail::Apic(value as u32),
        Kind::Control => Detail::Control(value as u8),
        Kind::Vector => Detail::Vector(value as u8),
        Kind::Mmio => Detail::Mmio(value),
    }
}

/// A register of the APIC that is written as an MSR (x2APIC) is told as one or as the other, whichever event came first.
fn as_msr(vendor: Vendor, reason: u32, detail: Detail) -> Detail {
    let is_msr = match vendor {
        Vendor::Intel => matches!(reason, 31 | 32 | 84 | 85),
        Vendor::Amd => reason == 0x7c,
    };
    match detail {
        Detail::Apic(register) if is_msr => Detail::Msr(0x800 + (register >> 4)),
        detail => detail,
    }
}

fn sum_of(bytes: &[u8]) -> Option<Sum> {
    let word = |nth: usize| long(bytes, 8 * nth);
    Some(Sum {
        exits: word(sum::EXITS)?,
        handling_ns: word(sum::HANDLING)?,
        halted_ns: word(sum::HALTED)?,
        displaced_ns: word(sum::DISPLACED)?,
    })
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(thread: u32, kind: Kind, reason: u32, vendor: i32, detail: u64, at: u64) -> Vec<u8> {
        let numbers = [thread, kind as u32, reason, vendor as u32].map(u32::to_ne_bytes).concat();
        [numbers, [detail, at].map(u64::to_ne_bytes).concat()].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn row(open: u64, since: u64, counts: [u64; 5]) -> Vec<u8> {
        let mut row = vec![0; vcpu::WORDS];
        (row[vcpu::OPEN], row[vcpu::SINCE]) = (open, since);
        row[vcpu::EXITS..vcpu::WORDS].copy_from_slice(&counts);
        words(&row)
    }

    #[test]
    fn vcpus_are_added_up_and_each_exit_is_somewhere() {
        let kernel = u64::MAX << 31;
        let mut lost = vec![0; LOST as usize];
        (lost[30], lost[0xf0], lost[0xff]) = (2, 1, 1);
        let held = Held {
            vcpus: vec![
                (vec![], row(1, 900, [6, 6, 1, 1, 50])),
                (vec![], row(0, 0, [4, 4, 0, 0, 0])),
            ],
            sums: vec![
                (key(7, Kind::Port, 30, INTEL, 0x1f0, kernel), words(&[3, 30, 0, 1])),
                (key(8, Kind::Port, 30, INTEL, 0x1f0, kernel), words(&[1, 10, 5, 0])),
                (key(8, Kind::None, 12, INTEL, 0, LOW), words(&[1, 1, 1, 1])),
            ],
            lost: words(&lost),
            armed_ns: 100,
            disarmed_ns: 1_000,
        };
        let tally = Tally::of(&held);
        let cause = Cause { place: Place::At(kernel), reason: 30, detail: Detail::Port(0x1f0) };
        let expected = Sum { exits: 4, handling_ns: 40, halted_ns: 5, displaced_ns: 1 };
        assert_eq!(tally.sums.get(&cause), Some(&expected));
        assert_eq!(tally.lost, [(Some(30), 2), (Some(0x400), 1), (None, 1)]);
        let edge = Edge { begun_before: 1, begun_before_ns: 50, unfinished: 1, unfinished_ns: 100 };
        assert_eq!(tally.edge, edge);
        assert_eq!((tally.exits, tally.entries, tally.missed), (10, 10, 1));
        assert_eq!(tally.in_rows() + tally.lost() + tally.edge.unfinished, tally.exits);
        assert_eq!(tally.period_ns, 900);
    }

    #[test]
    fn a_register_of_the_apic_has_one_name() {
        let of = |kind, reason, vendor, value| {
            cause_of(&key(1, kind, reason, vendor, value, NESTED)).map(|(cause, _)| cause.detail)
        };
        assert_eq!(of(Kind::Apic, 32, INTEL, 0x380), Some(Detail::Msr(0x838)));
        assert_eq!(of(Kind::Msr, 32, INTEL, 0x838), Some(Detail::Msr(0x838)));
        assert_eq!(of(Kind::Apic, 56, INTEL, 0x380), Some(Detail::Apic(0x380)));
        assert_eq!(of(Kind::Apic, 0x7c, AMD, 0x300), Some(Detail::Msr(0x830)));
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = key(1, Kind::Port, 30, INTEL, 0, 0);
        let sums: Vec<_> =
            (0..whole.len()).map(|len| (whole[..len].to_vec(), words(&[1, 1, 1, 1]))).collect();
        let tally = Tally::of(&Held { sums, ..Held::default() });
        assert!(tally.sums.is_empty());
    }
}
