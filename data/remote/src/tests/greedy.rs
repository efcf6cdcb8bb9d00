//! Clients with keys that take more than their part: of the caller's time, and of memory.

use super::*;
use crate::handshake::public_key;

const KEYS: [[u8; 32]; 2] = [[2; 32], [3; 32]];

fn public(of: usize) -> [u8; 32] {
    public_key(&KEYS[of]).expect("a key")
}

/// Takes a device and gives it back, as fast as it can: how often the caller had to open it within five seconds.
fn opens(pair: &mut Pair) -> u32 {
    let mut rogue = Rogue::new(pair);
    let (end, mut generation, mut binding) = (pair.now + 5 * SECOND, 0, 0);
    let mut opened = 0;
    while pair.now < end {
        binding += 1;
        let handle = crate::handle(0, binding);
        rogue.say(pair, &[Record::Bind(bind(binding))]);
        rogue.say(pair, &[Record::Release { handle }]);
        rogue.say(pair, &[Record::Ping]);
        opened += u32::from(std::mem::replace(&mut generation, pair.kept_generation) != generation);
        pair.now += 10 * MS;
    }
    opened
}

#[test]
fn a_client_with_a_key_has_a_device_opened_twice_a_second_and_four_times_at_once() {
    let mut pair = Pair::new(10_000);
    pair.key = Some(KEYS[0]);
    let opened = opens(&mut pair);
    assert!((12..=14).contains(&opened), "{opened}");
    // Somebody else is not held up by that.
    pair.key = Some(KEYS[1]);
    let opened = opens(&mut pair);
    assert!((12..=14).contains(&opened), "{opened}");
}

/// Devices of 16 MiB each: the first two are the first client's alone, two the second one's, and the last one is for both.
fn host_for_two(memory_max: usize) -> Host<Shared> {
    let mut host = Host::new(HostSpec { memory_max, client_memory_max: memory_max, ..HOST });
    for (device, clients) in [vec![0], vec![0], vec![1], vec![1], vec![0, 1]].iter().enumerate() {
        let clients = clients.iter().map(|one| public(*one)).collect();
        host.export(ExportSpec { clients, ..export(device as u64, 0) });
    }
    host
}

/// How many of its devices a client gets.
fn has(memory_max: usize, one: usize, slots: u16) -> usize {
    let mut pair = Pair::new(10_000);
    pair.host = host_for_two(memory_max);
    pair.key = Some(KEYS[one]);
    let mut rogue = Rogue::new(&mut pair);
    for device in 0..5 {
        let wish =
            Bind { device, index: device as u16, slots, slot_bytes: 128 << 10, ..bind(device + 1) };
        rogue.say(&mut pair, &[Record::Bind(wish)]);
        rogue.say(&mut pair, &[Record::Ping]);
    }
    rogue.heard.iter().filter(|heard| heard.contains("Fresh")).count()
}

#[test]
fn a_client_leaves_others_the_memory_for_their_devices() {
    const MIB: usize = 1 << 20;
    for one in 0..2 {
        // There is enough for all: for each its own.
        assert_eq!(has(80 * MIB, one, 128), 3);
        // Larger slots take nothing from others: 48 MiB are left, which is one of 32.
        assert_eq!(has(80 * MIB, one, 256), 1);
        // Three fifths of too little.
        assert_eq!(has(60 * MIB, one, 128), 2);
    }
}
