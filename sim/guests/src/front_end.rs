//! The VMM of one guest: what it says to a daemon, message by message, each after the answer to the one
//! before, and what it must remember over reconnections.
//!
//! The messages are bytes, as the real protocol has them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use device::features as bit;
use random::Random;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use vhost_user::message::{ConfigSpan, RingFd, RingState};
use vhost_user::{InflightArea, LogArea, Message, RingAddresses, bits};

use crate::guest::Guest;
use crate::layout::{MEMORY, Memory, PAGE, sealed};

/// Where `writeback` is in the config space.
const WRITEBACK_AT: u32 = 32;
/// Bytes of a log: a bit for each page.
pub(crate) const LOG_BYTES: u64 = MEMORY / PAGE / 8;

/// What goes to the daemon.
#[derive(Debug)]
pub struct Sent {
    /// One message.
    pub bytes: Vec<u8>,
    /// What goes with its first byte.
    pub fds: Vec<OwnedFd>,
}

/// What is said next.
#[derive(Clone, Debug)]
enum Saying {
    Plain(Message),
    Memory,
    MakeRecord,
    UseRecord,
    Log,
    Channel,
    Base(u16),
    Address(u16),
    Call(u16),
    Kick(u16),
}

#[derive(Debug)]
pub(crate) struct FrontEnd {
    /// As its driver negotiated them.
    features: u64,
    write_through: bool,
    is_nic: bool,
    queues: u16,
    ring_size: u16,
    /// Where each ring stands, as far as it was told.
    bases: Vec<u32>,
    first_base: u32,
    /// It keeps one.
    is_recorded: bool,
    record: Option<(OwnedFd, InflightArea)>,
    pub(crate) log: Option<OwnedFd>,
    pub(crate) logging: bool,
    /// Where the daemon says that something of the device has changed: its end, and the VMM's.
    channel: Option<(OwnedFd, OwnedFd)>,
    /// Sectors of the disk, as was read last.
    pub(crate) sectors: Option<u64>,
    script: VecDeque<Saying>,
    /// The message whose answer is awaited.
    asked: Option<u32>,
}

impl FrontEnd {
    pub(crate) fn new(guest: &Guest) -> FrontEnd {
        let spec = &guest.spec;
        let first_base = virtqueue::driver::first_base(spec.ring.format);
        FrontEnd {
            features: spec.features,
            write_through: spec.write_through,
            is_nic: spec.vlan.is_some(),
            queues: spec.queues,
            ring_size: spec.ring.size,
            bases: vec![first_base; spec.queues.into()],
            first_base,
            is_recorded: spec.is_recorded,
            record: None,
            log: None,
            logging: false,
            channel: None,
            sectors: None,
            script: VecDeque::new(),
            asked: None,
        }
    }

    /// Writes anything anywhere into the record of what is in flight, which is the VMM's to keep.
    pub(crate) fn forge(&self, random: &mut Random) {
        if let Some((file, area)) = &self.record {
            let bytes = (random.next() >> random.below(64)).to_ne_bytes();
            let len = random.between(1, 8) as usize;
            let at = area.offset + random.below(area.size.saturating_sub(8));
            // What is not written is not forged.
            let _ = rustix::io::pwrite(file, &bytes[..len], at);
        }
    }

    /// Nothing is left to say, and all was answered.
    pub(crate) fn is_done(&self) -> bool {
        self.script.is_empty() && self.asked.is_none()
    }

    /// A new connection: everything is told, of what was served before too.
    pub(crate) fn connect(&mut self) {
        self.asked = None;
        let of_nic = bits::OFFERED_BY_NIC & !bits::BACKEND_REQ;
        let protocol = if self.is_nic { of_nic } else { bits::OFFERED_BY_DISK };
        let mut script = vec![
            // From the first message on everything is acknowledged.
            Saying::Plain(Message::SetProtocolFeatures(protocol)),
            Saying::Plain(Message::SetOwner),
            Saying::Plain(Message::SetFeatures(self.features_now())),
        ];
        if !self.is_nic {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            self.channel = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok();
            script.extend([Saying::Channel, reading_size()]);
        }
        script.extend(self.caching());
        if self.log.is_some() {
            script.push(Saying::Log);
        }
        script.push(Saying::Memory);
        script.extend(self.recording());
        for queue in 0..self.queues {
            script.extend(self.starting(queue));
        }
        self.script = script.into();
    }

    /// The connection is gone.
    pub(crate) fn hang_up(&mut self) {
        self.script.clear();
        self.asked = None;
        self.channel = None;
    }

    /// Every ring is to stop; as QEMU does it, all are disabled first.
    pub(crate) fn stop(&mut self) {
        let states = || (0..u32::from(self.queues)).map(|queue| RingState { queue, value: 0 });
        let disabled = states().map(Message::SetVringEnable);
        self.script.extend(disabled.chain(states().map(Message::GetVringBase)).map(Saying::Plain));
    }

    /// Rings that were stopped go on where they stopped.
    pub(crate) fn start(&mut self) {
        for queue in 0..self.queues {
            let starting = self.starting(queue);
            self.script.extend(starting);
        }
    }

    /// The driver starts anew: rings are empty, and nothing is in flight.
    pub(crate) fn restart(&mut self) {
        self.bases.fill(self.first_base);
        self.record = None;
        self.script.push_back(Saying::Plain(Message::ResetDevice));
        self.script.extend(self.caching());
        self.script.extend(self.recording());
        self.start();
    }

    /// It is another daemon's that goes on: what is in flight is none of its business.
    pub(crate) fn leave_record(&mut self) {
        self.record = None;
    }

    /// Writes are to be logged from now on, or no longer.
    ///
    /// # Errors
    /// No memory for a log.
    pub(crate) fn set_logging(&mut self, on: bool) -> Result<(), String> {
        self.logging = on;
        if on && self.log.is_none() {
            self.log = Some(sealed("log", LOG_BYTES)?);
            self.script.push_back(Saying::Log);
        }
        self.script.push_back(Saying::Plain(Message::SetFeatures(self.features_now())));
        Ok(())
    }

    /// The record of what is in flight, which a NIC has not, nor everybody with a disk.
    fn recording(&self) -> Vec<Saying> {
        match (&self.record, self.is_recorded) {
            (_, false) => Vec::new(),
            (None, _) => vec![Saying::MakeRecord, Saying::UseRecord],
            (Some(_), _) => vec![Saying::UseRecord],
        }
    }

    /// The driver's choice of write-through, where it can choose.
    fn caching(&self) -> Option<Saying> {
        let chooses = self.write_through && self.features & bit::BLK_CONFIG_WCE != 0;
        let span = ConfigSpan { offset: WRITEBACK_AT, size: 1, flags: 0, bytes: vec![0] };
        chooses.then_some(Saying::Plain(Message::SetConfig(span)))
    }

    /// Nobody wants to know of writes any more; the log went with its connection.
    pub(crate) fn end_logging(&mut self) {
        self.logging = false;
        self.log = None;
    }

    fn features_now(&self) -> u64 {
        let logging = if self.logging { bits::LOG_ALL } else { 0 };
        self.features | bits::PROTOCOL_FEATURES | logging
    }

    fn starting(&self, queue: u16) -> Vec<Saying> {
        let state = |value: u32| RingState { queue: queue.into(), value };
        vec![
            Saying::Plain(Message::SetVringNum(state(self.ring_size.into()))),
            Saying::Base(queue),
            Saying::Address(queue),
            Saying::Call(queue),
            Saying::Kick(queue),
            Saying::Plain(Message::SetVringEnable(state(1))),
        ]
    }

    /// The next message, when there is one and the last was answered.
    pub(crate) fn say(&mut self, guest: &Guest) -> Option<Sent> {
        if self.asked.is_some() {
            return None;
        }
        let told = self.channel.as_ref().map(|(_, ours)| rustix::io::read(ours, &mut [0; 64]));
        if let Some(Ok(1..)) = told {
            self.script.push_back(reading_size());
        }
        let saying = self.script.pop_front()?;
        let (message, fds) = self.meant(&saying, guest);
        let fds = fds.into_iter().filter_map(|fd| fcntl_dupfd_cloexec(fd, 0).ok()).collect();
        self.asked = Some(message.id());
        Some(Sent { bytes: message.emit(true), fds })
    }

    fn meant<'a>(&'a self, saying: &Saying, guest: &'a Guest) -> (Message, Vec<&'a OwnedFd>) {
        let of = |queue: &u16| &guest.queues[usize::from(*queue)];
        let ring_fd = |queue: &u16| RingFd { queue: (*queue).into(), has_fd: true };
        match saying {
            Saying::Plain(message) => (message.clone(), Vec::new()),
            Saying::Memory => {
                let file = &guest.memory.file;
                (Message::SetMemTable(Memory::regions().into()), vec![file, file])
            }
            Saying::MakeRecord => {
                let (queues, queue_size) = (self.queues, self.ring_size);
                let area = InflightArea { queues, queue_size, ..InflightArea::default() };
                (Message::GetInflightFd(area), Vec::new())
            }
            Saying::UseRecord => match &self.record {
                Some((file, area)) => (Message::SetInflightFd(*area), vec![file]),
                None => (Message::GetFeatures, Vec::new()),
            },
            Saying::Log => {
                let area = LogArea { size: LOG_BYTES, offset: 0 };
                (Message::SetLogBase(area), self.log.iter().collect())
            }
            Saying::Channel => {
                (Message::SetBackendReqFd, self.channel.iter().map(|(theirs, _)| theirs).collect())
            }
            Saying::Base(queue) => {
                let value = self.bases[usize::from(*queue)];
                let state = RingState { queue: (*queue).into(), value };
                (Message::SetVringBase(state), Vec::new())
            }
            Saying::Address(queue) => {
                let layout = &of(queue).layout;
                let addresses = RingAddresses {
                    descriptors: Memory::user(layout.descriptors.gpa),
                    driver: Memory::user(layout.driver.gpa),
                    device: Memory::user(layout.device.gpa),
                    log: layout.device.gpa,
                    logged: self.logging,
                };
                (Message::SetVringAddr((u32::from(*queue), addresses)), Vec::new())
            }
            Saying::Call(queue) => (Message::SetVringCall(ring_fd(queue)), vec![&of(queue).call]),
            Saying::Kick(queue) => (Message::SetVringKick(ring_fd(queue)), vec![&of(queue).kick]),
        }
    }

    /// What came back.
    ///
    /// # Errors
    /// It is no answer to what was asked, or it says no.
    pub(crate) fn hear(&mut self, bytes: &[u8], fd: Option<OwnedFd>) -> Result<(), String> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_ne_bytes)
        };
        let asked = self.asked.take();
        if asked != Some(word(0)) {
            return Err(format!("message {asked:?} was answered by {}", word(0)));
        }
        let payload = bytes.get(12..).unwrap_or_default();
        match Message::parse(word(0), payload) {
            Ok(Message::GetVringBase(state)) => {
                // What a hostile VMM has asked may be of a queue that its guest has not.
                let base = self.bases.get_mut(state.queue as usize);
                *base.ok_or("a base of a queue that it has not")? = state.value;
                Ok(())
            }
            Ok(Message::GetConfig(span)) => {
                let sectors = span.bytes.try_into().map_err(|_| "a config space that is short")?;
                self.sectors = Some(u64::from_le_bytes(sectors));
                Ok(())
            }
            Ok(Message::GetInflightFd(area)) => {
                let file = fd.ok_or("a record without a descriptor")?;
                self.record = Some((file, area));
                Ok(())
            }
            _ if asked == Some(1) || asked == Some(6) => Ok(()),
            _ if payload == [0; 8] => Ok(()),
            _ => Err(format!("message {asked:?} was refused: {payload:?}")),
        }
    }
}

/// The size of a disk is what its config space begins with.
fn reading_size() -> Saying {
    let span = ConfigSpan { offset: 0, size: 8, flags: 0, bytes: vec![0; 8] };
    Saying::Plain(Message::GetConfig(span))
}
