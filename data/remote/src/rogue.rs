//! Frames sealed as they should be, around bytes that are anything. For fuzzing; nothing shipped has it.

use crate::Keys;
use crate::seal::Seal;
use crate::wire::{HEADER_BYTES, Header};

/// A frame. `None` when the keys are none.
pub fn frame(keys: &Keys, header: Header, body: &[u8]) -> Option<Vec<u8>> {
    let seal = Seal::new(keys)?;
    let mut frame = header.bytes().to_vec();
    frame.extend(body);
    frame.resize(HEADER_BYTES + body.len() + seal.tag_bytes(), 0);
    seal.seal(header.counter, &mut frame, HEADER_BYTES + body.len())?;
    Some(frame)
}
