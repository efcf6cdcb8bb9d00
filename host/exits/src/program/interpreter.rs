//! The few instructions that the programs use, run on maps of their own: the kernel's part in tests.

use std::collections::BTreeMap;

use bpf::{Instruction, helper, op};

use crate::layout::*;
use crate::program::Maps;

pub(super) const MAPS: Maps = Maps { armed: 1, vcpus: 2, sums: 3, lost: 4 };
const STACK: usize = 512;
/// Instructions of one run, at most.
const STEPS_MAX: usize = 4096;

/// Memory that a program reaches; an address is the part's number in its upper half.
#[derive(Default)]
pub(super) struct Kernel {
    parts: Vec<Vec<u8>>,
    hashes: BTreeMap<i32, BTreeMap<Vec<u8>, u64>>,
    /// Entries that each may have.
    pub(super) room: BTreeMap<i32, usize>,
    pub(super) now: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    firsts: BTreeMap<i32, u64>,
}

impl Kernel {
    pub(super) fn new() -> Kernel {
        let mut kernel = Kernel::default();
        for (map, bytes) in [(MAPS.armed, 8), (MAPS.lost, 8 * LOST as usize)] {
            let part = kernel.part(vec![0; bytes]);
            kernel.firsts.insert(map, part);
        }
        kernel
    }

    fn part(&mut self, bytes: Vec<u8>) -> u64 {
        self.parts.push(bytes);
        (self.parts.len() as u64) << 32
    }

    fn bytes(&mut self, address: u64, len: usize) -> &mut [u8] {
        let part = ((address >> 32) as usize).checked_sub(1).expect("no null pointer");
        let at = (address & 0xffff_ffff) as usize;
        self.parts[part].get_mut(at..at + len).expect("inside its part")
    }

    pub(super) fn arm(&mut self, when: u64) {
        let armed = self.firsts[&MAPS.armed];
        self.bytes(armed, 8).copy_from_slice(&when.to_ne_bytes());
    }

    pub(super) fn lost(&mut self) -> Vec<u64> {
        let first = self.firsts[&MAPS.lost];
        words(self.bytes(first, 8 * LOST as usize))
    }

    pub(super) fn all(&mut self, map: i32) -> Vec<(Vec<u8>, Vec<u64>)> {
        let len = 8 * if map == MAPS.vcpus { vcpu::WORDS } else { sum::WORDS };
        let rows = self.hashes.get(&map).cloned().unwrap_or_default();
        rows.into_iter().map(|(key, at)| (key, words(self.bytes(at, len)))).collect()
    }

    fn call(&mut self, number: i32, r: &[u64; 11]) -> u64 {
        let key_len = |map| if map == MAPS.vcpus { 4 } else { key::BYTES as usize };
        match number {
            helper::NOW_NS => self.now,
            helper::THIS_THREAD => u64::from(self.process) << 32 | u64::from(self.thread),
            helper::LOOK_UP => {
                let key = self.bytes(r[2], key_len(r[1] as i32)).to_vec();
                let map = self.hashes.entry(r[1] as i32).or_default();
                map.get(&key).copied().unwrap_or(0)
            }
            helper::UPDATE => {
                let map = r[1] as i32;
                let key = self.bytes(r[2], key_len(map)).to_vec();
                let len = 8 * if map == MAPS.vcpus { vcpu::WORDS } else { sum::WORDS };
                let value = self.bytes(r[3], len).to_vec();
                assert_eq!(r[4], 1, "it makes, and changes none");
                let there = self.hashes.entry(map).or_default();
                if there.contains_key(&key) || there.len() >= self.room[&map] {
                    return -7i64 as u64;
                }
                let part = self.part(value);
                self.hashes.entry(map).or_default().insert(key, part);
                0
            }
            other => panic!("no function {other}"),
        }
    }

    /// Runs a program on a record.
    pub(super) fn run(&mut self, program: &[Instruction], record: &[u8]) {
        let kept = self.parts.len();
        let record = self.part(record.to_vec());
        let stack = self.part(vec![0xaa; STACK]);
        let mut r = [0u64; 11];
        (r[1], r[10]) = (record, stack + STACK as u64);
        let mut at = 0usize;
        for _ in 0..STEPS_MAX {
            let Instruction { code, registers, offset, immediate } = program[at];
            let (to, from) = ((registers & 15) as usize, (registers >> 4) as usize);
            let place = |r: u64| r.wrapping_add(offset as i64 as u64);
            at += 1;
            match code {
                op::EXIT => {
                    assert_eq!(r[0], 0);
                    // Rows that were made stay; the record and the stack are never looked at again.
                    self.parts[kept].clear();
                    self.parts[kept + 1].clear();
                    return;
                }
                op::CALL => {
                    r[0] = self.call(immediate, &r);
                    // Spent, as the verifier has it.
                    r[1..6].fill(0xdead << 48);
                }
                op::LOAD_ADDRESS => {
                    let map = program[at - 1].immediate;
                    let is_first = registers >> 4 == op::MAP_VALUE;
                    r[to] = if is_first { self.firsts[&map] } else { map as u64 };
                    at += 1;
                }
                op::LOAD_U32 => {
                    let bytes = self.bytes(place(r[from]), 4);
                    r[to] = u64::from(u32::from_ne_bytes(bytes.try_into().expect("four")));
                }
                op::LOAD_U64 => r[to] = words(self.bytes(place(r[from]), 8))[0],
                op::STORE_U32 => {
                    let value = (r[from] as u32).to_ne_bytes();
                    self.bytes(place(r[to]), 4).copy_from_slice(&value);
                }
                op::STORE_U64 => {
                    let value = r[from].to_ne_bytes();
                    self.bytes(place(r[to]), 8).copy_from_slice(&value);
                }
                op::STORE_NUMBER_U32 => {
                    self.bytes(place(r[to]), 4).copy_from_slice(&immediate.to_ne_bytes());
                }
                op::STORE_NUMBER_U64 => {
                    let value = i64::from(immediate).to_ne_bytes();
                    self.bytes(place(r[to]), 8).copy_from_slice(&value);
                }
                op::ATOMIC_U64 => {
                    assert_eq!(immediate, op::FETCH_ADD);
                    let address = place(r[to]);
                    let before = words(self.bytes(address, 8))[0];
                    let after = before.wrapping_add(r[from]).to_ne_bytes();
                    self.bytes(address, 8).copy_from_slice(&after);
                    r[from] = before;
                }
                _ if op::is_jump(code) => {
                    if jumps(code, r[to], r[from], immediate) {
                        at = at.wrapping_add_signed(offset.into());
                    }
                }
                _ => r[to] = reckoned(code, r[to], r[from], immediate),
            }
        }
        panic!("it does not end");
    }
}

fn jumps(code: u8, to: u64, from: u64, immediate: i32) -> bool {
    let number = i64::from(immediate) as u64;
    match code {
        op::JUMP => true,
        op::JUMP_IF_NUMBER => to == number,
        op::JUMP_UNLESS_NUMBER => to != number,
        op::JUMP_IF_ABOVE => to > number,
        op::JUMP_IF_LESS => (to as i64) < number as i64,
        op::JUMP_IF_AT_MOST => to <= from,
        other => panic!("no jump {other:#x}"),
    }
}

fn reckoned(code: u8, to: u64, from: u64, immediate: i32) -> u64 {
    let number = i64::from(immediate) as u64;
    match code {
        op::MOVE => from,
        op::SET => number,
        op::ADD => to.wrapping_add(from),
        op::ADD_NUMBER => to.wrapping_add(number),
        op::SUBTRACT => to.wrapping_sub(from),
        op::AND_NUMBER => to & number,
        op::SHIFT_LEFT => to << number,
        op::SHIFT_RIGHT => to >> number,
        other => panic!("no instruction {other:#x}"),
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight"))).collect()
}
