//! The vhost-user messages that a front-end sends (docs/interop/vhost-user.rst in QEMU).
//!
//! Only the bytes and the waiting; what is sent in which order is the parent's matter.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Several queues, and `GET_QUEUE_NUM`.
pub const PROTOCOL_MQ: u64 = 1 << 0;
/// The dirty log comes as a descriptor.
pub const PROTOCOL_LOG_SHMFD: u64 = 1 << 1;
/// Every message is acknowledged.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// A channel on which the back-end asks.
pub const PROTOCOL_BACKEND_REQ: u64 = 1 << 5;
/// The back-end holds the config space.
pub const PROTOCOL_CONFIG: u64 = 1 << 9;
/// A record of what is in flight, in shared memory.
pub const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;
/// `RESET_DEVICE`.
pub const PROTOCOL_RESET_DEVICE: u64 = 1 << 13;
/// Memory one region at a time.
pub const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const SET_BACKEND_REQ_FD: u32 = 21;
const GET_CONFIG: u32 = 24;
const SET_CONFIG: u32 = 25;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;
const RESET_DEVICE: u32 = 34;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
const HEADER_SIZE: usize = 12;
/// Longest answer we take, bytes: a whole config space and its header fit many times over.
const ANSWER_MAX: usize = 4096;
/// No back-end needs longer for a message.
const WAIT: Duration = Duration::from_secs(60);

/// One region, as both memory messages describe it.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRegion {
    /// Guest address of the first byte.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// The front-end's address of it.
    pub user: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
}

/// Where a ring is, in the front-end's addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct VringAddress {
    pub(super) index: u32,
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    stream: UnixStream,
    protocol_features: u64,
}

/// The connection ends here and now, even where a program that is just being started has a descriptor of it
/// until it runs: the back-end serves one front-end at a time.
impl Drop for Session {
    fn drop(&mut self) {
        // What is closed already has ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Session {
    pub(super) fn over(stream: UnixStream) -> Result<Session> {
        stream.set_read_timeout(Some(WAIT))?;
        stream.set_write_timeout(Some(WAIT))?;
        Ok(Session { stream, protocol_features: 0 })
    }

    pub(super) fn protocol_features(&self) -> u64 {
        self.protocol_features
    }

    pub(super) fn get_features(&mut self) -> Result<u64> {
        self.ask_u64(GET_FEATURES)
    }

    pub(super) fn set_owner(&mut self) -> Result<()> {
        self.tell(SET_OWNER, &[], None)
    }

    pub(super) fn set_features(&mut self, features: u64) -> Result<()> {
        self.tell(SET_FEATURES, &features.to_ne_bytes(), None)
    }

    /// Accepts what we know of, what is `needed`, and of `more` what is offered; looks whether there
    /// are as many `queues` (of a NIC: pairs).
    pub(super) fn negotiate_protocol(&mut self, queues: u16, needed: u64, more: u64) -> Result<()> {
        let offered = self.ask_u64(GET_PROTOCOL_FEATURES)?;
        let missing = needed & !offered;
        ensure!(missing == 0, "the back-end does not offer protocol features {missing:#x}");
        let known = PROTOCOL_MQ | PROTOCOL_REPLY_ACK | PROTOCOL_CONFIG | PROTOCOL_INFLIGHT_SHMFD;
        let accepted = offered & (known | needed | more);
        // The acknowledgement of this very message is not agreed on yet.
        self.send(SET_PROTOCOL_FEATURES, 0, &accepted.to_ne_bytes(), None)?;
        self.protocol_features = accepted;
        if accepted & PROTOCOL_MQ != 0 {
            let most = self.ask_u64(GET_QUEUE_NUM)?;
            ensure!(most >= queues.into(), "the back-end has {most} queues, not {queues}");
        }
        Ok(())
    }

    pub(super) fn set_mem_table(&mut self, region: MemoryRegion, fd: BorrowedFd<'_>) -> Result<()> {
        let mut payload = Vec::from(1u64.to_ne_bytes());
        payload.extend(region.to_bytes());
        self.tell(SET_MEM_TABLE, &payload, Some(fd))
    }

    pub(super) fn add_mem_reg(&mut self, region: MemoryRegion, fd: BorrowedFd<'_>) -> Result<()> {
        let mut payload = Vec::from(0u64.to_ne_bytes());
        payload.extend(region.to_bytes());
        self.tell(ADD_MEM_REG, &payload, Some(fd))
    }

    pub(super) fn rem_mem_reg(&mut self, region: MemoryRegion) -> Result<()> {
        let mut payload = Vec::from(0u64.to_ne_bytes());
        payload.extend(region.to_bytes());
        self.tell(REM_MEM_REG, &payload, None)
    }

    /// Answered by a message of its own, whether or not acknowledgements were negotiated.
    pub(super) fn set_log_base(&mut self, len: u64, fd: BorrowedFd<'_>) -> Result<()> {
        let mut payload = Vec::from(len.to_ne_bytes());
        payload.extend(0u64.to_ne_bytes());
        self.send(SET_LOG_BASE, 0, &payload, Some(fd))?;
        self.answer(SET_LOG_BASE).map(drop)
    }

    pub(super) fn set_backend_req_fd(&mut self, fd: BorrowedFd<'_>) -> Result<()> {
        self.tell(SET_BACKEND_REQ_FD, &[], Some(fd))
    }

    pub(super) fn reset_device(&mut self) -> Result<()> {
        self.tell(RESET_DEVICE, &[], None)
    }

    pub(super) fn set_vring_num(&mut self, index: u16, size: u16) -> Result<()> {
        self.tell(SET_VRING_NUM, &vring_state(index, size.into()), None)
    }

    pub(super) fn set_vring_base(&mut self, index: u16, base: u32) -> Result<()> {
        self.tell(SET_VRING_BASE, &vring_state(index, base), None)
    }

    pub(super) fn set_vring_enable(&mut self, index: u16, on: bool) -> Result<()> {
        self.tell(SET_VRING_ENABLE, &vring_state(index, on.into()), None)
    }

    pub(super) fn set_vring_addr(&mut self, address: VringAddress) -> Result<()> {
        let mut payload = Vec::from(address.index.to_ne_bytes());
        payload.extend(0u32.to_ne_bytes());
        for part in [address.descriptors, address.used, address.available, 0] {
            payload.extend(part.to_ne_bytes());
        }
        self.tell(SET_VRING_ADDR, &payload, None)
    }

    pub(super) fn set_vring_kick(&mut self, index: u16, fd: BorrowedFd<'_>) -> Result<()> {
        self.tell(SET_VRING_KICK, &u64::from(index).to_ne_bytes(), Some(fd))
    }

    pub(super) fn set_vring_call(&mut self, index: u16, fd: BorrowedFd<'_>) -> Result<()> {
        self.tell(SET_VRING_CALL, &u64::from(index).to_ne_bytes(), Some(fd))
    }

    pub(super) fn get_vring_base(&mut self, index: u16) -> Result<u32> {
        self.send(GET_VRING_BASE, 0, &vring_state(index, 0), None)?;
        let (answer, _) = self.answer(GET_VRING_BASE)?;
        ensure!(answer.len() == 8, "GET_VRING_BASE was answered with {} bytes", answer.len());
        Ok(u32_at(&answer, 4))
    }

    pub(super) fn get_config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>> {
        ensure!(self.protocol_features & PROTOCOL_CONFIG != 0, "CONFIG was not negotiated");
        let mut payload = Vec::new();
        for field in [offset, len, 0] {
            payload.extend(field.to_ne_bytes());
        }
        payload.resize(payload.len() + len as usize, 0);
        self.send(GET_CONFIG, 0, &payload, None)?;
        let (answer, _) = self.answer(GET_CONFIG)?;
        ensure!(answer.len() == payload.len(), "the back-end refused GET_CONFIG");
        Ok(answer[12..].to_vec())
    }

    pub(super) fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<()> {
        let mut payload = Vec::new();
        for field in [offset, bytes.len() as u32, 0] {
            payload.extend(field.to_ne_bytes());
        }
        payload.extend(bytes);
        self.tell(SET_CONFIG, &payload, None)
    }

    /// Gets an in-flight record from the back-end, and what is to be said of it.
    pub(super) fn get_inflight(&mut self, queues: u16, size: u16) -> Result<(OwnedFd, Vec<u8>)> {
        let mut payload = vec![0; 16];
        payload.extend(queues.to_ne_bytes());
        payload.extend(size.to_ne_bytes());
        self.send(GET_INFLIGHT_FD, 0, &payload, None)?;
        let (answer, fd) = self.answer(GET_INFLIGHT_FD)?;
        let fd = fd.context("GET_INFLIGHT_FD was answered without a descriptor")?;
        ensure!(answer.len() >= 20, "GET_INFLIGHT_FD was answered with {} bytes", answer.len());
        Ok((fd, answer))
    }

    /// Gives the back-end a record that it, or an earlier one, has made.
    pub(super) fn set_inflight(&mut self, said: &[u8], fd: BorrowedFd<'_>) -> Result<()> {
        self.tell(SET_INFLIGHT_FD, said, Some(fd))
    }

    /// Returns when the back-end has handled everything sent so far.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.get_features().map(drop)
    }

    /// Sends a message that has no answer of its own, and waits for its acknowledgement where
    /// those were negotiated.
    fn tell(&mut self, request: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
        if self.protocol_features & PROTOCOL_REPLY_ACK == 0 {
            return self.send(request, 0, payload, fd);
        }
        self.send(request, NEED_REPLY, payload, fd)?;
        let (answer, _) = self.answer(request)?;
        ensure!(answer.len() == 8, "message {request} was acknowledged with {answer:?}");
        if answer != [0; 8] {
            bail!("the back-end refused message {request}");
        }
        Ok(())
    }

    fn ask_u64(&mut self, request: u32) -> Result<u64> {
        self.send(request, 0, &[], None)?;
        let (answer, _) = self.answer(request)?;
        let bytes = <[u8; 8]>::try_from(answer.as_slice());
        bytes.map(u64::from_ne_bytes).ok().context("an answer that is no number")
    }

    fn send(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let mut message = Vec::with_capacity(HEADER_SIZE + payload.len());
        for field in [request, VERSION | flags, payload.len() as u32] {
            message.extend(field.to_ne_bytes());
        }
        message.extend(payload);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(fds)), "no room for a descriptor");
        }
        // A wait with a limit is interrupted when a process that was stopped goes on.
        let sent = retry_on_intr(|| {
            sendmsg(&self.stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
        });
        let sent = sent.with_context(|| format!("sending message {request}"))?;
        ensure!(sent == message.len(), "message {request} was sent in part");
        Ok(())
    }

    /// The payload of the answer to `request`, and the first descriptor that came with it.
    fn answer(&mut self, request: u32) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let what = || format!("waiting for the answer to message {request}");
        let mut header = [0; HEADER_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let got = retry_on_intr(|| {
            recvmsg(&self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let got = got.with_context(what)?.bytes;
        let mut first = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fds.for_each(|fd| first = first.take().or(Some(fd)));
            }
        }
        ensure!(got > 0, "the back-end hung up instead of answering message {request}");
        self.stream.read_exact(&mut header[got..]).with_context(what)?;
        let (code, flags, size) = (u32_at(&header, 0), u32_at(&header, 4), u32_at(&header, 8));
        ensure!(
            code == request && flags & REPLY != 0 && size as usize <= ANSWER_MAX,
            "message {request} was answered by message {code}, flags {flags:#x}, {size} bytes"
        );
        let mut payload = vec![0; size as usize];
        self.stream.read_exact(&mut payload).with_context(what)?;
        Ok((payload, first))
    }
}

impl MemoryRegion {
    fn to_bytes(self) -> impl Iterator<Item = u8> {
        [self.gpa, self.size, self.user, self.offset].into_iter().flat_map(u64::to_ne_bytes)
    }
}

fn vring_state(index: u16, value: u32) -> [u8; 8] {
    (u64::from(value) << 32 | u64::from(index)).to_le_bytes()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
