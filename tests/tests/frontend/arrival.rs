//! A guest that comes with its driver running (from another host, or to a daemon that was started again) is
//! announced to its network by the daemon, in growing pauses, as long as it is there; one whose driver starts
//! anew is not (docs/decisions/0010-migration.md).

use std::time::Duration;

use anyhow::{Result, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::F_LOG_ALL;
use testing::net_frontend::{Header, Nic, NicSpec, Received, frames};
use testing::timing;
use virtqueue::Format;
use virtqueue::driver::RingSpec;

/// The guest, one of its network, and one of another.
const LAN: &str = r#"
[[switch]]
id = "lan"
[[nic]]
id = "guest"
switch = "lan"
vlan = 7
mac = "52:54:00:00:00:01"
[[nic]]
id = "hears"
switch = "lan"
vlan = 7
mac = "52:54:00:00:00:02"
[[nic]]
id = "elsewhere"
switch = "lan"
vlan = 8
mac = "52:54:00:00:00:03"
"#;
/// All that is said of one arrival is said within 800 ms; a busy machine is later.
const ALL_MS: u64 = 1_500;
/// Rounds of one arrival.
const ROUNDS: usize = 5;

/// Two guests on the network and a third one beside it, all of them served.
struct Lan {
    guest: Nic,
    hears: Nic,
    elsewhere: Nic,
}

impl Lan {
    fn connect(daemon: &Daemon, spec: &NicSpec) -> Result<Lan> {
        let nic = |id: &str| daemon.nic(id, spec.clone());
        let mut lan =
            Lan { hears: nic("hears")?, elsewhere: nic("elsewhere")?, guest: nic("guest")? };
        // So that both its rings were used.
        let hello = frames::small(frames::mac(1), frames::mac(2));
        ensure!(lan.guest.pair(0).send(&Header::default(), &hello, &[])?);
        ensure!(lan.heard(1, 90_000)? == 0 && lan.guest.pair(0).unused() > 0);
        let answer = frames::small(frames::mac(2), frames::mac(1));
        ensure!(lan.hears.pair(0).send(&Header::default(), &answer, &[])?);
        ensure!(lan.guest.pair(0).receive_within(90_000)?.is_some_and(|got| got.bytes == answer));
        Ok(lan)
    }

    /// Announcements of the guest that are due within so long, however late the daemon is with them.
    fn heard_of_all(&mut self, daemon: &Daemon, within_ms: u64) -> Result<usize> {
        pause(Duration::from_millis(within_ms));
        // Who asks is answered in a turn that has looked at what is due; asked again, sidecores have done what that told.
        for _ in 0..2 {
            daemon.await_visits("lan")?;
        }
        let mut heard = 0;
        while let Some(got) = self.hears.pair(0).receive()? {
            heard += usize::from(is_announced(&got)?);
        }
        ensure!(self.elsewhere.pair(0).receive()?.is_none(), "another VLAN hears of it");
        Ok(heard)
    }

    /// Announcements of the guest within so long, or until `frames` frames of any kind have come.
    fn heard(&mut self, frames: usize, within_ms: u64) -> Result<usize> {
        let until_ns = now_ns() + within_ms * 1_000_000;
        let (mut heard, mut all) = (0, 0);
        while now_ns() < until_ns && all < frames {
            let left_ms = until_ns.saturating_sub(now_ns()) / 1_000_000;
            let Some(got) = self.hears.pair(0).receive_within(left_ms)? else { break };
            all += 1;
            heard += usize::from(is_announced(&got)?);
        }
        ensure!(self.elsewhere.pair(0).receive()?.is_none(), "another VLAN hears of it");
        Ok(heard)
    }
}

/// Whether the frame says where the guest is.
fn is_announced(got: &Received) -> Result<bool> {
    let is_so = frames::is_announcement(&got.bytes);
    ensure!(!is_so || got.bytes[6..12] == frames::mac(1), "announced is {:02x?}", got.bytes);
    Ok(is_so)
}

/// As at another host: a connection that is new, and rings that are not.
fn come(daemon: &Daemon, guest: &mut Nic) -> Result<()> {
    await_that("a new connection to be taken", || {
        Ok(guest.reconnect(&daemon.socket("guest"), None).is_ok())
    })
}

/// Where the switch has its address.
fn port(daemon: &Daemon) -> Result<Option<String>> {
    let lan = daemon.ask("switch show lan")?;
    let macs = lan["macs"].as_array().cloned().unwrap_or_default();
    let its = macs.iter().find(|entry| entry["mac"] == "52:54:00:00:00:01");
    Ok(its.and_then(|entry| Some(entry["port"].as_str()?.to_string())))
}

#[test]
fn who_comes_with_used_rings_is_announced_and_who_starts_anew_is_not() -> Result<()> {
    for (name, format, size) in [("split", Format::Split, 256), ("packed", Format::Packed, 251)] {
        let daemon = Daemon::start(&format!("arrival-{name}"), LAN)?;
        let ring = RingSpec { size, format, event_index: true, indirect_entries: 0 };
        let spec = NicSpec { ring, ..NicSpec::default() };
        let mut lan = Lan::connect(&daemon, &spec)?;
        ensure!(lan.heard_of_all(&daemon, 300)? == 0, "{name}: a new guest was announced");
        // VMMs change the features of a guest that runs when a migration begins and ends: it has not come.
        let features = lan.guest.frontend().features();
        for log in [F_LOG_ALL, 0] {
            lan.guest.frontend().set_features(features | log)?;
            daemon.await_nic("guest", 1)?;
        }
        ensure!(lan.heard_of_all(&daemon, 300)? == 0, "{name}: announced where it was");
        // As from another host.
        come(&daemon, &mut lan.guest)?;
        let began_ns = now_ns();
        let heard = lan.heard(ROUNDS, 90_000)?;
        let took_ms = (now_ns() - began_ns) / 1_000_000;
        ensure!(heard == ROUNDS, "{name}: announced {heard} times in {took_ms} ms");
        ensure!(port(&daemon)?.as_deref() == Some("guest"), "{name}: the switch does not know it");
        ensure!(lan.heard_of_all(&daemon, 1000)? == 0, "{name}: it goes on");
    }
    Ok(())
}

#[test]
fn a_guest_that_leaves_is_announced_no_more() -> Result<()> {
    let daemon = Daemon::start("arrival-leaves", LAN)?;
    let mut lan = Lan::connect(&daemon, &NicSpec::default())?;
    for round in 0..10 {
        come(&daemon, &mut lan.guest)?;
        ensure!(lan.heard(1, 90_000)? == 1, "round {round}: not announced");
        // The last answer is there before the guest may start elsewhere.
        lan.guest.frontend().stop_all()?;
        while lan.hears.pair(0).receive()?.is_some() {}
        ensure!(
            lan.heard_of_all(&daemon, 300)? == 0,
            "round {round}: announced after it had stopped"
        );
    }
    Ok(())
}

#[test]
fn connections_without_end_are_not_announced_without_end() -> Result<()> {
    let daemon = Daemon::start("arrival-storm", LAN)?;
    let mut lan = Lan::connect(&daemon, &NicSpec::default())?;
    let began_ns = now_ns();
    for _ in 0..50 {
        come(&daemon, &mut lan.guest)?;
    }
    let mut heard = 0;
    while lan.hears.pair(0).receive_within(ALL_MS)?.is_some() {
        heard += 1;
    }
    let took_ms = (now_ns() - began_ns) / 1_000_000;
    // One in 20 ms at most, of whatever arrival.
    ensure!(heard >= ROUNDS as u64, "{heard} in {took_ms} ms");
    timing::judge(heard <= 1 + took_ms / 20, || format!("{heard} in {took_ms} ms"))?;
    Ok(())
}
