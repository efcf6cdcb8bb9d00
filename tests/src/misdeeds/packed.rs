//! Rows B1 to B9 of `docs/security.md`: what a hostile guest writes in a packed ring.

use anyhow::ensure;

use super::{RingRow, ring};
use crate::hostile_bed::{Expect, done};
use crate::hostile_guest::{
    AVAIL, D, DATA, END, End, F_EVENT_IDX, F_INDIRECT, HEADER, INDIRECT, Layout, NEXT, STATUS,
    TABLE, USED, WRITE,
};
use crate::raw_front_end::{VERSION, request, ring_state};
use testing::daemon::pause;

fn breaks(layout: Layout, words: &'static str, chains: &[&[D]]) -> RingRow {
    let chains: Vec<Vec<D>> = chains.iter().map(|chain| chain.to_vec()).collect();
    ring(layout, chains.len(), move |guest, variant| {
        guest.header(0, 0);
        guest.offer(&chains[variant])?;
        Ok(Expect::Broken(words))
    })
}

fn with_tables() -> Layout {
    let packed = Layout::packed();
    Layout { features: packed.features | F_INDIRECT, ..packed }
}

/// A request of three entries as a driver lays it out, with that id.
fn honest(id: u16) -> [D; 3] {
    [D(HEADER, 16, NEXT, id), D(DATA, 512, NEXT | WRITE, id), D(STATUS, 1, WRITE, id)]
}

pub fn b01_lap_bits_that_contradict_the_lap() -> RingRow {
    ring(Layout::packed(), 3, move |guest, variant| {
        let bits = [0, USED, AVAIL | USED][variant];
        let ring = guest.places()[0];
        guest.header(0, 0);
        guest.entry(ring, 0, D(u64::MAX, 1, WRITE | bits, 0));
        guest.kick()?;
        pause(std::time::Duration::from_micros(300));
        ensure!(!guest.was_broken()?, "what is not available is not looked at");
        ensure!(guest.get_u16(ring + 14) == WRITE | bits, "it was used");
        // Written properly, the same place works.
        guest.offer(&honest(0))?;
        ensure!(guest.end()? == End::Used(0, 513), "the honest one");
        Ok(Expect::Spoiled)
    })
}

pub fn b02_chain_without_end() -> RingRow {
    let endless = |count: u16| vec![D(HEADER, 16, NEXT, 0); usize::from(count)];
    breaks(Layout::packed(), "does not end", &[&endless(8), &endless(1), &endless(7)])
}

pub fn b03_buffer_id_outside_the_ring() -> RingRow {
    breaks(
        Layout::packed(),
        "buffer id",
        &[&honest(8), &honest(9), &honest(0x8000), &honest(0xffff)],
    )
}

pub fn b03_buffer_id_twice_in_flight() -> RingRow {
    ring(Layout::packed(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.offer(&honest(5))?;
        guest.offer(&honest(5))?;
        // Each is answered in its place, and nothing is counted twice.
        ensure!(guest.end()? == End::Used(5, 513), "the first");
        Ok(Expect::Spoiled)
    })
}

pub fn b04_indirect_beside_next_or_in_a_chain() -> RingRow {
    ring(with_tables(), 5, move |guest, variant| {
        guest.header(0, 0);
        guest.table(&[D(HEADER, 16, 0, 0), D(DATA, 512, WRITE, 0), D(STATUS, 1, WRITE, 0)]);
        let with_next = [D(TABLE, 48, INDIRECT | NEXT, 0), D(STATUS, 1, WRITE, 0)];
        let behind = [D(HEADER, 16, NEXT, 0), D(TABLE, 48, INDIRECT, 0)];
        let bad_length = [D(TABLE, 40, INDIRECT, 0)];
        let beyond = [D(END - 16, 48, INDIRECT, 0)];
        let nested = [D(TABLE + 16, 16, INDIRECT, 0)];
        if variant == 4 {
            guest.entry(TABLE, 1, D(TABLE, 16, INDIRECT, 0));
        }
        let chains: [&[D]; 5] = [&with_next, &behind, &bad_length, &beyond, &nested];
        guest.offer(chains[variant])?;
        Ok(Expect::Broken("indirect"))
    })
}

pub fn b04_indirect_though_not_negotiated() -> RingRow {
    breaks(
        Layout::packed(),
        "an indirect descriptor where none may be",
        &[&[D(TABLE, 48, INDIRECT, 0)]],
    )
}

pub fn b04_write_flag_on_the_table_is_ignored() -> RingRow {
    ring(with_tables(), 1, move |guest, _| {
        guest.header(0, 0);
        guest.table(&[D(HEADER, 16, 0, 0), D(DATA, 512, WRITE, 0), D(STATUS, 1, WRITE, 0)]);
        guest.offer(&[D(TABLE, 48, INDIRECT | WRITE, 3)])?;
        Ok(done(513))
    })
}

pub fn b05_nonsense_in_the_event_structure() -> RingRow {
    let packed = Layout::packed();
    let layout = Layout { features: packed.features | F_EVENT_IDX, ..packed };
    ring(layout, 5, move |guest, variant| {
        let (place, flags) = [(8, 2), (0x7fff, 2), (0xffff, 2), (0, 3), (0, 0xffff)][variant];
        let driver = guest.places()[1];
        guest.put_u16(driver, place);
        guest.put_u16(driver + 2, flags);
        guest.header(0, 0);
        guest.offer(&honest(1))?;
        Ok(done(513))
    })
}

pub fn b06_a_bad_request_among_good_ones() -> RingRow {
    let packed = Layout::packed();
    ring(Layout { size: 32, ..packed }, 1, move |guest, _| {
        for slot in 0..4 {
            let at = HEADER + u64::from(slot) * 64;
            guest.header_at(slot, 0, 0);
            let data = if slot == 2 { END } else { DATA };
            guest.offer(&[
                D(at, 16, NEXT, slot),
                D(data, 512, NEXT | WRITE, slot),
                D(at + 32, 1, WRITE, slot),
            ])?;
        }
        // Those before it are served, it breaks the queue, and nothing after it is.
        let (mut ended, mut broken) = (Vec::new(), false);
        while !broken {
            match guest.end()? {
                End::Used(id, 513) => ended.push(id),
                End::Used(id, len) => anyhow::bail!("{id} of length {len}"),
                End::Broken => broken = true,
            }
        }
        while let Some((id, _)) = guest.take_used() {
            ended.push(id);
        }
        ensure!(ended == [0, 1], "{ended:?}");
        Ok(Expect::Spoiled)
    })
}

/// Chains of three in a ring of an odd size begin at another place in each lap.
fn odd_ring(size: u16) -> RingRow {
    let packed = Layout::packed();
    let mut whole = true;
    ring(Layout { size, ..packed }, 1, move |guest, _| {
        let turns = if std::mem::take(&mut whole) { u32::from(size) * 2 } else { 8 };
        for turn in 0..turns {
            let id = (turn % u32::from(size)) as u16;
            guest.header(0, 0);
            guest.offer(&honest(id))?;
            let end = guest.end()?;
            ensure!(end == End::Used(id.into(), 513), "turn {turn}: {end:?}");
        }
        Ok(Expect::Checked)
    })
}

pub fn b07_ring_of_3() -> RingRow {
    odd_ring(3)
}

pub fn b07_ring_of_1000() -> RingRow {
    odd_ring(1000)
}

pub fn b07_ring_of_32767() -> RingRow {
    odd_ring(32767)
}

pub fn b08_ring_base_outside_the_ring_or_of_the_wrong_lap() -> RingRow {
    ring(Layout::packed(), 5, move |guest, variant| {
        let base = [8u32, 0x8008, 0x8008_8000, 0x7fff_0000, 0][variant];
        guest.stop()?;
        guest.set_up()?;
        guest.settle()?;
        guest.stop()?;
        guest.raw.send(request::SET_VRING_BASE, VERSION, &ring_state(0, base), &[])?;
        // The kick starts it again, on what the base says.
        guest.start_again()?;
        guest.settle()?;
        guest.header(0, 0);
        guest.offer(&honest(0))?;
        pause(std::time::Duration::from_micros(500));
        ensure!(guest.take_used().is_none() && guest.status() == 0xff, "it was served");
        Ok(Expect::Spoiled)
    })
}

pub fn b09_descriptor_rewritten_after_the_kick() -> RingRow {
    ring(Layout::packed(), 3, move |guest, variant| {
        guest.header(0, 0);
        guest.offer(&honest(2))?;
        let ring = guest.places()[0];
        let lap = AVAIL;
        match variant {
            0 => guest.entry(ring, 1, D(u64::MAX, u32::MAX, WRITE | lap, 7)),
            1 => guest.entry(ring, 2, D(STATUS, 1, WRITE | lap, 0xffff)),
            _ => guest.entry(ring, 1, D(DATA, 512, INDIRECT | lap, 2)),
        }
        let end = guest.end()?;
        ensure!(matches!(end, End::Broken | End::Used(2, 513 | 1)), "{end:?}");
        Ok(Expect::Spoiled)
    })
}
