//! `Noise_IK_25519_ChaChaPoly_BLAKE2s` by `snow`, with randomness that is given.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use super::{FRAME_BYTES_MAX, PrivateKey, PublicKey, Randomness, Refused};

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

/// One end of one handshake.
pub(super) struct Noise(Box<HandshakeState>);

impl Noise {
    pub(super) fn initiator(
        key: &PrivateKey,
        responder: &PublicKey,
        prologue: &[u8],
        randomness: &mut dyn Randomness,
    ) -> Result<Noise, Refused> {
        let state = builder(randomness)?
            .local_private_key(key)
            .and_then(|builder| builder.remote_public_key(responder))
            .and_then(|builder| builder.prologue(prologue))
            .and_then(Builder::build_initiator);
        state.map(|state| Noise(Box::new(state))).map_err(|_| Refused::Forged)
    }

    pub(super) fn responder(
        key: &PrivateKey,
        prologue: &[u8],
        randomness: &mut dyn Randomness,
    ) -> Result<Noise, Refused> {
        let state = builder(randomness)?
            .local_private_key(key)
            .and_then(|builder| builder.prologue(prologue))
            .and_then(Builder::build_responder);
        state.map(|state| Noise(Box::new(state))).map_err(|_| Refused::Forged)
    }

    /// The next message of this end.
    pub(super) fn write(&mut self, payload: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut message = vec![0; FRAME_BYTES_MAX];
        let len = self.0.write_message(payload, &mut message).map_err(|_| Refused::Forged)?;
        message.truncate(len);
        Ok(message)
    }

    /// The payload of the other end's message.
    pub(super) fn read(&mut self, message: &[u8]) -> Result<Vec<u8>, Refused> {
        let mut payload = vec![0; FRAME_BYTES_MAX];
        if message.len() > FRAME_BYTES_MAX {
            return Err(Refused::Forged);
        }
        let len = self.0.read_message(message, &mut payload).map_err(|_| Refused::Forged)?;
        payload.truncate(len);
        Ok(payload)
    }

    /// Who the other end is.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        self.0.get_remote_static()?.try_into().ok()
    }

    /// The keys from the initiator and from the responder.
    pub(super) fn split(&mut self) -> ([u8; 32], [u8; 32]) {
        self.0.dangerously_get_raw_split()
    }
}

/// The public half of `key`.
pub fn public_key(key: &PrivateKey) -> Result<PublicKey, Refused> {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519).ok_or(Refused::Forged)?;
    dh.set(key);
    dh.pubkey().try_into().map_err(|_| Refused::Forged)
}

fn builder<'a>(randomness: &mut dyn Randomness) -> Result<Builder<'a>, Refused> {
    let params = PATTERN.parse().map_err(|_| Refused::Forged)?;
    let mut seed = [0; 32];
    randomness.fill(&mut seed);
    Ok(Builder::with_resolver(params, Box::new(Given(seed))))
}

/// The primitives of `snow`, and one ephemeral key's worth of random bits.
struct Given([u8; 32]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Bits that are given out once: an end of IK makes one ephemeral key.
struct Once(Option<[u8; 32]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        let bits = self.0.take().ok_or(snow::Error::Rng)?;
        let bits = bits.get(..dest.len()).ok_or(snow::Error::Rng)?;
        dest.copy_from_slice(bits);
        Ok(())
    }
}
