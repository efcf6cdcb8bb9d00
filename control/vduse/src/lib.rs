//! The machine's own kernel as a guest: devices of VDUSE on one side, an ordinary vhost-user front-end of a daemon's
//! socket on the other (docs/decisions/0015-client.md).
//!
//! A [`Device`] is a thread that has one device of `/dev/vduse` and one connection. It moves no data: the daemon maps the
//! memory of the kernel's rings and is kicked by the kernel itself; only its calls go by here. The daemon may be killed
//! and started again meanwhile, and so may this process: the kernel's rings and, for a disk, the record of what is in
//! flight are kept beside both.
//!
//! Not here: the daemon, its configuration, and which devices there are to be (`bin/sidecore`, `client`).
#![deny(unsafe_op_in_unsafe_fn)]

mod abi;
mod create;
mod device;
mod front_end;
mod memory;
mod netlink;
mod spec;
mod sys;

use std::io;

pub use create::{in_use, need_vduse};
pub use device::Device;
pub use netlink::{Verb, ask};
pub use spec::{Kind, Spec};

/// Why a device cannot be, or cannot go on. The text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no VDUSE.
    #[error("{0}")]
    NoVduse(String),
    /// Its name cannot be one of a device.
    #[error("{0:?} is no name for a device of the kernel: at most 255 bytes, without a slash")]
    Name(String),
    /// Somebody else's device has the name.
    #[error(
        "the kernel has a device {0:?} that is not ours: end it (`vdpa dev del {0}`), or take another name"
    )]
    Taken(String),
    /// Another process serves the device.
    #[error(
        "another process serves the kernel's device {0:?}: is a `sidecore client` running already?"
    )]
    Served(String),
    /// The kernel's refusal of a step.
    #[error("{what}: {error}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The daemon's.
    #[error("{0}")]
    Daemon(String),
    /// The bus.
    #[error("vDPA: {0}")]
    Bus(String),
}

/// Adds what was tried to what the kernel said.
fn tried(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Kernel { what, error }
}
