//! The programs, one for each event, as instructions.
//!
//! In words: a thread of another process, or a word that says that nothing is counted, and that is all. An
//! exit opens the row of its vCPU; what follows says what it is about; the entry adds it to its sum.
//! Not here: how they are loaded and attached (`watch`), and what is made of the maps (`tally`).

use bpf::helper::{LOOK_UP, NOW_NS, THIS_THREAD, UPDATE};
use bpf::op::*;
use bpf::{Code, Instruction};

use crate::formats::{Event, Field, Formats};
use crate::layout::*;

mod detail;

/// Places below the frame: a thread's number; a row of a vCPU, or a sum, that is new.
const THREAD_AT: i16 = -8;
const FRESH_AT: i16 = THREAD_AT - 8 * vcpu::WORDS as i16;
/// What `UPDATE` is to do: make a row, and change none.
const MAKE_ONLY: i32 = 1;
/// States of a thread that is switched out (`sched_switch`) are below this; what is above is how.
const STATES: i32 = 0xff;

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maps {
    /// One word: when counting began; 0 while nothing is counted.
    pub(crate) armed: i32,
    /// Rows of vCPUs, by thread.
    pub(crate) vcpus: i32,
    /// Sums.
    pub(crate) sums: i32,
    /// Exits that found no room, by reason.
    pub(crate) lost: i32,
}

/// The program for an event; nothing where the kernel's record lacks a field that it needs.
pub(crate) fn assemble(
    event: Event,
    formats: &Formats,
    maps: Maps,
    process: u32,
) -> Option<Vec<Instruction>> {
    let mut code = Writer { code: Code::default(), maps, process, done: Vec::new() };
    let at = |field| formats.place(event, field);
    match event {
        Event::Exit => code.exit(ExitAt {
            reason: at(Field::Reason)?,
            address: at(Field::Address)?,
            vendor: at(Field::Vendor)?,
            info: at(Field::Info)?,
            interrupt: at(Field::Interrupt)?,
        }),
        Event::Entry => code.entry(),
        Event::Wakeup => code.wakeup(at(Field::Ns)?),
        Event::Switch => code.switch(at(Field::Next)?, at(Field::State)?),
        Event::Nested => code.nested(),
        Event::Mmio | Event::FastMmio => code.detail(Kind::Mmio, at(Field::Detail)?),
        Event::Msr => code.msr(at(Field::Detail)?),
        Event::Hypercall => code.detail(Kind::Hypercall, at(Field::Detail)?),
        Event::Cpuid => code.detail(Kind::Cpuid, at(Field::Detail)?),
        Event::Apic => code.detail(Kind::Apic, at(Field::Detail)?),
        Event::Fault => code.detail(Kind::Fault, at(Field::Detail)?),
    }
    Some(code.whole())
}

/// A field's place in its record, and its size in bytes: 4 or 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) at: i16,
    pub(crate) bytes: u8,
}

/// Fields of `kvm_exit`.
#[derive(Clone, Copy, Debug)]
struct ExitAt {
    reason: Place,
    address: Place,
    vendor: Place,
    info: Place,
    interrupt: Place,
}

/// r6 = the record, r7 = when it was armed, later now, r9 = the row.
struct Writer {
    code: Code,
    maps: Maps,
    process: u32,
    /// Jumps of those for whom there is nothing to do.
    done: Vec<usize>,
}

impl Writer {
    fn whole(mut self) -> Vec<Instruction> {
        self.code.land(std::mem::take(&mut self.done));
        self.code.end();
        self.code.whole()
    }

    fn field(&mut self, to: u8, place: Place) {
        let load = if place.bytes == 4 { LOAD_U32 } else { LOAD_U64 };
        self.code.op(load, to, 6, place.at, 0);
    }

    fn load(&mut self, to: u8, word: usize) {
        self.code.op(LOAD_U64, to, 9, 8 * word as i16, 0);
    }

    fn store(&mut self, word: usize, from: u8) {
        self.code.op(STORE_U64, 9, from, 8 * word as i16, 0);
    }

    fn store_number(&mut self, word: usize, number: i32) {
        self.code.op(STORE_NUMBER_U64, 9, 0, 8 * word as i16, number);
    }

    /// A part of the key of the exit that is under way.
    fn store_key(&mut self, at: i16, from: u8) {
        let store = if at < key::DETAIL { STORE_U32 } else { STORE_U64 };
        self.code.op(store, 9, from, 8 * vcpu::KEY as i16 + at, 0);
    }

    fn store_kind(&mut self, kind: Kind) {
        let at = 8 * vcpu::KEY as i16 + key::KIND;
        self.code.op(STORE_NUMBER_U32, 9, 0, at, kind as i32);
    }

    /// One more, by r1.
    fn count(&mut self, word: usize) {
        self.load(1, word);
        self.code.op(ADD_NUMBER, 1, 0, 0, 1);
        self.store(word, 1);
    }

    /// r7 = when it was armed; nothing is done while it is not.
    fn armed(&mut self) {
        self.code.copy(6, 1);
        self.code.address(1, MAP_VALUE, self.maps.armed);
        self.code.op(LOAD_U64, 7, 1, 0, 0);
        let not = self.code.op(JUMP_IF_NUMBER, 7, 0, 0, 0);
        self.done.push(not);
    }

    /// The thread's number is on the stack; returns the jump of another process's.
    fn its_own(&mut self) -> usize {
        self.code.call(THIS_THREAD);
        self.code.op(STORE_U32, 10, 0, THREAD_AT, 0);
        self.code.op(SHIFT_RIGHT, 0, 0, 0, 32);
        self.code.op(JUMP_UNLESS_NUMBER, 0, 0, 0, self.process as i32)
    }

    /// r0 = the row of the thread whose number is on the stack, or 0.
    fn look_up(&mut self) {
        self.code.address(1, MAP, self.maps.vcpus);
        self.code.copy(2, 10);
        self.code.op(ADD_NUMBER, 2, 0, 0, THREAD_AT.into());
        self.code.call(LOOK_UP);
    }

    /// r9 = the row of this thread, if it has one.
    fn row(&mut self) {
        self.armed();
        let other = self.its_own();
        self.look_up();
        let none = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        self.done.extend([other, none]);
        self.code.copy(9, 0);
    }

    /// r9 = the row of this thread, which is made if it is the first time; returns the jump of one for whom there is
    /// no room.
    fn row_made(&mut self) -> usize {
        self.armed();
        let other = self.its_own();
        self.done.push(other);
        self.look_up();
        let is_there = self.code.op(JUMP_UNLESS_NUMBER, 0, 0, 0, 0);
        for word in 0..vcpu::WORDS as i16 {
            self.code.op(STORE_NUMBER_U64, 10, 0, FRESH_AT + 8 * word, 0);
        }
        self.code.address(1, MAP, self.maps.vcpus);
        self.make(THREAD_AT);
        self.look_up();
        self.code.land(vec![is_there]);
        let none = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        self.code.copy(9, 0);
        none
    }

    /// Puts what is at `FRESH_AT` into the map of r1; the key is on the stack.
    fn make(&mut self, key_at: i16) {
        self.code.copy(2, 10);
        self.code.op(ADD_NUMBER, 2, 0, 0, key_at.into());
        self.put();
    }

    /// The same of the key at r2.
    fn put(&mut self) {
        self.code.copy(3, 10);
        self.code.op(ADD_NUMBER, 3, 0, 0, FRESH_AT.into());
        self.code.set(4, MAKE_ONLY);
        self.code.call(UPDATE);
    }

    /// r7 = now.
    fn now(&mut self) {
        self.code.call(NOW_NS);
        self.code.copy(7, 0);
    }

    /// One more lost, of the reason in r1.
    fn lose(&mut self) {
        let near = self.code.op(JUMP_IF_ABOVE, 1, 0, 0, FAR_AT as i32 - 1);
        let found = self.code.op(JUMP, 0, 0, 0, 0);
        self.code.land(vec![near]);
        self.code.op(ADD_NUMBER, 1, 0, 0, FAR_AT as i32 - 0x400);
        let other = [
            self.code.op(JUMP_IF_LESS, 1, 0, 0, FAR_AT as i32),
            self.code.op(JUMP_IF_ABOVE, 1, 0, 0, OTHER as i32 - 1),
        ];
        let far = self.code.op(JUMP, 0, 0, 0, 0);
        self.code.land(other.to_vec());
        self.code.set(1, OTHER as i32);
        self.code.land(vec![found, far]);
        // For the verifier, which does not follow all of that: a byte.
        self.code.op(AND_NUMBER, 1, 0, 0, OTHER as i32);
        self.code.op(SHIFT_LEFT, 1, 0, 0, 3);
        self.code.address(2, MAP_VALUE, self.maps.lost);
        self.code.op(ADD, 2, 1, 0, 0);
        self.code.set(1, 1);
        self.code.op(ATOMIC_U64, 2, 1, 0, FETCH_ADD);
    }

    /// The exit under way is added to its sum, with the times r7 (handling) and those of the row, or without any.
    fn add(&mut self, has_times: bool) {
        self.code.address(1, MAP, self.maps.sums);
        self.key();
        self.code.call(LOOK_UP);
        let none = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        let more = |code: &mut Code, word: usize, from: u8| {
            code.op(LOAD_U64, 2, 0, 8 * word as i16, 0);
            code.op(ADD, 2, from, 0, 0);
            code.op(STORE_U64, 0, 2, 8 * word as i16, 0);
        };
        self.code.set(1, 1);
        more(&mut self.code, sum::EXITS, 1);
        if has_times {
            more(&mut self.code, sum::HANDLING, 7);
            self.load(1, vcpu::HALTED);
            more(&mut self.code, sum::HALTED, 1);
            self.load(1, vcpu::DISPLACED);
            more(&mut self.code, sum::DISPLACED, 1);
        }
        let added = self.code.op(JUMP, 0, 0, 0, 0);
        self.code.land(vec![none]);
        self.fresh_sum(has_times);
        self.code.address(1, MAP, self.maps.sums);
        self.key();
        self.put();
        let made = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        self.code.op(LOAD_U32, 1, 9, 8 * vcpu::KEY as i16 + key::REASON, 0);
        self.lose();
        self.code.land(vec![added, made]);
    }

    fn fresh_sum(&mut self, has_times: bool) {
        let at = |word: usize| FRESH_AT + 8 * word as i16;
        self.code.op(STORE_NUMBER_U64, 10, 0, at(sum::EXITS), 1);
        if !has_times {
            for word in [sum::HANDLING, sum::HALTED, sum::DISPLACED] {
                self.code.op(STORE_NUMBER_U64, 10, 0, at(word), 0);
            }
            return;
        }
        self.code.op(STORE_U64, 10, 7, at(sum::HANDLING), 0);
        self.load(1, vcpu::HALTED);
        self.code.op(STORE_U64, 10, 1, at(sum::HALTED), 0);
        self.load(1, vcpu::DISPLACED);
        self.code.op(STORE_U64, 10, 1, at(sum::DISPLACED), 0);
    }

    /// r2 = the key of the exit that is under way.
    fn key(&mut self) {
        self.code.copy(2, 9);
        self.code.op(ADD_NUMBER, 2, 0, 0, 8 * vcpu::KEY as i32);
    }

    fn exit(&mut self, at: ExitAt) {
        let no_room = self.row_made();
        // One that is under way still: its entry was missed, so nobody knows how long it took.
        self.load(1, vcpu::OPEN);
        let is_first = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.count(vcpu::MISSED);
        self.add(false);
        self.code.land(vec![is_first]);
        self.now();
        self.store(vcpu::SINCE, 7);
        self.store_number(vcpu::OPEN, 1);
        for word in [vcpu::HALTED, vcpu::DISPLACED, vcpu::DISPLACED_SINCE] {
            self.store_number(word, 0);
        }
        self.count(vcpu::EXITS);
        self.identify(at);
        let done = self.code.op(JUMP, 0, 0, 0, 0);
        self.done.push(done);
        self.code.land(vec![no_room]);
        self.reason(at);
        self.code.copy(1, 2);
        self.lose();
    }

    fn entry(&mut self) {
        let no_room = self.row_made();
        self.done.push(no_room);
        self.store_number(vcpu::AHEAD_KIND, 0);
        self.count(vcpu::ENTRIES);
        self.code.copy(8, 7);
        self.now();
        self.load(1, vcpu::OPEN);
        let is_open = self.code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0);
        // Without an exit: the first entry of all ends one that began before it was armed.
        self.load(1, vcpu::EXITS);
        let edge = self.code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0);
        self.load(1, vcpu::ENTRIES);
        let again = self.code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 1);
        self.done.extend([edge, again]);
        self.store_number(vcpu::EDGES, 1);
        self.code.op(SUBTRACT, 7, 8, 0, 0);
        self.store(vcpu::EDGE_NS, 7);
        let done = self.code.op(JUMP, 0, 0, 0, 0);
        self.done.push(done);
        self.code.land(vec![is_open]);
        self.rest();
        self.add(true);
        self.store_number(vcpu::OPEN, 0);
    }

    /// r7 = of the time from the exit until r7, what was neither halted nor displaced.
    fn rest(&mut self) {
        for word in [vcpu::SINCE, vcpu::HALTED, vcpu::DISPLACED] {
            self.load(1, word);
            self.code.op(SUBTRACT, 7, 1, 0, 0);
        }
    }

    /// What the kernel says of a halt; no more than is left of the exit, so that no time counts twice.
    fn wakeup(&mut self, ns: Place) {
        self.row();
        self.load(1, vcpu::OPEN);
        let closed = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.done.push(closed);
        self.now();
        self.rest();
        self.field(2, ns);
        let fits = self.code.op(JUMP_IF_AT_MOST, 2, 7, 0, 0);
        self.code.copy(2, 7);
        self.code.land(vec![fits]);
        self.load(1, vcpu::HALTED);
        self.code.op(ADD, 1, 2, 0, 0);
        self.store(vcpu::HALTED, 1);
        // The thread runs: if it was displaced, its return was missed, and no later one may count what is halted here.
        self.store_number(vcpu::DISPLACED_SINCE, 0);
    }

    /// A thread that could run loses its processor; one gets it.
    fn switch(&mut self, next: Place, state: Place) {
        self.armed();
        let other = self.its_own();
        self.look_up();
        let none = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        self.code.copy(9, 0);
        self.field(1, state);
        self.code.op(AND_NUMBER, 1, 0, 0, STATES);
        let sleeps = self.code.op(JUMP_UNLESS_NUMBER, 1, 0, 0, 0);
        self.load(1, vcpu::OPEN);
        let closed = self.code.op(JUMP_IF_NUMBER, 1, 0, 0, 0);
        self.now();
        self.store(vcpu::DISPLACED_SINCE, 7);
        self.code.land(vec![other, none, sleeps, closed]);
        self.field(1, next);
        self.code.op(STORE_U32, 10, 1, THREAD_AT, 0);
        self.look_up();
        let none = self.code.op(JUMP_IF_NUMBER, 0, 0, 0, 0);
        self.code.copy(9, 0);
        self.load(8, vcpu::DISPLACED_SINCE);
        let never = self.code.op(JUMP_IF_NUMBER, 8, 0, 0, 0);
        self.done.extend([none, never]);
        self.now();
        self.code.op(SUBTRACT, 7, 8, 0, 0);
        self.load(1, vcpu::DISPLACED);
        self.code.op(ADD, 1, 7, 0, 0);
        self.store(vcpu::DISPLACED, 1);
        self.store_number(vcpu::DISPLACED_SINCE, 0);
    }
}

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;
