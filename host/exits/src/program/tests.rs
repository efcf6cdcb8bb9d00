//! The programs against a model, with events in every order.

use std::collections::BTreeMap;

use bpf::{Instruction, op};
use proptest::prelude::*;

use super::interpreter::{Kernel, MAPS};
use super::*;

const PROCESS: u32 = 4_000;

/// What happens.
#[derive(Clone, Copy, Debug)]
struct Happening {
    thread: u32,
    is_ours: bool,
    after_ns: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Exit { reason: u32, vendor: u32, address: u64, info: u64, interrupt: u32 },
    Entry,
    Detail(Event, u64),
    Nested,
    Wakeup(u64),
    Switch { next: u32, state: u64 },
}

/// Made-up records: fields one behind the other from the eighth byte.
fn formats() -> Formats {
    let mut formats = Formats::default();
    let field = |name: &str, at: usize, size: usize| {
        format!("\tfield:u64 {name};\toffset:{at};\tsize:{size};\tsigned:0;\n")
    };
    for event in Event::ALL {
        let fields: String = match event {
            Event::Exit => [
                field("exit_reason", 8, 4),
                field("isa", 12, 4),
                field("guest_rip", 16, 8),
                field("info1", 24, 8),
                field("intr_info", 32, 4),
            ]
            .concat(),
            Event::Wakeup => field("ns", 8, 8),
            Event::Switch => field("next_pid", 8, 4) + &field("prev_state", 16, 8),
            Event::Msr | Event::Cpuid | Event::Apic => {
                ["ecx", "function", "reg"].map(|name| field(name, 8, 4)).concat()
            }
            _ => ["gpa", "nr", "error_code"].map(|name| field(name, 8, 8)).concat(),
        };
        formats.add(event, &format!("ID: 1\n{fields}")).expect("whole");
    }
    formats
}

fn record(what: What) -> (Event, Vec<u8>) {
    let mut bytes = vec![0x55u8; 8];
    let event = match what {
        What::Exit { reason, vendor, address, info, interrupt } => {
            bytes.extend(reason.to_ne_bytes());
            bytes.extend(vendor.to_ne_bytes());
            bytes.extend(address.to_ne_bytes());
            bytes.extend(info.to_ne_bytes());
            bytes.extend(interrupt.to_ne_bytes());
            Event::Exit
        }
        What::Entry => Event::Entry,
        What::Nested => Event::Nested,
        What::Wakeup(ns) => {
            bytes.extend(ns.to_ne_bytes());
            Event::Wakeup
        }
        What::Switch { next, state } => {
            bytes.extend(u64::from(next).to_ne_bytes());
            bytes.extend(state.to_ne_bytes());
            Event::Switch
        }
        What::Detail(event, value) => {
            bytes.extend(value.to_ne_bytes());
            event
        }
    };
    (event, bytes)
}

/// What an exit is counted under.
type Key = (u32, Kind, u32, u32, u64, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Vcpu {
    open: Option<(u64, Key, u64, u64)>,
    away_since: u64,
    ahead: Option<u64>,
    exits: u64,
    entries: u64,
    missed: u64,
    edge: Option<u64>,
}

/// What the programs are to do, in other words.
struct Model {
    armed: u64,
    vcpus: BTreeMap<u32, Vcpu>,
    sums: BTreeMap<Key, [u64; 4]>,
    lost: BTreeMap<u32, u64>,
    vcpus_max: usize,
    sums_max: usize,
}

fn strength(kind: Kind) -> u32 {
    match kind {
        Kind::None => 0,
        Kind::Fault => 1,
        Kind::Mmio => 3,
        _ => 2,
    }
}

impl Model {
    fn happens(&mut self, now: u64, one: Happening) {
        if self.armed == 0 {
            return;
        }
        if let What::Switch { next, state } = one.what {
            return self.switches(now, one, next, state);
        }
        if !one.is_ours {
            return;
        }
        let makes_a_row = matches!(one.what, What::Exit { .. } | What::Entry);
        let is_there = self.vcpus.contains_key(&one.thread);
        if !is_there && (!makes_a_row || self.vcpus.len() == self.vcpus_max) {
            if let What::Exit { reason, vendor, .. } = one.what {
                *self.lost.entry(lost_at(plain(reason, vendor))).or_default() += 1;
            }
            return;
        }
        let mut row = self.vcpus.get(&one.thread).cloned().unwrap_or_default();
        match one.what {
            What::Exit { .. } => {
                if let Some((_, key, _, _)) = row.open {
                    row.missed += 1;
                    self.add(key, [0, 0, 0]);
                }
                let key = key_of(one, row.ahead);
                row.open = Some((now, key, 0, 0));
                row.away_since = 0;
                row.ahead = None;
                row.exits += 1;
            }
            What::Entry => {
                row.entries += 1;
                row.ahead = None;
                match row.open.take() {
                    Some((since, key, halted, away)) => {
                        self.add(key, [now - since - halted - away, halted, away]);
                    }
                    None if row.exits == 0 && row.entries == 1 => {
                        row.edge = Some(now - self.armed);
                    }
                    None => {}
                }
            }
            What::Detail(event, value) => detail(&mut row, event, value),
            What::Nested => {
                if let Some((_, key, _, _)) = &mut row.open {
                    key.5 = NESTED;
                }
            }
            What::Wakeup(ns) => {
                if let Some((since, _, halted, away)) = &mut row.open {
                    *halted += ns.min(now - *since - *halted - *away);
                    row.away_since = 0;
                }
            }
            What::Switch { .. } => {}
        }
        self.vcpus.insert(one.thread, row);
    }

    fn switches(&mut self, now: u64, one: Happening, next: u32, state: u64) {
        if let Some(row) = self.vcpus.get_mut(&one.thread).filter(|_| one.is_ours)
            && state & 0xff == 0
            && row.open.is_some()
        {
            row.away_since = now;
        }
        if let Some(row) = self.vcpus.get_mut(&next)
            && row.away_since != 0
        {
            let away = now - row.away_since;
            row.away_since = 0;
            // An entry that was seen before it: whoever misses an event displaces nothing later.
            if let Some(open) = &mut row.open {
                open.3 += away;
            }
        }
    }

    fn add(&mut self, key: Key, times: [u64; 3]) {
        if !self.sums.contains_key(&key) && self.sums.len() == self.sums_max {
            *self.lost.entry(lost_at(key.2)).or_default() += 1;
            return;
        }
        let sum = self.sums.entry(key).or_default();
        sum[0] += 1;
        sum[1..].iter_mut().zip(times).for_each(|(to, ns)| *to += ns);
    }
}

fn plain(reason: u32, vendor: u32) -> u32 {
    if vendor == 1 { reason & 0xffff } else { reason }
}

fn key_of(one: Happening, ahead: Option<u64>) -> Key {
    let What::Exit { reason, vendor, address, info, interrupt } = one.what else {
        panic!("an exit")
    };
    let reason = plain(reason, vendor);
    let (kind, detail) = match (vendor, reason) {
        (1, 30) | (2, 0x7b) => (Kind::Port, info >> 16 & 0xffff),
        (1, 28) => (Kind::Control, info & 0x3f),
        (1, 44 | 56) | (2, 0x402) => (Kind::Apic, info & 0xff0),
        (1, 45) => (Kind::Vector, info & 0xff),
        (2, 0x7c) if ahead.is_some() => (Kind::Msr, ahead.unwrap_or(0)),
        _ => (Kind::None, 0),
    };
    let is_anywhere = match vendor {
        1 => matches!(reason, 1 | 7 | 8 | 52) || (reason == 0 && interrupt & 0x700 == 0x200),
        _ => (0x60..=0x64).contains(&reason),
    };
    let address = match address {
        _ if is_anywhere => ASYNCHRONOUS,
        address if address >> 63 == 0 => LOW,
        address => address,
    };
    (one.thread, kind, reason, vendor, detail, address)
}

fn detail(row: &mut Vcpu, event: Event, value: u64) {
    let (kind, value) = match event {
        Event::Mmio | Event::FastMmio => (Kind::Mmio, value),
        Event::Msr => (Kind::Msr, value & 0xffff_ffff),
        Event::Hypercall => (Kind::Hypercall, value),
        Event::Cpuid => (Kind::Cpuid, value & 0xffff_ffff),
        Event::Apic => (Kind::Apic, value & 0xffff_ffff),
        _ => (Kind::Fault, value & 0x1f),
    };
    match &mut row.open {
        Some((_, key, _, _)) if strength(kind) > strength(key.1) => (key.1, key.4) = (kind, value),
        None if kind == Kind::Msr => row.ahead = Some(value),
        _ => {}
    }
}

fn number(bytes: &[u8], at: i16) -> u32 {
    let at = at as usize;
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
}

fn long(bytes: &[u8], at: i16) -> u64 {
    let at = at as usize;
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

fn key_from(bytes: &[u8]) -> Key {
    (
        number(bytes, key::THREAD),
        Kind::of(number(bytes, key::KIND)),
        number(bytes, key::REASON),
        number(bytes, key::VENDOR),
        long(bytes, key::DETAIL),
        long(bytes, key::ADDRESS),
    )
}

fn programs() -> BTreeMap<Event, Vec<Instruction>> {
    let formats = formats();
    let made = |event| assemble(event, &formats, MAPS, PROCESS).expect("all fields are there");
    Event::ALL.into_iter().map(|event| (event, made(event))).collect()
}

fn what() -> impl Strategy<Value = What> {
    let address = prop_oneof![Just(0x40_0000), Just(u64::MAX << 31), Just((u64::MAX << 31) + 64)];
    let reason = prop_oneof![
        (
            prop_oneof![
                Just(0u32),
                Just(1),
                Just(7),
                Just(28),
                Just(30),
                Just(32),
                Just(44),
                Just(45),
                Just(48),
                Just(52),
                Just(56),
                Just(0x8000_001e)
            ],
            Just(1u32)
        ),
        (
            prop_oneof![
                Just(0x60u32),
                Just(0x64),
                Just(0x78),
                Just(0x7b),
                Just(0x7c),
                Just(0x400),
                Just(0x402),
                Just(0x300),
                Just(u32::MAX),
                Just(0x8000_0001)
            ],
            Just(2u32)
        ),
    ];
    let interrupt = prop_oneof![Just(0u32), Just(0x202), Just(0x30e)];
    let exit = (reason, address, 0u64..1 << 20, interrupt);
    let exit = exit.prop_map(|((reason, vendor), address, info, interrupt)| What::Exit {
        reason,
        vendor,
        address,
        info,
        interrupt,
    });
    let event = prop_oneof![
        Just(Event::Mmio),
        Just(Event::FastMmio),
        Just(Event::Msr),
        Just(Event::Hypercall),
        Just(Event::Cpuid),
        Just(Event::Apic),
        Just(Event::Fault)
    ];
    prop_oneof![
        6 => exit,
        6 => Just(What::Entry),
        4 => (event, 0u64..64).prop_map(|(event, value)| What::Detail(event, value)),
        1 => Just(What::Nested),
        2 => (0u64..2_000).prop_map(What::Wakeup),
        4 => (1u32..6, prop_oneof![Just(0u64), Just(1), Just(0x100)])
            .prop_map(|(next, state)| What::Switch { next, state }),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let parts = (1u32..5, prop::bool::weighted(0.9), 0u64..1_000, what());
    parts.prop_map(|(thread, is_ours, after_ns, what)| Happening {
        thread,
        is_ours,
        after_ns,
        what,
    })
}

/// Runs both, and says whether they agree; the threads of strangers have other numbers.
fn compare(
    programs: &BTreeMap<Event, Vec<Instruction>>,
    happenings: &[Happening],
    armed: std::ops::Range<usize>,
    room: (usize, usize),
) {
    let mut kernel = Kernel::new();
    kernel.room = BTreeMap::from([(MAPS.vcpus, room.0), (MAPS.sums, room.1)]);
    let mut model = Model {
        armed: 0,
        vcpus: BTreeMap::new(),
        sums: BTreeMap::new(),
        lost: BTreeMap::new(),
        vcpus_max: room.0,
        sums_max: room.1,
    };
    kernel.now = 1_000;
    for (nth, one) in happenings.iter().enumerate() {
        kernel.now += one.after_ns;
        model.armed = if armed.contains(&nth) { model.armed } else { 0 };
        if nth == armed.start {
            model.armed = kernel.now;
        }
        kernel.arm(model.armed);
        kernel.process = if one.is_ours { PROCESS } else { PROCESS + 1 };
        kernel.thread = if one.is_ours { one.thread } else { 100 + one.thread };
        let one = Happening { thread: kernel.thread, ..*one };
        let (event, bytes) = record(one.what);
        kernel.run(&programs[&event], &bytes);
        model.happens(kernel.now, one);
    }
    let sums: BTreeMap<Key, [u64; 4]> = kernel
        .all(MAPS.sums)
        .into_iter()
        .map(|(key, sum)| (key_from(&key), sum.try_into().expect("four")))
        .collect();
    assert_eq!(sums, model.sums);
    let lost = kernel.lost();
    let found: BTreeMap<u32, u64> =
        (0..).zip(lost.iter().copied()).filter(|(_, count)| *count > 0).collect();
    assert_eq!(found, model.lost);
    let mut open = 0;
    let rows = kernel.all(MAPS.vcpus);
    assert_eq!(rows.len(), model.vcpus.len());
    let mut exits: u64 = 0;
    for (thread, row) in rows {
        let its = &model.vcpus[&number(&thread, 0)];
        assert_eq!(row[vcpu::OPEN] == 1, its.open.is_some());
        open += row[vcpu::OPEN];
        let counts = [vcpu::EXITS, vcpu::ENTRIES, vcpu::MISSED].map(|word| row[word]);
        assert_eq!(counts, [its.exits, its.entries, its.missed]);
        let edge = (row[vcpu::EDGES] == 1).then_some(row[vcpu::EDGE_NS]);
        assert_eq!(edge, its.edge);
        exits += its.exits;
    }
    let lost_of_vcpus = exits_without_a_row(happenings, &armed, room.0);
    let counted: u64 = sums.values().map(|sum| sum[0]).sum();
    assert_eq!(counted + lost.iter().sum::<u64>() + open, exits + lost_of_vcpus);
}

fn exits_without_a_row(all: &[Happening], armed: &std::ops::Range<usize>, room: usize) -> u64 {
    let (mut rows, mut lost) = (Vec::new(), 0);
    for (nth, one) in all.iter().enumerate() {
        let makes_a_row = matches!(one.what, What::Exit { .. } | What::Entry);
        if !one.is_ours || !armed.contains(&nth) || !makes_a_row || rows.contains(&one.thread) {
            continue;
        }
        match rows.len() < room {
            true => rows.push(one.thread),
            false => lost += u64::from(matches!(one.what, What::Exit { .. })),
        }
    }
    lost
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_programs_do_what_the_model_does(
        happenings in prop::collection::vec(happening(), 0..60),
        start in 0usize..10,
        len in 0usize..60,
        room in (1usize..5, prop_oneof![Just(1_000usize), 1usize..6]),
    ) {
        compare(&programs(), &happenings, start..start + len, room);
    }
}

/// One vCPU's events, each sequence of five: where a detail belongs is a matter of two or three in a row.
#[test]
fn details_belong_to_their_exits_in_every_order() {
    let exit = |reason| What::Exit { reason, vendor: 2, address: u64::MAX, info: 0, interrupt: 0 };
    let all = [
        exit(0x7c),
        exit(0x400),
        What::Entry,
        What::Detail(Event::Msr, 5),
        What::Detail(Event::Mmio, 6),
        What::Detail(Event::Fault, 2),
        What::Nested,
    ];
    let programs = programs();
    for nth in 0..all.len().pow(5) {
        let one = |at: u32| {
            let what = all[nth / all.len().pow(at) % all.len()];
            Happening { thread: 1, is_ours: true, after_ns: 10, what }
        };
        let happenings: Vec<Happening> = (0..5).map(one).collect();
        compare(&programs, &happenings, 0..5, (4, 100));
    }
}

/// The same of what time is given to, also where a switch was missed: no time counts twice.
#[test]
fn no_time_counts_twice_in_any_order() {
    let exit = What::Exit { reason: 12, vendor: 1, address: 0, info: 0, interrupt: 0 };
    let all = [
        (true, exit),
        (true, What::Entry),
        (true, What::Wakeup(25)),
        (true, What::Switch { next: 9, state: 0 }),
        (false, What::Switch { next: 1, state: 1 }),
    ];
    let programs = programs();
    for nth in 0..all.len().pow(6) {
        let one = |at: u32| {
            let (is_ours, what) = all[nth / all.len().pow(at) % all.len()];
            Happening { thread: 1, is_ours, after_ns: 10, what }
        };
        let happenings: Vec<Happening> = (0..6).map(one).collect();
        compare(&programs, &happenings, 0..6, (4, 100));
    }
}

#[test]
fn every_jump_lands_inside() {
    for (event, code) in programs() {
        for (at, one) in code.iter().enumerate().filter(|(_, one)| op::is_jump(one.code)) {
            let to = at as i64 + 1 + i64::from(one.offset);
            assert!(one.offset >= 0 && to < code.len() as i64, "{event:?}: the jump at {at}");
        }
    }
}

#[test]
fn an_event_whose_fields_are_others_has_no_program() {
    for event in Event::ALL {
        let program = assemble(event, &Formats::default(), MAPS, PROCESS);
        assert_eq!(program.is_some(), matches!(event, Event::Entry | Event::Nested), "{event:?}");
    }
}
