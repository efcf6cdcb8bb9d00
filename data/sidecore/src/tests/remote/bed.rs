//! A sidecore with a link, its control's part of that, IOhosts, and the time of all.

use std::sync::Arc;

use backend::link::{Address, ClientLink, LinkCounters, LinkSocket};
use backend::{Disk, Limits, RemoteDisk};
use random::Random;
use remote::client::{AttachSpec, ClientSpec, Event as ClientEvent, Standing};
use remote::handshake::{Identity, Initiator, Offer, Step};
use schedule::Nanos;

use super::iohost::{Bits, DEVICE, FRAME_BYTES, IoHost, Storage};
use super::wire::{Weather, Wire};
use crate::link::{FromClient, Link, LinkKey, ToClient};
use crate::tests::bed::{Core, DISK, Guest};
use crate::{Command, Event};

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const LINK: LinkKey = LinkKey(3);
/// The link's number of the disk.
pub(super) const NUMBER: u16 = 2;
pub(super) const LEASE_MS: u32 = 1000;
pub(super) const SPEC: AttachSpec =
    AttachSpec { device: DEVICE, slots: 16, slot_bytes: 128 << 10, keep_bytes: 0 };

pub(super) fn at(host: u16) -> Address {
    Address::udp(([10, 0, 0, 1], 7000 + host).into())
}

pub(super) struct World {
    pub(super) core: Core,
    pub(super) wire: Arc<Wire>,
    pub(super) hosts: Vec<IoHost>,
    pub(super) storage: Storage,
    /// What the link said of disks.
    pub(super) told: Vec<ClientEvent>,
    /// What is to be kept of disks; which is done, as all is heard, at once or never.
    pub(super) stands: Vec<(u16, Option<Standing>)>,
    pub(super) keeps: bool,
    /// Numbers that are free again.
    pub(super) freed: Vec<u16>,
    pub(super) counters: Arc<LinkCounters>,
    /// Whom it wanted to speak to.
    pub(super) asked: Vec<Address>,
    /// Numbers that were refused.
    pub(super) unattached: Vec<u16>,
    /// All other events.
    pub(super) events: Vec<Event>,
    pub(super) is_asleep: bool,
    /// When the last step was.
    pub(super) passed_at: u64,
    /// Steps after which it did not sleep.
    pub(super) awake: u32,
    handshake: Option<Initiator>,
    sessions: u32,
    bits: Bits,
}

impl World {
    /// With so many IOhosts, and a link that has a session with the first and the disk.
    pub(super) fn new(hosts: u16, weather: Weather, seed: u64, fail_after: Option<u64>) -> World {
        let wire = Wire::new(weather, seed);
        let mut world = World {
            core: Core::new(4),
            hosts: (1..=hosts).map(|host| IoHost::new(&wire, at(host), LEASE_MS)).collect(),
            storage: Storage::new(),
            told: Vec::new(),
            stands: Vec::new(),
            keeps: true,
            freed: Vec::new(),
            counters: Arc::default(),
            asked: Vec::new(),
            unattached: Vec::new(),
            events: Vec::new(),
            is_asleep: false,
            passed_at: 0,
            awake: 0,
            handshake: None,
            sessions: seed as u32,
            bits: Bits(Random::new(seed, 5)),
            wire,
        };
        let socket = LinkSocket::simulated(Arc::clone(&world.wire) as _, at(0)).expect("an end");
        let spec = ClientSpec { instance: seed + 1, ring_frames: 256, fail_after_ns: fail_after };
        let iohosts = (1..=hosts).map(at).collect();
        let link = ClientLink::new(socket, iohosts, spec);
        world.counters = link.counters();
        let link = Link::Client(Box::new(link));
        world.core.send(Command::AttachLink(LINK, link));
        world.tell(ToClient::Attach { disk: NUMBER, spec: SPEC, standing: None });
        assert!(world.until(5 * SECOND, |world| world.is_bound()), "{:?}", world.told);
        // Its requests may go.
        world.step();
        world
    }

    pub(super) fn is_bound(&self) -> bool {
        matches!(self.told.last(), Some(ClientEvent::Bound { attachment: NUMBER, .. }))
    }

    pub(super) fn disk(&self) -> Arc<Disk> {
        self.disk_of(Limits { discard_sectors_max: 1 << 16, zeroes_sectors_max: 1 << 16 })
    }

    pub(super) fn disk_of(&self, limits: Limits) -> Arc<Disk> {
        Disk::remote(RemoteDisk {
            link: LINK,
            disk: NUMBER,
            size_bytes: DISK,
            block_size: 512,
            physical_block_size: 512,
            grain: Default::default(),
            limits,
            readonly: false,
        })
    }

    /// A guest with that disk.
    pub(super) fn attach(&mut self, guest: &Guest, device: u32) {
        let spec = guest.spec(device, &self.disk());
        self.core.attach(guest, spec);
    }

    /// The process of this IOhost begins anew.
    pub(super) fn start(&mut self, host: usize) {
        self.hosts[host].start(self.storage.generation);
    }

    pub(super) fn tell(&mut self, told: ToClient) {
        self.core.send(Command::ToClient(LINK, Box::new(told)));
    }

    /// One pass of all, and the time goes on to the next thing that happens, at most a millisecond.
    pub(super) fn step(&mut self) {
        let now = self.core.now;
        self.passed_at = now.0;
        self.wire.set_now(now.0);
        if std::mem::take(&mut self.is_asleep) {
            self.core.sidecore.look(now);
        }
        let is_idle = self.core.pass().is_idle();
        let mut is_woken = false;
        self.is_asleep = is_idle && self.core.sidecore.falls_asleep(now);
        if self.is_asleep {
            is_woken = self.core.sidecore.look(now) > 0;
        } else {
            self.awake += 1;
        }
        self.core.sidecore.rest.bell().awake();
        for event in self.core.events() {
            self.hear(event);
        }
        for host in &mut self.hosts {
            host.step(now.0, &mut self.storage);
        }
        let of_hosts = self.hosts.iter().filter_map(IoHost::due);
        let mine = self.core.sidecore.next_due().map(|due| due.0);
        if is_woken {
            return;
        }
        let due = of_hosts.chain(mine).chain(self.wire.due()).min().unwrap_or(u64::MAX);
        self.core.now = Nanos(due.clamp(self.core.now.0, now.0 + MS));
    }

    /// Until it is so, or so much time has passed (false).
    pub(super) fn until(
        &mut self,
        limit_ns: u64,
        mut is_so: impl FnMut(&mut World) -> bool,
    ) -> bool {
        let end = self.core.now.0 + limit_ns;
        loop {
            if is_so(self) {
                return true;
            }
            if self.core.now.0 >= end {
                return false;
            }
            self.step();
        }
    }

    pub(super) fn run(&mut self, ns: u64) {
        self.until(ns, |_| false);
    }

    /// Requests that ended, with their status, until there are so many.
    pub(super) fn ended(&mut self, guest: &mut Guest, count: usize) -> Vec<(usize, u8)> {
        let mut ended = Vec::new();
        self.until(20 * SECOND, |_| {
            ended.extend(guest.take());
            ended.len() >= count
        });
        assert_eq!(ended.len(), count, "{ended:?}");
        ended
    }

    /// The same, and all ended well.
    pub(super) fn ended_well(&mut self, guest: &mut Guest, count: usize) {
        let ended = self.ended(guest, count);
        assert!(ended.iter().all(|(_, status)| *status == 0), "{ended:?}");
    }

    fn heard(&mut self, number: u16) {
        if self.keeps {
            self.tell(ToClient::Heard(number));
        }
    }

    fn hear(&mut self, event: Event) {
        let Event::FromClient(LINK, said) = event else { return self.events.push(event) };
        match *said {
            FromClient::WantsSession(iohost) => {
                self.asked.push(iohost);
                self.sessions += 1;
                let offer = Offer::new(false, FRAME_BYTES, 64);
                let (none, number) = (Identity::None, self.sessions);
                let made = Initiator::new(&none, [0; 32], number, offer, &mut self.bits);
                let made = made.expect("an initiator");
                self.tell(ToClient::Hello(made.hello().to_vec()));
                self.handshake = Some(made);
            }
            FromClient::Greet { frame, from } => {
                let Some(handshake) = &mut self.handshake else { return };
                match handshake.receive(&frame) {
                    Ok(Step::Again) => {
                        let hello = handshake.hello().to_vec();
                        self.tell(ToClient::Hello(hello));
                    }
                    Ok(Step::Done(made)) => {
                        self.handshake = None;
                        self.tell(ToClient::Establish { made, peer: from });
                    }
                    // The answer to a hello that was said twice.
                    Err(_) => {}
                }
            }
            FromClient::Iohost(ClientEvent::Stands { attachment, standing }) => {
                self.stands.push((attachment, standing));
                self.heard(attachment);
            }
            FromClient::Iohost(event) => {
                self.told.push(event);
                if let ClientEvent::Bound { attachment, .. }
                | ClientEvent::News { attachment, .. }
                | ClientEvent::Refused { attachment, .. } = event
                {
                    self.heard(attachment);
                }
            }
            FromClient::Freed(number) => self.freed.push(number),
            FromClient::Unattached(number) => self.unattached.push(number),
        }
    }
}
