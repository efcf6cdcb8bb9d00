//! Announcements of guests: those that have come here, and those that their VMMs ask for.
//!
//! When one that has come is announced is `arrival`'s to say. Called by `manager`, when it settles a device and when
//! time has come, by `front_ends` for VMMs, and by `upgrade`.

use std::time::Instant;

use tracing::warn;

use crate::devices::device::Device;
use crate::devices::start;
use crate::sidecores::Cores;
use crate::turn::Turn;

use super::arrival::Arrival;
use super::nic::NicParts;

/// Whether a ring starts now, and rings were used before: its guest was running elsewhere, or with an
/// earlier daemon. `None`: none starts, or not yet, since a front-end before this one has not let go.
fn brings_used_rings(device: &Device) -> Option<bool> {
    let travels = device.nic().is_some_and(NicParts::travels);
    if travels || !device.attached().is_empty() {
        return None;
    }
    let connection = device.runner().and_then(|id| device.connection(id));
    let session = &connection.filter(|connection| connection.held().is_none())?.session;
    (0..device.facts().rings).find_map(|index| session.ready(index))?;
    let front_end = &connection?.front_end;
    let features = session.features();
    let mut rings = (0..device.facts().rings).filter_map(|index| session.set_up(index));
    Some(rings.any(|facts| start::was_used(&facts, features, front_end)))
}

/// This process has taken over from one where its guest was: the network knows.
pub(crate) fn has_stayed(device: &mut Device) {
    let connection = device.runner().filter(|_| device.is_started(None));
    if let (Some(connection), Some(nic)) = (connection, device.nic_mut()) {
        *nic.arrival_mut() = Arrival::Here(connection, None);
    }
}

/// Notes that the driver of a NIC's guest has come or gone. To be called before its rings are served:
/// then they stand as they came.
pub(crate) fn note_arrival(device: &mut Device, now: Instant) {
    let Some(mut arrival) = device.nic().map(NicParts::arrival) else { return };
    let connection = device.runner().filter(|_| device.is_started(None));
    arrival.see(connection, || brings_used_rings(device), now);
    if let Some(nic) = device.nic_mut() {
        *nic.arrival_mut() = arrival;
    }
}

/// Announces a NIC's address, if that is due; only counts it, when no word may be said of what is here.
pub(crate) fn announce_arrival(
    device: &mut Device,
    is_frozen: bool,
    turn: &mut Turn,
    cores: &mut Cores,
) {
    let may = device.surely_runs() && !is_frozen && device.is_started(None);
    if let Some(nic) = device.nic_mut()
        && nic.arrival_mut().take(turn.now())
        && may
    {
        let mac = nic.mac();
        announce(device, mac, turn, cores);
    }
}

/// A guest has come here from another host, with its address: whoever is on its network learns
/// where it is now.
pub(crate) fn announce(device: &mut Device, mac: [u8; 6], turn: &mut Turn, cores: &mut Cores) {
    let Some(nic) = device.nic_mut() else {
        return turn.defects.note("NIC to announce");
    };
    if !nic.may_announce(mac) {
        if device.may_log(turn.now()) {
            warn!(nic = device.facts().id, "another address than its own was not announced");
        }
        return;
    }
    // Each is a flood: a VMM says it a few times, 50 ms and more apart.
    if nic.begin_announcement(turn.now()) {
        nic.say_announcement(mac, cores);
    }
}
