//! IEEE 802.1Q tags in a head buffer.
//!
//! Not which VLAN may go where (`switch`). Called by `switch` to read, by `sidecore` to push, pop and
//! rewrite, by `backend` for tags that a kernel took out of a frame.

use crate::bytes::{put, u16_at};

/// The type of a customer's tag, which VLANs are made of.
pub const TYPE: u16 = 0x8100;
/// The type of a provider's tag (802.1ad).
pub const TYPE_PROVIDER: u16 = 0x88a8;
/// What older switches use in place of either.
pub const TYPE_OLD: u16 = 0x9100;
/// Bytes of a tag.
pub const SIZE: usize = 4;

/// Where the type of an untagged frame is, and that of its first tag.
const TYPE_AT: usize = 12;

/// A tag's second half: 3 bits of priority, 1 of drop eligibility, 12 of VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u16);

impl Tag {
    /// The VLAN: 0 for a tag that says only a priority; 4,095 is reserved.
    pub fn vlan(self) -> u16 {
        self.0 & 0xfff
    }

    /// Priority and drop eligibility, in place.
    pub fn priority(self) -> u16 {
        self.0 & 0xf000
    }
}

/// The first tag of a frame, when it is of [`TYPE`]; a frame that ends within its tag has none.
#[inline]
pub fn read(head: &[u8]) -> Option<Tag> {
    if u16_at(head, TYPE_AT)? != TYPE {
        return None;
    }
    u16_at(head, TYPE_AT + 2).map(Tag)
}

/// Whether that EtherType opens a tag, of whatever kind.
#[inline]
pub fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, TYPE | TYPE_PROVIDER | TYPE_OLD)
}

/// The EtherType behind `tags` tags; None beyond the head's end.
#[inline]
pub fn ether_type(head: &[u8], tags: usize) -> Option<u16> {
    u16_at(head, TYPE_AT + tags * SIZE)
}

/// Bytes of the Ethernet header with its tags, of which two are looked at: 14, 18 or 22.
#[inline]
pub fn ethernet_len(head: &[u8]) -> usize {
    let is_tagged = |tags| ether_type(head, tags).is_some_and(is_tag);
    match is_tagged(0) {
        false => TYPE_AT + 2,
        true if is_tagged(1) => TYPE_AT + 2 + 2 * SIZE,
        true => TYPE_AT + 2 + SIZE,
    }
}

/// Puts `tag` before the first `len` bytes of `head` behind their addresses, and says how many they
/// are now. None when there is no room for four more, or no whole Ethernet header.
#[inline]
pub fn push(head: &mut [u8], len: usize, tag: Tag) -> Option<usize> {
    if len < TYPE_AT + 2 || len + SIZE > head.len() {
        return None;
    }
    head.copy_within(TYPE_AT..len, TYPE_AT + SIZE);
    put(head, TYPE_AT, TYPE.to_be_bytes());
    put(head, TYPE_AT + 2, tag.0.to_be_bytes());
    Some(len + SIZE)
}

/// Takes the first tag out of the first `len` bytes of `head`, and says how many they are now. None
/// when they have no tag of [`TYPE`].
#[inline]
pub fn pop(head: &mut [u8], len: usize) -> Option<usize> {
    let frame = head.get_mut(..len)?;
    read(frame)?;
    frame.copy_within(TYPE_AT + SIZE.., TYPE_AT);
    Some(len - SIZE)
}

/// Gives the first tag another VLAN and leaves its priority. Nothing where there is no tag.
#[inline]
pub fn set_vlan(head: &mut [u8], vlan: u16) {
    if let Some(tag) = read(head) {
        put(head, TYPE_AT + 2, (tag.priority() | vlan & 0xfff).to_be_bytes());
    }
}
