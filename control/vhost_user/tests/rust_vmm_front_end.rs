//! The session against a front-end that this project did not write: rust-vmm's, which is Cloud
//! Hypervisor's, over a real socket with real descriptors.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_user::{
    DeviceClass, DeviceFacts, FDS_MAX, Framer, InflightArea, LogArea, MemoryRegion, Owner, Reject,
    Reply, Session, bits,
};
use vmm_sys_util::eventfd::EventFd;

const VERSION_1: u64 = 1 << 32;
const FEATURES: u64 = VERSION_1 | bits::LOG_ALL | bits::PROTOCOL_FEATURES;

/// Takes what comes; only a config space and a memfd are real.
#[derive(Default)]
struct World {
    regions: Vec<MemoryRegion>,
    log: Option<LogArea>,
    inflight: Option<InflightArea>,
}

impl Owner<OwnedFd> for World {
    type Error = std::io::Error;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        into.fill(offset as u8 + 1);
        true
    }
    fn write_config(&mut self, negotiated: u64, offset: u32, bytes: &[u8]) -> bool {
        negotiated == VERSION_1 && offset == 32 && bytes == [0]
    }
    fn set_memory(&mut self, regions: &[MemoryRegion], fds: Vec<OwnedFd>) -> std::io::Result<()> {
        assert_eq!(regions.len(), fds.len());
        self.regions = regions.to_vec();
        Ok(())
    }
    fn add_region(&mut self, region: &MemoryRegion, _fd: OwnedFd) -> std::io::Result<()> {
        self.regions.push(*region);
        Ok(())
    }
    fn remove_region(&mut self, region: &MemoryRegion) -> std::io::Result<()> {
        self.regions.retain(|other| other.gpa != region.gpa);
        Ok(())
    }
    fn set_log(&mut self, area: LogArea, _fd: OwnedFd) -> std::io::Result<()> {
        self.log = Some(area);
        Ok(())
    }
    fn make_inflight(&mut self, len: u64) -> std::io::Result<OwnedFd> {
        memfd(len).map(OwnedFd::from)
    }
    fn set_inflight(&mut self, area: &InflightArea, _fd: OwnedFd) -> std::io::Result<()> {
        self.inflight = Some(*area);
        Ok(())
    }
    fn check_signal(&self, _fd: &OwnedFd) -> std::io::Result<()> {
        Ok(())
    }
    fn set_channel(&mut self, _fd: OwnedFd) -> std::io::Result<()> {
        Ok(())
    }
    fn reset(&mut self) {}
    fn announce(&mut self, _mac: [u8; 6]) -> std::io::Result<()> {
        Ok(())
    }
    fn set_mtu(&mut self, _mtu: u16) -> std::io::Result<()> {
        Ok(())
    }
}

/// A front-end's view and, on a thread, the session that it talks to until it hangs up.
fn connect() -> (Frontend, JoinHandle<(Session<OwnedFd>, World)>) {
    let inflight_len = |size: u16, _packed: bool| 64 + 16 * u64::from(size);
    connect_to(DeviceClass::Disk { inflight_len }, 2)
}

/// The same to a device of that class with so many rings.
fn connect_to(class: DeviceClass, rings: u16) -> (Frontend, JoinHandle<(Session<OwnedFd>, World)>) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let facts = DeviceFacts { class, features: VERSION_1, queues_max: rings, ring_size_max: 32768 };
    let served = std::thread::spawn(move || serve(&ours, facts));
    (Frontend::from_stream(theirs, rings.into()), served)
}

fn serve(socket: &UnixStream, facts: DeviceFacts) -> (Session<OwnedFd>, World) {
    let (mut session, mut world) = (Session::new(facts), World::default());
    let mut framer = Framer::default();
    loop {
        let mut buffer = vec![0; framer.wants()];
        let (read, mut fds) = receive(socket, &mut buffer);
        if read == 0 {
            return (session, world);
        }
        let Some(frame) = framer.push(&mut &buffer[..read], &mut fds).unwrap() else { continue };
        let need_reply = frame.need_reply;
        let applied = session
            .parse(&frame)
            .map_err(Reject::from)
            .and_then(|message| session.apply(message, frame.fds, need_reply, &mut world));
        match applied {
            Ok(Some(reply)) => send(socket, &reply),
            Ok(None) => {}
            Err(reject) => match reject.nak {
                Some(bytes) => send(socket, &Reply { bytes, fd: None }),
                None => return (session, world),
            },
        }
    }
}

fn receive(socket: &UnixStream, into: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let read = recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, flags).unwrap();
    let rights = control.drain().filter_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    (read.bytes, rights.flatten().collect())
}

fn send(socket: &UnixStream, reply: &Reply<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = reply.fd.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&reply.bytes)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), reply.bytes.len());
}

fn memfd(len: u64) -> std::io::Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("front-end", flags)?);
    file.set_len(len)?;
    Ok(file)
}

fn region(gpa: u64, file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: gpa,
        memory_size: 0x1_0000,
        userspace_addr: gpa + (1 << 40),
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

/// Negotiates all that both know, with an acknowledgement for every message from there on.
fn negotiate(front_end: &mut Frontend) {
    front_end.set_owner().unwrap();
    assert_eq!(front_end.get_features().unwrap(), FEATURES);
    let offered = front_end.get_protocol_features().unwrap();
    let all = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    assert_eq!(offered, all);
    front_end.set_protocol_features(all).unwrap();
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front_end.set_features(VERSION_1 | bits::PROTOCOL_FEATURES).unwrap();
    assert_eq!(front_end.get_queue_num().unwrap(), 2);
    assert_eq!(front_end.get_max_mem_slots().unwrap(), 509);
}

fn set_up_ring(front_end: &mut Frontend) {
    let user = 1 << 40;
    let ring = VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags: 0,
        desc_table_addr: user,
        used_ring_addr: user + 0x3000,
        avail_ring_addr: user + 0x2000,
        log_addr: None,
    };
    let signal = || EventFd::new(0).unwrap();
    front_end.set_vring_num(0, 256).unwrap();
    front_end.set_vring_addr(0, &ring).unwrap();
    front_end.set_vring_base(0, 9).unwrap();
    front_end.set_vring_call(0, &signal()).unwrap();
    front_end.set_vring_err(0, &signal()).unwrap();
    front_end.set_vring_kick(0, &signal()).unwrap();
    front_end.set_vring_enable(0, true).unwrap();
}

#[test]
fn a_ring_is_set_up_through_memory_slots() {
    let (mut front_end, served) = connect();
    negotiate(&mut front_end);
    let (one, two) = (memfd(0x1_0000).unwrap(), memfd(0x1_0000).unwrap());
    front_end.add_mem_region(&region(0, &one)).unwrap();
    front_end.add_mem_region(&region(0x1_0000, &two)).unwrap();
    set_up_ring(&mut front_end);
    front_end.remove_mem_region(&region(0x1_0000, &two)).unwrap();
    drop(front_end);
    let (session, world) = served.join().unwrap();
    assert_eq!(world.regions.iter().map(|r| (r.gpa, r.size)).collect::<Vec<_>>(), [(0, 0x1_0000)]);
    let facts = session.ready(0).unwrap();
    assert_eq!((facts.size, facts.base), (256, 9));
    assert_eq!(facts.addresses.descriptors, 1 << 40);
    assert_eq!(facts.addresses.driver, (1 << 40) + 0x2000, "available and used are not swapped");
    assert_eq!(facts.addresses.device, (1 << 40) + 0x3000);
    assert!(session.ready(1).is_none());
}

#[test]
fn a_ring_is_set_up_through_a_memory_table_and_stopped() {
    let (mut front_end, served) = connect();
    negotiate(&mut front_end);
    let files: Vec<File> = (0..32).map(|_| memfd(0x1_0000).unwrap()).collect();
    let regions: Vec<_> =
        files.iter().zip(0..).map(|(file, i)| region(i * 0x1_0000, file)).collect();
    front_end.set_mem_table(&regions).unwrap();
    set_up_ring(&mut front_end);
    assert_eq!(front_end.get_vring_base(0).unwrap(), 9);
    drop(front_end);
    let (session, world) = served.join().unwrap();
    assert_eq!(world.regions.len(), 32);
    assert!(session.ready(0).is_none());
}

#[test]
fn config_log_and_inflight_record_are_understood() {
    let (mut front_end, served) = connect();
    negotiate(&mut front_end);
    let flags = VhostUserConfigFlags::WRITABLE;
    for (offset, size) in [(0u32, 256usize), (0, 60), (20, 4)] {
        let config = front_end.get_config(offset, size as u32, flags, &vec![0; size]);
        assert_eq!(config.unwrap().1, vec![offset as u8 + 1; size]);
    }
    front_end.set_config(32, flags, &[0]).unwrap();
    assert!(front_end.set_config(0, flags, &[0]).is_err(), "the capacity is not the driver's");
    let log = memfd(0x2000).unwrap();
    let region = VhostUserDirtyLogRegion {
        mmap_size: 0x1000,
        mmap_offset: 0x1000,
        mmap_handle: log.as_raw_fd(),
    };
    front_end.set_log_base(0, Some(region)).unwrap();
    let asked = VhostUserInflight { num_queues: 2, queue_size: 128, ..Default::default() };
    let (made, file) = front_end.get_inflight_fd(&asked).unwrap();
    assert_eq!((made.num_queues, made.queue_size), (2, 128));
    assert_eq!(file.metadata().unwrap().len(), made.mmap_size);
    front_end.set_inflight_fd(&made, file.as_raw_fd()).unwrap();
    drop(front_end);
    let (session, world) = served.join().unwrap();
    assert_eq!(world.log, Some(LogArea { size: 0x1000, offset: 0x1000 }));
    assert_eq!(world.inflight.map(|area| (area.queues, area.queue_size)), Some((2, 128)));
    assert!(!session.is_logging(), "LOG_ALL was not accepted");
}

/// Cloud Hypervisor's `--net ...,num_queues=8` (`vhost_user/net.rs`): it owns, then compares its
/// rings with the answer, and takes the NIC for impossible when that is less.
#[test]
fn a_nic_has_as_many_queues_as_rings_for_whoever_owns_first() {
    let (mut front_end, served) = connect_to(DeviceClass::Nic, 8);
    front_end.set_owner().unwrap();
    assert_eq!(front_end.get_features().unwrap(), FEATURES);
    let protocol = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK;
    assert!(front_end.get_protocol_features().unwrap().contains(protocol));
    front_end.set_protocol_features(protocol).unwrap();
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(front_end.get_queue_num().unwrap(), 8);
    front_end.set_features(VERSION_1 | bits::PROTOCOL_FEATURES).unwrap();
    let file = memfd(0x1_0000).unwrap();
    front_end.set_mem_table(&[region(0, &file)]).unwrap();
    for queue in 0..8 {
        front_end.set_vring_num(queue, 256).unwrap();
        front_end.set_vring_enable(queue, true).unwrap();
    }
    assert!(front_end.set_vring_num(8, 256).is_err(), "the ring of its control queue stays there");
    drop(front_end);
    served.join().unwrap();
}

#[test]
fn a_refusal_is_told_and_the_connection_goes_on() {
    let (mut front_end, served) = connect();
    negotiate(&mut front_end);
    assert!(front_end.set_vring_num(0, 3).is_err());
    let file = memfd(0x1_0000).unwrap();
    assert!(front_end.remove_mem_region(&region(0, &file)).is_err());
    front_end.add_mem_region(&region(0, &file)).unwrap();
    assert!(front_end.add_mem_region(&region(0, &file)).is_err());
    front_end.reset_device().unwrap();
    set_up_ring(&mut front_end);
    drop(front_end);
    let (session, _) = served.join().unwrap();
    assert!(session.ready(0).is_some(), "set up again after the reset");
}

#[test]
fn junk_ends_the_session_without_a_wait() {
    let (theirs, ours) = UnixStream::pair().unwrap();
    let facts = DeviceFacts {
        class: DeviceClass::Nic,
        features: VERSION_1,
        queues_max: 2,
        ring_size_max: 32768,
    };
    let served = std::thread::spawn(move || serve(&ours, facts));
    // SET_VRING_NUM with a payload of three bytes: nothing after it can be understood.
    let words = [8u32, 1, 3].iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = words.chain([1, 2, 3]).collect();
    (&theirs).write_all(&bytes).unwrap();
    let (session, _) = served.join().unwrap();
    assert_eq!(session.changes(), 0);
}
