//! The remote protocol against peers that say anything: as raw bytes, as handshakes, and in good frames to
//! either end; and what either end is told of itself by a process before it.
//!
//! What must hold: nothing panics; what is parsed and built again is what it was; memory and answers stay within
//! their bounds; nothing is executed that is beyond the device.

use remote::Assembly;
use remote::client::{AttachSpec, Client, ClientSpec, Request};
use remote::handshake::{
    Established, Gate, Greeter, Identity, Initiator, Offer, Randomness, Step, Verdict,
};
use remote::iohost::{ExportSpec, Host, HostEvent, HostSpec, check_saved};
use remote::rogue::Liar;
use remote::saved::{Reader, Writer};
use remote::wire::{
    Builder, HEADER_BYTES, Header, Kind, Net, News, Op, Record, Records, Status, Verifier,
};

use crate::bytes::Bytes;

const SIZE: u64 = 64 << 10;
const MEMORY: usize = 1 << 20;

/// No randomness: what a seed finds is found again.
struct Fixed(u8);

impl Randomness for Fixed {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes.fill(self.0);
    }
}

/// Makes one input happen.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let which = bytes.u8();
    match which % 4 {
        0 if which % 8 == 4 => saved(bytes.0),
        0 => records(bytes.0),
        1 => handshake(bytes.0),
        2 => to_host(bytes),
        _ => to_client(bytes),
    }
}

fn records(body: &[u8]) {
    let parsed: Vec<_> = Records::new(body).map_while(Result::ok).collect();
    let mut buffer = vec![0; HEADER_BYTES + body.len()];
    let mut builder = Builder::new(&mut buffer, 0);
    for record in &parsed {
        let is_put = match record {
            Record::Ack { credit, blocks } => {
                builder.push_ack(*credit, &blocks.collect::<Vec<_>>())
            }
            other => builder.push(other),
        };
        assert!(is_put, "what was parsed is not longer than it was");
    }
    let len = builder.len();
    let again: Result<Vec<_>, _> = Records::new(&buffer[HEADER_BYTES..len]).collect();
    assert_eq!(again, Ok(parsed));
}

/// What an end of another process was, as it may be said.
fn saved(bytes: &[u8]) {
    let spec = ClientSpec { instance: 1, ring_frames: 64, fail_after_ns: None };
    let mut client = Client::new(spec, 0);
    if let Ok(one) = client.take_over_attachment(&mut Reader(bytes)) {
        assert!(client.save_attachment(one, &mut Writer(&mut Vec::new())), "nothing is under way");
        client.begin(1);
        let flush = Request { op: Op::Flush, offset: 0, len: 0, tag: 0 };
        let _ = client.submit(one, flush, |_| false);
        client.tick(2);
    }
    let spec = HostSpec {
        sessions_max: 2,
        ring_frames: 64,
        memory_max: MEMORY,
        client_memory_max: MEMORY,
        instance: 1,
        shard: 0,
    };
    let mut host: Host<Vec<u8>> = Host::new(spec);
    let news = News { revision: 1, size: SIZE, features: 0, is_removed: false };
    host.export(ExportSpec { device: 5, clients: Vec::new(), news, generation: 0 });
    if let Ok(is_had) = host.take_over(0, &mut Reader(bytes), 10) {
        host.tick(10);
        assert_eq!(host.next_event().is_some(), is_had, "nobody has come back for it");
    }
    let _ = check_saved(bytes);
}

fn ends(random: &mut Fixed) -> (Greeter, Initiator) {
    let greeter =
        Greeter::new(Identity::None, Offer::new(false, 9000, 64), 1000, 0).expect("a key");
    let offer = Offer::new(false, 1472, 64);
    let made = Initiator::new(&Identity::None, [0; 32], 7, offer, random);
    (greeter, made.expect("an initiator"))
}

fn handshake(frame: &[u8]) {
    let mut random = Fixed(0);
    let (greeter, mut initiator) = ends(&mut random);
    let gate = Gate::new(greeter.public(), 0, &mut random);
    if let Verdict::Cookie(cookie) = gate.look(frame, b"address") {
        assert!(cookie.len() <= frame.len(), "an answer longer than the question");
    }
    let greeted = greeter.read(frame, &|_| true, &mut random);
    if let Ok((answer, _)) = greeted.and_then(|greeted| greeted.answer(1, 4)) {
        assert!(answer.len() <= frame.len(), "an answer longer than the hello");
    }
    // Whatever came, the true answer is still taken.
    let _ = initiator.receive(frame);
    let greeted = greeter.read(initiator.hello(), &|_| true, &mut random);
    let (answer, _) = greeted.and_then(|greeted| greeted.answer(1, 4)).expect("an honest hello");
    assert!(matches!(initiator.receive(&answer), Ok(Step::Done(_))));
}

fn host() -> Host<Vec<u8>> {
    let mut host = Host::new(HostSpec {
        sessions_max: 2,
        ring_frames: 64,
        memory_max: MEMORY,
        client_memory_max: MEMORY,
        instance: 1,
        shard: 0,
    });
    let news = News { revision: 1, size: SIZE, features: 0, is_removed: false };
    for device in 0..2 {
        host.export(ExportSpec { device, clients: Vec::new(), news, generation: 0 });
    }
    host
}

fn established(host: &mut Host<Vec<u8>>, now: u64) -> Option<(Established, Established)> {
    let mut random = Fixed(now as u8 & 0x7f);
    let (greeter, mut initiator) = ends(&mut random);
    let greeted = greeter.read(initiator.hello(), &|_| true, &mut random).expect("an honest hello");
    let number = host.reserve(now, greeted.peer())?;
    let (answer, at_host) = greeted.answer(number, 16).expect("an honest hello");
    let Ok(Step::Done(at_client)) = initiator.receive(&answer) else { panic!("no session") };
    Some((*at_client, at_host))
}

/// The next frame of a liar: its bytes, and how much time has passed.
fn said<'a>(bytes: &mut Bytes<'a>, now: &mut u64) -> (u8, &'a [u8]) {
    let how = bytes.u8();
    *now += u64::from(how >> 4) << 20;
    let len = usize::from(bytes.u8()) * if how & 1 != 0 { 8 } else { 1 };
    (how, bytes.take(len))
}

/// A piece of a NIC's frame is of what came, and makes no frame but one of its length.
fn joined(assembly: &mut Assembly, net: &Net<'_>, body: &[u8]) {
    assert!(net.data.len() <= body.len());
    if let Some(frame) = assembly.take(net) {
        assert_eq!(frame.len(), usize::from(net.len));
    }
}

fn to_host(mut bytes: Bytes<'_>) {
    let (mut host, mut now, mut counter) = (host(), 0, 0);
    let (liar, at_host) = established(&mut host, now).expect("room");
    assert!(host.establish(at_host));
    let (session, liar) = (liar.theirs, Liar::new(liar.keys).expect("keys"));
    let mut buffer = [0; 2000];
    let (mut working, mut assembly) = (Vec::new(), Assembly::default());
    while !bytes.is_empty() {
        let (how, body) = said(&mut bytes, &mut now);
        counter += 1 + u64::from(how & 2) * 40;
        let header = Header { kind: Kind::Sealed, session, counter };
        let mut frame = liar.frame(header, body).expect("room");
        host.receive(now, &mut frame, &mut |_, net| joined(&mut assembly, net, body));
        host.tick(now);
        while let Some(event) = host.next_event() {
            match event {
                HostEvent::Open { export, slots, slot_bytes, .. } if how & 8 == 0 => {
                    let memory = vec![0; usize::from(slots) * slot_bytes as usize];
                    host.opened(export, Ok((Verifier::default(), memory)));
                }
                HostEvent::Open { export, .. } => host.opened(export, Err(())),
                HostEvent::LetGo { export, .. } => {
                    let is_idle =
                        working.iter().all(|one: &remote::iohost::Work| one.export != export);
                    assert!(is_idle, "let go while it is executing");
                    assert!(host.let_go(export, how & 4 != 0).is_some(), "its memory");
                }
                HostEvent::SessionBegan { .. } | HostEvent::SessionEnded { .. } => {}
            }
        }
        while let Some(work) = host.next_work(now) {
            assert!(work.op == Op::Flush || work.offset + u64::from(work.len) <= SIZE);
            working.push(work);
        }
        if how & 4 == 0 {
            working.drain(..).for_each(|work| host.finish(work, Status::Ok));
        }
        let sent = std::iter::from_fn(|| host.poll_transmit(now, &mut buffer)).count();
        assert!(sent <= 64 && host.memory_used() <= MEMORY);
    }
}

fn to_client(mut bytes: Bytes<'_>) {
    let (mut host, mut now, mut counter) = (host(), 0, 0);
    let (at_client, liar) = established(&mut host, now).expect("room");
    let spec = ClientSpec { instance: 1, ring_frames: 64, fail_after_ns: Some(1) };
    let mut client = Client::new(spec, now);
    let one = client
        .attach(AttachSpec { device: 0, slots: 4, slot_bytes: 4096, keep_bytes: 0 })
        .expect("a place");
    assert!(client.establish(at_client, now));
    let (session, liar) = (liar.theirs, Liar::new(liar.keys).expect("keys"));
    let ops = [Op::Read, Op::Write { sync: false }, Op::Flush, Op::Read];
    let mut buffer = [0; 2000];
    let mut outstanding = 0;
    for (tag, op) in ops.into_iter().enumerate() {
        let request = Request { op, offset: 0, len: 4096, tag: tag as u64 };
        let filled = |into: &mut [u8]| {
            into.fill(1);
            true
        };
        client.submit(one, request, filled).expect("a slot");
        outstanding += 1;
    }
    let mut assembly = Assembly::default();
    while !bytes.is_empty() {
        while client.poll_transmit(now, &mut buffer).is_some() {}
        let (how, body) = said(&mut bytes, &mut now);
        counter += 1 + u64::from(how & 2) * 40;
        let header = Header { kind: Kind::Sealed, session, counter };
        let mut frame = liar.frame(header, body).expect("room");
        client.receive(now, &mut frame, &mut |_, net| joined(&mut assembly, net, body));
        client.tick(now);
        while let Some(finished) = client.next_finished() {
            outstanding -= 1;
            assert!(client.data(&finished).len() <= 4096 && finished.status != Status::NeverSeen);
            client.free(finished);
        }
        while client.next_event().is_some() {}
        assert_eq!(client.outstanding(one), outstanding);
    }
}
