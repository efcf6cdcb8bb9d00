//! A NIC's driver, without a VM: pairs of queues over a real vhost-user socket, frames in and out.
//!
//! [`Nic`] connects and negotiates; each [`Pair`] then sends and receives frames, with their headers
//! as they stood in guest memory. Everything the device did is checked against VIRTIO 1.2, 5.1.6; a
//! device that breaks a rule is an error. For tests and benches, against any back-end. [`Stream`] is
//! for measuring: the same frame over and over, what arrives is counted. Not the frames themselves.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use testing::net_frontend::{Header, Nic, NicSpec, feature};
//! let spec = NicSpec { features: feature::MRG_RXBUF, ..NicSpec::default() };
//! let mut nic = Nic::connect("vm1.sock".as_ref(), spec)?;
//! assert!(nic.pair(0).send(&Header::default(), &[0xff; 60], &[12])?);
//! while let Some(frame) = nic.pair(0).receive()? {
//!     assert_eq!(frame.header.gso_type, 0);
//! }
//! # Ok(()) }
//! ```

pub mod frames;
mod pair;
mod stream;

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

pub use frame::Header;
pub use pair::{Pair, Received};
pub use stream::{Stream, Sunk};

use crate::frontend::{Class, Frontend, FrontendSpec};

/// Feature bits of a NIC's driver, by their names in VIRTIO 1.2 (5.1.3), without `VIRTIO_NET_F_`.
pub mod feature {
    pub use device::features::{
        IN_ORDER, NET_CSUM as CSUM, NET_GUEST_CSUM as GUEST_CSUM, NET_GUEST_ECN as GUEST_ECN,
        NET_GUEST_TSO4 as GUEST_TSO4, NET_GUEST_TSO6 as GUEST_TSO6, NET_GUEST_USO4 as GUEST_USO4,
        NET_GUEST_USO6 as GUEST_USO6, NET_HOST_ECN as HOST_ECN, NET_HOST_TSO4 as HOST_TSO4,
        NET_HOST_TSO6 as HOST_TSO6, NET_HOST_USO as HOST_USO, NET_MRG_RXBUF as MRG_RXBUF,
        NET_MTU as MTU,
    };
    /// What a driver may send unfinished.
    pub const ALL_HOST: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;
    /// What a driver may be given unfinished.
    pub const ALL_GUEST: u64 =
        GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_ECN | GUEST_USO4 | GUEST_USO6;
}

/// What a NIC's driver is like.
#[derive(Clone, Debug)]
pub struct NicSpec {
    /// Pairs of queues.
    pub pairs: u16,
    /// What each queue is like. With indirect tables these need an entry for every piece of a
    /// receive buffer and of a frame that is sent.
    pub ring: RingSpec,
    /// Features to accept, besides those that `ring` and `pairs` imply; see [`feature`]. All of them
    /// must be offered, or [`Nic::connect`] fails.
    pub features: u64,
    /// Whether to be a legacy driver: without VERSION_1, and so, without MRG_RXBUF, with a header of
    /// 10 bytes.
    pub legacy: bool,
    /// Bytes of each descriptor of a receive buffer, header included. One descriptor is what Linux
    /// and DPDK have with MRG_RXBUF; 12 and 1514 what old drivers have.
    pub receive_pieces: Vec<u32>,
    /// Frames of a pair that may be on their way out at once.
    pub send_slots: u16,
    /// Bytes of the longest frame that is sent, without header.
    pub send_bytes: u32,
    /// Whether guest memory is sealed against shrinking.
    pub sealed: bool,
    /// Guest memory besides what rings and buffers need, bytes; for [`Frontend::memory`].
    pub spare_bytes: u64,
    /// Protocol features to accept where offered, besides those that every front-end here takes.
    pub protocol_features: u64,
}

impl Default for NicSpec {
    fn default() -> NicSpec {
        let ring =
            RingSpec { size: 256, format: Format::Split, event_index: true, indirect_entries: 0 };
        NicSpec {
            pairs: 1,
            ring,
            features: feature::MRG_RXBUF,
            legacy: false,
            receive_pieces: vec![2048],
            send_slots: 64,
            send_bytes: 2048,
            sealed: true,
            spare_bytes: 0,
            protocol_features: 0,
        }
    }
}

impl NicSpec {
    /// The default with frames of so many bytes at most to send.
    pub fn sending(bytes: u32) -> NicSpec {
        NicSpec { send_bytes: bytes, ..NicSpec::default() }
    }

    /// With everything that makes 64 KiB segments cross uncut: all offloads both ways, mergeable
    /// buffers of a page, long frames.
    pub fn with_offloads() -> NicSpec {
        NicSpec {
            features: feature::MRG_RXBUF | feature::ALL_HOST | feature::ALL_GUEST,
            receive_pieces: vec![4096],
            send_slots: 32,
            send_bytes: frame::FRAME_MAX,
            ..NicSpec::default()
        }
    }

    /// Receive buffers that a queue is kept filled with.
    fn receive_buffers(&self) -> u16 {
        match self.ring.indirect_entries {
            0 => self.ring.size / (self.receive_pieces.len().max(1) as u16),
            _ => self.ring.size,
        }
    }

    fn memory_bytes(&self) -> u64 {
        let RingSpec { size, indirect_entries, .. } = self.ring;
        let queue = u64::from(size) * (16 + 8 + 2 + 16 * u64::from(indirect_entries)) + 4096;
        let receive =
            u64::from(self.receive_buffers()) * u64::from(pair::room(self.receive_bytes()));
        let send = u64::from(self.send_slots) * u64::from(pair::room(self.slot_bytes()));
        let all = u64::from(self.pairs) * (2 * queue + receive + send + 3 * 4096);
        (all + self.spare_bytes).next_multiple_of(2 << 20)
    }

    /// Bytes of one receive buffer, header included.
    fn receive_bytes(&self) -> u32 {
        self.receive_pieces.iter().sum()
    }

    /// Bytes of one frame to be sent, header included.
    fn slot_bytes(&self) -> u32 {
        self.send_bytes + frame::HEADER_SIZE as u32
    }
}

/// A NIC's driver with its connection.
#[derive(Debug)]
pub struct Nic {
    frontend: Frontend,
    pairs: Vec<Pair>,
}

impl Nic {
    /// Connects to the socket at `path`, negotiates, starts the queues and posts receive buffers.
    ///
    /// # Errors
    /// As [`Frontend::connect`]; a feature of the spec is not offered; pieces that the rings cannot
    /// describe.
    pub fn connect(path: &Path, spec: NicSpec) -> Result<Nic> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("connecting to {}", path.display()))?;
        Nic::over(stream, spec)
    }

    /// As [`Nic::connect`], over a connection that is there: for back-ends that connect.
    ///
    /// # Errors
    /// As [`Nic::connect`].
    pub fn over(stream: UnixStream, spec: NicSpec) -> Result<Nic> {
        let mut frontend = Frontend::over(
            stream,
            FrontendSpec {
                class: Class::Nic,
                legacy: spec.legacy,
                memory_bytes: spec.memory_bytes(),
                queues: 2 * spec.pairs,
                ring: spec.ring,
                features: spec.features,
                sealed: spec.sealed,
                protocol_features: spec.protocol_features,
                ..FrontendSpec::default()
            },
        )?;
        let missing = spec.features & !frontend.features();
        ensure!(missing == 0, "the back-end does not offer feature bits {missing:#x}");
        let mut queues = frontend.take_queues().into_iter();
        let mut pairs = Vec::new();
        while let (Some(receive), Some(transmit)) = (queues.next(), queues.next()) {
            let features = frontend.features();
            pairs.push(Pair::new(frontend.memory(), [receive, transmit], &spec, features)?);
        }
        Ok(Nic { frontend, pairs })
    }

    /// The connection, its memory and its features. Its queues are with the pairs.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }

    /// How many pairs there are.
    pub fn pairs(&self) -> u16 {
        self.pairs.len() as u16
    }

    /// One pair. Panics when there is no such pair: a mistake of the bench or test.
    pub fn pair(&mut self, index: u16) -> &mut Pair {
        &mut self.pairs[usize::from(index)]
    }

    /// The connection and the pairs apart, for pairs that are driven on threads of their own. The
    /// connection must stay as long as they run.
    pub fn split(self) -> (Frontend, Vec<Pair>) {
        (self.frontend, self.pairs)
    }

    /// Brings the back-end at `path` to where the last one was: memory, rings and what is in them
    /// stay. All queues are told to go on at `base`; without it, where their used indices say.
    ///
    /// # Errors
    /// As [`Frontend::reconnect`].
    pub fn reconnect(&mut self, path: &Path, base: Option<u32>) -> Result<()> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("connecting to {}", path.display()))?;
        let queues =
            self.pairs.iter().flat_map(|pair| [&pair.receive, &pair.transmit]).collect::<Vec<_>>();
        self.frontend.reconnect_with(stream, &queues, base)
    }

    /// Stops every queue, as a guest does that shuts down in order; what is in flight is lost.
    ///
    /// # Errors
    /// The session's.
    pub fn disconnect(self) -> Result<()> {
        self.frontend.disconnect()
    }
}
