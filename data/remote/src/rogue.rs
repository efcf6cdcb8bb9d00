//! Frames sealed as they should be, around bytes that are anything. For fuzzing; nothing shipped has it.

use crate::Keys;
use crate::seal::Seal;
use crate::wire::{HEADER_BYTES, Header};

/// An end that says whatever it is given.
#[derive(Debug)]
pub struct Liar(Seal);

impl Liar {
    /// `None` when the keys are none.
    pub fn new(keys: Keys) -> Option<Liar> {
        Seal::new(keys).map(Liar)
    }

    /// A frame.
    pub fn frame(&self, header: Header, body: &[u8]) -> Option<Vec<u8>> {
        let mut frame = header.bytes().to_vec();
        frame.extend(body);
        frame.resize(HEADER_BYTES + body.len() + self.0.tag_bytes(), 0);
        self.0.seal(header.counter, &mut frame, HEADER_BYTES + body.len())?;
        Some(frame)
    }
}
