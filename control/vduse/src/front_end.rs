//! The front-end's side of one vhost-user connection to the daemon, as a VMM has it.
//!
//! Not the kernel's side (`device`), which says when a guest's rings begin and end. Every wait ends after
//! [`ANSWER_S_MAX`]; then, and after any error, the connection is of no more use.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost_user::message::{ConfigSpan, RingFd, RingState};
use vhost_user::{
    HEADER_SIZE, InflightArea, MemoryRegion, Message, PAYLOAD_SIZE_MAX, RingAddresses, bits,
};

/// Longest wait for an answer, seconds: the kernel waits for thirty for ours.
const ANSWER_S_MAX: u64 = 10;
/// The flags of a reply: version 1, and that it is one.
const REPLY_FLAGS: u32 = 1 | 1 << 2;
/// What we take of what is offered.
const PROTOCOL: u64 =
    bits::MQ | bits::REPLY_ACK | bits::BACKEND_REQ | bits::CONFIG | bits::INFLIGHT_SHMFD;

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The system's word, or silence.
    #[error("the daemon's socket: {0}")]
    Socket(#[from] io::Error),
    /// It said no.
    #[error("the daemon refuses {0}: its log says why")]
    Refused(&'static str),
    /// What it said is no answer.
    #[error("the daemon's answer to {0} is none")]
    Nonsense(&'static str),
}

/// A ring that is to start.
#[derive(Debug)]
pub(crate) struct Ring<'a> {
    pub(crate) size: u32,
    /// Where it goes on.
    pub(crate) base: u16,
    pub(crate) addresses: RingAddresses,
    pub(crate) kick: BorrowedFd<'a>,
    pub(crate) call: BorrowedFd<'a>,
}

/// A connection whose features were looked at.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    stream: UnixStream,
    /// Our end of the channel on which the daemon says that the config space has changed, while it has the other one.
    channel: Option<UnixStream>,
    /// Offered, without those of the transport.
    pub(crate) features: u64,
    protocol: u64,
    /// Rings that the device has at most.
    pub(crate) queues: u32,
}

impl FrontEnd {
    pub(crate) fn connect(socket: &Path) -> Result<FrontEnd, Lost> {
        let stream = UnixStream::connect(socket)?;
        let wait = Some(Duration::from_secs(ANSWER_S_MAX));
        stream.set_read_timeout(wait)?;
        stream.set_write_timeout(wait)?;
        let mut end = FrontEnd { stream, channel: None, features: 0, protocol: 0, queues: 1 };
        end.features = end.ask(&Message::GetFeatures)? & !bits::TRANSPORT;
        end.protocol = end.ask(&Message::GetProtocolFeatures)? & PROTOCOL;
        end.send(&Message::SetProtocolFeatures(end.protocol), false, &[])?;
        end.tell(&Message::SetOwner, &[])?;
        if end.protocol & bits::MQ != 0 {
            end.queues = u32::try_from(end.ask(&Message::GetQueueNum)?).unwrap_or(u32::MAX);
        }
        if end.protocol & bits::BACKEND_REQ != 0 {
            let (channel, theirs) = UnixStream::pair()?;
            channel.set_nonblocking(true)?;
            end.tell(&Message::SetBackendReqFd, &[theirs.as_fd()])?;
            end.channel = Some(channel);
        }
        Ok(end)
    }

    /// What is readable when the daemon has gone, and then, where it has a channel, when it said something there.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.stream.as_fd()).chain(self.channel.iter().map(AsFd::as_fd))
    }

    /// Takes what lies in the channel; whether there was anything. All that can come there is that the config space
    /// has changed. A channel that has ended is no more looked at: it would be readable for ever.
    pub(crate) fn config_has_changed(&mut self) -> bool {
        let mut bytes = [0; 256];
        let mut came = false;
        // As much as is there now, of what the daemon says seldom.
        for _ in 0..16 {
            let Some(channel) = &mut self.channel else { break };
            match channel.read(&mut bytes) {
                Ok(0) => self.channel = None,
                Ok(_) => came = true,
                Err(_) => break,
            }
        }
        came
    }

    /// The first bytes of the config space.
    pub(crate) fn config(&mut self, size: usize) -> Result<Vec<u8>, Lost> {
        let span = ConfigSpan { offset: 0, size: size as u32, flags: 0, bytes: vec![0; size] };
        let asked = Message::GetConfig(span);
        self.send(&asked, false, &[])?;
        let (payload, _) = self.reply(&asked)?;
        match Message::parse(asked.id(), &payload) {
            Ok(Message::GetConfig(span)) if span.bytes.len() == size => Ok(span.bytes),
            _ => Err(Lost::Nonsense(asked.name())),
        }
    }

    /// Features and memory, before any ring.
    pub(crate) fn begin(
        &mut self,
        features: u64,
        (region, memory): (MemoryRegion, BorrowedFd<'_>),
        record: Option<(InflightArea, BorrowedFd<'_>)>,
    ) -> Result<(), Lost> {
        self.tell(&Message::SetFeatures(features | bits::PROTOCOL_FEATURES), &[])?;
        if let Some((area, fd)) = record {
            self.tell(&Message::SetInflightFd(area), &[fd])?;
        }
        self.tell(&Message::SetMemTable(vec![region]), &[memory])
    }

    /// Bytes of a record of what is in flight; `None` if this device has none.
    pub(crate) fn record_size(&mut self, queues: u16, size: u16) -> Result<Option<u64>, Lost> {
        if self.protocol & bits::INFLIGHT_SHMFD == 0 {
            return Ok(None);
        }
        let wanted = InflightArea { queues, queue_size: size, ..InflightArea::default() };
        let asked = Message::GetInflightFd(wanted);
        self.send(&asked, false, &[])?;
        let (payload, _theirs) = self.reply(&asked)?;
        match Message::parse(asked.id(), &payload) {
            Ok(Message::GetInflightFd(area)) => Ok(Some(area.size)),
            _ => Err(Lost::Nonsense(asked.name())),
        }
    }

    pub(crate) fn start(&mut self, queue: u32, ring: &Ring<'_>) -> Result<(), Lost> {
        let state = |value| RingState { queue, value };
        let with_fd = || RingFd { queue, has_fd: true };
        self.tell(&Message::SetVringNum(state(ring.size)), &[])?;
        self.tell(&Message::SetVringBase(state(ring.base.into())), &[])?;
        self.tell(&Message::SetVringAddr((queue, ring.addresses)), &[])?;
        self.tell(&Message::SetVringCall(with_fd()), &[ring.call])?;
        self.tell(&Message::SetVringKick(with_fd()), &[ring.kick])?;
        self.tell(&Message::SetVringEnable(state(1)), &[])
    }

    /// Stops a ring; nothing of it is in flight when this returns.
    pub(crate) fn stop(&mut self, queue: u32) -> Result<(), Lost> {
        let asked = Message::GetVringBase(RingState { queue, value: 0 });
        self.send(&asked, false, &[])?;
        self.reply(&asked).map(|_| ())
    }

    fn send(
        &self,
        message: &Message,
        need_reply: bool,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Lost> {
        let bytes = message.emit(need_reply);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Lost::Nonsense(message.name()));
        }
        // A wait with a limit is interrupted when a process that was stopped goes on.
        let sent = retry_on_intr(|| {
            sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        })
        .map_err(io::Error::from)?;
        // A message is shorter than what a socket takes at once.
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::from(ErrorKind::WriteZero).into()) }
    }

    /// Sends what has no answer of its own, and waits until it is done.
    fn tell(&mut self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Lost> {
        let acked = self.protocol & bits::REPLY_ACK != 0;
        self.send(message, acked, fds)?;
        if acked && self.number(message)? != 0 {
            return Err(Lost::Refused(message.name()));
        }
        Ok(())
    }

    fn ask(&mut self, message: &Message) -> Result<u64, Lost> {
        self.send(message, false, &[])?;
        self.number(message)
    }

    fn number(&mut self, asked: &Message) -> Result<u64, Lost> {
        let (payload, _) = self.reply(asked)?;
        let bytes = payload.try_into().map_err(|_| Lost::Nonsense(asked.name()))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn reply(&mut self, asked: &Message) -> Result<(Vec<u8>, Option<OwnedFd>), Lost> {
        let mut header = [0; HEADER_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut header)];
        let came = retry_on_intr(|| {
            recvmsg(&self.stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
        .map_err(io::Error::from)?;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if came.bytes == 0 {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        self.stream.read_exact(&mut header[came.bytes..])?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let size = word(8) as usize;
        if word(0) != asked.id() || word(4) != REPLY_FLAGS || size > PAYLOAD_SIZE_MAX {
            return Err(Lost::Nonsense(asked.name()));
        }
        let mut payload = vec![0; size];
        self.stream.read_exact(&mut payload)?;
        Ok((payload, fd))
    }
}

#[cfg(test)]
pub(crate) mod tests;
