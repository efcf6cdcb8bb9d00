//! An IOhost with two sidecores, and four machines whose disks and NICs it has: each machine is at one of them, two at
//! each; what goes from a machine at one to a machine at the other goes whole; and whichever daemon is killed, nothing
//! is lost.
//!
//! `REMOTE_SECONDS` says how long daemons are killed (3 unless told).
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::bed::tests_all;
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, pause};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use testing::scratch::Scratch;
use testing::slots::{Kind, STATUS_OK};
use testing::timing::often;
use tests::ledger::Ledger;
use tests::link_site::{free_port, key};
use tests::link_stations::Stations;
use tests::mixed::MixSpec;
use tests::single::Single;
use tests::tenant::{Tenant, TenantSpec};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

const CLIENTS: usize = 4;
const DISK_BYTES: u64 = 8 << 20;
const DEPTH: u16 = 16;
const PROBE: u16 = 99;
/// Between two looks at what has ended.
const MOMENT: Duration = Duration::from_micros(100);

fn mac(number: u16) -> String {
    frames::mac(number).map(|byte| format!("{byte:02x}")).join(":")
}

/// Keys of all machines, and the images: one for each client, and one that all of them may have.
struct Site {
    name: String,
    folder: Scratch,
    port: u16,
    iohost: (PathBuf, String),
    clients: Vec<(PathBuf, String)>,
    /// Far longer than anything takes here, but where somebody waits for it.
    lease_s: u32,
}

impl Site {
    fn new(name: &str) -> Result<Site> {
        let folder = Scratch::new(Path::new(env!("CARGO_TARGET_TMPDIR")), &format!("{name}-site"))?;
        for disk in 0..=CLIENTS {
            let image = folder.path().join(format!("db{disk}.raw"));
            std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        }
        let iohost = key(folder.path(), "iohost.key")?;
        let clients = (0..CLIENTS).map(|one| key(folder.path(), &format!("client{one}.key")));
        let clients = clients.collect::<Result<_>>()?;
        let (name, port) = (name.to_string(), free_port()?);
        Ok(Site { name, folder, port, iohost, clients, lease_s: 60 })
    }

    fn iohost(&self, of_link: &str) -> Result<Daemon> {
        self.iohost_at(&format!("udp = \"127.0.0.1:{}\"", self.port), of_link)
    }

    /// The last disk and the last NIC are for all; beside the NICs' ports there is one of the test's own.
    fn iohost_at(&self, at: &str, of_link: &str) -> Result<Daemon> {
        let (mut disks, mut ports, mut clients) = (String::new(), String::new(), String::new());
        for one in 0..=CLIENTS {
            let image = self.folder.path().join(format!("db{one}.raw"));
            write!(disks, "[[disk]]\nid = \"db{one}\"\npath = \"{}\"\n", image.display())?;
            let mac = mac(one as u16);
            write!(ports, "[[switch.uplink]]\nremote = \"web{one}\"\nmac = \"{mac}\"\n")?;
        }
        for (one, (_, public)) in self.clients.iter().enumerate() {
            write!(
                clients,
                "[[link.client]]\nname = \"host{one}\"\nkey = \"{public}\"\ndisks = [\"db{one}\", \
                 \"db{CLIENTS}\"]\nnics = [\"web{one}\", \"web{CLIENTS}\"]\n"
            )?;
        }
        let text = format!(
            "{disks}[[switch]]\nid = \"lan\"\n{ports}[[nic]]\nid = \"probe\"\nswitch = \"lan\"\nmac = \
             \"{}\"\n[[link]]\nid = \"rack\"\nrole = \"iohost\"\n{at}\nlease_s = {}\nkey_file = \
             \"{}\"\n{of_link}{clients}",
            mac(PROBE),
            self.lease_s,
            self.iohost.0.display(),
        );
        Daemon::with(&format!("{}-iohost", self.name), &text).cpus("0,1").start()
    }

    /// A machine with the disks and NICs of these numbers.
    fn client(&self, one: usize, disks: &[usize], nics: &[usize]) -> Result<Daemon> {
        let at = format!("iohosts = [\"127.0.0.1:{}\"]", self.port);
        self.client_at(&at, one, disks, nics)
    }

    fn client_at(&self, at: &str, one: usize, disks: &[usize], nics: &[usize]) -> Result<Daemon> {
        let mut text = format!(
            "[[link]]\nid = \"rack\"\nrole = \"client\"\n{at}\nkey_file = \"{}\"\niohost_key = \"{}\"\n",
            self.clients[one].0.display(),
            self.iohost.1
        );
        for disk in disks {
            write!(text, "[[disk]]\nid = \"db{disk}\"\nlink = \"rack\"\nqueues = 2\n")?;
        }
        for nic in nics {
            let mac = mac(*nic as u16);
            write!(text, "[[nic]]\nid = \"web{nic}\"\nby_link = \"rack\"\nmac = \"{mac}\"\n")?;
        }
        let cpu = if one.is_multiple_of(2) { "0" } else { "1" };
        Daemon::with(&format!("{}-client{one}", self.name), &text).cpus(cpu).start()
    }
}

fn said(daemons: &[&Daemon]) -> String {
    daemons.iter().map(|daemon| daemon.last_words()).collect::<Vec<_>>().join("\n--\n")
}

fn link(iohost: &Daemon) -> Result<serde_json::Value> {
    Ok(iohost.ask("remote status")?["links"][0].clone())
}

/// The sidecore of each client's session, when all of them have one.
fn places(iohost: &Daemon) -> Result<Option<Vec<u64>>> {
    let link = link(iohost)?;
    let ways = link["ways"].as_array().context("no ways")?;
    let of = |one: usize| {
        let name = format!("host{one}");
        let its = ways.iter().filter(|way| way["peer"] == name.as_str());
        let places: Vec<u64> = its.filter_map(|way| way["sidecore"].as_u64()).collect();
        // A session that was replaced lives for a while beside its successor, at the same shard.
        places.first().copied().filter(|first| places.iter().all(|place| place == first))
    };
    Ok((0..CLIENTS).map(of).collect())
}

fn await_places(iohost: &Daemon) -> Result<Vec<u64>> {
    let mut found = None;
    await_that("a session of each client, at one sidecore", || {
        found = places(iohost)?;
        Ok(found.is_some())
    })
    .with_context(|| said(&[iohost]))?;
    found.context("none")
}

/// Two clients at each of the two sidecores.
fn ensure_even(places: &[u64]) -> Result<()> {
    for core in 0..2 {
        let count = places.iter().filter(|place| **place == core).count();
        ensure!(count == CLIENTS / 2, "not even: {places:?}");
    }
    Ok(())
}

fn tenant(client: &Daemon, disk: usize, ledger: Option<Ledger>) -> Result<Tenant> {
    let ring =
        RingSpec { size: 256, format: Format::Split, event_index: true, indirect_entries: 0 };
    let mix = MixSpec { depth_max: 64, request_bytes_max: 128 << 10, cuts: false };
    let spec = TenantSpec { ring, queues: 2, mix, calls: false };
    let stream = client.connect(&format!("db{disk}"))?;
    Tenant::over(stream, spec, ledger.unwrap_or_else(|| Tenant::blank(DISK_BYTES)))
}

/// All of them work until each has done so much more; who has waits for the others.
fn work(tenants: &mut [Tenant], random: &mut Random, requests: u64) -> Result<()> {
    let until: Vec<u64> = tenants.iter().map(|tenant| tenant.done + requests).collect();
    let start = now_ns();
    while tenants.iter().zip(&until).any(|(tenant, until)| tenant.done < *until) {
        let mut taken = 0;
        for (tenant, until) in tenants.iter_mut().zip(&until) {
            if tenant.done < *until {
                tenant.send(DEPTH, random)?;
            }
            taken += tenant.take()?;
        }
        // The daemons have the same processors.
        if taken == 0 {
            pause(MOMENT);
        }
        ensure!(now_ns() - start < 120_000_000_000, "waited in vain");
    }
    Ok(())
}

fn finish(tenants: &mut [Tenant], random: &mut Random) -> Result<u64> {
    for tenant in tenants.iter_mut() {
        tenant.drain()?;
        tenant.compare_all(random)?;
    }
    Ok(tenants.iter().map(|tenant| tenant.done).sum())
}

fn ensure_whole(iohost: &Daemon, clients: &[Daemon]) -> Result<()> {
    for (one, client) in clients.iter().enumerate() {
        let counters = client.shown(&format!("db{one}"), "counters")?;
        ensure!(counters["errors"] == 0, "{counters}");
    }
    let link = link(iohost)?;
    for what in ["frames_misplaced", "mismatches", "violations"] {
        ensure!(link[what] == 0, "{what}: {link}");
    }
    Ok(())
}

#[test]
fn clients_are_spread_over_sidecores_and_whichever_daemon_is_killed_nothing_is_lost() -> Result<()>
{
    let seconds = often("REMOTE_SECONDS", [3, 300])?;
    let site = Site { lease_s: 1, ..Site::new("shards-killed")? };
    let mut iohost = site.iohost("")?;
    let clients = (0..CLIENTS).map(|one| site.client(one, &[one], &[]));
    let mut clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    let places = await_places(&iohost)?;
    ensure_even(&places)?;
    let mut random = Random(23);
    let tenants = clients.iter().enumerate().map(|(one, client)| tenant(client, one, None));
    let mut tenants: Vec<Tenant> =
        tenants.collect::<Result<_>>().with_context(|| said(&[&iohost]))?;
    work(&mut tenants, &mut random, 1_000).with_context(|| said(&[&iohost]))?;
    ensure_whole(&iohost, &clients)?;
    let link = link(&iohost)?;
    ensure!(
        link["sidecores"] == serde_json::json!([0, 1]) && link["frames_dropped"] == 0,
        "{link}"
    );
    // Each disk's queue is where its client's session is.
    for (one, place) in places.iter().enumerate() {
        let queues = iohost.shown(&format!("db{one}"), "queues")?;
        ensure!(queues[0]["sidecore"] == *place, "{one} at {place}: {queues}");
    }
    let (start, mut kills) = (now_ns(), [0, 0]);
    while now_ns() - start < seconds * 1_000_000_000 || kills.contains(&0) {
        work(&mut tenants, &mut random, 100).with_context(|| said(&[&iohost]))?;
        for tenant in &mut tenants {
            tenant.send(DEPTH, &mut random)?;
        }
        if random.below(3) == 0 {
            let one = random.below(CLIENTS as u64) as usize;
            let before = await_places(&iohost)?[one];
            clients[one].kill()?;
            clients[one].start_again()?;
            tenants[one].reconnect(clients[one].connect(&format!("db{one}"))?)?;
            // The lease of its former self is there: so is it.
            ensure!(await_places(&iohost)?[one] == before, "{}", said(&[&iohost]));
            kills[1] += 1;
        } else {
            iohost.kill()?;
            iohost.start_again()?;
            ensure_even(&await_places(&iohost)?).with_context(|| said(&[&iohost]))?;
            kills[0] += 1;
        }
    }
    work(&mut tenants, &mut random, 100).with_context(|| said(&[&iohost]))?;
    let done = finish(&mut tenants, &mut random).with_context(|| said(&[&iohost]))?;
    ensure_whole(&iohost, &clients)?;
    println!(
        "remote: {done} requests of {CLIENTS} clients on two sidecores; the IOhost was killed {} times, a \
         client {}",
        kills[0], kills[1]
    );
    drop(tenants);
    clients.iter_mut().try_for_each(Daemon::stop)?;
    iohost.stop()
}

/// A disk that several clients may have, one at a time: at whichever sidecore they are.
#[test]
fn a_disk_goes_from_one_sidecore_to_another_and_back() -> Result<()> {
    let site = Site { lease_s: 1, ..Site::new("shards-goes")? };
    let iohost = site.iohost("")?;
    let shared = CLIENTS;
    let clients = (0..CLIENTS).map(|one| site.client(one, &[shared], &[]));
    let mut clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    let places = await_places(&iohost)?;
    ensure_even(&places)?;
    let mut random = Random(29);
    let mut contents = None;
    let (mut went, mut took_ms, mut done, mut last) = (0, Vec::new(), 0, None);
    for round in 0..3 * CLIENTS {
        let one = round % CLIENTS;
        let start = now_ns();
        let mut tenant = tenant(&clients[one], shared, contents.take())?;
        let tenants = std::slice::from_mut(&mut tenant);
        work(tenants, &mut random, 1).with_context(|| said(&[&iohost, &clients[one]]))?;
        took_ms.push((now_ns() - start) / 1_000_000);
        done += finish(tenants, &mut random)?;
        work(tenants, &mut random, 200)?;
        finish(tenants, &mut random).with_context(|| said(&[&iohost, &clients[one]]))?;
        let queues = iohost.shown(&format!("db{shared}"), "queues")?;
        ensure!(queues[0]["sidecore"] == places[one], "{one} at {}: {queues}", places[one]);
        went += u32::from(last.replace(places[one]).is_some_and(|last| last != places[one]));
        if round % 5 == 4 {
            // It has what nobody gives back: the next one has it when the lease is over.
            clients[one].kill()?;
        }
        contents = Some(tenant.vanish());
        if round % 5 == 4 {
            clients[one].start_again()?;
        }
    }
    ensure!(went >= 4, "it went to another sidecore {went} times only: {places:?}");
    let kept = std::fs::read_to_string(site.folder.path().join("db4.raw.generation"))?;
    ensure!(kept.trim().parse::<u64>()? >= 3 * CLIENTS as u64, "{kept}");
    let link = link(&iohost)?;
    ensure!(link["frames_misplaced"] == 0 && link["violations"] == 0, "{link}");
    println!(
        "remote: a disk went to another sidecore {went} times, with {done} requests; its guest waited {took_ms:?} ms"
    );
    Ok(())
}

fn succeeds(single: &Single, guest: &mut Frontend, kind: Kind) -> Result<()> {
    let ended = single.send(guest.queue(0), kind, 5)?;
    ensure!(ended.status == STATUS_OK, "status {}", ended.status);
    Ok(())
}

/// A guest that migrates: the second machine asks for its disk while the first one has it, and they are at different
/// sidecores. The first goes on, and when it gives the disk back the second has it, without waiting for a lease.
#[test]
fn who_waits_at_another_sidecore_has_the_disk_when_it_is_given_back() -> Result<()> {
    let site = Site::new("shards-waits")?;
    let iohost = site.iohost("")?;
    let shared = format!("db{CLIENTS}");
    let clients = (0..CLIENTS).map(|one| site.client(one, &[CLIENTS], &[]));
    let clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    let places = await_places(&iohost)?;
    let other = places.iter().position(|place| *place != places[0]).context("all at one")?;
    let spec = FrontendSpec::linux();
    let mut pair = [&clients[0], &clients[other]];
    let mut waited_ms = Vec::new();
    for round in 0..4 {
        let [has, waits] = pair;
        let mut first = has.frontend(&shared, &spec)?;
        let single = Single::new(&mut first)?;
        succeeds(&single, &mut first, Kind::Write)?;
        let (given_back, had) = std::thread::scope(|scope| -> Result<_> {
            let second = scope.spawn(|| -> Result<u64> {
                let mut second = waits.frontend(&shared, &spec)?;
                succeeds(&Single::new(&mut second)?, &mut second, Kind::Read)?;
                let had = now_ns();
                second.disconnect()?;
                Ok(had)
            });
            let until = now_ns() + 1_500_000_000;
            while now_ns() < until {
                succeeds(&single, &mut first, Kind::Write).context("it was taken away")?;
            }
            let given_back = now_ns();
            first.disconnect()?;
            let had = second.join().map_err(|_| anyhow!("it gave up"))?;
            Ok((given_back, had.with_context(|| said(&[&iohost, waits]))?))
        })?;
        ensure!(had > given_back, "round {round}: both have it");
        waited_ms.push((had - given_back) / 1_000_000);
        pair.swap(0, 1);
    }
    // Each within the ten seconds that a request may take here: nobody waited for the lease.
    println!(
        "remote: who waits at another sidecore has a disk {waited_ms:?} ms after it was given back"
    );
    Ok(())
}

fn nic(daemon: &Daemon, id: &str) -> Result<Nic> {
    Nic::over(daemon.connect(id)?, NicSpec::default()).with_context(|| daemon.last_words())
}

/// Sends frames until one arrives.
fn await_path(from: (&mut Nic, u16), to: (&mut Nic, u16)) -> Result<()> {
    let hello = frames::small(frames::mac(from.1), frames::mac(to.1));
    let ((from, _), (to, _)) = (from, to);
    await_that("a frame to cross", || {
        from.pair(0).send(&Header::default(), &hello, &[])?;
        from.pair(0).drain(90_000)?;
        Ok(to.pair(0).receive_within(20)?.is_some())
    })?;
    while to.pair(0).receive_within(50)?.is_some() {}
    Ok(())
}

/// How many of so many frames arrive, a few at a time; each as it was sent, and none twice.
fn cross(from: (&mut Nic, u16), to: (&mut Nic, u16), count: u32) -> Result<u32> {
    let ((from, sender), (to, receiver)) = (from, to);
    let frame = |number: u32| {
        let ends = [frames::mac(receiver), frames::mac(sender)].concat();
        let mut frame = [&ends[..], &[0x88, 0xb5], &number.to_le_bytes()].concat();
        frame.resize(60 + (number as usize * 613) % 1_400, number as u8);
        frame
    };
    let (mut came, mut next) = (0, 0);
    for number in 0..count {
        from.pair(0).send(&Header::default(), &frame(number), &[])?;
        if number % 8 < 7 && number + 1 < count {
            continue;
        }
        from.pair(0).drain(90_000)?;
        while let Some(got) = to.pair(0).receive_within(if next > number { 1 } else { 90_000 })? {
            if got.bytes.get(12..14) != Some(&[0x88, 0xb5]) || got.bytes.len() < 60 {
                continue;
            }
            let number = u32::from_le_bytes(got.bytes[14..18].try_into()?);
            ensure!(got.bytes == frame(number) && number >= next, "frame {number} after {next}");
            (came, next) = (came + 1, number + 1);
        }
    }
    Ok(came)
}

/// Guests of machines at different sidecores on one switch; and a NIC that goes from one to the other.
#[test]
fn nics_are_where_their_clients_are() -> Result<()> {
    let site = Site::new("shards-nics")?;
    let iohost = site.iohost("")?;
    let shared = CLIENTS as u16;
    let clients = (0..CLIENTS).map(|one| site.client(one, &[], &[one]));
    let mut clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    let places = await_places(&iohost)?;
    ensure_even(&places)?;
    let other = places.iter().position(|place| *place != places[0]).context("all at one")?;
    let (mut one, mut two) =
        (nic(&clients[0], "web0")?, nic(&clients[other], &format!("web{other}"))?);
    let ends = (0, other as u16);
    await_path((&mut one, ends.0), (&mut two, ends.1)).with_context(|| said(&[&iohost]))?;
    let out = cross((&mut one, ends.0), (&mut two, ends.1), 400)?;
    let back = cross((&mut two, ends.1), (&mut one, ends.0), 400)?;
    ensure!(out == 400 && back == 400, "{out} and {back} of 400\n{}", link(&iohost)?);
    drop((one, two));
    // Both of them may have the last one: whose daemon ends gives it to the other.
    let mut probe = nic(&iohost, "probe")?;
    let mut waited_ms = Vec::new();
    let pair = [0, other];
    clients.iter_mut().try_for_each(Daemon::stop)?;
    drop(clients);
    for round in 0..4 {
        let at = pair[round % 2];
        let start = now_ns();
        let mut client = site.client(at, &[], &[CLIENTS])?;
        let mut guest = nic(&client, &format!("web{shared}"))?;
        await_path((&mut guest, shared), (&mut probe, PROBE))
            .with_context(|| format!("round {round}\n{}", said(&[&iohost, &client])))?;
        waited_ms.push((now_ns() - start) / 1_000_000);
        let out = cross((&mut guest, shared), (&mut probe, PROBE), 200)?;
        let back = cross((&mut probe, PROBE), (&mut guest, shared), 200)?;
        ensure!(out == 200 && back == 200, "round {round}: {out} and {back} of 200");
        drop(guest);
        client.stop()?;
    }
    println!(
        "remote: NICs at two sidecores: 800 frames, none lost; one that went there and back {waited_ms:?} ms"
    );
    Ok(())
}

/// As it was before there were shards.
#[test]
fn a_link_may_have_one_sidecore_of_two() -> Result<()> {
    let site = Site::new("shards-one")?;
    let iohost = site.iohost("sidecores = 1\n")?;
    let clients = (0..CLIENTS).map(|one| site.client(one, &[one], &[]));
    let clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    let places = await_places(&iohost)?;
    ensure!(places.iter().all(|place| *place == places[0]), "{places:?}");
    ensure!(link(&iohost)?["sidecores"] == serde_json::json!([places[0]]));
    let mut random = Random(31);
    let tenants = clients.iter().enumerate().map(|(one, client)| tenant(client, one, None));
    let mut tenants: Vec<Tenant> = tenants.collect::<Result<_>>()?;
    work(&mut tenants, &mut random, 500).with_context(|| said(&[&iohost]))?;
    finish(&mut tenants, &mut random)?;
    ensure_whole(&iohost, &clients)
}

/// Without IP, over a pair of interfaces: all clients are one station, and have a session each.
pub(super) fn without_ip(stations: &Stations) -> Result<()> {
    let site = Site::new("shards-ethernet")?;
    let (mtu, via, address) = (stations.mtu(), stations.via().word(), stations.address()?);
    let mut iohost = site.iohost_at(&stations.at(), "")?;
    // Of the clients only one could have a program on their interface.
    let here = Stations::HERE;
    let at = format!("interface = \"{here}\"\nmtu = {mtu}\niohosts = [\"{address}\"]");
    let clients = (0..CLIENTS).map(|one| site.client_at(&at, one, &[one], &[]));
    let clients: Vec<Daemon> = clients.collect::<Result<_>>()?;
    ensure_even(&await_places(&iohost)?)?;
    let mut random = Random(37);
    let tenants = clients.iter().enumerate().map(|(one, client)| tenant(client, one, None));
    let mut tenants: Vec<Tenant> =
        tenants.collect::<Result<_>>().with_context(|| said(&[&iohost]))?;
    let kills = if tests_all() { 3 } else { 1 };
    for _ in 0..kills {
        work(&mut tenants, &mut random, 500).with_context(|| said(&[&iohost]))?;
        iohost.kill()?;
        iohost.start_again()?;
        ensure_even(&await_places(&iohost)?).with_context(|| said(&[&iohost]))?;
    }
    work(&mut tenants, &mut random, 500).with_context(|| said(&[&iohost]))?;
    let done = finish(&mut tenants, &mut random)?;
    ensure_whole(&iohost, &clients)?;
    let sockets = link(&iohost)?["sockets"].clone();
    ensure!(sockets[0].as_str().is_some_and(|first| first.starts_with(via)), "{sockets}");
    println!(
        "remote: EtherType 0x88b5 by {sockets}, MTU {mtu}: {done} requests of {CLIENTS} clients on two sidecores, whose \
         daemon was killed {kills} times"
    );
    Ok(())
}
