//! For measuring: one frame that is sent over and over, and arrivals that are counted.
//!
//! Descriptors are written once, where the ring allows; payloads are neither written nor read again,
//! as with a driver that forwards. Nothing is allocated after [`Stream::new`].

use anyhow::{Result, ensure};
use frame::Header;
use virtqueue::driver::Prepared;

use super::pair::{Pair, check, publish};

/// Frames or buffers that are taken before what follows them is published: as DPDK's burst.
const BURST: usize = 32;

/// What has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sunk {
    /// Whole frames.
    pub frames: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
}

/// A pair whose slots all hold the same frame. The pair's own sending is closed meanwhile.
#[derive(Debug)]
pub struct Stream {
    frames: Vec<Prepared>,
    /// Places of `frames` that are not in flight.
    free: Vec<u16>,
    /// Buffers of the frame that is arriving that are still to come.
    to_come: u16,
    sunk: Sunk,
}

impl Stream {
    /// Fills every slot of `pair` with the frame. An empty frame only receives.
    ///
    /// # Errors
    /// Frames are in flight, or the ring or a slot is too small.
    pub fn new(pair: &mut Pair, header: &Header, frame: &[u8]) -> Result<Stream> {
        pair.reap()?;
        ensure!(pair.unused() == 0, "frames are in flight");
        let mut frames = Vec::new();
        for slot in 0..pair.slots.count {
            if frame.is_empty() {
                break;
            }
            pair.write_frame(slot, header, frame)?;
            let piece = pair.whole(slot, frame.len());
            frames.push(pair.transmit.driver.prepare(&[piece])?);
        }
        pair.receive.driver.disarm_calls();
        pair.transmit.driver.disarm_calls();
        let free = (0..frames.len() as u16).collect();
        Ok(Stream { frames, free, to_come: 0, sunk: Sunk::default() })
    }

    /// Takes back what the device has used and sends at most a burst. Gives how many frames it sent.
    ///
    /// # Errors
    /// The device broke the rules of the ring, or a kick failed.
    #[inline]
    pub fn pump(&mut self, pair: &mut Pair) -> Result<usize> {
        let driver = &mut pair.transmit.driver;
        for _ in 0..BURST {
            let Some(used) = driver.take_used() else { break };
            self.free.push(used.token as u16);
        }
        let mut sent = 0;
        while sent < BURST {
            let Some(place) = self.free.pop() else { break };
            if driver.add_prepared(self.frames[usize::from(place)], place.into()).is_err() {
                self.free.push(place);
                break;
            }
            sent += 1;
        }
        if sent > 0 {
            publish(&mut pair.transmit)?;
        } else {
            check(&pair.transmit.driver)?;
        }
        Ok(sent)
    }

    /// Takes at most a burst of receive buffers and posts them again. Gives how many it took.
    ///
    /// # Errors
    /// The device broke the rules of the ring or of `num_buffers`, or a kick failed.
    #[inline]
    pub fn sink(&mut self, pair: &mut Pair) -> Result<usize> {
        let header_size = pair.header_size();
        let mut taken = 0;
        while taken < BURST {
            let Some(used) = pair.receive.driver.take_used() else { break };
            let index = used.token as u16;
            let mut bytes = used.len as usize;
            if self.to_come == 0 {
                ensure!(bytes >= header_size, "a frame of {bytes} bytes");
                bytes -= header_size;
                self.sunk.frames += 1;
                self.to_come = match header_size {
                    frame::HEADER_SIZE => pair.receive_buffers.load_u16(index, 10),
                    _ => 1,
                };
                ensure!(self.to_come > 0, "num_buffers is 0");
            }
            self.to_come -= 1;
            self.sunk.bytes += bytes as u64;
            pair.receive.driver.add_prepared(pair.posted[usize::from(index)], used.token)?;
            taken += 1;
        }
        if taken > 0 {
            publish(&mut pair.receive)?;
        } else {
            check(&pair.receive.driver)?;
        }
        Ok(taken)
    }

    /// What has arrived since the stream was made.
    pub fn sunk(&self) -> Sunk {
        self.sunk
    }

    /// Gives the descriptors back; what is in flight is waited for.
    ///
    /// # Errors
    /// As [`Pair::drain`].
    pub fn end(self, pair: &mut Pair) -> Result<()> {
        let in_flight = self.frames.len() - self.free.len();
        if in_flight > 0 {
            pair.drain(10_000)?;
        }
        for prepared in self.frames {
            pair.transmit.driver.forget(prepared);
        }
        pair.free_slots = (0..pair.slots.count).rev().collect();
        Ok(())
    }
}
