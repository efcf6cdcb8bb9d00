//! The virtio-net header as its bytes (VIRTIO 5.1.6).
//!
//! Not whether it is true (`offload`). Called by `device`, `sidecore` and `backend`; taps and packet
//! sockets use the same form.

/// Bytes of the header of a driver with `VERSION_1` or `MRG_RXBUF`, and of our taps.
pub const HEADER_SIZE: usize = 12;

/// Bytes without either: `num_buffers` is missing.
pub const HEADER_SIZE_LEGACY: usize = 10;

/// `struct virtio_net_hdr_mrg_rxbuf` as it was found; nothing is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Bytes of all headers of the frame: a hint that is never relied on.
    pub header_len: u16,
    /// Bytes of payload of each segment.
    pub gso_size: u16,
    /// Where the sum begins, in bytes of the frame.
    pub csum_start: u16,
    /// Where the checksum is, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Receive buffers that a frame takes; meaningless from a driver.
    pub buffers: u16,
}

impl Header {
    /// The checksum is left to be filled in.
    pub const NEEDS_CSUM: u8 = 1;
    /// The checksum was found right.
    pub const DATA_VALID: u8 = 2;
    /// Receive segment coalescing (`VIRTIO_NET_HDR_F_RSC_INFO`), which is never negotiated.
    pub const RSC_INFO: u8 = 4;
    /// No segmentation.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCP4: u8 = 1;
    /// UDP fragmentation, which is never negotiated.
    pub const GSO_UDP: u8 = 3;
    /// TCP over IPv6.
    pub const GSO_TCP6: u8 = 4;
    /// UDP datagrams over either (`VIRTIO_NET_HDR_GSO_UDP_L4`).
    pub const GSO_UDP_L4: u8 = 5;
    /// Beside a TCP type: the frame carries CWR.
    pub const GSO_ECN: u8 = 0x80;

    /// Whether nothing is said of the frame: it is whole as it is.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.flags == 0 && self.gso_type == Header::GSO_NONE
    }

    /// Reads the ten bytes that every driver writes; `buffers` is 0, for devices ignore it
    /// (VIRTIO 5.1.6.2.1). Little-endian, as VIRTIO 1 and x86 taps have it.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_SIZE_LEGACY]) -> Header {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes;
        Header {
            flags,
            gso_type,
            header_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
            buffers: 0,
        }
    }

    /// The twelve bytes; a legacy driver gets the first [`HEADER_SIZE_LEGACY`].
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let [h0, h1] = self.header_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        let [b0, b1] = self.buffers.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, b0, b1]
    }
}
