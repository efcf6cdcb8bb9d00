//! Requests of many queues through one sidecore on one thread: what a request costs when its queue is
//! one of thousands, in instructions, which caches do not change.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use backend::{Source, Stages};
use guest_memory::GuestMap;
use schedule::Nanos;
use sidecore::{Command, Handle, QueueKey, Sidecore, SidecoreSpec};
use testing::load::Random;
use testing::slots::Slots;
use virtqueue::Queue;
use virtqueue::driver::{Arena, Driver, first_base};

use crate::disk::served;
use crate::{DISK_BYTES, TURN_NS, counted_pass};
use testing::lane::{BLOCK_BYTES, DEPTH, LANE_BYTES, Lane, RING};

const BLOCKS: u64 = DISK_BYTES / BLOCK_BYTES as u64;
const QUEUES_PER_DEVICE: u16 = 64;
/// So many commands a pass takes.
const COMMANDS_PER_PASS: u16 = 4;
/// Turns before anything is counted: every place of every ring is used twice.
const WARM_TURNS: u64 = 8;

/// So many queues, with 4 reads in each turn of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    queues: u16,
}

pub(crate) const CASES: [Case; 2] = [
    Case { name: "null.randread.split.of_1", queues: 1 },
    Case { name: "null.randread.split.of_4096", queues: 4096 },
];

/// A sidecore, and the drivers of its queues.
pub(crate) struct Bed {
    sidecore: Sidecore,
    handle: Handle,
    lanes: Vec<(Driver, Lane)>,
    random: Random,
    now: Nanos,
}

impl Bed {
    pub(crate) fn new(case: Case) -> Result<Bed> {
        let spec = SidecoreSpec {
            index: 0,
            cpu: None,
            workers: None,
            watches: true,
            queues_max: case.queues.max(16),
        };
        let (sidecore, handle) = Sidecore::new(spec)?;
        let (lanes, random) = (Vec::new(), Random(0x5eed));
        let mut bed = Bed { sidecore, handle, lanes, random, now: Nanos(1) };
        let bytes = u64::from(case.queues) * LANE_BYTES;
        let map = Arc::new(GuestMap::anonymous(bytes.next_multiple_of(2 << 20))?);
        let area = map.area_at_user(0, bytes).context("guest memory")?;
        let mut arena = Arena::new(area, 0);
        for number in 0..case.queues {
            bed.attach(number, &map, &mut arena)?;
            // Not after each, since a pass looks at all that are there.
            if number % COMMANDS_PER_PASS == COMMANDS_PER_PASS - 1 {
                bed.pass_uncounted();
            }
        }
        bed.pass_uncounted();
        for _ in 0..WARM_TURNS {
            bed.turn(u64::MAX, |sidecore, now| {
                sidecore.pass(now, &now);
            })?;
        }
        Ok(bed)
    }

    fn attach(&mut self, number: u16, map: &Arc<GuestMap>, arena: &mut Arena) -> Result<()> {
        let (mut driver, places) = arena.driver(RING)?;
        let spec = RING.queue_spec(map, places, first_base(RING.format));
        let queue = Queue::new(spec.context("the ring is not in memory")?)?;
        let key = QueueKey {
            device: (number / QUEUES_PER_DEVICE).into(),
            queue: number % QUEUES_PER_DEVICE,
        };
        let source = Source::Null { size_bytes: DISK_BYTES };
        let served = served(&source, key, queue, Arc::clone(map), Stages::default())?;
        ensure!(self.handle.send(Command::Attach(served)).is_ok(), "the sidecore takes no queue");
        let lane = Lane::new(&mut driver, Slots::new(arena, DEPTH, BLOCK_BYTES)?)?;
        self.lanes.push((driver, lane));
        Ok(())
    }

    /// So many requests, to the next multiple of a queue's; every queue has work in every pass but
    /// those of the last turn, and nothing is in flight afterwards. Gives how many there were.
    pub(crate) fn run(&mut self, requests: u64) -> Result<u64> {
        let mut done = 0;
        while done < requests {
            done += self.turn(requests - done, counted_pass)?;
        }
        Ok(done)
    }

    /// Offers every queue's requests, or as many as `most`, and lets the sidecore make passes until
    /// they are done.
    fn turn(&mut self, most: u64, pass: fn(&mut Sidecore, Nanos)) -> Result<u64> {
        let mut offered = 0;
        for (driver, lane) in &mut self.lanes {
            if offered >= most {
                break;
            }
            lane.offer(driver, &mut self.random, BLOCKS)?;
            offered += u64::from(DEPTH);
        }
        let (mut done, mut passes) = (0, 0);
        while done < offered {
            self.now = Nanos(self.now.0 + TURN_NS);
            pass(&mut self.sidecore, self.now);
            for (driver, lane) in &mut self.lanes {
                done += lane.take(driver)?;
            }
            passes += 1;
            ensure!(passes < 1000, "the sidecore does nothing any more");
        }
        Ok(done)
    }

    fn pass_uncounted(&mut self) {
        self.now = Nanos(self.now.0 + TURN_NS);
        self.sidecore.pass(self.now, &self.now);
    }
}
