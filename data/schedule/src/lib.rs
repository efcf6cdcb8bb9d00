//! Which queue next, and for how much: the whole of a sidecore's decisions. And, in `placement`, which
//! sidecore has which queue, and how many of them are in use: control's, which asks now and then.
//!
//! Pure: no clock (time is an argument), no memory of a guest, no I/O, no dependency; after
//! [`Schedule::add`] nothing is allocated. A queue is a number below `queues_max`; what stands behind
//! it is the caller's business.
//!
//! Called by `sidecore`, in this order:
//!
//! ```text
//!   begin(now)                       a pass starts
//!   while let Some(visit) = next()   a queue and a budget
//!       visited(queue, what_was_done)
//!   while let Some(queue) = to_arm() enable its kicks, look at the ring again, then
//!       armed(queue) | found(queue)  it was empty | it was not
//!   between the pieces of a visit: advance, watched, may_interrupt, interrupted
//!   at any time: kicked, completed, add, remove, set, set_target
//! ```
//!
//! A visit of a queue whose limit ([`Gate`]) has nothing for it is answered by
//! [`Schedule::wait_until`] instead of `visited`: it is out of the lines until then.
//!
//! ```text
//!   next_due()                       when the first of those comes back: sleep no longer
//! ```
//!
//! # What is promised
//!
//! - A pass visits each polled queue at most once, an armed queue never.
//! - Between two visits of a queue every other queue is visited at most once; so a non-empty queue
//!   waits for at most `queues - 1` visits, each within the limits. The one exception is a queue
//!   that took more than its share of a pass: it repays, and has a visit in every [`REPAY_PASSES_MAX`] passes.
//! - Queues that always have work get requests, bytes, or time, in proportion to their shares,
//!   whichever of them they use most of.
//! - A queue that asks little, and had work lately, may be served between the pieces of another's visit;
//!   all such interruptions together take 9% of the time at most.
//! - A queue that misses its latency target may be served so too, for what its last turn left of its share:
//!   between two visits of a queue such another has one visit and at most what that left of one before.
//! - A kick of an armed queue leads to a visit in this pass or the next.
//! - A queue of [`Policy::Adaptive`] costs, in looks and kicks, at most twice what the better of
//!   [`Policy::Poll`] and [`Policy::Notify`] would have cost it, whatever its guest does, but for one
//!   look a gap. The price of a kick may be set at any time ([`Schedule::set_kick_cost`]).
//! - `begin`, `next` and `visited` cost the same however many queues are armed.
#![forbid(unsafe_code)]

mod aim;
mod budget;
mod limit;
mod lines;
mod looks;
mod nanos;
mod piece;
mod placement;
mod policy;
mod schedule;
mod share;
mod urgency;
mod waits;

pub use budget::{Budget, Limits, Visited};
pub use limit::{Admission, BURST_MS_MIN, Gate, LimitOf, Limited, Meter, Meters, Rate, Waited};
pub use looks::{LOOK_EVENTS_MAX, LOOK_INTERVAL_NS};
pub use nanos::{Clock, Nanos};
pub use piece::Piece;
pub use placement::{
    CoreLoad, Decision, HOT, LOAD_FULL, MOVE_PAUSE_NS, Placement, QueueLoad, REST_MAX, ROOM, Use,
};
pub use policy::Policy;
pub use schedule::{Schedule, Visit};
pub use share::{REPAY_PASSES_MAX, SHARE_MAX, SHARE_USUAL};
pub use urgency::{INTERRUPTION, WATCHED_MAX};

#[cfg(test)]
mod tests;
