//! A ring: requests in the order in which they were put, and whether its guest is to kick.
//!
//! Not who serves it, nor when. Called by `world` (the guest's side) and by the three kinds of core.

use std::collections::VecDeque;

use crate::costs::Way;

/// Entries of a ring; an arrival that finds it full is turned away and counted.
const ENTRIES: usize = 1024;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Counts the requests of its ring, from 0.
    pub(crate) serial: u64,
    pub(crate) bytes: u64,
    /// When the guest put it.
    pub(crate) put: u64,
}

/// What became of a request that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Full,
    Quiet,
    /// And the guest has to kick.
    Kick,
}

#[derive(Debug, Default)]
pub(crate) struct Ring {
    waiting: VecDeque<Request>,
    /// Taken, and not yet shown.
    taken: Vec<Request>,
    /// Kicks are asked for. One is given for each time of asking, as with the event index.
    armed: bool,
    offered: u64,
}

/// Requests that became visible to the guest together.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) queue: u16,
    pub(crate) at: u64,
    pub(crate) requests: Vec<Request>,
}

/// All rings of a host, and what was shown in the step under way.
#[derive(Debug)]
pub(crate) struct Rings {
    /// How its requests come, and what they cost.
    pub(crate) way: Way,
    rings: Vec<Ring>,
    pub(crate) shown: Vec<Shown>,
    /// Which counter of `waiting` a ring belongs to.
    homes: Vec<usize>,
    waiting: Vec<usize>,
}

impl Rings {
    /// A ring for each of `homes`, the core that it is placed on.
    pub(crate) fn new(homes: Vec<usize>, way: Way) -> Rings {
        let cores = homes.iter().max().map_or(0, |most| most + 1);
        let rings = homes.iter().map(|_| Ring::default()).collect();
        Rings { way, rings, shown: Vec::new(), homes, waiting: vec![0; cores] }
    }

    /// The guest of `queue` offers a request.
    pub(crate) fn put(&mut self, queue: u16, bytes: u64, now: u64) -> Put {
        let ring = &mut self.rings[usize::from(queue)];
        if ring.waiting.len() + ring.taken.len() >= ENTRIES {
            return Put::Full;
        }
        ring.waiting.push_back(Request { serial: ring.offered, bytes, put: now });
        ring.offered += 1;
        self.waiting[self.homes[usize::from(queue)]] += 1;
        if std::mem::take(&mut ring.armed) { Put::Kick } else { Put::Quiet }
    }

    /// The next request, out of the ring.
    pub(crate) fn take(&mut self, queue: u16) -> Option<Request> {
        let ring = &mut self.rings[usize::from(queue)];
        let request = ring.waiting.pop_front()?;
        ring.taken.push(request);
        self.waiting[self.homes[usize::from(queue)]] -= 1;
        Some(request)
    }

    /// What was taken is answered, and its guest sees it at `at`.
    pub(crate) fn show(&mut self, queue: u16, at: u64) {
        let taken = &mut self.rings[usize::from(queue)].taken;
        if !taken.is_empty() {
            let requests = std::mem::take(taken);
            self.shown.push(Shown { queue, at, requests });
        }
    }

    /// Bytes of the request that is next; none when the ring is empty.
    pub(crate) fn first_bytes(&self, queue: u16) -> Option<u64> {
        self.rings[usize::from(queue)].waiting.front().map(|request| request.bytes)
    }

    pub(crate) fn is_empty(&self, queue: u16) -> bool {
        self.rings[usize::from(queue)].waiting.is_empty()
    }

    /// Requests that its guest has put so far.
    pub(crate) fn offered(&self, queue: u16) -> u64 {
        self.rings[usize::from(queue)].offered
    }

    /// Requests that wait in the rings of a core.
    pub(crate) fn waiting_at(&self, core: usize) -> usize {
        self.waiting.get(core).copied().unwrap_or(0)
    }

    /// Asks for a kick, or no longer.
    pub(crate) fn arm(&mut self, queue: u16, armed: bool) {
        self.rings[usize::from(queue)].armed = armed;
    }
}
