//! A request allocates nothing at either end, once its attachment was bound.
//!
//! REQUESTS says how many 4 KiB writes and reads are made, and CIPHER is `aes` or `none`: what `valgrind
//! --tool=callgrind` counts of two runs, divided, is what a request costs both ends together.

use std::alloc::System;

use random::Random;
use remote::client::{AttachSpec, Client, ClientSpec, Event, Request};
use remote::handshake::{Greeter, Identity, Initiator, Offer, Randomness, Step};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec};
use remote::wire::{News, Op, Status, Verifier};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const DEPTH: u64 = 8;
const BYTES: usize = 4096;

struct Bits(Random);

impl Randomness for Bits {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

struct Ends {
    now: u64,
    client: Client,
    host: Host<Vec<u8>>,
    one: u16,
    buffer: Vec<u8>,
    frames: u64,
}

fn ends(is_secret: bool) -> Ends {
    let mut bits = Bits(Random::new(1, 0));
    let key = |byte| if is_secret { Identity::Key([byte; 32]) } else { Identity::None };
    let offer = Offer::new(is_secret, 1472, 256);
    let greeter = Greeter::new(key(1), offer, 10_000, 0).expect("a greeter");
    let made = Initiator::new(&key(2), *greeter.public(), 1, offer, &mut bits);
    let mut initiator = made.expect("an initiator");
    let mut client =
        Client::new(ClientSpec { instance: 1, ring_frames: 256, fail_after_ns: None }, 0);
    let spec = HostSpec {
        sessions_max: 4,
        ring_frames: 256,
        memory_max: 8 << 20,
        client_memory_max: 8 << 20,
        instance: 1,
        shard: 0,
    };
    let mut host = Host::new(spec);
    let news = News { revision: 1, size: 1 << 20, features: 0, is_removed: false };
    host.export(ExportSpec { device: 1, clients: Vec::new(), news, generation: 0 });
    let greeted = greeter.read(initiator.hello(), &|_| true, &mut bits).expect("a hello");
    let number = host.reserve(0, greeted.peer()).expect("a number");
    let (answer, at_host) = greeted.answer(number, host.share()).expect("an answer");
    let Ok(Step::Done(at_client)) = initiator.receive(&answer) else { panic!("no session") };
    assert!(host.establish(at_host) && client.establish(*at_client, 0));
    let one = client.attach(AttachSpec {
        device: 1,
        slots: 33,
        slot_bytes: 16 << 10,
        keep_bytes: 4 << 20,
    });
    let one = one.expect("a place");
    let mut ends = Ends { now: 0, client, host, one, buffer: vec![0; 2048], frames: 0 };
    while !matches!(ends.client.next_event(), Some(Event::Bound { .. })) {
        ends.exchange();
    }
    ends
}

impl Ends {
    fn exchange(&mut self) {
        self.now += 20_000;
        self.client.tick(self.now);
        self.host.tick(self.now);
        while let Some(len) = self.client.poll_transmit(self.now, &mut self.buffer) {
            self.frames += 1;
            assert!(self.host.receive(self.now, &mut self.buffer[..len], &mut |_, _| {}));
        }
        while let Some(event) = self.host.next_event() {
            if let HostEvent::Open { export, slots, slot_bytes, .. } = event {
                let memory = vec![0; usize::from(slots) * slot_bytes as usize];
                self.host.opened(export, Ok((Verifier::default(), memory)));
            }
        }
        while let Some(work) = self.host.next_work(self.now) {
            self.host.finish(work, Status::Ok);
        }
        while let Some((_, len)) = self.host.poll_transmit(self.now, &mut self.buffer) {
            self.frames += 1;
            assert!(self.client.receive(self.now, &mut self.buffer[..len], &mut |_, _| {}));
        }
    }

    fn requests(&mut self, count: u64) {
        let data = [7; BYTES];
        let (mut submitted, mut ended) = (0, 0);
        while ended < count {
            while submitted < count && submitted - ended < DEPTH {
                let is_write = submitted % 2 == 0;
                let op = if is_write { Op::Write { sync: false } } else { Op::Read };
                let len = BYTES as u32;
                let request = Request { op, offset: submitted % 16 * 4096, len, tag: submitted };
                let filled = |into: &mut [u8]| {
                    into.copy_from_slice(&data);
                    true
                };
                self.client.submit(self.one, request, filled).expect("a slot");
                submitted += 1;
            }
            self.exchange();
            while let Some(finished) = self.client.next_finished() {
                assert_eq!(finished.status, Status::Ok);
                self.client.free(finished);
                ended += 1;
            }
        }
    }
}

fn counted(is_secret: bool, count: u64) {
    let mut ends = ends(is_secret);
    ends.requests(200);
    let before = (ALLOCATOR.stats(), ends.frames);
    ends.requests(count);
    let after = ALLOCATOR.stats();
    assert!(ends.frames - before.1 < 5 * count, "three of data, and less than two of all else");
    assert_eq!(after.allocations, before.0.allocations, "secret: {is_secret}");
    assert_eq!(after.reallocations, before.0.reallocations, "secret: {is_secret}");
}

/// Bytes that a session costs before and after its client has shown that it has the keys. A hello that somebody
/// says again costs the first only.
fn session_bytes(is_secret: bool) -> [usize; 2] {
    let mut bits = Bits(Random::new(1, 0));
    let mut ends = ends(is_secret);
    let key = |byte| if is_secret { Identity::Key([byte; 32]) } else { Identity::None };
    let offer = Offer::new(is_secret, 1472, 256);
    let greeter = Greeter::new(key(1), offer, 10_000, 0).expect("a greeter");
    let made = Initiator::new(&key(3), *greeter.public(), 2, offer, &mut bits);
    let mut initiator = made.expect("an initiator");
    let greeted = greeter.read(initiator.hello(), &|_| true, &mut bits).expect("a hello");
    let spec = ClientSpec { instance: 2, ring_frames: 256, fail_after_ns: None };
    let mut client = Client::new(spec, ends.now);
    let before = ALLOCATOR.stats().bytes_allocated;
    let number = ends.host.reserve(ends.now, greeted.peer()).expect("a number");
    let (answer, at_host) = greeted.answer(number, 4).expect("an answer");
    assert!(ends.host.establish(at_host));
    let promised = ALLOCATOR.stats().bytes_allocated - before;
    let Ok(Step::Done(at_client)) = initiator.receive(&answer) else { panic!("no session") };
    assert!(client.establish(*at_client, ends.now));
    assert!(
        client.attach(AttachSpec { device: 1, slots: 1, slot_bytes: 512, keep_bytes: 0 }).is_some()
    );
    let len = client.poll_transmit(ends.now, &mut ends.buffer).expect("a bind");
    let before = ALLOCATOR.stats().bytes_allocated;
    assert!(ends.host.receive(ends.now, &mut ends.buffer[..len], &mut |_, _| {}));
    [promised, ALLOCATOR.stats().bytes_allocated - before]
}

/// All in one test: another one beside it would be counted, too.
#[test]
fn a_request_allocates_nothing_and_a_promised_session_little() {
    for is_secret in [false, true] {
        let [promised, proven] = session_bytes(is_secret);
        assert!(promised < 4096 && proven > 100_000, "{promised} and {proven} bytes");
    }
    let count = std::env::var("REQUESTS").map_or(2000, |text| text.parse().expect("a number"));
    match std::env::var("CIPHER").as_deref() {
        Ok("aes") => counted(true, count),
        Ok("none") => counted(false, count),
        _ => [false, true].into_iter().for_each(|is_secret| counted(is_secret, count)),
    }
}
