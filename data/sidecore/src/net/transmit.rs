//! A visit of a transmit queue: chains to frames, each brought where it goes, and completed in order.
//!
//! A chain is completed when its frame is over, whatever became of it: a guest sees lost frames, not
//! broken queues. What waits stays in the ring.

use backend::net::Rest;
use frame::{FRAME_MAX, FRAME_MIN, HEAD_MAX, HEADER_SIZE, HEADER_SIZE_LEGACY, Header, Offload};
use guest_memory::Span;
use schedule::{Budget, Nanos, Visited};
use switch::DropReason;
use virtqueue::{Chain, Single};

use crate::net::Net;
use crate::net::desk::{Ended, RETRY_NS, WALK_BYTES};
use crate::net::frames::{FRONT, Frame, ROOM, Room};
use crate::net::route::{Routed, Way};
use crate::places::Place;
use crate::served::{Ring, Transmit};

/// Frames after which a visit shows what was completed (as for disks, `fetch`).
const SHOW_EVERY: u32 = 16;

/// What a visit took, counted in registers and added to the port's counters once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) multicast: u64,
}

impl Tally {
    #[inline(always)]
    pub(crate) fn count(&mut self, len: u32, is_multicast: bool) {
        self.frames += 1;
        self.bytes += u64::from(len);
        self.multicast += u64::from(is_multicast);
    }
}

impl Net {
    /// Takes frames until the ring is empty, the budget is used, or one has to wait.
    pub(crate) fn transmit(
        &mut self,
        places: &mut [Place],
        ring: &mut Ring,
        role: &mut Transmit,
        chain: &mut Chain,
        budget: Budget,
        now: Nanos,
    ) -> Visited {
        self.take_frames(places, ring, role, chain, budget, None, now).0
    }

    /// The same, and no frame is begun once `most` was taken; with it, how many were, and their bytes.
    /// What a budget counts is other: copies, and what walking a chain costs.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "each is one of the visit's circumstances")]
    pub(crate) fn take_frames(
        &mut self,
        places: &mut [Place],
        ring: &mut Ring,
        role: &mut Transmit,
        chain: &mut Chain,
        budget: Budget,
        most: Option<Budget>,
        now: Nanos,
    ) -> (Visited, (u32, u64)) {
        let Net { replicas, desk, .. } = self;
        desk.begin(budget);
        if now < role.retry_at {
            return (desk.visited(Ended::Later), (0, 0));
        }
        let replica =
            replicas.get_mut(usize::from(role.nic.bridge.0)).and_then(Option::as_deref_mut);
        // Without its bridge nothing is taken: control attaches in another order.
        let Some(replica) = replica else { return (desk.visited(Ended::Empty), (0, 0)) };
        let mut way = Way::new(replica, role.nic.port);
        let (mut room, mut tally) = (ROOM, Tally::default());
        desk.roads.lent = role.in_flight.lent;
        let mut taken: u32 = 0;
        let ended = loop {
            if !desk.may_go_on() {
                break Ended::Budget;
            }
            if most.is_some_and(|most| taken >= most.requests || tally.bytes >= most.bytes) {
                break Ended::Budget;
            }
            if role.in_flight.is_full() {
                break Ended::Later;
            }
            let Some(single) = look(ring, chain) else { break Ended::Empty };
            desk.roads.begin(role);
            let before = desk.cost.requests;
            let cursor = std::mem::take(&mut role.cursor);
            let mut rest = Span::default();
            let walked = single.map_or_else(|| chain.walked(), |_| 1);
            desk.cost.bytes += WALK_BYTES * u64::from(walked);
            let found = match single {
                Some(single) => take_single(ring, role, single.span, &mut rest, &mut room),
                None => take(ring, role, chain, &mut room),
            };
            match found {
                Ok(mut frame) => {
                    // After the last read of what it is: a head on a page that was lost is zeroes.
                    if ring.health.is_lost() {
                        break role.keep(desk.roads.of_chain, Routed::Lost, now);
                    }
                    let (len, is_multicast) = (frame.len, frame.is_multicast());
                    match desk.route(places, replica, &mut way, &mut frame, cursor, now) {
                        Routed::Done => tally.count(len, is_multicast),
                        routed => break role.keep(desk.roads.of_chain, routed, now),
                    }
                }
                Err(reason) => replica.dropped(role.nic.port, reason),
            }
            desk.charge_frame(before);
            taken += 1;
            role.end_frame(ring, (single, chain), desk.roads.of_chain, taken);
        };
        if let Some(port) = replica.ports.get(role.nic.port) {
            port.counters.took(&tally);
        }
        ring.counters.requests.add(taken.into());
        role.in_flight.lent = desk.roads.lent;
        (desk.visited(ended), (taken, tally.bytes))
    }
}

impl Transmit {
    /// The frame is over, the visit's `nth`: its chain is completed, or waits for its parcels, or behind
    /// one that does.
    #[inline(always)]
    fn end_frame(
        &mut self,
        ring: &mut Ring,
        (single, chain): (Option<Single>, &Chain),
        parcels: u16,
        nth: u32,
    ) {
        if parcels > 0 || !self.in_flight.is_empty() {
            let ticket = match single {
                Some(single) => ring.queue.take_single(single),
                None => ring.queue.advance(chain),
            };
            return self.in_flight.push(ticket, parcels);
        }
        match single {
            Some(single) => ring.queue.end_single(single, 0),
            None => {
                let ticket = ring.queue.advance(chain);
                ring.queue.complete(ticket, 0);
            }
        }
        ring.unshown = true;
        if nth.is_multiple_of(SHOW_EVERY) && !ring.health.is_lost() {
            ring.queue.show();
        }
    }

    /// The frame is not over, and its chain stays in the ring; `parcels` of it are out.
    #[cold]
    fn keep(&mut self, parcels: u16, routed: Routed, now: Nanos) -> Ended {
        self.in_flight.of_next = parcels;
        match routed {
            Routed::Later | Routed::Held(_) => {
                self.retry_at = now.after(RETRY_NS);
                Ended::Later
            }
            Routed::Unfinished(at) => {
                self.cursor = at;
                Ended::Budget
            }
            Routed::Lost | Routed::Done => Ended::Empty,
        }
    }
}

/// The next chain: a single buffer, or as found in `chain`.
#[inline(always)]
fn look(ring: &mut Ring, chain: &mut Chain) -> Option<Option<Single>> {
    let single = ring.queue.peek_single(&ring.memory, false);
    (single.is_some() || ring.queue.peek(&ring.memory, chain)).then_some(single)
}

/// The frame in the one buffer `span`, as [`take`]. What follows its head is named by `rest`.
#[inline(always)]
fn take_single<'a>(
    ring: &'a Ring,
    role: &Transmit,
    span: Span,
    rest: &'a mut Span,
    room: &'a mut Room,
) -> Result<Frame<'a>, DropReason> {
    let size = role.nic.net.header_size();
    let len = span.len().checked_sub(size as u32).ok_or(DropReason::ShortHeader)?;
    if len < FRAME_MIN {
        return Err(DropReason::Runt);
    }
    if len > FRAME_MAX {
        return Err(DropReason::TooLong);
    }
    let head_len = HEAD_MAX.min(len as usize);
    let (front, head) = room.split_at_mut_checked(FRONT).ok_or(DropReason::ShortHeader)?;
    let head = head.get_mut(..head_len).ok_or(DropReason::ShortHeader)?;
    let header: Option<&mut [u8; HEADER_SIZE]> = front.last_chunk_mut();
    let header = header.ok_or(DropReason::ShortHeader)?;
    // Of fixed size, the header is one load or two.
    let (is_read, header) = match size {
        HEADER_SIZE => {
            let is_read = ring.memory.read_both(span, header, head);
            (is_read, header.first_chunk().copied())
        }
        _ => {
            let mut short = [0; HEADER_SIZE_LEGACY];
            (ring.memory.read_both(span, &mut short, head), Some(short))
        }
    };
    let header = header.filter(|_| is_read).ok_or(DropReason::ShortHeader)?;
    let offload = match header {
        // Nothing is said of most frames.
        [0, 0, ..] => Ok(Offload::NONE),
        _ => {
            let accepts = role.nic.net.accepts_from_guest();
            Offload::check(&Header::decode(&header), head, len, accepts)
        }
    };
    let offload = offload.map_err(|_| DropReason::BadOffload)?;
    let rest = match head_len == len as usize {
        true => Rest::Private(&[]),
        false => {
            *rest = span.after((size + head_len) as u32);
            Rest::Guest(&ring.memory, std::slice::from_ref(rest))
        }
    };
    let (health, memory) = (Some(&ring.health), Some(&ring.memory));
    Ok(Frame { room, head_len, len, rest, offload, health, memory, pair: role.nic.pair })
}

/// The frame in `chain`: its header and head are read once, and what they say is checked.
#[inline(always)]
fn take<'a>(
    ring: &'a Ring,
    role: &Transmit,
    chain: &'a mut Chain,
    room: &'a mut Room,
) -> Result<Frame<'a>, DropReason> {
    let size = role.nic.net.header_size();
    let len = chain.readable_bytes().checked_sub(size as u64).ok_or(DropReason::ShortHeader)?;
    if len < u64::from(FRAME_MIN) {
        return Err(DropReason::Runt);
    }
    if len > u64::from(FRAME_MAX) || chain.overflowed() {
        return Err(DropReason::TooLong);
    }
    let len = len as u32;
    // Apart, since a copy that leaves here begins with the head: see `Room`.
    let (front, head) = room.split_at_mut_checked(FRONT).ok_or(DropReason::ShortHeader)?;
    let place = front.get_mut(FRONT - size.min(FRONT)..).ok_or(DropReason::ShortHeader)?;
    let head = head.get_mut(..HEAD_MAX).ok_or(DropReason::ShortHeader)?;
    if chain.take_readable(&ring.memory, place) < size {
        return Err(DropReason::ShortHeader);
    }
    let head_len = chain.take_readable(&ring.memory, head);
    let header: Option<&[u8; HEADER_SIZE_LEGACY]> = place.first_chunk();
    let header = Header::decode(header.ok_or(DropReason::ShortHeader)?);
    let head = head.get(..head_len).ok_or(DropReason::ShortHeader)?;
    let offload = Offload::check(&header, head, len, role.nic.net.accepts_from_guest());
    let offload = offload.map_err(|_| DropReason::BadOffload)?;
    let rest = match head_len == len as usize {
        true => Rest::Private(&[]),
        false => Rest::Guest(&ring.memory, chain.readable()),
    };
    let (health, memory) = (Some(&ring.health), Some(&ring.memory));
    Ok(Frame { room, head_len, len, rest, offload, health, memory, pair: role.nic.pair })
}
