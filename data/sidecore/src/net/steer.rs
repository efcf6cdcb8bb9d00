//! To which receive queue a flow goes when vCPUs share cores: to its own while that one's vCPU runs,
//! otherwise to one whose vCPU runs.
//!
//! Rules without rings or threads, to which the time is told; the order of a flow is the caller's: it says where a flow must
//! stay, because what it has there was not taken yet. Not here: who runs (`runstate`), which queue is a
//! flow's own (`port`).

use std::cell::Cell;
use std::sync::Arc;

use runstate::{Activity, Row, Table, Turn};
use schedule::Nanos;
use virtqueue::Footprint;

use crate::net::port::{FLOWS, PAIRS_MAX};
use crate::net::slices::Slices;

/// When a frame goes to another queue than its flow's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirect {
    /// When that one's vCPU waits for a core, or was called and did not come. One that its guest has halted
    /// is woken by the call.
    Waiting,
    /// Whenever that one's vCPU has no core, as ES2 does.
    Always,
}

/// The vCPUs that the receive queues of a port call.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// Where it is seen what they do.
    pub table: Arc<Table>,
    /// That of each pair; one without counts as running.
    pub rows: [Option<Row>; PAIRS_MAX],
    /// When they are asked.
    pub redirect: Redirect,
}

impl Lanes {
    /// The rows, each once: two pairs may have one vCPU.
    fn each(&self) -> impl Iterator<Item = Row> {
        let is_first =
            |at: usize, row: &Row| !self.rows.iter().take(at).any(|one| one.as_ref() == Some(row));
        let rows = self.rows.iter().enumerate().filter_map(|(at, row)| Some((at, (*row)?)));
        rows.filter(move |(at, row)| is_first(*at, row)).map(|(_, row)| row)
    }
}

/// What one queue's vCPU does, as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) activity: Activity,
    /// Since when, in a time that is the same for all; of one that is about to lose its processor, the end of time.
    pub(crate) since: u64,
    /// How much was redirected to it so far.
    pub(crate) given: u32,
    /// It was called for something that it has not taken.
    pub(crate) is_owed: bool,
}

/// Why a queue was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is the flow's own, or what it has there keeps it, and its vCPU can take it.
    Usual,
    /// Its vCPU cannot take it now, and there is none that could, or the flow may not leave.
    Stayed,
    /// It is another one's, since the flow's own cannot take it now.
    Redirected,
}

impl Redirect {
    /// Whether a frame would have to wait there.
    fn avoids(self, lane: Lane) -> bool {
        match lane.activity {
            Activity::Runs | Activity::Unknown => false,
            Activity::Waits => true,
            Activity::Sleeps => self == Redirect::Always || lane.is_owed,
        }
    }

    /// The queue for the next frame of a flow. `own`: the flow's; `kept`: where it must stay; `sticky`: where
    /// others were redirected last; `lane`: what is known of a queue, `None` of one that is not there.
    pub(crate) fn choose(
        self,
        own: usize,
        kept: Option<usize>,
        sticky: usize,
        lane: impl Fn(usize) -> Option<Lane>,
    ) -> (usize, Why) {
        let avoids = |at: usize| lane(at).is_some_and(|lane| self.avoids(lane));
        if let Some(kept) = kept {
            return (kept, if avoids(kept) { Why::Stayed } else { Why::Usual });
        }
        if !avoids(own) {
            return (own, Why::Usual);
        }
        let runs = |at: &usize| lane(*at).is_some_and(|lane| lane.activity == Activity::Runs);
        if runs(&sticky) {
            return (sticky, Why::Redirected);
        }
        let given = |at: &usize| lane(*at).map_or(u32::MAX, |lane| lane.given);
        if let Some(found) = (0..PAIRS_MAX).filter(runs).min_by_key(given) {
            return (found, Why::Redirected);
        }
        // Whoever lost its core first is the likeliest to have its turn next.
        let waits = |at: &usize| lane(*at).is_some_and(|lane| lane.activity == Activity::Waits);
        let since = |at: &usize| lane(*at).map_or(u64::MAX, |lane| lane.since);
        let found = (0..PAIRS_MAX).filter(waits).min_by_key(since).unwrap_or(own);
        (found, Why::Stayed)
    }
}

/// Where the frames of a flow went last, and when all of them are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) pair: u8,
    pub(crate) footprint: Footprint,
}

/// Where the flows of a port are. Written in passes, behind a shared reference to the port.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) lanes: Option<Arc<Lanes>>,
    puts: Box<[Cell<Option<Put>>; FLOWS]>,
    /// The last frame that each queue got.
    last: [Cell<Option<Footprint>>; PAIRS_MAX],
    given: [Cell<u32>; PAIRS_MAX],
    sticky: Cell<u8>,
    pub(crate) slices: Slices,
}

/// What of it goes with a port to another sidecore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Puts([Option<Put>; FLOWS]);

impl Steering {
    pub(crate) fn new(lanes: Option<Arc<Lanes>>) -> Steering {
        Steering {
            lanes,
            puts: Box::new([const { Cell::new(None) }; FLOWS]),
            last: [const { Cell::new(None) }; PAIRS_MAX],
            given: [const { Cell::new(0) }; PAIRS_MAX],
            sticky: Cell::new(0),
            slices: Slices::new(),
        }
    }

    /// What the vCPU of `row` does, for a frame that it would take a moment from now: one that is about to lose its processor
    /// counts as the last of those that wait.
    #[inline]
    pub(crate) fn turn(&self, lanes: &Lanes, row: Row, now: Nanos) -> Turn {
        let turns = || lanes.each().map(|row| lanes.table.turn(row));
        let waits_on =
            |cpu| turns().any(|turn| turn.activity == Activity::Waits && turn.cpu == cpu);
        self.slices.look(turns(), now);
        let turn = lanes.table.turn(row);
        match self.slices.ends(turn, waits_on, now) {
            true => Turn { activity: Activity::Waits, since_ns: u64::MAX, ..turn },
            false => turn,
        }
    }

    /// Where this flow is, if it is anywhere.
    #[inline]
    pub(crate) fn put_of(&self, flow: usize) -> Option<Put> {
        self.puts.get(flow)?.get()
    }

    /// What a queue got last.
    #[inline]
    pub(crate) fn last_of(&self, pair: usize) -> Option<Footprint> {
        self.last.get(pair)?.get()
    }

    #[inline]
    pub(crate) fn given_to(&self, pair: usize) -> u32 {
        self.given.get(pair).map_or(0, Cell::get)
    }

    pub(crate) fn sticky(&self) -> usize {
        self.sticky.get().into()
    }

    /// A frame of this flow went to `pair`.
    #[inline]
    pub(crate) fn note(&self, flow: usize, pair: usize, footprint: Footprint, why: Why) {
        if let (Some(put), Some(last)) = (self.puts.get(flow), self.last.get(pair)) {
            put.set(Some(Put { pair: pair as u8, footprint }));
            last.set(Some(footprint));
        }
        if let (Why::Redirected, Some(given)) = (why, self.given.get(pair)) {
            given.set(given.get().wrapping_add(1));
            self.sticky.set(pair as u8);
        }
    }

    /// Another ring is there: nothing is in it.
    pub(crate) fn forget(&self, pair: usize) {
        if let Some(last) = self.last.get(pair) {
            last.set(None);
        }
        let is_there =
            |put: &&Cell<Option<Put>>| put.get().is_some_and(|put| usize::from(put.pair) == pair);
        self.puts.iter().filter(is_there).for_each(|put| put.set(None));
    }

    pub(crate) fn puts(&self) -> Puts {
        let mut puts = [None; FLOWS];
        puts.iter_mut().zip(self.puts.iter()).for_each(|(to, from)| *to = from.get());
        Puts(puts)
    }

    pub(crate) fn set_puts(&self, puts: &Puts) {
        self.puts.iter().zip(puts.0).for_each(|(to, from)| to.set(from));
    }
}

impl Puts {
    pub(crate) const NONE: Puts = Puts([None; FLOWS]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(activity: Activity, since: u64, given: u32) -> Option<Lane> {
        Some(Lane { activity, since, given, is_owed: false })
    }

    /// The choice for a flow whose own queue is 0, not kept, of these lanes.
    fn choice(rule: Redirect, sticky: usize, lanes: &[Option<Lane>]) -> (usize, Why) {
        rule.choose(0, None, sticky, |at| lanes.get(at).copied().flatten())
    }

    use Activity::{Runs, Sleeps, Unknown, Waits};

    #[test]
    fn its_own_while_that_one_can_take_it() {
        for own in [Runs, Unknown] {
            let lanes = [lane(own, 9, 0), lane(Runs, 1, 0)];
            assert_eq!(choice(Redirect::Always, 1, &lanes), (0, Why::Usual));
        }
        let lanes = [lane(Sleeps, 9, 0), lane(Runs, 1, 0)];
        assert_eq!(choice(Redirect::Waiting, 1, &lanes), (0, Why::Usual), "the call wakes it");
        assert_eq!(choice(Redirect::Always, 1, &lanes), (1, Why::Redirected));
        let mut owed = lanes;
        owed[0] = owed[0].map(|lane| Lane { is_owed: true, ..lane });
        let why = "it was called and did not come";
        assert_eq!(choice(Redirect::Waiting, 1, &owed), (1, Why::Redirected), "{why}");
    }

    #[test]
    fn the_least_loaded_that_runs_and_then_that_one_until_it_stops() {
        let mut lanes = [lane(Waits, 1, 0), lane(Runs, 1, 5), lane(Runs, 1, 3), lane(Waits, 1, 0)];
        assert_eq!(choice(Redirect::Waiting, 3, &lanes), (2, Why::Redirected));
        assert_eq!(choice(Redirect::Waiting, 1, &lanes), (1, Why::Redirected), "sticky");
        lanes[1] = lane(Sleeps, 1, 5);
        assert_eq!(choice(Redirect::Waiting, 1, &lanes), (2, Why::Redirected));
        lanes[2] = None;
        assert_eq!(choice(Redirect::Waiting, 2, &lanes).1, Why::Stayed);
    }

    #[test]
    fn if_none_runs_the_one_that_is_off_line_longest() {
        let lanes = [lane(Waits, 30, 0), lane(Waits, 10, 9), lane(Waits, 20, 0)];
        assert_eq!(choice(Redirect::Waiting, 0, &lanes), (1, Why::Stayed));
        let alone = [lane(Waits, 30, 0)];
        assert_eq!(choice(Redirect::Waiting, 0, &alone), (0, Why::Stayed));
    }

    #[test]
    fn a_flow_that_must_stay_stays() {
        let lanes = [lane(Runs, 1, 0), lane(Waits, 2, 0), lane(Runs, 3, 0)];
        let found = Redirect::Always.choose(0, Some(1), 2, |at| lanes.get(at).copied().flatten());
        assert_eq!(found, (1, Why::Stayed));
        let found = Redirect::Always.choose(0, Some(2), 2, |at| lanes.get(at).copied().flatten());
        assert_eq!(found, (2, Why::Usual));
    }
}
