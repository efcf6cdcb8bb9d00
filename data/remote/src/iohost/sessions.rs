//! Sessions of clients: numbers that are promised, keys that are proven, and ends.
//!
//! Control's pace, but for the first frame of a session: this may allocate.

use super::about::About;
use super::{Host, HostEvent, SlotMemory};
use crate::handshake::{Agreed, Established, IMAGES, PublicKey};
use crate::net::NetQueue;
use crate::seal::Seal;
use crate::session::{FIRST_LEASES, Session};
use crate::wire::{Header, Kind};

/// Shards of one link at most: each is a [`Host`] of its own, behind a socket of its own.
pub const SHARDS_MAX: usize = 16;
/// Where in a session's number its shard is: the highest bits, so that who steers frames looks at one byte.
const SHARD_SHIFT: u32 = 28;
/// Of a place's generation, these count; the others are the shard.
const GENERATION_MASK: u16 = 0x0fff;

const _: () = assert!(SHARDS_MAX == 1 << (32 - SHARD_SHIFT));

/// Which shard has made the session of that number.
pub fn shard_of(session: u32) -> usize {
    (session >> SHARD_SHIFT) as usize
}

/// Sessions of one client at a time.
const SESSIONS_OF_CLIENT_MAX: usize = 4;
/// Of one client, that are not proven yet. Somebody who says its hellos again can use up these, and no others.
const UNPROVEN_OF_CLIENT_MAX: usize = 4;
/// A session whose first frame has not come by then may be forgotten for another one.
const CONFIRM_NS: u64 = 2_000_000_000;
/// Frames that a client may have under way, however many clients there are.
const SHARE_MIN: u32 = 4;

/// A session that has begun: a frame of its client was opened.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) session: Session,
    pub(super) client: PublicKey,
    pub(super) about: About,
    pub(super) net: NetQueue,
    pub(super) is_net_next: bool,
}

/// A session that was answered. Whoever it was may have repeated what it heard: nothing but the keys is kept.
#[derive(Debug)]
pub(super) struct Unproven {
    seal: Seal,
    agreed: Agreed,
}

/// Who has a place.
#[derive(Debug, Default)]
pub(super) enum Tenant {
    #[default]
    Nobody,
    /// Since when, and for whom; with keys once it was answered.
    Promised(u64, PublicKey, Option<Box<Unproven>>),
    Proven(Box<Peer>),
}

#[derive(Debug, Default)]
pub(super) struct Place {
    generation: u16,
    pub(super) tenant: Tenant,
}

impl Place {
    pub(super) fn peer(&self) -> Option<&Peer> {
        match &self.tenant {
            Tenant::Proven(peer) => Some(peer),
            _ => None,
        }
    }

    pub(super) fn peer_mut(&mut self) -> Option<&mut Peer> {
        match &mut self.tenant {
            Tenant::Proven(peer) => Some(peer),
            _ => None,
        }
    }
}

impl<M: SlotMemory> Host<M> {
    /// A number for a session of a client whose hello was read, and is to be answered next: the lease counts from
    /// now. `None`: there are too many, and each is somebody's.
    pub fn reserve(&mut self, now: u64, client: &PublicKey) -> Option<u32> {
        let (mut free, mut count, mut oldest) = (None, 0, None);
        for (at, place) in self.places.iter().enumerate() {
            match &place.tenant {
                Tenant::Proven(_) => {}
                Tenant::Promised(since, who, _) if now.saturating_sub(*since) < CONFIRM_NS => {
                    if who == client && *client != [0; 32] {
                        count += 1;
                        oldest = oldest.max(Some((u64::MAX - since, at)));
                    }
                }
                _ => free = free.or(Some(at)),
            }
        }
        let at = match (oldest, free) {
            (Some((_, at)), _) if count >= UNPROVEN_OF_CLIENT_MAX => at,
            (_, Some(at)) => at,
            _ if self.places.len() < self.spec.sessions_max.min(1 << 16) => {
                let shard = u16::from(self.spec.shard) << (SHARD_SHIFT - 16);
                let generation = shard | self.spec.instance as u16 & GENERATION_MASK;
                self.places.push(Place { generation, tenant: Tenant::Nobody });
                self.round.fit(self.places.len());
                self.times.fit(self.places.len());
                self.places.len() - 1
            }
            _ => return None,
        };
        let place = self.places.get_mut(at)?;
        let next = place.generation.wrapping_add(1) & GENERATION_MASK;
        place.generation = place.generation & !GENERATION_MASK | next;
        place.tenant = Tenant::Promised(now, *client, None);
        Some(at as u32 | u32::from(place.generation) << 16)
    }

    /// A number that was reserved is not used: the hello was not answered.
    pub fn cancel(&mut self, number: u32) {
        let place = self.place_of(number).and_then(|at| self.places.get_mut(at));
        if let Some(place) = place
            && matches!(place.tenant, Tenant::Promised(..))
        {
            place.tenant = Tenant::Nobody;
        }
    }

    /// Frames that a client may have under way, as it is told in a handshake. Only sessions that are proven have
    /// a share.
    pub fn share(&self) -> u32 {
        self.share_of(self.proven + 1)
    }

    fn share_of(&self, count: usize) -> u32 {
        let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        (self.spec.ring_frames / count).max(SHARE_MIN)
    }

    /// A handshake was answered, with a number that was reserved. False when it is not (any more).
    pub fn establish(&mut self, made: Established) -> bool {
        let (keys, agreed) = made.split();
        let place = self.place_of(agreed.mine).and_then(|at| self.places.get_mut(at));
        let Some(Place { tenant: Tenant::Promised(_, client, unproven @ None), .. }) = place else {
            return false;
        };
        *client = agreed.peer;
        *unproven = Seal::new(keys).map(|seal| Box::new(Unproven { seal, agreed }));
        unproven.is_some()
    }

    /// Opens a frame of a session that was promised, which begins with it: where its records end.
    pub(super) fn prove(
        &mut self,
        at: usize,
        now: u64,
        header: &Header,
        frame: &mut [u8],
    ) -> Option<usize> {
        let place = self.places.get_mut(at)?;
        let Tenant::Promised(since, client, Some(unproven)) = &place.tenant else { return None };
        let (begun, client) = (*since, *client);
        let lease_ns = u64::from(unproven.agreed.terms.lease_ms) * 1_000_000;
        let over_at = begun.saturating_add(FIRST_LEASES * lease_ns);
        if header.kind != Kind::Sealed || now >= over_at {
            return None;
        }
        let end = unproven.seal.open(header.counter, frame)?;
        let Tenant::Promised(.., Some(unproven)) = std::mem::take(&mut place.tenant) else {
            return None;
        };
        let Unproven { seal, agreed } = *unproven;
        let mut session = Session::new(seal, &agreed, 1, begun)?;
        session.see(now, header.counter);
        self.make_room_for(&client);
        let net = NetQueue::default();
        let about = About::new(agreed.mine, agreed.terms.features & IMAGES != 0);
        let peer = Peer { session, client, about, net, is_net_next: false };
        self.places[at].tenant = Tenant::Proven(Box::new(peer));
        self.proven += 1;
        self.credit_share = u64::from(self.share_of(self.proven));
        self.events.push_back(HostEvent::SessionBegan { session: agreed.mine, client });
        Some(end)
    }

    /// A client with a key has so many sessions at most; of none it is not known whose they are.
    fn make_room_for(&mut self, client: &PublicKey) {
        if *client == [0; 32] {
            return;
        }
        let (mut count, mut oldest) = (0, None);
        for (at, place) in self.places.iter().enumerate() {
            if let Some(peer) = place.peer().filter(|peer| peer.client == *client) {
                count += 1;
                let one = (peer.session.heard_at, at);
                oldest = Some(oldest.map_or(one, |before: (u64, usize)| before.min(one)));
            }
        }
        if count >= SESSIONS_OF_CLIENT_MAX
            && let Some((_, at)) = oldest
        {
            self.end_session(at);
        }
    }

    pub(super) fn place_of(&self, number: u32) -> Option<usize> {
        let at = (number & 0xffff) as usize;
        let place = self.places.get(at)?;
        (place.generation == (number >> 16) as u16).then_some(at)
    }

    pub(super) fn peer(&mut self, number: u32) -> Option<&mut Peer> {
        let at = self.place_of(number)?;
        self.places.get_mut(at)?.peer_mut()
    }

    /// Who has a session, if it is one that has begun.
    pub fn client_of(&self, session: u32) -> Option<&PublicKey> {
        let at = self.place_of(session)?;
        self.places.get(at)?.peer().map(|peer| &peer.client)
    }

    /// The session is over: what it has is drained and let go, and it waits for nothing any more.
    pub(super) fn end_session(&mut self, at: usize) {
        let place = self.places.get_mut(at);
        let Some(place) = place.filter(|place| place.peer().is_some()) else { return };
        let Tenant::Proven(peer) = std::mem::take(&mut place.tenant) else { return };
        let number = peer.about.number;
        self.times.remove(at);
        self.proven -= 1;
        self.credit_share = u64::from(self.share_of(self.proven));
        for export in peer.about.exports() {
            let Some(export) = self.exports.get_mut(export) else { continue };
            if export.waiting.is_some_and(|wait| wait.number == number) {
                export.waiting = None;
            }
            export.lose_session(number, &mut self.events);
        }
        self.events.push_back(HostEvent::SessionEnded { session: number });
    }
}
