//! What a front-end may do to its connection: messages in any pieces, replies that it does not read, and half of
//! anything when another process takes over.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use vhost_user::Message;
use vhost_user::message::RingState;

use super::*;

fn pair() -> (FrameSocket, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.set_nonblocking(true).expect("it does not block");
    theirs.set_nonblocking(true).expect("it does not block");
    (FrameSocket::new(ours.into(), &Closer::default()), theirs)
}

/// Messages of all lengths.
fn messages() -> impl Strategy<Value = Vec<Message>> {
    let region = |n: u64| vhost_user::MemoryRegion { gpa: n, size: n, user: n, offset: n };
    let one = prop_oneof![
        Just(Message::GetFeatures),
        Just(Message::SetOwner),
        any::<u64>().prop_map(Message::SetFeatures),
        any::<(u32, u32)>()
            .prop_map(|(queue, value)| Message::SetVringNum(RingState { queue, value })),
        (0..8u64).prop_map(move |n| Message::SetMemTable((0..n).map(region).collect())),
    ];
    proptest::collection::vec(one, 1..12)
}

/// All that has come by now.
fn heard(socket: &mut FrameSocket) -> Vec<Message> {
    let mut heard = Vec::new();
    while let Ok(Incoming::Frame(frame)) = socket.receive() {
        heard.push(Message::parse(frame.request, &frame.payload).expect("a message"));
    }
    heard
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn messages_are_heard_as_they_were_sent_in_whatever_pieces(
        messages in messages(),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (mut socket, mut theirs) = pair();
        let bytes: Vec<u8> = messages.iter().flat_map(|message| message.emit(false)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut all = Vec::new();
        for piece in cuts.windows(2) {
            theirs.write_all(&bytes[piece[0]..piece[1]]).expect("sent");
            all.extend(heard(&mut socket));
        }
        prop_assert_eq!(all, messages);
        prop_assert!(!socket.is_within());
        drop(theirs);
        prop_assert!(matches!(socket.receive(), Ok(Incoming::End)));
    }

    /// An upgrade may fall into the middle of a message: what was read of it is the heir's, and nothing is heard twice.
    #[test]
    fn a_message_that_was_read_in_part_is_heard_whole_by_who_takes_over(
        messages in messages(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut socket, mut theirs) = pair();
        let bytes: Vec<u8> = messages.iter().flat_map(|message| message.emit(false)).collect();
        let cut = cut.index(bytes.len() + 1);
        theirs.write_all(&bytes[..cut]).expect("sent");
        let mut all = heard(&mut socket);
        let unread: Vec<Early> =
            socket.unread().map(|(bytes, _)| (bytes.to_vec(), Vec::new())).collect();
        let fd = socket.socket().as_fd().try_clone_to_owned().expect("a descriptor");
        // The predecessor's end is not shut down: it is shared.
        std::mem::forget(socket);
        let mut heir = FrameSocket::new(fd, &Closer::default());
        heir.go_on(unread.into_iter(), Vec::new());
        all.extend(heard(&mut heir));
        theirs.write_all(&bytes[cut..]).expect("sent");
        all.extend(heard(&mut heir));
        prop_assert_eq!(all, messages);
        prop_assert!(!heir.has_early());
    }

    /// Whatever comes is a message, or the end of the connection.
    #[test]
    fn any_bytes_are_messages_or_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut socket, mut theirs) = pair();
        theirs.write_all(&bytes).expect("sent");
        for _ in 0..=bytes.len() / 12 {
            match socket.receive() {
                Ok(Incoming::Frame(frame)) => prop_assert!(frame.payload.len() <= bytes.len()),
                Ok(Incoming::Nothing) => return Ok(()),
                Ok(Incoming::End) => prop_assert!(false, "it is open"),
                Err(_) => return Ok(()),
            }
        }
    }
}

fn reply(bytes: &[u8]) -> Reply<Lent> {
    Reply { bytes: bytes.to_vec(), fd: None }
}

/// A front-end that never reads holds no more of the daemon than that.
#[test]
fn replies_that_nobody_reads_are_bounded_and_then_the_end() {
    let (mut socket, mut theirs) = pair();
    let large = vec![7; 32 << 10];
    let mut sent = 0;
    let why = loop {
        match socket.send(reply(&large)) {
            Ok(()) => sent += 1,
            Err(why) => break why,
        }
        assert!(sent < 10_000, "it is not bounded");
    };
    assert_eq!(why.to_string(), "the front-end does not read its replies");
    assert!(socket.is_backed_up() && socket.unsent().count() == OUTBOX_MAX);
    // One that reads after all has all of them, in order and whole.
    let mut read = 0;
    let mut buffer = vec![0; 64 << 10];
    while read < sent * large.len() {
        socket.flush().expect("it is open");
        read += theirs.read(&mut buffer).unwrap_or(0);
    }
    assert!(!socket.is_backed_up());
    socket.send(reply(b"more")).expect("there is room");
}

#[test]
fn descriptors_in_replies_that_nobody_reads_are_fewer() {
    let (mut socket, _theirs) = pair();
    let closer = Closer::default();
    // What is before them is more than the socket holds.
    while !socket.is_backed_up() {
        socket.send(reply(&[0; 64 << 10])).expect("there is room");
    }
    let with_fd = || {
        let fd =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
        Reply { bytes: b"record".to_vec(), fd: Some(Lent::new(fd, &closer)) }
    };
    for _ in 0..OUTBOX_FDS_MAX {
        socket.send(with_fd()).expect("there is room");
    }
    socket.send(with_fd()).expect_err("it asks for one after the other and takes none");
}

/// What was sent of a reply is not sent again by whoever takes over.
#[test]
fn a_reply_that_was_sent_in_part_is_sent_to_its_end_by_who_takes_over() {
    let (mut socket, mut theirs) = pair();
    let (first, second) = (vec![1; 1 << 20], vec![2; 100]);
    socket.send(reply(&first)).expect("there is room");
    socket.send(reply(&second)).expect("there is room");
    let unsent: Vec<Early> =
        socket.unsent().map(|(bytes, _)| (bytes.to_vec(), Vec::new())).collect();
    assert!(unsent[0].0.len() < first.len() && unsent[1].0 == second);
    let fd = socket.socket().as_fd().try_clone_to_owned().expect("a descriptor");
    std::mem::forget(socket);
    let mut heir = FrameSocket::new(fd, &Closer::default());
    heir.go_on(std::iter::empty(), unsent);
    let (mut read, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    while read.len() < first.len() + second.len() {
        heir.flush().expect("it is open");
        let len = theirs.read(&mut buffer).unwrap_or(0);
        read.extend_from_slice(&buffer[..len]);
    }
    assert!(read[..first.len()] == first && read[first.len()..] == second);
    assert!(!heir.is_backed_up());
}
