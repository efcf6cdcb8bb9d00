//! The tables of one NIC: what its ports counted and dropped, its queues, and its guest's vCPUs.

use std::fmt::Write as _;

use config::api::{NicView, PortCountersView, VcpuView};

use crate::table::{Align, Room, Table, duration, known};

/// A guest's vCPUs.
pub(super) fn vcpus_text(vcpus: &[VcpuView], room: Room) -> String {
    let columns = [
        ("VCPU", Align::Right),
        ("THREAD", Align::Right),
        ("STATE", Align::Left),
        ("FOR", Align::Right),
        ("CPU", Align::Right),
        ("RAN", Align::Right),
        ("OFF", Align::Right),
        ("SLICE", Align::Right),
        ("SHARES WITH", Align::Left),
    ];
    let go = &["SLICE", "OFF", "RAN", "THREAD", "SHARES WITH", "FOR", "CPU"];
    let mut table = Table::new(&columns, go);
    for vcpu in vcpus {
        let us = |us: u64| duration(us.saturating_mul(1000));
        let ms = |ms: u64| duration(ms.saturating_mul(1_000_000));
        let core = vcpu.on_sidecore.map(|core| format!("sidecore {core}"));
        table.row(vec![
            vcpu.index.to_string(),
            vcpu.thread.to_string(),
            vcpu.state.word().to_string(),
            known(vcpu.for_us.map(us)),
            known(vcpu.cpu),
            known(vcpu.ran_ms.map(ms)),
            known(vcpu.off_ms.map(ms)),
            known(vcpu.slice_us.map(us)),
            known(core),
        ]);
    }
    table.text(room)
}

pub(super) fn counters_text(ports: &[(&str, &PortCountersView)], room: Room) -> String {
    let columns = [
        ("PORT", Align::Left),
        ("TAKEN", Align::Right),
        ("BYTES", Align::Right),
        ("MULTICAST", Align::Right),
        ("DELIVERED", Align::Right),
        ("BYTES", Align::Right),
        ("MULTICAST", Align::Right),
        ("SLOW", Align::Right),
        ("DROPPED", Align::Right),
    ];
    let mut table = Table::new(&columns, &["MULTICAST", "SLOW", "BYTES", "TAKEN", "DELIVERED"]);
    for (name, counters) in ports {
        let numbers = [
            counters.taken_frames,
            counters.taken_bytes,
            counters.taken_multicast,
            counters.delivered_frames,
            counters.delivered_bytes,
            counters.delivered_multicast,
            counters.slow_frames,
            counters.dropped_frames,
        ];
        let mut row = vec![name.to_string()];
        row.extend(numbers.map(|number| number.to_string()));
        table.row(row);
    }
    table.text(room) + &drops_text(ports, room)
}

/// What ports dropped, by reason; nothing when nothing was.
pub(crate) fn drops_text(ports: &[(&str, &PortCountersView)], room: Room) -> String {
    let columns = [
        ("PORT", Align::Left),
        ("DROPPED", Align::Right),
        ("REASON", Align::Left),
        ("MEANS", Align::Left),
    ];
    let mut table = Table::new(&columns, &["MEANS"]);
    let mut count = 0;
    for (name, counters) in ports {
        for drop in &counters.drops {
            let (frames, reason) = (drop.frames.to_string(), drop.reason.clone());
            table.row(vec![name.to_string(), frames, reason, drop.means.clone()]);
            count += 1;
        }
    }
    if count == 0 { String::new() } else { format!("\n{}", table.text(room)) }
}

pub(super) fn queues_text(nic: &NicView, room: Room) -> String {
    let shows_held = nic.service.is_limited() || nic.held.held > 0;
    let mut columns = vec![
        ("QUEUE", Align::Right),
        ("DOES", Align::Left),
        ("CORE", Align::Right),
        ("BUSY", Align::Right),
        ("RING", Align::Right),
        ("KICKS", Align::Right),
        ("CALLS", Align::Right),
        ("VISITS", Align::Right),
    ];
    columns.extend(shows_held.then_some(("HELD", Align::Right)));
    let mut table =
        Table::new(&columns, &["HELD", "VISITS", "CALLS", "KICKS", "RING", "CORE", "BUSY"]);
    for queue in &nic.queues {
        let does = if queue.index.is_multiple_of(2) { "receive" } else { "transmit" };
        let mut row = vec![
            queue.index.to_string(),
            does.to_string(),
            queue.sidecore.map_or("-".to_string(), |core| core.to_string()),
            format!("{}%", queue.busy_percent),
            format!("{} {}", queue.size, queue.format),
            queue.kicks.to_string(),
            queue.calls.to_string(),
            queue.visits.to_string(),
        ];
        row.extend(shows_held.then(|| duration(queue.held.held_ns)));
        table.row(row);
    }
    let mut text = table.text(room);
    for queue in &nic.queues {
        if let Some(violation) = &queue.violation {
            let _ = writeln!(text, "queue {} failed: {violation}", queue.index);
        }
    }
    text
}
