//! A wire in memory: what is sent comes later, in another order, twice or not at all, as a seed says.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use backend::link::{Address, LinkWire};
use random::Random;

/// How bad it is. Of a thousand frames so many are lost, and so many come twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Nanoseconds: each frame takes up to so long more than the shortest, so that they overtake one another.
    pub(super) jitter_ns: u64,
}

pub(super) const FAIR: Weather = Weather { lost: 0, doubled: 0, jitter_ns: 0 };
pub(super) const FOUL: Weather = Weather { lost: 50, doubled: 50, jitter_ns: 100_000 };
/// What every frame takes.
const FLIGHT_NS: u64 = 10_000;

#[derive(Debug)]
pub(super) struct Wire(Mutex<State>);

#[derive(Debug)]
struct State {
    now: u64,
    weather: Weather,
    random: Random,
    air: Vec<Frame>,
    ends: HashMap<Address, Arc<OwnedFd>>,
    /// What is sent to or from these is lost.
    cut: Vec<Address>,
}

#[derive(Debug)]
struct Frame {
    at: u64,
    from: Address,
    to: Address,
    bytes: Vec<u8>,
}

impl Wire {
    pub(super) fn new(weather: Weather, seed: u64) -> Arc<Wire> {
        let random = Random::new(seed, 77);
        let (air, ends, cut) = (Vec::new(), HashMap::new(), Vec::new());
        Arc::new(Wire(Mutex::new(State { now: 0, weather, random, air, ends, cut })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("one thread")
    }

    /// It is that late: what has come by now can be taken.
    pub(super) fn set_now(&self, now: u64) {
        let mut state = self.state();
        state.now = now;
        for frame in state.air.iter().filter(|frame| frame.at <= now) {
            if let Some(end) = state.ends.get(&frame.to) {
                crate::inbox::wake(end);
            }
        }
    }

    /// When the next frame comes.
    pub(super) fn due(&self) -> Option<u64> {
        self.state().air.iter().map(|frame| frame.at).min()
    }

    /// Cuts this end off, or connects it again.
    pub(super) fn cut(&self, end: Address, is_cut: bool) {
        let mut state = self.state();
        state.cut.retain(|one| *one != end);
        if is_cut {
            state.cut.push(end);
        }
    }
}

impl LinkWire for Wire {
    fn joined(&self, at: Address, some: Arc<OwnedFd>) {
        self.state().ends.insert(at, some);
    }

    fn receive(&self, at: Address, into: &mut Vec<u8>) -> Option<Address> {
        let mut state = self.state();
        let now = state.now;
        let mine = state.air.iter().enumerate().filter(|(_, frame)| frame.to == at);
        let (next, _) = mine.filter(|(_, frame)| frame.at <= now).min_by_key(|(_, f)| f.at)?;
        let frame = state.air.remove(next);
        into.extend_from_slice(&frame.bytes);
        Some(frame.from)
    }

    fn send(&self, from: Address, to: Address, frame: &[u8]) {
        let mut state = self.state();
        let Weather { lost, doubled, jitter_ns } = state.weather;
        if state.cut.contains(&from) || state.cut.contains(&to) {
            return;
        }
        let copies = match state.random.below(1000) {
            roll if roll < lost => 0,
            roll if roll < lost + doubled => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let at = state.now + FLIGHT_NS + state.random.below(jitter_ns + 1);
            state.air.push(Frame { at, from, to, bytes: frame.to_vec() });
        }
    }
}
