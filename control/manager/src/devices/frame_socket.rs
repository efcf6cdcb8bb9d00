//! One connection with a front-end: whole messages in, replies out, bounded both ways.
//!
//! Not what a message does (`device`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::Shutdown;
use vhost_user::{Frame, Framer, Reply};

use crate::devices::lent::{Closer, Lent};
use crate::sockets::{self, Received};

/// Replies that may wait because the front-end does not read them; one more ends the connection.
const OUTBOX_MAX: usize = 64;
/// Of those, replies with a descriptor: a front-end waits for one before it asks for another.
const OUTBOX_FDS_MAX: usize = 2;
/// Bytes asked of one read: a header, or the rest of the largest payload.
const READ_SIZE: usize = vhost_user::HEADER_SIZE + vhost_user::PAYLOAD_SIZE_MAX;

/// What a read led to.
pub(crate) enum Incoming {
    /// A whole message.
    Frame(Frame<Lent>),
    /// Nothing more now.
    Nothing,
    /// The front-end has gone.
    End,
}

/// Bytes that were received, and the descriptors that came with them.
type Early = (Vec<u8>, Vec<Lent>);

pub(crate) struct FrameSocket {
    socket: Lent,
    /// Closes what comes here.
    closer: Closer,
    framer: Framer<Lent>,
    /// What another process received here and did not read any more.
    early: VecDeque<Early>,
    /// Bytes to send, how many of the first are gone, and its descriptor.
    outbox: VecDeque<Reply<Lent>>,
    sent: usize,
}

impl FrameSocket {
    pub(crate) fn new(socket: OwnedFd, closer: &Closer) -> FrameSocket {
        FrameSocket::of(Lent::new(socket, closer), closer)
    }

    /// Over a socket that a front-end sent.
    pub(crate) fn of(socket: Lent, closer: &Closer) -> FrameSocket {
        let (framer, early, outbox) = (Framer::default(), VecDeque::new(), VecDeque::new());
        FrameSocket { socket, closer: closer.clone(), framer, early, outbox, sent: 0 }
    }

    /// What was received and not given out as messages, for a process that takes over: each part has its
    /// descriptors.
    pub(crate) fn unread(&self) -> impl Iterator<Item = (&[u8], &[Lent])> {
        let (begun, early) = (self.framer.begun(), self.early.iter());
        let begun = Some(begun).filter(|(bytes, fds)| !(bytes.is_empty() && fds.is_empty()));
        begun.into_iter().chain(early.map(|(bytes, fds)| (&bytes[..], &fds[..])))
    }

    /// What is left of the replies that were not sent.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = (&[u8], Option<&Lent>)> {
        self.outbox.iter().enumerate().map(|(at, reply)| match at {
            0 if self.sent > 0 => (reply.bytes.get(self.sent..).unwrap_or_default(), None),
            _ => (&reply.bytes[..], reply.fd.as_ref()),
        })
    }

    /// Goes on where another process stopped, as [`Self::unread`] and [`Self::unsent`] told.
    pub(crate) fn go_on(&mut self, unread: impl Iterator<Item = Early>, unsent: Vec<Early>) {
        self.early.extend(unread);
        let reply = |(bytes, fds): Early| Reply { bytes, fd: fds.into_iter().next() };
        self.outbox.extend(unsent.into_iter().map(reply));
    }

    /// Whether there may be something to read although the socket says nothing.
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Descriptors of a message that has not ended.
    pub(crate) fn descriptors(&self) -> usize {
        self.framer.descriptors()
    }

    pub(crate) fn socket(&self) -> &Lent {
        &self.socket
    }

    /// Reads until a message is whole or nothing is left to read. Never beyond that message, so
    /// that descriptors stay with theirs.
    ///
    /// # Errors
    /// The connection is to be closed: what the kernel said, or a stream that makes no sense.
    pub(crate) fn receive(&mut self) -> io::Result<Incoming> {
        while let Some((bytes, mut fds)) = self.early.pop_front() {
            let mut rest = &bytes[..];
            let pushed = self.framer.push(&mut rest, &mut fds).map_err(io::Error::other)?;
            if !rest.is_empty() {
                self.early.push_front((rest.to_vec(), Vec::new()));
            }
            if let Some(frame) = pushed {
                return Ok(Incoming::Frame(frame));
            }
        }
        let mut buffer = [0; READ_SIZE];
        loop {
            let wanted = self.framer.wants().min(READ_SIZE);
            let Some(into) = buffer.get_mut(..wanted) else { return Ok(Incoming::Nothing) };
            let mut fds = Vec::new();
            let lend = |fd| fds.push(Lent::new(fd, &self.closer));
            let read = match sockets::receive(&self.socket, into, lend)? {
                Received::Bytes(read) => read,
                Received::Nothing => return Ok(Incoming::Nothing),
                Received::End => return Ok(Incoming::End),
            };
            let mut bytes = buffer.get(..read).unwrap_or_default();
            match self.framer.push(&mut bytes, &mut fds) {
                Ok(Some(frame)) => return Ok(Incoming::Frame(frame)),
                Ok(None) => {}
                Err(bad) => return Err(io::Error::other(bad)),
            }
        }
    }

    /// Queues a reply and sends what fits.
    ///
    /// # Errors
    /// As [`Self::flush`], or a front-end that does not read its replies.
    pub(crate) fn send(&mut self, reply: Reply<Lent>) -> io::Result<()> {
        let with_fd = self.outbox.iter().filter(|reply| reply.fd.is_some()).count();
        if self.outbox.len() >= OUTBOX_MAX || with_fd >= OUTBOX_FDS_MAX {
            return Err(io::Error::other("the front-end does not read its replies"));
        }
        self.outbox.push_back(reply);
        self.flush()
    }

    /// Sends what fits of what is queued.
    ///
    /// # Errors
    /// What the kernel said; the connection is to be closed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while let Some(reply) = self.outbox.front() {
            let rest = reply.bytes.get(self.sent..).unwrap_or_default();
            let fd = reply.fd.as_ref().filter(|_| self.sent == 0).map(AsFd::as_fd);
            let taken = sockets::send(&self.socket, rest, fd)?;
            if taken < rest.len() {
                self.sent += taken;
                return Ok(());
            }
            self.sent = 0;
            self.outbox.pop_front();
        }
        Ok(())
    }

    /// Whether a message has begun and not ended.
    pub(crate) fn is_within(&self) -> bool {
        self.framer.is_within()
    }

    /// Whether something waits to be sent.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.outbox.is_empty()
    }
}

impl Drop for FrameSocket {
    /// The front-end sees the end at once, though the close itself may come later.
    fn drop(&mut self) {
        #[cfg(any(test, feature = "simulated"))]
        if crate::simulated::is_dying() {
            return;
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests;
