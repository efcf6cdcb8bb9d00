//! Events of the kernel's, and where their records have what is needed: the text of `format` files, understood.

use std::collections::BTreeMap;

use crate::program::Place;

/// Events that programs hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Exit,
    Entry,
    Wakeup,
    Switch,
    Nested,
    Mmio,
    FastMmio,
    Msr,
    Hypercall,
    Cpuid,
    Apic,
    Fault,
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    Reason,
    Address,
    Vendor,
    Info,
    Interrupt,
    Ns,
    Next,
    State,
    Detail,
}

impl Event {
    /// In the order in which they are attached: details first, so that no exit is without its own.
    pub(crate) const ALL: [Event; 12] = [
        Event::Mmio,
        Event::FastMmio,
        Event::Msr,
        Event::Hypercall,
        Event::Cpuid,
        Event::Apic,
        Event::Fault,
        Event::Nested,
        Event::Wakeup,
        Event::Switch,
        Event::Entry,
        Event::Exit,
    ];

    /// Its folder below `events`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Event::Exit => "kvm/kvm_exit",
            Event::Entry => "kvm/kvm_entry",
            Event::Wakeup => "kvm/kvm_vcpu_wakeup",
            Event::Switch => "sched/sched_switch",
            Event::Nested => "kvm/kvm_nested_vmexit",
            Event::Mmio => "kvm/kvm_mmio",
            Event::FastMmio => "kvm/kvm_fast_mmio",
            Event::Msr => "kvm/kvm_msr",
            Event::Hypercall => "kvm/kvm_hypercall",
            Event::Cpuid => "kvm/kvm_cpuid",
            Event::Apic => "kvm/kvm_apic",
            Event::Fault => "kvm/kvm_page_fault",
        }
    }

    /// Its own name.
    pub(crate) fn name(self) -> &'static str {
        self.folder().rsplit('/').next().unwrap_or_default()
    }

    /// Whether nothing can be counted without it.
    pub(crate) fn is_needed(self) -> bool {
        matches!(self, Event::Exit | Event::Entry)
    }

    /// What is not known without it.
    pub(crate) fn tells(self) -> &'static str {
        match self {
            Event::Exit | Event::Entry => "exits",
            Event::Wakeup => "how long vCPUs were halted",
            Event::Switch => "how long vCPUs were displaced",
            Event::Nested => "which exits are those of the guest's own guests",
            Event::Mmio | Event::FastMmio => "addresses of MMIO",
            Event::Msr => "which MSRs",
            Event::Hypercall => "which hypercalls",
            Event::Cpuid => "which leaves of CPUID",
            Event::Apic => "which registers of the APIC",
            Event::Fault => "what faults of memory were",
        }
    }

    /// The fields that are read, with the kernel's names.
    fn fields(self) -> &'static [(Field, &'static str)] {
        match self {
            Event::Exit => &[
                (Field::Reason, "exit_reason"),
                (Field::Address, "guest_rip"),
                (Field::Vendor, "isa"),
                (Field::Info, "info1"),
                (Field::Interrupt, "intr_info"),
            ],
            Event::Entry | Event::Nested => &[],
            Event::Wakeup => &[(Field::Ns, "ns")],
            Event::Switch => &[(Field::Next, "next_pid"), (Field::State, "prev_state")],
            Event::Mmio | Event::FastMmio => &[(Field::Detail, "gpa")],
            Event::Msr => &[(Field::Detail, "ecx")],
            Event::Hypercall => &[(Field::Detail, "nr")],
            Event::Cpuid => &[(Field::Detail, "function")],
            Event::Apic => &[(Field::Detail, "reg")],
            Event::Fault => &[(Field::Detail, "error_code")],
        }
    }
}

/// Why an event is of no use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lacks {
    /// Its text has no number.
    Number,
    /// It has not this field, or one of another size.
    Field(&'static str),
}

/// What is known of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Formats {
    numbers: BTreeMap<Event, u64>,
    places: BTreeMap<(Event, Field), Place>,
}

impl Formats {
    /// Adds what the text of an event's `format` says.
    pub(crate) fn add(&mut self, event: Event, text: &str) -> Result<(), Lacks> {
        let number = text.lines().find_map(|line| line.strip_prefix("ID:")?.trim().parse().ok());
        let number = number.ok_or(Lacks::Number)?;
        let found = |name: &str| text.lines().find_map(|line| place_of(line, name));
        let mut places = Vec::new();
        for (field, name) in event.fields() {
            places.push(((event, *field), found(name).ok_or(Lacks::Field(name))?));
        }
        self.places.extend(places);
        self.numbers.insert(event, number);
        Ok(())
    }

    /// The number of an event that is known.
    pub(crate) fn number(&self, event: Event) -> Option<u64> {
        self.numbers.get(&event).copied()
    }

    /// Where a field is.
    pub(crate) fn place(&self, event: Event, field: Field) -> Option<Place> {
        self.places.get(&(event, field)).copied()
    }
}

/// The place of that field, if the line is about it: `field:u64 gpa; offset:16; size:8; signed:0;`.
fn place_of(line: &str, name: &str) -> Option<Place> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let its = parts.next()?.rsplit([' ', '*']).next()?;
    let offset: i16 = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let bytes: u8 = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    // The kernel shows programs no byte before the eighth, and nothing across its own size.
    let is_whole = matches!(bytes, 4 | 8) && offset >= 8 && offset % i16::from(bytes) == 0;
    (its == name && is_whole).then_some(Place { at: offset, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MMIO: &str = "name: kvm_mmio\nID: 77\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:u32 type;\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:u64 gpa;\toffset:16;\tsize:8;\tsigned:0;\n\nprint fmt: \"gpa\"\n";

    #[test]
    fn a_field_is_where_the_kernel_says() {
        let mut formats = Formats::default();
        formats.add(Event::Mmio, MMIO).expect("whole");
        assert_eq!(formats.number(Event::Mmio), Some(77));
        assert_eq!(formats.place(Event::Mmio, Field::Detail), Some(Place { at: 16, bytes: 8 }));
        assert_eq!(formats.number(Event::Exit), None);
    }

    #[test]
    fn what_an_event_lacks_is_named() {
        let add = |text: &str| Formats::default().add(Event::Mmio, text);
        assert_eq!(add(&MMIO.replace("gpa;", "gfn;")), Err(Lacks::Field("gpa")));
        assert_eq!(add(&MMIO.replace("size:8", "size:2")), Err(Lacks::Field("gpa")));
        assert_eq!(add(&MMIO.replace("offset:16", "offset:18")), Err(Lacks::Field("gpa")));
        assert_eq!(add(&MMIO.replace("offset:16", "offset:0")), Err(Lacks::Field("gpa")));
        assert_eq!(add(&MMIO.replace("ID", "Id")), Err(Lacks::Number));
    }
}
