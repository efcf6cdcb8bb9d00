//! The client's end of a link: what IOhosts said of disks, whose number is whose, and whether its IOhost is heard.
//!
//! Not here: the disks and NICs themselves (`disks`, `nics`), nor how requests get there (`backend::link`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend::link::{Address, ClientLink, LinkCounters, LinkSnapshot, LinkSocket};
use config::Mac;
use config::plan::{LinkEnd, LinkPeer, LinkPlan};
use remote::client::ClientSpec;
use remote::device_of;
use remote::saved::BadSaved;
use remote::wire::News;
use sidecore::Link;

use super::availability::NO_DISK;
use super::error::{LINK_FULL, LinkFull};
use super::greeter::random;
use super::sockets::RING_FRAMES;
use super::waits::PATIENCE;
use super::words::KnownWords;

/// Between two times that an IOhost is asked for a disk that it does not have.
const ASK_INTERVAL: Duration = Duration::from_secs(2);

/// It.
pub(super) struct Using {
    /// What IOhosts said of disks, by their names there.
    known: BTreeMap<String, Known>,
    /// Whose number it is on the link: each is used once, and comes again after some thousands.
    numbers: BTreeMap<u16, Asked>,
    next_number: u16,
    /// The last session's number.
    session: u32,
    /// The IOhost that answered last.
    peer: Option<Address>,
    silence: Option<Silence>,
    /// What was heard when it was last thought to be silent, or had a session.
    heard_then: u64,
    counters: Option<Arc<LinkCounters>>,
    /// Of each disk, for copies of writes that were not flushed.
    keep_bytes: u32,
}

/// Its IOhost answers no more.
struct Silence {
    since: Instant,
    /// Whether the log says so: not before it was given time to answer, as one that is replaced needs.
    is_told: bool,
}

/// What is known of a disk.
#[derive(Clone, Debug)]
enum Known {
    /// Its IOhost was asked, or is to be asked then again. What it said of it before, if it had it.
    Asked { why: &'static str, again_at: Option<Instant>, was: Option<News> },
    /// As its IOhost says.
    Is(News),
}

/// What a number on a link is for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// What the disk of that name is.
    Look(String),
    /// The disk of this device; its name here, and whose it is ([`super::parts::RemoteParts::whose`]).
    Disk(u32, String, String),
    /// The NIC of this port.
    Nic(u32),
    /// A disk that a process before this one gave back without a word, and that is none of this one's.
    GivenBack,
}

impl Using {
    pub(super) fn new() -> Using {
        Using {
            known: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 0,
            session: random() as u32,
            peer: None,
            silence: None,
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

    pub(super) fn keep_bytes(&self) -> u32 {
        self.keep_bytes
    }

    /// What it has counted, once it was open.
    pub(super) fn seen(&self) -> Option<LinkSnapshot> {
        self.counters.as_ref().map(|counters| counters.snapshot())
    }

    /// When a disk is asked for again, or a silence is to be told of.
    pub(super) fn due_at(&self) -> Option<Instant> {
        let again = self.known.values().filter_map(|known| match known {
            Known::Asked { again_at, .. } => *again_at,
            Known::Is(_) => None,
        });
        again.chain(self.told_at()).min()
    }
}

/// What is known of disks, and the numbers that they have on the link.
impl Using {
    /// What a disk is; otherwise why that is not known. It is asked for then.
    pub(super) fn look_up(&mut self, name: &str, now: Instant) -> Result<News, &'static str> {
        let why = "its IOhost has not answered yet";
        let ask = || Known::Asked { why, again_at: Some(now), was: None };
        match self.known.entry(name.to_string()).or_insert_with(ask) {
            Known::Is(news) => Ok(*news),
            Known::Asked { why, .. } => Err(why),
        }
    }

    /// What a disk is, if its IOhost has it.
    pub(super) fn news_of(&self, name: &str) -> Option<News> {
        match self.known.get(name) {
            Some(Known::Is(news)) => Some(*news),
            _ => None,
        }
    }

    /// A disk is so.
    pub(super) fn know(&mut self, name: &str, news: News) {
        self.known.insert(name.to_string(), Known::Is(news));
    }

    /// A process before this one was told so.
    pub(super) fn know_as_before(&mut self, words: &KnownWords) {
        let (revision, size, features) = (words.revision, words.size, words.features);
        self.know(&words.name, News { revision, size, features, is_removed: false });
    }

    /// Its IOhost has no such disk: it is asked again in a while.
    pub(super) fn miss(&mut self, name: &str, now: Instant) {
        let was = match self.known.get(name) {
            Some(Known::Is(news)) => Some(*news),
            Some(Known::Asked { was, .. }) => *was,
            None => None,
        };
        let (why, again_at) = (NO_DISK, Some(now + ASK_INTERVAL));
        self.known.insert(name.to_string(), Known::Asked { why, again_at, was });
    }

    /// What IOhosts have told of disks, for another process: of one that is gone what it was, since a guest may be there
    /// whose requests fail.
    pub(super) fn known_words(&self) -> Vec<KnownWords> {
        let words = |(name, known): (&String, &Known)| {
            let (Known::Is(news) | Known::Asked { was: Some(news), .. }) = known else {
                return None;
            };
            let (revision, size, features) = (news.revision, news.size, news.features);
            Some(KnownWords { name: name.clone(), revision, size, features })
        };
        self.known.iter().filter_map(words).collect()
    }

    /// The numbers and devices of disks of which an IOhost is to be asked now what they are.
    pub(super) fn looks(&mut self, now: Instant) -> Vec<(u16, u64)> {
        let is_due =
            |known: &Known| matches!(known, Known::Asked { again_at: Some(at), .. } if *at <= now);
        let due = self.known.iter().filter(|(_, known)| is_due(known));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let mut looks = Vec::new();
        for name in due {
            let number = self.number(Asked::Look(name.clone()));
            looks.extend(number.as_ref().map(|number| (*number, device_of(&name))));
            if let Some(Known::Asked { why, again_at, .. }) = self.known.get_mut(&name) {
                *again_at = number.is_err().then_some(now + ASK_INTERVAL);
                *why = number.map_or(LINK_FULL, |_| *why);
            }
        }
        looks
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

    /// A process before this one has given that number.
    pub(super) fn go_on_as(&mut self, number: u16, asked: Asked) {
        self.numbers.insert(number, asked);
    }

    /// What a number is for.
    pub(super) fn asked(&self, number: u16) -> Option<&Asked> {
        self.numbers.get(&number)
    }

    /// Disks that have a number: it, the device, its name here, and whose it is.
    pub(super) fn disks(&self) -> impl Iterator<Item = (u16, u32, &str, &str)> {
        self.numbers.iter().filter_map(|(number, asked)| match asked {
            Asked::Disk(device, id, whose) => Some((*number, *device, id.as_str(), whose.as_str())),
            Asked::Look(_) | Asked::Nic(_) | Asked::GivenBack => None,
        })
    }

    /// A number is nobody's any more.
    pub(super) fn free(&mut self, number: u16) -> Option<Asked> {
        self.numbers.remove(&number)
    }

    /// Whether disks were given back, and whoever is to let go of them is there.
    pub(super) fn is_giving_back(&self) -> bool {
        let is_disk = |asked: &Asked| matches!(asked, Asked::Disk(..) | Asked::GivenBack);
        self.seen().is_some_and(|seen| seen.is_up > 0) && self.numbers.values().any(is_disk)
    }
}

/// Its session, and whether it is heard.
impl Using {
    /// A session is to begin: its number.
    pub(super) fn next_session(&mut self) -> u32 {
        self.session = self.session.wrapping_add(1);
        self.session
    }

    /// There is a session.
    pub(super) fn established(&mut self, peer: Address) {
        self.peer = Some(peer);
    }

    /// The IOhost that answered last.
    pub(super) fn peer(&self) -> Option<String> {
        self.peer.map(|peer| peer.to_string())
    }

    /// Since when its IOhost answers no more.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        self.silence.as_ref().map(|silence| silence.since)
    }

    /// When the log is to say that its IOhost is silent.
    fn told_at(&self) -> Option<Instant> {
        let silence = self.silence.as_ref().filter(|silence| !silence.is_told)?;
        Some(silence.since + PATIENCE)
    }

    /// Whether the log is to say so now, once of each silence.
    pub(super) fn is_to_tell(&self, now: Instant) -> bool {
        self.told_at().is_some_and(|at| at <= now)
    }

    pub(super) fn has_told(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.is_told = true;
        }
    }

    /// There is a session, or none any more.
    pub(super) fn note_session(&mut self, is_there: bool, now: Instant) {
        match is_there {
            true => self.silence = None,
            false => self.fall_silent(now),
        }
        self.heard_then = self.heard();
    }

    /// It wants a new session: its IOhost may be gone long before the session is over.
    pub(super) fn note_silence(&mut self, now: Instant) {
        self.fall_silent(now);
        self.heard_then = self.heard();
    }

    fn fall_silent(&mut self, now: Instant) {
        self.silence.get_or_insert(Silence { since: now, is_told: false });
    }

    /// Whether its session, which it still has, was heard since it was taken for silent: it is not any more.
    pub(super) fn note_heard(&mut self) -> bool {
        let is_heard = self.silence.is_some()
            && self.seen().is_some_and(|seen| goes_on(self.heard_then, &seen));
        if is_heard {
            self.silence = None;
        }
        is_heard
    }

    /// Frames that were not a stranger's.
    fn heard(&self) -> u64 {
        self.seen().as_ref().map_or(0, heard)
    }
}

fn heard(seen: &LinkSnapshot) -> u64 {
    seen.frames_in.saturating_sub(seen.strange + seen.dropped)
}

/// Whether there is a session, and more was heard than then.
fn goes_on(heard_then: u64, seen: &LinkSnapshot) -> bool {
    seen.is_up > 0 && heard(seen) > heard_then
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    #[test]
    fn each_number_of_a_link_is_given_once_and_then_it_is_said_that_there_is_none() {
        let mut using = Using::new();
        let count = u32::from(remote::ATTACHMENTS_MAX);
        let all: Result<Vec<u16>, LinkFull> =
            (0..count).map(|port| using.number(Asked::Nic(port))).collect();
        assert_eq!(all, Ok((0..remote::ATTACHMENTS_MAX).collect()));
        let full = using.number(Asked::Nic(7)).expect_err("each is used").to_string();
        assert!(full.starts_with(&format!("its link has {count} disks and NICs, ")), "{full}");
        using.free(9);
        assert_eq!(using.number(Asked::Nic(7)), Ok(9));
    }

    #[test]
    fn a_session_that_goes_on_is_not_silent_any_more() {
        let mut seen = LinkSnapshot { is_up: 1, frames_in: 10, ..LinkSnapshot::default() };
        assert!(!goes_on(10, &seen));
        // A stranger is nobody's answer.
        (seen.frames_in, seen.strange) = (13, 3);
        assert!(!goes_on(10, &seen));
        seen.frames_in = 14;
        assert!(goes_on(10, &seen));
        // What comes of a session that is over begins none.
        seen.is_up = 0;
        assert!(!goes_on(10, &seen));
    }

    #[test]
    fn a_disk_is_looked_up_once_and_again_while_its_iohost_has_none() {
        let (mut using, begin) = (Using::new(), now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(using.looks(at(0)), []);
        assert_eq!(using.look_up("db", at(0)), Err("its IOhost has not answered yet"));
        assert_eq!(using.due_at(), Some(at(0)));
        assert_eq!(using.looks(at(0)), [(0, device_of("db"))]);
        // The question is on its way.
        assert_eq!((using.looks(at(9000)), using.due_at()), (Vec::new(), None));
        assert!(matches!(using.free(0), Some(Asked::Look(name)) if name == "db"));
        using.miss("db", at(100));
        assert_eq!(using.look_up("db", at(100)), Err(NO_DISK));
        assert_eq!((using.looks(at(2099)), using.due_at()), (Vec::new(), Some(at(2100))));
        assert_eq!(using.looks(at(2100)), [(1, device_of("db"))]);
        let news = News { revision: 1, size: 4096, features: 0, is_removed: false };
        using.know("db", news);
        assert_eq!((using.look_up("db", at(2200)), using.news_of("db")), (Ok(news), Some(news)));
        let mut heir = Using::new();
        using.known_words().iter().for_each(|words| heir.know_as_before(words));
        assert_eq!(heir.news_of("db"), Some(news));
    }

    #[test]
    fn each_silence_is_told_of_once_and_not_before_an_answer_was_due() {
        let (mut using, begin) = (Using::new(), now());
        let at = |ms| begin + Duration::from_millis(ms);
        using.note_silence(at(0));
        using.note_silence(at(500));
        assert_eq!((using.silent_since(), using.due_at()), (Some(at(0)), Some(at(1000))));
        assert!(!using.is_to_tell(at(999)) && using.is_to_tell(at(1000)));
        using.has_told();
        // The session is over as well, which is the same silence.
        using.note_session(false, at(1500));
        assert!(!using.is_to_tell(at(9000)) && using.due_at().is_none());
        using.note_session(true, at(2000));
        assert_eq!(using.silent_since(), None);
        using.note_session(false, at(3000));
        assert!(using.is_to_tell(at(4000)), "another one");
        assert!(!using.note_heard(), "nothing was heard");
    }
}
