//! How what a hostile guest has offered ends: in the used ring, on the error descriptor, or not at all.

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::clock::now_ns;

use super::{AVAIL, End, Guest, Ring, USED, WAIT_MS, drain};

impl Guest {
    /// The next one that came back, if there is one.
    pub fn take_used(&mut self) -> Option<(u32, u32)> {
        let size = self.layout.size;
        let Ring { device, descriptors, used, used_lap, .. } = self.rings[self.at];
        if !self.layout.is_packed() {
            if self.get_u16(device + 2) == used {
                return None;
            }
            let at = self.offset(device + 4 + 8 * u64::from(used % size));
            self.rings[self.at].used = used.wrapping_add(1);
            return Some((self.memory.load_u32(at), self.memory.load_u32(at + 4)));
        }
        let at = descriptors + 16 * u64::from(used);
        let flags = self.get_u16(at + 14);
        if (flags & AVAIL != 0) != used_lap || (flags & USED != 0) != used_lap {
            return None;
        }
        let (len, id) = (self.memory.load_u32(self.offset(at + 8)), self.get_u16(at + 12));
        let ring = &mut self.rings[self.at];
        let next = used + ring.entries.remove(&id).unwrap_or(1);
        (ring.used, ring.used_lap) = (next % size, used_lap ^ (next >= size));
        Some((id.into(), len))
    }

    /// Waits until something came back or the ring was declared broken.
    ///
    /// # Errors
    /// Neither within a minute.
    pub fn end(&mut self) -> Result<End> {
        let start = now_ns();
        loop {
            if let Some((id, len)) = self.take_used() {
                return Ok(End::Used(id, len));
            }
            let ring = &self.rings[self.at];
            if drain(&ring.err)? {
                return Ok(End::Broken);
            }
            drain(&ring.call)?;
            if self.has_used() {
                continue;
            }
            let waited_ms = (now_ns() - start) / 1_000_000;
            ensure!(waited_ms < WAIT_MS, "nothing came back and nothing broke in a minute");
            let ring = &self.rings[self.at];
            let mut fds =
                [PollFd::new(&ring.call, PollFlags::IN), PollFd::new(&ring.err, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }))?;
        }
    }

    /// Sleeps until a call came since the last one was taken, or until `within_ms` are over.
    ///
    /// # Errors
    /// The system's.
    pub fn await_call(&self, within_ms: u32) -> Result<()> {
        let call = &self.rings[self.at].call;
        drain(call)?;
        if self.has_used() {
            return Ok(());
        }
        let within = Timespec { tv_sec: 0, tv_nsec: i64::from(within_ms) * 1_000_000 };
        poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&within))?;
        Ok(())
    }

    fn has_used(&self) -> bool {
        let ring = &self.rings[self.at];
        if !self.layout.is_packed() {
            return self.get_u16(ring.device + 2) != ring.used;
        }
        let flags = self.get_u16(ring.descriptors + 16 * u64::from(ring.used) + 14);
        (flags & AVAIL != 0) == ring.used_lap && (flags & USED != 0) == ring.used_lap
    }

    /// Waits for the error descriptor and touches no memory: it may be gone. False when the
    /// connection was closed instead.
    ///
    /// # Errors
    /// Neither within `within_ms`.
    pub fn breaks_unseen(&self, within_ms: u32) -> Result<bool> {
        let err = &self.rings[self.at].err;
        let mut fds = [
            PollFd::new(err, PollFlags::IN),
            PollFd::new(self.raw.stream(), PollFlags::HUP | PollFlags::RDHUP),
        ];
        let seconds = i64::from(within_ms / 1000);
        let nanos = i64::from(within_ms % 1000) * 1_000_000;
        let ready = poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: nanos }))?;
        ensure!(ready > 0, "neither broken nor closed within {within_ms} ms");
        drain(err)
    }

    /// Whether the error descriptor was signalled since it was last asked.
    ///
    /// # Errors
    /// The system's.
    pub fn was_broken(&self) -> Result<bool> {
        drain(&self.rings[self.at].err)
    }
}
