//! Rows A1 to A28, A33 and A34 of `docs/security.md`: what a hostile guest writes in a
//! split ring.
//!
//! Storms, which last, are in `storms`; packed rings in `packed`; requests in `blk`.

use anyhow::ensure;

use super::{RingRow, ring};
use crate::hostile_bed::{Expect, done};
use crate::hostile_guest::{
    BASE, D, DATA, END, End, F_EVENT_IDX, HEADER, INDIRECT, Layout, MEMORY, NEXT, SECOND, STATUS,
    TABLE, WRITE,
};

/// A read of a sector as any driver lays it out.
const READ: [D; 3] =
    [D(HEADER, 16, NEXT, 1), D(DATA, 512, NEXT | WRITE, 2), D(STATUS, 1, WRITE, 0)];

/// A row that breaks the queue by the chains that it offers.
fn breaks(layout: Layout, words: &'static str, chains: &[&[D]]) -> RingRow {
    let chains: Vec<Vec<D>> = chains.iter().map(|chain| chain.to_vec()).collect();
    ring(layout, chains.len(), move |guest, variant| {
        guest.header(0, 0);
        guest.offer(&chains[variant])?;
        Ok(Expect::Broken(words))
    })
}

/// A row that breaks the queue by the indirect tables that it offers.
fn breaks_by_table(words: &'static str, tables: &[(u32, &[D])]) -> RingRow {
    let tables: Vec<(u32, Vec<D>)> =
        tables.iter().map(|(len, entries)| (*len, entries.to_vec())).collect();
    ring(Layout::indirect(), tables.len(), move |guest, variant| {
        guest.header(0, 0);
        let (len, entries) = &tables[variant];
        guest.table(entries);
        guest.offer(&[D(TABLE, *len, INDIRECT, 0)])?;
        Ok(Expect::Broken(words))
    })
}

pub fn a01_descriptor_loop() -> RingRow {
    breaks(
        Layout::default(),
        "does not end",
        &[
            &[D(HEADER, 16, NEXT, 1), D(HEADER, 16, NEXT, 0)],
            &[D(HEADER, 16, NEXT, 0)],
            &[D(HEADER, 16, NEXT, 1), D(DATA, 512, NEXT | WRITE, 2), D(STATUS, 1, NEXT | WRITE, 1)],
        ],
    )
}

pub fn a02_loop_in_an_indirect_table() -> RingRow {
    let two: &[D] = &[D(HEADER, 16, NEXT, 1), D(HEADER, 16, NEXT, 0)];
    breaks_by_table("does not end", &[(32, two), (16 * 4096, two), (16, &[D(HEADER, 16, NEXT, 0)])])
}

pub fn a03_next_outside_the_table() -> RingRow {
    let outside = |next| [D(HEADER, 16, NEXT, next)];
    breaks(
        Layout::default(),
        "is outside a table",
        &[&outside(16), &outside(17), &outside(0x7fff), &outside(0xffff)],
    )
}

pub fn a04_next_outside_the_indirect_table() -> RingRow {
    let outside = |next| [D(HEADER, 16, NEXT, next), D(STATUS, 1, WRITE, 0)];
    breaks_by_table(
        "is outside a table",
        &[(32, &outside(2)), (32, &outside(3)), (32, &outside(0xffff))],
    )
}

pub fn a05_indirect_inside_indirect() -> RingRow {
    breaks_by_table(
        "an indirect descriptor where none may be",
        &[
            (32, &[D(HEADER, 16, NEXT, 1), D(TABLE, 16, INDIRECT, 0)]),
            (16, &[D(TABLE, 16, INDIRECT, 0)]),
        ],
    )
}

pub fn a06_indirect_and_next_together() -> RingRow {
    ring(Layout::indirect(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.table(&[D(HEADER, 16, NEXT, 1), D(STATUS, 1, WRITE, 0)]);
        guest.offer(&[D(TABLE, 32, INDIRECT | NEXT, 1), D(STATUS, 1, WRITE, 0)])?;
        Ok(Expect::Broken("an indirect descriptor where none may be"))
    })
}

pub fn a07_direct_descriptors_before_an_indirect_one() -> RingRow {
    ring(Layout::indirect(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.table(&[D(DATA, 1024, NEXT | WRITE, 1), D(STATUS, 1, WRITE, 0)]);
        guest.offer(&[D(HEADER, 16, NEXT, 1), D(TABLE, 32, INDIRECT, 0)])?;
        Ok(done(1025))
    })
}

pub fn a08_write_flag_on_the_indirect_descriptor() -> RingRow {
    ring(Layout::indirect(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.table(&[
            D(HEADER, 16, NEXT, 1),
            D(DATA, 1024, NEXT | WRITE, 2),
            D(STATUS, 1, WRITE, 0),
        ]);
        guest.offer(&[D(TABLE, 48, INDIRECT | WRITE, 0)])?;
        Ok(done(1025))
    })
}

pub fn a09_indirect_table_of_bad_length() -> RingRow {
    ring(Layout::indirect(), 7, move |guest, variant| {
        guest.header(0, 0);
        let (gpa, len) = [
            (TABLE, 0),
            (TABLE, 8),
            (TABLE, 17),
            (TABLE, 0xffff_fff0),
            (END - 16, 32),
            (END, 16),
            (u64::MAX - 15, 32),
        ][variant];
        guest.offer(&[D(gpa, len, INDIRECT, 0)])?;
        Ok(Expect::Broken("an indirect table of"))
    })
}

pub fn a10_indirect_table_over_two_regions() -> RingRow {
    let layout = Layout { two_regions: true, ..Layout::indirect() };
    ring(layout, 2, move |guest, variant| {
        guest.header(0, 0);
        guest.entry(SECOND - 32, 0, D(HEADER, 16, NEXT, 1));
        guest.entry(SECOND - 32, 1, D(DATA, 512, NEXT | WRITE, 2));
        guest.entry(SECOND - 32, 2, D(STATUS, 1, WRITE, 0));
        let (gpa, len) = [(SECOND - 32, 48), (SECOND - 8, 16)][variant];
        guest.offer(&[D(gpa, len, INDIRECT, 0)])?;
        Ok(Expect::Broken("an indirect table of"))
    })
}

pub fn a11_indirect_though_not_negotiated() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.table(&READ);
        guest.offer(&[D(TABLE, 48, INDIRECT, 0)])?;
        Ok(Expect::Broken("an indirect descriptor where none may be"))
    })
}

/// Chains with one buffer that is not there, as header, data and status, read and written.
fn bad_buffer(bad: &[(u64, u32)]) -> RingRow {
    let bad = bad.to_vec();
    ring(Layout::default(), 4 * bad.len(), move |guest, variant| {
        let (gpa, len) = bad[variant / 4];
        guest.header(variant as u32 % 2, 0);
        let chain = [
            [D(HEADER, 16, NEXT, 1), D(gpa, len, NEXT | WRITE, 2), D(STATUS, 1, WRITE, 0)],
            [D(HEADER, 16, NEXT, 1), D(gpa, len, NEXT, 2), D(STATUS, 1, WRITE, 0)],
            [D(gpa, len, NEXT, 1), D(DATA, 512, NEXT | WRITE, 2), D(STATUS, 1, WRITE, 0)],
            [D(HEADER, 16, NEXT, 1), D(DATA, 512, NEXT | WRITE, 2), D(gpa, len, WRITE, 0)],
        ];
        guest.offer(&chain[variant % 4])?;
        Ok(Expect::Broken("is not in guest memory"))
    })
}

pub fn a12_buffer_outside_memory() -> RingRow {
    bad_buffer(&[(END, 512), (BASE - 512, 512), (0, 512), (1 << 62, 512), (u64::MAX, 1)])
}

pub fn a13_buffer_runs_past_its_region() -> RingRow {
    bad_buffer(&[(END - 511, 512), (END - 1, 2), (DATA, u32::MAX), (BASE - 1, 512)])
}

pub fn a14_address_and_length_wrap() -> RingRow {
    bad_buffer(&[(u64::MAX - 511, 512), (u64::MAX - 511, 1024), (u64::MAX, u32::MAX)])
}

pub fn a15_buffer_over_two_regions() -> RingRow {
    let layout = Layout { two_regions: true, ..Layout::default() };
    let mut turn = 0u8;
    ring(layout, 2, move |guest, variant| {
        // Written across the edge and read back elsewhere; then the other way round.
        turn = turn.wrapping_add(1);
        let pattern: Vec<u8> = (0..4096u32).map(|at| (at / 7) as u8 ^ turn).collect();
        let (across, whole) = (SECOND - 1000, DATA + 0x1_0000);
        let (from, to) = if variant == 0 { (across, whole) } else { (whole, across) };
        guest.put(from, &pattern);
        guest.zero(to, 4096);
        for (kind, gpa, flags) in [(1, from, NEXT), (0, to, NEXT | WRITE)] {
            guest.header(kind, 64);
            guest.offer(&[
                D(HEADER, 16, NEXT, 1),
                D(gpa, 4096, flags, 2),
                D(STATUS, 1, WRITE, 0),
            ])?;
            let end = guest.end()?;
            ensure!(matches!(end, End::Used(0, _)) && guest.status() == 0, "{end:?}");
        }
        ensure!(guest.get(to, 4096) == pattern, "what was written is not what was read");
        Ok(Expect::Checked)
    })
}

pub fn a16_empty_descriptors() -> RingRow {
    let honest = [(HEADER, 16, 0u16), (DATA, 512, WRITE), (STATUS, 1, WRITE)];
    ring(Layout::default(), 12, move |guest, variant| {
        guest.header(0, 0);
        // An empty one at each place, with an address that is none, too.
        let mut pieces = honest.to_vec();
        let gpa = if variant % 2 == 0 { DATA } else { u64::MAX };
        match variant / 2 {
            place @ 0..4 => {
                let flags = if place < 2 { 0 } else { WRITE };
                pieces.insert(place, (gpa, 0, flags));
            }
            4 => pieces.iter_mut().for_each(|piece| *piece = (gpa, 0, piece.2)),
            _ => pieces[2] = (gpa, 0, WRITE),
        }
        let last = pieces.len() - 1;
        let chain: Vec<D> = (0u16..)
            .zip(&pieces)
            .map(|(at, (gpa, len, flags))| {
                D(*gpa, *len, flags | if usize::from(at) < last { NEXT } else { 0 }, at + 1)
            })
            .collect();
        guest.offer(&chain)?;
        Ok(match variant / 2 {
            0..4 => done(513),
            4 => Expect::Broken("without room for its"),
            // The last byte of the data is then the status, and 511 bytes are no sectors.
            _ => {
                let end = guest.end()?;
                ensure!(end == End::Used(0, 1), "{end:?}");
                ensure!(guest.get(DATA + 511, 1) == [1], "no I/O error at the data's last byte");
                Expect::Checked
            }
        })
    })
}

pub fn a17_buffers_of_4_gib() -> RingRow {
    let layout = Layout { size: 2048, ..Layout::default() };
    ring(layout, 2, move |guest, variant| {
        // Exactly 4 GiB of data, and one byte less with the status on top.
        let all = MEMORY as u32;
        guest.header(0, 0);
        let mut chain = vec![D(HEADER, 16, NEXT, 1)];
        chain.extend((0..1024).map(|at| D(BASE, all, NEXT | WRITE, at + 2)));
        if variant == 1 {
            chain[1].1 = all - 1;
        }
        chain.push(D(STATUS, 1, WRITE, 0));
        guest.offer(&chain)?;
        Ok(Expect::Broken("4 GiB or more"))
    })
}

pub fn a18_readable_after_writable() -> RingRow {
    breaks(
        Layout::default(),
        "a device-readable buffer follows",
        &[
            &[D(HEADER, 16, NEXT, 1), D(DATA, 512, NEXT | WRITE, 2), D(STATUS, 1, 0, 0)],
            &[D(STATUS, 1, NEXT | WRITE, 1), D(HEADER, 16, 0, 0)],
        ],
    )
}

pub fn a19_available_index_jumps() -> RingRow {
    ring(Layout::default(), 3, move |guest, variant| {
        guest.set_avail(guest.avail().wrapping_add([17, 1000, 0x8000][variant]));
        guest.kick()?;
        Ok(Expect::Broken("the available index moved"))
    })
}

pub fn a20_available_index_goes_back() -> RingRow {
    ring(Layout::default(), 2, move |guest, variant| {
        guest.honest(0, 0, 512)?;
        guest.honest(0, 0, 512)?;
        guest.set_avail(1 - variant as u16);
        guest.kick()?;
        Ok(Expect::Broken("the available index moved"))
    })
}

pub fn a21_head_outside_the_table() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        guest.offer_heads(&[[16, 17, 0x8000, 0xffff][variant]]);
        guest.kick()?;
        Ok(Expect::Broken("is outside a table"))
    })
}

pub fn a22_one_head_offered_again_and_again() -> RingRow {
    ring(Layout::default(), 2, move |guest, variant| {
        let count = [2, 16][variant];
        guest.header(0, 0);
        let table = guest.places()[0];
        guest.entry(table, 0, D(HEADER, 16, NEXT, 1));
        guest.entry(table, 1, D(DATA, 512, NEXT | WRITE, 2));
        guest.entry(table, 2, D(STATUS, 1, WRITE, 0));
        guest.offer_heads(&vec![0; count]);
        guest.kick()?;
        for _ in 0..count {
            ensure!(guest.end()? == End::Used(0, 513), "each is served");
        }
        Ok(Expect::Checked)
    })
}

/// Requests over the wrap of the indices, in a ring of that size.
fn wraps(size: u16, rounds: usize) -> RingRow {
    let base = 0u16.wrapping_sub(size.min(64) / 2 + 1);
    let layout = Layout { size, base, ..Layout::indirect() };
    let mut whole = true;
    ring(layout, 1, move |guest, _| {
        guest.table(&READ);
        guest.header(0, 0);
        let table = guest.places()[0];
        // Every descriptor is a chain. All that there are at first, then fewer, so that what is
        // measured is a wrap and not a load.
        let count = if std::mem::take(&mut whole) { size.min(0x4000) } else { size.min(64) };
        let heads: Vec<u16> = (0..count).collect();
        for head in &heads {
            guest.entry(table, *head, D(TABLE, 48, INDIRECT, 0));
        }
        for _ in 0..rounds {
            guest.offer_heads(&heads);
            guest.kick()?;
            for head in &heads {
                let end = guest.end()?;
                ensure!(end == End::Used((*head).into(), 513), "head {head}: {end:?}");
            }
        }
        Ok(Expect::Spoiled)
    })
}

pub fn a23_indices_wrap_in_a_ring_of_1() -> RingRow {
    wraps(1, 4)
}

pub fn a23_indices_wrap_in_a_ring_of_2() -> RingRow {
    wraps(2, 4)
}

pub fn a23_indices_wrap_in_a_ring_of_32768() -> RingRow {
    wraps(32768, 1)
}

pub fn a24_parts_of_the_ring_over_each_other() -> RingRow {
    let usual = BASE + 0xf_0000;
    ring(Layout::default(), 5, move |guest, variant| {
        guest.place(
            [
                [usual, usual, usual],
                [usual, usual + 0x1000, usual + 0x1000],
                [usual, usual + 0x1000, usual + 0x1002 + 2],
                [usual + 0x1000, usual + 0x1000 + 2, usual + 0x1000],
                [DATA, DATA, DATA + 512],
            ][variant],
        );
        guest.revive()?;
        guest.header(0, 0);
        guest.offer(&READ)?;
        for _ in 0..20 {
            guest.kick()?;
        }
        guest.place([usual, usual + 0x1000, usual + 0x1800]);
        Ok(Expect::Spoiled)
    })
}

pub fn a25_rings_at_the_last_bytes_of_memory() -> RingRow {
    let usual = BASE + 0xf_0000;
    ring(Layout::default(), 6, move |guest, variant| {
        let (entries, len) = (16u64, [256, 4 + 32, 4 + 128][variant / 2]);
        ensure!(entries == 16);
        let mut places = [usual, usual + 0x1000, usual + 0x1800];
        // Just within, and one alignment too far.
        let too_far = variant % 2 == 1;
        places[variant / 2] = END - len + if too_far { [16, 2, 4][variant / 2] } else { 0 };
        guest.place(places);
        if too_far {
            // Zeroing the ring would leave memory; the device must not even start.
            guest.stop()?;
            guest.set_up()?;
            guest.settle()?;
            guest.offer(&READ)?;
            ensure!(guest.take_used().is_none(), "a ring beyond memory was served");
        } else {
            guest.revive()?;
            guest.honest(0, 0, 512)?;
        }
        guest.place([usual, usual + 0x1000, usual + 0x1800]);
        Ok(Expect::Spoiled)
    })
}

pub fn a26_data_goes_into_the_ring_itself() -> RingRow {
    ring(Layout::default(), 3, move |guest, variant| {
        guest.header(0, 0);
        let place = guest.places()[variant];
        // What is read there: zeroes, or whatever stands on the disk.
        guest.offer(&[
            D(HEADER, 16, NEXT, 1),
            D(place, 512, NEXT | WRITE, 2),
            D(STATUS, 1, WRITE, 0),
        ])?;
        for _ in 0..4 {
            guest.kick()?;
        }
        Ok(Expect::Spoiled)
    })
}

pub fn a27_descriptors_that_change_after_the_kick() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        guest.header(0, 0);
        guest.offer(&READ)?;
        let table = guest.places()[0];
        // At once: the device sees the one or the other, never a mixture that was not checked.
        match variant {
            0 => guest.entry(table, 1, D(u64::MAX, u32::MAX, WRITE, 99)),
            1 => guest.entry(table, 0, D(0, 0, INDIRECT | NEXT, 0xffff)),
            2 => guest.put(HEADER, &[0xff; 16]),
            _ => guest.entry(table, 2, D(END, 1, WRITE, 0)),
        }
        let end = guest.end()?;
        let sane = match end {
            End::Broken => variant != 2,
            End::Used(0, 513) => guest.status() == 0,
            End::Used(0, 1) => variant == 2 && guest.status() != 0,
            End::Used(..) => false,
        };
        ensure!(sane, "{end:?}, status {}", guest.status());
        Ok(Expect::Spoiled)
    })
}

pub fn a28_event_indices_that_mean_nothing() -> RingRow {
    event_indices(0)
}

pub fn a28_event_indices_that_mean_nothing_and_are_negotiated() -> RingRow {
    event_indices(F_EVENT_IDX)
}

fn event_indices(features: u64) -> RingRow {
    let mut random = 0x9e37_79b9u32;
    ring(Layout { features, ..Layout::default() }, 1, move |guest, _| {
        let [_, driver, device] = guest.places();
        random = random.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        // Behind the heads stands `used_event`, behind the elements `avail_event`.
        guest.put_u16(driver + 4 + 32, (random >> 16) as u16);
        guest.put_u16(device + 4 + 128, random as u16);
        guest.header(0, 0);
        guest.offer(&READ)?;
        let end = guest.end()?;
        ensure!(end == End::Used(0, 513), "{end:?}");
        // An honest wish is heard: a call comes without anybody looking.
        guest.put_u16(driver + 4 + 32, guest.avail());
        guest.honest(0, 0, 512)?;
        Ok(Expect::Checked)
    })
}

pub fn a33_guest_writes_what_is_the_devices() -> RingRow {
    ring(Layout::default(), 2, move |guest, variant| {
        // Once it is served, the device has looked at the used index for the last time.
        guest.honest(0, 0, 512)?;
        let device = guest.places()[2];
        guest.put(device, &[[0xff, 0x55][variant]; 4 + 128]);
        guest.header(0, 0);
        guest.offer(&READ)?;
        // The device goes by its own count, and writes it over what the guest has put there.
        let start = testing::clock::now_ns();
        while guest.status() == 0xff || guest.get_u16(device + 2) != 2 {
            ensure!(testing::clock::now_ns() - start < 90_000_000_000, "it was not served");
        }
        Ok(Expect::Spoiled)
    })
}

pub fn a34_driver_without_version_1() -> RingRow {
    // On a little-endian host a legacy block driver's requests are the same, byte for byte.
    ring(Layout::default(), 1, move |guest, _| {
        guest.stop()?;
        let legacy = 1u64 << 30 | 1 << 9;
        guest.raw.send(2, 1, &legacy.to_ne_bytes(), &[])?;
        guest.set_up()?;
        guest.settle()?;
        guest.put(DATA, &[0x34; 512]);
        guest.honest(1, 40, 512)?;
        guest.zero(DATA, 512);
        guest.honest(0, 40, 512)?;
        ensure!(guest.get(DATA, 512) == [0x34; 512], "read is not what was written");
        Ok(Expect::Spoiled)
    })
}
