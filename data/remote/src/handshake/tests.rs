//! Handshakes between honest ends, strangers, liars and those that repeat what they heard.

use random::Random;

use super::*;

struct Seeded(Random);

impl Randomness for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.0.next() as u8);
    }
}

fn seeded(seed: u64) -> Seeded {
    Seeded(Random::new(seed, 0))
}

struct Ends {
    gate: Gate,
    greeter: Greeter,
    initiator: Initiator,
    random: Seeded,
}

fn ends(is_secret: bool, seed: u64) -> Ends {
    let mut random = seeded(seed);
    let identity = |byte| if is_secret { Identity::Key([byte; 32]) } else { Identity::None };
    let greeter =
        Greeter::new(identity(1), Offer::new(is_secret, 9000, 1), 10_000, 500).expect("a greeter");
    let gate = Gate::new(greeter.public(), 0, &mut random);
    let offer = Offer::new(is_secret, 1472, 64);
    let initiator = Initiator::new(&identity(2), *greeter.public(), 77, offer, &mut random);
    Ends { gate, greeter, initiator: initiator.expect("an initiator"), random }
}

impl Ends {
    /// Brings a cookie to the initiator.
    fn with_cookie(mut self) -> Ends {
        let Verdict::Cookie(frame) = self.gate.look(self.initiator.hello(), b"a") else {
            panic!("no cookie")
        };
        assert!(matches!(self.initiator.receive(&frame), Ok(Step::Again)));
        assert_eq!(self.gate.look(self.initiator.hello(), b"a"), Verdict::Pass);
        self
    }

    fn answer(&mut self) -> (Vec<u8>, Established) {
        let hello = self.initiator.hello();
        let greeted = self.greeter.read(hello, &|_| true, &mut self.random).expect("a hello");
        greeted.answer(99, 256).expect("an answer")
    }
}

#[test]
fn two_ends_agree() {
    for is_secret in [false, true] {
        let mut ends = ends(is_secret, 1).with_cookie();
        let (answer, host) = ends.answer();
        assert!(answer.len() <= ends.initiator.hello().len(), "an answer longer than the hello");
        let Ok(Step::Done(client)) = ends.initiator.receive(&answer) else { panic!("no session") };
        assert_eq!((client.mine, client.theirs, host.mine, host.theirs), (77, 99, 99, 77));
        assert_eq!((client.credit, host.credit), (256, 64));
        assert_eq!(client.terms, host.terms);
        assert_eq!((client.terms.frame_bytes, client.terms.lease_ms), (1472, 10_000));
        assert_eq!(client.terms.work_ms, 500);
        match (&client.keys, &host.keys) {
            (Keys::None { epoch: one, .. }, Keys::None { epoch: other, .. }) => {
                assert!(!is_secret && one == other);
            }
            (Keys::Aead { send, receive, .. }, Keys::Aead { send: back, receive: forth, .. }) => {
                assert!(is_secret && send == forth && receive == back && send != receive);
                assert_eq!(host.peer, public_key(&[2; 32]).expect("a key"));
            }
            _ => panic!("two kinds of keys"),
        }
    }
}

/// N10: a flood of hellos costs a hash each, no state, and answers shorter than they are.
#[test]
fn n10_a_hello_without_a_cookie_gets_less_than_it_sent() {
    let ends = ends(true, 2);
    let hello = ends.initiator.hello();
    let Verdict::Cookie(frame) = ends.gate.look(hello, b"address one") else { panic!("no cookie") };
    assert!(frame.len() < hello.len());
    for bit in 0..(hello.len() - COOKIE_BYTES) * 8 {
        let mut flipped = hello.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ends.gate.look(&flipped, b"address one"), Verdict::Drop, "bit {bit}");
    }
    for len in 0..hello.len() {
        assert_eq!(ends.gate.look(&hello[..len], b"address one"), Verdict::Drop);
    }
    // The cookie is for this address, and for a while.
    let mut ends = ends.with_cookie();
    assert!(matches!(ends.gate.look(ends.initiator.hello(), b"b"), Verdict::Cookie(_)));
    ends.gate.tick(60_000_000_000, &mut ends.random);
    assert_eq!(ends.gate.look(ends.initiator.hello(), b"a"), Verdict::Pass);
    ends.gate.tick(120_000_000_000, &mut ends.random);
    assert!(matches!(ends.gate.look(ends.initiator.hello(), b"a"), Verdict::Cookie(_)));
}

/// N7 of the handshake: a forged answer is dropped, and the true one is still taken.
#[test]
fn n7_a_forged_answer_is_dropped_and_the_true_one_is_taken() {
    for is_secret in [false, true] {
        let mut ends = ends(is_secret, 3).with_cookie();
        let (answer, _) = ends.answer();
        for bit in (0..answer.len() * 8).step_by(if is_secret { 11 } else { 1 }) {
            let mut flipped = answer.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let step = ends.initiator.receive(&flipped);
            assert!(step.is_err(), "bit {bit}: {step:?}");
        }
        assert!(matches!(ends.initiator.receive(&answer), Ok(Step::Done(_))));
    }
}

/// N1: nobody without a known key gets a session; N2: an old answer is none.
#[test]
fn n1_a_stranger_gets_no_answer() {
    let mut ends = ends(true, 4).with_cookie();
    let hello = ends.initiator.hello().to_vec();
    let refused = ends.greeter.read(&hello, &|_| false, &mut ends.random);
    assert_eq!(refused.map(|_| ()), Err(Refused::Stranger));
    let (answer, _) = ends.answer();
    let mut other = self::ends(true, 5);
    assert!(other.initiator.receive(&answer).is_err(), "an answer to another hello");
    let mut plain = self::ends(false, 4);
    let clear = plain.initiator.hello().to_vec();
    let refused = ends.greeter.read(&clear, &|_| true, &mut plain.random);
    assert_eq!(refused.map(|_| ()), Err(Refused::NothingInCommon), "no way back to no security");
}

#[test]
fn nothing_in_common_is_refused() {
    let ours = Offer::new(true, 1472, 10);
    let with = |change: fn(&mut Offer)| {
        let mut theirs = Offer::new(true, 9000, 10);
        change(&mut theirs);
        ours.choose(&theirs, 1000, 0).map(|terms| (terms.version, terms.cipher, terms.frame_bytes))
    };
    assert_eq!(with(|_| ()), Ok((1, Cipher::Aes256Gcm, 1472)));
    assert_eq!(with(|offer| offer.version = 9), Ok((1, Cipher::Aes256Gcm, 1472)));
    let only_chacha = with(|offer| offer.ciphers = Cipher::ChaCha20Poly1305 as u8);
    assert_eq!(only_chacha, Ok((1, Cipher::ChaCha20Poly1305, 1472)));
    for change in [
        (|offer| offer.version = 0) as fn(&mut Offer),
        |offer| offer.ciphers = 1,
        |offer| offer.frame_bytes = 100,
        |offer| offer.credit = 0,
    ] {
        assert_eq!(with(change), Err(Refused::NothingInCommon));
    }
}
