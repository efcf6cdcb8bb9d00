//! Another process takes over from this one, and no guest notices (docs/decisions/0009).
//!
//! | file | what |
//! |---|---|
//! | `wire` | what the two say to each other, and its bounds |
//! | `channel` | how: packets with descriptors, each way with a time limit |
//! | `launcher` | the process that starts heirs |
//! | `predecessor` | the course of an upgrade, from an operator's call to the end of this process or back |
//! | `bequest` | what is handed over: devices, front-ends, rings |
//! | `estate` | the same as it came, checked |
//! | `heir` | a start with an estate: what is said, and when |
//! | `adopt` | what is made of an estate |
//! | `guard` | the first second after it, and the way back |
//! | `links` | what links are given up, and begin with |
//! | `pause` | how long queues stood still |
//! | `error` | why it fails, on either side |

pub(crate) mod adopt;
pub(crate) mod bequest;
mod channel;
pub(crate) mod error;
pub(crate) mod estate;
pub(crate) mod guard;
pub(crate) mod heir;
pub mod launcher;
pub(crate) mod links;
pub(crate) mod pause;
pub(crate) mod predecessor;
pub(crate) mod wire;

use std::time::{Duration, Instant};

use rustix::event::Timespec;

pub(crate) use bequest::made_of;
use guard::Probation;
pub use heir::Heir;
use predecessor::Upgrade;

/// Which side of an upgrade this process is on.
#[derive(Default)]
pub(crate) enum Succession {
    #[default]
    None,
    /// It has just taken over, and its predecessor watches it.
    Watched(Probation),
    /// Another process is to take over.
    Upgrading(Upgrade),
}

impl Succession {
    /// When it is to be looked at without an event.
    pub(crate) fn due_at(&self, now: Instant) -> Option<Instant> {
        match self {
            Succession::None => None,
            Succession::Watched(probation) => Some(probation.due_at()),
            Succession::Upgrading(upgrade) => Some(upgrade.due_at(now)),
        }
    }

    pub(crate) fn probation(&self) -> Option<&Probation> {
        match self {
            Succession::Watched(probation) => Some(probation),
            _ => None,
        }
    }

    pub(crate) fn upgrade(&self) -> Option<&Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    pub(crate) fn upgrade_mut(&mut self) -> Option<&mut Upgrade> {
        match self {
            Succession::Upgrading(upgrade) => Some(upgrade),
            _ => None,
        }
    }

    /// It is over, or there is none.
    pub(crate) fn take_probation(&mut self) -> Option<Probation> {
        match std::mem::take(self) {
            Succession::Watched(probation) => Some(probation),
            other => {
                *self = other;
                None
            }
        }
    }

    /// The same of an upgrade.
    pub(crate) fn take_upgrade(&mut self) -> Option<Upgrade> {
        match std::mem::take(self) {
            Succession::Upgrading(upgrade) => Some(upgrade),
            other => {
                *self = other;
                None
            }
        }
    }
}

pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

/// Takes packets as a predecessor would send them, each with so many descriptors, up to the first that
/// is refused; how many were taken. For fuzzing: what is taken stays within its bounds.
#[cfg(feature = "fuzzed")]
pub fn take_packets<'a>(packets: impl Iterator<Item = (&'a [u8], usize)>) -> usize {
    let mut estate = estate::Estate::default();
    let null = || std::fs::File::open("/dev/null").map(std::os::fd::OwnedFd::from);
    let taken = packets.map_while(|(bytes, fds)| {
        let fds: Result<Vec<_>, _> = (0..fds).map(|_| null()).collect();
        estate.take(bytes, fds.ok()?).ok()
    });
    let taken = taken.count();
    assert!(
        estate
            .devices
            .values()
            .all(|device| device.connections.len() <= crate::devices::connection::CONNECTIONS_MAX)
    );
    assert!(
        estate
            .seats
            .iter()
            .all(|seat| seat.words.saturating_add(seat.bytes) <= wire::SEAT_BYTES_MAX)
    );
    assert!(estate.rings.len() <= (256 + wire::RINGS_MAX) * estate.devices.len());
    taken
}
