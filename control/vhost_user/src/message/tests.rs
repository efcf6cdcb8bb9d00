//! Every message there and back, and every wrong size.

use proptest::prelude::*;

use super::*;

fn every_message() -> Vec<Message> {
    let region = MemoryRegion { gpa: 0x10_0000, size: 0x2000, user: 0x7f00_0000_0000, offset: 3 };
    let state = RingState { queue: 2, value: 1 };
    let ring = RingFd { queue: 3, has_fd: true };
    let addresses =
        RingAddresses { descriptors: 0x1000, driver: 0x2000, device: 0x3000, log: 9, logged: true };
    let span = ConfigSpan { offset: 8, size: 3, flags: 0, bytes: vec![1, 2, 3] };
    let area = InflightArea { size: 4096, offset: 64, queues: 2, queue_size: 128, padded: false };
    vec![
        Message::GetFeatures,
        Message::SetFeatures(1 << 32),
        Message::SetOwner,
        Message::ResetOwner,
        Message::SetMemTable(vec![region; 3]),
        Message::SetMemTable(vec![]),
        Message::SetLogBase(LogArea { size: 4096, offset: 12 }),
        Message::SetLogFd,
        Message::SetVringNum(state),
        Message::SetVringAddr((1, addresses)),
        Message::SetVringAddr((u32::MAX, RingAddresses { logged: false, ..addresses })),
        Message::SetVringBase(state),
        Message::GetVringBase(state),
        Message::SetVringKick(ring),
        Message::SetVringKick(RingFd { has_fd: false, ..ring }),
        Message::SetVringCall(ring),
        Message::SetVringErr(RingFd { queue: 255, has_fd: false }),
        Message::GetProtocolFeatures,
        Message::SetProtocolFeatures(9),
        Message::GetQueueNum,
        Message::SetVringEnable(state),
        Message::SendRarp(MacAddress { bytes: [2, 1, 0, 3, 4, 5], rest: 7 }),
        Message::NetSetMtu(9000),
        Message::SetBackendReqFd,
        Message::GetConfig(span.clone()),
        Message::SetConfig(span),
        Message::GetInflightFd(InflightArea { size: 0, offset: 0, ..area }),
        Message::SetInflightFd(area),
        Message::SetInflightFd(InflightArea { padded: true, ..area }),
        Message::ResetDevice,
        Message::GetMaxMemSlots,
        Message::AddMemReg(region),
        Message::RemMemReg(region),
    ]
}

fn parts(bytes: &[u8]) -> (u32, &[u8]) {
    let (id, rest) = bytes.split_first_chunk().unwrap();
    (u32::from_ne_bytes(*id), &rest[8..])
}

#[test]
fn every_message_survives_the_wire() {
    let mut ids = Vec::new();
    for message in every_message() {
        let bytes = message.emit(true);
        let (id, payload) = parts(&bytes);
        assert_eq!(Message::parse(id, payload), Ok(message.clone()));
        assert_eq!(Message::name_of(id), Some(message.name()));
        ids.push(id);
    }
    let known = (0..64).filter(|id| Message::name_of(*id).is_some());
    assert!(known.into_iter().all(|id| ids.contains(&id)), "the list above is not complete");
}

#[test]
fn every_other_size_is_refused() {
    for message in every_message() {
        let bytes = message.emit(false);
        let (id, payload) = parts(&bytes);
        // A config span carries what follows it; its own size is looked at by the session.
        let is_span = matches!(message, Message::GetConfig(_) | Message::SetConfig(_));
        let is_area = matches!(message, Message::GetInflightFd(_) | Message::SetInflightFd(_));
        let is_table = matches!(message, Message::SetMemTable(_));
        for size in 0..payload.len() + 9 {
            let mut other = payload.to_vec();
            other.resize(size, 0);
            let allowed = size == payload.len()
                || (is_span && size >= 12)
                || (is_area && (size == 20 || size == 24))
                || (is_table && payload.len() == 8 && size == 8);
            let parsed = Message::parse(id, &other);
            assert_eq!(parsed.is_ok(), allowed, "{} of {size} bytes: {parsed:?}", message.name());
        }
    }
}

#[test]
fn a_table_says_no_more_regions_than_it_has() {
    for count in [2u32, 3, 0x0800_0000, u32::MAX] {
        let mut payload = count.to_ne_bytes().to_vec();
        payload.resize(8 + 32, 0);
        assert!(Message::parse(5, &payload).is_err(), "{count}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused() {
    for id in [0, 22, 23, 26, 27, 28, 29, 30, 33, 35, 39, 40, 41, 1000, u32::MAX] {
        assert_eq!(Message::parse(id, &[]), Err(Reason::Unknown(id)));
    }
    let state = RingState { queue: 0, value: 2 };
    let bytes = Message::SetVringEnable(state).emit(false);
    let (id, payload) = parts(&bytes);
    let refused = Reason::Value { message: "SET_VRING_ENABLE", value: 2 };
    assert_eq!(Message::parse(id, payload), Err(refused));
    // Bits 9 and up of a ring's descriptor message name a queue that no device has.
    for value in [0x200u64, 1 << 32, u64::MAX] {
        match Message::parse(12, &value.to_ne_bytes()) {
            Ok(Message::SetVringKick(ring)) => assert!(ring.queue >= 0x200, "{value:#x}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_message_has_its_number_of_descriptors() {
    let one =
        ["SET_LOG_BASE", "SET_LOG_FD", "SET_BACKEND_REQ_FD", "SET_INFLIGHT_FD", "ADD_MEM_REG"];
    for message in every_message() {
        let allowed: Vec<usize> = (0..40).filter(|n| message.check_fds(*n).is_ok()).collect();
        let expected = match &message {
            Message::SetMemTable(regions) => vec![regions.len()],
            Message::SetVringKick(ring) | Message::SetVringCall(ring) => {
                vec![usize::from(ring.has_fd)]
            }
            Message::SetVringErr(ring) => vec![usize::from(ring.has_fd)],
            Message::RemMemReg(_) => vec![0, 1],
            message if one.contains(&message.name()) => vec![1],
            _ => vec![0],
        };
        assert_eq!(allowed, expected, "{}", message.name());
    }
}

proptest! {
    /// Whatever comes as a message's payload means one thing, or is refused for what it is.
    #[test]
    fn any_payload_is_a_message_or_refused_by_name(
        id in 0u32..44,
        mut payload in prop::collection::vec(any::<u8>(), 0..140),
        fits in any::<bool>(),
    ) {
        if fits {
            // Mostly of the length that the message has, so that more than lengths is tried.
            let right = (0..200).find(|size| Message::parse(id, &vec![0; *size]).is_ok());
            payload.resize(right.unwrap_or(0), 0);
        }
        let size = payload.len();
        match (Message::parse(id, &payload), Message::name_of(id)) {
            (Err(why), None) => prop_assert_eq!(why, Reason::Unknown(id)),
            (Ok(message), None) => prop_assert!(false, "{:?} has no name", message),
            (Err(Reason::PayloadSize { message, size: of }), Some(name)) => {
                prop_assert_eq!((message, of), (name, size));
            }
            (Err(why), Some(name)) => {
                let value = u32::from_ne_bytes(payload[4..8].try_into().unwrap()).into();
                prop_assert!(value > 1 && id == 18);
                prop_assert_eq!(why, Reason::Value { message: name, value });
            }
            // Of a queue that no device has: every session refuses it.
            (Ok(Message::SetVringKick(ring) | Message::SetVringCall(ring) | Message::SetVringErr(ring)), _)
                if ring.queue > 255 => {}
            (Ok(message), Some(_)) => {
                // Sent on, it is the same message: nothing of what it says was lost.
                let bytes = message.emit(false);
                let (again, rest) = parts(&bytes);
                prop_assert_eq!((again, Message::parse(id, rest)), (id, Ok(message)));
            }
        }
    }

    #[test]
    fn a_number_of_descriptors_that_is_wrong_is_told(at in 0usize..33, count in 0usize..40) {
        let all = every_message();
        let message = &all[at % all.len()];
        let told = message.check_fds(count);
        let expected = Reason::Descriptors { message: message.name(), count };
        prop_assert!(told.is_ok() || told == Err(expected), "{:?}", told);
    }
}

/// What front-ends send where a word has no meaning, or more of a table than they fill.
#[test]
fn what_has_no_meaning_is_not_looked_at() {
    let region = MemoryRegion { gpa: 1, size: 2, user: 3, offset: 4 };
    let table = Message::SetMemTable(vec![region]);
    let bytes = table.emit(false);
    let (id, payload) = parts(&bytes);
    let mut whole = payload.to_vec();
    whole[4..8].fill(0xff);
    whole.resize(8 + 8 * 32, 0xff);
    assert_eq!(Message::parse(id, &whole), Ok(table), "of eight regions one counts");
    let add = Message::AddMemReg(region);
    let bytes = add.emit(false);
    let (id, payload) = parts(&bytes);
    let mut padded = payload.to_vec();
    padded[..8].fill(0xff);
    assert_eq!(Message::parse(id, &padded), Ok(add));
    // Flags of a ring's addresses: the first says that it is logged.
    for (flags, logged) in [(0u32, false), (1, true), (0xffff_fffe, false), (u32::MAX, true)] {
        let mut payload = vec![0; 40];
        payload[4..8].copy_from_slice(&flags.to_ne_bytes());
        match Message::parse(9, &payload) {
            Ok(Message::SetVringAddr((0, ring))) => assert_eq!(ring.logged, logged, "{flags:#x}"),
            other => panic!("{other:?}"),
        }
    }
}
