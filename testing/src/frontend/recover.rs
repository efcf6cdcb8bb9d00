//! A back-end has died and another one takes its place: memory, rings and in-flight record stay.
//!
//! Says what QEMU says when its back-end comes again. What was in flight stays in flight; the
//! driver's side sees no difference.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use guest_memory::{Area, Health, Mapping, Seal};
use virtqueue::Format;
use virtqueue::driver::first_base;
use virtqueue::inflight::queue_region_len;

use super::{FrontQueue, Frontend, negotiate};
use crate::frontend::session::Session;

/// A connection that is only kept.
struct KeptOpen(Option<Session>);

impl Drop for KeptOpen {
    fn drop(&mut self) {
        self.0 = None;
    }
}

impl Frontend {
    /// Brings the back-end at the other end of `stream` to where the last one was. May be called
    /// again when that one has died in the middle of it.
    ///
    /// # Errors
    /// The session's, or the back-end does not offer what the guest has accepted.
    pub fn reconnect(&mut self, stream: UnixStream) -> Result<()> {
        let queues = std::mem::take(&mut self.queues);
        let told = self.reconnect_with(stream, &queues.iter().collect::<Vec<_>>(), None);
        self.queues = queues;
        told
    }

    /// Moves the guest to the back-end at the other end of `stream`, as a live migration does: every queue
    /// is stopped here and goes on there, where it was told to have stopped, with a fresh in-flight
    /// record. Gives the old connection, which is still open.
    ///
    /// # Errors
    /// The sessions', or the back-end does not offer what the guest has accepted.
    pub fn migrate(&mut self, stream: UnixStream) -> Result<impl Drop + use<>> {
        let bases = self.stop_all()?;
        self.inflight = None;
        let queues = std::mem::take(&mut self.queues);
        let new = Session::over(stream)?;
        let old = std::mem::replace(&mut self.session, new);
        let told =
            self.take_over(&queues.iter().collect::<Vec<_>>(), |index| bases.get(index).copied());
        self.queues = queues;
        told.map(|()| KeptOpen(Some(old)))
    }

    /// Stops every queue and starts it again where it was, as a VMM does whose migration failed.
    ///
    /// # Errors
    /// The session's.
    pub fn stop_and_go_on(&mut self) -> Result<()> {
        let bases = self.stop_all()?;
        self.go_on(&bases)
    }

    /// Starts every queue again that [`Self::stop_all`] has stopped.
    ///
    /// # Errors
    /// The session's.
    pub fn go_on(&mut self, bases: &[u32]) -> Result<()> {
        let queues = std::mem::take(&mut self.queues);
        let size = self.spec.ring.size;
        let told = (0..)
            .zip(&queues)
            .zip(bases)
            .try_for_each(|((index, queue), base)| self.tell_queue(index, size, *base, queue));
        self.queues = queues;
        told?;
        self.session.settle()
    }

    /// Stops every queue, as QEMU does: all are disabled first. Gives where each stands.
    ///
    /// # Errors
    /// The session's.
    pub fn stop_all(&mut self) -> Result<Vec<u32>> {
        for index in 0..self.spec.queues {
            self.session.set_vring_enable(index, false)?;
        }
        (0..self.spec.queues).map(|index| self.session.get_vring_base(index)).collect()
    }

    /// As [`Self::reconnect`], with these queues, and all of them told to go on at `base` if there is
    /// one.
    pub(crate) fn reconnect_with(
        &mut self,
        stream: UnixStream,
        queues: &[&FrontQueue],
        base: Option<u32>,
    ) -> Result<()> {
        self.session = Session::over(stream)?;
        self.take_over(queues, |_| base)
    }

    /// Says everything of the guest on a connection that is new; `base` knows where a queue stands, or not.
    fn take_over(
        &mut self,
        queues: &[&FrontQueue],
        base: impl Fn(usize) -> Option<u32>,
    ) -> Result<()> {
        let (_, features) = negotiate(&mut self.session, &self.spec)?;
        ensure!(features == self.features, "features {features:#x}, not {:#x}", self.features);
        self.share_memory()?;
        match &self.inflight {
            Some((fd, said)) => self.session.set_inflight(said, fd.as_fd())?,
            None if self.spec.inflight => self.share_inflight()?,
            None => {}
        }
        let ring = self.spec.ring;
        (0..).zip(queues).try_for_each(|(index, queue)| {
            // Who has lost its back-end knows the used index of a split ring, and of a packed one where it
            // was started, as QEMU does: beyond that the record knows, which is fresh if the lost back-end
            // never came to serve it.
            let at = usize::from(index);
            let base = match (base(at), ring.format) {
                (Some(base), _) => base,
                (None, Format::Split) => self.used_index(queue.places.device)?,
                (None, Format::Packed) => {
                    self.bases.get(at).copied().unwrap_or_else(|| first_base(ring.format))
                }
            };
            self.tell_queue(index, ring.size, base, queue)
        })?;
        self.session.settle()
    }

    /// Chains that the in-flight record names now. Zero without a record.
    ///
    /// # Errors
    /// The record cannot be mapped.
    pub fn recorded(&self) -> Result<u64> {
        let Some((fd, _)) = &self.inflight else { return Ok(0) };
        let ring = self.spec.ring;
        let of_one = queue_region_len(ring.format, ring.size);
        let len = of_one * u64::from(self.spec.queues);
        let area = Area::whole(Mapping::shared(fd, 0, len, Seal::Any, &Health::default())?);
        // Header and state of one descriptor, bytes (vhost-user, "Inflight I/O tracking").
        let (header, state) = match ring.format {
            Format::Split => (16, 16),
            Format::Packed => (32, 32),
        };
        let marks = (0..u64::from(self.spec.queues)).flat_map(|queue| {
            (0..u64::from(ring.size)).map(move |entry| queue * of_one + header + entry * state)
        });
        Ok(marks.filter(|at| area.load_u8(*at as usize) == 1).count() as u64)
    }

    fn used_index(&self, used_ring: u64) -> Result<u32> {
        let area = self.map.area_at_user(used_ring, 4).context("a ring outside of memory")?;
        Ok(u32::from(area.load_acquire_u16(2)))
    }
}
