//! A set of up to 256 small numbers: parts of a request, each one fragment on the wire.
//!
//! Called by `client` and `iohost`.

/// The most members.
pub(crate) const BITS: usize = 256;

/// The set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits([u64; BITS / 64]);

impl Bits {
    /// All below `count`, which is at most [`BITS`].
    pub(crate) fn first(count: usize) -> Bits {
        let mut bits = Bits::default();
        for (at, word) in bits.0.iter_mut().enumerate() {
            *word = match count.saturating_sub(at * 64) {
                0 => 0,
                64.. => u64::MAX,
                some => (1 << some) - 1,
            };
        }
        bits
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    pub(crate) fn insert(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    pub(crate) fn remove(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word &= !(1 << (at % 64));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; BITS / 64]
    }

    /// The smallest member.
    pub(crate) fn lowest(&self) -> Option<usize> {
        let at = self.0.iter().position(|word| *word != 0)?;
        Some(at * 64 + self.0.get(at)?.trailing_zeros() as usize)
    }
}

/// Fragments that are to be sent, and those that the peer has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sending {
    to_send: Bits,
    taken: Bits,
}

impl Sending {
    /// All below `count`, none of which the peer has.
    pub(crate) fn first(count: usize) -> Sending {
        Sending { to_send: Bits::first(count), taken: Bits::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.to_send.is_empty()
    }

    pub(crate) fn next(&self) -> Option<usize> {
        self.to_send.lowest()
    }

    pub(crate) fn sent(&mut self, part: usize) {
        self.to_send.remove(part);
    }

    /// The peer has it.
    pub(crate) fn taken(&mut self, part: usize) {
        self.taken.insert(part);
        self.to_send.remove(part);
    }

    /// It goes once more, unless the peer has it.
    pub(crate) fn lost(&mut self, part: usize) {
        if !self.taken.has(part) {
            self.to_send.insert(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_what_was_put_in() {
        for count in [0, 1, 63, 64, 65, 255, 256] {
            let mut bits = Bits::first(count);
            assert!((0..300).all(|at| bits.has(at) == (at < count)), "{count}");
            for at in 0..count {
                assert_eq!(bits.lowest(), Some(at));
                bits.remove(at);
            }
            assert!(bits.is_empty());
            bits.insert(300);
            assert!(bits.is_empty(), "what has no place is not there");
        }
    }
}
