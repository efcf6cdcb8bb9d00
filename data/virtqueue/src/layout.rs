//! Where things are in a ring, and how long its three parts are (VIRTIO 1.2, 2.7 and 2.8).

/// Entries of the largest ring.
pub const RING_SIZE_MAX: u16 = 32768;

/// Bytes of one descriptor, in either format and in indirect tables.
pub(crate) const DESCRIPTOR_SIZE: usize = 16;

/// Descriptor flag: another follows.
pub(crate) const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
pub(crate) const WRITE: u16 = 2;
/// Descriptor flag: the buffer is a table of descriptors.
pub(crate) const INDIRECT: u16 = 4;
/// Packed descriptor flag: the driver's lap bit.
pub(crate) const AVAIL: u16 = 1 << 7;
/// Packed descriptor flag: the device's lap bit.
pub(crate) const USED: u16 = 1 << 15;

/// The two ring formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Table, available ring, used ring (2.7).
    Split,
    /// One ring of descriptors and two event structures (2.8).
    Packed,
}

/// Bytes of the descriptor table (split) or ring (packed).
pub fn descriptors_len(_format: Format, size: u16) -> u64 {
    DESCRIPTOR_SIZE as u64 * u64::from(size)
}

/// Bytes of the available ring (split; with `used_event` when negotiated) or the driver's event
/// structure (packed).
pub fn driver_len(format: Format, size: u16, event_index: bool) -> u64 {
    match format {
        Format::Split => 4 + 2 * u64::from(size) + 2 * u64::from(event_index),
        Format::Packed => 4,
    }
}

/// Bytes of the used ring (split; with `avail_event` when negotiated) or the device's event
/// structure (packed).
pub fn device_len(format: Format, size: u16, event_index: bool) -> u64 {
    match format {
        Format::Split => 4 + 8 * u64::from(size) + 2 * u64::from(event_index),
        Format::Packed => 4,
    }
}

/// Whether a ring may have `size` entries.
pub fn is_size(format: Format, size: u16) -> bool {
    let bounded = (1..=RING_SIZE_MAX).contains(&size);
    bounded && (format == Format::Packed || size.is_power_of_two())
}
