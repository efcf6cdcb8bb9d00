//! Loads of one guest, what they are called, and the orders for them.

use super::asking::Asked;
use super::configurations::{Configuration, Device};
use super::loads::{Load, Part};
use super::network::Seat;
use crate::orders::{Order, PEER_PORT};

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// As in the names of rows.
    pub(crate) name: &'static str,
    pub(crate) device: Device,
    pub(crate) kind: Kind,
    /// Operations, or of sends messages.
    operations: u64,
    /// Part of the experiment `smoke`, too; all are of `exits`.
    pub(crate) is_smoke: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read {
        depth: u16,
    },
    Write {
        depth: u16,
    },
    /// Threads that read, and as many that write.
    Mixed {
        threads: u16,
    },
    UdpRr,
    TcpRr,
    UdpSend {
        bytes: u32,
    },
    TcpSend {
        bytes: u32,
    },
    UdpReceive {
        bytes: u32,
    },
    TcpReceive {
        bytes: u32,
    },
    /// Others ask a server in the guest.
    Served(Asked),
    /// No I/O: what the guest can have of its CPU here.
    Spin,
}

pub(crate) const CELLS: &[Cell] = &[
    cell("blk.randread.qd1", Device::Disk, Kind::Read { depth: 1 }, 2000, true),
    cell("blk.randread.qd32", Device::Disk, Kind::Read { depth: 32 }, 20_000, false),
    cell("blk.randwrite.qd1", Device::Disk, Kind::Write { depth: 1 }, 2000, false),
    cell("blk.randwrite.qd32", Device::Disk, Kind::Write { depth: 32 }, 20_000, false),
    cell("net.udp_rr", Device::Nic, Kind::UdpRr, 2000, true),
    cell("net.tcp_rr", Device::Nic, Kind::TcpRr, 2000, false),
    cell("net.udp_send_256", Device::Nic, Kind::UdpSend { bytes: 256 }, 20_000, false),
    cell("net.udp_send_1024", Device::Nic, Kind::UdpSend { bytes: 1024 }, 20_000, false),
    cell("net.tcp_send_256", Device::Nic, Kind::TcpSend { bytes: 256 }, 400_000, false),
    cell("net.tcp_send_1024", Device::Nic, Kind::TcpSend { bytes: 1024 }, 200_000, false),
    cell("net.udp_receive_256", Device::Nic, Kind::UdpReceive { bytes: 256 }, 20_000, false),
    cell("net.udp_receive_1024", Device::Nic, Kind::UdpReceive { bytes: 1024 }, 20_000, false),
    cell("net.tcp_receive_256", Device::Nic, Kind::TcpReceive { bytes: 256 }, 400_000, false),
    cell("net.tcp_receive_1024", Device::Nic, Kind::TcpReceive { bytes: 1024 }, 200_000, false),
];

/// Fewer say nothing.
const OPERATIONS_MIN: u64 = 50;

const fn cell(
    name: &'static str,
    device: Device,
    kind: Kind,
    operations: u64,
    is_smoke: bool,
) -> Cell {
    Cell { name, device, kind, operations, is_smoke }
}

impl Cell {
    /// As a load of the first guest; of half the operations if it is to be quick.
    pub(crate) fn load(&self, configuration: &Configuration, quick: bool) -> Load {
        let share = if quick { 2 } else { 1 };
        let operations = (self.operations / (share * configuration.slower)).max(OPERATIONS_MIN);
        let name = self.name.to_string();
        Load { parts: vec![Part { name, kind: self.kind, operations, for_ms: None, guests: 0..1 }] }
    }
}

impl Kind {
    /// What a guest is told; `disk` is as the guest names it.
    pub(crate) fn order(
        self,
        seat: Seat,
        disk: &str,
        operations: u64,
        for_ms: Option<u32>,
    ) -> Order {
        let device = disk.to_string();
        let at = |port: u16| format!("{}:{}", seat.place(), PEER_PORT + port);
        match self {
            Kind::Read { depth } => Order::BlkRead { device, depth, operations, for_ms },
            Kind::Write { depth } => Order::BlkWrite { device, depth, operations, for_ms },
            Kind::Mixed { threads } => {
                Order::BlkMixed { device, readers: threads, writers: threads, operations, for_ms }
            }
            Kind::UdpRr => Order::UdpRr { peer: at(0), bytes: 1, operations, for_ms },
            Kind::UdpSend { bytes } => Order::UdpSend { peer: at(1), bytes, operations, for_ms },
            Kind::TcpRr => Order::TcpRr { peer: at(2), bytes: 1, operations, for_ms },
            Kind::TcpSend { bytes } => Order::TcpSend { peer: at(3), bytes, operations, for_ms },
            Kind::UdpReceive { bytes } => {
                Order::UdpReceive { peer: at(4), bytes, operations, for_ms }
            }
            Kind::TcpReceive { bytes } => {
                Order::TcpReceive { peer: at(5), bytes, operations, for_ms }
            }
            Kind::Served(asked) => Order::Serve { server: asked.server },
            Kind::Spin => Order::Spin { operations, for_ms },
        }
    }

    /// Sends messages and waits for none: what ES2 measures time in guest with.
    pub(crate) fn is_send(self) -> bool {
        matches!(self, Kind::UdpSend { .. } | Kind::TcpSend { .. })
    }
}
