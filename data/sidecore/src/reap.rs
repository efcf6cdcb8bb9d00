//! Completions of back-ends, each by its tag: the request goes on, or ends.
//!
//! Not how it ends (`finish`), nor who calls the guest and when (`publish`). Called by `sidecore`.

use backend::{Io, Outcome};
use request::Tag;
use schedule::Nanos;

use crate::finish::mark_read;
use crate::places::disk_at;
use crate::served::{DiskRole, Ring};
use crate::sidecore::Sidecore;

/// Completions reaped in one pass.
const REAPED_PER_PASS: usize = 256;

impl DiskRole {
    /// One completion of the kernel with its result. A stale tag does nothing. True when the
    /// request ended; otherwise the back-end went on with it.
    pub(crate) fn reap(
        &mut self,
        ring: &mut Ring,
        io: &mut Io,
        tag: Tag,
        result: i32,
        now: Nanos,
    ) -> bool {
        let Some((request, owed)) = self.slots.find(tag) else { return false };
        let progress = &mut owed.progress;
        let outcome = self.backend.completed(io, &request, &ring.memory, tag, result, progress);
        let status = match outcome {
            Outcome::Done(status) => status,
            Outcome::Pending => return false,
            Outcome::Passed(status) => {
                match self.backend.settle(io, &request, tag, status, now.0) {
                    Outcome::Done(status) => status,
                    _ => return false,
                }
            }
            Outcome::Turn => {
                self.large.line_up(tag);
                return false;
            }
            Outcome::Stalled(stall) => {
                mark_read(ring, &request);
                self.stall(ring, io, tag.slot, stall, now);
                return false;
            }
        };
        match self.end(ring, tag, status, now) {
            // The kernel had it at once: how long it took is known at the next pass.
            0 => _ = self.answered.add(1, now),
            took => ring.counters.latency.add(took, 1),
        }
        true
    }
}

impl Sidecore {
    /// The step after all visits: what was queued goes to the kernel, and what that has completed ends. How many
    /// requests did.
    pub(crate) fn reap(&mut self, now: Nanos) -> u32 {
        if self.io.enter().is_err() {
            // What was queued stays queued and is submitted by a later pass.
            self.counters.io_errors.add(1);
        }
        if self.io.in_flight() == 0 {
            return 0;
        }
        let mut reaped = 0;
        // One at a time, because what is reaped may submit again to the same ring.
        for _ in 0..REAPED_PER_PASS {
            let Some((tag, result)) = self.io.reap_one() else { break };
            let Some((ring, disk)) = disk_at(&mut self.places, tag.queue) else { continue };
            let (was_shown, was_clocked) = (!ring.unshown, disk.answered.is_empty());
            reaped += u32::from(disk.reap(ring, &mut self.io, tag, result, now));
            if was_clocked && !disk.answered.is_empty() {
                self.unclocked.push(tag.queue);
            }
            if was_shown && ring.unshown {
                self.calls.note_unshown(tag.queue);
            }
            let has_begun = disk.large.is_under_way();
            self.schedule.completed(tag.queue);
            if has_begun {
                self.poll_begun(tag.queue, now);
            }
        }
        // What was resumed goes to the kernel now: the next pass may be after a sleep.
        self.hand_over_io();
        self.show_noted(|ring, alarm| ring.publish_reaped(alarm, now));
        reaped
    }

    /// What was queued for disks goes to the kernel now. No system call when that is nothing.
    pub(crate) fn hand_over_io(&mut self) {
        if self.io.hand_over().is_err() {
            self.counters.io_errors.add(1);
        }
    }
}
