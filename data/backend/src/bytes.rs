//! Sizes in messages: as people write them, in the largest unit that divides them.

use std::fmt;

/// A number of bytes: `10G`, or `1000 bytes` where no unit divides it. Units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
        let divides = |(shift, _): &(u32, char)| self.0 != 0 && self.0.is_multiple_of(1 << shift);
        match units.into_iter().find(divides) {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_exactly_and_as_it_is_written() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (1536, "1536 bytes"),
            (8192, "8K"),
            (999 << 40, "999T"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
