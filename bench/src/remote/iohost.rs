//! The protocol's own client against an IOhost: a socket, a session, and one attachment.
//!
//! What `backend::link` does for a daemon's guests is not here: no ring, no queue, no second IOhost.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use backend::link::{Address, LinkSocket, LinkSource};
use bench::clock::now_ns;
use bench::slots::Kind;
use remote::client::{AttachSpec, Client, ClientSpec, Event, Request};
use remote::handshake::{Identity, Initiator, Offer, PublicKey, Randomness, Step, public_key};
use remote::wire::{Header, Kind as FrameKind, Op, Status};

use super::{BLOCK_BYTES, DEPTH_MAX, DISK_ID, Far, check, mark};

const RING_FRAMES: u32 = 512;
const START_NS: u64 = 10_000_000_000;
const HELLO_NS: u64 = 100_000_000;
/// Headers of IPv6 and UDP.
const HEADERS_BYTES: u16 = 48;

struct System;

impl Randomness for System {
    fn fill(&mut self, bytes: &mut [u8]) {
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
        assert!(read.is_ok(), "the system has no random numbers: {read:?}");
    }
}

/// An IOhost that is to be started, and who may come.
pub(super) struct Site {
    at: SocketAddr,
    mtu: u16,
    config: String,
    identity: Identity,
    iohost: PublicKey,
}

impl Site {
    /// With keys of both ends if frames are to be sealed.
    pub(super) fn new(
        binary: &Path,
        dir: &Path,
        at: SocketAddr,
        mtu: u16,
        is_sealed: bool,
    ) -> Result<Site> {
        let (mut identity, mut iohost) = (Identity::None, [0; 32]);
        let (mut security, mut client) = ("security = \"none\"".to_string(), String::new());
        if is_sealed {
            let file = dir.join("iohost.key");
            iohost = key_in(binary, &file)?;
            let mut private = [0; 32];
            System.fill(&mut private);
            client = format!("key = \"{}\"\n", hex(&public_key(&private)?));
            security = format!("key_file = \"{}\"", file.display());
            identity = Identity::Key(private);
        }
        let place = dir.display();
        let text = format!(
            "[daemon]\napi = \"{place}/api.sock\"\nrun_dir = \"{place}\"\nstate_dir = \"{place}/state\"\n\
             [sidecores]\ncpus = \"{}\"\n[[disk]]\nid = \"{DISK_ID}\"\nbackend = \"memory\"\nsize = \"{}\"\n\
             [[link]]\nid = \"bench\"\nrole = \"iohost\"\nlease_s = 600\nudp = \"{at}\"\nmtu = {mtu}\n{security}\n\
             [[link.client]]\nname = \"bench\"\n{client}disks = [\"{DISK_ID}\"]\n",
            crate::bed::SERVER_CORE,
            super::DISK_BYTES,
        );
        let config = dir.join("sidecore.toml");
        std::fs::write(&config, text)?;
        Ok(Site { at, mtu, config: config.display().to_string(), identity, iohost })
    }

    /// Of the `sidecore` program.
    pub(super) fn arguments(&self) -> [&str; 3] {
        ["serve", "--config", &self.config]
    }

    /// A session, and the disk, as soon as the IOhost answers.
    pub(super) fn connect(&self) -> Result<Iohost> {
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let socket = LinkSocket::open(&LinkSource::Udp { bind: any })?;
        let mut instance = [0; 8];
        System.fill(&mut instance);
        let instance = u64::from_le_bytes(instance);
        let spec = ClientSpec { instance, ring_frames: RING_FRAMES, fail_after_ns: None };
        let mut client = Client::new(spec, now_ns());
        let spec = AttachSpec {
            device: remote::device_of(DISK_ID),
            // One is for what is kept, as in the daemon.
            slots: DEPTH_MAX + 1,
            slot_bytes: BLOCK_BYTES as u32,
            keep_bytes: 64 << 20,
        };
        let attachment = client.attach(spec).context("no place for an attachment")?;
        let offer = Offer::new(
            matches!(self.identity, Identity::Key(_)),
            self.mtu - HEADERS_BYTES,
            RING_FRAMES,
        );
        let mut hello = Initiator::new(&self.identity, self.iohost, 1, offer, &mut System)?;
        let blocks = [0; DEPTH_MAX as usize];
        let mut iohost = Iohost { socket, client, to: Address::udp(self.at), attachment, blocks };
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
    /// Of each tag.
    blocks: [u64; DEPTH_MAX as usize],
}

impl Iohost {
    fn greet(&mut self, hello: &mut Initiator) -> Result<()> {
        let (start, mut said_at) = (now_ns(), 0);
        loop {
            let now = now_ns();
            ensure!(now - start < START_NS, "the IOhost does not answer");
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

impl Far for Iohost {
    fn ask(&mut self, kind: Kind, block: u64, tag: u16) -> Result<()> {
        self.blocks[usize::from(tag)] = block;
        let op = if kind == Kind::Read { Op::Read } else { Op::Write { sync: false } };
        let offset = block * BLOCK_BYTES as u64;
        let one = Request { op, offset, len: BLOCK_BYTES as u32, tag: tag.into() };
        self.client.submit(self.attachment, one, |place| {
            let (head, rest) = place.split_at_mut(16);
            head.copy_from_slice(&mark(block));
            rest.fill(0xa5);
            true
        })?;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let Iohost { socket, client, to, .. } = self;
        let now = now_ns();
        client.tick(now);
        while socket.send(|place| Some((client.poll_transmit(now, place)?, *to))) {}
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
                check(self.blocks[usize::from(tag)], self.client.data(&finished))?;
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
