//! What is allowed: each block of the device is a register, and each request happens at one moment between its
//! submission and its answer.
//!
//! The judge sees when the host applies a request to the storage, which is that moment; so a history is linearizable
//! if each moment lies within its request, each answer is that of a moment, and no request has two (but for a
//! host that died, which may have done what its successor does again).

use std::collections::HashMap;

use remote::client::Request;
use remote::iohost::Work;
use remote::wire::{Op, Status};

use super::BLOCK;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Its client died: it may be executed until the device is somebody's again.
    Orphan,
    Over,
}

#[derive(Clone, Debug)]
struct Asked {
    client: usize,
    disk: usize,
    op: Op,
    offset: u64,
    len: u32,
    phase: Phase,
    /// Of its attachment; 0 before that was bound.
    generation: u64,
    /// A later generation was told to somebody.
    is_fenced: bool,
    /// Another one asked for the same at the same time.
    has_twin: bool,
    /// Which lives of the host have executed it.
    applied: Vec<u64>,
    /// What was read, at each moment.
    read: Vec<Vec<u8>>,
    /// Of writes: a crash of the machine took it.
    is_lost: bool,
    /// When it ended well, as a number of its device's endings.
    ended: Option<u64>,
    /// Of flushes: all that had ended before.
    covers: u64,
}

#[derive(Default)]
pub(crate) struct Judge {
    asked: HashMap<u64, Asked>,
    endings: u64,
    /// Clients send again what a machine has lost, and flush by themselves.
    keeps: bool,
    pub(crate) resent: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) executed: u64,
}

impl Judge {
    pub(crate) fn new(keeps: bool) -> Judge {
        Judge { keeps, ..Judge::default() }
    }

    pub(crate) fn submitted(
        &mut self,
        client: usize,
        disk: usize,
        generation: u64,
        request: Request,
    ) {
        let Request { op, offset, len, tag: id } = request;
        let asked = Asked {
            client,
            disk,
            op,
            offset,
            len,
            phase: Phase::Open,
            generation,
            is_fenced: false,
            has_twin: false,
            applied: Vec::new(),
            read: Vec::new(),
            is_lost: false,
            ended: None,
            covers: self.endings,
        };
        assert!(self.asked.insert(id, asked).is_none());
    }

    /// A host applies a request to the storage, in that one's `life`: another one with each boot, and each host
    /// that has it. A write's blocks say which one it is; of others
    /// it is one that asks for the same and was not executed yet in this life.
    pub(crate) fn applied(&mut self, (disk, life): (usize, u64), work: &Work, data: &[u8]) {
        let (op, offset, len) = (work.op, work.offset, work.len);
        self.executed += 1;
        let stamp = data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if let (true, Some(id)) = (op.has_data(), stamp) {
            self.may_be_sent_again(id, life);
            let asked = self.asked.get_mut(&id).expect("a write that nobody submitted");
            assert_eq!((asked.op, asked.offset, asked.len), (op, offset, len), "write {id}");
            assert_eq!(asked.disk, disk, "write {id}");
            assert_eq!(data, contents(id, len), "write {id}: other bytes");
            let is_again = self.keeps && asked.ended.is_some();
            assert!(
                is_again || asked.phase != Phase::Over,
                "write {id} was executed after its answer"
            );
            self.resent += u64::from(is_again);
            assert!(!asked.is_fenced, "write {id} was executed when another one had the device");
            assert!(!asked.applied.contains(&life), "write {id} was executed twice in one life");
            asked.applied.push(life);
            // What a crash took before its answer has been done again.
            asked.is_lost = false;
            return;
        }
        // Those of guests are told apart by their place; one of the client's own is at 0.
        if self.keeps && op == Op::Flush && offset == 0 {
            return;
        }
        let is_same = |one: &&Asked| {
            one.disk == disk && (one.op, one.offset, one.len) == (op, offset, len) && !one.is_fenced
        };
        let mut all = self.asked.values().filter(is_same);
        if self.keeps
            && matches!(op, Op::Discard | Op::WriteZeroes { .. })
            && all.all(|one| one.phase == Phase::Over)
        {
            let mut all = self.asked.values().filter(is_same);
            assert!(all.any(|one| one.ended.is_some()), "{op:?} at {offset}: nobody asked for it");
            return;
        }
        let mut same: Vec<&mut Asked> = self
            .asked
            .values_mut()
            .filter(|asked| asked.disk == disk)
            .filter(|asked| (asked.op, asked.offset, asked.len) == (op, offset, len))
            .filter(|asked| asked.phase != Phase::Over && !asked.is_fenced)
            .collect();
        assert!(!same.is_empty(), "{op:?} at {offset} was executed, and nobody waits for it");
        // Which one of several that ask for the same it was cannot be seen: any may have been.
        let is_one = same.len() == 1;
        for asked in &mut same {
            asked.has_twin |= !is_one;
            // What was read goes with the memory for it, and is read again if nobody has heard of it.
            let is_first = !asked.applied.contains(&life) || op == Op::Read;
            assert!(
                asked.has_twin || is_first,
                "{op:?} at {offset} was executed twice in one life"
            );
            asked.applied.push(life);
            if op == Op::Read {
                asked.read.push(data.to_vec());
            }
        }
    }

    /// What was answered is executed again only before anything that was asked for later.
    fn may_be_sent_again(&self, id: u64, life: u64) {
        let Some((one, ended)) = self.asked.get(&id).and_then(|one| Some((one, one.ended?))) else {
            return;
        };
        let newer = self.asked.iter().find(|(_, other)| {
            let overlaps = other.disk == one.disk
                && other.offset < one.offset + u64::from(one.len)
                && one.offset < other.offset + u64::from(other.len);
            let is_write = matches!(other.op, Op::Write { .. } | Op::WriteZeroes { .. });
            let is_later = other.covers >= ended;
            overlaps && is_write && is_later && other.applied.contains(&life)
        });
        assert!(newer.is_none(), "write {id} came after {newer:?}, which is newer");
    }

    pub(crate) fn answered(&mut self, id: u64, status: Status, data: &[u8]) {
        self.answered += 1;
        self.endings += 1;
        let endings = self.endings;
        let asked = self.asked.get_mut(&id).expect("an answer to what nobody asked");
        assert_ne!(asked.phase, Phase::Over, "{id} was answered twice");
        asked.phase = Phase::Over;
        if status != Status::Ok {
            assert_eq!(status, Status::IoError, "{id}");
            self.failed += 1;
            return;
        }
        asked.ended = Some(endings);
        match asked.op {
            Op::Read => {
                assert_eq!(data.len(), asked.len as usize);
                assert!(asked.read.iter().any(|read| read == data), "{id} read what was not there");
            }
            _ => assert!(!asked.applied.is_empty(), "{id} ended well, and nothing was executed"),
        }
        if asked.op == Op::Flush {
            let (client, disk, covers) = (asked.client, asked.disk, asked.covers);
            let lost = self.asked.iter().find(|(_, one)| {
                let is_covered = one.ended.is_some_and(|ended| ended <= covers);
                let is_same = one.client == client && one.disk == disk;
                is_same && is_covered && one.is_lost && one.phase == Phase::Over
            });
            assert!(lost.is_none(), "flush {id} ended well, and {lost:?} is lost");
        }
    }

    /// A crash took what this write wrote, which nothing had made stable.
    pub(crate) fn lost(&mut self, id: u64) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.is_lost = true;
        }
    }

    pub(crate) fn client_died(&mut self, client: usize) {
        for asked in self.asked.values_mut().filter(|one| one.client == client) {
            if asked.phase == Phase::Open {
                asked.phase = Phase::Orphan;
            }
        }
    }

    /// `client` was told that it has the device in this generation: nothing of an older one may be executed.
    pub(crate) fn bound(&mut self, client: usize, disk: usize, generation: u64) {
        let all = self.asked.values_mut().filter(|one| one.disk == disk);
        let others = |one: &&mut Asked| one.client != client && one.generation < generation;
        for asked in all.filter(others).filter(|one| one.phase == Phase::Over) {
            asked.is_fenced = true;
        }
        let all = self.asked.values_mut().filter(|one| one.disk == disk);
        for asked in all.filter(|one| one.phase != Phase::Over) {
            if asked.phase == Phase::Open && asked.client == client {
                asked.generation = generation;
            } else if asked.generation < generation
                && (asked.generation > 0 || asked.phase == Phase::Orphan)
            {
                asked.is_fenced = true;
            }
        }
    }
}

/// What a write with this number writes.
pub(crate) fn contents(id: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for (at, block) in bytes.chunks_mut(BLOCK).enumerate() {
        for (word, place) in block.chunks_mut(8).enumerate() {
            let value = if word == 0 { id } else { id ^ (at as u64) << 32 ^ word as u64 };
            place.copy_from_slice(&value.to_le_bytes()[..place.len()]);
        }
    }
    bytes
}
