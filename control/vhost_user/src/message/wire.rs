//! The form of each payload: integers one behind the other, in the machine's byte order.

use super::{
    ConfigSpan, InflightArea, LogArea, MacAddress, MemoryRegion, RingAddresses, RingFd, RingState,
};

/// In the number of a queue: no descriptor comes along.
const NO_FD: u64 = 1 << 8;
/// Bytes of one region in a table.
const REGION_SIZE: usize = 32;

/// Takes integers from the front; `None` when there are not enough bytes.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_ne_bytes)
    }
}

/// The form of a payload.
pub(crate) trait Wire: Sized {
    /// `None` when the payload is too short or says something impossible of its own length.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
    fn write(&self, payload: &mut Vec<u8>);
}

fn put<const N: usize>(payload: &mut Vec<u8>, words: [u64; N]) {
    words.iter().for_each(|word| payload.extend_from_slice(&word.to_ne_bytes()));
}

impl Wire for u64 {
    fn read(reader: &mut Reader<'_>) -> Option<u64> {
        reader.u64()
    }
    fn write(&self, payload: &mut Vec<u8>) {
        put(payload, [*self]);
    }
}

/// The bytes in the order of the wire, whatever the machine's.
impl Wire for MacAddress {
    fn read(reader: &mut Reader<'_>) -> Option<MacAddress> {
        Some(MacAddress { bytes: reader.bytes()?, rest: reader.u16()? })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&self.bytes);
        payload.extend_from_slice(&self.rest.to_ne_bytes());
    }
}

impl Wire for RingState {
    fn read(reader: &mut Reader<'_>) -> Option<RingState> {
        Some(RingState { queue: reader.u32()?, value: reader.u32()? })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&self.queue.to_ne_bytes());
        payload.extend_from_slice(&self.value.to_ne_bytes());
    }
}

impl Wire for RingFd {
    fn read(reader: &mut Reader<'_>) -> Option<RingFd> {
        let value = reader.u64()?;
        // A number in the bits that have no meaning is a queue that no device has.
        let queue = if value >> 9 == 0 { (value & 0xff) as u32 } else { u32::MAX };
        Some(RingFd { queue, has_fd: value & NO_FD == 0 })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        put(payload, [u64::from(self.queue) | if self.has_fd { 0 } else { NO_FD }]);
    }
}

impl Wire for (u32, RingAddresses) {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (queue, flags) = (reader.u32()?, reader.u32()?);
        let (descriptors, device) = (reader.u64()?, reader.u64()?);
        let (driver, log) = (reader.u64()?, reader.u64()?);
        let logged = flags & 1 != 0;
        Some((queue, RingAddresses { descriptors, driver, device, log, logged }))
    }
    fn write(&self, payload: &mut Vec<u8>) {
        let (queue, ring) = self;
        payload.extend_from_slice(&queue.to_ne_bytes());
        payload.extend_from_slice(&u32::from(ring.logged).to_ne_bytes());
        put(payload, [ring.descriptors, ring.device, ring.driver, ring.log]);
    }
}

impl Wire for LogArea {
    fn read(reader: &mut Reader<'_>) -> Option<LogArea> {
        Some(LogArea { size: reader.u64()?, offset: reader.u64()? })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        put(payload, [self.size, self.offset]);
    }
}

fn read_region(reader: &mut Reader<'_>) -> Option<MemoryRegion> {
    let (gpa, size) = (reader.u64()?, reader.u64()?);
    Some(MemoryRegion { gpa, size, user: reader.u64()?, offset: reader.u64()? })
}

fn write_region(region: &MemoryRegion, payload: &mut Vec<u8>) {
    put(payload, [region.gpa, region.size, region.user, region.offset]);
}

impl Wire for Vec<MemoryRegion> {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (count, _padding) = (reader.u32()? as usize, reader.u32()?);
        // Some front-ends send the whole fixed array behind a smaller count.
        let room = reader.rest.len() / REGION_SIZE;
        if count > room || !reader.rest.len().is_multiple_of(REGION_SIZE) {
            return None;
        }
        let regions = (0..count).map(|_| read_region(reader)).collect();
        reader.rest = &[];
        regions
    }
    fn write(&self, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&(self.len() as u32).to_ne_bytes());
        payload.extend_from_slice(&0u32.to_ne_bytes());
        self.iter().for_each(|region| write_region(region, payload));
    }
}

/// A single region comes behind eight bytes of padding.
impl Wire for MemoryRegion {
    fn read(reader: &mut Reader<'_>) -> Option<MemoryRegion> {
        let _padding = reader.u64()?;
        read_region(reader)
    }
    fn write(&self, payload: &mut Vec<u8>) {
        put(payload, [0]);
        write_region(self, payload);
    }
}

impl Wire for ConfigSpan {
    fn read(reader: &mut Reader<'_>) -> Option<ConfigSpan> {
        let (offset, size, flags) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let bytes = std::mem::take(&mut reader.rest).to_vec();
        Some(ConfigSpan { offset, size, flags, bytes })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        for word in [self.offset, self.size, self.flags] {
            payload.extend_from_slice(&word.to_ne_bytes());
        }
        payload.extend_from_slice(&self.bytes);
    }
}

impl Wire for InflightArea {
    fn read(reader: &mut Reader<'_>) -> Option<InflightArea> {
        let (size, offset) = (reader.u64()?, reader.u64()?);
        let (queues, queue_size) = (reader.u16()?, reader.u16()?);
        let padded = reader.u32().is_some();
        Some(InflightArea { size, offset, queues, queue_size, padded })
    }
    fn write(&self, payload: &mut Vec<u8>) {
        put(payload, [self.size, self.offset]);
        payload.extend_from_slice(&self.queues.to_ne_bytes());
        payload.extend_from_slice(&self.queue_size.to_ne_bytes());
        if self.padded {
            payload.extend_from_slice(&[0; 4]);
        }
    }
}
