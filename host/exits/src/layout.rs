//! What the programs' maps hold: rows of words of eight bytes, and what these mean.
//!
//! Each row has one writer, the vCPU's own thread or the processor that gives it up or takes it up.

/// Words of a vCPU's row. Its key is the thread.
pub(crate) mod vcpu {
    /// Whether an exit is under way.
    pub(crate) const OPEN: usize = 0;
    /// When it began, nanoseconds.
    pub(crate) const SINCE: usize = 1;
    /// The key of its sum ([`super::key`]), as far as it is known.
    pub(crate) const KEY: usize = 2;
    /// Of that exit, nanoseconds halted.
    pub(crate) const HALTED: usize = 6;
    /// Of that exit, nanoseconds displaced.
    pub(crate) const DISPLACED: usize = 7;
    /// Since when it has been displaced; 0 while it is not.
    pub(crate) const DISPLACED_SINCE: usize = 8;
    /// The kind of a detail that came ahead of its exit; 0 for none.
    pub(crate) const AHEAD_KIND: usize = 9;
    /// That detail.
    pub(crate) const AHEAD: usize = 10;
    /// Exits that began while it was armed.
    pub(crate) const EXITS: usize = 11;
    /// Entries while it was armed.
    pub(crate) const ENTRIES: usize = 12;
    /// Exits without time: the next one began before an entry was seen.
    pub(crate) const MISSED: usize = 13;
    /// Exits that were under way when it was armed.
    pub(crate) const EDGES: usize = 14;
    /// Nanoseconds of these since then.
    pub(crate) const EDGE_NS: usize = 15;
    /// Words of a row.
    pub(crate) const WORDS: usize = 16;
}

/// Bytes of the key of a sum: the thread, the kind of its detail, the reason, the vendor's way of exits (four each), then
/// the detail and the address (eight each).
pub(crate) mod key {
    pub(crate) const THREAD: i16 = 0;
    pub(crate) const KIND: i16 = 4;
    pub(crate) const REASON: i16 = 8;
    pub(crate) const VENDOR: i16 = 12;
    pub(crate) const DETAIL: i16 = 16;
    pub(crate) const ADDRESS: i16 = 24;
    pub(crate) const BYTES: u32 = 32;
}

/// Words of a sum.
pub(crate) mod sum {
    pub(crate) const EXITS: usize = 0;
    pub(crate) const HANDLING: usize = 1;
    pub(crate) const HALTED: usize = 2;
    pub(crate) const DISPLACED: usize = 3;
    pub(crate) const WORDS: usize = 4;
}

/// Rows of vCPUs at most.
pub(crate) const VCPUS_MAX: u32 = 1024;
/// Sums at most: 8 MiB with what the kernel needs for each.
pub(crate) const SUMS_MAX: u32 = 65_536;
/// Counters of exits that found no room, by their reason ([`lost_at`]).
pub(crate) const LOST: u32 = 256;
/// AMD's reasons beyond a byte begin here, and have so many of those counters, the last ones but one.
const FAR_REASONS: u32 = 0x400;
pub(crate) const FAR_AT: u32 = 0xf0;
/// The counter of all other reasons.
pub(crate) const OTHER: u32 = 0xff;

/// Where a reason that found no room is counted: the programs do the same.
#[cfg(test)]
pub(crate) fn lost_at(reason: u32) -> u32 {
    match reason {
        0..FAR_AT => reason,
        FAR_REASONS..0x40f => FAR_AT + reason - FAR_REASONS,
        _ => OTHER,
    }
}

/// The reason that is counted there; none for the others together.
pub(crate) fn reason_at(counter: u32) -> Option<u32> {
    match counter {
        0..FAR_AT => Some(counter),
        FAR_AT..OTHER => Some(FAR_REASONS + counter - FAR_AT),
        _ => None,
    }
}

/// `isa` in `kvm_exit`: Intel's exits.
pub(crate) const INTEL: i32 = 1;
/// AMD's.
pub(crate) const AMD: i32 = 2;

/// Addresses that are none: of an asynchronous reason.
pub(crate) const ASYNCHRONOUS: u64 = 0;
/// Of the lower half.
pub(crate) const LOW: u64 = 1;
/// Of a guest's own guest.
pub(crate) const NESTED: u64 = 2;

/// What a detail is, the weakest first; [`Kind::overrules`] says which gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(crate) enum Kind {
    /// None.
    None = 0,
    /// What a fault of memory was.
    Fault = 1,
    /// A port.
    Port = 2,
    /// A model-specific register.
    Msr = 3,
    /// A hypercall's number.
    Hypercall = 4,
    /// A leaf of CPUID.
    Cpuid = 5,
    /// A register of the local APIC.
    Apic = 6,
    /// A control register, and how.
    Control = 7,
    /// An interrupt's vector.
    Vector = 8,
    /// A guest-physical address.
    Mmio = 9,
}

impl Kind {
    pub(crate) const ALL: [Kind; 10] = [
        Kind::None,
        Kind::Fault,
        Kind::Port,
        Kind::Msr,
        Kind::Hypercall,
        Kind::Cpuid,
        Kind::Apic,
        Kind::Control,
        Kind::Vector,
        Kind::Mmio,
    ];

    /// The kind of that number.
    pub(crate) fn of(number: u32) -> Kind {
        Kind::ALL.get(number as usize).copied().unwrap_or(Kind::None)
    }

    /// The greatest kind that this one overrules: it takes the place of that and of weaker ones.
    pub(crate) fn overrules(self) -> i32 {
        match self {
            Kind::None | Kind::Fault => Kind::None as i32,
            Kind::Mmio => Kind::Vector as i32,
            _ => Kind::Fault as i32,
        }
    }
}

/// Bits of a page fault's code that say of what kind it was: present, write, user, reserved, fetch.
pub(crate) const FAULT_BITS: i32 = 0x1f;
