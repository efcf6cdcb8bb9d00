//! A host port that can be attached: a descriptor of the host's, and what serving it needs.
//!
//! Not how it is opened (`backend::net`, called by control), nor a visit of it (`receive`).

use std::sync::Arc;

use backend::net::HostPort;
use frame::FRAME_MAX;
use schedule::{Nanos, Policy};
use switch::PortId;

use crate::counters::QueueCounters;
use crate::net::port::BridgeId;

/// The name of a host port's descriptor between control and its sidecores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey {
    /// The bridge.
    pub bridge: BridgeId,
    /// Its port.
    pub port: PortId,
    /// Which of the port's descriptors, from 0: a tap has several queues. Below
    /// [`PAIRS_MAX`](crate::PAIRS_MAX).
    pub queue: u16,
}

/// What a host port is made of.
#[derive(Debug)]
pub struct HostSpec {
    /// Its name.
    pub key: HostKey,
    /// Open.
    pub port: HostPort,
    /// Weight among the queues of a sidecore; 100 is usual.
    pub share: u32,
    /// When to poll and when to wait. A port whose frames come with time alone is always polled; one
    /// that never gives any is never visited.
    pub policy: Policy,
    /// Where its work is counted.
    pub counters: Arc<QueueCounters>,
}

/// A host port that can be attached.
#[derive(Debug)]
pub struct HostServed {
    pub(crate) spec: HostSpec,
    /// A frame that was received and could not be delivered yet.
    pub(crate) kept: Kept,
    /// The frame that was kept waits at least until then.
    pub(crate) retry_at: Nanos,
    /// Since when it has no room for frames, as far as was tried.
    pub(crate) full_since: Option<Nanos>,
    /// Frames were sent in this visit and not flushed.
    pub(crate) is_unflushed: bool,
    /// What the kernel lost is asked for then again.
    pub(crate) losses_at: Nanos,
    /// The frame that was kept waits for a kick of the receive queue at this place.
    pub(crate) held_by: Option<u16>,
    /// Frames that come do not wake the sidecore: one waits for its receiver's kick.
    pub(crate) is_muted: bool,
    /// Control was told that the interface is gone.
    pub(crate) is_reported: bool,
}

/// A frame that waits for a receiver on a wire, or for the rest of its copies.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Box<[u8]>,
    /// Bytes of the frame; 0: none is kept.
    pub(crate) len: usize,
    pub(crate) header: frame::Header,
    /// Where its flood goes on.
    pub(crate) cursor: u16,
}

impl Kept {
    fn new() -> Kept {
        let bytes = vec![0; FRAME_MAX as usize].into_boxed_slice();
        Kept { bytes, len: 0, header: frame::Header::default(), cursor: 0 }
    }

    /// Keeps a frame. False when it is too long to be one.
    #[cold]
    pub(crate) fn keep(&mut self, header: frame::Header, frame: &[u8], cursor: u16) -> bool {
        let Some(place) = self.bytes.get_mut(..frame.len()) else { return false };
        place.copy_from_slice(frame);
        (self.len, self.header, self.cursor) = (frame.len(), header, cursor);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl HostServed {
    /// Takes the memory that serving will need.
    pub fn new(spec: HostSpec) -> Box<HostServed> {
        Box::new(HostServed {
            spec,
            kept: Kept::new(),
            retry_at: Nanos(0),
            full_since: None,
            is_unflushed: false,
            losses_at: Nanos(0),
            held_by: None,
            is_muted: false,
            is_reported: false,
        })
    }

    /// Its name.
    pub fn key(&self) -> HostKey {
        self.spec.key
    }

    /// The parts again, after detach, before which a frame that was kept is brought where it goes.
    pub fn into_spec(self) -> HostSpec {
        self.spec
    }

    /// When it is visited; `None`: never.
    pub(crate) fn policy(&self) -> Option<Policy> {
        let port = &self.spec.port;
        match port.poll_fd() {
            Some(_) => Some(self.spec.policy),
            None if port.is_clocked() => Some(Policy::Poll),
            None => None,
        }
    }
}
