//! What one side can finish itself: a set of offloads.
//!
//! Not what a frame needs (`offload`), nor feature bits (`device`). Called wherever a receiver or a
//! sender is described.

use std::fmt;
use std::ops::BitOr;

/// A set of offloads. Of a sender: what its frames may leave undone. Of a receiver: what frames may
/// leave undone for it.
///
/// The set is plain: whether TSO without checksums means anything is decided by whoever negotiates
/// (VIRTIO 5.1.3.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Offloads(u16);

impl Offloads {
    /// Nothing is left undone.
    pub const NONE: Offloads = Offloads(0);
    /// A checksum is left to be filled in.
    pub const CSUM: Offloads = Offloads(1);
    /// TCP over IPv4 in one long frame.
    pub const TSO4: Offloads = Offloads(2);
    /// TCP over IPv6 in one long frame.
    pub const TSO6: Offloads = Offloads(4);
    /// Long TCP frames with the CWR bit, which only the first segment keeps.
    pub const ECN: Offloads = Offloads(8);
    /// Many UDP datagrams over IPv4 in one long frame.
    pub const USO4: Offloads = Offloads(16);
    /// Many UDP datagrams over IPv6 in one long frame.
    pub const USO6: Offloads = Offloads(32);
    /// USO of both kinds, which a sender negotiates together.
    pub const USO: Offloads = Offloads(16 | 32);
    /// All of them that a receiver or a sender may have.
    pub const ALL: Offloads = Offloads(63);
    /// Of a frame: nobody may have it undone, whatever else it needs. In no receiver's set.
    pub const FINISHED: Offloads = Offloads(64);

    /// What a frame needs, from the low bits of a number.
    #[inline]
    pub(crate) const fn of_frame(bits: u16) -> Offloads {
        Offloads(bits & (Offloads::ALL.0 | Offloads::FINISHED.0))
    }

    const NAMES: [(Offloads, &'static str); 7] = [
        (Offloads::CSUM, "csum"),
        (Offloads::TSO4, "tso4"),
        (Offloads::TSO6, "tso6"),
        (Offloads::ECN, "ecn"),
        (Offloads::USO4, "uso4"),
        (Offloads::USO6, "uso6"),
        (Offloads::FINISHED, "finished"),
    ];

    /// As a number, for an atomic or a message; bits as in the constants.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// From [`bits`](Self::bits); unknown bits are dropped.
    pub const fn from_bits(bits: u16) -> Offloads {
        Offloads(bits & Offloads::ALL.0)
    }

    /// Whether all of `other` are among these.
    #[inline]
    pub const fn contains(self, other: Offloads) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is among these.
    #[inline]
    pub const fn intersects(self, other: Offloads) -> bool {
        self.0 & other.0 != 0
    }

    /// Those of either.
    #[inline]
    pub const fn union(self, other: Offloads) -> Offloads {
        Offloads(self.0 | other.0)
    }

    /// Those of both.
    #[inline]
    pub const fn intersection(self, other: Offloads) -> Offloads {
        Offloads(self.0 & other.0)
    }

    /// These without `other`.
    #[inline]
    pub const fn without(self, other: Offloads) -> Offloads {
        Offloads(self.0 & !other.0)
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of those in the set, as operators and logs know them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Offloads::NAMES
            .into_iter()
            .filter(move |(one, _)| self.contains(*one))
            .map(|(_, name)| name)
    }
}

impl BitOr for Offloads {
    type Output = Offloads;

    fn bitor(self, other: Offloads) -> Offloads {
        self.union(other)
    }
}

impl fmt::Debug for Offloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
