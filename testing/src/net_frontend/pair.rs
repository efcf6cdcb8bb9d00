//! One pair of queues: receive buffers that are posted again, frames that are sent from slots.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use frame::{HEADER_SIZE, HEADER_SIZE_LEGACY, Header};
use guest_memory::{Area, GuestMap};
use virtqueue::QueueSpec;
use virtqueue::driver::{AddError, Arena, Buffer, Driver, Prepared, Used, first_base};

use super::{NicSpec, feature};
use crate::clock::now_ns;
use crate::frontend::FrontQueue;

/// Buffers of one frame at most: more than the longest frame needs in the smallest ones that make
/// sense.
const MERGED_MAX: u16 = 1024;

/// Bytes of memory for a buffer of `bytes`: buffers share no cache line.
pub(super) fn room(bytes: u32) -> u32 {
    bytes.next_multiple_of(64)
}

/// A frame as it arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The header in front of it; `buffers` is 1 where the driver has no MRG_RXBUF.
    pub header: Header,
    /// The frame, without header.
    pub bytes: Vec<u8>,
    /// Buffers that it lay in.
    pub buffers: u16,
}

/// A number of buffers of the same size, one behind the other in guest memory.
#[derive(Debug)]
pub(super) struct Buffers {
    area: Area,
    gpa: u64,
    /// Bytes of each, and from one to the next.
    pub(super) len: u32,
    stride: u32,
    pub(super) count: u16,
}

impl Buffers {
    fn new(arena: &mut Arena, count: u16, len: u32) -> Result<Buffers> {
        let stride = room(len);
        let all = usize::from(count) * stride as usize;
        let taken = arena.take(all, 4096).context("guest memory is too small for these frames")?;
        let (area, gpa) = taken;
        // Touched once, so that no page fault falls into a measurement.
        area.zero(0, area.len());
        Ok(Buffers { area, gpa, len, stride, count })
    }

    fn at(&self, index: u16) -> usize {
        usize::from(index) * self.stride as usize
    }

    /// Guest address of a buffer.
    pub(super) fn gpa(&self, index: u16) -> u64 {
        self.gpa + self.at(index) as u64
    }

    #[inline]
    pub(super) fn load_u16(&self, index: u16, at: usize) -> u16 {
        self.area.load_u16(self.at(index) + at)
    }

    pub(super) fn read(&self, index: u16, at: usize, into: &mut [u8]) -> Result<()> {
        ensure!(at + into.len() <= self.len as usize, "{} bytes from {at} of a buffer", into.len());
        ensure!(self.area.read(self.at(index) + at, into), "no such buffer");
        Ok(())
    }

    fn write(&self, index: u16, at: usize, bytes: &[u8]) -> Result<()> {
        ensure!(at + bytes.len() <= self.len as usize, "a frame is longer than `send_bytes`");
        ensure!(self.area.write(self.at(index) + at, bytes), "no such buffer");
        Ok(())
    }

    /// A buffer cut in pieces of these lengths, and the rest of `len` bytes as the last one.
    fn pieces(&self, index: u16, len: u32, cuts: &[u32], device_writes: bool) -> Vec<Buffer> {
        let (mut gpa, mut left) = (self.gpa(index), len);
        let mut pieces = Vec::new();
        for cut in cuts.iter().copied().chain([len]) {
            let len = cut.min(left);
            if len > 0 {
                pieces.push(Buffer { gpa, len, device_writes });
            }
            (gpa, left) = (gpa + u64::from(len), left - len);
        }
        pieces
    }
}

/// Receive queue and transmit queue of one pair, with the memory of its frames.
#[derive(Debug)]
pub struct Pair {
    /// The receive queue; all its buffers are posted whenever nothing is being received.
    pub receive: FrontQueue,
    /// The transmit queue. A test that is not honest adds to its driver what it likes, with any token
    /// from 2^32 on.
    pub transmit: FrontQueue,
    pub(super) receive_buffers: Buffers,
    pub(super) posted: Vec<Prepared>,
    pub(super) slots: Buffers,
    pub(super) free_slots: Vec<u16>,
    header_size: usize,
    merges: bool,
}

impl Pair {
    pub(super) fn new(
        arena: &mut Arena,
        [receive, transmit]: [FrontQueue; 2],
        spec: &NicSpec,
        features: u64,
    ) -> Result<Pair> {
        let receive_buffers = Buffers::new(arena, spec.receive_buffers(), spec.receive_bytes())?;
        let slots = Buffers::new(arena, spec.send_slots, spec.slot_bytes())?;
        let merges = features & feature::MRG_RXBUF != 0;
        let header_size = if merges || !spec.legacy { HEADER_SIZE } else { HEADER_SIZE_LEGACY };
        let mut pair = Pair {
            receive,
            transmit,
            free_slots: (0..slots.count).rev().collect(),
            receive_buffers,
            posted: Vec::new(),
            slots,
            header_size,
            merges,
        };
        pair.post(&spec.receive_pieces)?;
        Ok(pair)
    }

    /// A pair without a socket, in memory of its own: for whoever is the device's side himself. Gives
    /// also the memory, whose front-end addresses are its guest addresses, and what the two queues of
    /// the device's side are made of, receive first.
    ///
    /// # Errors
    /// The system's; pieces that the rings cannot describe.
    pub fn alone(spec: &NicSpec) -> Result<(Pair, Arc<GuestMap>, [QueueSpec; 2])> {
        let map = Arc::new(GuestMap::anonymous(spec.memory_bytes())?);
        let area = map.area_at_user(0, spec.memory_bytes()).context("guest memory")?;
        let mut arena = Arena::new(area, 0);
        let [receive, transmit] = [(); 2].map(|()| FrontQueue::alone(&mut arena, spec.ring));
        let queues = [receive?, transmit?];
        let [receive, transmit] = queues
            .each_ref()
            .map(|queue| spec.ring.queue_spec(&map, queue.places(), first_base(spec.ring.format)));
        let sides = receive.zip(transmit).context("a ring outside of memory")?;
        let pair = Pair::new(&mut arena, queues, spec, spec.features)?;
        Ok((pair, map, sides.into()))
    }

    fn post(&mut self, pieces: &[u32]) -> Result<()> {
        let buffers = &self.receive_buffers;
        let cuts = pieces.split_last().map_or(&[][..], |(_, others)| others);
        for index in 0..buffers.count {
            let pieces = buffers.pieces(index, buffers.len, cuts, true);
            let driver = &mut self.receive.driver;
            let prepared = driver.prepare(&pieces).context("describing a receive buffer")?;
            driver.add_prepared(prepared, index.into())?;
            self.posted.push(prepared);
        }
        publish(&mut self.receive)
    }

    /// Bytes of the header in front of each frame: 12, or 10.
    pub fn header_size(&self) -> usize {
        self.header_size
    }

    /// The next frame that has arrived. Its buffers are posted again at once.
    ///
    /// # Errors
    /// The device broke a rule: of the ring, of `num_buffers`, of the lengths, or it showed a frame
    /// in part.
    pub fn receive(&mut self) -> Result<Option<Received>> {
        let mut frame = Received::default();
        Ok(self.receive_into(&mut frame)?.then_some(frame))
    }

    /// As [`Pair::receive`], in memory that is used again. False: nothing has arrived.
    ///
    /// # Errors
    /// As [`Pair::receive`].
    pub fn receive_into(&mut self, frame: &mut Received) -> Result<bool> {
        frame.bytes.clear();
        let Some(first) = self.take_received()? else { return Ok(false) };
        let mut header = [0; HEADER_SIZE];
        ensure!(first.len as usize >= self.header_size, "a frame of {} bytes", first.len);
        self.receive_buffers.read(buffer_of(first)?, 0, &mut header[..self.header_size])?;
        let [first_bytes @ .., low, high] = header;
        frame.header = Header::decode(&first_bytes);
        frame.header.buffers = match self.header_size {
            HEADER_SIZE => u16::from_le_bytes([low, high]),
            _ => 1,
        };
        frame.buffers = frame.header.buffers;
        ensure!(
            frame.buffers == 1 || self.merges && (1..=MERGED_MAX).contains(&frame.buffers),
            "num_buffers is {} (merging: {})",
            frame.buffers,
            self.merges
        );
        self.append(frame, first, self.header_size)?;
        let mut last = first;
        for place in 1..frame.buffers {
            // All but the last must be full (5.1.6.4).
            ensure!(last.len == self.receive_buffers.len, "buffer {place} is not full");
            let next = self.take_received()?;
            last = next.with_context(|| {
                format!("a frame of {} buffers was shown with {place}", frame.buffers)
            })?;
            self.append(frame, last, 0)?;
        }
        publish(&mut self.receive)?;
        Ok(true)
    }

    /// Waits for a frame, at most `timeout_ms`, looking all the time.
    ///
    /// # Errors
    /// As [`Pair::receive`].
    pub fn receive_within(&mut self, timeout_ms: u64) -> Result<Option<Received>> {
        let until = now_ns() + timeout_ms * 1_000_000;
        loop {
            if let Some(frame) = self.receive()? {
                return Ok(Some(frame));
            }
            if now_ns() > until {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }

    fn take_received(&mut self) -> Result<Option<Used>> {
        let used = self.receive.driver.take_used();
        if used.is_none() {
            check(&self.receive.driver)?;
        }
        Ok(used)
    }

    /// Copies what is in a buffer behind its first `skip` bytes, and posts it again; not published.
    fn append(&mut self, frame: &mut Received, used: Used, skip: usize) -> Result<()> {
        let index = buffer_of(used)?;
        ensure!(used.len <= self.receive_buffers.len, "{} bytes in a buffer", used.len);
        let (at, len) = (frame.bytes.len(), (used.len as usize).saturating_sub(skip));
        frame.bytes.resize(at + len, 0);
        self.receive_buffers.read(index, skip, &mut frame.bytes[at..])?;
        self.receive.driver.add_prepared(self.posted[usize::from(index)], used.token)?;
        Ok(())
    }

    /// Sends a frame: header and bytes, in descriptors of `cuts` bytes each and one more for what is
    /// left. No cuts: one descriptor. Shown to the device, and kicked when it wants that. False, and
    /// nothing sent, when no slot or descriptor is free.
    ///
    /// # Errors
    /// The frame is longer than `send_bytes`, has more pieces than the ring describes, or the device
    /// broke the rules of the ring.
    pub fn send(&mut self, header: &Header, frame: &[u8], cuts: &[u32]) -> Result<bool> {
        let sent = self.add(header, frame, cuts)?;
        publish(&mut self.transmit)?;
        Ok(sent)
    }

    /// As [`Pair::send`], not shown before the next `send` or [`Pair::flush`].
    ///
    /// # Errors
    /// As [`Pair::send`].
    pub fn add(&mut self, header: &Header, frame: &[u8], cuts: &[u32]) -> Result<bool> {
        self.reap()?;
        let Some(slot) = self.free_slots.pop() else { return Ok(false) };
        self.write_frame(slot, header, frame)?;
        let len = (self.header_size + frame.len()) as u32;
        let pieces = self.slots.pieces(slot, len, cuts, false);
        match self.transmit.driver.add(&pieces, slot.into()) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.free_slots.push(slot);
                match error {
                    AddError::Full => Ok(false),
                    other => Err(other).context("describing a frame"),
                }
            }
        }
    }

    /// Shows what was added.
    ///
    /// # Errors
    /// A kick failed.
    pub fn flush(&mut self) -> Result<()> {
        publish(&mut self.transmit)
    }

    /// Takes back the slots of frames that the device has used. Gives how many frames.
    ///
    /// # Errors
    /// The device broke the rules of the ring, or said that it wrote into a frame.
    pub fn reap(&mut self) -> Result<usize> {
        let mut reaped = 0;
        while let Some(used) = self.transmit.driver.take_used() {
            ensure!(used.len == 0, "the device wrote {} bytes into a frame", used.len);
            // What is no slot's, a test has added that is not honest.
            self.free_slots.extend(u16::try_from(used.token));
            reaped += 1;
        }
        check(&self.transmit.driver)?;
        Ok(reaped)
    }

    /// Frames that were sent and that the device has not used, as of the last [`Pair::reap`].
    pub fn unused(&self) -> u16 {
        self.transmit.driver.in_flight()
    }

    /// Waits until the device has used every frame that was sent.
    ///
    /// # Errors
    /// It did not within `timeout_ms`, or as [`Pair::reap`].
    pub fn drain(&mut self, timeout_ms: u64) -> Result<()> {
        let until = now_ns() + timeout_ms * 1_000_000;
        loop {
            self.reap()?;
            if self.unused() == 0 {
                return Ok(());
            }
            if now_ns() > until {
                bail!("{} frames were not sent within {timeout_ms} ms", self.unused());
            }
            std::thread::yield_now();
        }
    }

    /// Writes header and frame in a slot.
    pub(super) fn write_frame(&mut self, slot: u16, header: &Header, frame: &[u8]) -> Result<()> {
        let encoded = header.encode();
        self.slots.write(slot, 0, &encoded[..self.header_size])?;
        self.slots.write(slot, self.header_size, frame)
    }

    /// The one piece of a slot with a frame of `len` bytes.
    pub(super) fn whole(&self, slot: u16, len: usize) -> Buffer {
        let len = (self.header_size + len) as u32;
        Buffer { gpa: self.slots.gpa(slot), len, device_writes: false }
    }
}

fn buffer_of(used: Used) -> Result<u16> {
    u16::try_from(used.token).context("a token that is no buffer's")
}

/// Shows what was added, and kicks when the device wants that.
pub(super) fn publish(queue: &mut FrontQueue) -> Result<()> {
    if queue.driver.publish() {
        queue.kick()?;
    }
    Ok(())
}

/// Whether the device kept the rules of the ring.
pub(super) fn check(driver: &Driver) -> Result<()> {
    match driver.fault() {
        Some(fault) => bail!("the device broke the rules of the ring: {fault}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
