//! A VMM at a socket of a trial's daemon, message by message, and its guest's rings.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use guest_memory::{Area, Health, Mapping, Seal};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
    sendmsg, socket_with,
};
use vhost_user::message::{InflightArea, RingFd, RingState};
use vhost_user::{MemoryRegion, Message, RingAddresses, bits};
use virtqueue::driver::{Arena, Buffer, Driver, Places, RingSpec};
use virtqueue::layout::Format;

use super::Trial;

/// Guest memory, bytes; the front-end's addresses are the guest's.
pub(crate) const MEMORY: u64 = 256 << 10;
/// Entries of each ring.
pub(crate) const RING: u16 = 8;
const HEADER: usize = 12;
/// VIRTIO_F_VERSION_1, and that of a disk that flushes.
const VERSION_1: u64 = 1 << 32;
const BLK_FLUSH: u64 = 1 << 9;
/// What the driver of a disk negotiates.
pub(crate) const FEATURES: u64 = VERSION_1 | BLK_FLUSH;
/// VIRTIO_F_RING_PACKED, and the base of such a ring that was never used.
pub(crate) const RING_PACKED: u64 = 1 << 34;
pub(crate) const PACKED_FRESH: u32 = 0x8000_8000;
/// Types of requests to a disk, and where each part of the only one is that a queue has at a time.
pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
const SECTOR: u32 = 512;
/// Bytes before each frame of a guest (VIRTIO 1.2, 5.1.6).
const NET_HEADER: usize = 12;

/// One ring of the guest.
pub(crate) struct Ring {
    pub(crate) driver: Driver,
    places: Places,
    pub(crate) kick: OwnedFd,
    pub(crate) call: OwnedFd,
    /// Header, data and status.
    data: (Area, u64),
    /// Where it goes on.
    pub(crate) base: u32,
}

/// A guest's memory, and its rings.
pub(crate) struct Guest {
    pub(crate) file: OwnedFd,
    pub(crate) rings: Vec<Ring>,
}

pub(crate) struct Vmm {
    socket: Option<OwnedFd>,
    /// As its guest's driver negotiates them.
    pub(crate) features: u64,
    pub(crate) guest: Guest,
    got: Vec<u8>,
    /// The last descriptor that came.
    pub(crate) got_fd: Option<OwnedFd>,
}

/// A memory file of a guest: sealed, or such that it can be cut off.
pub(crate) fn memory_file(is_sealed: bool) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).expect("a memory file");
    ftruncate(&file, MEMORY).expect("sized");
    if is_sealed {
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).expect("sealed");
    }
    file
}

/// The one region of it.
pub(crate) fn region() -> MemoryRegion {
    MemoryRegion { gpa: 0, size: MEMORY, user: 0, offset: 0 }
}

fn signal() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

impl Guest {
    pub(crate) fn new(rings: u16) -> Guest {
        Guest::of(rings, Format::Split)
    }

    /// One with packed rings.
    pub(crate) fn packed(rings: u16) -> Guest {
        Guest::of(rings, Format::Packed)
    }

    fn of(rings: u16, format: Format) -> Guest {
        let file = memory_file(true);
        let map = Mapping::shared(&file, 0, MEMORY, Seal::Required, &Health::default());
        let mut arena = Arena::new(Area::whole(map.expect("mapped")), 0);
        let rings = (0..rings).map(|_| {
            let spec = RingSpec { size: RING, format, event_index: false, indirect_entries: 0 };
            let (driver, places) = arena.driver(spec).expect("room");
            let data = arena.take(4096, 4096).expect("room");
            let base = if format == Format::Packed { PACKED_FRESH } else { 0 };
            Ring { driver, places, kick: signal(), call: signal(), data, base }
        });
        let rings = rings.collect();
        Guest { file, rings }
    }

    /// Puts a request of one sector into a ring, and kicks.
    pub(crate) fn request(&mut self, ring: usize, kind: u32, sector: u64, fill: u8) {
        let Ring { driver, data: (area, gpa), kick, .. } = &mut self.rings[ring];
        area.store_u32(0, kind);
        area.store_u64(8, sector);
        area.store_u8(16, 0xff);
        let is_read = kind == READ;
        if kind == WRITE {
            assert!(area.write(512, &[fill; SECTOR as usize]));
        }
        let header = Buffer { gpa: *gpa, len: 16, device_writes: false };
        let body = Buffer { gpa: *gpa + 512, len: SECTOR, device_writes: is_read };
        let status = Buffer { gpa: *gpa + 16, len: 1, device_writes: true };
        let all: &[Buffer] =
            if kind == FLUSH { &[header, status] } else { &[header, body, status] };
        driver.add(all, 1).expect("room in the ring");
        driver.publish();
        rustix::io::write(kick, &1u64.to_ne_bytes()).expect("a kick");
    }

    /// Puts a buffer for one frame into a receive ring.
    pub(crate) fn offer(&mut self, ring: usize) {
        let Ring { driver, data: (_, gpa), kick, .. } = &mut self.rings[ring];
        let buffer = Buffer { gpa: *gpa, len: 4096, device_writes: true };
        driver.add(&[buffer], 1).expect("room in the ring");
        driver.publish();
        rustix::io::write(kick, &1u64.to_ne_bytes()).expect("a kick");
    }

    /// Puts a frame without offloads into a transmit ring, and kicks.
    pub(crate) fn transmit(&mut self, ring: usize, frame: &[u8]) {
        let Ring { driver, data: (area, gpa), kick, .. } = &mut self.rings[ring];
        assert!(area.write(0, &[0; NET_HEADER]) && area.write(NET_HEADER, frame));
        let len = (NET_HEADER + frame.len()) as u32;
        driver.add(&[Buffer { gpa: *gpa, len, device_writes: false }], 1).expect("room");
        driver.publish();
        rustix::io::write(kick, &1u64.to_ne_bytes()).expect("a kick");
    }

    /// Whether the frame of a transmit ring was taken, and its place may be used again.
    pub(crate) fn has_sent(&mut self, ring: usize) -> bool {
        self.rings[ring].driver.take_used().is_some()
    }

    /// The frame that came into the buffer of a receive ring.
    pub(crate) fn frame(&mut self, ring: usize) -> Option<Vec<u8>> {
        let Ring { driver, data: (area, _), .. } = &mut self.rings[ring];
        let mut frame = vec![0; driver.take_used()?.len as usize - NET_HEADER];
        assert!(area.read(NET_HEADER, &mut frame));
        Some(frame)
    }

    /// The status of that request, once it was answered.
    pub(crate) fn status(&mut self, ring: usize) -> Option<u8> {
        let Ring { driver, data: (area, _), .. } = &mut self.rings[ring];
        driver.take_used()?;
        Some(area.load_u8(16))
    }

    /// What was read.
    pub(crate) fn data(&self, ring: usize) -> Vec<u8> {
        let mut data = vec![0; SECTOR as usize];
        assert!(self.rings[ring].data.0.read(512, &mut data));
        data
    }
}

impl Vmm {
    /// One that has connected to the device of that name. Nothing: there is no socket, or nobody listens.
    pub(crate) fn connect(trial: &Trial, id: &str, guest: Guest) -> Option<Vmm> {
        let socket = dial(&trial.socket(id))?;
        Some(Vmm::at(socket, guest))
    }

    /// One at that end of a connection.
    pub(crate) fn at(socket: OwnedFd, guest: Guest) -> Vmm {
        Vmm { socket: Some(socket), features: FEATURES, guest, got: Vec::new(), got_fd: None }
    }

    /// One whose guest is served by all its rings.
    pub(crate) fn served(trial: &mut Trial, id: &str, rings: u16) -> Vmm {
        let mut vmm = Vmm::connect(trial, id, Guest::new(rings)).expect("somebody listens");
        vmm.begin(trial);
        vmm
    }

    /// The same of a NIC of one pair.
    pub(crate) fn of_nic(trial: &mut Trial, id: &str) -> Vmm {
        let mut vmm = Vmm::connect(trial, id, Guest::new(2)).expect("somebody listens");
        vmm.features = VERSION_1;
        vmm.begin(trial);
        vmm
    }

    /// All that a VMM says until its rings run.
    pub(crate) fn begin(&mut self, trial: &mut Trial) {
        self.introduce(trial);
        self.bring_memory(trial);
        for ring in 0..self.guest.rings.len() {
            self.start(trial, ring as u32);
        }
    }

    /// Says that it is a front-end, and what its guest's driver has negotiated.
    pub(crate) fn introduce(&mut self, trial: &mut Trial) {
        // From the first message on everything is acknowledged.
        let offered = bits::OFFERED_BY_DISK & bits::OFFERED_BY_NIC & !bits::BACKEND_REQ;
        self.told(trial, Message::SetProtocolFeatures(offered));
        self.told(trial, Message::SetOwner);
        self.told(trial, Message::SetFeatures(self.features | bits::PROTOCOL_FEATURES));
    }

    pub(crate) fn bring_memory(&mut self, trial: &mut Trial) {
        let file = self.guest.file.try_clone().expect("a descriptor");
        self.send(&Message::SetMemTable(vec![region()]), &[&file]);
        assert_eq!(self.hear(trial), Some(Ok(0)), "its memory is taken");
    }

    /// Has the daemon make an in-flight record, and gives it that. Of a disk.
    pub(crate) fn bring_record(&mut self, trial: &mut Trial) {
        self.told(trial, Message::SetProtocolFeatures(bits::OFFERED_BY_DISK & !bits::BACKEND_REQ));
        let queues = self.guest.rings.len() as u16;
        let wanted = InflightArea { size: 0, offset: 0, queues, queue_size: RING, padded: false };
        self.send(&Message::GetInflightFd(wanted), &[]);
        let Some(Err(Message::GetInflightFd(area))) = self.hear(trial) else {
            panic!("no record is made");
        };
        let file = self.got_fd.take().expect("a descriptor");
        self.send(&Message::SetInflightFd(area), &[&file]);
        assert_eq!(self.hear(trial), Some(Ok(0)), "its record is taken");
    }

    pub(crate) fn start(&mut self, trial: &mut Trial, queue: u32) {
        self.set_up(trial, queue);
        self.told(trial, Message::SetVringEnable(RingState { queue, value: 1 }));
    }

    /// All of a ring but that it is enabled.
    pub(crate) fn set_up(&mut self, trial: &mut Trial, queue: u32) {
        let Ring { places, base, kick, call, .. } = &self.guest.rings[queue as usize];
        let Places { descriptors, driver, device } = *places;
        let addresses = RingAddresses { descriptors, driver, device, log: 0, logged: false };
        let (base, fds) = (*base, [call, kick].map(|fd| fd.try_clone().expect("a descriptor")));
        self.told(trial, Message::SetVringNum(RingState { queue, value: RING.into() }));
        self.told(trial, Message::SetVringBase(RingState { queue, value: base }));
        self.told(trial, Message::SetVringAddr((queue, addresses)));
        let fd = RingFd { queue, has_fd: true };
        for (message, fd) in [Message::SetVringCall(fd), Message::SetVringKick(fd)].iter().zip(&fds)
        {
            self.send(message, &[fd]);
            assert_eq!(self.hear(trial), Some(Ok(0)), "{message:?} is taken");
        }
    }

    /// Stops a ring: where it stands. Nothing: it was not answered, or with the end.
    pub(crate) fn stop(&mut self, trial: &mut Trial, queue: u32) -> Option<u32> {
        self.send(&Message::GetVringBase(RingState { queue, value: 0 }), &[]);
        trial.rest();
        self.base_of(trial, queue)
    }

    /// The answer to that.
    pub(crate) fn base_of(&mut self, trial: &mut Trial, queue: u32) -> Option<u32> {
        match self.hear(trial)? {
            Err(Message::GetVringBase(state)) => {
                self.guest.rings[queue as usize].base = state.value;
                Some(state.value)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Says something that is taken.
    pub(crate) fn told(&mut self, trial: &mut Trial, message: Message) {
        self.send(&message, &[]);
        assert_eq!(self.hear(trial), Some(Ok(0)), "{message:?} is taken");
    }

    /// Sends a message that wants to be acknowledged. False: the other side is gone.
    pub(crate) fn send(&mut self, message: &Message, fds: &[&OwnedFd]) -> bool {
        self.send_bytes(&message.emit(true), fds)
    }

    /// Sends any bytes.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], fds: &[&OwnedFd]) -> bool {
        let Some(socket) = &self.socket else { return false };
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).is_ok()
    }

    /// The next answer, once all that can be done now is done: what a message was acknowledged with, or else what
    /// came. Nothing: there is none, or the daemon has hung up.
    pub(crate) fn hear(&mut self, trial: &mut Trial) -> Option<Result<u64, Message>> {
        trial.rest();
        self.receive();
        let word = |at: usize| Some(u32::from_ne_bytes(self.got.get(at..at + 4)?.try_into().ok()?));
        let (id, end) = (word(0)?, HEADER + word(8)? as usize);
        let payload = self.got.get(HEADER..end)?.to_vec();
        self.got.drain(..end);
        match id {
            // A ring's base, the config space, a record.
            11 | 24 | 31 => Some(Err(Message::parse(id, &payload).expect("an answer"))),
            _ => Some(Ok(u64::from_ne_bytes(payload.get(..8)?.try_into().ok()?))),
        }
    }

    fn receive(&mut self) {
        let Some(socket) = &self.socket else { return };
        loop {
            let mut bytes = [0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut iov = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let read = match recvmsg(socket, &mut iov, &mut control, flags) {
                Ok(read) => read.bytes,
                Err(Errno::AGAIN) => return,
                Err(_) => 0,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.got_fd = fds.last().or(self.got_fd.take());
                }
            }
            if read == 0 {
                self.socket = None;
                return;
            }
            self.got.extend_from_slice(&bytes[..read]);
        }
    }

    /// Whether the daemon has hung up, all being done that can be done now.
    pub(crate) fn is_cut_off(&mut self, trial: &mut Trial) -> bool {
        trial.rest();
        self.receive();
        self.socket.is_none()
    }

    /// Hangs up; its guest is left, with its rings as they were.
    pub(crate) fn hang_up(mut self) -> Guest {
        self.socket = None;
        self.guest
    }

    /// Has a request done, and gives its status.
    pub(crate) fn does(
        &mut self,
        trial: &mut Trial,
        kind: u32,
        sector: u64,
        fill: u8,
    ) -> Option<u8> {
        self.guest.request(0, kind, sector, fill);
        trial.rest();
        trial.pass(std::time::Duration::from_millis(1));
        self.guest.status(0)
    }
}

/// Connects to a socket, and waits for nothing.
pub(crate) fn dial(path: &Path) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
    connect(&socket, &SocketAddrUnix::new(path).expect("a path")).ok()?;
    Some(socket)
}
