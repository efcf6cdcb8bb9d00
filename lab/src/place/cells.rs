//! Loads, what they are called, and what of the kernel's counts is told of them.

use anyhow::{Result, ensure};

use super::configurations::{CONFIGURATIONS, Configuration, Device, PEER, QUOTAS};
use super::serving::Serving;
use super::tracing::{Counts, Tracing};
use super::vm::Vm;
use super::waiting;
use crate::orders::{Answer, Order, PEER_PORT};
use crate::rows::Row;

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// As in the names of rows.
    name: &'static str,
    device: Device,
    kind: Kind,
    /// Operations, or of sends messages.
    operations: u64,
    /// Part of the experiment `smoke`, too; all are of `exits`.
    is_smoke: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read { depth: u16 },
    Write { depth: u16 },
    Mixed { readers: u16, writers: u16 },
    UdpRr,
    TcpRr,
    UdpSend { bytes: u32 },
    TcpSend { bytes: u32 },
    UdpReceive { bytes: u32 },
    TcpReceive { bytes: u32 },
}

const CELLS: &[Cell] = &[
    cell("blk.randread.qd1", Device::Disk, Kind::Read { depth: 1 }, 2000, true),
    cell("blk.randread.qd32", Device::Disk, Kind::Read { depth: 32 }, 20_000, false),
    cell("blk.randwrite.qd1", Device::Disk, Kind::Write { depth: 1 }, 2000, false),
    cell("blk.randwrite.qd32", Device::Disk, Kind::Write { depth: 32 }, 20_000, false),
    cell("blk.mixed4k", Device::Disk, Kind::Mixed { readers: 4, writers: 4 }, 4000, false),
    cell("net.udp_rr", Device::Nic, Kind::UdpRr, 2000, true),
    cell("net.tcp_rr", Device::Nic, Kind::TcpRr, 2000, false),
    cell("net.udp_send_256", Device::Nic, Kind::UdpSend { bytes: 256 }, 20_000, false),
    cell("net.udp_send_1024", Device::Nic, Kind::UdpSend { bytes: 1024 }, 20_000, false),
    cell("net.tcp_send_256", Device::Nic, Kind::TcpSend { bytes: 256 }, 50_000, false),
    cell("net.udp_receive_256", Device::Nic, Kind::UdpReceive { bytes: 256 }, 20_000, false),
    cell("net.udp_receive_1024", Device::Nic, Kind::UdpReceive { bytes: 1024 }, 20_000, false),
    cell("net.tcp_receive_256", Device::Nic, Kind::TcpReceive { bytes: 256 }, 50_000, false),
];
/// Configurations of the experiment `smoke`.
const SMOKE: [&str; 3] = ["qemu", "vhost-net", "sidecore"];

const fn cell(
    name: &'static str,
    device: Device,
    kind: Kind,
    operations: u64,
    is_smoke: bool,
) -> Cell {
    Cell { name, device, kind, operations, is_smoke }
}

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Experiment {
    /// A request at a time, of a disk and by UDP, with QEMU, vhost-net and Sidecore
    Smoke,
    /// Exits by cause of all loads with all configurations (ES2, table I and figure 5; ELVIS, 4.3; exits a request on IDE, kvm-guest-io, 3.1)
    Exits,
    /// Exits against the quota of policy es2, for frames that are sent (ES2, figure 4)
    Quota,
}

impl Experiment {
    /// What it compares.
    pub(crate) fn configurations(self) -> &'static [Configuration] {
        if self == Experiment::Quota { QUOTAS } else { CONFIGURATIONS }
    }

    /// Its loads on this configuration.
    pub(crate) fn cells(self, configuration: &Configuration) -> Vec<&'static Cell> {
        let has = |cell: &&Cell| {
            cell.device == configuration.device
                && match self {
                    Experiment::Smoke => cell.is_smoke && SMOKE.contains(&configuration.name),
                    Experiment::Exits => true,
                    Experiment::Quota => {
                        matches!(cell.kind, Kind::UdpSend { .. } | Kind::TcpSend { .. })
                    }
                }
        };
        CELLS.iter().filter(has).collect()
    }
}

impl Cell {
    fn order(&self, configuration: &Configuration, operations: u64) -> Order {
        let device = configuration.disk().to_string();
        let at = |port: u16| format!("{PEER}:{}", PEER_PORT + port);
        let for_ms = None;
        match self.kind {
            Kind::Read { depth } => Order::BlkRead { device, depth, operations, for_ms },
            Kind::Write { depth } => Order::BlkWrite { device, depth, operations, for_ms },
            Kind::Mixed { readers, writers } => {
                Order::BlkMixed { device, readers, writers, operations, for_ms }
            }
            Kind::UdpRr => Order::UdpRr { peer: at(0), bytes: 1, operations, for_ms },
            Kind::UdpSend { bytes } => Order::UdpSend { peer: at(1), bytes, operations, for_ms },
            Kind::TcpRr => Order::TcpRr { peer: at(2), bytes: 1, operations, for_ms },
            Kind::UdpReceive { bytes } => {
                Order::UdpReceive { peer: at(4), bytes, operations, for_ms }
            }
            Kind::TcpReceive { bytes } => {
                Order::TcpReceive { peer: at(5), bytes, operations, for_ms }
            }
            Kind::TcpSend { bytes } => Order::TcpSend { peer: at(3), bytes, operations, for_ms },
        }
    }

    /// Does the load once.
    ///
    /// # Errors
    /// It fails.
    pub(crate) fn turn(
        &self,
        configuration: &Configuration,
        vm: &mut Vm,
        serving: &Serving,
        tracing: &Tracing,
        quick: bool,
    ) -> Result<Vec<Row>> {
        let wanted = if quick { self.operations / 2 } else { self.operations };
        tracing.reset()?;
        let (before, began) = (serving.cpu_ns(), waiting::now());
        let answer = vm.order(&self.order(configuration, wanted))?;
        let (served_ns, took) = (serving.cpu_ns().saturating_sub(before), began.elapsed());
        let counts = tracing.counts()?;
        let Answer::Done { operations, elapsed_ns, p50_ns, p99_ns } = answer else {
            return Ok(Vec::new());
        };
        ensure!(operations == wanted, "{operations} of {wanted} were done");
        let exits: u64 = counts.exits.values().sum();
        eprintln!(
            "  {}: {:.3} exits and {:.3} doorbells an operation",
            self.name,
            exits as f64 / operations as f64,
            counts.doorbells as f64 / operations as f64
        );
        let row = |what: &str, value: f64, unit: &str| {
            Row::new(format!("lab.{}.{what}", self.name), configuration.name, value, unit)
        };
        let mut rows = per_operation(&counts, operations, &row);
        let seconds = elapsed_ns as f64 / 1e9;
        // With the warm-up.
        let percent = served_ns as f64 / took.as_nanos() as f64 * 100.0;
        rows.push(row("server_cpu_percent", percent, "%"));
        rows.push(row("exits_per_s", exits as f64 / seconds, "1/s"));
        let rate = if self.device == Device::Disk { "iops" } else { "ops_per_s" };
        rows.push(row(rate, operations as f64 / seconds, "1/s"));
        if let Some(in_guest_ns) = counts.in_guest_ns {
            let percent = in_guest_ns as f64 / elapsed_ns as f64 * 100.0;
            rows.push(row("tig_percent", percent, "%"));
        }
        if p50_ns > 0 {
            rows.push(row("p50_us", p50_ns as f64 / 1e3, "us"));
            rows.push(row("p99_us", p99_ns as f64 / 1e3, "us"));
        }
        Ok(rows)
    }
}

fn per_operation(
    counts: &Counts,
    operations: u64,
    row: &impl Fn(&str, f64, &str) -> Row,
) -> Vec<Row> {
    let each = |count: u64| count as f64 / operations as f64;
    let total: u64 = counts.exits.values().sum();
    let mut rows = vec![
        row("doorbell_exits_per_op", each(counts.doorbells), "1/op"),
        row("exits_per_op", each(total), "1/op"),
        row("injections_per_op", each(counts.injected), "1/op"),
        row("user_exits_per_op", each(counts.to_user), "1/op"),
    ];
    for (reason, count) in &counts.exits {
        rows.push(row(&format!("exits_per_op.{reason}"), each(*count), "1/op"));
    }
    rows
}
