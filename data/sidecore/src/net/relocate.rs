//! A NIC goes from one sidecore to another: its port and all its queues, while frames flow.
//!
//! ```text
//! control   Relocate(part)   -> every sidecore: holds frames for the port, and floods of its switch
//! each      nothing of what it sent before is on a road any more: ready
//! old home  all are ready: committed; hands the queues over
//! new home  is the port's home: done; says Moved
//! the others  see that, and hold no longer
//! ```
//!
//! One word that all have decides: the old home makes it `Committed`, or anybody calls the move off, by
//! one compare-exchange. So every frame is before the move for all sidecores or after it (0007 has what
//! follows from that). Not here: which NIC goes where (`manager`), and queues of disks (`moves`).

use std::sync::Arc;

use rtrb::{Consumer, Producer, RingBuffer};
use schedule::Nanos;
use switch::PortId;

use crate::inbox::{Event, Refusal};
use crate::moves::{MoveId, Stay};
use crate::net::Net;
use crate::net::accord::{Accord, Word};
use crate::net::port::{BridgeId, FLOWS, Port};
use crate::net::steer::Puts;
use crate::places::{Place, Tenant, served_at};
use crate::served::{Ring, Role, Served};
use crate::sidecore::Sidecore;

/// How long frames may be held, nanoseconds, before the move is called off.
pub(crate) const HOLD_NS_MAX: u64 = 1_000_000;

/// A port's queues between its homes.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they go from place to place as pointers")]
struct Handed {
    queues: Vec<Box<Served>>,
    flows: ([u8; FLOWS], Puts),
    /// Not after the last visit at the old home.
    since: Nanos,
}

/// What a sidecore is in a move.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "they go from place to place as pointers")]
enum Participant {
    OldHome { handoff: Producer<Handed>, queues: Vec<Box<Served>> },
    NewHome { handoff: Consumer<Handed> },
    Other,
}

/// A sidecore's part in a move, for [`Command::Relocate`]. Dropped before the move is decided, it calls
/// it off.
///
/// [`Command::Relocate`]: crate::Command::Relocate
#[derive(Debug)]
pub struct Relocation {
    id: MoveId,
    bridge: BridgeId,
    port: PortId,
    /// The new home.
    to: u16,
    /// Queues at most.
    queues: usize,
    accord: Arc<Accord>,
    participant: Participant,
    /// Of the old home: where the queues are; of the new one: where they will be.
    places: Vec<u16>,
    /// Of each road, when all that was sent before is delivered.
    marks: Vec<u64>,
}

impl Drop for Relocation {
    fn drop(&mut self) {
        self.accord.decide(Word::OffLeaving);
    }
}

/// The parts of move `id`, of that port, which has so many queues, from sidecore `from` to sidecore `to`
/// of `sidecores`: in their order, one for each.
pub fn relocation(
    id: MoveId,
    (bridge, port): (BridgeId, PortId),
    queues: usize,
    (from, to): (u16, u16),
    sidecores: u16,
) -> Vec<Box<Relocation>> {
    let accord = Arc::new(Accord::new(sidecores));
    let (sends, gets) = RingBuffer::new(1);
    let (mut sends, mut gets) = (Some(sends), Some(gets));
    let participant_of = |index: u16| {
        if index == from
            && let Some(handoff) = sends.take()
        {
            return Participant::OldHome { handoff, queues: Vec::with_capacity(queues) };
        }
        if index == to
            && let Some(handoff) = gets.take()
        {
            return Participant::NewHome { handoff };
        }
        Participant::Other
    };
    let participants: Vec<Participant> = (0..sidecores).map(participant_of).collect();
    let whole = |participant| {
        let (places, marks) =
            (Vec::with_capacity(queues), Vec::with_capacity(usize::from(sidecores)));
        let accord = Arc::clone(&accord);
        Box::new(Relocation { id, bridge, port, to, queues, accord, participant, places, marks })
    };
    participants.into_iter().map(whole).collect()
}

/// How far a sidecore is before it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Floods that have begun are not over.
    Finishing,
    /// What was sent is on the roads.
    Draining,
    Ready,
}

/// A move that this sidecore has a part in.
#[derive(Debug)]
pub(crate) struct Hold {
    relocation: Box<Relocation>,
    step: Step,
    /// Not after the last visit of its transmit queues.
    since: Nanos,
    until: Nanos,
}

impl Hold {
    fn is_of_old_home(&self) -> bool {
        matches!(self.relocation.participant, Participant::OldHome { .. })
    }

    fn is_of(&self, bridge: BridgeId, port: PortId) -> bool {
        (self.relocation.bridge, self.relocation.port) == (bridge, port)
    }
}

impl Net {
    /// Nothing is sent to this port, and no flood begun there, until [`Self::let_go`].
    fn hold(&mut self, bridge: BridgeId, port: PortId) {
        let Some(replica) = self.replica(bridge) else { return };
        replica.holds = replica.holds.saturating_add(1);
        if let Some(port) = replica.ports.get_mut(port) {
            port.hold();
        }
    }

    /// It is as before, or at home elsewhere.
    fn let_go(&mut self, bridge: BridgeId, port: PortId, home: Option<u16>) {
        let here = self.here;
        let Some(replica) = self.replica(bridge) else { return };
        replica.holds = replica.holds.saturating_sub(1);
        if let Some(port) = replica.ports.get_mut(port) {
            port.let_go();
        }
        if let Some(home) = home {
            replica.ports.set_home(port, home, here);
        }
    }
}

impl Sidecore {
    /// A NIC is to move, and this sidecore has a part in that.
    pub(crate) fn relocate(&mut self, mut relocation: Box<Relocation>, now: Nanos) {
        let (bridge, port) = (relocation.bridge, relocation.port);
        let off = match relocation.participant {
            Participant::OldHome { .. } => self.find_queues(&mut relocation),
            Participant::NewHome { .. } => self.reserve(&mut relocation),
            Participant::Other => None,
        };
        if let Some(word) = off {
            relocation.accord.decide(word);
        }
        self.net.hold(bridge, port);
        let until = now.after(HOLD_NS_MAX);
        self.moves.holds.push(Hold { relocation, step: Step::Finishing, since: now, until });
    }

    /// Notes where the port's queues are. Why they do not go, if they do not.
    fn find_queues(&self, relocation: &mut Relocation) -> Option<Word> {
        let (bridge, port) = (relocation.bridge, relocation.port);
        if self.moves.holds.iter().any(|hold| hold.is_of(bridge, port)) {
            return Some(Word::OffMoving);
        }
        for (at, place) in (0..).zip(&self.places) {
            let Some(served) = place.served() else { continue };
            if served.role.port() != Some((bridge, port)) {
                continue;
            }
            if served.ring.leaving {
                return Some(Word::OffLeaving);
            }
            if relocation.places.len() == relocation.queues {
                return Some(Word::OffFull);
            }
            relocation.places.push(at);
        }
        let replica = self.net.replicas.get(usize::from(bridge.0)).and_then(Option::as_deref);
        let is_here = replica.and_then(|r| r.ports.get(port)).is_some_and(Port::is_here);
        (!is_here).then_some(Word::OffLeaving)
    }

    /// Holds places for the queues that are to come. Why they cannot, if they cannot.
    fn reserve(&mut self, relocation: &mut Relocation) -> Option<Word> {
        for (at, place) in (0..).zip(&mut self.places) {
            if relocation.places.len() == relocation.queues {
                break;
            }
            if place.is_empty() {
                place.reserved = true;
                relocation.places.push(at);
            }
        }
        (relocation.places.len() < relocation.queues).then_some(Word::OffFull)
    }

    /// Goes on with the moves that this sidecore has a part in. To be called once a pass, and before a
    /// command that finds what they decided.
    #[inline]
    pub(crate) fn go_on_relocating(&mut self, now: Nanos) {
        if !self.moves.holds.is_empty() {
            self.look_at_holds(now);
        }
    }

    #[cold]
    fn look_at_holds(&mut self, now: Nanos) {
        let mut holds = std::mem::take(&mut self.moves.holds);
        holds.retain_mut(|hold| self.go_on_with(hold, now));
        self.moves.holds = holds;
        if self.moves.holds.is_empty() {
            for (bridge, port, mac) in std::mem::take(&mut self.moves.unsaid) {
                self.announce(bridge, port, mac, now);
            }
        }
    }

    /// Whether it still holds.
    fn go_on_with(&mut self, hold: &mut Hold, now: Nanos) -> bool {
        if hold.relocation.accord.word() == Word::Deciding {
            self.get_ready(hold, now);
        }
        let word = hold.relocation.accord.word();
        match word {
            Word::Deciding => return true,
            Word::Committed => return !self.land_port(hold, now),
            Word::Done => {
                let Relocation { bridge, port, to, .. } = *hold.relocation;
                self.net.let_go(bridge, port, Some(to));
            }
            _ => self.give_up(hold, word, now),
        }
        false
    }

    /// Until it is decided.
    fn get_ready(&mut self, hold: &mut Hold, now: Nanos) {
        let bridge = hold.relocation.bridge;
        if now >= hold.until {
            hold.relocation.accord.decide(Word::OffLate);
            return;
        }
        if hold.step == Step::Finishing && !self.has_unfinished(bridge) {
            if hold.is_of_old_home() {
                hold.since = self.moves.before_last().unwrap_or(now);
                self.stop_taking(&hold.relocation.places);
            }
            self.net.desk.roads.mark(&mut hold.relocation.marks);
            hold.step = Step::Draining;
        }
        let has_passed = self.net.desk.roads.have_passed(&hold.relocation.marks);
        if hold.step == Step::Draining && has_passed {
            hold.relocation.accord.ready();
            hold.step = Step::Ready;
        }
        let is_agreed = hold.relocation.accord.is_agreed();
        if is_agreed && hold.is_of_old_home() && self.are_drained(&hold.relocation.places) {
            self.commit(hold);
        }
    }

    /// Whether a flood of that bridge goes on at a later visit here.
    fn has_unfinished(&self, bridge: BridgeId) -> bool {
        self.places.iter().any(|place| match &place.tenant {
            Tenant::Queue(served) => match &served.role {
                Role::Transmit(transmit) => {
                    let is_served = !served.ring.leaving && served.ring.queue.violation().is_none();
                    transmit.nic.bridge == bridge && transmit.cursor != 0 && is_served
                }
                Role::Disk(_) | Role::Receive(_) => false,
            },
            Tenant::Host(host) => {
                let kept = &host.kept;
                host.key().bridge == bridge && kept.len > 0 && kept.cursor != 0
            }
            Tenant::Road(_) | Tenant::Empty => false,
        })
    }

    fn stop_taking(&mut self, places: &[u16]) {
        for place in places {
            if is_transmit(&mut self.places, *place) {
                self.schedule.remove(*place);
                self.net.desk.roads.forget(*place);
            }
        }
    }

    /// Whether every chain that was taken is completed.
    fn are_drained(&self, places: &[u16]) -> bool {
        let served = |place: &u16| self.places.get(usize::from(*place)).and_then(Place::served);
        places
            .iter()
            .filter_map(served)
            .all(|served| served.ring.queue.in_flight() == 0 && served.role.has_all_back())
    }

    /// Hands the queues over, unless the move was called off.
    fn commit(&mut self, hold: &mut Hold) {
        let Relocation { bridge, port, to, ref accord, ref mut participant, ref places, .. } =
            *hold.relocation;
        let Participant::OldHome { handoff, queues } = participant else { return };
        if !accord.decide(Word::Committed) {
            return;
        }
        for queue in places {
            let place = self.places.get_mut(usize::from(*queue));
            let Some(mut served) = place.and_then(Place::take_queue) else { continue };
            served.ring.publish_last(&mut self.alarm);
            if let Some(kick) = &served.ring.kick {
                self.rest.forget(kick);
            }
            self.net.detach(&served.role, *queue);
            served.role.end(&mut self.io);
            self.counters.moves_out.add(1);
            queues.push(served);
        }
        let here = self.net.here;
        let mut flows = ([u8::MAX; FLOWS], Puts::NONE);
        if let Some(replica) = self.net.replica(bridge) {
            if let Some(port) = replica.ports.get(port) {
                flows = port.flows();
            }
            replica.ports.set_home(port, to, here);
        }
        let queues = std::mem::take(queues);
        if let Err(rtrb::PushError::Full(handed)) =
            handoff.push(Handed { queues, flows, since: hold.since })
        {
            // It has place for one, and this is the one.
            for served in handed.queues {
                self.send(Event::Refused(served, Refusal::NoPlace));
            }
        }
        self.count_queues();
    }

    /// The queues are on their way: takes them, if this is the new home and they are here. True when
    /// that was the end of it.
    fn land_port(&mut self, hold: &mut Hold, now: Nanos) -> bool {
        let Relocation { id, bridge, port, to, ref mut participant, ref mut places, .. } =
            *hold.relocation;
        let Participant::NewHome { handoff } = participant else { return false };
        let Ok(Handed { queues, flows, since }) = handoff.pop() else { return false };
        self.net.let_go(bridge, port, Some(to));
        let came = queues.len() as u64;
        for served in queues {
            match places.pop() {
                Some(at) => self.settle_at(at, served, now),
                // There are as many places as the old home may have queues.
                None => self.send(Event::Refused(served, Refusal::NoPlace)),
            }
        }
        let replica = self.net.replica(bridge);
        if let Some(port) = replica.and_then(|replica| replica.ports.get_mut(port)) {
            port.set_flows(&flows);
        }
        self.unreserve(places);
        hold.relocation.accord.done();
        self.counters.moves_in.add(came);
        self.moves.landed.push((id, since, came));
        true
    }

    /// A queue of a port that is at home here now, at a place that was held for it.
    fn settle_at(&mut self, at: u16, mut served: Box<Served>, now: Nanos) {
        let Some(place) = self.places.get_mut(usize::from(at)) else { return };
        place.reserved = false;
        let epoch = place.epoch.wrapping_add(1);
        let key = served.key();
        // Queues of NICs need nothing of the kernel.
        let _ = served.role.begin(&mut self.io, at, epoch);
        // A port that has gone meanwhile has nothing delivered.
        let _ = self.net.attach(&served.role, at, served.ring.gate.is_some());
        self.put(at, epoch, served, now);
        if self.leaving.is_stopping() {
            self.detach(key, now);
        }
    }

    fn unreserve(&mut self, places: &mut Vec<u16>) {
        for at in places.drain(..) {
            if let Some(place) = self.places.get_mut(usize::from(at)) {
                place.reserved = false;
            }
        }
    }

    /// It was called off: all is as before.
    fn give_up(&mut self, hold: &mut Hold, word: Word, now: Nanos) {
        let Relocation { id, bridge, port, ref participant, ref mut places, .. } = *hold.relocation;
        self.net.let_go(bridge, port, None);
        match participant {
            Participant::Other => {}
            Participant::NewHome { .. } => self.unreserve(places),
            Participant::OldHome { .. } => {
                for place in places.drain(..).filter(|_| hold.step != Step::Finishing) {
                    if is_transmit(&mut self.places, place) {
                        self.go_on(place, now);
                    }
                }
                self.counters.moves_stayed.add(1);
                self.send(Event::Stayed(id, word.why().unwrap_or(Stay::Leaving)));
            }
        }
    }

    /// Something else happens to the queues of a port that was to move: it does not, if it is in time.
    pub(crate) fn call_relocation_off(&mut self, (bridge, port): (BridgeId, PortId)) {
        let its = |hold: &&Hold| hold.is_of_old_home() && hold.is_of(bridge, port);
        if let Some(hold) = self.moves.holds.iter().find(its) {
            hold.relocation.accord.decide(Word::OffLeaving);
        }
    }
}

/// Whether a transmit queue is there that does not leave.
fn is_transmit(places: &mut [Place], place: u16) -> bool {
    let served = served_at(places, place).and_then(Served::transmit);
    served.is_some_and(|(Ring { leaving, .. }, _)| !*leaving)
}
