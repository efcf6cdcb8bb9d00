//! An honest guest with a NIC: queue 0 takes frames, queue 1 sends them. Both as `guest` does it: looked at
//! when called, kicked when asked for.

use virtqueue::driver::Buffer;

use crate::guest::{Awaited, Guest};
use crate::lan::Lan;
use crate::layout::{CANARY, ROOM, SLOTS};

/// Bytes of the virtio-net header.
pub(crate) const HEADER: usize = 12;
/// Where the count of merged buffers is in it.
const BUFFERS_AT: usize = 10;
pub(crate) const RECEIVE: usize = 0;
pub(crate) const TRANSMIT: usize = 1;

impl Guest {
    /// The oldest frame that it sent and does not know the end of.
    pub(crate) fn oldest_frame(&self) -> Option<u64> {
        let slots = self.queues.get(TRANSMIT)?.slots.iter().flatten();
        slots
            .filter_map(|awaited| match awaited {
                Awaited::Frame(number) => Some(*number),
                _ => None,
            })
            .min()
    }

    /// Takes what came, gives buffers back, and sends a little. True when it did something.
    ///
    /// # Errors
    /// What the device did wrong.
    pub(crate) fn act_on_lan(&mut self, now_ns: u64, lan: &mut Lan) -> Result<bool, String> {
        let mut acted = false;
        for index in [RECEIVE, TRANSMIT] {
            let is_called = crate::signal::take(&self.queues[index].call) > 0;
            if is_called || !self.quiet && self.random.one_in(16) {
                loop {
                    acted |= self.take_frames(index, now_ns, lan)?;
                    if !self.arm_calls(index) {
                        break;
                    }
                }
            }
        }
        let mut added = self.post();
        self.show(RECEIVE, added, now_ns);
        acted |= added > 0;
        if !self.quiet {
            added = (0..self.random.below(4)).filter(|_| self.send_frame(now_ns, lan)).count();
            self.show(TRANSMIT, added, now_ns);
            acted |= added > 0;
        }
        Ok(acted)
    }

    fn show(&mut self, index: usize, added: usize, now_ns: u64) {
        if added > 0 && self.publish(index) {
            crate::signal::raise(&self.queues[index].kick);
            self.trace.note(now_ns, "kick", [self.spec.number, index as u64, 0]);
        }
    }

    fn take_frames(&mut self, index: usize, now_ns: u64, lan: &mut Lan) -> Result<bool, String> {
        let number = self.spec.number;
        let wrong = |what: String| format!("station {number} queue {index}: {what}");
        let (mut some, mut frame, mut left) = (false, Vec::new(), 0);
        while let Some(used) = self.queues[index].driver.take_used() {
            some = true;
            self.ended += 1;
            let at = (used.token % SLOTS as u64) as usize;
            let Some(awaited) = self.queues[index].slots[at].take() else {
                return Err(wrong(format!("{} completed, and not in flight", used.token)));
            };
            let Awaited::Buffer { len } = awaited else {
                continue;
            };
            let bytes = self.buffer(at, len, used.len as usize).map_err(&wrong)?;
            if left == 0 {
                left = match self.merges() {
                    true => u16::from_le_bytes([bytes[BUFFERS_AT], bytes[BUFFERS_AT + 1]]),
                    false => 1,
                };
                frame = bytes[HEADER..].to_vec();
            } else {
                frame.extend(bytes);
            }
            left = left.saturating_sub(1);
            if left == 0 {
                self.trace.note(now_ns, "frame", [number, frame.len() as u64, used.token]);
                lan.arrived(number, &frame)?;
            }
        }
        if let Some(fault) = self.queues[index].driver.fault() {
            return Err(wrong(fault.to_string()));
        }
        match left {
            0 => Ok(some),
            _ => Err(wrong(format!("{left} buffers of a frame were not shown with the first"))),
        }
    }

    /// What was put into a buffer of `len` bytes; nothing else of it may have changed.
    fn buffer(&mut self, at: usize, len: usize, used: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; ROOM];
        let into = &self.queues[RECEIVE].layout.into;
        let _ = into.area.read(at * ROOM, &mut bytes);
        if used > len || used < HEADER {
            return Err(format!("{used} bytes in a buffer of {len}"));
        }
        if let Some(place) = bytes[used..].iter().position(|byte| *byte != CANARY) {
            return Err(format!("byte {} behind {used} of a frame was written", used + place));
        }
        let _ = into.area.write(at * ROOM, &vec![CANARY; used]);
        let gpa = into.gpa + (at * ROOM) as u64;
        self.mark(gpa, ROOM as u64);
        bytes.truncate(used);
        Ok(bytes)
    }

    fn merges(&self) -> bool {
        self.spec.features & device::features::NET_MRG_RXBUF != 0
    }

    /// Buffers at every free place.
    fn post(&mut self) -> usize {
        let most = if self.merges() { 1024 } else { 4400 };
        let mut posted = 0;
        for at in 0..SLOTS {
            let queue = &mut self.queues[RECEIVE];
            if queue.slots[at].is_some() || queue.driver.free_descriptors() < 2 {
                continue;
            }
            let gpa = queue.layout.into.gpa + (at * ROOM) as u64;
            let cut = if self.random.one_in(4) { HEADER as u32 } else { most as u32 };
            let mut buffers = vec![Buffer { gpa, len: cut, device_writes: true }];
            if (cut as usize) < most {
                let (gpa, len) = (gpa + u64::from(cut), most as u32 - cut);
                buffers.push(Buffer { gpa, len, device_writes: true });
            }
            posted += usize::from(self.add(RECEIVE, at, &buffers, Awaited::Buffer { len: most }));
        }
        posted
    }

    fn send_frame(&mut self, now_ns: u64, lan: &mut Lan) -> bool {
        let queue = &mut self.queues[TRANSMIT];
        let Some(at) = queue.slots.iter().position(Option::is_none) else { return false };
        if queue.driver.free_descriptors() < 3 {
            return false;
        }
        let (number, frame) = lan.compose(self.spec.number, now_ns, &mut self.random);
        let bytes = [&[0; HEADER][..], &frame].concat();
        let out = &queue.layout.out;
        let _ = out.area.write(at * ROOM, &bytes);
        let gpa = out.gpa + (at * ROOM) as u64;
        let cut = self.random.of(&[HEADER, HEADER, 20, 40, bytes.len()]);
        let mut buffers = vec![Buffer { gpa, len: cut as u32, device_writes: false }];
        if cut < bytes.len() {
            let (gpa, len) = (gpa + cut as u64, (bytes.len() - cut) as u32);
            buffers.push(Buffer { gpa, len, device_writes: false });
        }
        self.mark(gpa, ROOM as u64);
        self.trace.note(now_ns, "send", [self.spec.number, number, frame.len() as u64]);
        self.add(TRANSMIT, at, &buffers, Awaited::Frame(number))
    }

    fn add(&mut self, index: usize, at: usize, buffers: &[Buffer], awaited: Awaited) -> bool {
        let queue = &mut self.queues[index];
        queue.sent += 1;
        let added = queue.driver.add(buffers, queue.sent * SLOTS as u64 + at as u64).is_ok();
        queue.slots[at] = added.then_some(awaited);
        let tables = (queue.layout.tables.gpa, queue.layout.tables.area.len() as u64);
        self.mark(tables.0, tables.1);
        added
    }
}
