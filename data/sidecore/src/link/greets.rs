//! Hellos on their way to control: few at a time, each with the number of a session that may come of it.
//!
//! Not what is in them (`remote::handshake`). Whoever repeats what a client once said gets no further than a number
//! that nobody proves, and few of those. Called by `host`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend::link::Address;
use remote::handshake::{Established, PublicKey};
use remote::iohost::Host;

use super::host::Greeting;
use super::memory::AttachmentMemory;

/// Hellos that wait for control at a time; others are dropped, and said again by their clients.
const GREETS_MAX: usize = 8;
/// Of them, those of one sender: others find a place beside it.
const GREETS_OF_ONE_MAX: usize = 2;
/// Sessions of one client that were answered and have not begun.
const UNPROVEN_MAX: usize = 4;
/// For so long an answer is remembered: as the protocol keeps its number.
const UNPROVEN_NS: u64 = 2_000_000_000;
/// Answers that are remembered, of all clients.
const ANSWERED_MAX: usize = 1024;

/// One hello's.
struct Place {
    is_taken: Arc<AtomicBool>,
    /// By whom last, and the number that was reserved for that, if nothing has come of it.
    from: Option<Address>,
    reserved: Option<u32>,
}

/// The places.
pub(super) struct Greets {
    places: [Place; GREETS_MAX],
    /// The latest last.
    answered: VecDeque<(u64, u32, PublicKey)>,
}

impl Greets {
    pub(super) fn new() -> Greets {
        let places = std::array::from_fn(|_| Place {
            is_taken: Arc::new(AtomicBool::new(false)),
            from: None,
            reserved: None,
        });
        Greets { places, answered: VecDeque::with_capacity(ANSWERED_MAX) }
    }

    /// A hello goes to control. `None`: there is no place, or none for its sender, or no number.
    pub(super) fn greet(
        &mut self,
        host: &mut Host<AttachmentMemory>,
        now: u64,
        frame: &[u8],
        from: Address,
    ) -> Option<Greeting> {
        let is_taken = |place: &Place| place.is_taken.load(Ordering::Acquire);
        let is_its = |place: &&Place| place.from.is_some_and(|other| other.is_one_sender(&from));
        let taken = self.places.iter().filter(|place| is_taken(place));
        if taken.filter(is_its).count() >= GREETS_OF_ONE_MAX {
            return None;
        }
        let free = self.places.iter_mut().find(|place| !is_taken(place))?;
        if let Some(number) = free.reserved.take() {
            host.cancel(number);
        }
        // Who it is, control will know.
        let number = host.reserve(now, &[0; 32])?;
        (free.from, free.reserved) = (Some(from), Some(number));
        free.is_taken.store(true, Ordering::Release);
        let (place, credit) = (Arc::clone(&free.is_taken), host.share());
        Some(Greeting { bytes: frame.into(), place, from, number, credit })
    }

    /// A hello that came to another shard is to be answered by this one: the number that it had, and it with one of this
    /// shard's. `None`: there is none.
    pub(super) fn reserve(
        &mut self,
        host: &mut Host<AttachmentMemory>,
        now: u64,
        mut greeting: Greeting,
        client: &PublicKey,
    ) -> Option<(u32, Greeting)> {
        let number = host.reserve(now, client)?;
        let before = std::mem::replace(&mut greeting.number, number);
        greeting.credit = host.share();
        Some((before, greeting))
    }

    /// One was answered: its session may begin. False when its number is not its own any more.
    pub(super) fn establish(
        &mut self,
        host: &mut Host<AttachmentMemory>,
        now: u64,
        made: Established,
    ) -> bool {
        let (number, client) = (made.mine, made.peer);
        for place in &mut self.places {
            place.reserved.take_if(|one| *one == number);
        }
        let is_old = |at: u64| now.saturating_sub(at) >= UNPROVEN_NS;
        while self.answered.front().is_some_and(|(at, ..)| is_old(*at))
            || self.answered.len() >= ANSWERED_MAX
        {
            self.answered.pop_front();
        }
        // Of a client without a key it is not known whose they are.
        let of_client = |one: &(u64, u32, PublicKey)| one.2 == client && client != [0; 32];
        if self.answered.iter().filter(|one| of_client(one)).count() >= UNPROVEN_MAX
            && let Some(at) = self.answered.iter().position(of_client)
            && let Some((_, oldest, _)) = self.answered.remove(at)
        {
            host.cancel(oldest);
        }
        self.answered.push_back((now, number, client));
        host.establish(made)
    }

    /// A session has begun.
    pub(super) fn proven(&mut self, number: u32) {
        self.answered.retain(|(_, answered, _)| *answered != number);
    }
}

#[cfg(test)]
mod tests {
    use remote::iohost::HostSpec;

    use super::*;

    #[test]
    fn one_sender_takes_two_places_and_others_find_theirs() {
        let mut host = Host::new(HostSpec {
            sessions_max: 64,
            ring_frames: 64,
            memory_max: 0,
            client_memory_max: 0,
            instance: 1,
            shard: 0,
        });
        let mut greets = Greets::new();
        let from = |last, port| Address::udp(([10, 0, 0, last], port).into());
        let mut greet = |from| greets.greet(&mut host, 0, &[], from);
        let mut kept: Vec<Greeting> = (0..20).filter_map(|port| greet(from(1, port))).collect();
        assert_eq!(kept.len(), 2);
        kept.extend((2..20).filter_map(|last| greet(from(last, 1))));
        assert_eq!(kept.len(), 8);
        // When they are done, it may come again.
        kept.clear();
        assert!(greet(from(1, 1)).is_some());
    }
}
