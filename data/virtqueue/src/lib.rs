//! The device's side of a virtqueue: split and packed rings as pure state.
//!
//! Without any notification mechanism, thread, or system call, and without `unsafe`: a ring is read
//! and written through [`guest_memory::Area`] and [`guest_memory::Entries`]. What the buffers mean is `device`'s matter; who
//! calls, and when, is `sidecore`'s.
//!
//! # The order of calls
//!
//! [`Queue::peek`] looks at the next chain and changes nothing that the guest or a later `peek`
//! can see; [`Queue::advance`] takes it and gives a [`Ticket`]; [`Queue::complete`] spends the
//! ticket; [`Queue::show`] shows what is complete so far; [`Queue::publish`] shows the rest and says
//! whether to call the guest.
//! [`Queue::arm`] asks for kicks and looks again; [`Queue::disarm`] asks for none.
//!
//! # Hostile rings
//!
//! The first violation latches the queue: from then on it reads as empty, while completions go on.
//! [`Queue::take_report`] gives the violation once. Every value in shared memory is read once per
//! use and checked before it is used; walking a chain is bounded by the queue's size.
//!
//! | file | VIRTIO 1.2 section |
//! |---|---|
//! | `split` | 2.7 Split Virtqueues |
//! | `packed` | 2.8 Packed Virtqueues |
//! | `walk` | 2.7.5 descriptor table, 2.7.5.3 and 2.8.8 indirect descriptors |
//! | `event_index` | 2.7.10 and 2.8.10 notification suppression |
//! | `inflight` | vhost-user, "Inflight I/O tracking" |
#![forbid(unsafe_code)]

mod ahead;
mod chain;
pub mod driver;
mod event_index;
pub mod inflight;
pub mod layout;
mod packed;
mod queue;
mod shared;
mod split;
mod ticket;
mod violation;
mod walk;
mod word;

pub use ahead::Single;
pub use chain::{CHAIN_SPANS_MAX, Chain};
pub use inflight::Inflight;
pub use layout::Format;
pub use queue::{Footprint, Mark, Queue, QueueSpec};
pub use ticket::Ticket;
pub use violation::{SetupError, Violation};
