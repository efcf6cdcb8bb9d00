//! Asks VMMs which of their threads are vCPUs, by QMP, and waits for none of them: a socket in the control loop, and
//! a deadline.
//!
//! Devices that name the same socket are told by one dialogue. Called by `guests`. Not here: what is said there
//! (`dialogue`), and what is believed of it (`runstate::vcpus`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use names::{Refused, Socket};
use rustix::io::Errno;
use vcpu_tracker::vcpus::Vcpu;

use crate::defects::{found, late};
use crate::devices::lent::{Closer, Lent};
use crate::guests::dialogue::{DIALOGUES_MAX, Dialogue, QmpError};
use crate::guests::{Around, qmp_of};
use crate::poll::{Poll, Token};
use crate::sockets::{self, Received};
use crate::turn::Turn;

/// How long one dialogue may take in all: QEMU answers within a millisecond, and whoever is silent for longer holds
/// another one up.
const DIALOGUE_TIME_MAX: Duration = Duration::from_millis(500);
/// Dialogues that are begun in one turn.
const BEGUN_PER_TURN: usize = 8;
/// Devices that are told in one turn: of a VMM that said nothing the process is looked through for each.
pub(crate) const TOLD_PER_TURN: usize = 4;
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

    /// A device's VMM is to be asked.
    pub(crate) fn ask(&mut self, device: u32) {
        let is_asked = self.queue.contains(&device)
            || self.said.iter().any(|(other, _)| *other == device)
            || self.open.values().any(|inquiry| inquiry.devices.contains(&device));
        if !is_asked {
            self.queue.push_back(device);
        }
    }

    /// A device that is to be told what was said, and at which socket.
    pub(crate) fn take_said(&mut self) -> Option<(u32, Arc<(String, Said)>)> {
        self.said.pop_front()
    }

    /// Ends the dialogues that take too long.
    pub(crate) fn end_late(&mut self, around: &mut Around<'_>) {
        let now = around.turn.now();
        let late = self.open.iter().filter(|(_, inquiry)| inquiry.ends_at <= now);
        let late: Vec<u32> = late.map(|(id, _)| *id).collect();
        for id in late {
            self.end(id, Err(NotSaid::Silent), around.turn, around.poll);
        }
    }

    /// Begins the dialogues that there is room for.
    pub(crate) fn begin(&mut self, around: &Around<'_>) {
        for _ in 0..BEGUN_PER_TURN {
            if !self.has_room() {
                return;
            }
            let Some(number) = self.queue.pop_front() else { return };
            self.begin_one(number, around);
        }
    }

    fn begin_one(&mut self, number: u32, around: &Around<'_>) {
        let Some(device) = around.devices.get(number) else { return late("device") };
        // One that is to be known by names by now is looked at again in any case.
        let Some(path) = qmp_of(device).map(str::to_string) else { return };
        if let Some(same) = self.open.values_mut().find(|inquiry| inquiry.path == path) {
            return same.devices.push(number);
        }
        let id = self.next;
        self.next = id.wrapping_add(1);
        // Whoever fills that with descriptors is not listened to.
        let closer = device.closer();
        let is_behind = closer.is_full() || closer.is_behind() && around.bounds.is_used_up();
        let begun = match is_behind {
            true => Err(NotSaid::Behind),
            false => Inquiry::begin(&path, closer, (number, around.turn.now())),
        };
        let begun = begun.and_then(|inquiry| {
            around.poll.add(&inquiry.socket, Token::Qmp(id))?;
            Ok(inquiry)
        });
        match begun {
            Ok(inquiry) => {
                self.open.insert(id, inquiry);
            }
            Err(why) => self.said.push_back((number, Arc::new((path, Err(why))))),
        }
    }

    /// A VMM has something to say.
    pub(crate) fn hear(&mut self, id: u32, around: &mut Around<'_>) {
        let Some(inquiry) = self.open.get_mut(&id) else { return late("dialogue") };
        let device = inquiry.devices.iter().find_map(|number| around.devices.get(*number));
        let closer = device.map(|device| device.closer().clone());
        let closer = closer.unwrap_or_else(|| Closer::counted_in(around.bounds.unclosed()));
        match inquiry.hear(&closer) {
            Ok(None) => {}
            Ok(Some(vcpus)) => self.end(id, Ok(vcpus), around.turn, around.poll),
            Err(why) => self.end(id, Err(why), around.turn, around.poll),
        }
    }

    fn end(&mut self, id: u32, said: Said, turn: &mut Turn, poll: &Poll) {
        let inquiry = found!(turn.defects, self.open.remove(&id), "dialogue to end");
        poll.remove(&inquiry.socket);
        // The VMM sees the end at once, though the close itself may come later.
        let _ = rustix::net::shutdown(&inquiry.socket, rustix::net::Shutdown::Both);
        let said = Arc::new((inquiry.path, said));
        let each = inquiry.devices.into_iter().map(|number| (number, Arc::clone(&said)));
        self.said.extend(each);
    }

    fn has_room(&self) -> bool {
        self.open.len() < DIALOGUES_MAX
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

#[cfg(test)]
mod tests;
