//! The bytes of one sector: they say which sector and which write they belong to, and every word of
//! them can be checked by itself.

use std::collections::HashMap;

/// Bytes of a sector.
pub const SECTOR_SIZE: usize = 512;

/// Odd, so that it can be undone by its inverse modulo 2^64.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = 0xf1de_83e1_9937_733d;

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
    for (index, place) in (0..).zip(into.as_chunks_mut().0) {
        *place = word(sector, seq, base, index).to_le_bytes();
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

/// Whether each byte is that of one of `writes`; `None` among them is zeroes. Not each word: buffers are cut
/// anywhere, so copies that run beside each other meet within a word.
pub(super) fn is_mixture(
    sector: u64,
    bytes: &[u8],
    writes: impl Iterator<Item = Option<u64>>,
) -> bool {
    let known: Vec<_> = writes.map(|write| write.map(|seq| (seq, base(sector, seq)))).collect();
    (0..).zip(bytes.as_chunks().0).all(|(index, found)| {
        let of = |write: &Option<(u64, u64)>| {
            write.map_or([0; 8], |(seq, base)| word(sector, seq, base, index).to_le_bytes())
        };
        // Of one write whole, as nearly every word is.
        known.iter().any(|write| of(write) == *found)
            || (0..8).all(|at| known.iter().any(|write| of(write)[at] == found[at]))
    })
}

/// The first of some words, how many, and the sector and number of their write.
type Part = (usize, usize, Option<(u64, u64)>);

/// Whose words a sector has after the first two, for who looks for the reason: `3+2 of write 7 of
/// sector 23` is two words from the third on. Tries every write up to number `seqs` of every sector below
/// `sectors`, which takes a second for a million times a hundred.
pub(super) fn parts(bytes: &[u8], sectors: u64, seqs: u64) -> String {
    let bases = (0..).zip(words(bytes)).skip(2);
    let bases: Vec<u64> = bases.map(|(at, word)| word.wrapping_mul(INVERSE) ^ at).collect();
    let mut owners = HashMap::new();
    for sector in 0..sectors {
        for seq in 1..=seqs {
            let base = base(sector, seq);
            if bases.contains(&base) {
                owners.insert(base, (sector, seq));
            }
        }
    }
    let mut parts: Vec<Part> = Vec::new();
    for (at, base) in bases.iter().enumerate() {
        let owner = owners.get(base).copied();
        match parts.last_mut() {
            Some((_, count, last)) if *last == owner => *count += 1,
            _ => parts.push((at + 2, 1, owner)),
        }
    }
    let named = parts.iter().map(|(from, count, owner)| match owner {
        Some((sector, seq)) => format!("{from}+{count} of write {seq} of sector {sector}"),
        None => format!("{from}+{count} of nobody"),
    });
    let head: Vec<u64> = words(bytes).take(2).collect();
    format!("{head:x?}, {}", named.collect::<Vec<_>>().join(", "))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|piece| u64::from_le_bytes(*piece))
}

fn word(sector: u64, seq: u64, base: u64, index: u64) -> u64 {
    match index {
        // Never zero: a sector of zeroes is none of ours.
        0 => sector | 1 << 63,
        1 => seq,
        _ => (base ^ index).wrapping_mul(SPREAD),
    }
}

fn base(sector: u64, seq: u64) -> u64 {
    let mixed = (sector ^ seq.rotate_left(32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb)
}
