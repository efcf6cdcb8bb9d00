//! Rows C1 to C9, C11, C12, C14, C15 and C17 of `docs/security.md`: block requests that
//! no driver sends, over a real session.
//!
//! Those that last (C10, C13) are in `storms`; memory that cannot be touched (C16) in
//! `lost_memory`.

use anyhow::{Context, Result, ensure};

use super::{READ_ONLY, RingRow, ring};
use crate::hostile_bed::{Expect, IO_ERROR, UNSUPPORTED, done};
use crate::hostile_guest::{D, DATA, End, Guest, HEADER, Layout, NEXT, STATUS, WRITE};
use crate::raw_front_end::{Answer, NEED_REPLY, VERSION};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
/// Of the attacked disk: 4 MiB.
const SECTORS: u64 = 8192;

/// Offers pieces one after the other: address, bytes, and whether the device writes.
fn offer(guest: &mut Guest, pieces: &[(u64, u32, u16)]) -> Result<()> {
    let last = pieces.len() - 1;
    let chain: Vec<D> = (0u16..)
        .zip(pieces)
        .map(|(at, (gpa, len, flags))| {
            D(*gpa, *len, flags | if usize::from(at) < last { NEXT } else { 0 }, at + 1)
        })
        .collect();
    guest.offer(&chain)
}

/// Header, data, status.
fn request(guest: &mut Guest, kind: u32, sector: u64, data: (u32, u16)) -> Result<()> {
    guest.header(kind, sector);
    offer(guest, &[(HEADER, 16, 0), (DATA, data.0, data.1), (STATUS, 1, WRITE)])
}

pub fn c01_chain_too_short_for_header_and_status() -> RingRow {
    ring(Layout::default(), 5, move |guest, variant| {
        guest.header(IN, 0);
        let chains: [&[(u64, u32, u16)]; 5] = [
            &[(HEADER, 16, 0)],
            &[(STATUS, 1, WRITE)],
            &[(HEADER, 15, 0), (STATUS, 1, WRITE)],
            &[(HEADER, 8, 0), (HEADER + 8, 7, 0), (DATA, 512, WRITE), (STATUS, 1, WRITE)],
            &[(HEADER, 0, 0)],
        ];
        offer(guest, chains[variant])?;
        Ok(Expect::Broken("without room for its"))
    })
}

pub fn c02_header_and_status_framed_oddly() -> RingRow {
    ring(Layout::default(), 6, move |guest, variant| {
        let kind = if variant == 4 { OUT } else { IN };
        guest.header(kind, 16);
        let mut pieces: Vec<(u64, u32, u16)> = match variant {
            0 => vec![(HEADER, 1, 0), (HEADER + 1, 15, 0)],
            1 => vec![(HEADER, 8, 0), (HEADER + 8, 8, 0)],
            2 => (0..13).map(|at| (HEADER + at, 1, 0)).chain([(HEADER + 13, 3, 0)]).collect(),
            _ => vec![(HEADER, 16, 0)],
        };
        match variant {
            // The status is the last byte of the data's buffer.
            3 => pieces.push((STATUS - 512, 513, WRITE)),
            // Header and data in one buffer. What is behind the header is its status, too.
            4 => pieces = vec![(HEADER, 16 + 512, 0), (STATUS, 1, WRITE)],
            5 => pieces.extend([(DATA, 100, WRITE), (DATA + 100, 412, WRITE), (STATUS, 1, WRITE)]),
            _ => pieces.push((STATUS - 512, 513, WRITE)),
        }
        offer(guest, &pieces)?;
        Ok(done(if kind == OUT { 1 } else { 513 }))
    })
}

pub fn c03_sectors_beyond_the_end() -> RingRow {
    ring(Layout::default(), 16, move |guest, variant| {
        let (sector, sectors) = [
            (SECTORS, 1),
            (SECTORS - 1, 2),
            (SECTORS - 7, 8),
            (u64::MAX, 1),
            (u64::MAX - 1, 2),
            (1 << 55, 1),
            ((1 << 55) + 1, 1),
            (1 << 63, 8),
        ][variant / 2];
        let flags = if variant % 2 == 0 { WRITE } else { 0 };
        request(guest, if flags == WRITE { IN } else { OUT }, sector, (sectors * 512, flags))?;
        Ok(IO_ERROR)
    })
}

pub fn c04_data_that_is_not_whole_sectors() -> RingRow {
    ring(Layout::default(), 8, move |guest, variant| {
        let len = [0, 1, 511, 513][variant / 2];
        let flags = if variant % 2 == 0 { WRITE } else { 0 };
        request(guest, if flags == WRITE { IN } else { OUT }, 0, (len, flags))?;
        Ok(IO_ERROR)
    })
}

pub fn c05_types_that_this_device_does_not_have() -> RingRow {
    let types = [2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 18, 24, 26, 0x100, 1 << 31, (1 << 31) | 1, !0];
    ring(Layout::default(), types.len(), move |guest, variant| {
        request(guest, types[variant], 0, (512, [0, WRITE][variant % 2]))?;
        Ok(UNSUPPORTED)
    })
}

pub fn c06_writes_to_a_disk_that_is_not_written() -> RingRow {
    // Discard and zeroing are not even offered; F_RO is not accepted, as by a driver that lies.
    let layout = Layout { features: 1 << 9, ..Layout::default() };
    let row = ring(layout, 3, move |guest, variant| {
        match variant {
            0 => request(guest, OUT, 8, (512, 0))?,
            1 => request(guest, DISCARD, 8, (16, 0))?,
            _ => request(guest, WRITE_ZEROES, 8, (16, 0))?,
        }
        let expected = if variant == 0 { 1 } else { 2 };
        let end = guest.end()?;
        ensure!(end == End::Used(0, 1) && guest.status() == expected, "{end:?}");
        guest.put(DATA, &[0x5a; 512]);
        guest.honest(IN, 8, 512)?;
        ensure!(guest.get(DATA, 512) == [0; 512], "it was written");
        Ok(Expect::Checked)
    });
    RingRow { disk: READ_ONLY, ..row }
}

pub fn c07_data_of_the_wrong_direction() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        match variant {
            0 => request(guest, IN, 0, (512, 0))?,
            1 => request(guest, OUT, 0, (512, WRITE))?,
            _ => {
                guest.header([IN, OUT][variant % 2], 0);
                offer(guest, &[(HEADER, 16, 0), (STATUS, 1, WRITE)])?;
            }
        }
        Ok(IO_ERROR)
    })
}

/// One range of a discard or of zeroes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut bytes = sector.to_le_bytes().to_vec();
    bytes.extend(sectors.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

pub fn c08_flags_that_a_range_may_not_have() -> RingRow {
    ring(Layout::default(), 5, move |guest, variant| {
        let (kind, flags) =
            [(DISCARD, 1), (DISCARD, 2), (DISCARD, 1 << 31), (WRITE_ZEROES, 2), (WRITE_ZEROES, !0)]
                [variant];
        guest.put(DATA, &range(8, 8, flags));
        request(guest, kind, 0, (16, 0))?;
        Ok(UNSUPPORTED)
    })
}

pub fn c09_ranges_that_cannot_be() -> RingRow {
    let end = SECTORS;
    let whole = |ranges: &[Vec<u8>]| ranges.concat();
    let cases = [
        whole(&[range(0, 0, 0)]),
        whole(&[range(0, u32::MAX, 0)]),
        whole(&[range(end, 1, 0)]),
        whole(&[range(end - 1, 2, 0)]),
        whole(&[range(u64::MAX, 8, 0)]),
        whole(&[range(1 << 55, 8, 0)]),
        // More than one, overlapping, cut off.
        whole(&[range(0, 8, 0), range(4, 8, 0)]),
        vec![range(0, 8, 0); 64].concat(),
        range(0, 8, 0)[..15].to_vec(),
        range(0, 8, 0)[..1].to_vec(),
        [range(0, 8, 0), vec![0]].concat(),
    ];
    ring(Layout::default(), 2 * cases.len(), move |guest, variant| {
        let ranges = &cases[variant / 2];
        guest.put(DATA, ranges);
        let kind = [DISCARD, WRITE_ZEROES][variant % 2];
        request(guest, kind, 0, (ranges.len() as u32, 0))?;
        Ok(IO_ERROR)
    })
}

pub fn c11_serial_number_into_a_buffer_of_another_size() -> RingRow {
    ring(Layout::default(), 6, move |guest, variant| {
        let room = [20, 19, 1, 0, 21, 512][variant];
        guest.put(DATA, &[0xee; 600]);
        request(guest, GET_ID, 0, (room, WRITE))?;
        let end = guest.end()?;
        let copied = room.min(20);
        ensure!(end == End::Used(0, copied + 1) && guest.status() == 0, "{end:?}");
        let rest = guest.get(DATA + u64::from(copied), 500);
        ensure!(rest == [0xee; 500], "bytes behind the serial number were written");
        Ok(Expect::Checked)
    })
}

pub fn c12_flush_with_data_or_a_sector() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        match variant {
            0 => {
                guest.header(FLUSH, u64::MAX);
                offer(guest, &[(HEADER, 16, 0), (STATUS, 1, WRITE)])?;
            }
            1 => request(guest, FLUSH, 5, (512, 0))?,
            2 => request(guest, FLUSH, 0, (512, WRITE))?,
            _ => request(guest, FLUSH, 0, (3, 0))?,
        }
        Ok(done(1))
    })
}

pub fn c14_status_of_no_bytes_or_that_the_device_may_not_write() -> RingRow {
    ring(Layout::default(), 3, move |guest, variant| {
        guest.header(OUT, 0);
        let status = [(STATUS, 1, 0), (STATUS, 0, WRITE), (STATUS, 0, 0)][variant];
        offer(guest, &[(HEADER, 16, 0), (DATA, 512, 0), status])?;
        Ok(Expect::Broken("without room for its"))
    })
}

pub fn c15_nothing_but_what_was_read_is_written() -> RingRow {
    ring(Layout::default(), 4, move |guest, variant| {
        guest.put(DATA, &[0xc5; 8192]);
        // Beyond the end, in part beyond it, not whole sectors, and one that is done.
        let (sector, len) = [(SECTORS, 4096), (SECTORS - 1, 4096), (0, 1000), (64, 4096)][variant];
        request(guest, IN, sector, (len, WRITE))?;
        let end = guest.end()?;
        let was_done = variant == 3;
        let used = if was_done { 4097 } else { 1 };
        ensure!(end == End::Used(0, used), "{end:?}");
        ensure!(guest.status() == u8::from(!was_done), "status {}", guest.status());
        let untouched = if was_done { 4096 } else { 0 };
        let rest = guest.get(DATA + untouched, 4096);
        ensure!(rest == [0xc5; 4096], "bytes that nobody read were written");
        Ok(Expect::Checked)
    })
}

pub fn c17_config_space_beyond_its_end_and_a_cache_mode_of_2_to_255() -> RingRow {
    const GET_CONFIG: u32 = 24;
    const SET_CONFIG: u32 = 25;
    const WCE: u32 = 32;
    let payload = |offset: u32, size: u32, bytes: &[u8]| {
        let mut payload: Vec<u8> =
            [offset, size, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        payload.extend(bytes);
        payload
    };
    ring(Layout::default(), 10, move |guest, variant| {
        let bad = [
            payload(60, 1, &[0]),
            payload(255, 1, &[0]),
            payload(256, 1, &[0]),
            payload(u32::MAX, 1, &[0]),
            payload(0, 8, &[0xff; 8]),
            payload(31, 2, &[0, 0]),
            payload(32, 2, &[0, 0]),
            payload(33, 1, &[1]),
        ];
        if let Some(bad) = bad.get(variant) {
            let answer = guest.raw.tell(SET_CONFIG, bad, &[])?;
            ensure!(answer.is_nak(), "{bad:?}: {answer:?}");
            return Ok(Expect::Checked);
        }
        for written in [0u8, [2, 255][variant % 2], 0, 1] {
            let bytes = payload(WCE, 1, &[written]);
            let answer = guest.raw.tell(SET_CONFIG, &bytes, &[])?;
            ensure!(answer.is_ack(), "{written}: {answer:?}");
            guest.raw.send(GET_CONFIG, VERSION & !NEED_REPLY, &payload(WCE, 1, &[0]), &[])?;
            let answer = guest.raw.answer()?;
            let Answer::Reply(GET_CONFIG, found) = answer else { anyhow::bail!("{answer:?}") };
            let found = *found.last().context("an empty config space")?;
            ensure!(found == u8::from(written != 0), "{written} reads as {found}");
        }
        Ok(Expect::Checked)
    })
}
