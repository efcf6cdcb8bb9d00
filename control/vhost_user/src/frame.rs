//! From a stream of bytes and descriptors to whole messages, whatever the pieces.
//!
//! Not the meaning of a message (`message`). Called by whoever reads the socket.

use crate::refusal::BadFrame;

/// Bytes before the payload: request, flags, payload size; 32 bits each, the machine's byte order.
pub const HEADER_SIZE: usize = 12;
/// Largest payload taken, bytes. The largest that has a use is a table of 32 regions, 1032 bytes.
pub const PAYLOAD_SIZE_MAX: usize = 4096;
/// Descriptors of one message: a region each for a table of as many regions as rust-vmm's
/// front-ends send (the specification asks for 8).
pub const FDS_MAX: usize = 32;

const VERSION: u32 = 1;
const FLAG_VERSION_MASK: u32 = 3;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// One message as it came. Dropping it closes its descriptors.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<F> {
    /// Which message.
    pub request: u32,
    /// An acknowledgement is wanted, if that was negotiated.
    pub need_reply: bool,
    /// At most [`PAYLOAD_SIZE_MAX`] bytes.
    pub payload: Vec<u8>,
    /// At most [`FDS_MAX`].
    pub fds: Vec<F>,
}

/// Collects one message at a time.
#[derive(Debug)]
pub struct Framer<F> {
    bytes: Vec<u8>,
    fds: Vec<F>,
}

impl<F> Default for Framer<F> {
    fn default() -> Framer<F> {
        Framer { bytes: Vec::new(), fds: Vec::new() }
    }
}

impl<F> Framer<F> {
    /// Bytes still missing from the header, or else from the payload. A reader that reads no more
    /// than this never mixes the descriptors of two messages. Never 0.
    pub fn wants(&self) -> usize {
        match self.header() {
            None => HEADER_SIZE - self.bytes.len(),
            Some(header) => (HEADER_SIZE + header.size).saturating_sub(self.bytes.len()).max(1),
        }
    }

    /// Whether a message has begun and not ended.
    pub fn is_within(&self) -> bool {
        !self.bytes.is_empty() || !self.fds.is_empty()
    }

    /// The beginning of a message that is not whole, and its descriptors so far.
    pub fn begun(&self) -> (&[u8], &[F]) {
        (&self.bytes, &self.fds)
    }

    /// Descriptors of a message that has begun and not ended, at most [`FDS_MAX`].
    pub fn descriptors(&self) -> usize {
        self.fds.len()
    }

    /// Takes bytes from the front of `bytes`, up to the end of a message, and gives that message
    /// when it is whole. All of `fds` is taken for it. Call again until `bytes` is empty.
    ///
    /// # Errors
    /// [`BadFrame`]: nothing that follows can be understood, so the connection must be closed.
    pub fn push(
        &mut self,
        bytes: &mut &[u8],
        fds: &mut Vec<F>,
    ) -> Result<Option<Frame<F>>, BadFrame> {
        self.fds.append(fds);
        if self.fds.len() > FDS_MAX {
            return Err(BadFrame::Descriptors(self.fds.len()));
        }
        loop {
            if let Some(header) = self.header() {
                header.check()?;
                if self.bytes.len() >= HEADER_SIZE + header.size {
                    return Ok(Some(self.take(&header)));
                }
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let (now, later) = bytes.split_at(self.wants().min(bytes.len()));
            self.bytes.extend_from_slice(now);
            *bytes = later;
        }
    }

    fn header(&self) -> Option<Header> {
        let (request, rest) = self.bytes.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (size, _) = rest.split_first_chunk()?;
        Some(Header {
            request: u32::from_ne_bytes(*request),
            flags: u32::from_ne_bytes(*flags),
            size: u32::from_ne_bytes(*size) as usize,
        })
    }

    fn take(&mut self, header: &Header) -> Frame<F> {
        let mut payload = std::mem::take(&mut self.bytes);
        payload.drain(..HEADER_SIZE);
        let fds = std::mem::take(&mut self.fds);
        let need_reply = header.flags & FLAG_NEED_REPLY != 0;
        Frame { request: header.request, need_reply, payload, fds }
    }
}

#[derive(Debug)]
struct Header {
    request: u32,
    flags: u32,
    size: usize,
}

impl Header {
    fn check(&self) -> Result<(), BadFrame> {
        if self.flags & FLAG_VERSION_MASK != VERSION {
            return Err(BadFrame::Version(self.flags & FLAG_VERSION_MASK));
        }
        if self.flags & FLAG_REPLY != 0 {
            return Err(BadFrame::ReplyBit);
        }
        if self.flags & !(FLAG_VERSION_MASK | FLAG_NEED_REPLY) != 0 {
            return Err(BadFrame::Flags(self.flags));
        }
        if self.size > PAYLOAD_SIZE_MAX {
            return Err(BadFrame::TooLong(self.size));
        }
        Ok(())
    }
}

/// The bytes of a reply to `request`.
pub(crate) fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    with_header(request, VERSION | FLAG_REPLY, payload)
}

/// The bytes of a request, as a front-end sends it and as we send it on the back-end channel.
pub(crate) fn request(request: u32, need_reply: bool, payload: &[u8]) -> Vec<u8> {
    with_header(request, VERSION | if need_reply { FLAG_NEED_REPLY } else { 0 }, payload)
}

fn with_header(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_SIZE + payload.len());
    for word in [request, flags, payload.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(framer: &mut Framer<u32>, bytes: &[u8]) -> Result<Vec<Frame<u32>>, BadFrame> {
        let (mut rest, mut frames) = (bytes, Vec::new());
        while !rest.is_empty() {
            frames.extend(framer.push(&mut rest, &mut Vec::new())?);
        }
        Ok(frames)
    }

    #[test]
    fn a_stream_is_cut_alike_whatever_its_pieces() {
        let bytes = [request(1, false, &[]), request(2, true, &[7; 8]), request(3, false, &[1])];
        let stream = bytes.concat();
        let expected = all(&mut Framer::default(), &stream).unwrap();
        assert_eq!(expected.iter().map(|f| f.request).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(expected[1].payload, [7; 8]);
        assert!(expected[1].need_reply && !expected[0].need_reply);
        for piece in 1..stream.len() {
            let mut framer = Framer::default();
            let parts = stream.chunks(piece).map(|part| all(&mut framer, part).unwrap());
            assert_eq!(parts.flatten().collect::<Vec<_>>(), expected, "pieces of {piece}");
            assert!(!framer.is_within());
        }
    }

    #[test]
    fn a_reader_that_asks_reads_one_message_and_no_more() {
        let stream = [request(1, false, &[5; 3]), request(2, false, &[])].concat();
        let (mut framer, mut at, mut seen) = (Framer::<u32>::default(), 0, Vec::new());
        while at < stream.len() {
            let mut piece = &stream[at..at + framer.wants()];
            at += piece.len();
            let frame = framer.push(&mut piece, &mut vec![at as u32]).unwrap();
            assert!(piece.is_empty());
            seen.extend(frame.map(|frame| (frame.request, frame.fds)));
        }
        assert_eq!(seen, [(1, vec![12, 15]), (2, vec![27])]);
    }

    /// As when another process takes over in the middle of a message.
    #[test]
    fn a_message_that_has_begun_ends_at_another_reader() {
        let bytes = request(7, true, &[3; 20]);
        for cut in 1..bytes.len() {
            let mut first = Framer::default();
            assert_eq!(first.push(&mut &bytes[..cut], &mut vec![11u32]), Ok(None));
            assert!(first.is_within() && first.descriptors() == 1);
            let (begun, fds) = first.begun();
            assert_eq!((begun, fds), (&bytes[..cut], &[11][..]));
            let mut second = Framer::default();
            assert_eq!(second.push(&mut &*begun, &mut fds.to_vec()), Ok(None));
            let whole = second.push(&mut &bytes[cut..], &mut vec![12]).unwrap().unwrap();
            assert_eq!((whole.request, whole.payload, whole.fds), (7, vec![3; 20], vec![11, 12]));
            assert!(!second.is_within() && second.descriptors() == 0);
        }
    }

    #[test]
    fn bad_headers_end_the_stream() {
        let word = |flags: u32, size: u32| {
            [1u32, flags, size].iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>()
        };
        let cases = [
            (word(0, 0), BadFrame::Version(0)),
            (word(2, 0), BadFrame::Version(2)),
            (word(5, 0), BadFrame::ReplyBit),
            (word(0x11, 0), BadFrame::Flags(0x11)),
            (word(0x8000_0001, 0), BadFrame::Flags(0x8000_0001)),
            (word(1, 4097), BadFrame::TooLong(4097)),
            (word(1, u32::MAX), BadFrame::TooLong(u32::MAX as usize)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(all(&mut Framer::default(), &bytes), Err(expected));
        }
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let fd = std::rc::Rc::new(());
        let mut framer = Framer::default();
        let mut fds = vec![std::rc::Rc::clone(&fd); FDS_MAX + 1];
        let pushed = framer.push(&mut &[][..], &mut fds);
        assert_eq!(pushed, Err(BadFrame::Descriptors(FDS_MAX + 1)));
        drop(framer);
        assert_eq!(std::rc::Rc::strong_count(&fd), 1);
    }

    proptest! {
        /// Whatever twelve bytes begin a stream: what is wrong with them is told when they are there and not before, and
        /// else so many bytes are waited for as they say.
        #[test]
        fn a_header_is_taken_or_refused_for_one_reason(
            request in any::<u32>(),
            flags in prop_oneof![0u32..32, any::<u32>()],
            size in prop_oneof![0u32..5000, any::<u32>()],
            cut in 1usize..12,
        ) {
            let bytes: Vec<u8> = [request, flags, size].iter().flat_map(|w| w.to_ne_bytes()).collect();
            let mut framer = Framer::<u32>::default();
            prop_assert_eq!(framer.push(&mut &bytes[..cut], &mut Vec::new()), Ok(None));
            prop_assert_eq!(framer.wants(), 12 - cut);
            let said = framer.push(&mut &bytes[cut..], &mut Vec::new());
            let wrong = match flags {
                _ if flags & 3 != 1 => Some(BadFrame::Version(flags & 3)),
                _ if flags & 4 != 0 => Some(BadFrame::ReplyBit),
                1 | 9 => (size > 4096).then_some(BadFrame::TooLong(size as usize)),
                _ => Some(BadFrame::Flags(flags)),
            };
            if let Some(wrong) = wrong {
                prop_assert_eq!(said, Err(wrong));
            } else if size == 0 {
                let whole = said.unwrap().unwrap();
                prop_assert_eq!((whole.request, whole.need_reply), (request, flags == 9));
            } else {
                prop_assert_eq!(said, Ok(None));
                prop_assert_eq!(framer.wants(), size as usize);
            }
        }

        /// A stream that goes on for ever keeps no more than one message of it.
        #[test]
        fn no_more_is_kept_than_one_message(
            pieces in prop::collection::vec((prop::collection::vec(0u8..4, 0..40), 0usize..4), 1..60),
        ) {
            let mut framer = Framer::<u32>::default();
            for (bytes, fds) in pieces {
                let (mut rest, mut fds) = (&bytes[..], vec![0; fds]);
                loop {
                    match framer.push(&mut rest, &mut fds) {
                        Err(_) => return Ok(()),
                        Ok(None) => break,
                        Ok(Some(whole)) => {
                            prop_assert!(whole.fds.len() <= FDS_MAX && whole.payload.len() <= PAYLOAD_SIZE_MAX);
                            prop_assert!(!framer.is_within(), "what follows is the next one's");
                        }
                    }
                }
                prop_assert!(framer.descriptors() <= FDS_MAX);
                prop_assert!(framer.begun().0.len() < HEADER_SIZE + PAYLOAD_SIZE_MAX);
                prop_assert!(rest.is_empty() && framer.wants() > 0);
            }
        }
    }
}
