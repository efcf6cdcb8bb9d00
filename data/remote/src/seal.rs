//! What keeps a frame whole: an AEAD, or where the operator said `security = "none"` a CRC-64.
//!
//! Not where keys come from (`handshake`), and not which counters are fresh (`received`). Nothing here allocates
//! for a frame. Called by `session`.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::wire::HEADER_BYTES;

/// Bytes behind the records of a frame.
const AEAD_TAG_BYTES: usize = 16;
const CRC_TAG_BYTES: usize = 8;

/// How frames are sealed. The numbers are bits of an offer in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cipher {
    /// Against bits that flip and frames of other sessions, not against people.
    None = 1,
    /// AES-256-GCM: where the processor has instructions for it.
    Aes256Gcm = 2,
    /// ChaCha20-Poly1305: where it has not.
    ChaCha20Poly1305 = 4,
}

/// What both ends of a session have in common. Not `Clone`: counters begin at 0 with them, so they are used once.
pub enum Keys {
    /// No secret: random bits of both ends, so that no frame of another session fits.
    None {
        /// Of both ends.
        epoch: u64,
        /// Which end this is.
        is_client: bool,
    },
    /// A key for each way.
    Aead {
        /// Not [`Cipher::None`].
        cipher: Cipher,
        /// From here.
        send: [u8; 32],
        /// To here.
        receive: [u8; 32],
    },
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keys::None { .. } => "Keys::None",
            Keys::Aead { .. } => "Keys::Aead(secret)",
        })
    }
}

/// Both ways of a session.
pub(crate) enum Seal {
    Crc { epoch: u64, is_client: bool },
    Aead { send: LessSafeKey, receive: LessSafeKey },
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if matches!(self, Seal::Crc { .. }) { "Seal::Crc" } else { "Seal::Aead" })
    }
}

impl Seal {
    /// `None` when the library refuses a key, which it does for no key of this length.
    pub(crate) fn new(keys: Keys) -> Option<Seal> {
        Some(match keys {
            Keys::None { epoch, is_client } => Seal::Crc { epoch, is_client },
            Keys::Aead { cipher, send, receive } => {
                let algorithm = match cipher {
                    Cipher::Aes256Gcm => &AES_256_GCM,
                    Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
                    Cipher::None => return None,
                };
                let key =
                    |bytes: [u8; 32]| UnboundKey::new(algorithm, &bytes).ok().map(LessSafeKey::new);
                Seal::Aead { send: key(send)?, receive: key(receive)? }
            }
        })
    }

    pub(crate) fn tag_bytes(&self) -> usize {
        match self {
            Seal::Crc { .. } => CRC_TAG_BYTES,
            Seal::Aead { .. } => AEAD_TAG_BYTES,
        }
    }

    /// Seals the `len` bytes at the start of `buffer`, header included, and puts the tag behind them: the
    /// whole length. `None` when there is no room for it. A counter must never be used twice.
    pub(crate) fn seal(&self, counter: u64, buffer: &mut [u8], len: usize) -> Option<usize> {
        let end = len + self.tag_bytes();
        let frame = buffer.get_mut(..end)?;
        let (header, rest) = frame.split_at_mut_checked(HEADER_BYTES)?;
        let (body, tag) = rest.split_at_mut_checked(len.checked_sub(HEADER_BYTES)?)?;
        match self {
            Seal::Crc { epoch, is_client } => {
                tag.copy_from_slice(&crc(*epoch, *is_client, header, body).to_le_bytes());
            }
            Seal::Aead { send, .. } => {
                let aad = Aad::from(&*header);
                let made = send.seal_in_place_separate_tag(nonce(counter), aad, body).ok()?;
                tag.copy_from_slice(made.as_ref());
            }
        }
        Some(end)
    }

    /// Opens `frame` in place: where its records end. `None` when it is not what the peer sealed.
    pub(crate) fn open(&self, counter: u64, frame: &mut [u8]) -> Option<usize> {
        let end = frame.len().checked_sub(self.tag_bytes())?;
        let (header, rest) = frame.split_at_mut_checked(HEADER_BYTES)?;
        let body_len = end.checked_sub(HEADER_BYTES)?;
        match self {
            Seal::Crc { epoch, is_client } => {
                let (body, tag) = rest.split_at(body_len);
                let is_whole = crc(*epoch, !is_client, header, body).to_le_bytes() == *tag;
                is_whole.then_some(end)
            }
            Seal::Aead { receive, .. } => {
                let aad = Aad::from(&*header);
                receive.open_in_place(nonce(counter), aad, rest).ok().map(|_| end)
            }
        }
    }
}

/// The frame's number: never used twice with one key.
fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn crc(epoch: u64, is_from_client: bool, header: &[u8], body: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&epoch.to_le_bytes());
    digest.update(&[u8::from(is_from_client)]);
    digest.update(header);
    digest.update(body);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Header, Kind};

    fn pairs() -> Vec<(Seal, Seal)> {
        let plain = |is_client| Keys::None { epoch: 7, is_client };
        let aead = |cipher, send, receive| Keys::Aead { cipher, send, receive };
        let mut keys = vec![(plain(true), plain(false))];
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            keys.push((aead(cipher, [1; 32], [2; 32]), aead(cipher, [2; 32], [1; 32])));
        }
        let seal = |keys: Keys| Seal::new(keys).expect("a seal");
        keys.into_iter().map(|(one, other)| (seal(one), seal(other))).collect()
    }

    fn sealed(seal: &Seal, counter: u64) -> Vec<u8> {
        let mut buffer = vec![0x5a; 200];
        let header = Header { kind: Kind::Sealed, session: 3, counter };
        buffer[..HEADER_BYTES].copy_from_slice(&header.bytes());
        let end = seal.seal(counter, &mut buffer, 100).expect("room");
        buffer.truncate(end);
        buffer
    }

    /// N7: a bit that flips anywhere, in header, records or tag; N1: what was sealed with other keys.
    #[test]
    fn n7_a_flipped_bit_opens_nothing() {
        for (ours, theirs) in pairs() {
            let frame = sealed(&ours, 9);
            let mut opened = frame.clone();
            assert_eq!(theirs.open(9, &mut opened), Some(100));
            assert_eq!(opened[HEADER_BYTES..100], [0x5a; 84]);
            assert_eq!(ours.open(9, &mut frame.clone()), None, "what was sent came back");
            for bit in 0..frame.len() * 8 {
                let mut flipped = frame.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(theirs.open(9, &mut flipped), None, "bit {bit}");
            }
            for len in 0..frame.len() {
                assert_eq!(theirs.open(9, &mut frame.clone()[..len]), None, "{len} bytes");
            }
        }
        let others = Keys::Aead { cipher: Cipher::Aes256Gcm, send: [3; 32], receive: [4; 32] };
        let others = Seal::new(others).expect("a seal");
        let frame = sealed(&pairs()[1].0, 9);
        assert_eq!(others.open(9, &mut frame.clone()), None);
        assert_eq!(pairs()[1].1.open(10, &mut frame.clone()), None, "another counter");
    }

    #[test]
    fn keys_are_not_shown() {
        let keys = Keys::Aead { cipher: Cipher::Aes256Gcm, send: [3; 32], receive: [4; 32] };
        assert_eq!(format!("{keys:?}"), "Keys::Aead(secret)");
        assert!(
            Seal::new(Keys::Aead { cipher: Cipher::None, send: [0; 32], receive: [0; 32] })
                .is_none()
        );
    }
}
