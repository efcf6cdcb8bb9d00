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
/// Sessions of one client that were answered and have not begun.
const UNPROVEN_MAX: usize = 4;
/// For so long an answer is remembered: as the protocol keeps its number.
const UNPROVEN_NS: u64 = 2_000_000_000;
/// Answers that are remembered, of all clients.
const ANSWERED_MAX: usize = 1024;

/// The places.
pub(super) struct Greets {
    /// Taken or not, and the number that was reserved for who took it last, if nothing has come of it.
    places: [(Arc<AtomicBool>, Option<u32>); GREETS_MAX],
    /// The latest last.
    answered: VecDeque<(u64, u32, PublicKey)>,
}

impl Greets {
    pub(super) fn new() -> Greets {
        let places = std::array::from_fn(|_| (Arc::new(AtomicBool::new(false)), None));
        Greets { places, answered: VecDeque::with_capacity(ANSWERED_MAX) }
    }

    /// A hello goes to control. `None`: there is no place, or no number.
    pub(super) fn greet(
        &mut self,
        host: &mut Host<AttachmentMemory>,
        now: u64,
        frame: &[u8],
        from: Address,
    ) -> Option<Greeting> {
        let mut free = self.places.iter_mut().filter(|(taken, _)| !taken.load(Ordering::Acquire));
        let (taken, reserved) = free.next()?;
        if let Some(number) = reserved.take() {
            host.cancel(number);
        }
        // Who it is, control will know.
        let number = host.reserve(now, &[0; 32])?;
        *reserved = Some(number);
        taken.store(true, Ordering::Release);
        let (place, credit) = (Arc::clone(taken), host.share());
        Some(Greeting { bytes: frame.into(), place, from, number, credit })
    }

    /// One was answered: its session may begin. False when its number is not its own any more.
    pub(super) fn establish(
        &mut self,
        host: &mut Host<AttachmentMemory>,
        now: u64,
        made: Established,
    ) -> bool {
        let (number, client) = (made.mine, made.peer);
        for (_, reserved) in &mut self.places {
            reserved.take_if(|one| *one == number);
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
