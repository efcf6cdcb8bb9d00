//! A pair against a device's side of our own, on one thread: what is sent comes back as it was.

use proptest::prelude::*;
use virtqueue::driver::RingSpec;
use virtqueue::{Chain, Format, Queue};

use super::*;
use crate::net_frontend::Stream;

/// A pair with the device's side of both its queues.
struct Bed {
    map: Arc<GuestMap>,
    pair: Pair,
    receive: Queue,
    transmit: Queue,
    chain: Chain,
    frames: Vec<Vec<u8>>,
}

fn bed(spec: &NicSpec) -> Bed {
    let (pair, map, [receive, transmit]) = Pair::alone(spec).unwrap();
    let [receive, transmit] = [receive, transmit].map(|side| Queue::new(side).unwrap());
    Bed { map, pair, receive, transmit, chain: Chain::default(), frames: Vec::new() }
}

impl Bed {
    /// Takes all frames, with their headers.
    fn take(&mut self) {
        while self.transmit.peek(&self.map, &mut self.chain) {
            let mut bytes = vec![0; self.chain.readable_bytes() as usize];
            let ticket = self.transmit.advance(&self.chain);
            assert_eq!(self.chain.take_readable(&self.map, &mut bytes), bytes.len());
            self.transmit.complete(ticket, 0);
            self.frames.push(bytes);
        }
        self.transmit.publish();
    }

    /// Delivers the oldest frame, in as many buffers as it needs. False: not enough of them.
    fn deliver(&mut self) -> bool {
        let mut frame = self.frames.remove(0);
        let mark = self.receive.mark();
        let (mut tickets, mut lens, mut first) = (Vec::new(), Vec::new(), None);
        let mut left = &frame[..];
        while !left.is_empty() {
            if !self.receive.peek(&self.map, &mut self.chain) {
                assert!(self.receive.rewind(mark, &mut tickets));
                return false;
            }
            tickets.push(self.receive.advance(&self.chain));
            let here = left.len();
            for span in self.chain.writable() {
                first.get_or_insert(*span);
                let len = left.len().min(span.len() as usize);
                assert!(self.map.write(*span, 0, &left[..len]));
                left = &left[len..];
            }
            lens.push((here - left.len()) as u32);
        }
        if self.pair.header_size() == HEADER_SIZE {
            frame[10..12].copy_from_slice(&(tickets.len() as u16).to_le_bytes());
            assert!(self.map.write(first.unwrap(), 0, &frame[..12]));
        }
        for (ticket, len) in tickets.into_iter().zip(lens) {
            self.receive.complete(ticket, len);
        }
        self.receive.publish();
        true
    }
}

fn specs() -> impl Strategy<Value = NicSpec> {
    let ring =
        (prop_oneof![Just(Format::Split), Just(Format::Packed)], any::<bool>(), any::<bool>())
            .prop_map(|(format, event_index, indirect)| {
                let indirect_entries = if indirect { 8 } else { 0 };
                RingSpec { size: 16, format, event_index, indirect_entries }
            });
    let header = prop_oneof![
        Just((feature::MRG_RXBUF, false, vec![256])),
        Just((feature::MRG_RXBUF, false, vec![12, 400])),
        Just((feature::MRG_RXBUF, true, vec![512])),
        Just((0, false, vec![12, 3000])),
        Just((0, true, vec![10, 700, 2300])),
    ];
    (ring, header).prop_map(|(ring, (features, legacy, receive_pieces))| NicSpec {
        ring,
        features,
        legacy,
        receive_pieces,
        send_slots: 8,
        send_bytes: 2900,
        ..NicSpec::default()
    })
}

proptest! {
    #[test]
    fn frames_come_back_as_they_were(
        spec in specs(),
        lens in prop::collection::vec((14usize..2900, prop::collection::vec(1u32..2000, 0..5)), 1..40),
    ) {
        let mut bed = bed(&spec);
        for (number, (len, cuts)) in lens.into_iter().enumerate() {
            let frame: Vec<u8> = (0..len).map(|at| (at * 7 + number) as u8).collect();
            let header = Header { flags: 1, csum_start: 34, csum_offset: 6, ..Header::default() };
            prop_assert!(bed.pair.send(&header, &frame, &cuts).unwrap());
            bed.take();
            prop_assert_eq!(bed.frames.len(), 1);
            prop_assert!(bed.deliver());
            let found = bed.pair.receive().unwrap().unwrap();
            prop_assert_eq!(&found.bytes, &frame);
            prop_assert_eq!(found.header, Header { buffers: found.buffers, ..header });
            let buffers = (len + bed.pair.header_size()).div_ceil(spec.receive_bytes() as usize);
            prop_assert_eq!(usize::from(found.buffers), buffers);
            prop_assert_eq!(bed.pair.receive().unwrap(), None);
        }
        prop_assert_eq!(bed.receive.violation().or(bed.transmit.violation()), None);
    }
}

#[test]
fn a_full_ring_is_no_error_and_all_slots_come_back() {
    let mut bed = bed(&NicSpec { send_slots: 4, ..NicSpec::default() });
    for _ in 0..3 {
        for _ in 0..4 {
            assert!(bed.pair.send(&Header::default(), &[1; 60], &[]).unwrap());
        }
        assert!(!bed.pair.send(&Header::default(), &[1; 60], &[]).unwrap());
        assert_eq!(bed.pair.unused(), 4);
        bed.take();
        bed.pair.drain(0).unwrap();
    }
    assert_eq!(bed.frames.len(), 12);
}

/// What a test must notice of a device: each lie is an error with its name.
#[test]
fn a_device_that_lies_is_found_out() {
    let lie = |bytes: &[u8], len: u32, what: &str| {
        let mut bed = bed(&NicSpec { receive_pieces: vec![64], ..NicSpec::default() });
        assert!(bed.receive.peek(&bed.map, &mut bed.chain));
        let ticket = bed.receive.advance(&bed.chain);
        assert!(bed.map.write(bed.chain.writable()[0], 0, bytes));
        bed.receive.complete(ticket, len);
        bed.receive.publish();
        let error = bed.pair.receive().expect_err(what);
        assert!(format!("{error:#}").contains(what), "{error:#}");
    };
    let header = |buffers: u16| Header { buffers, ..Header::default() }.encode();
    lie(&header(0), 60, "num_buffers is 0");
    lie(&header(2000), 60, "num_buffers is 2000");
    lie(&header(2), 60, "buffer 1 is not full");
    lie(&header(2), 64, "a frame of 2 buffers was shown with 1");
    lie(&header(1), 65, "65 bytes in a buffer");
    lie(&header(1), 11, "a frame of 11 bytes");
}

#[test]
fn a_stream_counts_what_arrives() {
    for format in [Format::Split, Format::Packed] {
        let ring = RingSpec { size: 64, format, event_index: false, indirect_entries: 0 };
        let spec = NicSpec { ring, receive_pieces: vec![512], send_slots: 8, ..NicSpec::default() };
        let mut bed = bed(&spec);
        let mut stream = Stream::new(&mut bed.pair, &Header::default(), &[5; 1500]).unwrap();
        let mut delivered = 0;
        for _ in 0..100 {
            stream.pump(&mut bed.pair).unwrap();
            bed.take();
            while !bed.frames.is_empty() {
                delivered += u64::from(bed.deliver());
            }
            while stream.sink(&mut bed.pair).unwrap() > 0 {}
        }
        assert_eq!(delivered, 800, "{format:?}");
        assert_eq!(stream.sunk().frames, 800);
        assert_eq!(stream.sunk().bytes, 800 * 1500);
        bed.take();
        stream.end(&mut bed.pair).unwrap();
        assert!(bed.pair.send(&Header::default(), &[1; 60], &[]).unwrap());
    }
}
