//! Long histories from a seed: two IOhosts with one disk between them, links that go down and up, processes that die, and
//! guests that are gone; and a ledger that knows what each block may hold.

use random::{Random, often};

use super::bed::*;
use super::wire::FOUL;
use crate::tests::bed::*;
use crate::{Command, Event};

const BLOCKS: usize = 12;

/// What is known of one block.
#[derive(Clone, Debug, Default)]
struct Block {
    /// Its bytes are one of these: more than one after a guest was gone with a write under way.
    may_hold: Vec<u8>,
    /// The byte of a write that has not ended.
    written: Option<u8>,
    is_read: bool,
}

struct History {
    world: World,
    guest: Guest,
    device: u32,
    blocks: Vec<Block>,
    random: Random,
    next: u8,
    is_cut: [bool; 2],
    is_dead: [bool; 2],
    ended: u32,
    losses: u32,
}

impl History {
    fn new(seed: u64) -> History {
        let mut world = World::new(2, FOUL, seed, None);
        let guest = Guest::new(ring(128));
        world.attach(&guest, 0);
        let blocks = vec![Block { may_hold: vec![0], ..Block::default() }; BLOCKS];
        let random = Random::new(seed, 31);
        let (is_cut, is_dead) = ([false; 2], [false; 2]);
        let (device, next, ended, losses) = (0, 0, 0, 0);
        History { world, guest, device, blocks, random, next, is_cut, is_dead, ended, losses }
    }

    fn ask(&mut self) {
        let number = self.random.below(BLOCKS as u64) as usize;
        let block = &mut self.blocks[number];
        if block.written.is_some() || block.is_read {
            return;
        }
        if self.random.one_in(2) {
            self.next = self.next % 250 + 1;
            self.guest.fill(number, self.next);
            block.written = Some(self.next);
            self.guest.add(number, WRITE, sector(number), 1);
        } else {
            block.is_read = true;
            self.guest.add(number, READ, sector(number), 1);
        }
        if self.guest.driver.publish() {
            self.guest.kick();
        }
    }

    fn take(&mut self) {
        for (number, status) in self.guest.take() {
            assert_eq!(status, 0, "nothing fails here");
            self.ended += 1;
            let block = &mut self.blocks[number];
            if let Some(byte) = block.written.take() {
                block.may_hold = vec![byte];
                continue;
            }
            block.is_read = false;
            let found = block.may_hold.iter().find(|byte| self.guest.holds(number, **byte));
            let found = *found.unwrap_or_else(|| panic!("block {number} is not of {block:?}"));
            block.may_hold = vec![found];
        }
    }

    fn disturb(&mut self) {
        let host = self.random.below(2) as usize;
        match self.random.below(8) {
            0..3 => {
                self.is_cut[host] = !self.is_cut[host];
                self.world.wire.cut(at(host as u16 + 1), self.is_cut[host]);
            }
            3..6 if self.is_dead[host] => {
                self.world.start(host);
                self.is_dead[host] = false;
            }
            3..6 => {
                self.world.hosts[host].die(&mut self.world.storage);
                self.is_dead[host] = true;
            }
            6 => self.lose_guest(),
            _ => {}
        }
    }

    /// The guest is gone, with all it had under way; another one has its disk.
    fn lose_guest(&mut self) {
        self.losses += 1;
        self.guest.map.health().lose(guest_memory::Loss::Memory);
        self.world.core.send(Command::Detach(key(self.device)));
        let is_back = |world: &mut World| {
            let is_it = |event: &Event| matches!(event, Event::Detached(_));
            let Some(at) = world.events.iter().position(is_it) else { return false };
            let Event::Detached(served) = world.events.remove(at) else { return false };
            drop(served.into_spec());
            true
        };
        assert!(self.world.until(10 * MS, is_back), "it comes back at once");
        self.world.events.clear();
        for block in &mut self.blocks {
            block.may_hold.extend(block.written.take());
            block.is_read = false;
        }
        self.device += 1;
        self.guest = Guest::new(ring(128));
        self.world.attach(&self.guest, self.device);
    }

    fn run(&mut self) {
        for _ in 0..400 {
            for _ in 0..self.random.below(6) {
                self.ask();
            }
            if self.random.one_in(12) {
                self.disturb();
            }
            let ns = match self.random.below(4) {
                0 => self.random.below(300 * MS),
                _ => self.random.below(MS),
            };
            self.world.run(ns);
            self.take();
        }
        for host in 0..2 {
            self.world.wire.cut(at(host as u16 + 1), false);
            if self.is_dead[host] {
                self.world.start(host);
            }
        }
        for _ in 0..200 {
            self.world.run(100 * MS);
            self.take();
        }
        let is_quiet = self.blocks.iter().all(|one| one.written.is_none() && !one.is_read);
        assert!(is_quiet, "{:?} {:?}", self.blocks, self.world.told.last());
        for (number, block) in self.blocks.iter().enumerate() {
            let byte = self.world.storage.bytes[number * BLOCK];
            assert!(block.may_hold.contains(&byte), "block {number}: {byte}, {block:?}");
        }
    }
}

#[test]
fn every_block_holds_what_was_written_last_whatever_happens() {
    let (mut ended, mut losses) = (0, 0);
    let seeds = often(8, 25);
    for seed in 0..seeds {
        let mut history = History::new(1000 + u64::from(seed));
        history.run();
        ended += history.ended;
        losses += history.losses;
    }
    assert!(ended > 80 * seeds && losses > seeds / 2, "{ended} requests, {losses} guests");
}
