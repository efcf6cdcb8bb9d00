//! The back-end's side of the vhost-user protocol, as pure state: bytes and descriptors in, replies
//! and facts out.
//!
//! [`Framer`] cuts a stream into [`Frame`]s; [`Session`] says which queues a message concerns
//! ([`Session::scope`]), applies it ([`Session::apply`]), and tells which rings could run
//! ([`Session::ready`]). Whatever needs a system call is asked of an [`Owner`] while a message is
//! applied, so that a refusal leaves the state unchanged. Descriptors are a type parameter: the
//! manager's are real, the tests' are numbers, and dropping one closes it.
//!
//! Not here: sockets, mappings, rings (`manager`). Called by `manager`.
//!
//! Everything a front-end sends is hostile: each number is checked once, in [`Message::parse`] when
//! it is about form and in [`Session::apply`] when it is about state. Nothing here panics, allocates
//! by a size that a front-end named beyond [`PAYLOAD_SIZE_MAX`], or loops beyond a message's end.
//!
//! The specification is "Vhost-user Protocol" of QEMU's interoperability documents.
#![forbid(unsafe_code)]

pub mod bits;
mod frame;
mod memory_table;
pub mod message;
mod queue_setup;
mod refusal;
mod session;

pub use frame::{FDS_MAX, Frame, Framer, HEADER_SIZE, PAYLOAD_SIZE_MAX};
pub use memory_table::MEMORY_SLOTS_MAX;
pub use message::{InflightArea, LogArea, MacAddress, MemoryRegion, Message, RingAddresses};
pub use queue_setup::{Kick, RingFacts};
pub use refusal::{BadFrame, Reason, Refused, Reject};
pub use session::{DeviceClass, DeviceFacts, Owner, Reply, Scope, Session, Told};
