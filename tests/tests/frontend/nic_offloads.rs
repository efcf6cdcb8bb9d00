//! Whatever a sender leaves undone and whatever a receiver takes: the same payload arrives, in packets
//! whose every checksum is right, or is left undone where the receiver takes it so.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::collections::VecDeque;
use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};
use backend::net::{HostPort, HostSource};
use testing::daemon::{Daemon, await_that};
use testing::net_frontend::{Header, Nic, NicSpec, feature, frames};
use testing::own_network::{in_namespace, ip};
use tests::packets::{Can, Packet, Reassembly};
use virtqueue::driver::RingSpec;

const NONE: Can = Can { csum: false, tso: [false; 2], ecn: false, uso: false };
const CSUM: Can = Can { csum: true, ..NONE };
/// What drivers negotiate: each offload alone, and together.
const SETS: [Can; 8] = [
    NONE,
    CSUM,
    Can { tso: [true, false], ..CSUM },
    Can { tso: [false, true], ..CSUM },
    Can { tso: [true; 2], ..CSUM },
    Can { tso: [true; 2], ecn: true, ..CSUM },
    Can { uso: true, ..CSUM },
    Can::ALL,
];
/// A frame crosses within so long on a machine that also does other work.
const CROSSING_MS: u64 = 90_000;
const VLAN: u16 = 7;

/// A link: its MTU, its segments of TCP over IPv4, and its payloads.
struct Link {
    mtu: u16,
    mss: fn(&Packet, u16) -> u16,
    payloads: &'static [usize],
}

const WIDEST: Link =
    Link { mtu: 65_535, mss: |_, _| 1448, payloads: &[0, 1, 1448, 9000, 40_000, 65_000] };
const USUAL: Link = Link { mtu: 1500, mss: all_that_fits, payloads: &[0, 1, 1432, 9000, 65_000] };
/// With longer payloads, segments of 8 bytes would be more than there may be.
const NARROWEST: Link = Link { mtu: 68, mss: all_that_fits, payloads: &[0, 1, 8, 9, 1448] };

fn all_that_fits(packet: &Packet, mtu: u16) -> u16 {
    mtu - packet.headers() as u16
}

/// All packets of a sender that `can` so much.
fn packets(link: &Link, can: Can) -> Vec<Packet> {
    let mut all = Vec::new();
    for (is_v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        for vlan in [None, Some(VLAN)] {
            for &payload in link.payloads {
                for has_cwr in [false, true] {
                    // Without ECN nobody sends a long packet that has it.
                    if has_cwr && !(is_tcp && can.ecn) {
                        continue;
                    }
                    let number = 65_530u16.wrapping_add(all.len() as u16);
                    all.push(Packet { is_v6, is_tcp, has_cwr, vlan, payload, number });
                }
            }
        }
    }
    all
}

/// A guest that receives.
struct Receiver {
    nic: Nic,
    id: String,
    mac: [u8; 6],
    can: Can,
    /// Packets that were longer than the MTU, and so must be dropped.
    over_mtu: u64,
}

impl Receiver {
    fn connect(daemon: &Daemon, number: u16, can: Can, merges: bool) -> Result<Receiver> {
        let ring = |size| RingSpec { size, ..NicSpec::default().ring };
        let features = can.as_receiver() | if merges { feature::MRG_RXBUF } else { 0 };
        // One that does not merge has room for the longest frame in each buffer.
        let (ring, pieces) = if merges { (ring(256), 4096) } else { (ring(256), 65_600) };
        let spec = NicSpec { features, ring, receive_pieces: vec![pieces], ..NicSpec::default() };
        let id = format!("n{number}");
        let nic = Nic::connect(&daemon.socket(&id), spec)
            .with_context(|| format!("the daemon says:\n{}", daemon.last_words()))?;
        Ok(Receiver { nic, id, mac: frames::mac(number), can, over_mtu: 0 })
    }
}

fn sender(daemon: &Daemon, number: u16, can: Can) -> Result<Nic> {
    let spec = NicSpec {
        features: can.as_sender() | feature::MRG_RXBUF,
        send_slots: 16,
        send_bytes: 65_570,
        ..NicSpec::default()
    };
    Nic::connect(&daemon.socket(&format!("n{number}")), spec)
        .with_context(|| format!("the daemon says:\n{}", daemon.last_words()))
}

fn lan(nics: u16, mtu: u16) -> Result<String> {
    let mut text = String::from("[[switch]]\nid = \"lan\"\n");
    for number in 1..=nics {
        let mac = frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
        write!(
            text,
            "[[nic]]\nid = \"n{number}\"\nswitch = \"lan\"\nmac = \"{mac}\"\nmtu = {mtu}\n"
        )?;
    }
    Ok(text)
}

/// Every sender to every receiver over a switch.
fn all_to_all(name: &str, link: &Link) -> Result<()> {
    let senders = SETS.len() as u16;
    let mut daemon = Daemon::start(name, &lan(3 * senders, link.mtu)?)?;
    let mut receivers = Vec::new();
    for (number, (can, merges)) in
        (senders + 1..).zip(SETS.iter().flat_map(|can| [(*can, true), (*can, false)]))
    {
        receivers.push(Receiver::connect(&daemon, number, can, merges)?);
    }
    let (mut crossed, mut pieces) = (0u64, 0u64);
    for (number, can) in (1..).zip(SETS) {
        let mut from = sender(&daemon, number, can)?;
        for receiver in &mut receivers {
            await_path(&mut from, number, receiver)?;
        }
        for packet in packets(link, can) {
            for receiver in &mut receivers {
                let got = cross(&mut from, number, can, receiver, packet, link)
                    .with_context(|| format!("{packet:?} of {can:?} to {:?}", receiver.can))
                    .with_context(|| format!("at {}", receiver.id))?;
                crossed += u64::from(got > 0);
                pieces += u64::from(got);
            }
        }
        from.pair(0).drain(CROSSING_MS)?;
    }
    for receiver in &mut receivers {
        ensure!(receiver.nic.pair(0).receive()?.is_none(), "{} got more", receiver.id);
        let view = daemon.nic_view(&receiver.id)?;
        let mut over_mtu = 0;
        for drop in view["counters"]["drops"].as_array().into_iter().flatten() {
            ensure!(drop["reason"] == "over_mtu" || drop["reason"] == "no_buffer", "{view}");
            over_mtu +=
                if drop["reason"] == "over_mtu" { drop["frames"].as_u64().unwrap_or(0) } else { 0 };
        }
        ensure!(over_mtu == receiver.over_mtu, "{} must be dropped: {view}", receiver.over_mtu);
    }
    println!("MTU {}: {crossed} packets arrived in {pieces} frames", link.mtu);
    ensure!(crossed > 0 && pieces > crossed, "nothing was cut");
    daemon.stop()
}

/// Sends until one arrives: before a receiver's queue is with its sidecore, frames are lost.
fn await_path(from: &mut Nic, number: u16, receiver: &mut Receiver) -> Result<()> {
    let hello = frames::small(frames::mac(number), receiver.mac);
    await_that("a frame to cross", || {
        ensure!(from.pair(0).send(&Header::default(), &hello, &[])?, "no slot is free");
        from.pair(0).drain(CROSSING_MS)?;
        Ok(receiver.nic.pair(0).receive_within(20)?.is_some())
    })?;
    while receiver.nic.pair(0).receive_within(1)?.is_some() {}
    Ok(())
}

/// Sends one packet and takes what arrives. Gives how many frames that was; 0 for one that is too long.
fn cross(
    from: &mut Nic,
    number: u16,
    can: Can,
    receiver: &mut Receiver,
    packet: Packet,
    link: &Link,
) -> Result<u16> {
    let mss = (link.mss)(&packet, link.mtu);
    let (header, frame) = packet.build([frames::mac(number), receiver.mac], can, mss);
    ensure!(from.pair(0).send(&header, &frame, &[])?, "no slot is free");
    let is_cut = header.gso_type != Header::GSO_NONE;
    if !is_cut && packet.headers() + packet.payload > usize::from(link.mtu) {
        receiver.over_mtu += 1;
        from.pair(0).drain(CROSSING_MS)?;
        return Ok(0);
    }
    let mut arrived = Reassembly::new(packet, header, frame);
    while !arrived.is_whole() {
        let Some(got) = receiver.nic.pair(0).receive_within(CROSSING_MS)? else {
            bail!("only {} frames arrived of {header:?}", arrived.pieces);
        };
        arrived.take(&got.header, &got.bytes, receiver.can, link.mtu.into())?;
    }
    let may_stay = is_cut && receiver.can.long(&packet);
    let least = packet.payload.div_ceil(usize::from(mss));
    let expected = if is_cut && !may_stay { least as u16 } else { 1 };
    ensure!(arrived.pieces == expected, "{} frames in place of {expected}", arrived.pieces);
    Ok(arrived.pieces)
}

#[test]
fn every_offload_to_every_receiver() -> Result<()> {
    all_to_all("offloads-widest", &WIDEST)
}

#[test]
fn every_offload_to_every_receiver_at_the_usual_mtu() -> Result<()> {
    all_to_all("offloads-usual", &USUAL)
}

#[test]
fn every_offload_to_every_receiver_at_the_smallest_mtu() -> Result<()> {
    all_to_all("offloads-narrowest", &NARROWEST)
}

/// The longest packet that a tap's device may have, as the host's kernel gives it to whoever looks.
#[test]
fn every_offload_to_a_tap() -> Result<()> {
    in_namespace(|| {
        let senders = SETS.len() as u16;
        let config = lan(senders, WIDEST.mtu)?.replacen(
            "id = \"lan\"\n",
            "id = \"lan\"\n[[switch.uplink]]\ntap = \"sc-off\"\n",
            1,
        );
        let mut daemon = Daemon::start("offloads-tap", &config)?;
        ip("link set sc-off mtu 65521")?;
        ip("link set sc-off up")?;
        let mut port = HostPort::open(&HostSource::Packet { interface: "sc-off".to_owned() })?;
        let mut pieces = 0u64;
        for (number, can) in (1..).zip(SETS) {
            let mut from = sender(&daemon, number, can)?;
            for packet in packets(&WIDEST, can) {
                // Nobody has sent from there, so it is flooded, which reaches the uplink as well.
                let ends = [frames::mac(number), [2, 0, 0, 0, 0, 99]];
                let (header, frame) = packet.build(ends, can, (WIDEST.mss)(&packet, WIDEST.mtu));
                ensure!(from.pair(0).send(&header, &frame, &[])?, "no slot is free");
                from.pair(0).drain(CROSSING_MS)?;
                let arrived = Reassembly::new(packet, header, frame);
                pieces += of_the_host(&mut port, arrived, ends[1])
                    .with_context(|| format!("{packet:?} of {can:?}"))?;
            }
        }
        println!("to a tap: {pieces} frames");
        daemon.stop()
    })
}

/// What the host's kernel has received of a packet: frames to `mac`.
fn of_the_host(port: &mut HostPort, mut arrived: Reassembly, mac: [u8; 6]) -> Result<u64> {
    let mut waiting = VecDeque::new();
    await_that("a frame on the tap", || {
        while let Some(got) = port.receive(0) {
            if got.bytes.starts_with(&mac) {
                waiting.push_back((got.header, got.bytes.to_vec()));
            }
        }
        while let Some((header, bytes)) = waiting.pop_front() {
            arrived.take(&header, &bytes, Can::ALL, WIDEST.mtu.into())?;
        }
        Ok(arrived.is_whole())
    })?;
    Ok(arrived.pieces.into())
}
