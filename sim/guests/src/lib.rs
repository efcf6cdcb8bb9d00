//! Guests from a seed, in made-up time: drivers of disks and NICs, honest and hostile, the VMMs that connect them, and the
//! frames that they send each other.
//!
//! ```text
//!   tenant       a guest, its VMM and what its disk may hold (a ledger)
//!     guest        drives a disk: asks, kicks, is called, and looks at all that comes back
//!     station      drives a NIC, with `lan`: who sent what to whom, and what may arrive
//!     hostile      keeps no rule, nor does its VMM
//!     front_end    what the VMM says, message by message, over any connection
//!     layout       where everything is in the guest's memory; copying: that memory while it changes
//! ```
//!
//! Not here: who serves them, and who decides when each of them acts (`lives`). No clock, no thread and no socket: real
//! are the eventfds and the memory files.
#![forbid(unsafe_code)]

mod copying;
mod front_end;
mod guest;
mod hostile;
mod lan;
mod layout;
mod shapes;
mod signal;
mod station;
mod tenant;
mod trace;

pub use lan::{Lan, mac};
pub use tenant::{Sent, Tenant};
pub use trace::Trace;
