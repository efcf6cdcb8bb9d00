//! Records into a frame that is being built, in a buffer that the caller lends.

use super::{
    ACK_BLOCKS_MAX, Bind, Bound, HEADER_BYTES, NET_BYTES, Net, News, PART_BYTES, PIECE_BYTES, Part,
    Piece, RECORD_HEAD_BYTES, Record,
};

/// Bytes of the answer to a bind that says of no image which one it is.
const BOUND_BYTES: usize = 72;

/// A frame without header and tag yet. What does not fit is not begun.
#[derive(Debug)]
pub struct Builder<'a> {
    buffer: &'a mut [u8],
    at: usize,
    end: usize,
}

impl<'a> Builder<'a> {
    /// Into `buffer`, whose last `tag_bytes` stay free.
    pub fn new(buffer: &'a mut [u8], tag_bytes: usize) -> Builder<'a> {
        let end = buffer.len().saturating_sub(tag_bytes);
        Builder { buffer, at: HEADER_BYTES, end }
    }

    /// Whether nothing was put in yet.
    pub fn is_empty(&self) -> bool {
        self.at <= HEADER_BYTES
    }

    /// Bytes up to here, the header's among them.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Bytes that are left for records.
    pub fn room(&self) -> usize {
        self.end.saturating_sub(self.at)
    }

    /// The buffer, to be sealed.
    pub fn into_buffer(self) -> &'a mut [u8] {
        self.buffer
    }

    /// Puts a record in; false when it does not fit. Acknowledgements have a way of their own.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        match record {
            Record::Ack { .. } => false,
            Record::Pad => self.whole(14, &[]),
            Record::Ping => self.whole(2, &[]),
            Record::Close => self.whole(3, &[]),
            Record::Bind(bind) => self.whole(4, &bind_bytes(bind)),
            Record::Bound(bound) => {
                let bytes = bound_bytes(bound);
                let len = if bound.image == 0 { BOUND_BYTES } else { bytes.len() };
                self.whole(5, &bytes[..len])
            }
            Record::Release { handle } => self.whole(6, &handle.to_le_bytes()),
            Record::Ended { handle, end } => self.whole(7, &two(*handle, u32::from(*end as u8))),
            Record::News { handle, news } => {
                let mut bytes = [0; 28];
                bytes[..4].copy_from_slice(&handle.to_le_bytes());
                bytes[4..].copy_from_slice(&news_bytes(news));
                self.whole(8, &bytes)
            }
            Record::Part(part) => self.part(part),
            Record::Recall { handle, slot, turn } => {
                self.whole(10, &slot_bytes(*handle, *slot, 0, *turn))
            }
            Record::Done { handle, slot, turn, status } => {
                self.whole(11, &slot_bytes(*handle, *slot, *status as u8, *turn))
            }
            Record::Piece(piece) => {
                self.push_piece(piece, piece.data.len(), |into| into.copy_from_slice(piece.data))
            }
            Record::Net(net) => {
                self.push_net(net, net.data.len(), |into| into.copy_from_slice(net.data))
            }
        }
    }

    /// Fills what is left with nothing.
    pub fn pad(&mut self) {
        let len = self.room().saturating_sub(RECORD_HEAD_BYTES);
        self.loaded(14, &[], len, |into| into.fill(0));
    }

    /// An acknowledgement of up to [`ACK_BLOCKS_MAX`] blocks.
    pub fn push_ack(&mut self, credit: u64, blocks: &[(u64, u64)]) -> bool {
        let mut bytes = [0; 8 + 16 * ACK_BLOCKS_MAX];
        bytes[..8].copy_from_slice(&credit.to_le_bytes());
        let mut used = 8;
        for ((block, mask), place) in blocks.iter().zip(bytes[8..].chunks_exact_mut(16)) {
            place[..8].copy_from_slice(&block.to_le_bytes());
            place[8..].copy_from_slice(&mask.to_le_bytes());
            used += 16;
        }
        self.whole(1, &bytes[..used])
    }

    fn part(&mut self, part: &Part<'_>) -> bool {
        let mut head = [0; PART_BYTES];
        head[..4].copy_from_slice(&part.handle.to_le_bytes());
        head[4..6].copy_from_slice(&part.slot.to_le_bytes());
        head[6..8].copy_from_slice(&part.op.code());
        head[8..16].copy_from_slice(&part.turn.to_le_bytes());
        head[16..24].copy_from_slice(&part.offset.to_le_bytes());
        head[24..28].copy_from_slice(&part.len.to_le_bytes());
        head[28..32].copy_from_slice(&part.place.to_le_bytes());
        head[32..].copy_from_slice(&part.checksum.to_le_bytes());
        self.record(9, &head, part.data)
    }

    /// Puts a piece in, whose `len` bytes `load` writes where they are sent from.
    pub fn push_piece(
        &mut self,
        piece: &Piece<'_>,
        len: usize,
        load: impl FnOnce(&mut [u8]),
    ) -> bool {
        let mut head = [0; PIECE_BYTES];
        head[..16].copy_from_slice(&slot_bytes(piece.handle, piece.slot, 0, piece.turn));
        head[16..20].copy_from_slice(&piece.len.to_le_bytes());
        head[20..24].copy_from_slice(&piece.place.to_le_bytes());
        head[24..].copy_from_slice(&piece.checksum.to_le_bytes());
        self.loaded(12, &head, len, load)
    }

    /// Puts a piece of a NIC's frame in, whose `len` bytes `load` writes where they are sent from.
    pub fn push_net(&mut self, net: &Net<'_>, len: usize, load: impl FnOnce(&mut [u8])) -> bool {
        let mut head = [0; NET_BYTES];
        head[..8].copy_from_slice(&two(net.handle, net.number));
        head[8..].copy_from_slice(&(u32::from(net.len) | u32::from(net.place) << 16).to_le_bytes());
        self.loaded(13, &head, len, load)
    }

    fn whole(&mut self, kind: u8, body: &[u8]) -> bool {
        self.record(kind, body, &[])
    }

    fn record(&mut self, kind: u8, head: &[u8], data: &[u8]) -> bool {
        self.loaded(kind, head, data.len(), |into| into.copy_from_slice(data))
    }

    fn loaded(
        &mut self,
        kind: u8,
        head: &[u8],
        data_len: usize,
        load: impl FnOnce(&mut [u8]),
    ) -> bool {
        let len = head.len() + data_len;
        let Ok(coded) = u16::try_from(len) else { return false };
        let end = self.at + RECORD_HEAD_BYTES + len;
        if end > self.end {
            return false;
        }
        let Some(place) = self.buffer.get_mut(self.at..end) else { return false };
        place[0] = kind;
        place[1] = 0;
        place[2..4].copy_from_slice(&coded.to_le_bytes());
        place[4..4 + head.len()].copy_from_slice(head);
        load(&mut place[4 + head.len()..]);
        self.at = end;
        true
    }
}

fn two(first: u32, second: u32) -> [u8; 8] {
    (u64::from(first) | u64::from(second) << 32).to_le_bytes()
}

fn slot_bytes(handle: u32, slot: u16, byte: u8, turn: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&two(handle, u32::from(slot) | u32::from(byte) << 16));
    bytes[8..].copy_from_slice(&turn.to_le_bytes());
    bytes
}

fn bind_bytes(bind: &Bind) -> [u8; 52] {
    let mut bytes = [0; 52];
    bytes[..8].copy_from_slice(&bind.device.to_le_bytes());
    bytes[8] = bind.intent as u8;
    bytes[10..12].copy_from_slice(&bind.index.to_le_bytes());
    bytes[12..14].copy_from_slice(&bind.slots.to_le_bytes());
    bytes[16..20].copy_from_slice(&bind.slot_bytes.to_le_bytes());
    bytes[20..28].copy_from_slice(&bind.binding.to_le_bytes());
    bytes[28..36].copy_from_slice(&bind.generation.to_le_bytes());
    bytes[36..44].copy_from_slice(&bind.instance.to_le_bytes());
    bytes[44..].copy_from_slice(&bind.name.to_le_bytes());
    bytes
}

fn bound_bytes(bound: &Bound) -> [u8; BOUND_BYTES + 8] {
    let mut bytes = [0; BOUND_BYTES + 8];
    bytes[..2].copy_from_slice(&bound.index.to_le_bytes());
    bytes[2] = bound.outcome as u8;
    bytes[8..16].copy_from_slice(&bound.binding.to_le_bytes());
    bytes[16..24].copy_from_slice(&bound.generation.to_le_bytes());
    bytes[24..32].copy_from_slice(&bound.verifier.boot.to_le_bytes());
    bytes[32..40].copy_from_slice(&bound.verifier.contents.to_le_bytes());
    bytes[40..64].copy_from_slice(&news_bytes(&bound.news));
    bytes[64..72].copy_from_slice(&bound.name.to_le_bytes());
    bytes[BOUND_BYTES..].copy_from_slice(&bound.image.to_le_bytes());
    bytes
}

fn news_bytes(news: &News) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&news.revision.to_le_bytes());
    bytes[8..16].copy_from_slice(&news.size.to_le_bytes());
    bytes[16..20].copy_from_slice(&news.features.to_le_bytes());
    bytes[20] = u8::from(news.is_removed);
    bytes
}
