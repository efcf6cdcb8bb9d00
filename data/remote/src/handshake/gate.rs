//! What a sidecore does with a hello: a look at its length, one keyed hash, and a cookie. No state of a peer.

use aws_lc_rs::{constant_time, digest, hmac};

use super::{
    COOKIE_BYTES, FRAME_BYTES_MAX, HELLO_FIXED, MAC_BYTES, PublicKey, Randomness, Refused,
};
use crate::wire::{HEADER_BYTES, Header, Kind};

/// How long a cookie is good, at least; twice as long at most.
const COOKIE_NS: u64 = 60_000_000_000;
const COOKIE_FRAME: usize = HEADER_BYTES + MAC_BYTES + COOKIE_BYTES;

/// What becomes of a hello.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is dropped.
    Drop,
    /// Its sender has not shown yet that it has this address: this is sent there.
    Cookie([u8; COOKIE_FRAME]),
    /// It goes to the greeter.
    Pass,
}

/// The look. One for each link.
pub struct Gate {
    key: hmac::Key,
    /// This one's cookies are given, the other one's are still taken.
    secrets: [hmac::Key; 2],
    made_at: u64,
}

impl Gate {
    /// Before an IOhost with this public key (zeroes where security is `none`).
    pub fn new(public: &PublicKey, now: u64, randomness: &mut dyn Randomness) -> Gate {
        let secrets = [secret(randomness), secret(randomness)];
        Gate { key: hello_key(public), secrets, made_at: now }
    }

    /// Makes a new secret when it is time. Called now and then.
    pub fn tick(&mut self, now: u64, randomness: &mut dyn Randomness) {
        if now.saturating_sub(self.made_at) >= COOKIE_NS {
            self.secrets.swap(0, 1);
            self.secrets[0] = secret(randomness);
            self.made_at = now;
        }
    }

    /// Looks at a hello from `address`, whatever the bytes of one are on this link.
    pub fn look(&self, hello: &[u8], address: &[u8]) -> Verdict {
        self.checked(hello, address).unwrap_or(Verdict::Drop)
    }

    fn checked(&self, hello: &[u8], address: &[u8]) -> Result<Verdict, Refused> {
        let header = Header::parse(hello)?;
        let is_long = hello.len() >= HELLO_FIXED + MAC_BYTES + COOKIE_BYTES;
        if header.kind != Kind::Hello || !is_long || hello.len() > FRAME_BYTES_MAX {
            return Err(Refused::Forged);
        }
        let (front, cookie) = hello.split_at(hello.len() - COOKIE_BYTES);
        let (signed, mac) = front.split_at(front.len() - MAC_BYTES);
        is_same(&short(&self.key, &[signed]), mac)?;
        let made = self.secrets.each_ref().map(|secret| short(secret, &[address, mac]));
        if made.iter().any(|one| is_same(one, cookie).is_ok()) {
            return Ok(Verdict::Pass);
        }
        let session = u32::from_le_bytes([hello[16], hello[17], hello[18], hello[19]]);
        let mut frame = [0; COOKIE_FRAME];
        let header = Header { kind: Kind::Cookie, session, counter: 0 };
        frame[..HEADER_BYTES].copy_from_slice(&header.bytes());
        frame[HEADER_BYTES..HEADER_BYTES + MAC_BYTES].copy_from_slice(mac);
        frame[HEADER_BYTES + MAC_BYTES..].copy_from_slice(&made[0]);
        Ok(Verdict::Cookie(frame))
    }
}

/// The MAC that only who knows the IOhost's public key can make.
pub(super) fn mac_of_hello(public: &PublicKey, hello: &[u8]) -> [u8; MAC_BYTES] {
    short(&hello_key(public), &[hello])
}

fn hello_key(public: &PublicKey) -> hmac::Key {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(b"sidecore remote hello");
    context.update(public);
    hmac::Key::new(hmac::HMAC_SHA256, context.finish().as_ref())
}

fn secret(randomness: &mut dyn Randomness) -> hmac::Key {
    let mut bytes = [0; 32];
    randomness.fill(&mut bytes);
    hmac::Key::new(hmac::HMAC_SHA256, &bytes)
}

fn short(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 16] {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    context.sign().as_ref().first_chunk().copied().unwrap_or_default()
}

fn is_same(made: &[u8], told: &[u8]) -> Result<(), Refused> {
    constant_time::verify_slices_are_equal(made, told).map_err(|_| Refused::Forged)
}
