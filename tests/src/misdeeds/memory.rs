//! Rows E15, E19 and E20 of `docs/security.md`: memory that is announced anew, moved, taken
//! back or much too large while the device runs. Attack 11 of
//! `docs/decisions/0004-known-attacks.md`.

use std::os::fd::AsFd;

use super::{RingRow, ring};
use crate::door::Door;
use crate::hostile_bed::Expect;
use crate::hostile_guest::{
    BASE, D, DATA, End, Guest, HEADER, Layout, MEMORY, NEXT, SECOND, STATUS, USER, WRITE,
};
use crate::raw_front_end::{Raw, request, ring_addresses, sealed_memory, table, words};
use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::daemon::pause;
use testing::frontend::FrontendSpec;

fn tell_table(guest: &mut Guest, regions: &[[u64; 4]]) -> Result<crate::raw_front_end::Answer> {
    let file = guest.file().try_clone()?;
    let fds = vec![file.as_fd(); regions.len()];
    guest.raw.tell(request::SET_MEM_TABLE, &table(regions), &fds)
}

fn read_into(guest: &mut Guest, gpa: u64) -> Result<()> {
    guest.header(0, 0);
    guest.offer(&[D(HEADER, 16, NEXT, 1), D(gpa, 512, NEXT | WRITE, 2), D(STATUS, 1, WRITE, 0)])
}

pub fn e15_the_same_memory_again() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        read_into(guest, DATA)?;
        ensure!(tell_table(guest, &[[BASE, MEMORY, BASE + USER, 0]])?.is_ack());
        ensure!(guest.end()? == End::Used(0, 513), "what was in flight");
        guest.honest(0, 0, 512)?;
        Ok(Expect::Checked)
    })
}

pub fn e15_memory_that_moved() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        let moved = USER + (1 << 41);
        ensure!(tell_table(guest, &[[BASE, MEMORY, BASE + moved, 0]])?.is_ack());
        guest.settle()?;
        // The rings are where they were, and there is no memory any more.
        read_into(guest, DATA)?;
        pause(std::time::Duration::from_micros(500));
        ensure!(guest.take_used().is_none(), "a ring outside of memory is served");
        let [descriptors, driver, device] = guest.places().map(|gpa| gpa + moved);
        let addresses = ring_addresses(0, [descriptors, device, driver]);
        ensure!(guest.raw.tell(request::SET_VRING_ADDR, &addresses, &[])?.is_ack());
        guest.kick()?;
        ensure!(guest.end()? == End::Used(0, 513), "once they are told, it goes on");
        ensure!(tell_table(guest, &[[BASE, MEMORY, BASE + USER, 0]])?.is_ack());
        Ok(Expect::Spoiled)
    })
}

pub fn e15_memory_that_shrank() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        ensure!(tell_table(guest, &[[BASE, MEMORY / 2, BASE + USER, 0]])?.is_ack());
        read_into(guest, BASE + 0x1c_0000)?;
        ensure!(guest.end()? == End::Used(0, 513), "what is left works");
        read_into(guest, SECOND)?;
        ensure!(guest.end()? == End::Broken, "what is gone does not");
        ensure!(tell_table(guest, &[[BASE, MEMORY, BASE + USER, 0]])?.is_ack());
        Ok(Expect::Spoiled)
    })
}

pub fn e15_no_memory_at_all() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        ensure!(tell_table(guest, &[])?.is_nak(), "an empty table");
        // Nothing was changed by what was refused.
        guest.honest(0, 0, 512)?;
        Ok(Expect::Checked)
    })
}

fn region(gpa: u64, bytes: u64) -> Vec<u8> {
    [words(&[0]), words(&[gpa, bytes, gpa + USER, 0])].concat()
}

pub fn e20_regions_added_and_removed_wrongly() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        let file = sealed_memory(1 << 20)?;
        let far = 1 << 45;
        let add = |guest: &mut Guest, gpa| {
            guest.raw.tell(request::ADD_MEM_REG, &region(gpa, 1 << 20), &[file.as_fd()])
        };
        let remove = |guest: &mut Guest, gpa, bytes| {
            guest.raw.tell(request::REM_MEM_REG, &region(gpa, bytes), &[])
        };
        ensure!(remove(guest, far, 1 << 20)?.is_nak(), "an unknown one");
        ensure!(remove(guest, BASE, MEMORY - 4096)?.is_nak(), "of another size");
        ensure!(add(guest, BASE)?.is_nak(), "one that is there");
        ensure!(add(guest, BASE + MEMORY - 4096)?.is_nak(), "one that overlaps");
        ensure!(add(guest, far)?.is_ack());
        ensure!(add(guest, far)?.is_nak(), "the same twice");
        let with_fd =
            guest.raw.tell(request::REM_MEM_REG, &region(far, 1 << 20), &[file.as_fd()])?;
        ensure!(with_fd.is_ack(), "a descriptor with it is closed unused");
        guest.honest(0, 0, 512)?;
        Ok(Expect::Checked)
    })
}

pub fn e20_the_region_in_use_is_removed() -> RingRow {
    ring(Layout::default(), 1, move |guest, _| {
        guest.honest(0, 0, 512)?;
        let answer = guest.raw.tell(request::REM_MEM_REG, &region(BASE, MEMORY), &[])?;
        ensure!(answer.is_ack(), "{answer:?}");
        read_into(guest, DATA)?;
        pause(std::time::Duration::from_micros(500));
        ensure!(guest.take_used().is_none(), "a ring outside of memory is served");
        let file = guest.file().try_clone()?;
        let answer =
            guest.raw.tell(request::ADD_MEM_REG, &region(BASE, MEMORY), &[file.as_fd()])?;
        ensure!(answer.is_ack(), "{answer:?}");
        ensure!(guest.end()? == End::Used(0, 513), "it goes on");
        Ok(Expect::Spoiled)
    })
}

pub fn e20_more_regions_than_there_may_be(door: &Door<'_>) -> Result<()> {
    let file = sealed_memory(4096)?;
    let mut raw = door.raw()?;
    let mut taken = 0u64;
    for number in 0..600u64 {
        let answer =
            raw.tell(request::ADD_MEM_REG, &region(number << 20, 4096), &[file.as_fd()])?;
        if answer.is_refusal() {
            break;
        }
        taken += 1;
    }
    ensure!(taken == 509, "{taken} regions were taken, 509 are offered");
    drop(raw);
    door.is_unharmed()
}

/// Attack 11: address space for many devices at once. What one front-end may have is bounded, and
/// what all may have together, so that the next good one finds room.
pub fn e19_address_space_for_many_devices(door: &Door<'_>) -> Result<()> {
    let huge = 15u64 << 40;
    let mut taken = Vec::new();
    let mut refused = 0;
    for number in 0..12 {
        let id = format!("huge{number}");
        door.daemon.ask(&format!("disk add {id} --backend null --size 4M"))?;
        let file = sealed_memory(huge)?;
        let mut raw = Raw::negotiated(&door.daemon.socket(&id), 0)?;
        let announced = table(&[[0, huge, 0, 0]]);
        match raw.tell(request::SET_MEM_TABLE, &announced, &[file.as_fd()])?.is_ack() {
            true => taken.push((raw, file)),
            false => refused += 1,
        }
    }
    door.note(&format!(
        "of 12 front-ends with 15 TiB each, {} were taken, {refused} refused",
        taken.len()
    ));
    ensure!(refused > 0, "nothing bounds what all front-ends map together");
    // One that is beyond any machine is refused by itself.
    let mut raw = door.raw()?;
    let file = sealed_memory(17 << 40)?;
    let answer =
        raw.tell(request::SET_MEM_TABLE, &table(&[[0, 17 << 40, 0, 0]]), &[file.as_fd()])?;
    ensure!(answer.is_nak(), "17 TiB: {answer:?}");
    drop(raw);
    let spec = FrontendSpec { queues: 2, ..FrontendSpec::default() };
    let good = door.frontend(&spec).context("a good front-end beside them")?;
    good.disconnect()?;
    drop(taken);
    for number in 0..12 {
        door.daemon.ask(&format!("disk rm huge{number} --force"))?;
    }
    Ok(())
}

/// Attack 9: measured, not repelled: pages that nobody has touched before are made by the sidecore.
pub fn attack_09_pages_touched_for_the_first_time(door: &Door<'_>) -> Result<()> {
    let mut guest = door.guest(Layout::default())?;
    let (fresh, bytes) = (1u64 << 36, 256u64 << 20);
    let file = sealed_memory(bytes)?;
    let own = guest.file().try_clone()?;
    let regions = [[1 << 32, 4 << 20, (1 << 32) + USER, 0], [fresh, bytes, fresh + USER, 0]];
    let fds = [own.as_fd(), file.as_fd()];
    ensure!(guest.raw.tell(request::SET_MEM_TABLE, &table(&regions), &fds)?.is_ack());
    let mut took = [0u64; 2];
    for (pass, took) in took.iter_mut().enumerate() {
        let start = now_ns();
        for at in 0..64u64 {
            guest.header(0, 0);
            let place = fresh + at * (1 << 20);
            guest.offer(&[
                D(HEADER, 16, NEXT, 1),
                D(place, 1 << 20, NEXT | WRITE, 2),
                D(STATUS, 1, WRITE, 0),
            ])?;
            ensure!(matches!(guest.end()?, End::Used(..)), "pass {pass}");
        }
        *took = (now_ns() - start) / 64;
    }
    let [first, again] = took;
    door.note(&format!("1 MiB into pages never touched takes {first} ns, again {again} ns"));
    Ok(())
}
