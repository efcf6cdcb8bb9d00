//! The network of a machine that is linked with itself: nothing is lost but by whoever cuts it.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use backend::link::{
    Address, LinkOpenError, LinkShards, LinkSocket, LinkSource, LinkWhy, LinkWire,
};
use rustix::io::Errno;

use crate::simulated::{Machine, be_on};

/// Sockets by address, and what came for each.
#[derive(Default)]
struct State {
    ends: BTreeMap<Vec<u8>, End>,
    is_cut: bool,
}

#[derive(Default)]
struct End {
    somebody: Weak<OwnedFd>,
    came: VecDeque<(Address, Vec<u8>)>,
}

#[derive(Default)]
struct Wire(Mutex<State>);

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkWire for Wire {
    fn joined(&self, at: Address, some: Arc<OwnedFd>) {
        let end = End { somebody: Arc::downgrade(&some), came: VecDeque::new() };
        self.state().ends.insert(at.as_bytes().to_vec(), end);
    }

    fn receive(&self, at: Address, into: &mut Vec<u8>) -> Option<Address> {
        let mut state = self.state();
        let (from, bytes) = state.ends.get_mut(at.as_bytes())?.came.pop_front()?;
        into.extend_from_slice(&bytes);
        Some(from)
    }

    fn send(&self, from: Address, to: Address, frame: &[u8]) {
        let mut state = self.state();
        let is_cut = state.is_cut;
        if let Some(end) = state.ends.get_mut(to.as_bytes()).filter(|_| !is_cut) {
            end.came.push_back((from, frame.to_vec()));
            let somebody = end.somebody.upgrade();
            if let Some(some) = somebody {
                // Only fails when it is readable as it can be.
                let _ = rustix::io::write(&*some, &1_u64.to_ne_bytes());
            }
        }
    }
}

/// What is found of the machine; this thread's for as long as it is there.
#[derive(Default)]
pub(super) struct Ground {
    wire: Arc<Wire>,
    random: Cell<u64>,
    port: Cell<u16>,
    /// No socket is to be had.
    pub(super) is_full: Cell<bool>,
}

/// This thread is on that machine.
pub(super) struct OnGround(pub(super) Rc<Ground>);

impl OnGround {
    pub(super) fn new() -> OnGround {
        let ground = Rc::new(Ground::default());
        be_on(Some(Rc::clone(&ground) as Rc<dyn Machine>));
        OnGround(ground)
    }

    /// Nothing passes from now on, or all does again.
    pub(super) fn cut(&self, is_cut: bool) {
        self.0.wire.state().is_cut = is_cut;
    }

    /// Somebody sends bytes to an address.
    pub(super) fn send(&self, from: &str, to: &str, frame: &[u8]) {
        let at = |text: &str| Address::udp(text.parse().expect("an address"));
        self.0.wire.send(at(from), at(to), frame);
    }
}

impl Drop for OnGround {
    fn drop(&mut self) {
        be_on(None);
    }
}

impl Machine for Ground {
    fn open_link(&self, source: &LinkSource, shards: usize) -> Result<LinkShards, LinkOpenError> {
        let LinkSource::Udp { bind } = source else { unreachable!("links of UDP alone") };
        let failed = || LinkOpenError {
            at: format!("udp {bind}"),
            why: LinkWhy::Os { what: "open", source: Errno::MFILE },
        };
        if self.is_full.get() {
            return Err(failed());
        }
        self.port.set(self.port.get() + 1);
        let port = if bind.port() == 0 { 40_000 + self.port.get() } else { bind.port() };
        let at = Address::udp(SocketAddr::from(([10, 0, 0, 1], port)));
        let socket = |_| LinkSocket::simulated(Arc::clone(&self.wire) as Arc<dyn LinkWire>, at);
        let sockets: std::io::Result<Vec<LinkSocket>> = (0..shards.min(1)).map(socket).collect();
        Ok(LinkShards { sockets: sockets.map_err(|_| failed())?, refused: None })
    }

    fn inherit_link(
        &self,
        _: &LinkSource,
        sockets: Vec<OwnedFd>,
    ) -> Result<LinkShards, LinkOpenError> {
        let failed = |why| LinkOpenError { at: "udp".to_string(), why };
        let inherit = |socket: &OwnedFd| {
            let at = LinkSocket::simulated_at(socket).ok_or_else(|| failed(LinkWhy::Elsewhere))?;
            let socket = LinkSocket::simulated(Arc::clone(&self.wire) as Arc<dyn LinkWire>, at);
            socket.map_err(|_| failed(LinkWhy::Os { what: "open", source: Errno::MFILE }))
        };
        let sockets: Result<Vec<LinkSocket>, _> = sockets.iter().map(inherit).collect();
        Ok(LinkShards { sockets: sockets?, refused: None })
    }

    /// Not random at all, and never the same.
    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            self.random
                .set(self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            *byte = (self.random.get() >> 33) as u8;
        }
    }

    fn boot(&self) -> u64 {
        1
    }
}
