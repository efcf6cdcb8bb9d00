//! A guest whose disk another machine has: a daemon that serves the guest, one that has the disk, and UDP between
//! them, with a wire in the middle that loses, doubles and delays. Whatever happens to either daemon, nothing is
//! lost, done twice or served by two.
//!
//! `REMOTE_SECONDS` says how long the daemons are killed (3 unless told), `REMOTE_LOSS` what the wire loses meanwhile, in
//! per cent (nothing), `REMOTE_EVERY` one in how many seconds dies (as soon as 300 requests have ended).
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::content::block_content;
use testing::daemon::{Daemon, await_that};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use testing::slots::{Kind, STATUS_OK};
use testing::timing::{often, told};
use testing::wire::{Bad, Wire};
use tests::faulty::STATUS_IOERR;
use tests::link_site::{Site, free_port, key, plain};
use tests::link_stations::{Stations, Via};
use tests::single::{BLOCK_SIZE, Single};
use tests::tenant::{DEPTH, Tenant, TenantSpec, work};
use virtqueue::Format;

const DISK_BYTES: u64 = 16 << 20;

fn site(name: &str) -> Result<Site> {
    Site::new(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
}

fn spec(format: Format) -> TenantSpec {
    TenantSpec::usual(format, 256 << 10)
}

fn said(daemons: [&Daemon; 2]) -> String {
    daemons.map(|daemon| daemon.last_words()).join("\n--\n")
}

#[test]
fn a_guest_has_its_disk_from_another_machine() -> Result<()> {
    for format in [Format::Split, Format::Packed] {
        let site = site("remote-plain")?;
        let port = free_port()?;
        let mut iohost = Daemon::start("remote-plain-iohost", &site.iohost(port))?;
        let mut client =
            Daemon::with("remote-plain-client", &site.client(&[port])).cpus("1").start()?;
        let mut random = Random(7);
        let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
        let mut tenant = Tenant::over(stream, spec(format), Tenant::blank(DISK_BYTES))?;
        work(&mut tenant, &mut random, 5000).with_context(|| said([&iohost, &client]))?;
        tenant.drain()?;
        tenant.compare_all(&mut random)?;
        let counters = client.shown("root", "counters")?;
        ensure!(counters["errors"] == 0, "{counters}");
        let counters = iohost.shown("db", "counters")?;
        ensure!(counters["requests"].as_u64() >= Some(5000), "{counters}");
        ensure!(!iohost.socket("db").exists(), "it has a socket, too");
        drop(tenant);
        client.stop()?;
        iohost.stop()?;
    }
    Ok(())
}

/// Without IP, over a pair of interfaces.
pub(super) fn without_ip(stations: &Stations) -> Result<()> {
    let site = site("remote-ethernet")?;
    let (mtu, via, address) = (stations.mtu(), stations.via().word(), stations.address()?);
    let here = Stations::HERE;
    let from =
        format!("via = \"{via}\"\ninterface = \"{here}\"\nmtu = {mtu}\niohosts = [\"{address}\"]");
    let mut iohost = site.iohost(1).replace("udp = \"127.0.0.1:1\"", &stations.at());
    let mut client = site.client(&[1]).replace("iohosts = [\"127.0.0.1:1\"]", &from);
    if stations.via() == Via::PlainPacket {
        (iohost, client) = (plain(&iohost), plain(&client));
    }
    // A longer packet than the interface carries is refused with a word, and nothing is lost on the way.
    let longer = if via == "xdp" { 3826 } else { 9000 };
    let long = client.replace(&format!("mtu = {mtu}"), &format!("mtu = {longer}"));
    if mtu != longer {
        let refused = Daemon::with("remote-ethernet-long", &long).cpus("1").start()?;
        await_that("a word about its MTU", || {
            let status = refused.ask("remote status")?;
            let problem = status["links"][0]["problem"].as_str().unwrap_or_default();
            Ok(problem
                .contains(&format!("carries packets of {mtu} bytes, and its `mtu` is {longer}")))
        })?;
    }
    let mut iohost = Daemon::start("remote-ethernet-iohost", &iohost)?;
    let mut client = Daemon::with("remote-ethernet-client", &client).cpus("1").start()?;
    let mut random = Random(13);
    let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 3000).with_context(|| said([&iohost, &client]))?;
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    let status = client.ask("remote status")?;
    let way = &status["links"][0]["ways"][0];
    ensure!(way["peer"] == address.as_str(), "{status}");
    let socket = status["links"][0]["sockets"][0].as_str().unwrap_or_default();
    ensure!(socket.starts_with(via), "{status}");
    let counters = client.shown("root", "counters")?;
    ensure!(counters["errors"] == 0, "{counters}");
    println!("remote: EtherType 0x88b5 by {socket}, MTU {mtu}: {}", status["links"][0]);
    drop(tenant);
    client.stop()?;
    iohost.stop()
}

#[test]
fn a_bad_wire_loses_nothing() -> Result<()> {
    let site = site("remote-bad")?;
    let (port, wire_port) = (free_port()?, free_port()?);
    let iohost = Daemon::start("remote-bad-iohost", &site.iohost(port))?;
    let client = Daemon::with("remote-bad-client", &site.client(&[wire_port])).cpus("1").start()?;
    let bad = Bad { loss_percent: 2, double_percent: 2, delay_us: 500 };
    let wire = Wire::lay(env!("CARGO_BIN_EXE_bad_wire"), wire_port, port, 11, bad)?;
    let mut random = Random(11);
    let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 1000).with_context(|| said([&iohost, &client]))?;
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    let counters = client.shown("root", "counters")?;
    ensure!(counters["errors"] == 0, "{counters}");
    // Both ends tell of it.
    let at_client = client.ask("remote status")?["links"][0]["ways"][0].clone();
    let at_iohost = iohost.ask("remote status")?["links"][0]["ways"][0].clone();
    ensure!(at_iohost["peer"] == "host7", "{at_iohost}");
    for way in [&at_client, &at_iohost] {
        for what in ["round_trip_ns", "frames_lost", "records_again", "credit_frames"] {
            ensure!(way[what].as_u64() > Some(0), "no {what}: {way}");
        }
    }
    drop(tenant);
    println!("remote: {} requests; {}", counters["requests"], wire.end()?);
    println!("remote: the client's way {at_client}, the IOhost's {at_iohost}");
    Ok(())
}

#[test]
fn whichever_daemon_is_killed_nothing_is_lost() -> Result<()> {
    let seconds = often("REMOTE_SECONDS", [3, 600])?;
    let (loss_percent, every_s) = (often("REMOTE_LOSS", [0, 1])?, told("REMOTE_EVERY", 0)?);
    let site = site("remote-killed")?;
    let (port, wire_port) = (free_port()?, free_port()?);
    let mut iohost = Daemon::start("remote-killed-iohost", &site.iohost(port))?;
    let mut client =
        Daemon::with("remote-killed-client", &site.client(&[wire_port])).cpus("1").start()?;
    let bad = Bad { loss_percent: loss_percent as u32, double_percent: 0, delay_us: 0 };
    let wire = Wire::lay(env!("CARGO_BIN_EXE_bad_wire"), wire_port, port, 13, bad)?;
    let mut random = Random(13);
    let stream = client.connect("root")?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    let (start, mut kills) = (now_ns(), [0, 0]);
    while now_ns() - start < seconds * 1_000_000_000 || kills.contains(&0) {
        let until = now_ns() + every_s * 1_000_000_000;
        while {
            work(&mut tenant, &mut random, 300).with_context(|| said([&iohost, &client]))?;
            now_ns() < until
        } {}
        tenant.send(DEPTH, &mut random)?;
        if random.below(3) == 0 {
            client.kill()?;
            client.start_again()?;
            tenant.reconnect(client.connect("root").with_context(|| said([&iohost, &client]))?)?;
            kills[1] += 1;
        } else {
            iohost.kill()?;
            iohost.start_again()?;
            kills[0] += 1;
        }
    }
    work(&mut tenant, &mut random, 300).with_context(|| said([&iohost, &client]))?;
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    let [of_iohost, of_client] = kills;
    println!(
        "remote: {} requests; the IOhost was killed {of_iohost} times, the client {of_client}; {}",
        tenant.done,
        wire.end()?
    );
    Ok(())
}

#[test]
fn a_second_iohost_that_stands_by_serves_when_the_first_is_gone() -> Result<()> {
    let site = site("remote-second")?;
    let ports = [free_port()?, free_port()?];
    // The image's lock is with whoever serves a client, and nobody else serves one then.
    let file = |port| site.iohost(port).replace("[[link]]", "migratable = true\n[[link]]");
    let mut first = Daemon::start("remote-second-a", &file(ports[0]))?;
    let second = Daemon::start("remote-second-b", &file(ports[1]))?;
    let client = Daemon::with("remote-second-client", &site.client(&ports)).cpus("1").start()?;
    let mut random = Random(17);
    let stream = client.connect("root")?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 500)?;
    ensure!(first.shown("db", "locked")? == true, "the first one serves without the lock");
    ensure!(second.shown("db", "locked")? == false, "both have the lock");
    tenant.send(DEPTH, &mut random)?;
    first.kill()?;
    work(&mut tenant, &mut random, 500).with_context(|| said([&second, &client]))?;
    ensure!(second.shown("db", "locked")? == true, "the second one serves without the lock");
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    drop(tenant);
    await_that("the image to be let go", || Ok(second.shown("db", "locked")? == false))?;
    let counters = second.shown("db", "counters")?;
    ensure!(counters["requests"].as_u64() >= Some(500), "{counters}");
    // Both say how often it has changed hands, in one place.
    let kept = std::fs::read_to_string(format!("{}.generation", site.image().display()))?;
    ensure!(kept.trim().parse::<u64>()? >= 1, "{kept}");
    Ok(())
}

#[test]
fn a_disk_that_grows_at_its_iohost_grows_for_its_guest() -> Result<()> {
    let site = site("remote-grows")?;
    let port = free_port()?;
    let iohost = Daemon::start("remote-grows-iohost", &site.iohost(port))?;
    let client = Daemon::with("remote-grows-client", &site.client(&[port])).cpus("1").start()?;
    let mut random = Random(19);
    let stream = client.connect("root")?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 100)?;
    let refused = client.refuses("disk resize root 32M")?;
    ensure!(refused.contains("declared in"), "{refused}");
    let file = iohost.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("[[link]]", "size = \"32M\"\n[[link]]"))?;
    iohost.ask("reload --force")?;
    await_that("the client to know", || Ok(client.shown("root", "size_bytes")? == 32 << 20))?;
    work(&mut tenant, &mut random, 100)?;
    let sectors = tenant.frontend().capacity_sectors()?;
    ensure!(sectors == (32 << 20) / 512, "the guest sees {sectors} sectors");
    tenant.drain()?;
    // Nor does it go by a reload: a client has it.
    let text = std::fs::read_to_string(&file)?;
    let (rest, _) = text.split_once("[[disk]]").context("no disk")?;
    std::fs::write(&file, rest)?;
    let refused = iohost.refuses("reload")?;
    ensure!(refused.contains("one that clients of a link may have"), "{refused}");
    work(&mut tenant, &mut random, 100)?;
    tenant.drain()
}

#[test]
fn who_has_no_right_gets_nothing_and_is_told() -> Result<()> {
    let site = site("remote-stranger")?;
    let port = free_port()?;
    let iohost = Daemon::start("remote-stranger-iohost", &site.iohost(port))?;
    let stranger = key(site.folder(), "stranger.key")?;
    let text = site.client(&[port]);
    let text =
        text.replace(&site.client_key().display().to_string(), &stranger.0.display().to_string());
    let other = format!("{text}[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let client = Daemon::with("remote-stranger-client", &other).cpus("1").start()?;
    // Hellos that nobody answered are said again, and the IOhost has heard them.
    await_that("hellos in vain", || {
        let link = |daemon: &Daemon| {
            Ok::<_, anyhow::Error>(daemon.ask("remote status")?["links"][0].clone())
        };
        let (here, there) = (link(&client)?, link(&iohost)?);
        Ok(here["handshakes"].as_u64() >= Some(2) && there["frames_in"].as_u64() > Some(0))
    })?;
    let link = iohost.ask("remote status")?["links"][0].clone();
    ensure!(link["sessions"] == 0, "{link}");
    let problem = client.shown("root", "problem")?;
    ensure!(
        problem.as_str().is_some_and(|text| text.contains("its IOhost has not answered yet")),
        "{problem}"
    );
    ensure!(!client.socket("root").exists(), "it can be used");
    // A client that may come, and asks for what is not his.
    let text = site.client(&[port]).replace("remote = \"db\"", "remote = \"other\"");
    let other = format!("{text}[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"1M\"\n");
    let client = Daemon::with("remote-stranger-client2", &other).cpus("1").start()?;
    await_that("the answer", || {
        let problem = client.shown("root", "problem")?;
        Ok(problem.as_str().is_some_and(|text| text.contains("no such disk for this machine")))
    })
}

fn guest_of(client: &Daemon) -> Result<Frontend> {
    let spec = FrontendSpec::linux();
    client.frontend("root", &spec)
}

fn status_of(guest: &mut Frontend, kind: Kind) -> Result<u8> {
    let single = Single::new(guest)?;
    Ok(single.send(guest.queue(0), kind, 5)?.status)
}

fn await_problem(daemon: &Daemon, text: &str) -> Result<()> {
    await_that(&format!("the problem {text:?}"), || {
        let problem = daemon.shown("root", "problem")?;
        Ok(problem.as_str().is_some_and(|problem| problem.contains(text)))
    })
}

/// A disk whose IOhost is silent is not shown as one that is served; nor is one that somebody else has, here a former
/// daemon of the same machine.
#[test]
fn who_waits_for_another_machine_is_told() -> Result<()> {
    let site = site("remote-waits")?;
    let port = free_port()?;
    let text = site.iohost(port).replace("lease_s = 1", "lease_s = 20");
    let mut iohost = Daemon::start("remote-waits-iohost", &text)?;
    let mut client =
        Daemon::with("remote-waits-client", &site.client(&[port])).cpus("1").start()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK, "{}", said([&iohost, &client]));
    ensure!(client.shown("root", "link")? == "rack" && client.shown("root", "remote")? == "db");
    ensure!(client.shown("root", "state")? == "running");
    iohost.kill()?;
    await_problem(&client, "its IOhost has been silent for ")?;
    ensure!(client.shown("root", "state")? == "waiting");
    iohost.start_again()?;
    await_that("the disk to be served", || Ok(client.shown("root", "state")? == "running"))?;
    ensure!(client.shown("root", "problem")?.is_null(), "{}", client.shown("root", "problem")?);
    ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK, "{}", said([&iohost, &client]));
    client.kill()?;
    client.start_again()?;
    drop(guest);
    let _guest = guest_of(&client)?;
    await_problem(&client, "its IOhost has not given it for ")?;
    ensure!(client.shown("root", "state")? == "waiting");
    Ok(())
}

/// How a disk stands, beyond the end of the client's daemon.
fn standing_of(client: &Daemon) -> PathBuf {
    client.dir().join("state/standings/root")
}

/// What a guest had not flushed is lost with its IOhost's machine, while the client's daemon is dead: its successor says
/// so, and so does each one after it, until an operator knows. (That it was another machine is written into what the
/// daemon had kept: here there is one.)
#[test]
fn what_an_iohost_lost_while_nobody_looked_fails_flushes_until_it_is_cleared() -> Result<()> {
    let site = site("remote-stands")?;
    let port = free_port()?;
    let iohost = Daemon::start("remote-stands-iohost", &site.iohost(port))?;
    let mut client =
        Daemon::with("remote-stands-client", &site.client(&[port])).cpus("1").start()?;
    let mut guest = guest_of(&client).with_context(|| said([&iohost, &client]))?;
    ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK);
    client.kill()?;
    let kept = std::fs::read_to_string(standing_of(&client))?;
    drop(guest);
    // The same machine: nothing is lost.
    client.start_again()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Flush)? == STATUS_OK, "{}", said([&iohost, &client]));
    client.kill()?;
    ensure!(std::fs::read_to_string(standing_of(&client))? == kept, "{kept}");
    let mut words: Vec<&str> = kept.split(' ').collect();
    words[1] = "1";
    std::fs::write(standing_of(&client), words.join(" "))?;
    drop(guest);
    for _ in 0..2 {
        client.start_again()?;
        let mut guest = guest_of(&client)?;
        ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK, "{}", said([&iohost, &client]));
        ensure!(status_of(&mut guest, Kind::Flush)? == STATUS_IOERR, "nobody is told");
        await_problem(&client, "sidecore disk clear root")?;
        client.stop()?;
    }
    client.start_again()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Flush)? == STATUS_IOERR, "a stop in order forgets it");
    client.ask("disk clear root")?;
    ensure!(status_of(&mut guest, Kind::Flush)? == STATUS_OK, "it was cleared");
    ensure!(client.refuses("disk clear root")?.contains("has lost no data"), "and is no more");
    guest.disconnect()?;
    await_that("the disk to be let go", || Ok(!standing_of(&client).exists()))
}

/// The first IOhost's machine dies and takes along what was not flushed; a second one on the same image serves on. The
/// client sends that again, and the guest notices nothing; one that keeps nothing says so. (Here there is one machine:
/// what its memory had is taken out of the image, and the second daemon has counted a loss, which is another boot.)
#[test]
fn a_machine_that_dies_takes_nothing_of_a_guest_along() -> Result<()> {
    const BLOCKS: u64 = 100;
    for keeps in [true, false] {
        let site = site("remote-machine")?;
        let ports = [free_port()?, free_port()?];
        let file = |port| site.iohost(port).replace("[[link]]", "migratable = true\n[[link]]");
        let keep = if keeps { "" } else { "keep = \"0\"\n" };
        let mut first = Daemon::start("remote-machine-a", &file(ports[0]))?;
        let mut second = Daemon::start("remote-machine-b", &file(ports[1]))?;
        let client = format!("{}{keep}", site.client(&ports));
        let client = Daemon::with("remote-machine-client", &client).cpus("1").start()?;
        let losses = second.dir().join("state/losses");
        std::fs::create_dir_all(&losses)?;
        std::fs::write(losses.join("db"), format!("{:020}\n", 1))?;
        let mut guest = guest_of(&client).with_context(|| said([&first, &client]))?;
        let single = Single::new(&mut guest)?;
        let mut ask = |kind, block| -> Result<u8> {
            let ended = single.send(guest.queue(0), kind, block);
            Ok(ended.with_context(|| said([&second, &client]))?.status)
        };
        for block in 0..BLOCKS {
            ensure!(ask(Kind::Write, block)? == STATUS_OK);
        }
        ensure!(ask(Kind::Flush, 0)? == STATUS_OK);
        let flushed = std::fs::read(site.image())?;
        for block in BLOCKS..2 * BLOCKS {
            ensure!(ask(Kind::Write, block)? == STATUS_OK);
        }
        first.kill()?;
        std::fs::write(site.image(), &flushed)?;
        let status = ask(Kind::Flush, 0)?;
        ensure!(status == if keeps { STATUS_OK } else { STATUS_IOERR }, "{status}");
        ensure!(ask(Kind::Read, 2 * BLOCKS - 1)? == STATUS_OK);
        let wanted = if keeps { BLOCKS } else { 0 };
        await_that("the writes that were sent again to be counted", || {
            Ok(client.ask("remote status")?["links"][0]["writes_again"] == wanted)
        })?;
        guest.disconnect()?;
        await_that("the image to be let go", || Ok(second.shown("db", "locked")? == false))?;
        let image = std::fs::read(site.image())?;
        let mut expected = vec![0; BLOCK_SIZE];
        for (block, bytes) in (0..2 * BLOCKS).zip(image.chunks(BLOCK_SIZE)) {
            block_content(block, &mut expected);
            let is_there = bytes == expected;
            ensure!(is_there == (keeps || block < BLOCKS), "block {block}: {is_there}");
        }
        second.stop()?;
    }
    Ok(())
}

/// The IOhost's daemon has another RAM disk after its restart: whoever used the one before is not given that.
#[test]
fn other_contents_are_noticed_by_the_successor_of_a_daemon() -> Result<()> {
    let site = site("remote-other")?;
    let port = free_port()?;
    let text = site.iohost(port);
    let path = format!("path = \"{}\"", site.image().display());
    let text = text.replace(&path, "backend = \"memory\"\nsize = \"16M\"");
    let mut iohost = Daemon::start("remote-other-iohost", &text)?;
    let mut client =
        Daemon::with("remote-other-client", &site.client(&[port])).cpus("1").start()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK);
    client.kill()?;
    iohost.kill()?;
    iohost.start_again()?;
    client.start_again()?;
    guest.reconnect(client.connect("root")?)?;
    await_problem(&client, "or other contents, than its IOhost has now")?;
    ensure!(client.shown("root", "state")? == "waiting", "{}", client.ask("show root")?);
    // Who starts anew finds what is there.
    guest.disconnect()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Read)? == STATUS_OK, "{}", said([&iohost, &client]));
    guest.disconnect()
}

/// A daemon that stops in order gives its disks back: nobody waits for its lease.
#[test]
fn a_client_that_stops_in_order_leaves_no_lease_behind() -> Result<()> {
    let site = site("remote-stop")?;
    let port = free_port()?;
    let text = site.iohost(port).replace("lease_s = 1", "lease_s = 60");
    let iohost = Daemon::start("remote-stop-iohost", &text)?;
    let mut client = Daemon::with("remote-stop-client", &site.client(&[port])).cpus("1").start()?;
    for _ in 0..2 {
        let mut guest = guest_of(&client)?;
        // Within ten seconds each.
        ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK, "{}", said([&iohost, &client]));
        ensure!(standing_of(&client).exists(), "it is not kept how it stands");
        // When it stops it may not wait for a slow IOhost's last word; the next guest does not wait for the lease either
        // way.
        client.stop()?;
        client.start_again()?;
    }
    Ok(())
}

#[test]
fn a_disk_that_shrinks_at_its_iohost_says_so() -> Result<()> {
    let site = site("remote-shrinks")?;
    let port = free_port()?;
    let iohost = Daemon::start("remote-shrinks-iohost", &site.iohost(port))?;
    let client = Daemon::with("remote-shrinks-client", &site.client(&[port])).cpus("1").start()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Write)? == STATUS_OK);
    let file = iohost.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("[[link]]", "size = \"8M\"\n[[link]]"))?;
    iohost.ask("reload --force")?;
    await_problem(&client, "has made it smaller")?;
    ensure!(status_of(&mut guest, Kind::Read)? == STATUS_IOERR, "requests are done");
    guest.disconnect()?;
    let mut guest = guest_of(&client)?;
    ensure!(status_of(&mut guest, Kind::Read)? == STATUS_OK, "{}", said([&iohost, &client]));
    ensure!(client.shown("root", "size_bytes")? == 8 << 20);
    ensure!(client.shown("root", "problem")?.is_null());
    guest.disconnect()
}
