//! Disks of other machines: what is known of them, and when they are asked for and given back.
//!
//! A remote disk is open here once its IOhost has said what it is. It is asked for when a guest's first ring is to
//! start, and given back when the last one has stopped, so that a guest can take its disk along to another
//! machine. Not here: how requests get there (`backend::link`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::{Address, ClientLink, LinkCounters, LinkKey, LinkSocket};
use backend::{Disk, Grain, Limits, RemoteDisk};
use config::Mac;
use config::api::Removed;
use config::plan::{DiskPlan, LinkEnd, LinkPeer, LinkPlan, Source};
use remote::client::{AttachSpec, ClientSpec, Event, Over, Refusal, Standing};
use remote::saved::BadSaved;
use remote::wire::{News, REQUEST_BYTES_MAX};
use sidecore::{Link, ToClient};
use tracing::{info, warn};

use super::error::{LINK_FULL, LinkFull};
use super::told::Features;
use super::waits::Waits;
use super::{Manager, RING_FRAMES, Stage, device_of, random};
use crate::defects::{found, late};
use crate::disk::{self, DiskParts};
use crate::opening::not_open::NotOpen;

/// Outstanding parts of requests of one disk.
const SLOTS: u16 = 128;
/// Between two times that an IOhost is asked for a disk that it does not have.
const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// The client's end of a link.
pub(super) struct Using {
    /// What IOhosts said of disks, by their names there.
    pub(super) known: BTreeMap<String, Known>,
    /// Whose number it is on the link: each is used once, and comes again after some thousands.
    pub(super) numbers: BTreeMap<u16, Asked>,
    next_number: u16,
    /// The last session's number.
    session: u32,
    /// The IOhost that answered last.
    pub(super) peer: Option<Address>,
    /// Since when it answers no more.
    pub(super) silent_since: Option<Instant>,
    /// Whether the log says so: not before it was given time to answer, as one that is replaced needs.
    pub(super) is_told: bool,
    /// What was heard by then.
    pub(super) heard_then: u64,
    pub(super) counters: Option<Arc<LinkCounters>>,
    /// Of each disk, for copies of writes that were not flushed.
    keep_bytes: u32,
}

/// What is known of a disk.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Its IOhost was asked, or is to be asked then again.
    Asked { why: &'static str, again_at: Option<Instant> },
    /// As its IOhost says.
    Is(News),
}

/// What a number on a link is for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// What the disk of that name is.
    Look(String),
    /// The disk of this device; its name here, and whose it is ([`RemoteParts::whose`]).
    Disk(u32, String, String),
    /// The NIC of this port.
    Nic(u32),
}

/// What only a disk of another machine has.
pub(crate) struct RemoteParts {
    pub(crate) link: LinkKey,
    /// Its sidecore: that of the link.
    pub(crate) core: usize,
    /// Its name there.
    pub(super) name: String,
    /// Its number on the link, while it is asked for.
    pub(super) number: Option<u16>,
    /// Its IOhost has said that it is ours.
    pub(super) is_bound: bool,
    /// How large it was when its IOhost said so last, since it was asked for.
    pub(super) told_bytes: Option<u64>,
    /// Since then it has become smaller, and no request of it is done any more.
    pub(super) is_shrunk: bool,
    /// Its IOhost has removed it, or lets this machine have it no more. It is asked what it is until there is one again.
    pub(crate) removed: Option<Removed>,
    /// Writes that were said to be done are gone: no flush succeeds, until an operator knows.
    pub(crate) is_lost: bool,
    pub(crate) waits: Waits,
}

impl RemoteParts {
    /// Which disk it is, as marks say it.
    pub(crate) fn whose(plan: &DiskPlan) -> Option<String> {
        match &plan.source {
            Source::Remote { link, name } => Some(format!("{link}/{name}")),
            _ => None,
        }
    }
}

/// What a guest's disk has that became smaller under it.
const SHRUNK: &str = "its IOhost has made it smaller while its guest used it, so that every request fails; \
     restart its guest";

impl Using {
    pub(super) fn new() -> Using {
        Using {
            known: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            session: random() as u32,
            peer: None,
            silent_since: None,
            is_told: false,
            heard_then: 0,
            counters: None,
            keep_bytes: 0,
        }
    }

    /// The link, for its sidecore.
    pub(super) fn make(&mut self, plan: &LinkPlan, socket: LinkSocket) -> Link {
        let (iohosts, spec) = self.parts(plan);
        let link = Box::new(ClientLink::new(socket, iohosts, spec));
        self.counters = Some(link.counters());
        Link::Client(link)
    }

    /// The same with what another process had.
    ///
    /// # Errors
    /// It makes no sense.
    pub(super) fn make_of(
        &mut self,
        plan: &LinkPlan,
        socket: LinkSocket,
        saved: &[u8],
    ) -> Result<Box<ClientLink>, BadSaved> {
        let (iohosts, spec) = self.parts(plan);
        let link = Box::new(ClientLink::take_over(socket, iohosts, spec, saved)?);
        self.counters = Some(link.counters());
        Ok(link)
    }

    /// What a link is made of.
    fn parts(&mut self, plan: &LinkPlan) -> (Vec<Address>, ClientSpec) {
        let (iohosts, fail_after_s) = match &plan.end {
            LinkEnd::Client { iohosts, fail_after_s, keep_bytes, .. } => {
                self.keep_bytes = *keep_bytes;
                (iohosts.as_slice(), *fail_after_s)
            }
            LinkEnd::Iohost { .. } => (&[][..], None),
        };
        let spec = ClientSpec {
            instance: random(),
            ring_frames: RING_FRAMES,
            fail_after_ns: fail_after_s.map(|seconds| u64::from(seconds) * 1_000_000_000),
        };
        let address = |peer: &LinkPeer| match *peer {
            LinkPeer::Udp(at) => Address::udp(at),
            LinkPeer::Station(Mac(mac)) => Address::station(mac),
        };
        (iohosts.iter().map(address).collect(), spec)
    }

    /// A session is to begin: its number.
    pub(super) fn next_session(&mut self) -> u32 {
        self.session = self.session.wrapping_add(1);
        self.session
    }

    /// There is a session.
    pub(super) fn established(&mut self, peer: Address) {
        self.peer = Some(peer);
    }

    /// When a disk is asked for again, or a silence is to be told of.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let again = self.known.values().filter_map(|known| match known {
            Known::Asked { again_at, .. } => *again_at,
            Known::Is(_) => None,
        });
        again.chain(self.told_at()).min()
    }

    /// A number that nobody has.
    ///
    /// # Errors
    /// Each is used.
    pub(super) fn number(&mut self, asked: Asked) -> Result<u16, LinkFull> {
        for _ in 0..remote::ATTACHMENTS_MAX {
            let number = self.next_number;
            self.next_number = (number + 1) % remote::ATTACHMENTS_MAX;
            if let Entry::Vacant(free) = self.numbers.entry(number) {
                free.insert(asked);
                return Ok(number);
            }
        }
        Err(LinkFull)
    }
}

impl Manager {
    /// Opens a disk of another machine, if it is known what that is.
    pub(crate) fn open_remote(&mut self, plan: DiskPlan) -> Result<DiskParts, NotOpen> {
        let Source::Remote { link: id, name } = &plan.source else {
            return Err(NotOpen::Wrong("it is no disk of another machine".to_string()));
        };
        let key = self.rooms.remote.key_of(id);
        let Some((key, link)) = key.and_then(|key| Some((key, self.rooms.remote.link(key)?)))
        else {
            return Err(NotOpen::Wrong(format!(
                "link {id:?} is made at the daemon's start: restart it"
            )));
        };
        let core = link.core();
        let Some(using) = link.using() else {
            self.rooms.turn.defects.note("client's end of that link");
            return Err(NotOpen::Wrong(format!("link {id:?} is of the other role")));
        };
        let silent_since = using.silent_since;
        let news = match using.known.get(name).cloned() {
            Some(Known::Is(news)) => news,
            Some(Known::Asked { why, .. }) => {
                return Err(NotOpen::Ended(format!("{why} (link {id:?})")));
            }
            None => {
                let why = "its IOhost has not answered yet";
                let again_at = Some(self.rooms.turn.now());
                using.known.insert(name.clone(), Known::Asked { why, again_at });
                self.ask_again(key, self.rooms.turn.now());
                return Err(NotOpen::Ended(format!("{why} (link {id:?})")));
            }
        };
        let parts = RemoteParts {
            link: key,
            core,
            name: name.clone(),
            number: None,
            is_bound: false,
            told_bytes: None,
            is_shrunk: false,
            removed: None,
            is_lost: false,
            waits: Waits { silent_since, asked_at: None },
        };
        let disk = remote_disk(&parts, &news, plan.readonly, 0);
        Ok(DiskParts::of_remote(plan, disk, parts))
    }

    /// Asks IOhosts what disks are, of which that is not known.
    pub(super) fn ask_again(&mut self, key: LinkKey, now: Instant) {
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        if !matches!(link.stage, Stage::Open) {
            return;
        }
        // An IOhost's asks for nothing.
        let Some(using) = link.using() else { return };
        let is_due =
            |known: &Known| matches!(known, Known::Asked { again_at: Some(at), .. } if *at <= now);
        let due = using.known.iter().filter(|(_, known)| is_due(known));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let mut looks = Vec::new();
        for name in due {
            let number = using.number(Asked::Look(name.clone()));
            looks.extend(number.as_ref().map(|number| (*number, device_of(&name))));
            if let Some(Known::Asked { why, again_at }) = using.known.get_mut(&name) {
                *again_at = number.is_err().then_some(now + ASK_INTERVAL);
                *why = number.map_or(LINK_FULL, |_| *why);
            }
        }
        for (disk, device) in looks {
            self.tell_client(key, ToClient::Look { disk, device });
        }
    }

    /// A number that was given is none that the link could take.
    pub(super) fn is_unattached(&mut self, key: LinkKey, disk: u16) {
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        using.numbers.remove(&disk);
        self.rooms.turn.defects.note("free place on its link for a disk that is asked for");
    }

    /// What an IOhost says. Of a disk no more is said until this was heard.
    pub(super) fn hear_iohost(&mut self, key: LinkKey, event: Event) {
        let heard = match event {
            Event::Stands { attachment, .. }
            | Event::Bound { attachment, .. }
            | Event::News { attachment, .. }
            | Event::Refused { attachment, .. } => Some(attachment),
            _ => None,
        };
        if self.hear_of_nic(key, &event) {
            if let Some(disk) = heard {
                self.tell_client(key, ToClient::Heard(disk));
            }
            return;
        }
        match event {
            Event::Stands { attachment, standing } => self.stands(key, attachment, standing),
            Event::Looked { attachment, news } => self.looked(key, attachment, news),
            Event::Refused { attachment, why: Refusal::Changed } => self.is_other(key, attachment),
            Event::Bound { attachment, news, .. } => {
                self.is_known(key, attachment, news);
                self.note_disk(key, attachment, |parts| {
                    parts.is_bound = true;
                    parts.waits.asked_at = None;
                    parts.is_shrunk.then_some(SHRUNK)
                });
                if let Some(parts) = self.asked_for(key, attachment) {
                    parts.bond.forget_refusal();
                }
            }
            Event::News { attachment, news } => {
                self.is_known(key, attachment, news);
                self.note_disk(key, attachment, |parts| parts.is_shrunk.then_some(SHRUNK));
            }
            Event::Refused { attachment, why } => {
                if why == Refusal::NoDevice {
                    self.is_removed_there(key, attachment, Removed::Waits);
                }
                let why = match why {
                    Refusal::NoDevice => {
                        "its IOhost has no such disk for this machine: see its [[link.client]]"
                    }
                    Refusal::Busy => {
                        "another machine has it, or its IOhost has no room; it is asked for again and again"
                    }
                    Refusal::Failed => "its IOhost cannot open it: see its log",
                    // Said by `is_other`.
                    Refusal::Changed => return,
                };
                self.note_disk(key, attachment, |parts| {
                    parts.is_bound = false;
                    parts.waits.asked_at = None;
                    Some(why)
                });
            }
            Event::Over { attachment, why } => {
                if why == Over::Revoked {
                    self.is_removed_there(key, attachment, Removed::Fails);
                }
                self.is_over(key, attachment, why);
            }
            Event::SessionBegan => self.note_session(key, true),
            Event::SessionEnded => self.note_session(key, false),
        }
        if let Some(disk) = heard {
            self.tell_client(key, ToClient::Heard(disk));
        }
    }

    fn looked(&mut self, key: LinkKey, number: u16, news: Option<News>) {
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        let Some(Asked::Look(name)) = using.numbers.remove(&number) else {
            return self.rooms.turn.defects.note("name of a disk that was looked at");
        };
        let known = match news.filter(|news| !news.is_removed) {
            Some(news) => Known::Is(news),
            None => Known::Asked {
                why: "its IOhost has no such disk for this machine: see its [[link.client]]",
                again_at: Some(self.rooms.turn.now() + ASK_INTERVAL),
            },
        };
        let is_there = matches!(known, Known::Is(_));
        using.known.insert(name.clone(), known);
        if is_there {
            self.is_there_again(key, &name);
            self.rooms.shut.retry_all(self.rooms.turn.now());
        }
    }

    /// Its IOhost has a disk no more.
    fn is_removed_there(&mut self, key: LinkKey, number: u16, removed: Removed) {
        // What is only looked at is told of otherwise.
        let Some(device) = self.disk_of(key, number) else { return };
        let Some(parts) = self.remote_parts_mut(device) else { return late("disk of a link") };
        parts.removed = Some(removed);
        let name = parts.name.clone();
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        let why = "its IOhost has removed it";
        let again_at = Some(self.rooms.turn.now() + ASK_INTERVAL);
        using.known.insert(name, Known::Asked { why, again_at });
    }

    /// Its IOhost has a disk that it had removed.
    fn is_there_again(&mut self, key: LinkKey, name: &str) {
        for (number, device) in self.rooms.devices.iter_mut() {
            let parts = device.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
            let is_it = |parts: &&mut RemoteParts| parts.link == key && parts.name == name;
            let Some(parts) = parts.filter(is_it) else { continue };
            parts.removed = None;
            self.rooms.turn.touch(*number);
        }
    }

    /// A disk that is asked for is so, or is so now.
    fn is_known(&mut self, key: LinkKey, number: u16, news: News) {
        let Some(device) = self.disk_of(key, number) else { return };
        let Some(parts) = self.remote_parts(device) else { return late("disk of a link") };
        let name = parts.name.clone();
        if news.is_removed {
            return;
        }
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        using.known.insert(name.clone(), Known::Is(news));
        self.is_there_again(key, &name);
        let parts =
            found!(self.rooms.turn.defects, self.rooms.devices.disk_mut(device), "disk of a link");
        if let Some(remote) = parts.remote.as_mut().filter(|remote| remote.number == Some(number)) {
            let before = remote.told_bytes.replace(news.size);
            remote.is_shrunk |= before.is_some_and(|before| news.size < before);
        }
        if news.size != parts.disk.size_bytes() {
            info!(disk = parts.plan.id, size = news.size, "its IOhost has given it another size");
            parts.resizing = Some(news.size);
            self.rooms.turn.touch(device);
        }
    }

    /// Something has become of a disk that is asked for: `act` says what is wrong with it now, if anything is.
    fn note_disk(
        &mut self,
        key: LinkKey,
        number: u16,
        act: impl FnOnce(&mut RemoteParts) -> Option<&'static str>,
    ) {
        let Some(device) = self.disk_of(key, number) else { return };
        let Some(device) = self.rooms.devices.get_mut(device) else {
            return late("disk of a link");
        };
        let parts = device.kind.disk_mut().and_then(|disk| disk.remote.as_mut());
        let parts =
            found!(self.rooms.turn.defects, parts, "link of a disk that it has a number for");
        // It has another number since, or none.
        if parts.number != Some(number) {
            return;
        }
        let problem = act(parts).map(str::to_string);
        if device.problem != problem {
            match &problem {
                Some(problem) if device.log.allows(self.rooms.turn.now()) => {
                    warn!(disk = device.facts.id, "{problem}")
                }
                None => info!(disk = device.facts.id, "its IOhost serves it"),
                Some(_) => {}
            }
            device.problem = problem;
        }
    }

    /// Nothing of a disk is executed any more.
    fn is_over(&mut self, key: LinkKey, number: u16, why: Over) {
        let text = match why {
            Over::Released => None,
            Over::Unsynced => {
                Some("its IOhost could not make stable what was written last; check its data")
            }
            Over::Revoked => {
                Some("its IOhost has given it up; restart its guest when it is there again")
            }
            Over::Taken => Some("another machine has taken it; restart its guest to have it back"),
            Over::Changed => {
                Some("it was given back: its IOhost has another image than its guest was on")
            }
            Over::Silent => {
                Some("its IOhost fell silent, and requests failed; it is asked for anew")
            }
        };
        // Nothing is wrong.
        let Some(text) = text else { return };
        let mut has_guest = false;
        self.note_disk(key, number, |parts| {
            has_guest = true;
            // One that fell silent is asked for anew by its link, with whatever size it has then.
            (parts.is_bound, parts.is_shrunk, parts.told_bytes) = (false, false, None);
            // What has become of it says more.
            parts.waits = Waits::default();
            Some(text)
        });
        if has_guest {
            return;
        }
        let link =
            found!(self.rooms.turn.defects, self.rooms.remote.link(key), "link of that number");
        let id = link.plan.id.clone();
        let asked = link.using().and_then(|using| using.numbers.get(&number));
        if let Some(Asked::Disk(_, disk, _)) = asked {
            warn!(link = id, disk, "{text}");
        }
    }

    /// Asks for a remote disk when a ring of it is to start, and gives it back when none is there any more.
    pub(crate) fn follow_remote(&mut self, number: u32) {
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get(number),
            "device that is settled"
        );
        let Some(parts) = device.kind.disk().and_then(|disk| disk.remote.as_ref()) else { return };
        let is_idle = device.attached().is_empty() && !device.is_started(None);
        let (key, asked, wants) = (parts.link, parts.number, device.wants_to_start());
        match asked {
            None if wants => self.take_remote(number, key),
            Some(_) if is_idle => self.release_remote(number),
            _ => {}
        }
    }

    fn take_remote(&mut self, number: u32, key: LinkKey) {
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get(number),
            "device that is settled"
        );
        let parts = found!(self.rooms.turn.defects, device.kind.disk(), "disk that is asked for");
        let (id, whose) = (parts.plan.id.clone(), RemoteParts::whose(&parts.plan));
        let whose = found!(self.rooms.turn.defects, whose, "IOhost of a disk that is asked for");
        let link = device.runner.and_then(|link| device.connections.get(&link));
        let is_running = link.is_some_and(|link| disk::is_running(device.facts.rings, link));
        let image = if is_running { parts.bond.told_number() } else { 0 };
        let remote = parts.remote.as_ref();
        let remote = found!(self.rooms.turn.defects, remote, "link of a disk that is asked for");
        let (name, is_lost) = (remote.name.clone(), remote.is_lost);
        let none = Standing { verifier: None, is_unflushed: false, is_lost, image };
        let standing = match self.rooms.remote.standings.of(&id, &whose) {
            None => Some(none).filter(|_| is_lost || image != 0),
            Some(standing) => Some(Standing { is_lost, image, ..standing }),
        };
        let using = found!(
            self.rooms.turn.defects,
            self.rooms.remote.using(key),
            "client's end of that link"
        );
        // One that its IOhost has no more is open still, and is asked about until that has it again.
        let Some(Known::Is(news)) = using.known.get(&name).cloned() else { return };
        let asked = Asked::Disk(number, id.clone(), whose);
        let (disk, keep_bytes) = (using.number(asked), using.keep_bytes);
        let now = self.rooms.turn.now();
        let device = found!(
            self.rooms.turn.defects,
            self.rooms.devices.get_mut(number),
            "device that is settled"
        );
        let disk = match disk {
            Ok(disk) => disk,
            Err(why) => return device.problem = Some(why.to_string()),
        };
        let parts =
            found!(self.rooms.turn.defects, device.kind.disk_mut(), "disk that is asked for");
        let (readonly, now_size) = (parts.plan.readonly, parts.disk.size_bytes());
        let remote = parts.remote.as_mut();
        let remote = found!(self.rooms.turn.defects, remote, "link of a disk that is asked for");
        let news = News { size: now_size, ..news };
        remote.number = Some(disk);
        remote.waits.asked_at = remote.waits.silent_since.is_none().then_some(now);
        let device = device_of(&remote.name);
        parts.disk = remote_disk(remote, &news, readonly, disk);
        let spec =
            AttachSpec { device, slots: SLOTS, slot_bytes: REQUEST_BYTES_MAX as u32, keep_bytes };
        self.tell_client(key, ToClient::Attach { disk, spec, standing });
        if !is_running {
            // A guest that begins anew is on whatever is there.
            self.is_on(number, &id, 0);
            self.tell_client(key, ToClient::Accept(disk));
        }
    }

    /// What a device has of a link is given back.
    pub(crate) fn release_remote(&mut self, number: u32) {
        // Of all devices: it may have nothing of one, or may not be asked for.
        let Some(parts) = self.remote_parts_mut(number) else { return };
        let (key, asked) = (parts.link, parts.number.take());
        (parts.is_bound, parts.is_shrunk, parts.told_bytes) = (false, false, None);
        parts.waits.asked_at = None;
        let Some(disk) = asked else { return };
        let device =
            found!(self.rooms.turn.defects, self.rooms.devices.get_mut(number), "disk of a link");
        // What its IOhost said of it is over.
        device.problem = None;
        if let Some(parts) = device.kind.disk_mut() {
            parts.bond.forget_refusal();
        }
        // Its link says when nothing of it is executed any more, and when its number is free.
        self.tell_client(key, ToClient::Release(disk));
    }

    pub(super) fn remote_parts(&self, number: u32) -> Option<&RemoteParts> {
        self.rooms.devices.disk(number)?.remote.as_ref()
    }

    pub(super) fn remote_parts_mut(&mut self, number: u32) -> Option<&mut RemoteParts> {
        self.rooms.devices.disk_mut(number)?.remote.as_mut()
    }
}

/// The disk as its queues reach it, by that number of its link.
pub(super) fn remote_disk(
    parts: &RemoteParts,
    news: &News,
    readonly: bool,
    disk: u16,
) -> Arc<Disk> {
    let features = Features::of_bits(news.features);
    Disk::remote(RemoteDisk {
        link: parts.link,
        disk,
        size_bytes: news.size,
        block_size: features.block_size,
        physical_block_size: features.physical_block_size,
        grain: Grain { discard: features.discard_bytes, ..Grain::default() },
        limits: Limits {
            discard_sectors_max: features.discard_sectors_max,
            zeroes_sectors_max: features.zeroes_sectors_max,
        },
        readonly: readonly || features.readonly,
    })
}
