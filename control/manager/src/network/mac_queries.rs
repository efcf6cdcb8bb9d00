//! Operators who wait for the addresses of a switch.
//!
//! Every sidecore has learned something of its own, so all are asked and their answers put together. A table is
//! looked at in pieces (`sidecore::MacTable`), and of one bridge by one query at a time: whoever asks meanwhile is told of
//! the next, with all others who do. So those who may only look cost sidecores no more than a piece at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sidecore::{BridgeId, Command, MacTable};

use crate::api::Reply;
use crate::defects::late;
use crate::sidecores::Cores;

/// How long sidecores are waited for; one that is busy answers within a millisecond.
const MACS_TIME_MAX: Duration = Duration::from_secs(2);

/// Where each address was heard last: port and age.
pub(crate) type Heard = BTreeMap<([u8; 6], u16), (u16, u64)>;

/// What came of a query.
pub(crate) struct Found {
    pub(crate) bridge: BridgeId,
    pub(crate) heard: Heard,
    pub(crate) replies: Vec<Reply>,
}

struct MacQuery {
    token: u64,
    /// Addresses of each sidecore at most.
    room: usize,
    /// Sidecores that have not answered.
    missing: usize,
    answer_by: Instant,
    found: Found,
    /// Those who have asked since it began.
    next: Vec<Reply>,
}

/// Those who wait.
#[derive(Default)]
pub(crate) struct MacQueries {
    waiting: Vec<MacQuery>,
    next: u64,
}

impl MacQueries {
    /// Asks all sidecores for at most so many addresses of a bridge each, now or when they have answered what they are
    /// asked of it.
    pub(crate) fn ask(
        &mut self,
        bridge: BridgeId,
        room: usize,
        reply: Reply,
        around: (&mut Cores, Instant),
    ) {
        match self.waiting.iter_mut().find(|query| query.found.bridge == bridge) {
            Some(query) => {
                query.room = room;
                query.next.push(reply);
            }
            None => self.begin(bridge, room, vec![reply], around),
        }
    }

    fn begin(
        &mut self,
        bridge: BridgeId,
        room: usize,
        replies: Vec<Reply>,
        (cores, now): (&mut Cores, Instant),
    ) {
        let token = self.next;
        self.next += 1;
        let missing = cores.count();
        for core in 0..missing {
            cores.send(core, Command::ShowMacs(MacTable::new(bridge, token, room)));
        }
        let found = Found { bridge, heard: BTreeMap::new(), replies };
        let (answer_by, next) = (now + MACS_TIME_MAX, Vec::new());
        self.waiting.push(MacQuery { token, room, missing, answer_by, found, next });
    }

    /// A sidecore's part of an answer, or a piece of that; all of it, if that was the last.
    pub(crate) fn hear(
        &mut self,
        core: usize,
        table: Box<MacTable>,
        around: (&mut Cores, Instant),
    ) -> Option<Found> {
        let at = self.waiting.iter().position(|query| query.token == table.token);
        let Some((at, query)) = at.and_then(|at| Some((at, self.waiting.get_mut(at)?))) else {
            late("operator who waits");
            return None;
        };
        if !table.is_whole() {
            around.0.send(core, Command::ShowMacs(table));
            return None;
        }
        for entry in table.entries() {
            let last = query.found.heard.entry((entry.address, entry.vlan));
            let last = last.or_insert((entry.port.0, entry.age_ns));
            if entry.age_ns < last.1 {
                *last = (entry.port.0, entry.age_ns);
            }
        }
        query.missing = query.missing.saturating_sub(1);
        let is_whole = query.missing == 0;
        is_whole.then(|| self.end(at, around))
    }

    /// The next one that a sidecore does not answer in time, with what is known.
    pub(crate) fn take_overdue(&mut self, around: (&mut Cores, Instant)) -> Option<Found> {
        let at = self.waiting.iter().position(|query| query.answer_by <= around.1)?;
        Some(self.end(at, around))
    }

    /// Ends a query, and begins that of those who have asked since.
    fn end(&mut self, at: usize, around: (&mut Cores, Instant)) -> Found {
        let MacQuery { room, found, next, .. } = self.waiting.remove(at);
        if !next.is_empty() {
            self.begin(found.bridge, room, next, around);
        }
        found
    }

    /// How many there were.
    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.next
    }

    /// When the next is answered in any case.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.waiting.iter().map(|query| query.answer_by).min()
    }

    /// They are told that this process ends.
    pub(crate) fn answer_nobody(&mut self) {
        self.waiting.clear();
    }
}
