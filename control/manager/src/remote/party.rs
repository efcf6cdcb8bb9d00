//! What the handshakes of a link are made with: its key, and who is at the other end.
//!
//! Not here: the handshakes (`greeter`), nor how a key is read (`keys`). Called by `link`, and when a file is checked.

use std::path::Path;
use std::sync::Arc;

use config::plan::{LinkEnd, LinkPlan};
use remote::handshake::{Identity, Offer, PublicKey, public_key};

use super::error::LinkKeyError;
use super::greeter::Party;
use super::keys;
use super::sockets::{RING_FRAMES, frame_bytes};

/// How long one request may be with a disk, as clients are told that fail requests.
const WORK_MS: u32 = 60_000;

/// That the link's key is there and of use.
///
/// # Errors
/// What a start would say.
pub(crate) fn check_key(plan: &LinkPlan) -> Result<(), LinkKeyError> {
    party_of(plan, identity_of(plan)?).map(drop)
}

/// Who this end is.
///
/// # Errors
/// Its key is not there, or no key.
pub(super) fn identity_of(plan: &LinkPlan) -> Result<Identity, LinkKeyError> {
    let Some(file) = &plan.key_file else { return Ok(Identity::None) };
    keys::read(Path::new(file)).map(Identity::Key).map_err(LinkKeyError::File)
}

/// What they are made with.
///
/// # Errors
/// The key is of no use.
pub(super) fn party_of(plan: &LinkPlan, identity: Identity) -> Result<Party, LinkKeyError> {
    let is_secret = plan.key_file.is_some();
    let offer = Offer::new(is_secret, frame_bytes(plan), RING_FRAMES);
    Ok(match &plan.end {
        LinkEnd::Client { iohost_key, .. } => {
            // A stranger is not answered, so nobody else would say it.
            if let (Identity::Key(own), Some(iohost)) = (&identity, iohost_key)
                && public_key(own).is_ok_and(|own| own == *iohost)
            {
                return Err(LinkKeyError::Own);
            }
            Party::Client { identity, iohost: iohost_key.unwrap_or([0; 32]), offer }
        }
        LinkEnd::Iohost { lease_s, clients, .. } => {
            let responder =
                remote::handshake::Greeter::new(identity, offer, lease_s * 1000, WORK_MS);
            let clients: Vec<PublicKey> = clients.iter().filter_map(|client| client.key).collect();
            let responder = Box::new(responder.map_err(LinkKeyError::Responder)?);
            Party::Iohost { responder, clients, refused: Arc::default() }
        }
    })
}
