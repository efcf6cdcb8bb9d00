//! Handshakes of links, on a thread of their own: each costs some milliseconds of arithmetic, which neither a
//! sidecore nor control has to spare.
//!
//! Asked by control, which carries frames between it and the sidecores that have the links; tells control by a
//! channel and an eventfd. Not here: which hellos are looked at (the sidecore's gate), what a session does.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use backend::link::{Address, LinkKey};
use confine::Kind;
use remote::handshake::{
    Established, Greeted, Greeter as Responder, Identity, Initiator, Offer, PublicKey, Randomness,
    Refused, Step,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::rand::{GetRandomFlags, getrandom};
use sidecore::Greeting;
use tracing::debug;

use super::strangers::{Lately, News, Reason, Refusals};
use crate::clock::now;
use crate::threads::Worker;

/// Between two words of hellos of one sender that a link refuses.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1);
/// Senders of which control is told in that time. Of one that is left out it is told another time: it comes again.
const REFUSED_MAX: usize = 16;
/// Tasks that wait; what is more is dropped, and said again by whoever wants a session.
const TASKS_MAX: usize = 64;

/// What one link's handshakes are made with.
pub(crate) enum Party {
    /// This end begins.
    Client {
        /// Who this end is.
        identity: Identity,
        /// Who the IOhosts are; zeroes where security is `none`.
        iohost: PublicKey,
        /// What this end can do.
        offer: Offer,
    },
    /// This end answers.
    Iohost {
        /// How.
        responder: Box<Responder>,
        /// Who may come; nobody named: everybody, where security is `none`.
        clients: Vec<PublicKey>,
        /// Hellos that were read, and refused.
        refused: Arc<Refusals>,
    },
}

/// What is asked of the thread.
pub(crate) enum Task {
    /// A client's link wants a session, with that number of its own.
    Begin(LinkKey, u32),
    /// A frame of a handshake came to a client's link.
    Heard(LinkKey, Address, Vec<u8>),
    /// A hello came to an IOhost's link.
    Greet(LinkKey, Greeting),
    /// These may come to an IOhost's link from now on.
    Clients(LinkKey, Vec<PublicKey>),
    /// One that was read has its number.
    Answer(LinkKey, Greeting, Box<Greeted>),
}

/// What the thread says.
pub(crate) enum Word {
    /// A client's link is to say this hello.
    Hello(LinkKey, Vec<u8>),
    /// A client's handshake with that IOhost has ended.
    Client(LinkKey, Address, Box<Established>),
    /// A hello was read: whose it is is known, and it wants a number at that client's shard.
    Read(LinkKey, Greeting, Box<Greeted>),
    /// An IOhost's, with the answer that is to be sent.
    Iohost(LinkKey, Greeting, Box<Established>, Vec<u8>),
    /// A link is not of the role that control takes it for: what there was to be.
    NoParty(&'static str),
    /// A hello from there was refused, and why; said of each sender once in a second, and of few senders.
    Refused(LinkKey, Address, Reason),
}

impl Word {
    /// Whether the other end of a link is heard by it.
    pub(crate) fn is_of_peer(&self) -> bool {
        match self {
            Word::Client(..) | Word::Read(..) | Word::Iohost(..) => true,
            // What this end is to say, and who is not heard.
            Word::Hello(..) | Word::NoParty(_) | Word::Refused(..) => false,
        }
    }
}

/// The thread, as control has it. It ends when this is dropped.
pub(crate) struct Greeter {
    worker: Worker<Task>,
    words: Receiver<Word>,
    /// Readable when there are words.
    bell: OwnedFd,
}

impl Greeter {
    /// Starts it.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub(crate) fn start(parties: BTreeMap<LinkKey, Party>) -> io::Result<Greeter> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ring = bell.try_clone()?;
        let (say, words) = channel();
        let mut desk =
            Desk { parties, begun: BTreeMap::new(), refused: BTreeMap::new(), say, ring };
        let kind = ("greeter", Kind::Greeter);
        let worker = Worker::begin(kind, TASKS_MAX, move |task| desk.work(task))?;
        Ok(Greeter { worker, words, bell })
    }

    /// Asks for something. Dropped when too much waits.
    pub(crate) fn ask(&self, task: Task) {
        let _ = self.worker.ask(task);
    }

    /// Tells it something that must not be dropped, which is rare.
    pub(crate) fn tell(&self, task: Task) {
        self.worker.insist(task);
    }

    /// The next word. To be asked until there is none, after [`Self::hear`].
    pub(crate) fn word(&self) -> Option<Word> {
        self.words.try_recv().ok()
    }

    /// The bell was heard.
    pub(crate) fn hear(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

impl AsFd for Greeter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// What the thread has.
struct Desk {
    parties: BTreeMap<LinkKey, Party>,
    /// A client's handshake that is under way: one for each link.
    begun: BTreeMap<LinkKey, Initiator>,
    /// Of which senders control was told that they were refused.
    refused: BTreeMap<LinkKey, Lately>,
    say: Sender<Word>,
    ring: OwnedFd,
}

impl Desk {
    fn work(&mut self, task: Task) {
        let from = match &task {
            Task::Greet(_, greeting) => Some(greeting.from),
            _ => None,
        };
        let (key, done) = match task {
            Task::Begin(key, number) => (key, self.begin(key, number)),
            Task::Heard(key, from, frame) => (key, self.heard(key, from, &frame)),
            Task::Greet(key, greeting) => (key, self.greet(key, greeting)),
            Task::Answer(key, greeting, greeted) => (key, answer(key, greeting, *greeted)),
            Task::Clients(key, all) => {
                let Some(Party::Iohost { clients, .. }) = self.parties.get_mut(&key) else {
                    return self.tell(Word::NoParty("IOhost's link that has clients"));
                };
                return *clients = all;
            }
        };
        match done {
            Ok(Some(word)) => self.tell(word),
            Ok(None) => {}
            Err(why) => {
                debug!(link = key.0, "a handshake is dropped: {why}");
                self.note_refused(key, from, &why);
            }
        }
    }

    fn tell(&self, word: Word) {
        // Control is gone: so is this thread in a moment.
        let _ = self.say.send(word);
        let _ = rustix::io::write(&self.ring, &1u64.to_ne_bytes());
    }

    /// A client was refused: control is told, but not of each. Anybody can send anything.
    fn note_refused(&mut self, key: LinkKey, from: Option<Address>, why: &Refused) {
        // An IOhost's answer has nobody to be told of, and junk is nobody's mistake.
        let Some(from) = from else { return };
        let reason = Reason::from(why);
        if let Some(Party::Iohost { refused, .. }) = self.parties.get(&key) {
            refused.add(reason);
        }
        if reason == Reason::Malformed {
            return;
        }
        let lately = || Lately::new(REFUSED_INTERVAL, REFUSED_MAX);
        if self.refused.entry(key).or_insert_with(lately).note(from, reason, now()) == News::One {
            self.tell(Word::Refused(key, from, reason));
        }
    }

    fn begin(&mut self, key: LinkKey, number: u32) -> Result<Option<Word>, Refused> {
        let Some(Party::Client { identity, iohost, offer }) = self.parties.get(&key) else {
            return Ok(Some(Word::NoParty("client's link that wants a session")));
        };
        let begun = Initiator::new(identity, *iohost, number, *offer, &mut System)?;
        let hello = begun.hello().to_vec();
        self.begun.insert(key, begun);
        Ok(Some(Word::Hello(key, hello)))
    }

    fn heard(
        &mut self,
        key: LinkKey,
        from: Address,
        frame: &[u8],
    ) -> Result<Option<Word>, Refused> {
        // The handshake is over, or none has begun: whoever wants to sends such frames.
        let Some(begun) = self.begun.get_mut(&key) else { return Ok(None) };
        match begun.receive(frame)? {
            Step::Again => Ok(Some(Word::Hello(key, begun.hello().to_vec()))),
            Step::Done(made) => {
                self.begun.remove(&key);
                Ok(Some(Word::Client(key, from, made)))
            }
        }
    }

    fn greet(&mut self, key: LinkKey, greeting: Greeting) -> Result<Option<Word>, Refused> {
        let Some(Party::Iohost { responder, clients, .. }) = self.parties.get(&key) else {
            return Ok(Some(Word::NoParty("IOhost's link that heard a hello")));
        };
        let knows = |key: &PublicKey| clients.contains(key);
        let greeted = responder.read(greeting.hello(), &knows, &mut System)?;
        Ok(Some(Word::Read(key, greeting, Box::new(greeted))))
    }
}

fn answer(key: LinkKey, greeting: Greeting, greeted: Greeted) -> Result<Option<Word>, Refused> {
    let (answer, made) = greeted.answer(greeting.number, greeting.credit)?;
    Ok(Some(Word::Iohost(key, greeting, Box::new(made), answer)))
}

/// The kernel's random bits.
pub(crate) struct System;

impl Randomness for System {
    fn fill(&mut self, bytes: &mut [u8]) {
        #[cfg(any(test, feature = "simulated"))]
        if let Some(machine) = crate::simulated::machine() {
            return machine.fill(bytes);
        }
        let mut left = bytes;
        while !left.is_empty() {
            match getrandom(&mut *left, GetRandomFlags::empty()) {
                Ok(count) => left = left.get_mut(count..).unwrap_or_default(),
                Err(rustix::io::Errno::INTR) => {}
                // No kernel that this runs on lacks it, and nothing is secret without it.
                Err(_) => std::process::abort(),
            }
        }
    }
}

/// A random number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    System.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
