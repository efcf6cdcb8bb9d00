//! Operators who wait for the addresses of a switch.
//!
//! Every sidecore has learned something of its own, so all are asked and their answers put together.

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
    pub(crate) reply: Reply,
}

struct MacQuery {
    token: u64,
    /// Sidecores that have not answered.
    missing: usize,
    answer_by: Instant,
    found: Found,
}

/// Those who wait.
#[derive(Default)]
pub(crate) struct MacQueries {
    waiting: Vec<MacQuery>,
    next: u64,
}

impl MacQueries {
    /// Asks all sidecores for at most so many addresses of a bridge each.
    pub(crate) fn ask(
        &mut self,
        bridge: BridgeId,
        room: usize,
        reply: Reply,
        (cores, now): (&mut Cores, Instant),
    ) {
        let token = self.next;
        self.next += 1;
        let missing = cores.count();
        for core in 0..missing {
            cores.send(core, Command::ShowMacs(MacTable::new(bridge, token, room)));
        }
        let found = Found { bridge, heard: BTreeMap::new(), reply };
        self.waiting.push(MacQuery { token, missing, answer_by: now + MACS_TIME_MAX, found });
    }

    /// A sidecore's part of an answer; all of it, if that was the last.
    pub(crate) fn hear(&mut self, table: &MacTable) -> Option<Found> {
        let at = self.waiting.iter().position(|query| query.token == table.token);
        let Some((at, query)) = at.and_then(|at| Some((at, self.waiting.get_mut(at)?))) else {
            late("operator who waits");
            return None;
        };
        for entry in table.entries() {
            let last = query.found.heard.entry((entry.address, entry.vlan));
            let last = last.or_insert((entry.port.0, entry.age_ns));
            if entry.age_ns < last.1 {
                *last = (entry.port.0, entry.age_ns);
            }
        }
        query.missing = query.missing.saturating_sub(1);
        let is_whole = query.missing == 0;
        is_whole.then(|| self.waiting.remove(at).found)
    }

    /// The next one that a sidecore does not answer in time, with what is known.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Option<Found> {
        let at = self.waiting.iter().position(|query| query.answer_by <= now)?;
        Some(self.waiting.remove(at).found)
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
