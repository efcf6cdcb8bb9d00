//! What a front-end would have to say to bring a new session to where this one is.
//!
//! For a process that takes over from this one (docs/decisions/0009). That a ring failed, and where it
//! stands, is in no message ([`Session::has_failed`], [`Session::base`], [`Session::is_lost`]). Called by `manager`.

use std::convert::Infallible;

use super::{InflightArea, LogArea, MemoryRegion, Owner, Session};
use crate::message::{Message, RingFd, RingState};
use crate::queue_setup::{Kick, Place, QueueSetup};

/// A message and the descriptors that go with it.
pub type Told<'a, F> = (Message, Vec<&'a F>);

impl<F> Session<F> {
    /// The messages, in an order in which a new session takes all of them. `lent` are those that brought
    /// what the owner keeps: memory, log, record and channel.
    ///
    /// What a front-end has made senseless by what it said later is left out: a ring of a size that
    /// the features agreed on since do not allow cannot run before it is told of anew.
    pub fn retell<'a>(&'a self, lent: Vec<Told<'a, F>>) -> Vec<Told<'a, F>> {
        let rings = self.queues.iter().enumerate();
        let rings = rings.flat_map(|(index, ring)| retell(index as u32, ring));
        let mut trial: Session<()> = Session::new(self.facts);
        let mut makes_sense = |(message, fds): &Told<'_, F>| {
            let fds = fds.iter().map(|_| ()).collect();
            trial.apply(message.clone(), fds, false, &mut Willing).is_ok()
        };
        let told = self.agreed().into_iter().chain(lent).chain(rings);
        told.filter(|told| makes_sense(told)).collect()
    }

    /// Whether queue `index` broke a rule, see [`Session::failed`].
    pub fn has_failed(&self, index: u16) -> bool {
        self.queues.get(usize::from(index)).is_some_and(|queue| queue.failed)
    }

    /// Whether nobody knows where queue `index` stands, see [`Session::lost`].
    pub fn is_lost(&self, index: u16) -> bool {
        self.queues.get(usize::from(index)).is_some_and(|queue| queue.place == Place::Lost)
    }

    /// Where queue `index` stands, as in `SET_VRING_BASE`; its front-end may know of an earlier place.
    pub fn base(&self, index: u16) -> Option<u32> {
        self.queues.get(usize::from(index)).map(|queue| queue.base)
    }

    /// The place of queue `index` that its front-end knows of.
    pub fn told(&self, index: u16) -> Option<u32> {
        self.queues.get(usize::from(index)).map(|queue| queue.told)
    }

    fn agreed(&self) -> Vec<Told<'_, F>> {
        let mut told = Vec::new();
        if self.has_owner {
            told.push((Message::SetOwner, Vec::new()));
        }
        if self.protocol_features != 0 {
            told.push((Message::SetProtocolFeatures(self.protocol_features), Vec::new()));
        }
        if let Some(features) = self.features {
            told.push((Message::SetFeatures(features), Vec::new()));
        }
        if let Some(fd) = &self.log_fd {
            told.push((Message::SetLogFd, vec![fd]));
        }
        told
    }
}

fn retell<F>(queue: u32, ring: &QueueSetup<F>) -> Vec<Told<'_, F>> {
    let mut told: Vec<Told<'_, F>> = Vec::new();
    let state = |value| RingState { queue, value };
    if let Some(size) = ring.size {
        told.push((Message::SetVringNum(state(size.into())), Vec::new()));
    }
    if ring.told != 0 {
        told.push((Message::SetVringBase(state(ring.told)), Vec::new()));
    }
    if let Some(addresses) = ring.addresses {
        told.push((Message::SetVringAddr((queue, addresses)), Vec::new()));
    }
    let with = |fd| (RingFd { queue, has_fd: true }, vec![fd]);
    match &ring.kick {
        Some(Kick::Fd(fd)) => {
            let (ring, fds) = with(fd);
            told.push((Message::SetVringKick(ring), fds));
        }
        Some(Kick::Poll) => {
            told.push((Message::SetVringKick(RingFd { queue, has_fd: false }), Vec::new()));
        }
        None => {}
    }
    if let Some(fd) = &ring.call {
        let (ring, fds) = with(fd);
        told.push((Message::SetVringCall(ring), fds));
    }
    if let Some(fd) = &ring.err {
        let (ring, fds) = with(fd);
        told.push((Message::SetVringErr(ring), fds));
    }
    if let Some(enabled) = ring.enabled {
        told.push((Message::SetVringEnable(state(enabled.into())), Vec::new()));
    }
    told
}

/// An owner that takes everything: what it refused once is not told again.
struct Willing;

impl Owner<()> for Willing {
    type Error = Infallible;

    fn read_config(&self, _offset: u32, _into: &mut [u8]) -> bool {
        true
    }
    fn write_config(&mut self, _negotiated: u64, _offset: u32, _bytes: &[u8]) -> bool {
        true
    }
    fn set_memory(&mut self, _regions: &[MemoryRegion], _fds: Vec<()>) -> Result<(), Infallible> {
        Ok(())
    }
    fn add_region(&mut self, _region: &MemoryRegion, _fd: ()) -> Result<(), Infallible> {
        Ok(())
    }
    fn remove_region(&mut self, _region: &MemoryRegion) -> Result<(), Infallible> {
        Ok(())
    }
    fn set_log(&mut self, _area: LogArea, _fd: ()) -> Result<(), Infallible> {
        Ok(())
    }
    fn make_inflight(&mut self, _len: u64) -> Result<(), Infallible> {
        Ok(())
    }
    fn set_inflight(&mut self, _area: &InflightArea, _fd: ()) -> Result<(), Infallible> {
        Ok(())
    }
    fn check_signal(&self, _fd: &()) -> Result<(), Infallible> {
        Ok(())
    }
    fn set_channel(&mut self, _fd: ()) -> Result<(), Infallible> {
        Ok(())
    }
    fn reset(&mut self) {}
    fn announce(&mut self, _mac: [u8; 6]) -> Result<(), Infallible> {
        Ok(())
    }
    fn set_mtu(&mut self, _mtu: u16) -> Result<(), Infallible> {
        Ok(())
    }
}
