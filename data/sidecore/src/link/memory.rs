//! The memory of one attachment: a split ring, headers and status bytes, and the bytes of its slots.
//!
//! The daemon's own: no guest and no front-end sees it. Made by control when a device is opened for a client; the
//! link's [`Initiator`](super::initiator::Initiator) and the queue that serves it stand on it, and
//! [`remote::iohost::Host`] puts fragments straight where the back-end reads them.

use std::sync::Arc;

use guest_memory::{Area, GuestMap, MapError};
use remote::SLOTS_MAX;
use remote::iohost::SlotMemory;
use virtqueue::layout::{descriptors_len, device_len, driver_len};
use virtqueue::{Format, Queue, QueueSpec, SetupError};

/// Descriptors of a slot: header, data, status, and one that is never used.
pub(super) const CHAIN: u16 = 4;
/// Bytes of a slot for all that is not data.
pub(super) const LINE_BYTES: usize = 64;
/// The data begins here: where slots are as long as pages, files can be read and written past the page cache.
const DATA_ALIGN: usize = 4096;

/// Where things are, bytes from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slots: u16,
    pub(super) slot_bytes: u32,
    /// Entries of the ring.
    pub(super) size: u16,
    pub(super) avail: usize,
    pub(super) used: usize,
    pub(super) lines: usize,
    pub(super) data: usize,
    pub(super) end: usize,
}

impl Layout {
    fn new(slots: u16, slot_bytes: u32) -> Layout {
        let slots = slots.clamp(1, SLOTS_MAX);
        let count = usize::from(slots);
        let size = (slots * CHAIN).next_power_of_two();
        let avail = descriptors_len(Format::Split, size) as usize;
        let used = (avail + driver_len(Format::Split, size, false) as usize).next_multiple_of(64);
        let used_end = used + device_len(Format::Split, size, false) as usize;
        let lines = used_end.next_multiple_of(LINE_BYTES);
        let data = (lines + count * LINE_BYTES).next_multiple_of(DATA_ALIGN);
        // At least one, so that there is something to map.
        let end = data + (count * slot_bytes as usize).max(1);
        Layout { slots, slot_bytes, size, avail, used, lines, data, end }
    }

    /// Where the data of a slot begins.
    #[inline]
    pub(super) fn data_at(&self, slot: u16) -> usize {
        self.data + usize::from(slot) * self.slot_bytes as usize
    }

    #[inline]
    pub(super) fn line_at(&self, slot: u16) -> usize {
        self.lines + usize::from(slot) * LINE_BYTES
    }
}

/// The memory. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct AttachmentMemory {
    map: Arc<GuestMap>,
    pub(super) area: Area,
    pub(super) layout: Layout,
}

impl AttachmentMemory {
    /// Zeroed, for so many slots (1 to [`remote::SLOTS_MAX`]) of so many bytes. Pages are taken when they are
    /// first written.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new(slots: u16, slot_bytes: u32) -> Result<AttachmentMemory, MapError> {
        let layout = Layout::new(slots, slot_bytes);
        let len = layout.end as u64;
        let map = GuestMap::anonymous(len)?;
        let area = map.area_at_user(0, len).ok_or(MapError::Length { offset: 0, len })?;
        Ok(AttachmentMemory { map: Arc::new(map), area, layout })
    }

    /// What one for so many slots takes: to be booked before it is made.
    pub fn bytes(slots: u16, slot_bytes: u32) -> u64 {
        Layout::new(slots, slot_bytes).end as u64
    }

    /// Requests at a time.
    pub fn slots(&self) -> u16 {
        self.layout.slots
    }

    /// As the queue that serves it sees it.
    pub fn map(&self) -> &Arc<GuestMap> {
        &self.map
    }

    /// The device's side of its ring: `base` is 0 the first time, later what [`Queue::base`] said at detach.
    ///
    /// # Errors
    /// None that this memory gives reason for.
    pub fn queue(&self, base: u32) -> Result<Queue, SetupError> {
        let Layout { size, avail, used, lines, .. } = self.layout;
        let part = |part, at, end: usize| {
            let need = (end - at) as u64;
            self.area.window(at, end - at).ok_or(SetupError::Short { part, have: 0, need })
        };
        Queue::new(QueueSpec {
            size,
            format: Format::Split,
            event_index: false,
            indirect: false,
            descriptors: part("descriptor", 0, avail)?,
            driver: part("driver", avail, used)?,
            device: part("device", used, lines)?,
            base,
            inflight: None,
        })
    }
}

impl SlotMemory for AttachmentMemory {
    fn store(&mut self, at: usize, bytes: &[u8]) {
        // Within: the protocol's slots are as long as these.
        let stored = self.area.write(self.layout.data.saturating_add(at), bytes);
        debug_assert!(stored, "{} bytes at {at} of the slots", bytes.len());
    }

    fn load(&self, at: usize, into: &mut [u8]) {
        let loaded = self.area.read(self.layout.data.saturating_add(at), into);
        debug_assert!(loaded, "{} bytes at {at} of the slots", into.len());
    }
}
