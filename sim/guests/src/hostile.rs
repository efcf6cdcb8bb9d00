//! A guest, and a VMM, that break any rule: of rings, headers, messages and records, at random, in between
//! enough that is right for something to happen.
//!
//! Nothing is expected of its own disk or memory. What is: nobody else notices, nothing panics, and its VMM
//! can always stop and reset it.

use random::Random;
use vhost_user::message::{RingFd, RingState};
use vhost_user::{Message, RingAddresses};
use virtqueue::driver::{Buffer, RawDescriptor};

use crate::guest::Guest;
use crate::lan::mac;
use crate::layout::{LINE, MEMORY, Memory, ROOM, SLOTS};
use crate::station::{HEADER as NET_HEADER, TRANSMIT};

/// Something that a guest can do to its rings. What it does not know any more, it forgets.
pub(crate) fn act(guest: &mut Guest, random: &mut Random) {
    let index = random.below(guest.queues.len() as u64) as usize;
    for _ in 0..random.below(4) {
        match random.below(8) {
            0 => write_descriptor(guest, index, random),
            1 => move_index(guest, index, random),
            2 => scribble(guest, index, random),
            3..6 if guest.spec.vlan.is_some() => send(guest, random),
            _ => ask(guest, index, random),
        }
    }
    let queue = &mut guest.queues[index];
    if random.one_in(2) {
        while queue.driver.take_used().is_some() {}
    }
    let kicks = queue.driver.publish() || random.one_in(4);
    if kicks {
        crate::signal::raise(&queue.kick);
    }
    crate::signal::take(&queue.call);
}

/// A guest address: of this guest's memory, or near its end, or any.
fn address(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.next(),
        1 => MEMORY - random.below(64),
        2 => random.below(MEMORY / 4096) * 4096,
        3 => u64::MAX - random.below(4096),
        _ => random.below(MEMORY),
    }
}

fn length(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => random.next() as u32,
        1 => 0,
        2 => u32::MAX - random.below(16) as u32,
        3 => random.below(1 << 20) as u32,
        _ => random.below(17) as u32 * 512,
    }
}

fn write_descriptor(guest: &Guest, index: usize, random: &mut Random) {
    let queue = &guest.queues[index];
    let flags = match random.below(3) {
        0 => random.next() as u16,
        _ => random.below(8) as u16,
    };
    let size = u64::from(queue.layout.ring.size);
    let next_or_id = match random.one_in(4) {
        true => random.next() as u16,
        false => random.below(size + 1) as u16,
    };
    let (gpa, len) = (address(random), length(random));
    let descriptor = RawDescriptor { gpa, len, flags, next_or_id };
    let raw = queue.driver.raw();
    let place = random.below(size) as u16;
    match random.one_in(3) {
        true => raw.write_descriptor_to(&queue.layout.tables.area, place, descriptor),
        false => raw.write_descriptor(place, descriptor),
    }
}

fn move_index(guest: &Guest, index: usize, random: &mut Random) {
    let raw = guest.queues[index].driver.raw();
    let by = random.of(&[1, 1, 2, 8, 64, u16::MAX, 32768]);
    raw.set_avail_index(raw.avail_index().wrapping_add(by));
    if random.one_in(4) {
        raw.set_used_index(random.next() as u16);
    }
    raw.write_avail(random.next() as u16, random.below(64) as u16);
}

/// Any bytes in any of its parts.
fn scribble(guest: &Guest, index: usize, random: &mut Random) {
    let layout = &guest.queues[index].layout;
    let parts = [
        &layout.driver,
        &layout.device,
        &layout.descriptors,
        &layout.tables,
        &layout.lines,
        &layout.statuses,
    ];
    let part = parts[random.below(parts.len() as u64) as usize];
    let at = random.below(part.area.len() as u64) as usize;
    let bytes = (random.next() >> random.below(64)).to_le_bytes();
    let _ = part.area.write(at, &bytes[..bytes.len().min(part.area.len() - at)]);
}

/// A request of the right form, with whatever in it.
fn ask(guest: &mut Guest, index: usize, random: &mut Random) {
    let queue = &mut guest.queues[index];
    let at = random.below(SLOTS as u64) as usize;
    let lines = &queue.layout.lines;
    let kind = random.of(&[0, 1, 0, 1, 4, 8, 11, 13, 2, u32::MAX]);
    let sector = match random.one_in(4) {
        true => random.next() >> random.below(64),
        false => random.below(128),
    };
    lines.area.store_u32(at * LINE, kind);
    lines.area.store_u64(at * LINE + 8, sector);
    lines.area.store_u64(at * LINE + 16, sector);
    lines.area.store_u64(at * LINE + 24, random.below(64));
    let header = random.of(&[16, 16, 16, 15, 32]);
    let gpa = lines.gpa + (at * LINE) as u64;
    let mut buffers = vec![Buffer { gpa, len: header, device_writes: random.one_in(32) }];
    for _ in 0..random.below(4) {
        let (gpa, len) = (address(random), length(random));
        buffers.push(Buffer { gpa, len, device_writes: kind != 1 || random.one_in(16) });
    }
    let gpa = queue.layout.statuses.gpa + (at * LINE) as u64;
    if !random.one_in(16) {
        buffers.push(Buffer { gpa, len: 1, device_writes: !random.one_in(32) });
    }
    // What does not fit is not said.
    let _ = queue.driver.add(&buffers, 0);
}

/// A frame in its own name, of which its header may say anything, and which may say to be of another VLAN.
fn send(guest: &mut Guest, random: &mut Random) {
    let own = mac(guest.spec.number);
    let Some(queue) = guest.queues.get_mut(TRANSMIT) else { return };
    let header = (0..NET_HEADER).map(|_| if random.one_in(3) { random.next() as u8 } else { 0 });
    let header: Vec<u8> = header.collect();
    let to = if random.one_in(2) { [0xff; 6] } else { mac(random.below(8)) };
    let begins = [[0x81, 0, 0, 7], [0x88, 0xb5, 0, 0], [0x08, 0, 0x45, 0], [0x86, 0xdd, 0x60, 0]];
    let mut bytes = [&header[..], &to, &own, &random.of(&begins)].concat();
    bytes.resize(bytes.len() + random.of(&[0, 20, 46, 1500, 8000]), 6);
    let place = random.below(SLOTS as u64) as usize * ROOM;
    let _ = queue.layout.out.area.write(place, &bytes);
    let (gpa, len) = (queue.layout.out.gpa + place as u64, bytes.len() as u32);
    // What does not fit is not said.
    let _ = queue.driver.add(&[Buffer { gpa, len, device_writes: random.one_in(32) }], 0);
}

/// Something that no VMM would say.
pub(crate) fn babble(queues: u16, random: &mut Random) -> Vec<u8> {
    let queue = random.below(u64::from(queues) + 1) as u32;
    let state = RingState { queue, value: random.next() as u32 >> random.below(32) };
    let user = Memory::user(address(random) % MEMORY) & !63;
    let addresses = RingAddresses {
        descriptors: user,
        driver: Memory::user(random.below(MEMORY)) & !3,
        device: if random.one_in(2) { random.next() & !3 } else { user },
        log: 0,
        logged: false,
    };
    let message = match random.below(9) {
        0 => Message::SetVringNum(state),
        1 => Message::SetVringBase(state),
        2 => Message::SetVringAddr((queue, addresses)),
        3 => Message::SetVringEnable(state),
        4 => Message::SetVringKick(RingFd { queue, has_fd: false }),
        5 => Message::SetFeatures(random.next()),
        6 => Message::GetVringBase(state),
        7 => Message::ResetOwner,
        _ => Message::SetMemTable(Vec::new()),
    };
    let mut bytes = message.emit(random.one_in(2));
    if random.one_in(8) {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}
