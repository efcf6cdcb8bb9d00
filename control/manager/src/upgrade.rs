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
//! | `succession` | which side of it this process is on |
//! | `guard` | the first second after it, and the way back |
//! | `links` | what links are given up, and begin with |
//! | `process` | an heir's, watched and killed |
//! | `pause` | how long queues stood still |
//! | `error` | why it fails, on either side |

pub(crate) mod adopt;
pub(crate) mod bequest;
pub(crate) mod channel;
pub(crate) mod error;
pub(crate) mod estate;
pub(crate) mod guard;
pub(crate) mod heir;
pub mod launcher;
pub(crate) mod links;
pub(crate) mod pause;
pub(crate) mod predecessor;
mod process;
pub(crate) mod succession;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use heir::Heir;

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
            .shards
            .iter()
            .all(|shard| shard.words.saturating_add(shard.bytes) <= wire::SHARD_BYTES_MAX)
    );
    assert!(estate.rings.len() <= (256 + wire::RINGS_MAX) * estate.devices.len());
    taken
}
