//! What the client's front-end says to a daemon, and what it makes of whatever that answers.
//!
//! The daemon of these tests is a [`Session`], which refuses what is out of order; or it answers anything.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use vhost_user::{DeviceClass, DeviceFacts, Framer, LogArea, Owner, Reply, Session};

use super::*;

/// Bytes of the config space of the daemon's disk.
pub(crate) const CONFIG: u8 = 60;
const VERSION_1: u64 = 1 << 32;

/// A folder with a daemon's socket.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> (Place, UnixListener) {
        let place = Place(tempfile::tempdir().unwrap());
        let listener = UnixListener::bind(place.socket()).unwrap();
        (place, listener)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join("a.sock")
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }
}

/// What a daemon was told in one connection, which has ended.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) names: Vec<&'static str>,
    /// Rings that ran at some time, and those that did in the end.
    pub(crate) ran: Vec<u16>,
    pub(crate) runs: Vec<u16>,
    pub(crate) memory: Option<MemoryRegion>,
    pub(crate) record: Option<InflightArea>,
    pub(crate) base: Option<u32>,
}

/// Takes what comes.
#[derive(Debug, Default)]
struct House {
    memory: Option<MemoryRegion>,
    record: Option<InflightArea>,
    channel: Option<OwnedFd>,
}

impl Owner<OwnedFd> for House {
    type Error = io::Error;

    fn read_config(&self, offset: u32, into: &mut [u8]) -> bool {
        into.fill(CONFIG);
        offset == 0 && into.len() <= CONFIG.into()
    }
    fn write_config(&mut self, _negotiated: u64, _offset: u32, _bytes: &[u8]) -> bool {
        false
    }
    fn set_memory(&mut self, regions: &[MemoryRegion], _fds: Vec<OwnedFd>) -> io::Result<()> {
        self.memory = regions.first().copied();
        Ok(())
    }
    fn add_region(&mut self, _region: &MemoryRegion, _fd: OwnedFd) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
    fn remove_region(&mut self, _region: &MemoryRegion) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
    fn set_log(&mut self, _area: LogArea, _fd: OwnedFd) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
    fn make_inflight(&mut self, len: u64) -> io::Result<OwnedFd> {
        let file = File::from(memfd_create(c"record", MemfdFlags::CLOEXEC)?);
        file.set_len(len)?;
        Ok(file.into())
    }
    fn set_inflight(&mut self, area: &InflightArea, _fd: OwnedFd) -> io::Result<()> {
        self.record = Some(*area);
        Ok(())
    }
    fn check_signal(&self, _fd: &OwnedFd) -> io::Result<()> {
        Ok(())
    }
    fn set_channel(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.channel = Some(fd);
        Ok(())
    }
    fn reset(&mut self) {}
    fn announce(&mut self, _mac: [u8; 6]) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
    fn set_mtu(&mut self, _mtu: u16) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }
}

fn disk() -> DeviceFacts {
    let class = DeviceClass::Disk { inflight_len: |size, _| u64::from(size) * 16 };
    DeviceFacts { class, features: VERSION_1, queues_max: 3, ring_size_max: 1024 }
}

/// A NIC of one pair.
fn nic() -> DeviceFacts {
    DeviceFacts { class: DeviceClass::Nic, queues_max: 2, ..disk() }
}

/// One message, as it comes; nothing when the connection has ended.
fn next(stream: &UnixStream, framer: &mut Framer<OwnedFd>) -> Option<vhost_user::Frame<OwnedFd>> {
    loop {
        let mut bytes = vec![0; framer.wants()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let came = recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if came.bytes == 0 {
            return None;
        }
        let mut rest = &bytes[..came.bytes];
        if let Some(whole) = framer.push(&mut rest, &mut fds).unwrap() {
            return Some(whole);
        }
    }
}

fn answer(stream: &UnixStream, reply: &Reply<OwnedFd>) {
    let fds: Vec<BorrowedFd<'_>> = reply.fd.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let _ = sendmsg(stream, &[IoSlice::new(&reply.bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// A daemon that serves one connection until that ends. `changes` is how often it says first that the config space has
/// changed, and then closes the channel.
pub(crate) fn daemon(
    listener: UnixListener,
    facts: DeviceFacts,
    changes: usize,
) -> JoinHandle<Told> {
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut framer, mut house) = (Framer::default(), House::default());
        let (mut session, mut told) = (Session::new(facts), Told::default());
        while let Some(frame) = next(&stream, &mut framer) {
            let need_reply = frame.need_reply;
            let message = session.parse(&frame).expect("a message of the right form");
            told.names.push(message.name());
            if let Message::SetVringBase(state) = &message {
                told.base = Some(state.value);
            }
            let applied = session.apply(message, frame.fds, need_reply, &mut house);
            if let Some(reply) = applied.expect("a message in its place") {
                answer(&stream, &reply);
            }
            if let (1.., Some(channel)) = (changes, &mut house.channel) {
                let mut channel = UnixStream::from(channel.try_clone().unwrap());
                let change = session.config_changed().expect("one that it understands");
                (0..changes).for_each(|_| channel.write_all(&change).unwrap());
                house.channel = None;
            }
            told.runs = (0..facts.queues_max).filter(|at| session.ready(*at).is_some()).collect();
            let new: Vec<u16> =
                told.runs.iter().copied().filter(|at| !told.ran.contains(at)).collect();
            told.ran.extend(new);
        }
        (told.memory, told.record) = (house.memory, house.record);
        told
    })
}

/// The daemon of a disk, and who is connected to it.
pub(crate) fn connected(changes: usize) -> (Place, JoinHandle<Told>, FrontEnd) {
    let (place, listener) = Place::new();
    let daemon = daemon(listener, disk(), changes);
    let front = FrontEnd::connect(&place.socket()).unwrap();
    (place, daemon, front)
}

fn signal() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn addresses() -> RingAddresses {
    RingAddresses { descriptors: 0x1000, driver: 0x2000, device: 0x3000, log: 0, logged: false }
}

#[test]
fn a_daemon_is_asked_what_it_offers_and_told_what_is_taken() {
    let (_place, daemon, front) = connected(0);
    assert_eq!((front.features, front.queues), (VERSION_1, 3));
    assert_eq!(front.protocol, PROTOCOL, "all that we take is offered by a disk");
    assert_eq!(front.descriptors().count(), 2);
    drop(front);
    let expected = [
        "GET_FEATURES",
        "GET_PROTOCOL_FEATURES",
        "SET_PROTOCOL_FEATURES",
        "SET_OWNER",
        "GET_QUEUE_NUM",
        "SET_BACKEND_REQ_FD",
    ];
    assert_eq!(daemon.join().unwrap().names, expected);
}

#[test]
fn a_nic_has_no_record_and_no_config_space_of_the_daemon_s() {
    let (place, listener) = Place::new();
    let daemon = daemon(listener, nic(), 0);
    let mut front = FrontEnd::connect(&place.socket()).unwrap();
    assert_eq!(front.queues, 2, "rings, for whoever owns first");
    assert!(matches!(front.record_size(2, 256), Ok(None)));
    drop(front);
    assert!(!daemon.join().unwrap().names.contains(&"GET_INFLIGHT_FD"), "it is not even asked");
}

#[test]
fn rings_begin_with_features_record_and_memory_and_end_one_by_one() {
    let (_place, daemon, mut front) = connected(0);
    let memory = memfd_create(c"guest", MemfdFlags::CLOEXEC).unwrap();
    let region = MemoryRegion { gpa: 0, size: 0x4000, user: 0, offset: 0 };
    let size = front.record_size(3, 256).unwrap().expect("a disk's");
    assert_eq!(size, 3 * 256 * 16);
    let area = InflightArea { size, queues: 3, queue_size: 256, ..InflightArea::default() };
    let record = front.begin(VERSION_1, (region, memory.as_fd()), Some((area, memory.as_fd())));
    record.unwrap();
    let (kick, call) = (signal(), signal());
    for queue in 0..2 {
        let (kick, call) = (kick.as_fd(), call.as_fd());
        let ring = Ring { size: 128, base: 0xfffe, addresses: addresses(), kick, call };
        front.start(queue, &ring).unwrap();
    }
    front.stop(0).unwrap();
    drop(front);
    let told = daemon.join().unwrap();
    assert_eq!((told.ran, told.runs), (vec![0, 1], vec![1]));
    assert_eq!((told.memory, told.record, told.base), (Some(region), Some(area), Some(0xfffe)));
    let places = ["SET_FEATURES", "SET_INFLIGHT_FD", "SET_MEM_TABLE", "SET_VRING_NUM"];
    let place = |name| told.names.iter().position(|told| *told == name).expect(name);
    assert!(places.map(place).is_sorted(), "{:?}", told.names);
}

#[test]
fn the_config_space_is_read_and_its_changes_are_heard_until_the_channel_ends() {
    let (_place, daemon, mut front) = connected(40);
    assert_eq!(front.config(CONFIG.into()).unwrap(), [CONFIG; CONFIG as usize]);
    // More of it than there is.
    assert!(matches!(front.config(61), Err(Lost::Nonsense("GET_CONFIG"))));
    assert!(front.config_has_changed());
    let more = (0..100).take_while(|_| front.config_has_changed()).count();
    assert!(more < 100, "what lies there is taken, and that is all of it");
    assert_eq!(front.descriptors().count(), 1, "a channel that has ended is waited for no more");
    // The connection goes on without.
    assert!(front.stop(2).is_ok() && !front.config_has_changed());
    drop(front);
    assert_eq!(daemon.join().unwrap().names.last(), Some(&"GET_VRING_BASE"));
}

/// What a daemon sends for each message in turn, before it closes the connection.
fn answering(listener: UnixListener, answers: Vec<Vec<u8>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut framer = Framer::default();
        for bytes in answers {
            if next(&stream, &mut framer).is_none() {
                return;
            }
            let _ = stream.write_all(&bytes);
        }
    })
}

fn reply(request: u32, flags: u32, size: u32, payload: &[u8]) -> Vec<u8> {
    let header = [request, flags, size].map(u32::to_ne_bytes).concat();
    [&header, payload].concat()
}

fn number(request: u32, value: u64) -> Vec<u8> {
    reply(request, REPLY_FLAGS, 8, &value.to_ne_bytes())
}

/// The answers to all that is said when it connects, by a daemon that offers just so much of the protocol.
fn agreeable(protocol: u64) -> Vec<Vec<u8>> {
    let mut answers = vec![number(1, VERSION_1), number(15, protocol), Vec::new()];
    let ack =
        |request| if protocol & bits::REPLY_ACK != 0 { number(request, 0) } else { Vec::new() };
    answers.push(ack(3));
    if protocol & bits::MQ != 0 {
        answers.push(number(17, 4));
    }
    if protocol & bits::BACKEND_REQ != 0 {
        answers.push(ack(21));
    }
    answers
}

/// What becomes of a connection to a daemon that answers so.
fn connect_to(answers: Vec<Vec<u8>>) -> (Result<FrontEnd, Lost>, JoinHandle<()>) {
    let (place, listener) = Place::new();
    let daemon = answering(listener, answers);
    (FrontEnd::connect(&place.socket()), daemon)
}

#[test]
fn a_daemon_that_offers_little_is_taken_as_it_is() {
    for protocol in [0, bits::REPLY_ACK, bits::MQ, bits::BACKEND_REQ, PROTOCOL] {
        let offered = protocol | 1 << 40;
        let (front, daemon) = connect_to([agreeable(offered), vec![Vec::new()]].concat());
        let front = front.unwrap_or_else(|why| panic!("{protocol:#x}: {why}"));
        assert_eq!(front.protocol, protocol, "nothing that we do not know is taken");
        assert_eq!(front.queues, if protocol & bits::MQ != 0 { 4 } else { 1 });
        let ends = if protocol & bits::BACKEND_REQ != 0 { 2 } else { 1 };
        assert_eq!(front.descriptors().count(), ends, "{protocol:#x}");
        drop(front);
        daemon.join().unwrap();
    }
    // More queues than any number of ours has.
    let mut answers = agreeable(bits::MQ);
    answers[4] = number(17, u64::MAX);
    let (front, daemon) = connect_to(answers);
    assert_eq!(front.unwrap().queues, u32::MAX);
    daemon.join().unwrap();
}

/// What is no answer to a question that is answered by a number, and what is said of it.
fn no_numbers(request: u32) -> Vec<(Vec<u8>, &'static str)> {
    let eight = [0; 8];
    vec![
        (reply(request + 1, 5, 8, &eight), "another message's"),
        (reply(request, 1, 8, &eight), "a request"),
        (reply(request, 4, 8, &eight), "version 0"),
        (reply(request, 6, 8, &eight), "version 2"),
        (reply(request, 13, 8, &eight), "one that wants a reply"),
        (reply(request, u32::MAX, 8, &eight), "unknown flags"),
        (reply(request, 5, 0, &[]), "no number"),
        (reply(request, 5, 7, &eight[..7]), "a short number"),
        (reply(request, 5, 9, &[0; 9]), "a long number"),
        (reply(request, 5, 4097, &eight), "a payload beyond the bound"),
        (reply(request, 5, u32::MAX, &eight), "a payload without end"),
    ]
}

#[test]
fn an_answer_that_is_none_ends_the_connection_wherever_it_comes() {
    let places =
        [(0, "GET_FEATURES"), (1, "GET_PROTOCOL_FEATURES"), (3, "SET_OWNER"), (4, "GET_QUEUE_NUM")];
    for (at, name) in places {
        let request = (0..64).find(|id| Message::name_of(*id) == Some(name)).unwrap();
        for (wrong, what) in no_numbers(request) {
            let mut answers = agreeable(PROTOCOL);
            answers[at] = wrong;
            let (front, daemon) = connect_to(answers);
            match front {
                Err(Lost::Nonsense(of)) => assert_eq!(of, name, "{what}"),
                other => panic!("{what} for {name}: {other:?}"),
            }
            daemon.join().unwrap();
        }
    }
}

#[test]
fn a_daemon_that_goes_or_stops_in_the_middle_is_a_socket_s_error() {
    let whole = agreeable(PROTOCOL);
    for at in [0, 1, 3, 4, 5] {
        for cut in [0, 1, 11, 12, 19] {
            let mut answers = whole[..=at].to_vec();
            answers[at].truncate(cut);
            let (front, daemon) = connect_to(answers);
            match front {
                Err(Lost::Socket(error)) => {
                    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
                    assert!(kinds.contains(&error.kind()), "{at} {cut}: {error}");
                }
                other => panic!("answer {at}, cut after {cut} bytes: {other:?}"),
            }
            daemon.join().unwrap();
        }
    }
    let nobody = tempfile::tempdir().unwrap();
    let refused = FrontEnd::connect(&nobody.path().join("none.sock"));
    assert!(matches!(refused, Err(Lost::Socket(error)) if error.kind() == ErrorKind::NotFound));
}

#[test]
fn a_refusal_names_the_message() {
    for (at, name) in [(3, "SET_OWNER"), (5, "SET_BACKEND_REQ_FD")] {
        let mut answers = agreeable(PROTOCOL);
        answers[at] = number(u32::from_ne_bytes(answers[at][..4].try_into().unwrap()), 1);
        let (front, daemon) = connect_to(answers);
        let said = front.unwrap_err().to_string();
        assert_eq!(said, format!("the daemon refuses {name}: its log says why"));
        daemon.join().unwrap();
    }
    // Without acknowledgements nothing is refused, and nothing waits.
    let (front, daemon) = connect_to(agreeable(0));
    assert!(front.is_ok());
    daemon.join().unwrap();
}

#[test]
fn what_a_daemon_says_of_config_space_and_record_is_of_the_size_that_was_asked_for() {
    let span = |size: u32, bytes: usize| {
        let fields = [[0u32, size, 0].map(u32::to_ne_bytes).concat(), vec![1; bytes]].concat();
        reply(24, REPLY_FLAGS, fields.len() as u32, &fields)
    };
    let none = reply(24, REPLY_FLAGS, 0, &[]);
    for (said, is_one) in
        [(span(60, 60), true), (span(60, 59), false), (span(60, 61), false), (none, false)]
    {
        let (front, daemon) = connect_to([agreeable(PROTOCOL), vec![said]].concat());
        let config = front.unwrap().config(60);
        match is_one {
            true => assert_eq!(config.unwrap(), [1; 60]),
            false => assert!(matches!(config, Err(Lost::Nonsense("GET_CONFIG"))), "{config:?}"),
        }
        daemon.join().unwrap();
    }
    for (bytes, size) in
        [(20, Some(0x0101_0101_0101_0101)), (24, Some(0x0101_0101_0101_0101)), (19, None)]
    {
        let said = reply(31, REPLY_FLAGS, bytes, &vec![1; bytes as usize]);
        let (front, daemon) = connect_to([agreeable(PROTOCOL), vec![said]].concat());
        match (front.unwrap().record_size(1, 128), size) {
            (Ok(found), Some(_)) => assert_eq!(found, size),
            (Err(Lost::Nonsense("GET_INFLIGHT_FD")), None) => {}
            (other, _) => panic!("{bytes} bytes: {other:?}"),
        }
        daemon.join().unwrap();
    }
}
