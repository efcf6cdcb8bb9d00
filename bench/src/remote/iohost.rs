//! The protocol's own client against an IOhost: a socket, a session, and one attachment, of a disk or of a NIC.
//!
//! What `backend::link` does for a daemon's guests is not here: no ring, no queue, no second IOhost.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use backend::link::{Address, LinkSocket, LinkSource};
use remote::Assembly;
use remote::client::{AttachSpec, Client, ClientSpec, Event, Request};
use remote::handshake::{Identity, Initiator, Offer, PublicKey, Randomness, Step, public_key};
use remote::wire::{Header, Kind as FrameKind, Op, Status};
use testing::clock::now_ns;
use testing::daemon::{Config, Daemon};
use testing::scratch::Scratch;
use testing::server::{Server, Who};
use testing::slots::Kind;

use super::{BLOCK_BYTES, DEPTH_MAX, DISK_BYTES, DISK_ID, Far, SERVER_CORE, check, mark};

const RING_FRAMES: u32 = 512;
const START_NS: u64 = 90_000_000_000;
const HELLO_NS: u64 = 100_000_000;
/// Headers of IP, of version 4 and 6, and UDP; and what goes before a frame without them.
const HEADERS_BYTES: [u16; 2] = [28, 48];
const LENGTH_BYTES: u16 = 2;
/// What a NIC's attachment is like.
const NIC_SLOT_BYTES: u32 = 512;
/// Frames that were sent, for whoever wants to send them again.
const SENT_MAX: usize = 256;

struct System;

impl Randomness for System {
    fn fill(&mut self, bytes: &mut [u8]) {
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
        assert!(read.is_ok(), "the system has no random numbers: {read:?}");
    }
}

/// How a link goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// To this address.
    Udp(SocketAddr),
    /// Without IP, on the interface of that name in each namespace: `packet`, `xdp`.
    Ethernet(&'static str),
}

/// The address of the IOhost's interface of such a pair: `wires` gives it to them.
pub(super) const STATION: [u8; 6] = [2, 0, 0, 0x78, 0, 2];

/// An IOhost that is to be started, and who may come.
pub(super) struct Site {
    over: Over,
    is_sealed: bool,
    mtu: u16,
    config: Config,
    /// Keys, which the daemon reads.
    _dir: Scratch,
    /// Of each client.
    identities: Vec<Identity>,
    iohost: PublicKey,
}

/// What an IOhost is like.
pub(super) struct SiteSpec<'a> {
    /// How its link goes, and whether frames are sealed, with keys of both ends.
    pub(super) over: (Over, bool),
    pub(super) mtu: u16,
    /// Of its sidecores, one each; and what else `[sidecores]` says.
    pub(super) cores: &'a str,
    pub(super) sidecores: &'a str,
    /// RAM disks, and the bytes of each. Where frames are sealed each is for a client of its own.
    pub(super) disks: (&'a [String], u64),
    /// What it has beside disks, such as the NIC of [`Site::connect_nic`].
    pub(super) devices: &'a str,
}

impl Site {
    /// With one sidecore, one disk, and one client.
    pub(super) fn new(
        binary: &Path,
        name: &str,
        over: (Over, bool),
        mtu: u16,
        devices: &str,
    ) -> Result<Site> {
        let (cores, disk) = (SERVER_CORE.to_string(), [DISK_ID.to_string()]);
        let disks = (&disk[..], DISK_BYTES);
        let spec = SiteSpec { over, mtu, cores: &cores, sidecores: "", disks, devices };
        Site::with(binary, name, &spec)
    }

    pub(super) fn with(binary: &Path, name: &str, spec: &SiteSpec<'_>) -> Result<Site> {
        let dir = Scratch::new(&std::env::temp_dir(), &format!("{name}-keys"))?;
        let SiteSpec { over: (over, is_sealed), mtu, cores, sidecores, .. } = *spec;
        let ((names, disk_bytes), devices) = (spec.disks, spec.devices);
        let (mut identities, mut iohost) = (vec![Identity::None], [0; 32]);
        let (mut security, mut keys) = ("security = \"none\"".to_string(), vec![String::new()]);
        if is_sealed {
            let file = dir.path().join("iohost.key");
            iohost = key_in(binary, &file)?;
            security = format!("key_file = \"{}\"", file.display());
            (identities, keys) = (Vec::new(), Vec::new());
            for _ in names {
                let mut private = [0; 32];
                System.fill(&mut private);
                keys.push(format!("key = \"{}\"\n", hex(&public_key(&private)?)));
                identities.push(Identity::Key(private));
            }
        }
        let nics = if devices.contains("remote = \"far\"") { "nics = [\"far\"]\n" } else { "" };
        let (mut disks, mut clients) = (String::new(), String::new());
        for name in names {
            write!(
                disks,
                "[[disk]]\nid = \"{name}\"\nbackend = \"memory\"\nsize = \"{disk_bytes}\"\n"
            )?;
        }
        // One client has all of them where there are no keys.
        for (of_one, key) in names.chunks(names.len().div_ceil(keys.len())).zip(&keys) {
            let name = &of_one[0];
            write!(clients, "[[link.client]]\nname = \"{name}\"\n{key}disks = {of_one:?}\n{nics}")?;
        }
        let at = match over {
            Over::Udp(at) => format!("udp = \"{at}\""),
            Over::Ethernet(name) => format!("interface = \"{name}\"\nvia = \"{name}\""),
        };
        let devices = format!(
            "{disks}{devices}[[link]]\nid = \"bench\"\nrole = \"iohost\"\nlease_s = 600\n{at}\n\
             mtu = {mtu}\n{security}\n{clients}"
        );
        let sidecores = format!("cpus = \"{cores}\"\n{sidecores}");
        let config = Daemon::with(name, &devices).program(Some(binary)).sidecores(&sidecores);
        let config = config.pinned(cores);
        Ok(Site { over, is_sealed, mtu, config, _dir: dir, identities, iohost })
    }

    /// Starts it in the network namespace of that name.
    pub(super) fn serve(&self, who: Who, namespace: &str) -> Result<Server> {
        let inside = ["ip", "netns", "exec", namespace];
        Ok(Server::ours(who, self.config.clone().through(&inside).start()?))
    }

    /// Where the link's frames go.
    pub(super) fn to(&self) -> Address {
        match self.over {
            Over::Udp(at) => Address::udp(at),
            Over::Ethernet(_) => Address::station(STATION),
        }
    }

    /// A session, and the disk, as soon as the IOhost answers.
    pub(super) fn connect(&self) -> Result<Iohost> {
        let device = remote::device_of(DISK_ID);
        // One is for what is kept, as in the daemon.
        let (slots, slot_bytes) = (DEPTH_MAX + 1, BLOCK_BYTES as u32);
        self.connect_as(0, AttachSpec { device, slots, slot_bytes, keep_bytes: 64 << 20 })
    }

    /// The same with a NIC.
    pub(super) fn connect_nic(&self, name: &str) -> Result<Iohost> {
        let device = remote::device_of(&format!("nic:{name}"));
        let slot_bytes = NIC_SLOT_BYTES;
        self.connect_as(0, AttachSpec { device, slots: 1, slot_bytes, keep_bytes: 0 })
    }

    /// A session of the client of that disk, by its number, and the device. Without keys all are one client's.
    pub(super) fn connect_as(&self, client: usize, spec: AttachSpec) -> Result<Iohost> {
        let identity = self.identities.get(client).unwrap_or(&Identity::None);
        let source = match self.over {
            Over::Udp(_) => {
                LinkSource::Udp { bind: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0) }
            }
            Over::Ethernet("xdp") => LinkSource::Xdp { name: "xdp".to_string() },
            Over::Ethernet(name) => LinkSource::Interface { name: name.to_string() },
        };
        let socket = LinkSocket::open(&source)?;
        let mut instance = [0; 8];
        System.fill(&mut instance);
        let instance = u64::from_le_bytes(instance);
        let one = ClientSpec { instance, ring_frames: RING_FRAMES, fail_after_ns: None };
        let mut client = Client::new(one, now_ns());
        let attachment = client.attach(spec).context("no place for an attachment")?;
        let before = match self.over {
            Over::Udp(at) => HEADERS_BYTES[usize::from(at.is_ipv6())],
            Over::Ethernet(_) => LENGTH_BYTES,
        };
        let offer = Offer::new(self.is_sealed, self.mtu - before, RING_FRAMES);
        let mut hello = Initiator::new(identity, self.iohost, 1, offer, &mut System)?;
        let mut iohost = Iohost {
            socket,
            client,
            to: self.to(),
            attachment,
            blocks: [(0, 0); DEPTH_MAX as usize],
            assembly: Assembly::default(),
            sent: None,
        };
        iohost.greet(&mut hello)?;
        iohost.bind()?;
        Ok(iohost)
    }
}

/// The client's end.
pub(super) struct Iohost {
    socket: LinkSocket,
    client: Client,
    to: Address,
    attachment: u16,
    /// Of each tag the first, and how many.
    blocks: [(u64, u32); DEPTH_MAX as usize],
    assembly: Assembly,
    /// The last frames that were sent, if that is wanted.
    sent: Option<Vec<Vec<u8>>>,
}

impl Iohost {
    fn greet(&mut self, hello: &mut Initiator) -> Result<()> {
        let (start, mut said_at) = (now_ns(), 0);
        loop {
            let now = now_ns();
            ensure!(now - start < START_NS, "the IOhost does not answer");
            // At real-time priority its process would not come to its own core otherwise.
            std::thread::yield_now();
            if now - said_at >= HELLO_NS {
                said_at = now;
                let (bytes, to) = (hello.hello(), self.to);
                self.socket.send(|place| {
                    place.get_mut(..bytes.len())?.copy_from_slice(bytes);
                    Some((bytes.len(), to))
                });
                self.socket.flush();
            }
            while let Some((_, frame)) = self.socket.receive() {
                if Header::parse(frame).is_ok_and(|header| header.kind == FrameKind::Sealed) {
                    continue;
                }
                match hello.receive(frame)? {
                    Step::Again => said_at = 0,
                    Step::Done(made) => {
                        ensure!(self.client.establish(*made, now), "keys that are none");
                        return Ok(());
                    }
                }
            }
        }
    }

    fn bind(&mut self) -> Result<()> {
        let start = now_ns();
        while now_ns() - start < START_NS {
            self.send()?;
            self.take(&mut |_| {})?;
            while let Some(event) = self.client.next_event() {
                if matches!(event, Event::Bound { .. }) {
                    return Ok(());
                }
            }
        }
        bail!("the IOhost does not give the disk")
    }
}

impl Iohost {
    /// Readable while the kernel has frames. `true`: frames are here that it no longer has.
    pub(super) fn waits_on(&self) -> (BorrowedFd<'_>, bool) {
        (self.socket.poll_fd(), self.socket.has_some())
    }

    /// Frames that were sent, and those of them that were lost.
    pub(super) fn frames(&self) -> [u64; 2] {
        let stats = self.client.stats();
        [stats.frames_sent, stats.frames_lost]
    }

    /// When [`Far::send`] is due, if nothing happens before.
    pub(super) fn due(&self) -> Option<u64> {
        self.client.due()
    }

    /// [`Far::ask`], of so many blocks.
    pub(super) fn ask_some(
        &mut self,
        kind: Kind,
        (block, count): (u64, u32),
        tag: u16,
    ) -> Result<()> {
        self.blocks[usize::from(tag)] = (block, count);
        let op = if kind == Kind::Read { Op::Read } else { Op::Write { sync: false } };
        let (offset, len) = (block * BLOCK_BYTES as u64, count * BLOCK_BYTES as u32);
        let one = Request { op, offset, len, tag: tag.into() };
        self.client.submit(self.attachment, one, |place| {
            for (block, place) in (block..).zip(place.chunks_exact_mut(BLOCK_BYTES)) {
                let (head, rest) = place.split_at_mut(16);
                head.copy_from_slice(&mark(block));
                rest.fill(0xa5);
            }
            true
        })?;
        Ok(())
    }

    /// Keeps what is sent from now on, for [`Iohost::sent`].
    pub(super) fn keep_sent(&mut self) {
        self.sent = Some(Vec::with_capacity(SENT_MAX));
    }

    /// Some frames that were sent.
    pub(super) fn sent(&self) -> &[Vec<u8>] {
        self.sent.as_deref().unwrap_or_default()
    }

    /// A frame of the NIC.
    pub(super) fn send_frame(&mut self, frame: &[u8]) -> Result<()> {
        ensure!(self.client.send_net(self.attachment, frame), "no room for a frame");
        self.send()
    }

    /// Whether this frame of the NIC has come. All that came before is passed over.
    pub(super) fn has_frame(&mut self, wanted: &[u8]) -> Result<bool> {
        let now = now_ns();
        let mut has = false;
        let Iohost { socket, client, assembly, .. } = self;
        while let Some((_, frame)) = socket.receive() {
            client.receive(now, frame, &mut |_, net| {
                has |= assembly.take(net).is_some_and(|frame| frame == wanted);
            });
        }
        // Acknowledgements go, too.
        self.send()?;
        Ok(has)
    }
}

impl Far for Iohost {
    fn ask(&mut self, kind: Kind, block: u64, tag: u16) -> Result<()> {
        self.ask_some(kind, (block, 1), tag)
    }

    fn send(&mut self) -> Result<()> {
        let Iohost { socket, client, to, sent, .. } = self;
        let now = now_ns();
        client.tick(now);
        while socket.send(|place| {
            let len = client.poll_transmit(now, place)?;
            if let Some(sent) = sent.as_mut().filter(|sent| sent.len() < SENT_MAX) {
                sent.push(place.get(..len)?.to_vec());
            }
            Some((len, *to))
        }) {}
        socket.flush();
        Ok(())
    }

    fn take(&mut self, ended: &mut dyn FnMut(u16)) -> Result<()> {
        let now = now_ns();
        while let Some((_, frame)) = self.socket.receive() {
            self.client.receive(now, frame, &mut |_, _| {});
        }
        while let Some(finished) = self.client.next_finished() {
            ensure!(finished.status == Status::Ok, "{finished:?}");
            let tag = finished.tag as u16;
            if finished.op == Op::Read {
                let (block, count) = self.blocks[usize::from(tag)];
                let bytes = self.client.data(&finished);
                ensure!(bytes.len() == count as usize * BLOCK_BYTES, "{} bytes", bytes.len());
                for (block, bytes) in (block..).zip(bytes.chunks(BLOCK_BYTES)) {
                    check(block, bytes)?;
                }
            }
            self.client.free(finished);
            ended(tag);
        }
        Ok(())
    }
}

/// Makes a key there; its public half.
fn key_in(binary: &Path, file: &PathBuf) -> Result<PublicKey> {
    let made = Command::new(binary).args(["link", "key"]).arg(file).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout)?;
    let text = text.trim();
    let mut key = [0; 32];
    for (at, byte) in key.iter_mut().enumerate() {
        let digits = text.get(2 * at..2 * at + 2).context("no key was printed")?;
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(key)
}

fn hex(key: &PublicKey) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
