//! A guest whose NIC another machine has: a daemon that serves the guest, one with a switch, and UDP between them.
//! Frames of any length come through as they were sent, under that switch's rules; what is lost on the wire is lost
//! whole; whichever IOhost is there has them go on.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::load::Random;
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::timing;
use testing::wire::{Bad, Wire};
use tests::link_site::free_port;
use tests::mixed::MixSpec;
use tests::packets::{Can, Packet, Reassembly};
use tests::tenant::{Tenant, TenantSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

/// Far longer than anything takes here.
const WITHIN: Duration = Duration::from_secs(90);
const GUEST: u16 = 1;
const PROBE: u16 = 2;
const DISK_BYTES: u64 = 16 << 20;

fn mac(number: u16) -> String {
    frames::mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

/// A switch with a port for the guest's NIC, and a NIC of the test's own beside it.
fn iohost(port: u16, of_uplink: &str, of_probe: &str) -> String {
    format!(
        "[[switch]]\nid = \"lan\"\n[[switch.uplink]]\nremote = \"web\"\nmac = \"{}\"\n{of_uplink}\n[[nic]]\nid = \
         \"probe\"\nswitch = \"lan\"\nmac = \"{}\"\nmtu = 9000\n{of_probe}\n[[disk]]\nid = \"db\"\nbackend = \
         \"memory\"\nsize = {DISK_BYTES}\n[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \
         \"127.0.0.1:{port}\"\nlease_s = 60\nsecurity = \"none\"\n[[link.client]]\nname = \"vmhost\"\ndisks = \
         [\"db\"]\nnics = [\"web\"]\n",
        mac(GUEST),
        mac(PROBE),
    )
}

fn client(ports: &[u16], mtu: u16) -> String {
    let iohosts: Vec<String> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    format!(
        "[[nic]]\nid = \"vm1\"\nby_link = \"rack\"\nremote = \"web\"\nmac = \"{}\"\nmtu = {mtu}\n[[disk]]\nid = \
         \"db\"\nlink = \"rack\"\n[[link]]\nid = \"rack\"\nrole = \"client\"\niohosts = [{}]\nsecurity = \
         \"none\"\n",
        mac(GUEST),
        iohosts.join(", "),
    )
}

fn said(daemons: &[&Daemon]) -> String {
    daemons.iter().map(|daemon| daemon.last_words()).collect::<Vec<_>>().join("\n--\n")
}

fn nic(daemon: &Daemon, id: &str) -> Result<Nic> {
    let spec = NicSpec { send_bytes: 9100, ..NicSpec::default() };
    Nic::over(daemon.connect(id)?, spec).with_context(|| daemon.last_words())
}

/// A frame of `len` bytes with a number, and contents that go by both.
fn frame(from: u16, to: u16, number: u32, len: usize) -> Vec<u8> {
    let mut frame = [&frames::mac(to)[..], &frames::mac(from)[..], &[0x88, 0xb5]].concat();
    frame.extend(number.to_le_bytes());
    frame.extend(
        (frame.len()..len).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8),
    );
    frame
}

/// The number of such a frame, which is as it was sent.
fn number_of(bytes: &[u8], from: u16, to: u16) -> Result<Option<u32>> {
    if bytes.get(12..14) != Some(&[0x88, 0xb5]) {
        return Ok(None);
    }
    let number = u32::from_le_bytes(bytes[14..18].try_into()?);
    ensure!(bytes == frame(from, to, number, bytes.len()), "frame {number} is not what was sent");
    Ok(Some(number))
}

/// Sends frames until one arrives.
fn await_path(from: &mut Nic, to: &mut Nic, ends: (u16, u16)) -> Result<()> {
    let hello = frames::small(frames::mac(ends.0), frames::mac(ends.1));
    await_that("a frame to cross", || {
        from.pair(0).send(&Header::default(), &hello, &[])?;
        from.pair(0).drain(90_000)?;
        Ok(to.pair(0).receive_within(20)?.is_some())
    })?;
    while to.pair(0).receive_within(50)?.is_some() {}
    Ok(())
}

/// What becomes of frames on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// All arrive, however long it takes.
    Good,
    /// Some do not.
    Lossy,
}

/// Sends so many frames of many lengths, eight at a time, the next ones when those have arrived or nothing comes any
/// more: those that arrived, in the order in which they did.
fn cross(
    from: &mut Nic,
    to: &mut Nic,
    ends: (u16, u16),
    count: u32,
    most: usize,
    way: Way,
) -> Result<Vec<u32>> {
    let mut arrived = Vec::new();
    let mut take = |to: &mut Nic, wait_ms, expected: u32| -> Result<()> {
        while way == Way::Lossy || arrived.len() < expected as usize {
            let Some(got) = to.pair(0).receive_within(wait_ms)? else { break };
            arrived.extend(number_of(&got.bytes, ends.0, ends.1)?);
        }
        Ok(())
    };
    let wait_ms = if way == Way::Good { WITHIN.as_millis() as u64 } else { 5 };
    for number in 0..count {
        let len = 18 + (number as usize * 613) % (most - 17);
        while !from.pair(0).send(&Header::default(), &frame(ends.0, ends.1, number, len), &[])? {
            from.pair(0).reap()?;
        }
        // Some are under way together.
        if number % 8 == 7 {
            from.pair(0).drain(90_000)?;
            take(to, wait_ms, number + 1)?;
        }
    }
    from.pair(0).drain(90_000)?;
    take(to, wait_ms.max(300), count)?;
    // None twice.
    while let Some(got) = to.pair(0).receive_within(1)? {
        arrived.extend(number_of(&got.bytes, ends.0, ends.1)?);
    }
    Ok(arrived)
}

fn drops(view: &serde_json::Value, reason: &str) -> u64 {
    let all = view["drops"].as_array().into_iter().flatten();
    all.filter(|drop| drop["reason"] == reason).filter_map(|drop| drop["frames"].as_u64()).sum()
}

fn uplink(iohost: &Daemon) -> Result<serde_json::Value> {
    let view = iohost.ask("switch show lan")?;
    let ports = view["ports"].as_array().context("no ports")?;
    let port = ports.iter().find(|port| port["name"] == "web").context("no such port")?;
    ensure!(port["kind"] == "remote", "{port}");
    Ok(port["counters"].clone())
}

fn linked(daemon: &Daemon) -> Result<serde_json::Value> {
    Ok(daemon.ask("remote status")?["links"][0]["nics"][0].clone())
}

#[test]
fn frames_of_all_lengths_come_through_as_they_were_sent() -> Result<()> {
    for most in [1514, 9014] {
        let port = free_port()?;
        let mut iohost = Daemon::start("nic-plain-iohost", &iohost(port, "", ""))?;
        let text = client(&[port], most - 14);
        let mut client = Daemon::with("nic-plain-client", &text).cpus("1").start()?;
        let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
        let path = await_path(&mut guest, &mut probe, (GUEST, PROBE));
        path.with_context(|| said(&[&iohost, &client]))?;
        let most = usize::from(most);
        let out = cross(&mut guest, &mut probe, (GUEST, PROBE), 2_000, most, Way::Good)?;
        let back = cross(&mut probe, &mut guest, (PROBE, GUEST), 2_000, most, Way::Good)?;
        for arrived in [&out, &back] {
            let expected: Vec<u32> = (0..2_000).collect();
            ensure!(
                *arrived == expected,
                "{} of 2000 arrived\n{}",
                arrived.len(),
                uplink(&iohost)?
            );
        }
        for (daemon, name) in [(&client, "vm1"), (&iohost, "web")] {
            let seen = linked(daemon)?;
            ensure!(seen["id"] == name && seen["in_use"] == true, "{seen}");
            ensure!(seen["frames_out"].as_u64() >= Some(2_000), "{seen}");
            ensure!(seen["frames_in"].as_u64() >= Some(2_000), "{seen}");
        }
        println!("remote: 4000 frames of up to {most} bytes crossed, none lost");
        drop((guest, probe));
        client.stop()?;
        iohost.stop()?;
    }
    Ok(())
}

/// Either daemon is replaced: the guest's NIC stays, frames may be lost for a moment, and none is doubled or other than it
/// was sent.
#[test]
fn frames_go_on_when_either_daemon_is_replaced() -> Result<()> {
    let port = free_port()?;
    let mut iohost = Daemon::start("nic-upgrade-iohost", &iohost(port, "", ""))?;
    let mut client =
        Daemon::with("nic-upgrade-client", &client(&[port], 1500)).cpus("1").start()?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_path(&mut guest, &mut probe, (GUEST, PROBE))?;
    let mut waits = Vec::new();
    for round in 0..4 {
        let daemon = if round % 2 == 0 { &mut iohost } else { &mut client };
        daemon.upgrade()?;
        let start = now_ns();
        let path = await_path(&mut guest, &mut probe, (GUEST, PROBE));
        path.with_context(|| said(&[&iohost, &client]))?;
        waits.push((now_ns() - start) / 1_000_000);
        await_path(&mut probe, &mut guest, (PROBE, GUEST))?;
        let out = cross(&mut guest, &mut probe, (GUEST, PROBE), 300, 1514, Way::Good)?;
        let back = cross(&mut probe, &mut guest, (PROBE, GUEST), 300, 1514, Way::Good)?;
        let expected: Vec<u32> = (0..300).collect();
        ensure!(out == expected && back == expected, "{} and {} of 300", out.len(), back.len());
    }
    println!(
        "remote: a NIC through 4 upgrades; frames crossed again {waits:?} ms after each (50 of them this test's wait)"
    );
    drop((guest, probe));
    client.stop()?;
    iohost.stop()
}

/// A sender that leaves all undone, to receivers that take nothing undone: packets of the right size with right
/// checksums, however long the sender's was.
#[test]
fn what_a_guest_leaves_undone_is_done_before_the_link() -> Result<()> {
    let port = free_port()?;
    let iohost = Daemon::start("nic-undone-iohost", &iohost(port, "", ""))?;
    let client = Daemon::with("nic-undone-client", &client(&[port], 1500)).cpus("1").start()?;
    let spec = |can: Can| NicSpec {
        features: can.as_sender() | can.as_receiver() | testing::net_frontend::feature::MRG_RXBUF,
        send_slots: 16,
        send_bytes: 65_570,
        receive_pieces: vec![4096],
        ..NicSpec::default()
    };
    let none = Can { csum: false, tso: [false; 2], ecn: false, uso: false };
    let mut guest = Nic::over(client.connect("vm1")?, spec(Can::ALL))?;
    let mut probe = Nic::over(iohost.connect("probe")?, spec(none))?;
    await_path(&mut guest, &mut probe, (GUEST, PROBE))?;
    let mut pieces = 0;
    for (is_v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        for (payload, number) in [0, 1, 1432, 9000, 65_000].into_iter().zip(7u16..) {
            let packet = Packet { is_v6, is_tcp, has_cwr: false, vlan: None, payload, number };
            let mss = 1500 - packet.headers() as u16;
            let ends = [frames::mac(GUEST), frames::mac(PROBE)];
            let (header, frame) = packet.build(ends, Can::ALL, mss);
            ensure!(guest.pair(0).send(&header, &frame, &[])?, "no slot is free");
            let mut arrived = Reassembly::new(packet, header, frame);
            while !arrived.is_whole() {
                let got = probe.pair(0).receive_within(90_000)?;
                let got = got.with_context(|| format!("only {} of {packet:?}", arrived.pieces))?;
                arrived.take(&got.header, &got.bytes, none, 1500)?;
            }
            pieces += arrived.pieces;
            guest.pair(0).drain(90_000)?;
        }
    }
    ensure!(pieces > 150, "only {pieces}: nothing was cut");
    println!("remote: 20 packets of up to 65,000 bytes arrived in {pieces} frames");
    Ok(())
}

#[test]
fn a_bad_wire_loses_frames_whole_and_doubles_none() -> Result<()> {
    let (port, wire_port) = (free_port()?, free_port()?);
    let iohost = Daemon::start("nic-bad-iohost", &iohost(port, "", ""))?;
    let client = Daemon::with("nic-bad-client", &client(&[wire_port], 9000)).cpus("1").start()?;
    let bad = Bad { loss_percent: 2, double_percent: 2, delay_us: 300 };
    let wire = Wire::lay(env!("CARGO_BIN_EXE_bad_wire"), wire_port, port, 5, bad)?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&iohost, &client]))?;
    let mut report = String::new();
    let sent_by = |daemon: &Daemon| linked(daemon)?["frames_out"].as_u64().context("no count");
    // Percent of what was given to the link: frames of one datagram, of two, of up to eight.
    for (most, least) in [(1_300, 94), (1_514, 92), (9_014, 80)] {
        let before = [sent_by(&client)?, sent_by(&iohost)?];
        let (mut came, mut sent) = ([0, 0], [0, 0]);
        let start = now_ns();
        // A wire that loses is slow: a guest's frames wait a millisecond for it, and on a switch nobody waits.
        while sent.iter().any(|sent| *sent < 300) {
            ensure!(now_ns() - start < 120_000_000_000, "only {sent:?} were sent");
            let out = cross(&mut guest, &mut probe, (GUEST, PROBE), 400, most, Way::Lossy)?;
            let back = cross(&mut probe, &mut guest, (PROBE, GUEST), 400, most, Way::Lossy)?;
            for (came, arrived) in came.iter_mut().zip([&out, &back]) {
                let once: BTreeSet<&u32> = arrived.iter().collect();
                ensure!(once.len() == arrived.len(), "some came twice");
                *came += arrived.len() as u64;
            }
            sent = [sent_by(&client)? - before[0], sent_by(&iohost)? - before[1]];
        }
        for (came, sent) in came.into_iter().zip(sent) {
            ensure!(came > 0, "none of {sent}, of up to {most} bytes");
            timing::judge(came * 100 >= least * sent, || {
                format!("{came} of {sent}, of up to {most} bytes")
            })?;
            write!(report, "; up to {most} bytes {came} of {sent}")?;
        }
    }
    println!("remote: of frames on a bad wire there came{report}; {}", wire.end()?);
    Ok(())
}

#[test]
fn frames_go_on_when_an_iohost_comes_back_and_when_a_second_one_takes_over() -> Result<()> {
    let ports = [free_port()?, free_port()?];
    // A client's successor waits for this.
    let text = |port| iohost(port, "", "").replace("lease_s = 60", "lease_s = 4");
    let mut first = Daemon::start("nic-killed-a", &text(ports[0]))?;
    let second = Daemon::start("nic-killed-b", &text(ports[1]))?;
    let mut client = Daemon::with("nic-killed-client", &client(&ports, 1500)).cpus("1").start()?;
    let mut guest = nic(&client, "vm1")?;
    let mut probe = nic(&first, "probe")?;
    await_path(&mut guest, &mut probe, (GUEST, PROBE)).with_context(|| said(&[&first, &client]))?;
    let mut pauses = Vec::new();
    for round in 0..3 {
        first.kill()?;
        drop(probe);
        // What is sent meanwhile is lost, and the guest's ring does not stand still.
        for _ in 0..100 {
            let hello = frames::small(frames::mac(GUEST), frames::mac(PROBE));
            guest.pair(0).send(&Header::default(), &hello, &[])?;
            guest.pair(0).drain(90_000)?;
        }
        first.start_again()?;
        probe = nic(&first, "probe")?;
        let began = now_ns();
        await_path(&mut guest, &mut probe, (GUEST, PROBE))
            .with_context(|| format!("round {round}\n{}", said(&[&first, &client])))?;
        pauses.push((now_ns() - began) / 1_000_000);
        let crossed = cross(&mut guest, &mut probe, (GUEST, PROBE), 100, 1514, Way::Good)?;
        ensure!(crossed.len() == 100, "{} of 100", crossed.len());
    }
    first.kill()?;
    let began = now_ns();
    let mut probe = nic(&second, "probe")?;
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&second, &client]))?;
    let over = (now_ns() - began) / 1_000_000;
    let back = cross(&mut probe, &mut guest, (PROBE, GUEST), 100, 1514, Way::Good)?;
    ensure!(back.len() == 100, "{} of 100 came back", back.len());
    // The other end's daemon: its successor has the NIC when the lease is over.
    drop(guest);
    client.kill()?;
    client.start_again()?;
    let mut guest = nic(&client, "vm1")?;
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&second, &client]))?;
    println!(
        "remote: frames go on {pauses:?} ms after an IOhost is back, {over} ms after a second one's turn"
    );
    Ok(())
}

#[test]
fn the_switch_has_its_rules_for_it() -> Result<()> {
    let port = free_port()?;
    let text = iohost(
        port,
        "vlan = 10\nspoof = \"deny\"\n[[switch.uplink]]\nremote = \"other\"",
        "trunk = [10]",
    );
    let iohost = Daemon::start("nic-rules-iohost", &text)?;
    let client = Daemon::with("nic-rules-client", &client(&[port], 1500)).cpus("1").start()?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&iohost, &client]))?;
    guest.pair(0).send(&Header::default(), &frame(GUEST, PROBE, 1, 100), &[])?;
    let got = probe.pair(0).receive_within(90_000)?.context("nothing came")?;
    ensure!(got.bytes[12..16] == [0x81, 0, 0, 10], "not of its VLAN: {:?}", &got.bytes[..18]);
    // Somebody else's address.
    guest.pair(0).send(&Header::default(), &frame(7, PROBE, 1, 100), &[])?;
    await_that("it to be dropped", || Ok(drops(&uplink(&iohost)?, "bad_source") == 1))?;
    ensure!(probe.pair(0).receive_within(10)?.is_none(), "it came from another address");
    // A port that no client may have says so, and nobody else is disturbed.
    let view = iohost.ask("switch show lan")?;
    let other = view["ports"].as_array().into_iter().flatten().find(|port| port["name"] == "other");
    let problem = other.and_then(|port| port["problem"].as_str()).unwrap_or_default();
    ensure!(problem.contains("no client of a link may have it"), "{view}");
    Ok(())
}

#[test]
fn who_may_not_have_it_is_told_and_has_no_frames() -> Result<()> {
    let port = free_port()?;
    let text = iohost(port, "", "").replace("nics = [\"web\"]", "");
    let iohost = Daemon::start("nic-stranger-iohost", &text)?;
    let client = Daemon::with("nic-stranger-client", &client(&[port], 1500)).cpus("1").start()?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_that("the answer", || {
        let problem = client.ask("nic show vm1")?["problem"].clone();
        Ok(problem.as_str().is_some_and(|text| text.contains("no such nic for this machine")))
    })?;
    guest.pair(0).send(&Header::default(), &frame(GUEST, PROBE, 1, 100), &[])?;
    await_that("it to be dropped", || {
        Ok(drops(&client.ask("nic show vm1")?["host"], "link_down") == 1)
    })?;
    ensure!(probe.pair(0).receive_within(10)?.is_none(), "it came");
    Ok(())
}

/// Requests of a disk that end in a while, which is longer where rates are judged, and while frames of a NIC flood the same
/// link or do not.
#[test]
fn a_flood_of_frames_starves_no_disk() -> Result<()> {
    let port = free_port()?;
    let iohost = Daemon::start("nic-flood-iohost", &iohost(port, "", ""))?;
    let client = Daemon::with("nic-flood-client", &client(&[port], 1500)).cpus("1").start()?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&iohost, &client]))?;
    let ring =
        RingSpec { size: 256, format: Format::Split, event_index: true, indirect_entries: 0 };
    let mix = MixSpec { depth_max: 64, request_bytes_max: 16 << 10, cuts: false };
    let spec = TenantSpec { ring, queues: 1, mix, calls: false };
    let mut tenant = Tenant::over(client.connect("db")?, spec, Tenant::blank(DISK_BYTES))?;
    let mut random = Random(3);
    let window_ns = if timing::are_judged() { 2_000_000_000 } else { 500_000_000 };
    let mut window = |flood: Option<(&mut Nic, &mut Nic)>| -> Result<(u64, u64)> {
        let (start, before, mut flood, mut came) = (now_ns(), tenant.done, flood, 0);
        let frame = frame(GUEST, PROBE, 1, 1514);
        while now_ns() - start < window_ns {
            tenant.send(16, &mut random)?;
            if let Some((guest, probe)) = &mut flood {
                while guest.pair(0).add(&Header::default(), &frame, &[])? {}
                guest.pair(0).flush()?;
                guest.pair(0).reap()?;
                while probe.pair(0).receive()?.is_some() {
                    came += 1;
                }
            }
            tenant.take()?;
        }
        Ok((tenant.done - before, came))
    };
    let (mut alone, mut beside, mut came) = (window(None)?.0, 0, 0);
    let bytes = || -> Result<u64> {
        let seen = client.shown("db", "counters")?;
        let of = |name: &str| seen[name].as_u64().context("no count");
        Ok(of("read_bytes")? + of("written_bytes")?)
    };
    let mut of_disk = 0;
    // In turns: the machine may have something else to do in one of them.
    for round in 0..2 {
        let before = bytes()?;
        let (done, frames) = window(Some((&mut guest, &mut probe)))?;
        (beside, came, of_disk) = (beside + done, came + frames, of_disk + bytes()? - before);
        if round == 0 {
            alone += window(None)?.0;
        }
    }
    let (of_disk, of_nic) = (of_disk >> 20, (came * 1514) >> 20);
    println!(
        "remote: {alone} requests of a disk alone, {beside} beside a flood: {of_disk} MiB of the disk, {of_nic} \
         of the NIC"
    );
    ensure!(came > 0, "no flood: {came}");
    timing::judge(came > 500, || format!("no flood: {came}"))?;
    // Sixteen requests at a time wait behind frames that are under way, and all of it is on the same cores, with what
    // makes the flood.
    ensure!(beside > 0, "none beside a flood");
    timing::judge(beside * 20 > alone, || {
        format!("{beside} requests beside a flood, {alone} alone")
    })?;
    tenant.drain()?;
    tenant.compare_all(&mut random)
}

/// Which of a daemon's NICs by its link somebody has, and all of them.
fn had(daemon: &Daemon) -> Result<(usize, usize)> {
    let status = daemon.ask("remote status")?;
    let nics = status["links"][0]["nics"].as_array().context("no nics")?.clone();
    Ok((nics.iter().filter(|nic| nic["in_use"] == true).count(), nics.len()))
}

/// A NIC is taken out and put in again while its IOhost stands still: one attachment is not over, and the other one waits
/// for that.
#[test]
fn a_nic_that_is_put_in_again_while_its_iohost_is_silent_comes_back() -> Result<()> {
    let port = free_port()?;
    let text = iohost(port, "", "").replace("lease_s = 60", "lease_s = 1");
    let iohost = Daemon::start("nic-again-iohost", &text)?;
    let text = client(&[port], 1500);
    let from = text.find("[[disk]]").context("no disk")?;
    let client =
        Daemon::with("nic-again-client", text.get(from..).unwrap_or_default()).cpus("1").start()?;
    let add = format!("nic add vm1 --by-link rack --remote web --mac {}", mac(GUEST));
    client.ask(&add)?;
    ensure!(had(&client)? == (0, 1), "it has no guest, and is had");
    let former = nic(&client, "vm1")?;
    await_that("the NIC", || Ok(had(&client)? == (1, 1)))?;
    let pid = Pid::from_raw(iohost.pid() as i32).context("no process")?;
    kill_process(pid, Signal::STOP)?;
    drop(former);
    client.ask("nic rm vm1 --force")?;
    client.ask(&add)?;
    pause(Duration::from_secs(3));
    kill_process(pid, Signal::CONT)?;
    let (mut guest, mut probe) = (nic(&client, "vm1")?, nic(&iohost, "probe")?);
    await_path(&mut guest, &mut probe, (GUEST, PROBE))
        .with_context(|| said(&[&iohost, &client]))?;
    drop(guest);
    client.ask("nic rm vm1 --force")?;
    await_that("the NIC to be nobody's", || Ok(had(&iohost)?.0 == 0))
        .with_context(|| said(&[&iohost, &client]))
}

/// More NICs than a session has places for messages under way.
#[test]
fn many_nics_come_in_one_session() -> Result<()> {
    const MANY: usize = 200;
    let port = free_port()?;
    let (mut switch, mut names, mut nics) = (String::new(), Vec::new(), String::new());
    for number in 0..MANY {
        writeln!(switch, "[[switch.uplink]]\nremote = \"w{number}\"")?;
        writeln!(nics, "[[nic]]\nid = \"vm{number}\"\nby_link = \"rack\"\nremote = \"w{number}\"")?;
        names.push(format!("\"w{number}\""));
    }
    let text = format!(
        "[[switch]]\nid = \"lan\"\n{switch}[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \"127.0.0.1:{port}\"\n\
         lease_s = 60\nsecurity = \"none\"\n[[link.client]]\nname = \"vmhost\"\nnics = [{}]\n",
        names.join(", ")
    );
    let mut iohost = Daemon::start("nic-many-iohost", &text)?;
    let text = format!(
        "{nics}[[link]]\nid = \"rack\"\nrole = \"client\"\niohosts = [\"127.0.0.1:{port}\"]\nsecurity = \"none\"\n"
    );
    let client = Daemon::with("nic-many-client", &text).cpus("1").start()?;
    let guests = (0..MANY).map(|number| nic(&client, &format!("vm{number}")));
    let _guests: Vec<Nic> = guests.collect::<Result<_>>()?;
    for turn in 1..=2 {
        let mut handshakes = 0;
        await_that("all NICs", || {
            let status = client.ask("remote status")?;
            handshakes = status["links"][0]["handshakes"].as_u64().unwrap_or(0);
            Ok(handshakes >= turn && had(&client)? == (MANY, MANY))
        })
        .with_context(|| said(&[&iohost, &client]))?;
        println!("remote: {MANY} NICs, turn {turn}: {handshakes} handshakes in all");
        // Each that nobody was there to hear for three seconds is no sign of anything.
        timing::judge(handshakes <= turn + 10, || {
            format!("{handshakes} handshakes at turn {turn}")
        })?;
        iohost.kill()?;
        iohost.start_again()?;
    }
    Ok(())
}
