//! What both ends say of themselves, and what comes of it. Not how it is kept secret.

use super::Refused;
use crate::seal::Cipher;
use crate::wire::{Malformed, VERSION};

/// Frames are at least this long, tag included: a fragment of 512 bytes fits.
pub(super) const FRAME_BYTES_MIN: u16 = 640;
const OFFER_BYTES: usize = 24;
const TERMS_BYTES: usize = 36;
/// Leases that make sense: below, a late frame ends a session; above, nobody wants to wait.
const LEASE_MS: std::ops::RangeInclusive<u32> = 100..=600_000;
/// The longest that one request may be executed, for a client to wait for it.
const WORK_MS_MAX: u32 = 600_000;

/// Feature: the answer to a bind says which image a device is ([`crate::wire::Bound::image`]).
pub const IMAGES: u64 = 1;

/// What an end can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The highest version that it speaks.
    pub version: u8,
    /// Bits of [`Cipher`].
    pub ciphers: u8,
    /// Bytes of the longest frame that it takes and sends, header and tag included, without IP and UDP.
    pub frame_bytes: u16,
    /// Frames that the other end may have under way to it.
    pub credit: u32,
    /// Features of the protocol; those that both have are used: [`IMAGES`].
    pub features: u64,
    /// Random, for security `none`.
    pub(super) epoch: u64,
}

impl Offer {
    /// The usual: all ciphers of that security.
    pub fn new(is_secret: bool, frame_bytes: u16, credit: u32) -> Offer {
        let ciphers = super::ciphers(is_secret);
        Offer { version: VERSION, ciphers, frame_bytes, credit, features: IMAGES, epoch: 0 }
    }

    pub(super) fn bytes(&self) -> [u8; OFFER_BYTES] {
        let mut bytes = [0; OFFER_BYTES];
        bytes[0] = self.version;
        bytes[1] = self.ciphers;
        bytes[2..4].copy_from_slice(&self.frame_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.credit.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.features.to_le_bytes());
        bytes[16..].copy_from_slice(&self.epoch.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Offer, Refused> {
        let bytes: &[u8; OFFER_BYTES] = bytes.try_into().map_err(|_| Malformed::Length)?;
        Ok(Offer {
            version: bytes[0],
            ciphers: bytes[1],
            frame_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            credit: u32_at(bytes, 4),
            features: u64_at(bytes, 8),
            epoch: u64_at(bytes, 16),
        })
    }

    /// What an IOhost that can do `self` agrees on with a client that can do `theirs`.
    pub(super) fn choose(
        &self,
        theirs: &Offer,
        lease_ms: u32,
        work_ms: u32,
    ) -> Result<Terms, Refused> {
        let common = self.ciphers & theirs.ciphers;
        let known = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305, Cipher::None];
        let cipher = known.into_iter().find(|cipher| common & *cipher as u8 != 0);
        let frame_bytes = self.frame_bytes.min(theirs.frame_bytes);
        let version = self.version.min(theirs.version);
        let fits = frame_bytes >= FRAME_BYTES_MIN && version >= 1 && theirs.credit > 0;
        let (true, Some(cipher)) = (fits, cipher) else { return Err(Refused::NothingInCommon) };
        let features = self.features & theirs.features;
        let (number, credit, epoch) = (0, 0, 0);
        Ok(Terms {
            version,
            cipher,
            frame_bytes,
            credit,
            features,
            epoch,
            number,
            lease_ms,
            work_ms,
        })
    }
}

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Of what follows.
    pub version: u8,
    /// Of what follows.
    pub cipher: Cipher,
    /// Bytes of the longest frame.
    pub frame_bytes: u16,
    /// Frames that the client may have under way at first.
    pub credit: u32,
    /// That both have.
    pub features: u64,
    pub(super) epoch: u64,
    /// The IOhost's number for the session.
    pub(super) number: u32,
    /// T1: a client that has acknowledged nothing sent within this time is not served any more.
    pub lease_ms: u32,
    /// How long one request is executed at most, from when it goes to the disk.
    pub work_ms: u32,
}

impl Terms {
    pub(super) fn bytes(&self) -> [u8; TERMS_BYTES] {
        let mut bytes = [0; TERMS_BYTES];
        bytes[0] = self.version;
        bytes[1] = self.cipher as u8;
        bytes[2..4].copy_from_slice(&self.frame_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.credit.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.features.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.number.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.lease_ms.to_le_bytes());
        bytes[32..].copy_from_slice(&self.work_ms.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Terms, Refused> {
        let bytes: &[u8; TERMS_BYTES] = bytes.try_into().map_err(|_| Malformed::Length)?;
        let cipher = match bytes[1] {
            1 => Cipher::None,
            2 => Cipher::Aes256Gcm,
            4 => Cipher::ChaCha20Poly1305,
            _ => return Err(Malformed::Field.into()),
        };
        let (lease_ms, work_ms) = (u32_at(bytes, 28), u32_at(bytes, 32));
        if !LEASE_MS.contains(&lease_ms) || work_ms > WORK_MS_MAX {
            return Err(Malformed::Field.into());
        }
        Ok(Terms {
            version: bytes[0],
            cipher,
            frame_bytes: u16::from_le_bytes([bytes[2], bytes[3]]),
            credit: u32_at(bytes, 4),
            features: u64_at(bytes, 8),
            epoch: u64_at(bytes, 16),
            number: u32_at(bytes, 24),
            lease_ms,
            work_ms,
        })
    }

    /// In the clear: with a checksum that begins with the client's random bits, so that an answer to another
    /// hello is none.
    pub(super) fn seal_clear(&self, epoch: u64) -> Vec<u8> {
        let mut bytes = self.bytes().to_vec();
        bytes.extend(clear_sum(epoch, &bytes).to_le_bytes());
        bytes
    }

    pub(super) fn open_clear(epoch: u64, body: &[u8]) -> Result<Terms, Refused> {
        let (terms, sum) = body.split_at_checked(TERMS_BYTES).ok_or(Malformed::Short)?;
        if sum != clear_sum(epoch, terms).to_le_bytes() {
            return Err(Refused::Forged);
        }
        Terms::parse(terms)
    }

    /// Whether a client that offered `offer` can live with it.
    pub(super) fn is_within(&self, offer: &Offer) -> bool {
        (1..=offer.version).contains(&self.version)
            && offer.ciphers & self.cipher as u8 != 0
            && (FRAME_BYTES_MIN..=offer.frame_bytes).contains(&self.frame_bytes)
            && self.features & !offer.features == 0
            && self.credit > 0
    }
}

/// One number of both ends' random bits.
pub(super) fn epoch(client: u64, host: u64) -> u64 {
    clear_sum(client, &host.to_le_bytes())
}

fn clear_sum(epoch: u64, bytes: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
    digest.update(&epoch.to_le_bytes());
    digest.update(bytes);
    digest.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}
