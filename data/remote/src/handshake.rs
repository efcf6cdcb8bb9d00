//! How two ends come to a session: cookie, then Noise IK, or where security is `none` the same frames in the clear.
//!
//! Control's work, not a sidecore's, but for [`Gate`]: it looks at each hello without any state, and what passes
//! goes to a thread that has a [`Greeter`]. Nothing that a peer can do here changes an attachment: the first
//! message of Noise IK can be replayed, so a session counts only when its first frame has come.

use thiserror::Error;

use crate::seal::{Cipher, Keys};
use crate::wire::{Header, Kind, Malformed};

mod gate;
mod noise;
mod offer;

pub use gate::{Gate, Verdict};
pub use noise::public_key;
pub use offer::{IMAGES, Offer, Terms};

/// An end's static public key; zeroes where security is `none`.
pub type PublicKey = [u8; 32];
/// An end's static private key.
pub type PrivateKey = [u8; 32];

const HELLO_FIXED: usize = 24;
const MAC_BYTES: usize = 16;
const COOKIE_BYTES: usize = 16;
/// Bytes of the longest frame of a handshake.
pub const FRAME_BYTES_MAX: usize = 256;

/// Random bits, from whoever has them. They must be secret where security is not `none`.
pub trait Randomness {
    /// Fills `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// Why a frame of a handshake is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is no such frame.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
    /// It is not from whom it says, or not for this handshake.
    #[error("not authentic")]
    Forged,
    /// The two ends have no version, cipher or frame size in common.
    #[error("nothing in common")]
    NothingInCommon,
    /// The other end is not one that this end knows.
    #[error("a stranger")]
    Stranger,
}

/// Who an end is.
#[derive(Clone)]
pub enum Identity {
    /// Security is `none`.
    None,
    /// Noise, with this key.
    Key(PrivateKey),
}

/// What a handshake leaves: all that a session is made of, once. Counters begin at 0 with its keys, so nobody may
/// use them twice:
///
/// ```compile_fail,E0382
/// fn twice(client: &mut remote::client::Client, made: remote::handshake::Established) {
///     client.establish(made, 0);
///     client.establish(made, 0);
/// }
/// ```
#[derive(Debug)]
pub struct Established {
    /// Our number for the session: in the headers of what comes.
    pub mine: u32,
    /// The peer's number: in the headers of what goes.
    pub theirs: u32,
    /// The keys.
    pub keys: Keys,
    /// Who the peer is.
    pub peer: PublicKey,
    /// What was agreed.
    pub terms: Terms,
    /// Frames that may be sent before the first acknowledgement.
    pub credit: u64,
}

/// The same without the keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) mine: u32,
    pub(crate) theirs: u32,
    pub(crate) peer: PublicKey,
    pub(crate) terms: Terms,
    pub(crate) credit: u64,
}

impl Established {
    /// Keys go one way only: a session is made of them, and no second one.
    pub(crate) fn split(self) -> (Keys, Agreed) {
        let Established { mine, theirs, keys, peer, terms, credit } = self;
        (keys, Agreed { mine, theirs, peer, terms, credit })
    }
}

/// The client's side of one handshake.
pub struct Initiator {
    noise: Option<noise::Noise>,
    responder: PublicKey,
    offer: Offer,
    number: u32,
    hello: Vec<u8>,
}

/// What a client does after a frame.
#[derive(Debug)]
pub enum Step {
    /// Send [`Initiator::hello`] again: it has a cookie now.
    Again,
    /// There is a session.
    Done(Box<Established>),
}

impl Initiator {
    /// To an IOhost with the public key `responder` (zeroes where security is `none`). `number` is the client's
    /// for the session: one that none of its sessions of the last minutes had.
    pub fn new(
        identity: &Identity,
        responder: PublicKey,
        number: u32,
        mut offer: Offer,
        randomness: &mut dyn Randomness,
    ) -> Result<Initiator, Refused> {
        let mut epoch = [0; 8];
        randomness.fill(&mut epoch);
        offer.epoch = u64::from_le_bytes(epoch);
        let mut hello = Header { kind: Kind::Hello, session: 0, counter: 0 }.bytes().to_vec();
        hello.extend(number.to_le_bytes());
        hello.extend([u8::from(matches!(identity, Identity::Key(_))), 0, 0, 0]);
        let mut noise = None;
        match identity {
            Identity::None => hello.extend(offer.bytes()),
            Identity::Key(key) => {
                let mut state = noise::Noise::initiator(key, &responder, &hello, randomness)?;
                hello.extend(state.write(&offer.bytes())?);
                noise = Some(state);
            }
        }
        let mac = gate::mac_of_hello(&responder, &hello);
        hello.extend(mac);
        hello.extend([0; COOKIE_BYTES]);
        Ok(Initiator { noise, responder, offer, number, hello })
    }

    /// What to send, and to send again when nothing comes.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// A frame that came. What is refused changes nothing: the true answer may still come.
    pub fn receive(&mut self, frame: &[u8]) -> Result<Step, Refused> {
        let header = Header::parse(frame)?;
        if header.session != self.number || header.counter != 0 {
            return Err(Refused::Forged);
        }
        let body = frame.get(crate::wire::HEADER_BYTES..).unwrap_or_default();
        match header.kind {
            Kind::Cookie => self.cookie(body),
            Kind::Answer => self.answer(body),
            _ => Err(Malformed::Kind(header.kind as u8).into()),
        }
    }

    /// A cookie comes with the hello's own MAC, so only who saw the hello can send one.
    fn cookie(&mut self, body: &[u8]) -> Result<Step, Refused> {
        let at = self.hello.len() - COOKIE_BYTES;
        let (mac, cookie) = body.split_at_checked(MAC_BYTES).ok_or(Malformed::Short)?;
        if cookie.len() != COOKIE_BYTES {
            return Err(Malformed::Length.into());
        }
        if *mac != self.hello[at - MAC_BYTES..at] {
            return Err(Refused::Forged);
        }
        self.hello[at..].copy_from_slice(cookie);
        Ok(Step::Again)
    }

    fn answer(&mut self, body: &[u8]) -> Result<Step, Refused> {
        let (terms, keys) = match &mut self.noise {
            None => {
                let terms = Terms::open_clear(self.offer.epoch, body)?;
                let epoch = offer::epoch(self.offer.epoch, terms.epoch);
                (terms, Keys::None { epoch, is_client: true })
            }
            Some(noise) => {
                let terms = Terms::parse(&noise.read(body)?)?;
                let (send, receive) = noise.split();
                (terms, Keys::Aead { cipher: terms.cipher, send, receive })
            }
        };
        if !terms.is_within(&self.offer) {
            return Err(Refused::NothingInCommon);
        }
        Ok(Step::Done(Box::new(Established {
            mine: self.number,
            theirs: terms.number,
            keys,
            peer: self.responder,
            terms,
            credit: u64::from(terms.credit),
        })))
    }
}

/// The IOhost's side: as many handshakes as come, none of which it remembers.
pub struct Greeter {
    identity: Identity,
    public: PublicKey,
    offer: Offer,
    lease_ms: u32,
    work_ms: u32,
}

impl Greeter {
    /// `offer` is what this IOhost can do; `lease_ms` after how long a silent client loses what it has; `work_ms`
    /// how long one request is executed at most, from when it goes to the disk: clients that fail requests wait
    /// for both.
    pub fn new(
        identity: Identity,
        offer: Offer,
        lease_ms: u32,
        work_ms: u32,
    ) -> Result<Greeter, Refused> {
        let public = match &identity {
            Identity::None => [0; 32],
            Identity::Key(key) => public_key(key)?,
        };
        Ok(Greeter { identity, public, offer, lease_ms, work_ms })
    }

    /// What clients must know.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Reads a hello that has passed the [`Gate`]; `knows` says who may come. Nothing is promised by that: the
    /// hello may be one that somebody has recorded.
    pub fn read(
        &self,
        hello: &[u8],
        knows: &dyn Fn(&PublicKey) -> bool,
        randomness: &mut dyn Randomness,
    ) -> Result<Greeted, Refused> {
        let (fixed, rest) = hello.split_at_checked(HELLO_FIXED).ok_or(Malformed::Short)?;
        let message_len =
            rest.len().checked_sub(MAC_BYTES + COOKIE_BYTES).ok_or(Malformed::Short)?;
        let message = &rest[..message_len];
        let theirs = u32::from_le_bytes([fixed[16], fixed[17], fixed[18], fixed[19]]);
        let mut epoch = [0; 8];
        randomness.fill(&mut epoch);
        let (offer, noise, peer) = match (&self.identity, fixed[20]) {
            (Identity::None, 0) => (Offer::parse(message)?, None, [0; 32]),
            (Identity::Key(key), 1) => {
                let mut noise = noise::Noise::responder(key, fixed, randomness)?;
                let offer = Offer::parse(&noise.read(message)?)?;
                let peer = noise.peer().ok_or(Refused::Forged)?;
                if !knows(&peer) {
                    return Err(Refused::Stranger);
                }
                (offer, Some(noise), peer)
            }
            _ => return Err(Refused::NothingInCommon),
        };
        let mut terms = self.offer.choose(&offer, self.lease_ms, self.work_ms)?;
        terms.epoch = u64::from_le_bytes(epoch);
        Ok(Greeted { offer, noise, peer, theirs, terms })
    }
}

/// A hello that was read.
pub struct Greeted {
    offer: Offer,
    noise: Option<noise::Noise>,
    peer: PublicKey,
    theirs: u32,
    terms: Terms,
}

impl Greeted {
    /// Who sent it, or somebody else before: zeroes where security is `none`.
    pub fn peer(&self) -> &PublicKey {
        &self.peer
    }

    /// The answer, which is never longer than the hello. `number` is the new session's, reserved before; `credit`
    /// the frames that the client may have under way.
    pub fn answer(self, number: u32, credit: u32) -> Result<(Vec<u8>, Established), Refused> {
        let Greeted { offer, noise, peer, theirs, mut terms } = self;
        (terms.number, terms.credit) = (number, credit);
        let mut answer =
            Header { kind: Kind::Answer, session: theirs, counter: 0 }.bytes().to_vec();
        let keys = match noise {
            None => {
                answer.extend(terms.seal_clear(offer.epoch));
                let epoch = offer::epoch(offer.epoch, terms.epoch);
                Keys::None { epoch, is_client: false }
            }
            Some(mut noise) => {
                answer.extend(noise.write(&terms.bytes())?);
                let (receive, send) = noise.split();
                Keys::Aead { cipher: terms.cipher, send, receive }
            }
        };
        let credit = u64::from(offer.credit);
        Ok((answer, Established { mine: number, theirs, keys, peer, terms, credit }))
    }
}

/// The cipher bits of both kinds of security.
fn ciphers(is_secret: bool) -> u8 {
    if is_secret {
        Cipher::Aes256Gcm as u8 | Cipher::ChaCha20Poly1305 as u8
    } else {
        Cipher::None as u8
    }
}

#[cfg(test)]
mod tests;
