//! A front-end that says anything: whatever request, flags, payload and descriptors.
//!
//! Written from the specification and sharing no code with the daemon. Checks nothing that it
//! sends; what it gives back is what came.

use std::io::{ErrorKind, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Flags of an ordinary request.
pub const VERSION: u32 = 1;
/// The flag that asks for an acknowledgement.
pub const NEED_REPLY: u32 = 1 << 3;

const WAIT: Duration = Duration::from_secs(60);
const DESCRIPTORS_MAX: usize = 64;

/// What the other side did with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reply: to which request, and its payload.
    Reply(u32, Vec<u8>),
    /// It closed the connection.
    Closed,
}

impl Answer {
    /// Whether it is the acknowledgement that says no.
    pub fn is_nak(&self) -> bool {
        matches!(self, Answer::Reply(_, payload) if payload.len() == 8 && payload != &[0; 8])
    }

    /// Whether it says no in one of the two ways there are.
    pub fn is_refusal(&self) -> bool {
        self.is_nak() || *self == Answer::Closed
    }

    /// Whether it is the acknowledgement that says yes.
    pub fn is_ack(&self) -> bool {
        matches!(self, Answer::Reply(_, payload) if payload == &[0; 8])
    }
}

/// A connection.
#[derive(Debug)]
pub struct Raw {
    stream: UnixStream,
}

impl Raw {
    /// A connection on which nothing was said yet.
    ///
    /// # Errors
    /// The system's.
    pub fn connect(socket: &Path) -> Result<Raw> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.set_write_timeout(Some(WAIT))?;
        Ok(Raw { stream })
    }

    /// A connection that accepted `features` (bit 30 and VERSION_1 are added) and every protocol
    /// feature that is offered, acknowledgements among them.
    ///
    /// # Errors
    /// The system's, or an answer that is none.
    pub fn negotiated(socket: &Path, features: u64) -> Result<Raw> {
        let mut raw = Raw::connect(socket)?;
        raw.ask(request::GET_FEATURES)?;
        let offered = raw.ask(request::GET_PROTOCOL_FEATURES)?;
        raw.send(request::SET_PROTOCOL_FEATURES, VERSION, &offered.to_ne_bytes(), &[])?;
        raw.send(request::SET_OWNER, VERSION, &[], &[])?;
        let features = features | 1 << 30 | 1 << 32;
        ensure!(raw.tell(request::SET_FEATURES, &features.to_ne_bytes(), &[])?.is_ack());
        Ok(raw)
    }

    /// The stream, for what is no message.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a message with its right length.
    ///
    /// # Errors
    /// The system's.
    pub fn send(
        &self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<()> {
        self.send_bytes(&message(request, flags, payload.len() as u32, payload), fds)
    }

    /// Sends bytes that need not be a message.
    ///
    /// # Errors
    /// The system's.
    pub fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(fds)), "too many descriptors");
        }
        let sent = retry_on_intr(|| {
            sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
        })?;
        ensure!(sent == bytes.len(), "a message was sent in part");
        Ok(())
    }

    /// Sends a message and waits for its acknowledgement, or for the end.
    ///
    /// # Errors
    /// The system's, or silence for a minute.
    pub fn tell(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.send(request, VERSION | NEED_REPLY, payload, fds)?;
        self.answer().with_context(|| format!("after message {request}"))
    }

    /// Asks for a number.
    ///
    /// # Errors
    /// Another answer came.
    pub fn ask(&mut self, request: u32) -> Result<u64> {
        self.send(request, VERSION, &[], &[])?;
        match self.answer()? {
            Answer::Reply(answered, payload) if answered == request => {
                let bytes = <[u8; 8]>::try_from(payload.as_slice());
                bytes.map(u64::from_ne_bytes).ok().context("an answer that is no number")
            }
            other => bail!("message {request} was answered by {other:?}"),
        }
    }

    /// The next thing that comes from the other side.
    ///
    /// # Errors
    /// Nothing came for a minute, or it is no reply.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut header = [0; 12];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return Ok(Answer::Closed);
            }
            Err(error) => return Err(error).context("no answer"),
        }
        let word = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (request, flags, size) = (word(0), word(4), word(8));
        ensure!(flags == VERSION | 4 && size <= 4096, "no reply: flags {flags:#x}, {size} bytes");
        let mut payload = vec![0; size as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(Answer::Reply(request, payload))
    }

    /// Announces `bytes` of new sealed memory at guest and user address `base`, and gives its file.
    ///
    /// # Errors
    /// It was refused.
    pub fn share_memory(&mut self, base: u64, bytes: u64) -> Result<OwnedFd> {
        let memory = sealed_memory(bytes)?;
        let table = table(&[[base, bytes, base, 0]]);
        let answer = self.tell(request::SET_MEM_TABLE, &table, &[memory.as_fd()])?;
        ensure!(answer.is_ack(), "SET_MEM_TABLE: {answer:?}");
        Ok(memory)
    }
}

/// Numbers of messages (vhost-user, "Front-end message types").
#[allow(missing_docs, reason = "the specification's names")]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// A message whose header says `size`, whatever its payload is.
pub fn message(request: u32, flags: u32, size: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [request, flags, size].iter().flat_map(|field| field.to_ne_bytes()).collect();
    bytes.extend(payload);
    bytes
}

/// The payload of `SET_VRING_NUM` and its like.
pub fn ring_state(queue: u32, value: u32) -> Vec<u8> {
    [queue, value].iter().flat_map(|field| field.to_ne_bytes()).collect()
}

/// The payload of `SET_VRING_ADDR`: descriptors, used ring, available ring.
pub fn ring_addresses(queue: u32, [descriptors, used, available]: [u64; 3]) -> Vec<u8> {
    let mut payload = ring_state(queue, 0);
    payload.extend(words(&[descriptors, used, available, 0]));
    payload
}

/// The payload of `SET_MEM_TABLE`; of each region guest address, bytes, user address, file offset.
pub fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut payload = words(&[regions.len() as u64]);
    regions.iter().for_each(|region| payload.extend(words(region)));
    payload
}

/// Integers in the machine's byte order.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A file of zeroes in memory that cannot shrink.
///
/// # Errors
/// The system's.
pub fn sealed_memory(bytes: u64) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("raw-guest", flags)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    Ok(fd)
}

/// A descriptor for kicks or calls.
///
/// # Errors
/// The system's.
pub fn signal() -> Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
