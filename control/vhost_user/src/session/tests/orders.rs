//! Every order of messages about one ring: each state that a front-end can bring a session to, and each message there,
//! beside a model of what the protocol says.
//!
//! The states are finitely many, so all of them are visited, by the shortest way that leads there. What only numbers
//! differ in (which size, which address) stands for one of a kind; `fields` has the numbers.

use std::collections::BTreeMap;

use super::*;
use crate::queue_setup::Place;

const SPLIT: u64 = VERSION_1 | bits::PROTOCOL_FEATURES;
const PACKED: u64 = SPLIT | bits::RING_PACKED;

/// What happens to a session: a front-end's word, or what became of a ring that ran.
#[derive(Clone, Debug)]
enum Event {
    Said(Message),
    /// It broke a rule.
    Failed,
    /// Its sidecore gave it back there.
    StoppedAt(u32),
    /// Another back-end had it, and died.
    ServedElsewhere,
    /// The same, and nothing says how far that one came.
    Lost,
}

/// A ring as the protocol has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Model {
    features: Option<u64>,
    has_memory: bool,
    size: Option<u32>,
    driver: Option<u64>,
    base: u32,
    told: u32,
    place: Place,
    /// With a descriptor, or by polling.
    kick: Option<bool>,
    has_call: bool,
    has_err: bool,
    enabled: Option<bool>,
    failed: bool,
}

impl Model {
    fn is_packed(&self) -> bool {
        self.features.is_some_and(|features| features & bits::RING_PACKED != 0)
    }

    fn is_set_up(&self) -> bool {
        self.size.is_some() && self.driver.is_some() && self.kick.is_some()
    }

    fn is_ready(&self) -> bool {
        // "If VHOST_USER_F_PROTOCOL_FEATURES has not been negotiated, the ring starts directly in the enabled state."
        let starts = |features| features & bits::PROTOCOL_FEATURES == 0;
        let Some(features) = self.features else { return false };
        let is_enabled = self.enabled.unwrap_or(starts(features));
        self.has_memory
            && self.is_set_up()
            && is_enabled
            && !self.failed
            && self.place != Place::Lost
    }

    fn reset(&mut self) {
        let Model { features, has_memory, has_call, has_err, .. } = *self;
        *self = Model { features, has_memory, has_call, has_err, ..Model::default() };
    }

    /// What is left of it after that; `None`, where the message is to be refused.
    fn after(mut self, event: &Event) -> Option<Model> {
        match event {
            Event::Failed => self.failed = true,
            Event::StoppedAt(base) => (self.base, self.place) = (*base, Place::Served),
            Event::ServedElsewhere => self.place = Place::Hearsay,
            Event::Lost => self.place = Place::Lost,
            Event::Said(message) => match message {
                Message::SetFeatures(features) => self.features = Some(*features),
                Message::SetMemTable(_) => self.has_memory = true,
                Message::AddMemReg(_) if self.has_memory => return None,
                Message::AddMemReg(_) => self.has_memory = true,
                Message::RemMemReg(_) if !self.has_memory => return None,
                Message::RemMemReg(_) => self.has_memory = false,
                Message::SetVringNum(state) => {
                    let is_power = [1, 2, 4, 8, 16, 32, 64, 128].contains(&state.value);
                    if !is_power && !self.is_packed() {
                        return None;
                    }
                    self.size = Some(state.value);
                }
                Message::SetVringBase(state) => {
                    if state.value >= 1 << 16 && !self.is_packed() {
                        return None;
                    }
                    (self.base, self.told) = (state.value, state.value);
                    self.place = Place::Hearsay;
                }
                Message::SetVringAddr((_, ring)) => {
                    if self.is_packed() && ring.driver & 2 != 0 {
                        return None;
                    }
                    self.driver = Some(ring.driver);
                }
                Message::SetVringKick(ring) => self.kick = Some(ring.has_fd),
                Message::SetVringCall(ring) => self.has_call = ring.has_fd,
                Message::SetVringErr(ring) => self.has_err = ring.has_fd,
                Message::SetVringEnable(state) => self.enabled = Some(state.value == 1),
                Message::GetVringBase(_) => {
                    (self.kick, self.has_call, self.failed) = (None, false, false);
                    self.told = self.base;
                }
                Message::ResetDevice | Message::ResetOwner => self.reset(),
                other => panic!("the model has no {}", other.name()),
            },
        }
        Some(self)
    }

    /// Descriptors that the session has of it.
    fn descriptors(&self) -> usize {
        [self.kick == Some(true), self.has_call, self.has_err].into_iter().filter(|is| *is).count()
    }
}

/// A session of one ring, and its owner.
struct Pair {
    session: Session<Fd>,
    world: World,
}

impl Pair {
    fn new() -> Pair {
        let class = DeviceClass::Disk { inflight_len: |_, _| 0 };
        let features = VERSION_1 | bits::RING_PACKED;
        let facts = DeviceFacts { class, features, queues_max: 1, ring_size_max: 256 };
        let mut pair = Pair { session: Session::new(facts), world: World::default() };
        // So that each refusal is told.
        let offered = Message::SetProtocolFeatures(bits::OFFERED_BY_DISK);
        say(&mut pair.session, &mut pair.world, &offered).unwrap();
        pair
    }

    /// Whether it was taken, and what came back.
    fn do_one(&mut self, event: &Event) -> Option<Vec<u8>> {
        match event {
            Event::Said(message) => say(&mut self.session, &mut self.world, message).ok(),
            Event::Failed => {
                let _ = self.session.failed(0);
                Some(Vec::new())
            }
            Event::StoppedAt(base) => {
                self.session.stopped_at(0, *base);
                Some(Vec::new())
            }
            Event::ServedElsewhere => {
                self.session.served_elsewhere(0);
                Some(Vec::new())
            }
            Event::Lost => {
                self.session.lost(0);
                Some(Vec::new())
            }
        }
    }

    /// What of a ring may not change while it runs.
    fn runs_as(&self) -> Option<(u16, RingAddresses, u32, bool)> {
        let facts = self.session.ready(0)?;
        Some((facts.size, facts.addresses, facts.base, facts.kick.is_some()))
    }

    fn check(&self, model: &Model, way: &[Event]) {
        let session = &self.session;
        assert_eq!(session.ready(0).is_some(), model.is_ready(), "ready, after {way:?}");
        assert_eq!(session.set_up(0).is_some(), model.is_set_up(), "set up, after {way:?}");
        if let Some(facts) = session.set_up(0) {
            let seen = (u32::from(facts.size), facts.addresses.driver, facts.base, facts.told);
            let expected = (model.size, model.driver, model.base, model.told);
            assert_eq!((Some(seen.0), Some(seen.1), seen.2, seen.3), expected, "after {way:?}");
            assert_eq!(Some(facts.kick.is_some()), model.kick, "kick, after {way:?}");
            assert_eq!(facts.call.is_some(), model.has_call, "call, after {way:?}");
        }
        let stands = (session.base(0), session.has_failed(0));
        assert_eq!(stands, (Some(model.base), model.failed), "after {way:?}");
        let place = match (session.was_served(0), session.is_lost(0)) {
            (true, _) => Place::Served,
            (false, true) => Place::Lost,
            (false, false) => Place::Hearsay,
        };
        assert_eq!(place, model.place, "after {way:?}");
        assert_eq!(session.has_memory(), model.has_memory, "memory, after {way:?}");
        let open = self.world.open() - self.world.regions.len();
        assert_eq!(open, model.descriptors(), "descriptors, after {way:?}");
    }
}

/// Goes to every state that these events lead to, and has each of them happen there. How many states there are.
fn explore(events: &[Event]) -> usize {
    let mut ways: BTreeMap<Model, Vec<Event>> = BTreeMap::from([(Model::default(), Vec::new())]);
    let mut next = vec![Model::default()];
    while let Some(state) = next.pop() {
        let way = ways[&state].clone();
        for event in events {
            let mut pair = Pair::new();
            for before in &way {
                assert!(pair.do_one(before).is_some(), "{before:?} of {way:?}");
            }
            let scope = match event {
                Event::Said(message) => pair.session.scope(message),
                Event::Failed | Event::StoppedAt(_) | Event::ServedElsewhere | Event::Lost => {
                    Scope::All
                }
            };
            let ran_as = pair.runs_as();
            let mut whole = way.clone();
            whole.push(event.clone());
            let Some(after) = state.after(event) else {
                let before = format!("{:?}", pair.session);
                assert_eq!(pair.do_one(event), None, "{whole:?}");
                assert_eq!(format!("{:?}", pair.session), before, "refused: {whole:?}");
                continue;
            };
            let answer = pair.do_one(event).unwrap_or_else(|| panic!("refused: {whole:?}"));
            if let Event::Said(Message::GetVringBase(_)) = event {
                assert_eq!(answer[4..], after.base.to_ne_bytes(), "{whole:?}");
            }
            pair.check(&after, &whole);
            if scope == Scope::None && ran_as.is_some() {
                assert_eq!(pair.runs_as(), ran_as, "changed beneath a ring that runs: {whole:?}");
            }
            ways.entry(after).or_insert_with(|| {
                next.push(after);
                whole
            });
        }
    }
    ways.len()
}

fn said(message: Message) -> Event {
    Event::Said(message)
}

fn at(driver: u64) -> Event {
    said(Message::SetVringAddr((0, RingAddresses { driver, ..addresses() })))
}

fn kick(has_fd: bool) -> Event {
    said(Message::SetVringKick(RingFd { queue: 0, has_fd }))
}

#[test]
fn a_ring_runs_when_all_of_it_was_told_and_stops_when_any_of_it_is_taken() {
    let enable = |value| said(Message::SetVringEnable(state(0, value)));
    let states = explore(&[
        said(Message::SetFeatures(VERSION_1)),
        said(Message::SetFeatures(SPLIT)),
        said(Message::AddMemReg(region(0))),
        said(Message::RemMemReg(region(0))),
        said(Message::SetMemTable(vec![region(0)])),
        said(Message::SetVringNum(state(0, 128))),
        at(1 << 12),
        kick(true),
        kick(false),
        said(Message::SetVringCall(ring(0))),
        enable(0),
        enable(1),
        said(Message::GetVringBase(state(0, 0))),
        said(Message::ResetDevice),
        Event::Failed,
    ]);
    // Features 3, memory, size, addresses, kick 3, call, enabled 3, failed.
    assert_eq!(states, 3 * 2 * 2 * 2 * 3 * 2 * 3 * 2);
}

#[test]
fn the_form_of_a_ring_is_what_was_agreed_when_it_was_told() {
    let states = explore(&[
        said(Message::SetFeatures(SPLIT)),
        said(Message::SetFeatures(PACKED)),
        said(Message::SetVringNum(state(0, 128))),
        said(Message::SetVringNum(state(0, 100))),
        said(Message::SetVringBase(state(0, 0x8001_0007))),
        said(Message::SetVringBase(state(0, 7))),
        at(1 << 12),
        at(1 << 12 | 2),
        kick(true),
        said(Message::ResetOwner),
    ]);
    // Without features a ring is a split one; what a packed one may have stays when it is a split one again.
    assert_eq!(states, 2 * 2 * 3 * 2 + 2 * (3 * 3 * 3 * 2));
}

#[test]
fn where_a_ring_stands_is_what_its_front_end_said_until_it_was_served() {
    let states = explore(&[
        said(Message::SetVringNum(state(0, 128))),
        at(1 << 12),
        kick(true),
        said(Message::SetVringBase(state(0, 7))),
        Event::StoppedAt(9),
        Event::ServedElsewhere,
        Event::Lost,
        Event::Failed,
        said(Message::SetVringCall(ring(0))),
        said(Message::SetVringCall(RingFd { queue: 0, has_fd: false })),
        said(Message::SetVringErr(ring(0))),
        said(Message::GetVringBase(state(0, 0))),
        said(Message::ResetDevice),
        said(Message::ResetOwner),
    ]);
    // At 0 or 7 as was said, or lost since; or at 9, which is known, is hearsay again, or lost: of that its front-end
    // knows 0, 7, or what it was told.
    assert_eq!(states, (2 * 2 + 3 * 3) * (2 * 2 * 2) * (2 * 2 * 2));
}
