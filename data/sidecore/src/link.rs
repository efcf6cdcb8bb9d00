//! Links: the remote protocol in a sidecore.
//!
//! An IOhost's link ([`HostLink`]) has requests of clients on other machines served by queues of this sidecore: it is
//! the driver of their rings.
//!
//! A client's link ([`ClientLink`]) is in the sidecore's [`Io`](backend::Io), where its disks' queues find it: here is what
//! control says to it and hears of it, and its turns in a pass. Not the protocol (`remote`), nor sockets and requests
//! (`backend`).
//!
//! ```text
//! client: socket -> receive_links -> ...visits: submit, reap... -> send_links -> socket
//! IOhost: socket -> receive_links -> ring -> ...visits, reap... -> ring -> send_links -> socket
//! ```
//!
//! A client's time is the sidecore's, which stands still while the machine is suspended. A client's requests fail later then,
//! and never too early.

pub use backend::link::{Address, ClientLink, LinkKey};
use backend::link::{LinkEvent, LinkNic};
use remote::client::{AttachSpec, Event as ClientEvent, Standing};
use remote::handshake::{Established, PublicKey};
use remote::iohost::{ExportSpec, HostEvent};
use schedule::Nanos;

use crate::inbox::Event;
use crate::sidecore::Sidecore;

mod clock;
mod greets;
mod host;
mod initiator;
mod memory;
mod nics;
mod walk;

pub use host::{Greeting, HostLink, HostLinkSpec, Opened};
pub use memory::AttachmentMemory;
pub(crate) use walk::HostLinks;

/// A link of either role.
#[derive(Debug)]
pub enum Link {
    /// A client's.
    Client(Box<ClientLink>),
    /// An IOhost's.
    Host(Box<HostLink>),
}

/// What control tells a client's link.
#[derive(Debug)]
pub enum ToClient {
    /// A hello to be said to the IOhost that [`FromClient::WantsSession`] named, until it answers; or the same with a
    /// cookie.
    Hello(Vec<u8>),
    /// A handshake has ended.
    Establish {
        /// The session.
        made: Box<Established>,
        /// The IOhost that answered.
        peer: Address,
    },
    /// This device is wanted. Answered by [`ClientEvent::Bound`] or [`ClientEvent::Refused`], again and again;
    /// [`FromClient::Unattached`] when it cannot be.
    Attach {
        /// What it is called from now on: a number that control gives, below [`remote::ATTACHMENTS_MAX`].
        disk: u16,
        /// Which one, and its slots.
        spec: AttachSpec,
        /// How it stood when it was had last, if that was not settled.
        standing: Option<Standing>,
    },
    /// What was said last of the disk was heard, and what [`ClientEvent::Stands`] said is kept: more may be said, and
    /// its requests may go. Nothing waits for it after [`ClientEvent::Over`] and [`ClientEvent::Looked`].
    Heard(u16),
    /// Whoever uses the disk knows that writes of it may be gone: flushes may end well again.
    Forgive(u16),
    /// Whoever uses the disk goes on with the image that its IOhost has, whatever its guest was on.
    Accept(u16),
    /// The disk is given back, its queues having been detached. [`ClientEvent::Over`] says when nothing of it can be
    /// executed any more, if that was not said; [`FromClient::Freed`] when its number is free.
    Release(u16),
    /// Asks what a device is, by a number that is free again with [`ClientEvent::Looked`].
    Look {
        /// The number.
        disk: u16,
        /// Which device.
        device: u64,
    },
    /// A device is a NIC, and this is the link's end of its port. When the port is no more, the device is given back.
    PlugIn {
        /// The number.
        disk: u16,
        /// The end.
        nic: Box<LinkNic>,
    },
    /// What is plugged in comes out: its port is gone then.
    Unplug {
        /// The number.
        disk: u16,
    },
}

/// What control tells an IOhost's link. Its devices have numbers from 0, in the order in which they were exported.
#[derive(Debug)]
pub enum ToHost {
    /// Serve this device from now on.
    Export(ExportSpec),
    /// It has another size, or other features.
    Update {
        /// Which one.
        export: u16,
        /// Bytes.
        size: u64,
        /// As clients are told.
        features: u32,
    },
    /// Others may have it from now on: [`HostEvent::LetGo`] follows when somebody has it who may not.
    SetClients {
        /// Which one.
        export: u16,
        /// As in its [`ExportSpec`].
        clients: Vec<PublicKey>,
    },
    /// Serve it no more: [`HostEvent::LetGo`] follows when somebody has it.
    Remove {
        /// Which one.
        export: u16,
    },
    /// A hello is answered. Of one that is not, nothing is told: its [`Greeting`] is dropped.
    Answer {
        /// The hello.
        greeting: Greeting,
        /// The session that comes of it, with the greeting's number.
        made: Box<Established>,
        /// The answer, which is sent when the session is known.
        answer: Vec<u8>,
    },
    /// The answer to [`HostEvent::Open`].
    Opened {
        /// Which one.
        export: u16,
        /// When it could not be opened: the one that is kept, which may be later than the one that was asked for.
        generation: u64,
        /// All it needs; `None`: it could not be opened.
        opened: Option<Box<Opened>>,
    },
    /// Instead of [`ToHost::Opened`]: not now. Its client asks again.
    Busy {
        /// Which one.
        export: u16,
    },
    /// Another shard of the link has the device: who wants it here waits until [`ToHost::ComesFree`].
    Elsewhere {
        /// Which one.
        export: u16,
        /// Its generation there: older ones are refused from now on.
        generation: u64,
        /// Instead of [`ToHost::Opened`].
        is_answer: bool,
    },
    /// No shard has the device any more.
    ComesFree {
        /// Which one.
        export: u16,
    },
    /// A hello that came to the link's first shard is to be answered by this one. Answered by [`FromHost::Reserved`];
    /// where there is no number, it is dropped.
    Reserve {
        /// The hello.
        greeting: Greeting,
        /// Who sent it; zeroes where security is `none`.
        client: PublicKey,
    },
    /// The link's end of a port is to go to another shard. Answered by [`FromHost::PulledOut`], if it is here.
    PullOut {
        /// Which one.
        export: u16,
    },
    /// The answer to [`HostEvent::Open`] of a NIC: it needs no queue, and what is asked of it as of a disk fails.
    NicOpened {
        /// Which one.
        export: u16,
        /// As long as [`HostEvent::Open`] said.
        memory: AttachmentMemory,
    },
    /// A device is a NIC, and this is the link's end of its port.
    PlugIn {
        /// Which one.
        export: u16,
        /// The end.
        nic: Box<LinkNic>,
    },
    /// What is plugged in comes out: its port is gone then.
    Unplug {
        /// Which one.
        export: u16,
    },
    /// What a process before this one knew of a device ([`HostLink::save`]), right after [`ToHost::Export`]. If a client had
    /// it there, it is kept for that one for a while, and then [`HostEvent::LetGo`] follows.
    TakeOver {
        /// Which one.
        export: u16,
        /// It.
        saved: Vec<u8>,
        /// How long, nanoseconds.
        for_ns: u64,
    },
    /// The answer to [`HostEvent::LetGo`], when its queue was detached.
    LetGo {
        /// Which one.
        export: u16,
        /// All that was reported done is stable.
        is_synced: bool,
    },
}

/// What a client's link tells control.
#[derive(Debug)]
pub enum FromClient {
    /// A frame of a handshake came: a cookie, or an answer.
    Greet {
        /// It.
        frame: Vec<u8>,
        /// Who sent it.
        from: Address,
    },
    /// A hello is wanted for this IOhost. When it is said in vain, one is wanted for the next.
    WantsSession(Address),
    /// What became of a disk; its `attachment` is the disk's number.
    Iohost(ClientEvent),
    /// A disk that was given back is over: its number is free.
    Freed(u16),
    /// There is such a number already, or the device's numbers do not fit: a defect of control.
    Unattached(u16),
}

/// What a shard of an IOhost's link tells control.
#[derive(Debug)]
pub enum FromHost {
    /// A client's hello, to be answered or not.
    Hello(Greeting),
    /// A hello that cannot be read came from there: made for another IOhost's key, or of another security. Not said of each.
    Unreadable(Address),
    /// A hello that another shard has heard, with a number of this one's.
    Reserved {
        /// The number that it had before.
        before: u32,
        /// The hello.
        greeting: Greeting,
    },
    /// The link's end of a port.
    PulledOut {
        /// The IOhost's export.
        export: u16,
        /// The end.
        nic: Box<LinkNic>,
    },
    /// Memory of a device that was let go of, to be dropped where that may take its time.
    Spent(AttachmentMemory),
    /// A device is to be opened or let go of; a session has begun or ended.
    Clients(HostEvent),
}

impl From<LinkEvent> for FromClient {
    fn from(event: LinkEvent) -> FromClient {
        match event {
            LinkEvent::Greet { frame, from } => FromClient::Greet { frame, from },
            LinkEvent::WantsSession(iohost) => FromClient::WantsSession(iohost),
            LinkEvent::Client(event) => FromClient::Iohost(event),
            LinkEvent::Freed(disk) => FromClient::Freed(disk),
        }
    }
}

impl Sidecore {
    pub(crate) fn attach_link(&mut self, key: LinkKey, link: Link, now: Nanos) {
        let link = match link {
            Link::Client(link) => link,
            Link::Host(link) => return self.attach_host_link(key, link),
        };
        if !self.rest.watch_all(link.bells()) {
            return self.send(Event::LinkRefused(key, Link::Client(link)));
        }
        if let Err(link) = self.io.attach_link(key, link, now.0) {
            link.bells().for_each(|bell| self.rest.forget(bell));
            self.send(Event::LinkRefused(key, Link::Client(link)));
        }
    }

    /// Says something to a client's link, if there is one of that name.
    pub(crate) fn tell_client(&mut self, key: LinkKey, told: ToClient, now: Nanos) {
        if let ToClient::PlugIn { nic, .. } = &told
            && self.rest.watch_link(nic.poll_fd()).is_err()
        {
            // Dropped with what was told: its port is gone, and is opened anew.
            return;
        }
        let Some(link) = self.io.link(key) else { return };
        let unattached = match told {
            ToClient::Hello(hello) => {
                link.hello(hello, now.0);
                None
            }
            ToClient::Establish { made, peer } => {
                // Keys that are none are as good as no answer: the hello is said again.
                let _ = link.establish(*made, peer, now.0);
                None
            }
            ToClient::Attach { disk, spec, standing } => {
                (!link.attach(disk, spec, standing)).then_some(disk)
            }
            ToClient::Heard(disk) => {
                link.heard(disk);
                None
            }
            ToClient::Forgive(disk) => {
                link.forgive(disk);
                None
            }
            ToClient::Accept(disk) => {
                link.accept(disk);
                None
            }
            ToClient::Release(disk) => {
                link.release(disk);
                None
            }
            ToClient::Look { disk, device } => (!link.look(disk, device)).then_some(disk),
            ToClient::PlugIn { disk, nic } => {
                link.plug_in(disk, *nic);
                None
            }
            ToClient::Unplug { disk } => {
                let nic = link.unplug(disk);
                nic.into_iter().for_each(|nic| self.rest.forget(nic.poll_fd()));
                None
            }
        };
        if let Some(disk) = unattached {
            self.send(Event::FromClient(key, Box::new(FromClient::Unattached(disk))));
        }
    }

    #[inline]
    pub(crate) fn has_links(&self) -> bool {
        !self.links.is_empty() || self.io.has_links()
    }

    /// What came on links, before queues are visited: how many frames, and requests for rings.
    #[inline]
    pub(crate) fn receive_links(&mut self, now: Nanos) -> u32 {
        if self.has_links() { self.receive_all(now) } else { 0 }
    }

    #[inline(never)]
    fn receive_all(&mut self, now: Nanos) -> u32 {
        let fed = self.feed_links(now);
        let frames = self.io.receive(now.0);
        while let Some((key, event)) = self.io.next_link_event() {
            self.send(Event::FromClient(key, Box::new(event.into())));
        }
        frames as u32 + fed
    }

    /// What links have to say, after all else; and those that are to be given back. How much of it was what came of
    /// an IOhost's rings.
    #[inline]
    pub(crate) fn send_links(&mut self, now: Nanos) -> u32 {
        if self.has_links() { self.send_all(now) } else { 0 }
    }

    #[inline(never)]
    fn send_all(&mut self, now: Nanos) -> u32 {
        let harvested = self.harvest_links(now);
        self.io.send(now.0);
        while let Some((key, link)) = self.io.take_link() {
            link.bells().for_each(|bell| self.rest.forget(bell));
            self.send(Event::LinkDetached(key, Link::Client(link)));
        }
        harvested
    }

    /// When something is to be done although nothing comes: a queue's moment, or a link's.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        let link = self.io.due().map(Nanos);
        let stalled_due = self.io.stalled_due();
        let stalled = (stalled_due != u64::MAX).then_some(Nanos(stalled_due));
        [self.schedule.next_due(), link, self.links.due(), stalled].into_iter().flatten().min()
    }
}
