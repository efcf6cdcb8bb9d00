//! Asks VMMs which of their threads are vCPUs, by QMP, and waits for none of them: a socket in the control loop, and
//! a deadline.
//!
//! Devices that name the same socket are told by one dialogue. Asked and told: `guest_vcpus`. Not here: what is
//! said there (`dialogue`), and what is believed of it (`runstate::vcpus`).

mod dialogue;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use names::{Refused, Socket};
use rustix::io::Errno;
use vcpu_tracker::vcpus::Vcpu;

use self::dialogue::{Dialogue, QmpError};
use crate::defects::{found, late};
use crate::lent::{Closer, Lent};
use crate::manager::Manager;
use crate::poll::Token;
use crate::sockets::{self, Received};

/// How long one dialogue may take in all: QEMU answers within a millisecond, and whoever is silent for longer holds
/// another one up.
const DIALOGUE_TIME_MAX: Duration = Duration::from_millis(500);
/// Dialogues at a time. Each is a descriptor, and 256 KiB at most.
pub(crate) const DIALOGUES_MAX: usize = 16;
/// Dialogues that are begun in one turn.
const BEGUN_PER_TURN: usize = 8;
/// Devices that are told in one turn: of a VMM that said nothing the process is looked through for each.
const TOLD_PER_TURN: usize = 4;
/// Bytes of one read, and reads of one turn.
const READ_BYTES: usize = 8 << 10;
const READS_PER_TURN: usize = 4;

/// What a VMM said, or why it said nothing.
pub(crate) type Said = Result<Vec<Vcpu>, NotSaid>;

/// Why a VMM has not said which threads are its vCPUs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSaid {
    /// Nothing is at that path.
    #[error("there is no such socket: start QEMU with `-qmp unix:SOCKET,server=on,wait=off`")]
    NoSocket,
    /// Its name is not followed: something else is there, or others could have put it there.
    #[error("{0}; name the socket itself")]
    Refused(Refused),
    /// There is one, which nobody serves.
    #[error("nobody listens there: start QEMU with `-qmp unix:SOCKET,server=on,wait=off`")]
    NobodyListens,
    /// This daemon may not use it.
    #[error("no right to connect: let the daemon's user write to that socket")]
    NotPermitted,
    /// Others wait there.
    #[error("it is busy: QEMU serves one client at a time, so give it a `-qmp` for this alone")]
    Busy,
    /// It was not heard of in time.
    #[error(
        "no answer within {} ms: QEMU serves one client at a time, so give it a `-qmp` for this alone",
        DIALOGUE_TIME_MAX.as_millis()
    )]
    Silent,
    /// It has closed.
    #[error("it closes without an answer")]
    Ended,
    /// It sends what no QMP sends.
    #[error("it sends descriptors")]
    Descriptors,
    /// What it sent before is still being closed.
    #[error("descriptors that its front-end sent are still being closed")]
    Behind,
    /// The kernel's word.
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// What it says.
    #[error(transparent)]
    Said(#[from] QmpError),
}

/// One dialogue.
struct Inquiry {
    path: String,
    socket: Lent,
    dialogue: Dialogue,
    ends_at: Instant,
    /// Who is to be told.
    devices: Vec<u32>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Inquiries {
    open: BTreeMap<u32, Inquiry>,
    /// Devices whose dialogue has not begun; who came first is first.
    queue: VecDeque<u32>,
    /// Who is to be told of what was said where.
    said: VecDeque<(u32, Arc<(String, Said)>)>,
    next: u32,
}

impl Inquiries {
    /// When something is to be done without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        let begins = self.has_room() && !self.queue.is_empty();
        let ends = self.open.values().map(|inquiry| inquiry.ends_at).min();
        if begins || !self.said.is_empty() { Some(now) } else { ends }
    }

    fn has_room(&self) -> bool {
        self.open.len() < DIALOGUES_MAX
    }

    fn has(&self, number: u32) -> bool {
        self.queue.contains(&number)
            || self.said.iter().any(|(device, _)| *device == number)
            || self.open.values().any(|inquiry| inquiry.devices.contains(&number))
    }
}

impl Inquiry {
    fn begin(
        path: &str,
        closer: &Closer,
        (number, now): (u32, Instant),
    ) -> Result<Inquiry, NotSaid> {
        let found = Socket::find(Path::new(path)).map_err(|refused| match refused.errno() {
            Some(Errno::NOENT | Errno::NOTDIR) => NotSaid::NoSocket,
            Some(Errno::ACCESS | Errno::PERM) => NotSaid::NotPermitted,
            _ => NotSaid::Refused(refused),
        })?;
        let socket = sockets::connect_to(&found).map_err(|error| {
            match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::CONNREFUSED) => NotSaid::NobodyListens,
                Some(Errno::ACCESS | Errno::PERM) => NotSaid::NotPermitted,
                Some(Errno::AGAIN) => NotSaid::Busy,
                _ => NotSaid::Lost(error),
            }
        })?;
        Ok(Inquiry {
            path: path.to_string(),
            socket: Lent::new(socket, closer),
            dialogue: Dialogue::default(),
            ends_at: now + DIALOGUE_TIME_MAX,
            devices: vec![number],
        })
    }

    /// Reads what is there, and answers; the vCPUs, once they are told.
    fn hear(&mut self, closer: &Closer) -> Result<Option<Vec<Vcpu>>, NotSaid> {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            let mut has_lent = false;
            let lend = |fd| {
                has_lent = true;
                closer.close(fd);
            };
            let read = match sockets::receive(&self.socket, &mut buffer, lend)? {
                _ if has_lent => return Err(NotSaid::Descriptors),
                Received::Bytes(read) => read,
                Received::Nothing => return Ok(None),
                Received::End => return Err(NotSaid::Ended),
            };
            let mut say = Vec::new();
            let told = self.dialogue.hear(buffer.get(..read).unwrap_or_default(), &mut say)?;
            if told.is_some() {
                return Ok(told);
            }
            // Two short lines: they fit, unless somebody is there who does not read them.
            if !say.is_empty() && sockets::send(&self.socket, &say, None)? < say.len() {
                return Err(NotSaid::Busy);
            }
        }
        // The rest is heard in the next turn.
        Ok(None)
    }
}

impl Manager {
    /// Has a device's VMM asked, which is told by [`Manager::vmm_has_said`] in a later turn.
    pub(crate) fn ask_vmm(&mut self, number: u32) {
        if !self.rooms.guests.inquiries.has(number) {
            self.rooms.guests.inquiries.queue.push_back(number);
        }
    }

    /// Begins the dialogues that there is room for, and ends those that take too long.
    pub(crate) fn inquire(&mut self, now: Instant) {
        let late =
            self.rooms.guests.inquiries.open.iter().filter(|(_, inquiry)| inquiry.ends_at <= now);
        let late: Vec<u32> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.end_inquiry(id, Err(NotSaid::Silent));
        }
        for _ in 0..TOLD_PER_TURN {
            let Some((number, said)) = self.rooms.guests.inquiries.said.pop_front() else { break };
            self.vmm_has_said(number, &said.0, &said.1, now);
        }
        for _ in 0..BEGUN_PER_TURN {
            if !self.rooms.guests.inquiries.has_room() {
                return;
            }
            let Some(number) = self.rooms.guests.inquiries.queue.pop_front() else { return };
            self.begin_inquiry(number);
        }
    }

    fn begin_inquiry(&mut self, number: u32) {
        let Some(device) = self.rooms.devices.get(number) else { return late("device") };
        // One that is to be known by names by now is looked at again in any case.
        let Some(path) = device.qmp().map(str::to_string) else { return };
        // Whoever fills that with descriptors is not listened to.
        let is_behind = device.closer.is_full() || self.is_short_while_closing(device);
        let inquiries = &mut self.rooms.guests.inquiries;
        if let Some(same) = inquiries.open.values_mut().find(|inquiry| inquiry.path == path) {
            return same.devices.push(number);
        }
        let id = inquiries.next;
        inquiries.next = id.wrapping_add(1);
        let begun = match is_behind {
            true => Err(NotSaid::Behind),
            false => Inquiry::begin(&path, &device.closer, (number, self.rooms.turn.now())),
        };
        let begun = begun.and_then(|inquiry| {
            self.rooms.poll.add(&inquiry.socket, Token::Qmp(id))?;
            Ok(inquiry)
        });
        match begun {
            Ok(inquiry) => {
                inquiries.open.insert(id, inquiry);
            }
            Err(why) => inquiries.said.push_back((number, Arc::new((path, Err(why))))),
        }
    }

    pub(crate) fn hear_qmp(&mut self, id: u32) {
        let inquiry = self.rooms.guests.inquiries.open.get_mut(&id);
        let Some(inquiry) = inquiry else { return late("dialogue") };
        let device = inquiry.devices.iter().find_map(|number| self.rooms.devices.get(*number));
        let closer = device.map(|device| device.closer.clone());
        let closer = closer.unwrap_or_else(|| Closer::counted_in(self.rooms.bounds.waiting()));
        match inquiry.hear(&closer) {
            Ok(None) => {}
            Ok(Some(vcpus)) => self.end_inquiry(id, Ok(vcpus)),
            Err(why) => self.end_inquiry(id, Err(why)),
        }
    }

    fn end_inquiry(&mut self, id: u32, said: Said) {
        let inquiries = &mut self.rooms.guests.inquiries;
        let inquiry =
            found!(self.rooms.turn.defects, inquiries.open.remove(&id), "dialogue to end");
        self.rooms.poll.remove(&inquiry.socket);
        // The VMM sees the end at once, though the close itself may come later.
        let _ = rustix::net::shutdown(&inquiry.socket, rustix::net::Shutdown::Both);
        let said = Arc::new((inquiry.path, said));
        let each = inquiry.devices.into_iter().map(|number| (number, Arc::clone(&said)));
        inquiries.said.extend(each);
    }
}
