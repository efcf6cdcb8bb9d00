//! The bytes of one sector: they say which sector and which write they belong to, and every word of
//! them can be checked by itself.

/// Bytes of a sector.
pub const SECTOR_SIZE: usize = 512;

/// What a sector's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All of the write of that number, of this very sector.
    Write(u64),
    /// Only zeroes.
    Zeroes,
    /// Anything else: another sector's bytes, parts of several writes, or nobody's.
    Other,
}

/// What write `seq` puts into `sector`. `into` has [`SECTOR_SIZE`] bytes.
pub fn fill_sector(sector: u64, seq: u64, into: &mut [u8]) {
    let base = base(sector, seq);
    for (index, place) in (0..).zip(into.chunks_exact_mut(8)) {
        place.copy_from_slice(&word(sector, seq, base, index).to_le_bytes());
    }
}

/// What the bytes of `sector` are.
pub fn look(sector: u64, bytes: &[u8]) -> Found {
    if bytes.iter().all(|byte| *byte == 0) {
        return Found::Zeroes;
    }
    let mut words = words(bytes);
    let seq = words.nth(1).unwrap_or(0);
    if is_mixture(sector, bytes, std::iter::once(Some(seq))) {
        Found::Write(seq)
    } else {
        Found::Other
    }
}

/// Whether each word is that of one of `writes`; `None` among them is zeroes.
pub(super) fn is_mixture(
    sector: u64,
    bytes: &[u8],
    writes: impl Iterator<Item = Option<u64>>,
) -> bool {
    let known: Vec<_> = writes.map(|write| write.map(|seq| (seq, base(sector, seq)))).collect();
    (0..).zip(words(bytes)).all(|(index, found)| {
        known.iter().any(|write| match write {
            Some((seq, base)) => word(sector, *seq, *base, index) == found,
            None => found == 0,
        })
    })
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks_exact(8)
        .map(|piece| piece.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

fn word(sector: u64, seq: u64, base: u64, index: u64) -> u64 {
    match index {
        // Never zero: a sector of zeroes is none of ours.
        0 => sector | 1 << 63,
        1 => seq,
        _ => (base ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

fn base(sector: u64, seq: u64) -> u64 {
    let mixed = (sector ^ seq.rotate_left(32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb)
}
