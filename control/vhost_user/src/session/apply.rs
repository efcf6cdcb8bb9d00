//! What each message does to a session.

use super::{
    ConfigSpan, DeviceClass, InflightArea, Message, Owner, Reason, Refused, Reply, Session, bits,
    frame, memory_table, message, number, wire,
};
use crate::message::{
    CONFIG_SIZE_MAX, LogArea, MacAddress, RingAddresses, RingFd, RingState, TABLE_REGIONS_MAX,
};
use crate::queue_setup::Kick;

/// Smallest MTU that a driver may be told, bytes (VIRTIO 1.2, 5.1.4.1).
const MTU_MIN: u16 = 68;

impl<F> Session<F> {
    /// Checks first, then asks the owner, then changes the state: a refusal changes nothing.
    pub(super) fn change<O: Owner<F>>(
        &mut self,
        message: Message,
        fds: Vec<F>,
        owner: &mut O,
    ) -> Result<Option<Reply<F>>, Refused<O::Error>> {
        let mut fds = fds.into_iter();
        let fd = fds.next();
        match &message {
            Message::GetFeatures => {
                return Ok(number(&message, self.facts.features | bits::TRANSPORT));
            }
            Message::GetProtocolFeatures => {
                return Ok(number(&message, self.facts.class.protocol_features()));
            }
            Message::GetQueueNum => {
                let queues = self.facts.class.queue_number(self.facts.queues_max, self.has_owner);
                return Ok(number(&message, queues.into()));
            }
            Message::GetMaxMemSlots => {
                return Ok(number(&message, memory_table::MEMORY_SLOTS_MAX as u64));
            }
            Message::GetConfig(span) => return Ok(self.get_config(&message, span, owner)),
            Message::GetInflightFd(area) => return self.get_inflight(&message, area, owner),
            Message::GetVringBase(state) => return Ok(self.stop_ring(&message, state)?),
            Message::SetLogBase(area) => return self.set_log(&message, area, fd, owner),
            Message::SetOwner => self.has_owner = true,
            Message::SetLogFd => self.log_fd = fd,
            Message::SetFeatures(features) => self.set_features(*features)?,
            Message::SetProtocolFeatures(features) => self.set_protocol_features(*features)?,
            Message::ResetOwner => self.queues.iter_mut().for_each(|queue| queue.reset()),
            // What was negotiated stays, as in libvhost-user: a driver that starts anew makes its
            // front-end send SET_FEATURES again.
            Message::ResetDevice => {
                self.queues.iter_mut().for_each(|queue| queue.reset());
                owner.reset();
            }
            _ if self.is_repeated(&message) => {}
            Message::SetMemTable(_) | Message::AddMemReg(_) | Message::RemMemReg(_) => {
                self.change_memory(&message, fd.into_iter().chain(fds).collect(), owner)?;
            }
            Message::SendRarp(mac) => self.announce(&message, mac, owner)?,
            Message::NetSetMtu(mtu) => self.set_mtu(&message, *mtu, owner)?,
            Message::SetBackendReqFd => self.set_channel(&message, fd, owner)?,
            Message::SetInflightFd(area) => self.set_inflight(&message, area, fd, owner)?,
            Message::SetConfig(span) => self.set_config(span, owner)?,
            Message::SetVringNum(state) => {
                self.check_size(state.value)?;
                self.queue_mut(state.queue)?.size = u16::try_from(state.value).ok();
            }
            Message::SetVringBase(state) => {
                if state.value > 0xffff && !self.is_packed() {
                    return Err(Reason::RingBase(state.value).into());
                }
                self.queue_mut(state.queue)?.stand_at(state.value);
            }
            Message::SetVringAddr((index, addresses)) => {
                check_aligned(addresses, self.is_packed())?;
                self.queue_mut(*index)?.addresses = Some(*addresses);
            }
            Message::SetVringEnable(state) => {
                self.queue_mut(state.queue)?.enabled = Some(state.value == 1);
            }
            Message::SetVringKick(ring)
            | Message::SetVringCall(ring)
            | Message::SetVringErr(ring) => self.set_signal(&message, *ring, fd, owner)?,
        }
        self.changes += 1;
        Ok(None)
    }

    /// The one `GET` that changes something: the ring stops where it says.
    fn stop_ring(
        &mut self,
        message: &Message,
        state: &RingState,
    ) -> Result<Option<Reply<F>>, Reason> {
        let queue = self.queue_mut(state.queue)?;
        queue.stop();
        let state = RingState { queue: state.queue, value: queue.base };
        self.changes += 1;
        Ok(wire(message, &state))
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<(), Reason> {
        let unknown = features & !self.facts.class.protocol_features();
        if unknown != 0 {
            return Err(Reason::ProtocolFeatures(unknown));
        }
        self.protocol_features = features;
        Ok(())
    }

    /// The three messages about guest memory. A region without a descriptor changes nothing.
    fn change_memory<O: Owner<F>>(
        &mut self,
        message: &Message,
        mut fds: Vec<F>,
        owner: &mut O,
    ) -> Result<(), Refused<O::Error>> {
        let refused = |source| Refused::Owner { message: message.name(), source };
        match message {
            Message::SetMemTable(regions) => {
                memory_table::check(regions, TABLE_REGIONS_MAX)?;
                owner.set_memory(regions, fds).map_err(refused)?;
                self.regions.clone_from(regions);
            }
            Message::AddMemReg(region) => {
                memory_table::check_added(region, &self.regions)?;
                if let Some(fd) = fds.pop() {
                    owner.add_region(region, fd).map_err(refused)?;
                    self.regions.push(*region);
                }
            }
            Message::RemMemReg(region) => {
                let place = memory_table::find(region, &self.regions)?;
                owner.remove_region(region).map_err(refused)?;
                self.regions.swap_remove(place);
            }
            _ => {}
        }
        Ok(())
    }

    /// The other two bytes of the payload have no meaning, and nothing answers to a group's address.
    fn announce<O: Owner<F>>(
        &self,
        message: &Message,
        mac: &MacAddress,
        owner: &mut O,
    ) -> Result<(), Refused<O::Error>> {
        self.need(message, bits::RARP)?;
        let is_group = mac.bytes.first().is_none_or(|first| first & 1 != 0);
        if mac.rest != 0 || is_group || mac.bytes == [0; 6] {
            let high = mac.bytes.iter().fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
            let value = (high << 16) | u64::from(mac.rest);
            return Err(Reason::Value { message: message.name(), value }.into());
        }
        let refused = |source| Refused::Owner { message: message.name(), source };
        owner.announce(mac.bytes).map_err(refused)
    }

    fn set_mtu<O: Owner<F>>(
        &self,
        message: &Message,
        mtu: u64,
        owner: &mut O,
    ) -> Result<(), Refused<O::Error>> {
        self.need(message, bits::NET_MTU)?;
        let wrong = Reason::Value { message: message.name(), value: mtu };
        let mtu = u16::try_from(mtu).ok().filter(|mtu| *mtu >= MTU_MIN).ok_or(wrong)?;
        let refused = |source| Refused::Owner { message: message.name(), source };
        owner.set_mtu(mtu).map_err(refused)
    }

    fn set_log<O: Owner<F>>(
        &mut self,
        message: &Message,
        area: &LogArea,
        fd: Option<F>,
        owner: &mut O,
    ) -> Result<Option<Reply<F>>, Refused<O::Error>> {
        self.need(message, bits::LOG_SHMFD)?;
        if area.size == 0 || area.offset.checked_add(area.size).is_none() {
            return Err(Reason::Log { size: area.size, offset: area.offset }.into());
        }
        if let Some(fd) = fd {
            let refused = |source| Refused::Owner { message: message.name(), source };
            owner.set_log(*area, fd).map_err(refused)?;
            self.has_log = true;
        }
        self.changes += 1;
        // QEMU waits for a reply of any length, rust-vmm's front-end for its own words.
        Ok(wire(message, area))
    }

    fn set_channel<O: Owner<F>>(
        &mut self,
        message: &Message,
        fd: Option<F>,
        owner: &mut O,
    ) -> Result<(), Refused<O::Error>> {
        self.need(message, bits::BACKEND_REQ)?;
        if let Some(fd) = fd {
            let refused = |source| Refused::Owner { message: message.name(), source };
            owner.set_channel(fd).map_err(refused)?;
            self.has_channel = true;
        }
        Ok(())
    }

    fn set_inflight<O: Owner<F>>(
        &mut self,
        message: &Message,
        area: &InflightArea,
        fd: Option<F>,
        owner: &mut O,
    ) -> Result<(), Refused<O::Error>> {
        self.need(message, bits::INFLIGHT_SHMFD)?;
        let least = self.inflight_len(area)?;
        if area.size < least || area.offset.checked_add(area.size).is_none() {
            return Err(inflight(area).into());
        }
        if let Some(fd) = fd {
            let refused = |source| Refused::Owner { message: message.name(), source };
            owner.set_inflight(area, fd).map_err(refused)?;
        }
        Ok(())
    }

    fn set_features(&mut self, features: u64) -> Result<(), Reason> {
        let unknown = features & !(self.facts.features | bits::TRANSPORT | bits::RING_RESET);
        if unknown != 0 {
            return Err(Reason::Features(unknown));
        }
        self.features = Some(features & !bits::RING_RESET);
        Ok(())
    }

    fn set_signal<O: Owner<F>>(
        &mut self,
        message: &Message,
        ring: RingFd,
        fd: Option<F>,
        owner: &O,
    ) -> Result<(), Refused<O::Error>> {
        let queue = self.queue_mut(ring.queue)?;
        if let Some(fd) = &fd {
            let refused = |source| Refused::Owner { message: message.name(), source };
            owner.check_signal(fd).map_err(refused)?;
        }
        match message {
            Message::SetVringKick(_) => queue.kick = Some(fd.map_or(Kick::Poll, Kick::Fd)),
            Message::SetVringCall(_) => queue.call = fd,
            _ => queue.err = fd,
        }
        Ok(())
    }

    /// An empty payload says that there is no such part (vhost-user, `GET_CONFIG`).
    fn get_config(
        &self,
        message: &Message,
        span: &ConfigSpan,
        owner: &impl Owner<F>,
    ) -> Option<Reply<F>> {
        let mut bytes = vec![0; CONFIG_SIZE_MAX];
        bytes.truncate(span.size as usize);
        let fits = span.size != 0 && span.bytes.len() == span.size as usize;
        if fits && bytes.len() == span.bytes.len() && owner.read_config(span.offset, &mut bytes) {
            return wire(message, &ConfigSpan { bytes, ..span.clone() });
        }
        Some(Reply { bytes: frame::reply(message.id(), &[]), fd: None })
    }

    fn set_config(&mut self, span: &ConfigSpan, owner: &mut impl Owner<F>) -> Result<(), Reason> {
        let refused = Reason::Config { offset: span.offset, size: span.bytes.len() };
        let fits = span.bytes.len() == span.size as usize && span.size as usize <= CONFIG_SIZE_MAX;
        let end = (span.offset as usize).saturating_add(span.bytes.len());
        if !fits || span.flags > 1 || end > CONFIG_SIZE_MAX {
            return Err(refused);
        }
        match owner.write_config(self.features(), span.offset, &span.bytes) {
            true => Ok(()),
            false => Err(refused),
        }
    }

    /// A request that cannot be met is answered with a record of no bytes.
    fn get_inflight<O: Owner<F>>(
        &mut self,
        message: &Message,
        area: &InflightArea,
        owner: &mut O,
    ) -> Result<Option<Reply<F>>, Refused<O::Error>> {
        let none = InflightArea { size: 0, offset: 0, ..*area };
        if self.need(message, bits::INFLIGHT_SHMFD).is_err() {
            return Ok(wire(message, &none));
        }
        let Ok(size) = self.inflight_len(area) else { return Ok(wire(message, &none)) };
        let refused = |source| Refused::Owner { message: message.name(), source };
        let fd = owner.make_inflight(size).map_err(refused)?;
        let bytes = message::payload(&InflightArea { size, ..none });
        Ok(Some(Reply { bytes: frame::reply(message.id(), &bytes), fd: Some(fd) }))
    }

    /// Bytes of the record that `area` is about.
    fn inflight_len(&self, area: &InflightArea) -> Result<u64, Reason> {
        let sized = (1..=self.facts.ring_size_max).contains(&area.queue_size);
        if !sized || !(1..=self.facts.queues_max).contains(&area.queues) {
            return Err(inflight(area));
        }
        let DeviceClass::Disk { inflight_len } = self.facts.class else {
            return Err(inflight(area));
        };
        let one = inflight_len(area.queue_size, self.is_packed());
        Ok(one.saturating_mul(area.queues.into()))
    }

    fn check_size(&self, size: u32) -> Result<(), Reason> {
        let bounded = (1..=u32::from(self.facts.ring_size_max)).contains(&size);
        if bounded && (self.is_packed() || size.is_power_of_two()) {
            return Ok(());
        }
        Err(Reason::RingSize(size))
    }

    fn is_packed(&self) -> bool {
        self.features.unwrap_or(0) & bits::RING_PACKED != 0
    }

    fn need(&self, message: &Message, protocol_feature: u64) -> Result<(), Reason> {
        match self.has(protocol_feature) {
            true => Ok(()),
            false => Err(Reason::NotNegotiated { message: message.name() }),
        }
    }
}

/// VIRTIO 1.2, 2.7 (16, 2 and 4 bytes) and 2.8 (16, 4 and 4).
fn check_aligned(ring: &RingAddresses, packed: bool) -> Result<(), Reason> {
    let driver_align = if packed { 4 } else { 2 };
    let parts = [(ring.descriptors, 16), (ring.driver, driver_align), (ring.device, 4)];
    match parts.into_iter().find(|(address, align)| !address.is_multiple_of(*align)) {
        Some((address, _)) => Err(Reason::RingAddress(address)),
        None => Ok(()),
    }
}

fn inflight(area: &InflightArea) -> Reason {
    Reason::Inflight { size: area.size, queues: area.queues, queue_size: area.queue_size }
}
