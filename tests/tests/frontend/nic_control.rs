//! NICs and switches come, change and go, beside a disk that works; and what is on them works on.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::FrontendSpec;
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::own_network::{has_interface, in_namespace, ip, ip_says};
use testing::timing;
use testing::verified::Load;

/// A disk, and two NICs on a switch whose addresses are those of [`frames::mac`] 1 and 2.
const LAN: &str = r#"
[[disk]]
id = "steady"
path = "steady.raw"
size = "4M"
[[switch]]
id = "lan"
[[nic]]
id = "a"
switch = "lan"
mac = "52:54:00:00:00:01"
[[nic]]
id = "b"
switch = "lan"
mac = "52:54:00:00:00:02"
"#;
/// A frame crosses within so long on a machine that also does other work.
const CROSSING_MS: u64 = 90_000;
/// Nothing comes within so long: for what must not arrive.
const SILENCE_MS: u64 = 100;

fn connect(daemon: &Daemon, id: &str) -> Result<Nic> {
    let nic = Nic::connect(&daemon.socket(id), NicSpec::default());
    nic.with_context(|| format!("the daemon says:\n{}", daemon.last_words()))
}

/// Sends a frame from guest 1 and says whether guest 2 got it.
fn crosses(from: &mut Nic, to: &mut Nic, within_ms: u64) -> Result<bool> {
    let frame = frames::small(frames::mac(1), frames::mac(2));
    ensure!(from.pair(0).send(&Header::default(), &frame, &[])?, "no slot is free");
    let mut got = to.pair(0).receive_within(within_ms)?;
    // Whoever has connected again is announced a few times.
    while got.as_ref().is_some_and(|got| frames::is_announcement(&got.bytes)) {
        got = to.pair(0).receive_within(within_ms)?;
    }
    if let Some(got) = &got {
        ensure!(got.bytes == frame, "the frame arrived as {:02x?}", got.bytes);
    }
    from.pair(0).drain(CROSSING_MS)?;
    Ok(got.is_some())
}

/// Sends a frame from guest 1 that guest 2 must not get: however slow this machine is, it would be there once each
/// sidecore has ended the visit that it was in.
fn must_not_cross(daemon: &Daemon, switch: &str, from: &mut Nic, to: &mut Nic) -> Result<()> {
    let frame = frames::small(frames::mac(1), frames::mac(2));
    ensure!(from.pair(0).send(&Header::default(), &frame, &[])?, "no slot is free");
    from.pair(0).drain(CROSSING_MS)?;
    daemon.await_visits(switch)?;
    while let Some(got) = to.pair(0).receive()? {
        ensure!(frames::is_announcement(&got.bytes), "there came {:02x?}", got.bytes);
    }
    Ok(())
}

/// As [`crosses`], again and again until one does: what is sent before a receiver's queue is with its
/// sidecore is lost, as on a wire whose other end is not plugged in yet.
fn must_cross(daemon: &Daemon, from: &mut Nic, to: &mut Nic) -> Result<()> {
    let mut tries = CROSSING_MS / SILENCE_MS;
    while !crosses(from, to, SILENCE_MS)? {
        tries -= 1;
        if tries == 0 {
            let lan = daemon.ask("switch show lan");
            let last_words = daemon.last_words();
            bail!("no frame arrives; there is {lan:?}; the daemon says:\n{last_words}");
        }
    }
    // One that was late.
    while to.pair(0).receive_within(SILENCE_MS / 10)?.is_some() {}
    Ok(())
}

/// Brings the daemon to where the last one was.
fn reconnect(daemon: &Daemon, id: &str, nic: &mut Nic, base: Option<u32>) -> Result<()> {
    // While another test starts a process, that holds a copy of our last connection.
    let mut last = None;
    await_that("a new connection to be taken", || {
        let tried = nic.reconnect(&daemon.socket(id), base);
        let done = tried.is_ok();
        last = tried.err();
        Ok(done)
    })
    .with_context(|| format!("{last:?}"))
}

/// Waits until a front-end can be connected, or not.
fn await_socket(daemon: &Daemon, id: &str, is_there: bool) -> Result<()> {
    await_that("a NIC's socket", || Ok(daemon.socket(id).exists() == is_there))
}

fn drops(view: &Value, reason: &str) -> u64 {
    let all = view["counters"]["drops"].as_array().into_iter().flatten();
    all.filter(|drop| drop["reason"] == reason).filter_map(|drop| drop["frames"].as_u64()).sum()
}

/// Whether that process has a descriptor of a tap of that name.
fn has_tap(pid: u32, name: &str) -> Result<bool> {
    let has = |entry: std::fs::DirEntry| {
        // One that is closed meanwhile is none.
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        text.lines().any(|line| line.strip_prefix("iff:").is_some_and(|of| of.trim() == name))
    };
    Ok(std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten().any(has))
}

#[test]
fn two_guests_on_a_switch_exchange_frames_and_it_shows() -> Result<()> {
    let daemon = Daemon::start("nic-lan", LAN)?;
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    must_cross(&daemon, &mut a, &mut b)?;
    let before = daemon.nic_view("a")?["counters"]["taken_frames"].clone();
    let before = before.as_u64().context("no count")?;
    for _ in 0..10 {
        ensure!(crosses(&mut a, &mut b, CROSSING_MS)?, "a frame was lost");
    }
    let hello = frames::small(frames::mac(2), frames::mac(1));
    ensure!(b.pair(0).send(&Header::default(), &hello, &[])?);
    ensure!(a.pair(0).receive_within(CROSSING_MS)?.is_some_and(|got| got.bytes == hello));

    let view = daemon.nic_view("a")?;
    ensure!(view["state"] == "running" && view["queues_attached"] == 2, "{view}");
    let frames = before + 10;
    ensure!(view["counters"]["taken_frames"] == frames, "{view}");
    ensure!(view["counters"]["taken_bytes"] == frames * frames::SMALL_BYTES as u64, "{view}");
    ensure!(view["counters"]["delivered_frames"] == 1, "{view}");
    let lan = daemon.ask("switch show lan")?;
    let macs = lan["macs"].as_array().context("no addresses")?;
    let port_of = |mac: &str| macs.iter().find(|entry| entry["mac"] == mac).map(|e| &e["port"]);
    ensure!(port_of("52:54:00:00:00:01").is_some_and(|port| port == "a"), "{lan}");
    ensure!(port_of("52:54:00:00:00:02").is_some_and(|port| port == "b"), "{lan}");
    ensure!(lan["ports"].as_array().is_some_and(|ports| ports.len() == 2), "{lan}");
    Ok(())
}

#[test]
fn guests_on_two_sidecores_exchange_frames() -> Result<()> {
    let mut daemon = Daemon::with("nic-two", LAN).cpus("0,1").start()?;
    let homes = [daemon.ask("nic show a")?, daemon.ask("nic show b")?];
    ensure!(homes[0]["sidecore"] != homes[1]["sidecore"], "{homes:?}");
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    for _ in 0..20 {
        must_cross(&daemon, &mut a, &mut b)?;
    }
    drop(b);
    let mut b = connect(&daemon, "b")?;
    must_cross(&daemon, &mut a, &mut b)?;
    daemon.stop()
}

#[test]
fn nics_come_change_and_go_beside_a_disk_that_works() -> Result<()> {
    let mut daemon = Daemon::start("nic-run-time", LAN)?;
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend("steady", &spec)?;
    let (load, _) = Load::start(&mut frontend)?;
    load.await_requests(100)?;
    let descriptors = daemon.descriptors()?;
    for number in 0..10u64 {
        daemon.ask("switch add other")?;
        daemon.ask("nic add c --switch other --mac 52:54:00:00:00:01 --queues 4")?;
        daemon.ask("nic add d --switch other --mac 52:54:00:00:00:02")?;
        let (mut c, mut d) = (connect(&daemon, "c")?, connect(&daemon, "d")?);
        must_cross(&daemon, &mut c, &mut d)?;
        // Another VLAN: nothing passes; the same again: it does.
        daemon.ask("nic set c --vlan 10")?;
        must_not_cross(&daemon, "other", &mut c, &mut d).context("a frame left its VLAN")?;
        daemon.ask("nic set d --vlan 10")?;
        must_cross(&daemon, &mut c, &mut d)?;
        daemon.ask("nic set c --share 3 --policy notify")?;
        must_cross(&daemon, &mut c, &mut d)?;
        if number % 2 == 0 {
            c.disconnect()?;
        }
        let refused = daemon.refuses("switch rm other")?;
        ensure!(refused.contains("has 2 nics: c, d"), "{refused}");
        daemon.ask("nic rm c --force")?;
        daemon.ask("nic rm d --force")?;
        daemon.ask("switch rm other")?;
        load.await_requests(20)?;
        daemon.is_alive()?;
    }
    daemon.await_descriptors(descriptors)?;
    let done = load.finish()?;
    println!("of {} requests the longest took {} ns", done.requests, done.max_ns);
    ensure!(daemon.shown("steady", "counters")?["errors"] == 0);
    Ok(())
}

#[test]
fn a_cable_that_is_out_ends_the_connection_and_one_that_is_in_takes_another() -> Result<()> {
    let daemon = Daemon::start("nic-link", LAN)?;
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    must_cross(&daemon, &mut a, &mut b)?;
    let view = daemon.ask("nic link b down")?;
    ensure!(view["link"] == "down", "{view}");
    await_socket(&daemon, "b", false)?;
    ensure!(Nic::connect(&daemon.socket("b"), NicSpec::default()).is_err(), "it was served");
    let frame = frames::small(frames::mac(1), frames::mac(2));
    a.pair(0).send(&Header::default(), &frame, &[])?;
    a.pair(0).drain(CROSSING_MS)?;
    let lan = daemon.ask("switch show lan")?;
    let ports = lan["ports"].as_array().context("no ports")?;
    ensure!(ports.iter().any(|port| port["name"] == "b" && port["link"] == "down"), "{lan}");
    drop(b);

    daemon.ask("nic link b up")?;
    await_socket(&daemon, "b", true)?;
    let mut b = connect(&daemon, "b")?;
    must_cross(&daemon, &mut a, &mut b)?;
    Ok(())
}

#[test]
fn what_was_made_through_the_api_outlives_the_daemon() -> Result<()> {
    let mut daemon = Daemon::start("nic-state", LAN)?;
    daemon.ask("switch add kept --ageing-s 7")?;
    daemon.ask("nic add k1 --switch kept --vlan 5 --mtu 9000")?;
    daemon.ask("nic add k2 --switch lan --queues 2")?;
    daemon.ask("nic link k2 down")?;
    daemon.ask("nic add gone --null drop")?;
    daemon.ask("nic rm gone --force")?;
    daemon.kill()?;
    daemon.start_again()?;
    let list = daemon.ask("ls")?;
    let mut ids: Vec<&str> = Vec::new();
    ids.extend(list["nics"].as_array().into_iter().flatten().filter_map(|n| n["id"].as_str()));
    ids.sort_unstable();
    ensure!(ids == ["a", "b", "k1", "k2"], "after the restart there are {list}");
    let k1 = daemon.nic_view("k1")?;
    ensure!(k1["vlan"] == 5 && k1["mtu"] == 9000 && k1["switch"] == "kept", "{k1}");
    let k2 = daemon.nic_view("k2")?;
    ensure!(k2["link"] == "down" && k2["queue_pairs_max"] == 2, "{k2}");
    ensure!(daemon.ask("switch show kept")?["ageing_s"] == 7);
    daemon.stop()
}

#[test]
fn mistakes_are_refused_and_change_nothing() -> Result<()> {
    let daemon = Daemon::start("nic-mistakes", LAN)?;
    for (line, says) in [
        ("nic add c --switch wan", "there is no switch"),
        ("nic add a --switch lan", "the name \"a\" is taken"),
        ("nic add steady --switch lan", "is taken by disk"),
        ("nic add c --switch lan --mac 52:54:00:00:00:01", "is that of nic \"a\""),
        ("nic add c --interface sc-absent", "sc-absent"),
        ("nic add c", "connected to nothing"),
        ("nic set a --vlan 3", "is declared in"),
        ("nic rm a", "is declared in"),
        ("nic rm steady", "\"steady\" is a disk; use `sidecore disk"),
        ("disk rm a", "\"a\" is a nic; use `sidecore nic"),
        ("nic link c down", "there is no nic"),
        ("switch rm lan", "is declared in"),
        ("switch add up --uplink interface=sc-absent", "sc-absent"),
        ("switch show wan", "there is no switch"),
    ] {
        let refused = daemon.refuses(line)?;
        ensure!(refused.contains(says), "`{line}` is refused with {refused}");
    }
    ensure!(daemon.ask("ls")?["nics"].as_array().is_some_and(|nics| nics.len() == 2));
    Ok(())
}

#[test]
fn a_guest_goes_on_after_the_daemon_was_killed() -> Result<()> {
    let mut daemon = Daemon::start("nic-killed", LAN)?;
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    must_cross(&daemon, &mut a, &mut b)?;
    daemon.kill()?;
    daemon.start_again()?;
    // Rings as they were, and whatever base: Cloud Hypervisor sends the available index, with which
    // every buffer that waits would be skipped.
    for base in [None, Some(0), Some(256), Some(u32::from(u16::MAX))] {
        reconnect(&daemon, "a", &mut a, base)?;
        reconnect(&daemon, "b", &mut b, base)?;
        for _ in 0..3 {
            must_cross(&daemon, &mut a, &mut b)?;
        }
    }
    Ok(())
}

#[test]
fn a_reload_adds_changes_and_removes() -> Result<()> {
    let daemon = Daemon::start("nic-reload", LAN)?;
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    must_cross(&daemon, &mut a, &mut b)?;
    let file = daemon.dir().join("sidecore.toml");
    let before = std::fs::read_to_string(&file)?;
    let write = |text: &str| std::fs::write(&file, text);

    // In place: a VLAN for both, and a switch with other limits.
    let text = before.replace("id = \"lan\"", "id = \"lan\"\nmacs_max = 100\nageing_s = 60");
    let text = text.replace("switch = \"lan\"", "switch = \"lan\"\nvlan = 7");
    write(&text)?;
    let done = daemon.ask("reload")?;
    ensure!(done["changes"].as_array().is_some_and(|all| all.len() == 3), "{done}");
    must_cross(&daemon, &mut a, &mut b)?;
    let lan = daemon.ask("switch show lan")?;
    ensure!(lan["macs_max"] == 100 && lan["ageing_s"] == 60, "{lan}");
    ensure!(lan["ports"].as_array().is_some_and(|ports| ports.len() == 2), "{lan}");

    // A NIC with another MTU is made anew, one goes, one comes on a switch that comes.
    let text = text.replace("id = \"a\"", "id = \"a\"\nmtu = 9000");
    let (text, _) = text.rsplit_once("[[nic]]").context("two NICs")?;
    let more = "[[switch]]\nid = \"wan\"\n[[nic]]\nid = \"c\"\nswitch = \"wan\"\n";
    write(&format!("{text}{more}"))?;
    daemon.ask("reload --force")?;
    let list = daemon.ask("ls")?;
    let ids: Vec<&Value> =
        list["nics"].as_array().into_iter().flatten().map(|n| &n["id"]).collect();
    ensure!(ids == ["a", "c"], "{list}");
    ensure!(daemon.ask("nic show a")?["mtu"] == 9000);
    connect(&daemon, "c")?.disconnect()?;

    // One mistake changes nothing.
    write(&format!(
        "{text}{more}[[switch]]\nid = \"up\"\n[[switch.uplink]]\ninterface = \"sc-no\"\n"
    ))?;
    let refused = daemon.refuses("reload")?;
    ensure!(refused.contains("sc-no") && refused.contains("nothing was changed"), "{refused}");
    ensure!(daemon.refuses("switch show up")?.contains("there is no switch"));
    write(&before)?;
    daemon.ask("reload --force")?;
    let (mut a, mut b) = (connect(&daemon, "a")?, connect(&daemon, "b")?);
    must_cross(&daemon, &mut a, &mut b)?;
    Ok(())
}

const WIRED: &str = r#"
[[switch]]
id = "lan"
[[switch.uplink]]
tap = "sc-up"
[[nic]]
id = "a"
switch = "lan"
mac = "52:54:00:00:00:01"
[[nic]]
id = "w"
tap = "sc-wire"
mac = "52:54:00:00:00:02"
mtu = 2000
"#;

#[test]
fn taps_are_made_kept_found_again_and_removed() -> Result<()> {
    in_namespace(|| {
        let mut daemon = Daemon::start("nic-taps", WIRED)?;
        ensure!(has_interface("sc-up")? && has_interface("sc-wire")?, "no taps were made");
        ensure!(ip_says("link show sc-wire")?.contains("mtu 2000"));
        ip("address add 10.99.0.1/24 dev sc-wire")?;
        daemon.stop()?;
        ensure!(has_interface("sc-up")? && has_interface("sc-wire")?, "a stop took taps away");
        daemon.start_again()?;
        daemon.kill()?;
        ensure!(has_interface("sc-wire")?, "a kill took a tap away");
        daemon.start_again()?;
        let view = daemon.ask("switch show lan")?;
        ensure!(view["ports"][0]["link"] == "up" && view["ports"][0]["kind"] == "tap", "{view}");
        // Those that were made go with their ports; one that was found stays.
        ip("tuntap add sc-found mode tap multi_queue vnet_hdr")?;
        daemon.ask("nic add f --tap sc-found")?;
        daemon.ask("nic rm f --force")?;
        await_that("the tap to be let go", || Ok(!has_tap(daemon.pid(), "sc-found")?))?;
        ensure!(has_interface("sc-found")?, "it went with its port");
        let file = daemon.dir().join("sidecore.toml");
        std::fs::write(
            &file,
            std::fs::read_to_string(&file)?.replace(
                "[[nic]]\nid = \"w\"\ntap = \"sc-wire\"\nmac = \"52:54:00:00:00:02\"\nmtu = 2000\n",
                "",
            ),
        )?;
        daemon.ask("reload --force")?;
        await_that("the tap to go", || Ok(!has_interface("sc-wire")?))?;
        ensure!(has_interface("sc-up")? && has_interface("sc-found")?);
        daemon.is_alive()
    })
}

/// A switch with other limits takes over the ports of the one before; what the file says of an uplink meanwhile is done
/// all the same, however often.
#[test]
fn a_reload_changes_a_switch_and_its_uplink_at_once() -> Result<()> {
    in_namespace(|| {
        let mut daemon = Daemon::start("nic-both", WIRED)?;
        let ports = || Ok::<_, anyhow::Error>(daemon.ask("switch show lan")?["ports"].clone());
        await_that("the uplink to be open", || Ok(ports()?[0]["link"] == "up"))?;
        let file = daemon.dir().join("sidecore.toml");
        let before = std::fs::read_to_string(&file)?;
        for vlan in 7..12 {
            let limits = format!("id = \"lan\"\nmacs_max = {}", 100 + vlan);
            let text = before.replace("id = \"lan\"", &limits);
            let text = text.replace("tap = \"sc-up\"", &format!("tap = \"sc-up\"\nvlan = {vlan}"));
            std::fs::write(&file, text)?;
            daemon.ask("reload")?;
        }
        await_that("the uplink to be there as the file has it", || {
            let uplink = ports()?[0].clone();
            Ok(uplink["kind"] == "tap" && uplink["link"] == "up" && uplink["vlan"] == 11)
        })?;
        // And it goes with its switch, though both have just changed.
        let text = before.replace("id = \"lan\"", "id = \"lan\"\nmacs_max = 200");
        std::fs::write(&file, text)?;
        daemon.ask("reload")?;
        let (_, wire) = before.split_once("mac = \"52:54:00:00:00:01\"").context("a NIC")?;
        let (top, _) = before.split_once("[[switch]]").context("a switch")?;
        std::fs::write(&file, format!("{top}{wire}"))?;
        daemon.ask("reload --force")?;
        await_that("the tap to go", || Ok(!has_interface("sc-up")?))?;
        daemon.stop()
    })
}

/// Flows of the test below, told apart by the one byte that each carries.
const FLOWS: u8 = 64;

#[test]
fn a_nic_of_several_pairs_has_as_many_queues_of_its_tap() -> Result<()> {
    in_namespace(|| {
        let daemon = Daemon::start("nic-many", LAN)?;
        daemon.ask("nic add m --tap sc-many --queues 4 --mac 52:54:00:00:00:01")?;
        let shown = ip_says("-d link show sc-many")?;
        ensure!(shown.contains("numqueues 4"), "{shown}");
        ip("address add 10.98.0.1/24 dev sc-many")?;
        ip("neighbor add 10.98.0.2 lladdr 52:54:00:00:00:01 dev sc-many")?;
        let spec = NicSpec { pairs: 4, ..NicSpec::default() };
        let mut nic = Nic::connect(&daemon.socket("m"), spec)?;
        let mut missing: BTreeSet<u8> = (0..FLOWS).collect();
        let flows = missing.iter().map(|_| UdpSocket::bind("10.98.0.1:0"));
        let flows: Vec<UdpSocket> = flows.collect::<std::io::Result<_>>()?;
        // The kernel spreads flows over the queues: each of them has to be read.
        await_that("a frame of each flow", || {
            for flow in &missing {
                flows[usize::from(*flow)].send_to(&[*flow], "10.98.0.2:7")?;
            }
            for pair in 0..4 {
                while let Some(got) = nic.pair(pair).receive_within(SILENCE_MS / 20)? {
                    // Ethernet, IPv4, UDP, and the byte.
                    missing.remove(got.bytes.get(14 + 20 + 8).unwrap_or(&FLOWS));
                }
            }
            Ok(missing.is_empty())
        })?;
        nic.disconnect()?;
        daemon.ask("nic rm m --force")?;
        ensure!(!has_interface("sc-many")?, "the tap stays");
        // A tap that was made for one descriptor serves all pairs with that.
        ip("tuntap add sc-one mode tap vnet_hdr")?;
        ip("link set sc-one up")?;
        daemon.ask("nic add o --tap sc-one --queues 4")?;
        let view = daemon.nic_view("o")?;
        ensure!(view["problem"].is_null(), "{view}");
        let shown = ip_says("link show sc-one")?;
        ensure!(shown.contains("LOWER_UP"), "nobody holds it: {shown}");
        Ok(())
    })
}

/// More frames than a ring has buffers, fewer than a tap keeps.
const BURST: u16 = 600;

#[test]
fn what_the_host_sends_waits_for_a_slow_guest_and_costs_no_core_meanwhile() -> Result<()> {
    in_namespace(|| {
        let daemon = Daemon::start("nic-slow", LAN)?;
        daemon.ask("nic add s --tap sc-slow --mac 52:54:00:00:00:01")?;
        ip("address add 10.97.0.1/24 dev sc-slow")?;
        ip("neighbor add 10.97.0.2 lladdr 52:54:00:00:00:01 dev sc-slow")?;
        let mut nic = connect(&daemon, "s")?;
        let socket = UdpSocket::bind("10.97.0.1:0")?;
        let send = |number: u16| socket.send_to(&number.to_be_bytes(), "10.97.0.2:7");
        // Ethernet, IPv4, UDP, and the number.
        let number = |bytes: &[u8]| bytes.get(42..44).map(|b| u16::from_be_bytes([b[0], b[1]]));
        // The ring is with its sidecore once a frame has come.
        await_that("a frame", || {
            send(u16::MAX)?;
            Ok(nic.pair(0).receive_within(SILENCE_MS)?.is_some())
        })?;
        while nic.pair(0).receive_within(SILENCE_MS)?.is_some() {}
        let early = drops(&daemon.nic_view("s")?, "no_buffer");
        for round in 0..3 {
            for sent in 0..BURST {
                send(sent)?;
            }
            // A frame waits, more are behind it, and the sidecore sleeps.
            daemon.await_sleep()?;
            let before = daemon.cpu_ticks()?;
            pause(Duration::from_millis(500));
            let used = daemon.cpu_ticks()? - before;
            timing::judge(used <= 5, || {
                format!("round {round}: {used} ticks of 10 ms in half a second")
            })?;
            let mut came = Vec::new();
            while came.len() < usize::from(BURST)
                && let Some(got) = nic.pair(0).receive_within(CROSSING_MS)?
            {
                came.extend(number(&got.bytes));
            }
            ensure!(came.iter().copied().eq(0..BURST), "round {round}: {came:?} came");
        }
        let dropped = drops(&daemon.nic_view("s")?, "no_buffer") - early;
        ensure!(dropped == 0, "{dropped} frames were dropped");
        Ok(())
    })
}

#[test]
fn an_interface_that_goes_is_shown_and_found_again() -> Result<()> {
    in_namespace(|| {
        let config = WIRED.replace("tap = \"sc-up\"", "interface = \"sc-v0\"");
        // It is not there at the start: the others are served.
        let mut daemon = Daemon::start("nic-gone", &config)?;
        let view = daemon.ask("switch show lan")?;
        ensure!(view["problem"].as_str().is_some_and(|text| text.contains("sc-v0")), "{view}");
        let mut a = connect(&daemon, "a")?;
        let port = |daemon: &Daemon| {
            Ok::<_, anyhow::Error>(daemon.ask("switch show lan")?["ports"][0].clone())
        };
        for _ in 0..2 {
            ip("link add sc-v0 type veth peer name sc-v1")?;
            ip("link set sc-v0 up")?;
            ip("link set sc-v1 up")?;
            await_that("the uplink to be open", || Ok(port(&daemon)?["link"] == "up"))?;
            let taken =
                || Ok::<_, anyhow::Error>(port(&daemon)?["counters"]["delivered_frames"].as_u64());
            let before = taken()?;
            let frame = frames::small(frames::mac(1), frames::mac(9));
            a.pair(0).send(&Header::default(), &frame, &[])?;
            a.pair(0).drain(CROSSING_MS)?;
            await_that("a frame to leave", || Ok(taken()? > before))?;
            ip("link delete sc-v0")?;
            await_that("the uplink to be shut", || {
                a.pair(0).send(&Header::default(), &frame, &[])?;
                a.pair(0).drain(CROSSING_MS)?;
                Ok(port(&daemon)?["link"] == "down")
            })?;
        }
        daemon.is_alive()?;
        ensure!(drops(&daemon.nic_view("a")?, "bad_offload") == 0);
        Ok(())
    })
}
