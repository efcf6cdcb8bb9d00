//! Each field of each message with whatever may stand in it: taken as the protocol has it, or refused for what is wrong
//! with that field, by its name and number.

use proptest::prelude::*;

use super::*;

/// Numbers as they come, and as they are chosen by whoever looks for an edge.
fn word() -> impl Strategy<Value = u32> {
    let edges = [0, 1, 2, 3, 255, 256, 32767, 32768, 32769, 0xffff, 0x1_0000, u32::MAX];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u32>(), 0u32..300]
}

fn long() -> impl Strategy<Value = u64> {
    let shifted = (0u32..64, -2i64..3).prop_map(|(bit, by)| (1u64 << bit).wrapping_add_signed(by));
    prop_oneof![shifted, any::<u64>(), 0u64..0x4000]
}

fn any_region() -> impl Strategy<Value = MemoryRegion> {
    // Mostly in pages, so that some lie side by side and some over each other.
    let field =
        || prop_oneof![4 => (0u64..5).prop_map(|page| page << 12), 1 => 0u64..0x3000, 1 => long()];
    (field(), field(), field(), field()).prop_map(|(gpa, size, user, offset)| MemoryRegion {
        gpa,
        size,
        user,
        offset,
    })
}

/// What a session that has agreed on all that a device offers says to a message. A refusal is told, and changes nothing.
fn answer(
    nic: bool,
    features: u64,
    message: &Message,
    world: &mut World,
) -> Result<Vec<u8>, Refused<&'static str>> {
    let mut session = if nic { self::nic() } else { session() };
    let offered = session.facts.class.protocol_features();
    say(&mut session, world, &Message::SetProtocolFeatures(offered)).unwrap();
    say(&mut session, world, &Message::SetFeatures(features)).unwrap();
    let (before, open) = (format!("{session:?}"), world.open());
    say(&mut session, world, message).map_err(|reject| {
        assert!(!reject.is_fatal());
        assert_eq!((format!("{session:?}"), world.open()), (before, open));
        reject.reason
    })
}

/// To a disk, with split rings or packed ones.
fn said(message: &Message, packed: bool) -> Result<Vec<u8>, Refused<&'static str>> {
    let features = VERSION_1 | if packed { bits::RING_PACKED } else { 0 };
    answer(false, features, message, &mut World::default())
}

/// Whether two runs of bytes share one, without the arithmetic of addresses.
fn touch(a: u64, a_size: u64, b: u64, b_size: u64) -> bool {
    let [a, a_size, b, b_size] = [a, a_size, b, b_size].map(u128::from);
    a.max(b) < (a + a_size).min(b + b_size)
}

/// What is wrong with a table, if anything is: the first region for which something is, alone before beside others.
fn wrong_with(regions: &[MemoryRegion]) -> Option<Reason> {
    let wrong = regions.iter().enumerate().find_map(|(at, one)| {
        let MemoryRegion { gpa, size, user, offset } = *one;
        let ends_where = |start: u64| u128::from(start) + u128::from(size) < 1 << 64;
        if size == 0 || ![gpa, user, offset].into_iter().all(ends_where) {
            return Some(Reason::RegionSize { gpa, size });
        }
        let clashes = |other: &MemoryRegion| {
            touch(gpa, size, other.gpa, other.size) || touch(user, size, other.user, other.size)
        };
        regions[..at].iter().any(clashes).then_some(Reason::RegionOverlap { gpa })
    });
    match regions.len() {
        1..=32 => wrong,
        count => Some(Reason::Regions(count)),
    }
}

proptest! {
    #[test]
    fn a_ring_has_a_size_that_its_form_allows(size in word(), packed in any::<bool>()) {
        let fits = (1..=32768).contains(&size) && (packed || size.is_power_of_two());
        let expected = if fits { Ok(ACK.to_vec()) } else { Err(Reason::RingSize(size).into()) };
        prop_assert_eq!(said(&Message::SetVringNum(state(1, size)), packed), expected);
    }

    #[test]
    fn a_split_ring_s_base_is_one_index_and_a_packed_ring_s_two(base in word(), packed in any::<bool>()) {
        let fits = packed || u16::try_from(base).is_ok();
        let expected = if fits { Ok(ACK.to_vec()) } else { Err(Reason::RingBase(base).into()) };
        prop_assert_eq!(said(&Message::SetVringBase(state(1, base)), packed), expected);
    }

    #[test]
    fn parts_of_a_ring_are_aligned_and_the_first_that_is_not_is_named(
        descriptors in long(), driver in long(), device in long(), packed in any::<bool>(),
    ) {
        let ring = RingAddresses { descriptors, driver, device, log: 1, logged: true };
        let driver_align = if packed { 4 } else { 2 };
        let wrong = [(descriptors, 16), (driver, driver_align), (device, 4)];
        let wrong = wrong.into_iter().find(|(at, align)| at % align != 0);
        let expected = match wrong {
            Some((at, _)) => Err(Reason::RingAddress(at).into()),
            None => Ok(ACK.to_vec()),
        };
        prop_assert_eq!(said(&Message::SetVringAddr((0, ring)), packed), expected);
    }

    #[test]
    fn a_queue_that_a_device_has_not_is_named_whatever_is_said_of_it(index in word(), at in 0usize..8) {
        let ring = RingFd { queue: index & 0xff, has_fd: index & 1 != 0 };
        let (index, message) = match at {
            0 => (index, Message::SetVringNum(state(index, 128))),
            1 => (index, Message::SetVringBase(state(index, 0))),
            2 => (index, Message::GetVringBase(state(index, 0))),
            3 => (index, Message::SetVringEnable(state(index, 1))),
            4 => (index, Message::SetVringAddr((index, addresses()))),
            5 => (ring.queue, Message::SetVringKick(ring)),
            6 => (ring.queue, Message::SetVringCall(ring)),
            _ => (ring.queue, Message::SetVringErr(ring)),
        };
        let answer = said(&message, false);
        match index < 2 {
            true => prop_assert!(answer.is_ok(), "{:?}", answer),
            false => prop_assert_eq!(answer, Err(Reason::Queue { index, queues: 2 }.into())),
        }
    }

    #[test]
    fn a_table_of_memory_is_taken_whole_or_the_wrong_region_is_named(
        regions in prop::collection::vec(any_region(), 0..5),
    ) {
        let expected = match wrong_with(&regions) {
            Some(wrong) => Err(wrong.into()),
            None => Ok(ACK.to_vec()),
        };
        let mut world = World::default();
        let table = Message::SetMemTable(regions.clone());
        prop_assert_eq!(answer(false, VERSION_1, &table, &mut world), expected.clone());
        let taken: Vec<MemoryRegion> = world.regions.iter().map(|(region, _)| *region).collect();
        prop_assert_eq!(taken, if expected.is_ok() { regions } else { Vec::new() });
    }

    /// One by one a table is the same as at once, but for how many there may be.
    #[test]
    fn regions_join_one_by_one_as_they_do_together(
        regions in prop::collection::vec(any_region(), 1..5),
    ) {
        let (mut world, mut session) = (World::default(), session());
        say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_DISK)).unwrap();
        let mut there: Vec<MemoryRegion> = Vec::new();
        for region in regions {
            there.push(region);
            let expected = wrong_with(&there).map(Refused::from);
            if expected.is_some() {
                there.pop();
            }
            let said = say(&mut session, &mut world, &Message::AddMemReg(region));
            prop_assert_eq!(said.err().map(|reject| reject.reason), expected);
        }
        // And leave one by one, each once.
        for region in there {
            let remove = Message::RemMemReg(MemoryRegion { offset: 77, ..region });
            prop_assert!(say(&mut session, &mut world, &remove).is_ok());
            let again = say(&mut session, &mut world, &remove).unwrap_err();
            prop_assert_eq!(again.reason, Reason::NoRegion { gpa: region.gpa }.into());
        }
        prop_assert!(world.regions.is_empty() && !session.has_memory());
    }

    #[test]
    fn features_are_what_was_offered_and_what_was_not_is_named(features in long(), nic in any::<bool>()) {
        let mut world = World::default();
        let mut session = if nic { self::nic() } else { session() };
        let acked = Message::SetProtocolFeatures(bits::REPLY_ACK);
        say(&mut session, &mut world, &acked).unwrap();
        let offered = VERSION_1 | bits::RING_PACKED | bits::TRANSPORT | bits::RING_RESET;
        let expected = match features & !offered {
            0 => None,
            unknown => Some(Reason::Features(unknown).into()),
        };
        let answer = say(&mut session, &mut world, &Message::SetFeatures(features));
        prop_assert_eq!(answer.err().map(|reject| reject.reason), expected);
        let offered = session.facts.class.protocol_features();
        let expected = match features & !offered {
            0 => None,
            unknown => Some(Reason::ProtocolFeatures(unknown).into()),
        };
        let answer = say(&mut session, &mut world, &Message::SetProtocolFeatures(features));
        prop_assert_eq!(answer.err().map(|reject| reject.reason), expected);
    }

    #[test]
    fn a_dirty_log_has_bytes_and_an_end(size in long(), offset in long()) {
        let area = LogArea { size, offset };
        let fits = size != 0 && offset.checked_add(size).is_some();
        let expected = match fits {
            true => Ok(message::payload(&area)),
            false => Err(Reason::Log { size, offset }.into()),
        };
        prop_assert_eq!(said(&Message::SetLogBase(area), false), expected);
    }

    #[test]
    fn a_record_of_what_is_in_flight_is_for_queues_that_are_there_and_long_enough(
        size in long(), offset in long(), queues in 0u16..4, queue_size in word(),
        packed in any::<bool>(), padded in any::<bool>(),
    ) {
        let queue_size = queue_size as u16;
        let area = InflightArea { size, offset, queues, queue_size, padded };
        let is_sized = (1..=2).contains(&queues) && (1..=32768).contains(&queue_size);
        let least = u64::from(queues) * u64::from(queue_size) * if packed { 32 } else { 16 };
        let fits = is_sized && size >= least && offset.checked_add(size).is_some();
        let expected = match fits {
            true => Ok(ACK.to_vec()),
            false => Err(Reason::Inflight { size, queues, queue_size }.into()),
        };
        prop_assert_eq!(said(&Message::SetInflightFd(area), packed), expected);
        // One that is asked for is so long, or of no bytes; whatever was said of size and offset.
        let made = said(&Message::GetInflightFd(area), packed).unwrap();
        let size = if is_sized { least } else { 0 };
        let whole = message::payload(&InflightArea { size, offset: 0, ..area });
        prop_assert_eq!(made, whole);
    }

    #[test]
    fn config_space_is_written_where_it_can_be_and_nowhere_else(
        offset in word(), size in word(), flags in 0u32..4, length in 0usize..300,
    ) {
        let span = ConfigSpan { offset, size, flags, bytes: vec![7; length] };
        let is_whole = size as usize == length && length <= 256 && flags <= 1;
        let may_be_asked = is_whole && u64::from(offset) + length as u64 <= 256;
        let mut world = World::default();
        let said = answer(false, VERSION_1, &Message::SetConfig(span), &mut world);
        let expected = match may_be_asked && offset == 32 {
            true => Ok(ACK.to_vec()),
            false => Err(Reason::Config { offset, size: length }.into()),
        };
        prop_assert_eq!(said, expected);
        let asked = if may_be_asked { vec![(offset, vec![7; length])] } else { Vec::new() };
        prop_assert_eq!(world.config_written, asked, "what its owner is asked lies in it");
    }

    #[test]
    fn an_address_is_one_station_s_and_an_mtu_is_one(bytes in any::<[u8; 6]>(), rest in 0u16..3, mtu in long()) {
        let mut world = World::default();
        let rarp = Message::SendRarp(mac(bytes, rest));
        let said = answer(true, VERSION_1, &rarp, &mut world);
        let is_station = bytes[0] % 2 == 0 && bytes != [0; 6] && rest == 0;
        let mut value = [0; 8];
        value[..6].copy_from_slice(&bytes);
        let value = u64::from_be_bytes(value) | u64::from(rest);
        let wrong = |message, value| Err(Reason::Value { message, value }.into());
        prop_assert_eq!(said, if is_station { Ok(ACK.to_vec()) } else { wrong("SEND_RARP", value) });
        let said = answer(true, VERSION_1, &Message::NetSetMtu(mtu), &mut world);
        let fits = (68..=65535).contains(&mtu);
        prop_assert_eq!(said, if fits { Ok(ACK.to_vec()) } else { wrong("NET_SET_MTU", mtu) });
        prop_assert_eq!((world.announced.len(), world.mtus.len()), (is_station.into(), fits.into()));
    }

    /// Each message that needs something of the protocol is refused where that was not agreed on, whatever it says.
    #[test]
    fn what_was_not_agreed_on_is_not_done(agreed in any::<u64>(), at in 0usize..5) {
        let area = InflightArea { size: 4096, queues: 1, queue_size: 8, ..Default::default() };
        let (nic, message, needed) = match at {
            0 => (true, Message::SendRarp(mac([2, 0, 0, 0, 0, 1], 0)), bits::RARP),
            1 => (true, Message::NetSetMtu(1500), bits::NET_MTU),
            2 => (false, Message::SetLogBase(LogArea { size: 1, offset: 0 }), bits::LOG_SHMFD),
            3 => (false, Message::SetBackendReqFd, bits::BACKEND_REQ),
            _ => (false, Message::SetInflightFd(area), bits::INFLIGHT_SHMFD),
        };
        let (mut world, mut session) = (World::default(), if nic { self::nic() } else { session() });
        let agreed = agreed & session.facts.class.protocol_features() | bits::REPLY_ACK;
        say(&mut session, &mut world, &Message::SetProtocolFeatures(agreed)).unwrap();
        let said = say(&mut session, &mut world, &message).map_err(|reject| reject.reason);
        match agreed & needed {
            0 => {
                let missing = Reason::NotNegotiated { message: message.name() };
                prop_assert_eq!(said, Err(missing.into()));
            }
            _ => prop_assert!(said.is_ok(), "{:?}", said),
        }
    }
}

#[test]
fn a_table_has_32_regions_and_all_together_509_slots() {
    let at = |count: u64| (0..count).map(|i| region(i << 12)).collect::<Vec<_>>();
    assert_eq!(said(&Message::SetMemTable(at(32)), false), Ok(ACK.to_vec()));
    let (mut world, mut session) = (World::default(), session());
    say(&mut session, &mut world, &Message::SetProtocolFeatures(bits::OFFERED_BY_DISK)).unwrap();
    for region in at(509) {
        say(&mut session, &mut world, &Message::AddMemReg(region)).unwrap();
    }
    let more = Message::AddMemReg(region(509 << 12));
    let refused = say(&mut session, &mut world, &more).unwrap_err();
    assert_eq!(refused.reason, Reason::Regions(510).into());
    say(&mut session, &mut world, &Message::RemMemReg(region(0))).unwrap();
    assert!(say(&mut session, &mut world, &more).is_ok(), "there is room for it again");
}
