//! Every legal layout gives the same buffers; garbage is harmless; both formats agree.

use proptest::prelude::*;

use super::rig::{DATA, Rig, ring};
use crate::driver::{Buffer, RawDescriptor};
use crate::layout::Format;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const TABLE: u64 = 0x8000;
const TABLE_ENTRIES: u16 = 64;

/// A request: readable pieces, then writable ones.
fn request() -> impl Strategy<Value = Vec<Buffer>> {
    let piece = (0..DATA / 2 - 8192, 0u32..8192);
    (prop::collection::vec(piece.clone(), 0..6), prop::collection::vec(piece, 0..6))
        .prop_filter("at least one piece", |(reads, writes)| reads.len() + writes.len() > 0)
        .prop_map(|(reads, writes)| {
            let side = |device_writes| move |(gpa, len)| Buffer { gpa, len, device_writes };
            let reads = reads.into_iter().map(side(false));
            reads.chain(writes.into_iter().map(side(true))).collect()
        })
}

/// Where each piece goes: the first `direct` of them in the ring's table, in the places that
/// `places` names; the rest in an indirect table, in the places that `inner` names.
#[derive(Clone, Debug)]
struct Layout {
    direct: usize,
    places: Vec<u16>,
    inner: Vec<u16>,
}

fn layout() -> impl Strategy<Value = Layout> {
    let places = Just((0..16u16).collect::<Vec<_>>()).prop_shuffle();
    // An indirect table is entered at its first entry.
    let inner = Just((1..TABLE_ENTRIES).collect::<Vec<_>>()).prop_shuffle();
    (0usize..=12, places, inner).prop_map(|(direct, places, mut inner)| {
        inner.insert(0, 0);
        Layout { direct, places, inner }
    })
}

fn flags_of(piece: &Buffer) -> u16 {
    if piece.device_writes { WRITE } else { 0 }
}

/// Writes `pieces` in a split ring of 16 as `layout` says.
fn lay_out(rig: &Rig, pieces: &[Buffer], layout: &Layout) {
    let raw = rig.driver.raw();
    let (direct, inside) = pieces.split_at(layout.direct.min(pieces.len()));
    let links = direct.len() + usize::from(!inside.is_empty());
    let place = |at: usize| layout.places.get(at).copied().unwrap_or(0xffff);
    for (at, piece) in direct.iter().enumerate() {
        let more = if at + 1 < links { NEXT } else { 0 };
        let flags = flags_of(piece) | more;
        let next_or_id = place(at + 1);
        let Buffer { gpa, len, .. } = *piece;
        raw.write_descriptor(place(at), RawDescriptor { gpa, len, flags, next_or_id });
    }
    if !inside.is_empty() {
        let len = u32::from(TABLE_ENTRIES) * 16;
        let table = RawDescriptor { gpa: TABLE, len, flags: INDIRECT | WRITE, next_or_id: 7 };
        raw.write_descriptor(place(direct.len()), table);
    }
    let table = rig.area(TABLE, u64::from(TABLE_ENTRIES) * 16);
    for (at, piece) in inside.iter().enumerate() {
        let more = at + 1 < inside.len();
        let flags = flags_of(piece) | if more { NEXT } else { 0 };
        let next_or_id = if more { layout.inner[at + 1] } else { 0xffff };
        let Buffer { gpa, len, .. } = *piece;
        let found = RawDescriptor { gpa, len, flags, next_or_id };
        raw.write_descriptor_to(&table, layout.inner[at], found);
    }
    raw.write_avail(0, place(0));
    raw.set_avail_index(1);
}

/// What the device should see: pieces without bytes are not kept.
fn kept(pieces: &[Buffer]) -> Vec<Buffer> {
    pieces.iter().copied().filter(|piece| piece.len > 0).collect()
}

proptest! {
    /// Row P10: any legal layout gives the buffers of the plain one.
    #[test]
    fn every_legal_split_layout_gives_the_same_buffers(
        pieces in request(),
        layout in layout(),
    ) {
        let mut rig = Rig::new(ring(Format::Split, 16, false, TABLE_ENTRIES));
        lay_out(&rig, &pieces, &layout);
        prop_assert_eq!(rig.peek(), Some(kept(&pieces)), "{:?}", rig.queue.violation());
        let tables = usize::from(layout.direct < pieces.len());
        prop_assert_eq!(rig.chain.walked() as usize, pieces.len() + tables);
        let bytes = |writes| {
            let side = pieces.iter().filter(|piece| piece.device_writes == writes);
            side.map(|piece| u64::from(piece.len)).sum::<u64>()
        };
        prop_assert_eq!(rig.chain.readable_bytes(), bytes(false));
        prop_assert_eq!(rig.chain.writable_bytes(), bytes(true));
    }

    /// Row P11: both formats, direct and indirect, give the same for the same stream.
    #[test]
    fn all_formats_are_equal_for_the_same_stream(
        requests in prop::collection::vec(request(), 1..60),
        order in prop::collection::vec(any::<u8>(), 60),
        size in prop_oneof![Just(12u16), Just(13), Just(100)],
    ) {
        let shapes = [
            ring(Format::Split, size.next_power_of_two(), false, 0),
            ring(Format::Split, size.next_power_of_two(), true, 12),
            ring(Format::Packed, size, false, 0),
            ring(Format::Packed, size, true, 12),
        ];
        for spec in shapes {
            let mut rig = Rig::new(spec);
            let mut held = Vec::new();
            let mut tokens = Vec::new();
            for (token, pieces) in (0u64..).zip(&requests) {
                while rig.driver.add(pieces, token).is_err() {
                    // Full: everything that is held ends, in an order of its own.
                    while !held.is_empty() {
                        let which = usize::from(order[held.len() % 60]) % held.len();
                        rig.queue.complete(held.swap_remove(which), token as u32);
                    }
                    rig.queue.publish();
                    tokens.extend(std::iter::from_fn(|| rig.driver.take_used()).map(|u| u.token));
                }
                rig.driver.publish();
                let (ticket, found) = rig.take().expect("published");
                prop_assert_eq!(found, kept(pieces), "{:?}", spec);
                held.push(ticket);
            }
            for ticket in held {
                rig.queue.complete(ticket, 1);
            }
            rig.queue.publish();
            tokens.extend(std::iter::from_fn(|| rig.driver.take_used()).map(|used| used.token));
            tokens.sort_unstable();
            prop_assert!(tokens.iter().copied().eq(0..requests.len() as u64), "{:?}", spec);
            prop_assert_eq!(rig.driver.fault(), None);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Random bytes in all ring memory: no panic, and every look ends.
    #[test]
    fn garbage_everywhere_is_harmless(
        packed in any::<bool>(),
        size_power in 0u32..8,
        event_index in any::<bool>(),
        seed in any::<u64>(),
        base in any::<u32>(),
        mild in any::<bool>(),
    ) {
        let format = if packed { Format::Packed } else { Format::Split };
        let size = 1u16 << size_power;
        let mut rig = Rig::new(ring(format, size, event_index, 4));
        let mut bits = seed | 1;
        let mut random = move || {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            bits
        };
        let index = base as u16 % size;
        let base = if packed { u32::from(index | base as u16 & 0x8000) } else { base & 0xffff };
        rig.reopen(base);
        let whole = rig.area(0, rig.map.end());
        for _ in 0..30 {
            for at in (0..rig.map.end() as usize).step_by(8).take(usize::from(size) * 64) {
                // Mild garbage has addresses that exist, so that walks go further.
                let word = random();
                whole.store_u64(at, if mild { word & 0xffff_0007_0000_3fff } else { word });
            }
            for part in [rig.places.descriptors, rig.places.driver, rig.places.device] {
                for at in 0..usize::from(size) * 2 {
                    let word = random();
                    let word = if mild { word & 0x0083_0007_0000_3fff } else { word };
                    whole.store_u64(part as usize + 8 * at, word);
                }
            }
            if !packed {
                let raw = rig.driver.raw().clone();
                raw.set_avail_index((base as u16).wrapping_add(random() as u16 % (size + 1)));
                for slot in 0..size {
                    raw.write_avail(slot, random() as u16 % size);
                }
            }
            for _ in 0..40 {
                let Some((ticket, _)) = rig.take() else { break };
                prop_assert!(rig.chain.walked() <= 1024.max(u32::from(size)) + u32::from(size));
                rig.queue.complete(ticket, random() as u32);
            }
            prop_assert!(rig.chain.walked() <= 1024.max(u32::from(size)) + u32::from(size));
            rig.queue.publish();
            rig.queue.arm();
            rig.queue.disarm();
            let violated = rig.queue.violation().is_some();
            prop_assert_eq!(rig.queue.take_report().is_some(), violated);
            rig.reopen(base);
        }
    }
}
