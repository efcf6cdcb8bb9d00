//! Links on their way between a daemon and the one that takes over from it: what is known of them, in words and bytes.
//!
//! Here while no sidecore has them. Keys and sessions never go: an IOhost's clients are told that theirs are over, and a
//! client's link begins one of its own. Not here: when (`upgrade`), and what a link is made of (`backend::link`,
//! `sidecore::link`). Called by `upgrade::links`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use backend::link::{Address, LinkKey, LinkSeats};
use config::plan::LinkEnd;
use remote::device_of;
use remote::wire::News;
use sidecore::{Command, FromLink, Link, ToHost};
use tracing::warn;

use super::RemoteParts;
use super::error::{HandingError, InheritError};
use super::seats::{Had, Who};
use super::using::{Asked, Known, remote_disk};
use super::{End, Manager, OneLink, Remote, Stage, frame_bytes, longest};
use crate::defects::{found, late};
use crate::device::Device;
use crate::upgrade::wire::{
    ClientWords, ExportWords, KnownWords, NumberWords, SeatWords, WhoWords,
};

/// What no sidecore has for a moment.
#[derive(Default)]
pub(super) struct Transit {
    /// Seats that were asked for.
    asked: BTreeSet<(LinkKey, usize)>,
    /// Those that are here.
    home: BTreeMap<(LinkKey, usize), Link>,
    /// What they are to be told when a sidecore has them again.
    pub(super) untold: Vec<(LinkKey, usize, Command)>,
    /// What they have said that is to be done then.
    pub(super) later: Vec<(usize, LinkKey, FromLink)>,
    /// Of a predecessor's, what each link begins with.
    inherited: BTreeMap<LinkKey, Inherited>,
}

/// What a link begins with.
struct Inherited {
    sockets: LinkSeats,
    /// A client's end, and its disks.
    client: Option<(Link, Vec<NumberWords>)>,
    /// An IOhost's devices: at which seat, their words and bytes, and whether a client has them.
    exports: Vec<(usize, ExportWords, Vec<u8>, bool)>,
    clients: Vec<(usize, WhoWords)>,
}

/// A seat of a predecessor, as it came.
pub(crate) struct InheritedSeat {
    pub(crate) seat: usize,
    pub(crate) words: SeatWords,
    pub(crate) bytes: Vec<u8>,
}

impl RemoteParts {
    /// Whether its link knows it, so that queues of it can be served.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.number.is_some()
    }
}

impl Transit {
    /// Whether no sidecore hears what a seat is told.
    pub(super) fn is_away(&self, key: LinkKey, seat: usize) -> bool {
        self.asked.contains(&(key, seat))
    }
}

impl Remote {
    /// Whether all seats that were asked for are here.
    pub(crate) fn are_home(&self) -> bool {
        self.transit.asked.iter().all(|seat| self.transit.home.contains_key(seat))
    }

    /// Whether no sidecore has a client's link, which was asked for.
    pub(crate) fn is_on_its_way(&self, key: LinkKey) -> bool {
        self.transit.is_away(key, 0)
    }

    /// Whether a disk is being let go of, which another process could not go on with.
    pub(crate) fn lets_go(&self) -> bool {
        self.links.iter().any(|link| match &link.end {
            End::Iohost(serving) => serving.lets_go(),
            End::Client(_) => false,
        })
    }

    /// The seats that are here, with what their links are called.
    pub(crate) fn home(&self) -> impl Iterator<Item = (LinkKey, &str, usize, &Link)> {
        self.transit.home.iter().filter_map(|((key, seat), link)| {
            let id = &self.links.get(usize::from(key.0))?.plan.id;
            Some((*key, id.as_str(), *seat, link))
        })
    }

    /// What IOhosts have told of disks, by link.
    pub(crate) fn known(&self) -> impl Iterator<Item = (&str, Vec<KnownWords>)> {
        self.links.iter().filter_map(|link| {
            let End::Client(using) = &link.end else { return None };
            let words = |(name, known): (&String, &Known)| {
                let Known::Is(news) = known else { return None };
                let (revision, size, features) = (news.revision, news.size, news.features);
                Some(KnownWords { name: name.clone(), revision, size, features })
            };
            Some((link.plan.id.as_str(), using.known.iter().filter_map(words).collect()))
        })
    }
}

impl OneLink {
    /// What it goes on with, of the sockets of a process before this one. `None`: an IOhost's, for which that one still
    /// has what it needs.
    fn sockets_of(&self, sockets: Vec<OwnedFd>) -> Result<Option<LinkSeats>, InheritError> {
        let source = self.source();
        // Another address, or another interface: it is opened anew, and begins with what is known all the same.
        let inherited = LinkSeats::inherit(&source, sockets).or_else(|why| {
            warn!(link = self.plan.id, "its sockets are made anew: {why}");
            LinkSeats::open(&source, self.seats.len())
        });
        let sockets = match inherited {
            Err(error) if error.why.may_pass() && matches!(self.end, End::Iohost(_)) => {
                return Ok(None);
            }
            inherited => inherited?,
        };
        match longest(&sockets) < usize::from(frame_bytes(&self.plan)) {
            true => Err(InheritError::Mtu),
            false => Ok(Some(sockets)),
        }
    }
}

impl Manager {
    /// Asks sidecores for all links that they have.
    pub(crate) fn ask_for_links(&mut self) {
        for (at, link) in self.rooms.remote.links.iter().enumerate() {
            let key = LinkKey(at as u16);
            let seats = link.seats.iter().enumerate().filter(|_| matches!(link.stage, Stage::Open));
            for (seat, core) in seats {
                if self.rooms.remote.transit.asked.insert((key, seat)) {
                    self.rooms.cores.send(*core, Command::DetachLink(key));
                }
            }
        }
    }

    /// A sidecore gave a link back.
    pub(crate) fn link_is_home(&mut self, core: usize, key: LinkKey, link: Link) {
        let seats = self.rooms.remote.link(key).map(|link| &link.seats);
        let seat = seats.and_then(|seats| seats.iter().position(|one| *one == core));
        let Some(seat) = seat.filter(|seat| self.rooms.remote.transit.is_away(key, *seat)) else {
            // One that was not asked for to be kept.
            return late("seat of a link");
        };
        self.rooms.remote.transit.home.insert((key, seat), link);
        if !self.mode().is_frozen() {
            // It was late for an upgrade that was given up, and so are the queues that go by it.
            self.send_links_out();
            let goes_by = |device: &&Device| {
                let remote = device.kind.disk().and_then(|disk| disk.remote.as_ref());
                remote.is_some_and(|remote| remote.link == key)
            };
            let late = self.rooms.devices.values().filter(goes_by).map(|device| device.number);
            self.rooms.turn.touch_all(late);
        }
    }

    /// Gives sidecores the links that are here, as they are.
    pub(crate) fn send_links_out(&mut self) {
        for ((key, seat), made) in std::mem::take(&mut self.rooms.remote.transit.home) {
            self.rooms.remote.transit.asked.remove(&(key, seat));
            let core = self.rooms.remote.link(key).and_then(|link| link.seats.get(seat).copied());
            match core {
                Some(core) => self.rooms.cores.send(core, Command::AttachLink(key, made)),
                None => self.rooms.turn.defects.note("sidecore of a seat that is here"),
            }
        }
        for (key, seat, told) in std::mem::take(&mut self.rooms.remote.transit.untold) {
            self.command_seat(key, seat, told);
        }
    }

    /// Does what links have asked for meanwhile.
    pub(crate) fn hear_links_later(&mut self) {
        for (core, key, said) in std::mem::take(&mut self.rooms.remote.transit.later) {
            self.hear_link(core, key, said);
        }
    }

    /// Takes what ended out of the rings of seats that are here.
    pub(crate) fn rest_seats(&mut self) {
        for link in self.rooms.remote.transit.home.values_mut() {
            if let Link::Host(link) = link {
                link.come_to_rest();
            }
        }
    }

    /// The clients of seats that are here begin other sessions, with whoever has the address then.
    pub(crate) fn say_farewell(&mut self) {
        for link in self.rooms.remote.transit.home.values_mut() {
            if let Link::Host(link) = link {
                link.farewell();
            }
        }
    }

    /// What is known of a seat, and the bytes behind that. An error when it cannot go over now.
    pub(crate) fn save_seat(
        &self,
        key: LinkKey,
        seat: usize,
        made: &Link,
    ) -> Result<(SeatWords, Vec<u8>), HandingError> {
        let link = self.rooms.remote.links.get(usize::from(key.0)).ok_or(HandingError::NoLink)?;
        let (mut words, mut bytes) = (SeatWords::default(), Vec::new());
        match (&link.end, made) {
            (End::Client(using), Link::Client(made)) => {
                let id = &link.plan.id;
                bytes = made.save().ok_or_else(|| HandingError::Repeating(id.clone()))?;
                let disks = using.numbers.iter().filter_map(|(number, asked)| {
                    let Asked::Disk(device, id, whose) = asked else { return None };
                    let parts = self.rooms.devices.disk(*device)?.remote.as_ref()?;
                    parts.number.filter(|has| has == number)?;
                    let (told_bytes, is_shrunk) = (parts.told_bytes, parts.is_shrunk);
                    let (device, whose, number) = (id.clone(), whose.clone(), *number);
                    Some(NumberWords { number, device, whose, told_bytes, is_shrunk })
                });
                let (disks, len) = (disks.collect(), bytes.len() as u64);
                words.client = Some(ClientWords { bytes: len, disks });
            }
            (End::Iohost(serving), Link::Host(made)) => {
                for (number, export) in (0..).zip(&serving.exports) {
                    let had = export.had.as_ref().filter(|had| had.seat == seat);
                    let Some(saved) = had.and_then(|_| made.save(number)) else { continue };
                    bytes.extend_from_slice(&saved);
                    words.exports.push(ExportWords {
                        name: export.disk.clone(),
                        bytes: saved.len() as u64,
                        generation: export.generation,
                        who: had.and_then(Had::who).map(words_of),
                    });
                }
                words.clients = serving.seated.at(seat).map(words_of).collect();
            }
            _ => return Err(HandingError::Role),
        }
        Ok((words, bytes))
    }

    /// What a predecessor has heard of disks is known here, before they are opened.
    pub(super) fn know_as_before(&mut self) {
        let estate =
            found!(self.rooms.turn.defects, &mut self.rooms.estate, "estate of a predecessor");
        let known = std::mem::take(&mut estate.known);
        if let Some(run) = estate.run {
            self.rooms.remote.run = run;
        }
        for link in &mut self.rooms.remote.links {
            let (Some(known), End::Client(using)) = (known.get(&link.plan.id), &mut link.end)
            else {
                continue;
            };
            for KnownWords { name, revision, size, features } in known {
                let (revision, size, features) = (*revision, *size, *features);
                let news = News { revision, size, features, is_removed: false };
                using.known.insert(name.clone(), Known::Is(news));
            }
        }
    }

    /// Makes of a link's seats what it begins with. A link that this process has not is left out.
    ///
    /// # Errors
    /// What makes no sense.
    pub(crate) fn inherit_link(
        &mut self,
        id: &str,
        sockets: Vec<OwnedFd>,
        parts: Vec<InheritedSeat>,
    ) -> Result<(), InheritError> {
        let key = self.rooms.remote.key_of(id);
        let found = key.and_then(|key| Some((key, self.rooms.remote.link(key)?)));
        let Some((key, link)) = found else { return Ok(()) };
        // It is opened when that can be, and its clients begin as with one that was started anew.
        let Some(mut sockets) = link.sockets_of(sockets)? else { return Ok(()) };
        sockets.sockets.truncate(link.seats.len().max(1));
        let (mut client, mut exports, mut clients) = (None, Vec::new(), Vec::new());
        for InheritedSeat { seat, words, bytes } in parts {
            let mut bytes = bytes.as_slice();
            let mut take = |count: u64| {
                let (taken, rest) = bytes.split_at_checked(count as usize)?;
                bytes = rest;
                Some(taken)
            };
            match (&mut link.end, words.client) {
                (End::Client(using), Some(ClientWords { bytes, disks })) => {
                    let saved = take(bytes).ok_or(InheritError::Short)?;
                    let socket = sockets.sockets.pop().ok_or(InheritError::Short)?;
                    let made = using.make_of(&link.plan, socket, saved)?;
                    let has = |one: &NumberWords| made.disks().any(|disk| disk == one.number);
                    let numbers: BTreeSet<u16> = disks.iter().map(|one| one.number).collect();
                    if numbers.len() < disks.len() || !disks.iter().all(has) {
                        return Err(InheritError::Number);
                    }
                    client = Some((Link::Client(made), disks));
                }
                (End::Iohost(_), None) => {
                    let seat = seat % sockets.sockets.len().max(1);
                    for export in words.exports {
                        let saved = take(export.bytes).ok_or(InheritError::Short)?.to_vec();
                        let is_had = remote::iohost::check_saved(&saved)?;
                        exports.push((seat, export, saved, is_had));
                    }
                    clients.extend(words.clients.into_iter().map(|who| (seat, who)));
                }
                // It had the other role: nothing of that is of use.
                _ => return Ok(()),
            }
        }
        let inherited = Inherited { sockets, client, exports, clients };
        self.rooms.remote.transit.inherited.insert(key, inherited);
        Ok(())
    }

    /// Begins with what was inherited, now that nobody else has it; what was not is opened.
    pub(crate) fn open_inherited_links(&mut self) {
        for (key, inherited) in std::mem::take(&mut self.rooms.remote.transit.inherited) {
            let Inherited { sockets, client, exports, clients } = inherited;
            match client {
                Some((link, disks)) => self.go_on_using(key, link, disks),
                None => {
                    self.link_is_open(key, sockets);
                    self.go_on_serving(key, exports, clients);
                }
            }
        }
        self.open_links(self.rooms.turn.now());
    }

    fn go_on_using(&mut self, key: LinkKey, mut made: Link, disks: Vec<NumberWords>) {
        let number_of = |words: &NumberWords| {
            let its = self.rooms.devices.number_of(&words.device)?;
            let parts = self.rooms.devices.disk(its)?.remote.as_ref()?;
            let device = match &made {
                Link::Client(made) => made.device(words.number),
                Link::Host(_) => None,
            };
            (parts.link == key && device == Some(device_of(&parts.name))).then_some(its)
        };
        let known: Vec<(NumberWords, Option<u32>)> =
            disks.into_iter().map(|words| (words.clone(), number_of(&words))).collect();
        if let Link::Client(made) = &mut made {
            for (words, its) in &known {
                let parts = its.and_then(|its| self.rooms.devices.disk(its));
                let image = parts.map_or(0, |parts| parts.bond.told_number());
                made.remember_image(words.number, image);
            }
            // What this process has not is given back.
            let has =
                |disk: u16| known.iter().any(|(one, its)| one.number == disk && its.is_some());
            let gone: Vec<u16> = made.disks().filter(|disk| !has(*disk)).collect();
            gone.into_iter().for_each(|disk| made.release(disk));
        }
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        link.stage = Stage::Open;
        let using = found!(self.rooms.turn.defects, link.using(), "client's end of that link");
        for (words, its) in &known {
            let (device, whose) = (words.device.clone(), words.whose.clone());
            let asked = Asked::Disk(its.unwrap_or(u32::MAX), device, whose);
            using.numbers.insert(words.number, asked);
        }
        self.begin_seats(key, vec![made]);
        for (words, its) in known {
            if let Some(its) = its {
                self.goes_on_as(its, &words);
            }
        }
        self.ask_again(key, self.rooms.turn.now());
    }

    /// A device has that number of its link, since a process before this one asked for it.
    fn goes_on_as(&mut self, number: u32, words: &NumberWords) {
        let parts = self.rooms.devices.get_mut(number).and_then(|device| device.kind.disk_mut());
        let parts = found!(self.rooms.turn.defects, parts, "disk that goes on by its link");
        let (size, readonly) = (parts.disk.size_bytes(), parts.plan.readonly);
        let remote =
            found!(self.rooms.turn.defects, &mut parts.remote, "link of a disk that goes on by it");
        let using = self.rooms.remote.using(remote.link);
        let using = found!(self.rooms.turn.defects, using, "client's end of that link");
        let Some(Known::Is(news)) = using.known.get(&remote.name).cloned() else {
            return self.rooms.turn.defects.note("word of what a disk is that is open");
        };
        remote.number = Some(words.number);
        (remote.told_bytes, remote.is_shrunk) = (words.told_bytes, words.is_shrunk);
        parts.disk = remote_disk(remote, &News { size, ..news }, readonly, words.number);
    }

    fn go_on_serving(
        &mut self,
        key: LinkKey,
        exports: Vec<(usize, ExportWords, Vec<u8>, bool)>,
        clients: Vec<(usize, WhoWords)>,
    ) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let lease_s = match &link.plan.end {
            LinkEnd::Iohost { lease_s, .. } => *lease_s,
            LinkEnd::Client { .. } => 0,
        };
        let for_ns = Duration::from_secs(lease_s.into()).as_nanos() as u64;
        let serving = found!(self.rooms.turn.defects, link.serving(), "IOhost's end of that link");
        for (seat, words) in clients {
            serving.seated.comes_back(who_of(&words), seat, self.rooms.turn.now());
        }
        for (seat, words, saved, is_here) in exports {
            let serving = self.rooms.remote.serving(key);
            let serving = found!(self.rooms.turn.defects, serving, "IOhost's end of that link");
            let mut exports = (0..).zip(&mut serving.exports);
            let found = exports.find(|(_, one)| one.disk == words.name);
            // Clients may have it no more.
            let Some((number, export)) = found else { continue };
            export.had = Some(Had::before(seat, words.who.as_ref().map(who_of), is_here));
            export.generation = export.generation.max(words.generation);
            let generation = export.generation;
            self.tell_seat(key, seat, ToHost::TakeOver { export: number, saved, for_ns });
            if is_here {
                let (export, is_answer) = (number, false);
                let told = || ToHost::Elsewhere { export, generation, is_answer };
                self.tell_seats(key, Some(seat), told);
            }
        }
    }
}

fn words_of((key, at): &Who) -> WhoWords {
    let (udp, station) = (at.and_then(|at| at.as_udp()), at.and_then(|at| at.as_station()));
    WhoWords { key: *key, udp, station }
}

fn who_of(words: &WhoWords) -> Who {
    let at = words.udp.map(Address::udp).or(words.station.map(Address::station));
    (words.key, at)
}
