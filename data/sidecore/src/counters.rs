//! What was done: numbers written by one sidecore and read by anyone, without a lock.
//!
//! A count is a relaxed load and store by its single writer, never a locked operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use schedule::{LimitOf, Waited};
use switch::DropReason;

use crate::latency::{Latency, LatencySnapshot};
use crate::net::Tally;

/// A number with one writer.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        if n != 0 {
            self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Makes the counters of something and their snapshot from one list.
///
/// A count's name is a word of the upgrade's format: [`QueueCounters`] and [`PortCounters`] go to the next process by
/// their names, and what that one does not know it leaves out. One that is renamed begins at 0 there, and a guest's
/// totals go backwards. So a name stays; a new one is added to the lists of the tests below, which hold them.
macro_rules! counters {
    ($(#[$about:meta])* $counters:ident, $snapshot:ident { $($(#[$doc:meta])* $name:ident,)* }
     $($(#[$extra_doc:meta])* $extra:ident: $kind:ident => $value:ty,)?) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $counters {
            $(pub(crate) $name: Count,)*
            $(pub(crate) $extra: $kind,)?
        }

        /// The counters at one moment. Each is exact; together they may be a few requests apart.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$extra_doc])* pub $extra: $value,)?
        }

        impl $snapshot {
            /// All counts by name, those that are not 0; each of a kind as `kind.which`.
            pub fn named(&self) -> BTreeMap<String, u64> {
                let plain = [$((stringify!($name).to_string(), self.$name),)*];
                let all = plain.into_iter();
                $(let all = all.chain(self.$extra.parts().map(|(which, n)| {
                    (format!("{}.{which}", stringify!($extra)), n)
                }));)?
                all.filter(|(_, n)| *n != 0).collect()
            }
        }

        impl $counters {
            /// Goes on from counts of another process, by name; unknown ones are left out. To be
            /// called before anybody counts.
            pub fn go_on_from(&self, named: &BTreeMap<String, u64>) {
                $(if let Some(n) = named.get(stringify!($name)) {
                    self.$name.set(*n);
                })*
                $(self.$extra.go_on_from(named.iter().filter_map(|(name, n)| {
                    Some((name.strip_prefix(stringify!($extra))?.strip_prefix('.')?, *n))
                }));)?
            }

            /// The values now.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot {
                    $($name: self.$name.get(),)*
                    $($extra: self.$extra.snapshot(),)?
                }
            }
        }
    };
}

counters! {
    /// Counters of one queue; they live as long as the device, over detach and attach.
    QueueCounters, QueueSnapshot {
        /// Requests ended.
        requests,
        /// Reads that went to the back-end.
        reads,
        /// Writes that went to the back-end.
        writes,
        /// Flushes that went to the back-end.
        flushes,
        /// Discards and write-zeroes that went to the back-end.
        discards,
        /// Bytes asked for by reads.
        read_bytes,
        /// Bytes given by writes.
        written_bytes,
        /// Requests that ended with an error or as unsupported.
        errors,
        /// Kicks seen.
        kicks,
        /// Calls made.
        calls,
        /// Visits that found something.
        visits,
        /// Requests that waited in the ring for longer than the queue's latency target.
        missed,
        /// Requests taken and not ended.
        in_flight,
        /// Requests that had to wait for space, or for a medium that fails; each once, however often it is tried.
        stalls,
        /// Requests that wait for space. One that is being tried again still waits.
        waiting_full,
        /// Requests that wait for a medium that fails; as above.
        waiting_failed,
        /// Nanoseconds of those visits, from samples.
        work_ns,
        /// Waits for a limit that are over, of a queue that had something; of its device or its group. A
        /// receive queue waits for none.
        held,
        /// Their nanoseconds.
        held_ns,
        /// Those for the group's limit.
        group_held,
        /// Their nanoseconds.
        group_held_ns,
        /// When it was attached last, in its process ([`instant_of`](crate::instant_of)).
        attached_ns,
    }
    /// From taking a request to showing its completion, nanoseconds.
    latency: Latency => LatencySnapshot,
}

counters! {
    /// Counters of one sidecore.
    SidecoreCounters, SidecoreSnapshot {
        /// Trips of the loop.
        passes,
        /// Nanoseconds in passes that found work.
        busy_ns,
        /// Nanoseconds in passes that found none.
        idle_ns,
        /// Nanoseconds of visits that found something, from samples.
        work_ns,
        /// Nanoseconds of visits that found nothing, in passes that found work: a part of the busy ones that
        /// is no work. From samples.
        looks_ns,
        /// Times it slept.
        sleeps,
        /// Nanoseconds asleep.
        asleep_ns,
        /// Kicks seen.
        kicks,
        /// Times that a queue was served in the middle of another's visit.
        interruptions,
        /// What a kick costs, nanoseconds, as measured so far; 0 before the first measurement.
        kick_ns,
        /// Queues attached.
        queues,
        /// Submissions to the kernel that failed outright; their requests were tried again.
        io_errors,
        /// Requests and frames taken from rings.
        requests,
        /// Queues that came from another sidecore.
        moves_in,
        /// Queues that went to another sidecore.
        moves_out,
        /// Queues that were to go to another sidecore and did not.
        moves_stayed,
    }
    /// Of queues that came: from before their last visit where they were to after their first one here,
    /// nanoseconds; up to two passes more than nobody looked.
    pauses: Latency => LatencySnapshot,
}

counters! {
    /// Counters of one port of a bridge; they live as long as the port. Written by its home alone.
    PortCounters, PortSnapshot {
        /// Frames taken from the port: what its guest, or the host behind it, sent and was not
        /// dropped at once.
        taken_frames,
        /// Their bytes, without virtio-net headers.
        taken_bytes,
        /// Those for more than one station.
        taken_multicast,
        /// Frames delivered to the port; one that was cut into segments counts as many.
        delivered_frames,
        /// Their bytes, without virtio-net headers.
        delivered_bytes,
        /// Those for more than one station.
        delivered_multicast,
        /// Frames that were finished here, because the port lacks an offload.
        finished,
        /// Frames that went to another queue than their flow's, since that one's vCPU had no core.
        redirected,
        /// Frames for a vCPU that had no core, because none of the guest had one, or the flow had to stay.
        stayed,
        /// Nanoseconds that those that were redirected would have waited, by an estimate: half as long as
        /// that vCPU was without a core the last time.
        avoided_ns,
    }
    /// Frames that went nowhere, by reason.
    drops: Drops => DropsSnapshot,
}

counters! {
    /// Counters of one link of an IOhost.
    HostLinkCounters, HostLinkSnapshot {
        /// Sessions that there are now.
        sessions,
        /// Frames that came.
        frames_in,
        /// Frames that were sent.
        frames_out,
        /// Of those that came: of no session, not authentic, or seen before.
        frames_unknown,
        /// Of those that came: nothing that is said to an IOhost.
        frames_dropped,
        /// Of those that came: hellos for another key than this IOhost's, or of another security.
        hellos_strange,
        /// Of those that came: of a session of another shard of the link, or a hello where none is heard.
        frames_misplaced,
        /// That were lost on the way in, here: too long, or no room in the socket.
        lost_in,
        /// That the kernel refused to send.
        lost_out,
        /// Hellos that came.
        hellos,
        /// Hellos that were answered with a cookie.
        cookies,
        /// Hellos that had one, and found too many others waiting; or for whose cookie the socket had no room.
        greets_dropped,
        /// Requests that were put into rings.
        requests,
        /// Requests that no disk can do.
        refused,
        /// Times that an attachment's requests were taken back from its ring: its client's lease was over.
        withdrawals,
        /// Records of what is over.
        records_stale,
        /// Fragments that say something else than the first one of their request.
        conflicts,
        /// Requests whose bytes were not what their checksum says.
        mismatches,
        /// Sessions that ended because the client said what it must not.
        violations,
        /// Sessions whose lease ran out.
        leases_over,
    }
}

counters! {
    /// How one session's way is, as [`remote::SessionStats`] has it.
    SessionCounters, SessionSnapshot {
        /// Its number, while there is one: 0, nobody.
        session,
        /// The smoothed round trip, nanoseconds; 0 before the first.
        round_trip_ns,
        /// Frames sent that its client acknowledges.
        frames_sent,
        /// Of them: taken for lost.
        frames_lost,
        /// Records that went once more.
        records_again,
        /// Frames under way now.
        frames_under_way,
        /// Frames that may be under way, as far as what was lost tells.
        window_frames,
        /// Frames that may be under way, as far as its client has memory for them.
        credit_frames,
    }
}

impl SessionCounters {
    pub(crate) fn show(&self, session: u32, stats: &remote::SessionStats) {
        self.session.set(session.into());
        self.round_trip_ns.set(stats.round_trip_ns);
        self.frames_sent.set(stats.frames_sent);
        self.frames_lost.set(stats.frames_lost);
        self.records_again.set(stats.records_again);
        self.frames_under_way.set(stats.frames_under_way);
        self.window_frames.set(stats.window_frames);
        self.credit_frames.set(stats.credit_frames);
    }
}

counters! {
    /// Counters of one attachment at an IOhost. How long its requests took is in those of its queue.
    AttachmentCounters, AttachmentSnapshot {
        /// Requests that ended.
        requests,
        /// Their bytes.
        bytes,
        /// Requests that ended with an error or as unsupported.
        errors,
        /// Requests in the ring or with the disk.
        in_flight,
        /// Times that the used ring said what cannot be: a defect of the daemon.
        faults,
    }
}

/// Counts by [`DropReason`].
#[derive(Debug, Default)]
pub(crate) struct Drops([Count; DropReason::COUNT]);

impl Drops {
    fn go_on_from<'a>(&self, parts: impl Iterator<Item = (&'a str, u64)>) {
        for (name, n) in parts {
            let reason = DropReason::ALL.iter().find(|reason| reason.name() == name);
            if let Some(count) = reason.and_then(|reason| self.0.get(reason.index())) {
                count.set(n);
            }
        }
    }

    fn snapshot(&self) -> DropsSnapshot {
        DropsSnapshot(std::array::from_fn(|at| self.0.get(at).map_or(0, Count::get)))
    }
}

/// Frames that went nowhere, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropsSnapshot([u64; DropReason::COUNT]);

impl DropsSnapshot {
    /// Those dropped for this reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0.get(reason.index()).copied().unwrap_or(0)
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn parts(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        self.iter().map(|(reason, n)| (reason.name().to_string(), n))
    }

    /// Each reason for which something was dropped, in the order of [`DropReason::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|reason| (*reason, self.of(*reason))).filter(|(_, n)| *n > 0)
    }
}

impl QueueCounters {
    /// Nanoseconds of visits that found something, from samples; without looking at all the others.
    pub fn work_ns(&self) -> u64 {
        self.work_ns.get()
    }

    /// A wait for a limit is over, if there was one.
    pub(crate) fn waited(&self, waited: Option<Waited>) {
        let Some(Waited { limit, ns }) = waited else { return };
        self.held.add(1);
        self.held_ns.add(ns);
        if limit == LimitOf::Group {
            self.group_held.add(1);
            self.group_held_ns.add(ns);
        }
    }
}

impl PortCounters {
    #[cold]
    pub(crate) fn dropped(&self, reason: DropReason) {
        if let Some(count) = self.drops.0.get(reason.index()) {
            count.add(1);
        }
    }

    pub(crate) fn dropped_many(&self, reason: DropReason, frames: u64) {
        if let Some(count) = self.drops.0.get(reason.index()) {
            count.add(frames);
        }
    }

    /// Adds what a visit took.
    #[inline]
    pub(crate) fn took(&self, tally: &Tally) {
        self.taken_frames.add(tally.frames);
        self.taken_bytes.add(tally.bytes);
        self.taken_multicast.add(tally.multicast);
    }

    /// Frames and bytes that were delivered.
    pub(crate) fn delivered_so_far(&self) -> (u64, u64) {
        (self.delivered_frames.get(), self.delivered_bytes.get())
    }

    #[inline]
    pub(crate) fn delivered(&self, bytes: u32, is_multicast: bool) {
        self.delivered_frames.add(1);
        self.delivered_bytes.add(bytes.into());
        if is_multicast {
            self.delivered_multicast.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an upgrade hands over of a queue. A name may be added here, and none changed or taken away.
    const OF_A_QUEUE: [&str; 22] = [
        "requests",
        "reads",
        "writes",
        "flushes",
        "discards",
        "read_bytes",
        "written_bytes",
        "errors",
        "kicks",
        "calls",
        "visits",
        "missed",
        "in_flight",
        "stalls",
        "waiting_full",
        "waiting_failed",
        "work_ns",
        "held",
        "held_ns",
        "group_held",
        "group_held_ns",
        "attached_ns",
    ];
    /// And of a port.
    const OF_A_PORT: [&str; 30] = [
        "taken_frames",
        "taken_bytes",
        "taken_multicast",
        "delivered_frames",
        "delivered_bytes",
        "delivered_multicast",
        "finished",
        "redirected",
        "stayed",
        "avoided_ns",
        "drops.short_header",
        "drops.bad_offload",
        "drops.runt",
        "drops.too_long",
        "drops.bad_source",
        "drops.vlan",
        "drops.mac_limit",
        "drops.same",
        "drops.link_down",
        "drops.no_port",
        "drops.link_local",
        "drops.no_buffer",
        "drops.small_buffers",
        "drops.over_mtu",
        "drops.not_offloadable",
        "drops.handover_full",
        "drops.host_full",
        "drops.host_error",
        "drops.host_missed",
        "drops.over_limit",
    ];

    fn named(names: &[&str]) -> BTreeMap<String, u64> {
        names.iter().zip(1..).map(|(name, n)| (name.to_string(), n)).collect()
    }

    /// That of which the next process is told, it goes on from: none of these names is another now.
    #[test]
    fn a_counter_has_the_name_that_earlier_programs_hand_over() {
        let queue = QueueCounters::default();
        let told = [&OF_A_QUEUE[..], &["latency.0", "latency.7"]].concat();
        queue.go_on_from(&named(&told));
        assert_eq!(queue.snapshot().named(), named(&told));
        let port = PortCounters::default();
        port.go_on_from(&named(&OF_A_PORT));
        assert_eq!(port.snapshot().named(), named(&OF_A_PORT));
    }

    /// The names of a snapshot's numbers, as it shows them.
    fn names(snapshot: &impl std::fmt::Debug) -> Vec<String> {
        let shown = format!("{snapshot:?}");
        let names = shown.split(['{', ',']).filter_map(|word| word.strip_suffix(": 0"));
        names.map(|name| name.trim().to_string()).collect()
    }

    #[test]
    fn each_counter_that_is_handed_over_is_held_by_its_name() {
        assert_eq!(names(&QueueSnapshot::default()), OF_A_QUEUE);
        let drops = DropReason::ALL.iter().map(|reason| format!("drops.{}", reason.name()));
        let all: Vec<String> = names(&PortSnapshot::default()).into_iter().chain(drops).collect();
        assert_eq!(all, OF_A_PORT);
    }
}
