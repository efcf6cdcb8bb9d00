//! Daemons with links are replaced by others under load: the IOhost's, and the client's. Nothing fails, nothing is lost, and
//! what was executed is not executed again when it may not be; whoever judges that is the guest's ledger.
//!
//! `REMOTE_UPGRADES` says how often each is replaced (2 unless told).
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testing::clock::now_ns;
use testing::daemon::{Daemon, await_that, await_within, sidecore_binary};
use testing::frontend::{Frontend, FrontendSpec};
use testing::load::Random;
use testing::slots::{Kind, STATUS_OK};
use testing::timing::often;
use testing::wire::{Bad, Wire};
use tests::link_site::{Site, free_port, plain};
use tests::single::Single;
use tests::tenant::{DEPTH, Tenant, TenantSpec};
use virtqueue::Format;

const DISK_BYTES: u64 = 16 << 20;
const WITHIN: Duration = Duration::from_secs(90);

fn spec(format: Format) -> TenantSpec {
    TenantSpec::usual(format, 256 << 10)
}

fn site(name: &str) -> Result<Site> {
    Site::new(Path::new(env!("CARGO_TARGET_TMPDIR")), name)
}

/// The guest works until `is_over`, and for `more` requests: its longest wait for a request to end, nanoseconds.
fn work(
    tenant: &mut Tenant,
    random: &mut Random,
    more: u64,
    is_over: impl Fn() -> bool,
) -> Result<u64> {
    let (start, mut last, mut longest) = (now_ns(), now_ns(), 0);
    let mut until = None;
    loop {
        if until.is_none() && is_over() {
            until = Some(tenant.done + more);
        }
        if until.is_some_and(|until| tenant.done >= until) {
            return Ok(longest);
        }
        tenant.send(DEPTH, random)?;
        match tenant.take()? {
            0 => tenant.rest()?,
            _ => {
                let now = now_ns();
                longest = longest.max(now - last);
                last = now;
            }
        }
        ensure!(
            now_ns() - start < 120_000_000_000,
            "waited in vain: {} in flight",
            tenant.in_flight()
        );
    }
}

/// Another process takes over while the guest works: the longest wait of it.
fn upgrade(daemon: &mut Daemon, tenant: &mut Tenant, random: &mut Random) -> Result<u64> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let upgraded = scope.spawn(|| {
            let upgraded = daemon.upgrade();
            is_over.store(true, Ordering::Release);
            upgraded
        });
        let longest = work(tenant, random, 300, || is_over.load(Ordering::Acquire));
        upgraded.join().map_err(|_| anyhow!("it panicked"))??;
        longest
    })
}

fn said(daemons: [&Daemon; 2]) -> String {
    daemons.map(|daemon| daemon.last_words()).join("\n--\n")
}

/// Sorted, for people: the middle one and the longest, ms.
fn show(mut waits: Vec<u64>) -> String {
    waits.sort_unstable();
    let ms = |ns: Option<&u64>| ns.map_or(0.0, |ns| *ns as f64 / 1e6);
    format!("p50 {:.1} ms, max {:.1} ms", ms(waits.get(waits.len() / 2)), ms(waits.last()))
}

/// Sessions that the IOhost shows.
fn ways(iohost: &Daemon) -> Result<usize> {
    let status = iohost.ask("remote status")?;
    Ok(status["links"][0]["ways"].as_array().map_or(0, Vec::len))
}

/// Both daemons, a wire that loses between them, and a guest; `what` is replaced again and again.
fn replace(name: &str, files: [String; 2], ports: [u16; 2], whose: [bool; 2]) -> Result<()> {
    let [iohost_file, client_file] = files;
    let [wire_port, port] = ports;
    let mut iohost = Daemon::with(&format!("{name}-iohost"), &iohost_file).cpus("0-1").start()?;
    let mut client = Daemon::with(&format!("{name}-client"), &client_file).cpus("1").start()?;
    let bad = Bad { loss_percent: 1, double_percent: 1, delay_us: 200 };
    let wire = Wire::lay(env!("CARGO_BIN_EXE_bad_wire"), wire_port, port, 31, bad)?;
    let mut random = Random(31);
    let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 300, || true).with_context(|| said([&iohost, &client]))?;
    let (mut waits, mut usual) = (Vec::new(), Vec::new());
    let upgrades = often("REMOTE_UPGRADES", [2, 100])?;
    for round in 0..upgrades {
        usual.push(work(&mut tenant, &mut random, 300, || true)?);
        let both = whose[0] && whose[1];
        let daemon = if whose[0] && (!both || round % 2 == 0) { &mut iohost } else { &mut client };
        let wait = upgrade(daemon, &mut tenant, &mut random);
        waits.push(wait.with_context(|| said([&iohost, &client]))?);
    }
    tenant.drain().with_context(|| said([&iohost, &client]))?;
    tenant.compare_all(&mut random)?;
    let errors = client.shown("root", "counters")?["errors"].clone();
    ensure!(errors == 0, "{errors} errors");
    // Nobody keeps what a session of before was.
    await_that("one session", || Ok(ways(&iohost)? == 1))?;
    println!(
        "remote: {name}: {upgrades} upgrades, {} requests, 0 errors; a request waited {} (between: {}); {}",
        tenant.done,
        show(waits),
        show(usual),
        wire.end()?
    );
    drop(tenant);
    client.stop()?;
    iohost.stop()
}

#[test]
fn an_iohost_is_replaced_under_load() -> Result<()> {
    let (port, wire) = (free_port()?, free_port()?);
    let site = site("remote-upgrade-iohost")?;
    let files = [site.iohost(port).replace("lease_s = 1", "lease_s = 20"), site.client(&[wire])];
    replace("upgrade-iohost", files, [wire, port], [true, false])
}

/// Of a RAM disk, whose contents are the daemon's, and without keys.
#[test]
fn an_iohost_with_a_ram_disk_and_no_keys_is_replaced_under_load() -> Result<()> {
    let (port, wire) = (free_port()?, free_port()?);
    let site = site("remote-upgrade-plain")?;
    let path = format!("path = \"{}\"", site.image().display());
    let iohost = plain(&site.iohost(port)).replace(&path, "backend = \"memory\"\nsize = \"16M\"");
    let files = [iohost, plain(&site.client(&[wire]))];
    replace("upgrade-plain", files, [wire, port], [true, false])
}

#[test]
fn a_client_is_replaced_under_load() -> Result<()> {
    let (port, wire) = (free_port()?, free_port()?);
    let site = site("remote-upgrade-client")?;
    // Long leases: whoever waited for one would be noticed.
    let files = [site.iohost(port).replace("lease_s = 1", "lease_s = 60"), site.client(&[wire])];
    replace("upgrade-client", files, [wire, port], [false, true])
}

#[test]
fn both_are_replaced_in_turn() -> Result<()> {
    let (port, wire) = (free_port()?, free_port()?);
    let site = site("remote-upgrade-both")?;
    // Copies of 32 MiB: what was not flushed goes over with the client.
    let client = format!("{}keep = \"32M\"\n", site.client(&[wire]));
    let files = [site.iohost(port).replace("lease_s = 1", "lease_s = 60"), client];
    replace("upgrade-both", files, [wire, port], [true, true])
}

/// How far each heir gets.
const BAD: [&str; 6] = [
    "end",
    "hello estate end",
    "hello estate refuse end",
    "hello estate ready end",
    "hello estate ready flip end",
    "hello estate ready flip refuse end",
];

/// Has an upgrade refused while a guest is at work.
fn refused(daemon: &Daemon, tenant: &mut Tenant, random: &mut Random) -> Result<()> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let refused = daemon.refuses("upgrade");
            is_over.store(true, Ordering::Release);
            refused
        });
        work(tenant, random, 100, || is_over.load(Ordering::Acquire))?;
        refused.join().map_err(|_| anyhow!("it panicked"))??;
        Ok(())
    })
}

/// Whoever cannot take over leaves both ends of the link as they were, and so does one that dies when it has.
#[test]
fn an_heir_that_fails_leaves_links_as_they_were() -> Result<()> {
    let port = free_port()?;
    let site = site("remote-upgrade-bad")?;
    let installed = |name: &str, cpu: &str, file: &str| {
        Daemon::with(name, file).sidecores(&format!("cpus = \"{cpu}\"")).installed().start()
    };
    let mut iohost = installed("upgrade-bad-iohost", "0", &site.iohost(port))?;
    let mut client = installed("upgrade-bad-client", "1", &site.client(&[port]))?;
    let mut random = Random(37);
    let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
    let mut tenant = Tenant::over(stream, spec(Format::Packed), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 300, || true)?;
    for steps in BAD {
        for is_iohost in [true, false] {
            let daemon = if is_iohost { &mut iohost } else { &mut client };
            daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_bad_heir"))))?;
            std::fs::write(daemon.dir().join("bad_heir"), steps)?;
            refused(daemon, &mut tenant, &mut random)
                .with_context(|| format!("after {steps:?}: {}", said([&iohost, &client])))?;
        }
    }
    for is_iohost in [true, false, true, false] {
        let daemon = if is_iohost { &mut iohost } else { &mut client };
        let task = format!("heir-taken {} {}", daemon.pid(), sidecore_binary()?.display());
        std::fs::write(daemon.dir().join("relay"), task)?;
        daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
        refused(daemon, &mut tenant, &mut random)
            .with_context(|| format!("taken back: {}", said([&iohost, &client])))?;
        let daemon = if is_iohost { &mut iohost } else { &mut client };
        daemon.is_alive()?;
        // By then it may be the other's already, or just not: what is told of that differs.
        let words = daemon.last_words();
        let goes_on = ["its devices are taken back", "the upgrade is given up"];
        ensure!(goes_on.iter().any(|told| words.contains(told)), "{words}");
    }
    for daemon in [&mut iohost, &mut client] {
        daemon.is_alive()?;
        daemon.install(None)?;
    }
    upgrade(&mut iohost, &mut tenant, &mut random)?;
    upgrade(&mut client, &mut tenant, &mut random)?;
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    ensure!(client.shown("root", "counters")?["errors"] == 0);
    println!("remote: {} heirs failed, {} requests, 0 errors", 2 * BAD.len(), tenant.done);
    drop(tenant);
    client.stop()?;
    iohost.stop()
}

/// The file names another address by then: nobody is heard at the one before, and the client finds the new one.
#[test]
fn an_address_that_has_changed_is_that_of_the_process_that_takes_over() -> Result<()> {
    let site = site("upgrade-moved")?;
    let port = free_port()?;
    let [before, after] = ["127.0.0.1", "127.0.0.2"].map(|ip| format!("{ip}:{port}"));
    let mut iohost = Daemon::start("upgrade-moved-iohost", &site.iohost(port))?;
    let both = format!("\"{before}\", \"{after}\"");
    let text = site.client(&[port]).replace(&format!("\"{before}\""), &both);
    let client = Daemon::with("upgrade-moved-client", &text).cpus("1").start()?;
    let mut guest = client.frontend("root", &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    let write = |guest: &mut Frontend| single.send(guest.queue(0), Kind::Write, 5);
    ensure!(write(&mut guest)?.status == STATUS_OK, "{}", said([&iohost, &client]));
    let file = iohost.dir().join("sidecore.toml");
    std::fs::write(&file, std::fs::read_to_string(&file)?.replace(&before, &after))?;
    iohost.upgrade()?;
    let ended = write(&mut guest).with_context(|| said([&iohost, &client]))?;
    ensure!(ended.status == STATUS_OK, "{}", said([&iohost, &client]));
    let link = client.ask("remote status")?["links"][0].clone();
    ensure!(link["peer"] == after.as_str(), "{link}");
    // Nor does anybody have the former one.
    drop(std::net::UdpSocket::bind(&before).context("it is still had")?);
    Ok(())
}

/// What no process could open is no file for an upgrade, nor for a reload: the daemon goes on as it was.
#[test]
fn a_link_that_cannot_be_opened_is_refused() -> Result<()> {
    let site = site("upgrade-nowhere")?;
    let port = free_port()?;
    let iohost = Daemon::start("upgrade-nowhere-iohost", &site.iohost(port))?;
    let client = Daemon::with("upgrade-nowhere-client", &site.client(&[port])).cpus("1").start()?;
    let mut guest = client.frontend("root", &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    let file = iohost.dir().join("sidecore.toml");
    let good = std::fs::read_to_string(&file)?;
    // Of a documentation's network: no machine has it.
    std::fs::write(&file, good.replace("127.0.0.1:", "192.0.2.1:"))?;
    iohost.refuses_upgrade("no interface has this address")?;
    let key = site.folder().join("iohost.key").display().to_string();
    std::fs::write(&file, good.replace(&key, &format!("{key}.gone")))?;
    let refused = iohost.refuses("reload")?;
    ensure!(refused.contains("its key file"), "{refused}");
    iohost.refuses_upgrade("its key file")?;
    for kind in [Kind::Write, Kind::Read] {
        let ended = single.send(guest.queue(0), kind, 5)?;
        ensure!(ended.status == STATUS_OK, "{}", said([&iohost, &client]));
    }
    Ok(())
}

/// The end of a client, and of an IOhost, is known at once to the other one: not when a lease of ten minutes is over, nor
/// when an eighth of it has passed and the other end is asked whether it lives.
#[test]
fn who_stops_says_goodbye() -> Result<()> {
    let port = free_port()?;
    let site = site("remote-goodbye")?;
    let file = site.iohost(port).replace("lease_s = 1", "lease_s = 600");
    let mut iohost = Daemon::start("goodbye-iohost", &file)?;
    let mut client = Daemon::with("goodbye-client", &site.client(&[port])).cpus("1").start()?;
    client.connect("root")?;
    await_that("a session", || Ok(ways(&iohost)? == 1))?;
    client.stop()?;
    await_that("its end", || Ok(ways(&iohost)? == 0))?;
    client.start_again()?;
    client.connect("root")?;
    let is_up =
        |client: &Daemon| Ok(client.ask("remote status")?["links"][0]["ways"][0].is_object());
    await_that("a session", || is_up(&client))?;
    iohost.stop()?;
    await_that("a word about its IOhost", || {
        Ok(client.last_words().contains("its IOhost is silent"))
    })
}

/// A reload gives clients disks and takes them away, and who has others goes on.
#[test]
fn a_reload_gives_clients_disks_and_takes_them_away() -> Result<()> {
    let port = free_port()?;
    let site = site("remote-reload")?;
    let other = "[[disk]]\nid = \"more\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let with = format!("{other}{}", site.iohost(port).replace("[\"db\"]", "[\"db\", \"more\"]"));
    let iohost = Daemon::with("reload-iohost", &site.iohost(port)).cpus("0-1").start()?;
    let second = "[[disk]]\nid = \"second\"\nlink = \"rack\"\nremote = \"more\"\n";
    let client = Daemon::with("reload-client", &format!("{second}{}", site.client(&[port])))
        .cpus("1")
        .start()?;
    let mut random = Random(43);
    let stream = client.connect("root").with_context(|| said([&iohost, &client]))?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 300, || true)?;
    ensure!(!client.socket("second").exists(), "it is there before it is given");
    for round in 0..3 {
        iohost.configure(&with)?;
        let done = iohost.ask("reload --force")?;
        ensure!(!done["restart_needed"].to_string().contains("link"), "{done}");
        let guest = client.frontend("second", &FrontendSpec::default());
        let mut guest = guest.with_context(|| said([&iohost, &client]))?;
        work(&mut tenant, &mut random, 100, || true)
            .with_context(|| format!("given, round {round}: {}", said([&iohost, &client])))?;
        let single = Single::new(&mut guest)?;
        let mut ask = |kind| -> Result<u8> {
            let ended = single.send(guest.queue(0), kind, 5);
            let ended = ended.with_context(|| format!("round {round}, {kind:?}"));
            Ok(ended.with_context(|| said([&iohost, &client]))?.status)
        };
        ensure!(ask(Kind::Write)? == STATUS_OK, "round {round}");
        // It is taken from who has it, who hears of that; all else goes on.
        iohost.configure(&site.iohost(port))?;
        iohost.ask("reload --force").with_context(|| iohost.last_words())?;
        await_that("the client to be told", || {
            let problem = client.shown("second", "problem")?;
            Ok(problem.as_str().is_some_and(|text| text.contains("has given it up")))
        })?;
        ensure!(ask(Kind::Read)? != STATUS_OK, "round {round}");
        work(&mut tenant, &mut random, 100, || true)
            .with_context(|| format!("taken, round {round}: {}", said([&iohost, &client])))?;
        guest.disconnect()?;
        await_that("it to be gone", || Ok(iohost.refuses("show more").is_ok()))?;
    }
    // A client that may have nothing any more, and then is there again.
    tenant.drain()?;
    let none = site.iohost(port).replace("disks = [\"db\"]", "disks = []");
    iohost.configure(&none)?;
    iohost.ask("reload --force").with_context(|| iohost.last_words())?;
    await_that("the image to have a socket", || Ok(iohost.socket("db").exists()))?;
    // One that is given again before it was let go stays with its guest.
    let is_told = |words: &str| {
        let told = await_that(&format!("its guest to be told: {words}"), || {
            let problem = client.shown("root", "problem")?;
            Ok(problem.as_str().is_some_and(|text| text.contains(words)))
        });
        told.with_context(|| format!("{:?}: {}", client.ask("show root"), said([&iohost, &client])))
    };
    is_told("has given it up")?;
    iohost.configure(&site.iohost(port))?;
    iohost.ask("reload --force").with_context(|| iohost.last_words())?;
    is_told("and has it again")?;
    drop(tenant);
    await_that("its guest to be gone", || Ok(client.shown("root", "problem")?.is_null()))?;
    let mut guest = client.frontend("root", &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    ensure!(single.send(guest.queue(0), Kind::Read, 5)?.status == STATUS_OK);
    guest.disconnect()
}

/// State and reason of a client's disk, which are the same wherever one looks.
fn told_of(client: &Daemon, id: &str) -> Result<(String, String)> {
    let own = || -> Result<[serde_json::Value; 2]> {
        let shown = client.ask(&format!("show {id}"))?;
        Ok(["state", "problem"].map(|field| shown[field].clone()))
    };
    // The four are asked one after another: what changed meanwhile is asked again.
    let mut before = own()?;
    loop {
        let told = told_elsewhere(client, id, &before);
        let after = own()?;
        if before == after {
            told?;
            return Ok(before.map(|field| field.as_str().unwrap_or("").to_string()).into());
        }
        before = after;
    }
}

/// Fails if the list, the link or `doctor` says otherwise of a disk.
fn told_elsewhere(client: &Daemon, id: &str, own: &[serde_json::Value; 2]) -> Result<()> {
    let [state, problem] = own;
    let list = client.ask("ls")?;
    let listed = list["disks"].as_array().into_iter().flatten().find(|disk| disk["id"] == id);
    let listed = listed.context("it is listed")?;
    ensure!(listed["state"] == *state && listed["problem"] == *problem, "{list}");
    let link = client.ask("remote status")?["links"][0]["disks"].clone();
    let of_link = link.as_array().into_iter().flatten().find(|disk| disk["id"] == id);
    ensure!(of_link.is_some_and(|disk| disk["problem"] == *problem), "{link}");
    let problem = problem.as_str().unwrap_or("");
    ensure!(problem.is_empty() || client.says("doctor")?.contains(problem), "doctor: {problem}");
    Ok(())
}

/// What an IOhost has given up is shown as that for as long as requests fail, whoever of the two is started anew or replaced
/// meanwhile; and then as what another guest waits for.
#[test]
fn what_was_given_up_fails_until_another_guest_comes_and_is_shown_so() -> Result<()> {
    let port = free_port()?;
    let site = site("remote-given-up")?;
    let other = "[[disk]]\nid = \"more\"\nbackend = \"memory\"\nsize = \"1M\"\n";
    let with = format!("{other}{}", site.iohost(port).replace("[\"db\"]", "[\"db\", \"more\"]"));
    let mut iohost = Daemon::with("given-up-iohost", &with).cpus("0-1").start()?;
    let second = "[[disk]]\nid = \"second\"\nlink = \"rack\"\nremote = \"more\"\n";
    let file = format!("{second}{}", site.client(&[port]));
    let mut client = Daemon::with("given-up-client", &file).cpus("1").start()?;
    let guest = client.frontend("second", &FrontendSpec::default());
    let mut guest = guest.with_context(|| said([&iohost, &client]))?;
    let single = Single::new(&mut guest)?;
    let mut ask = |kind| Ok::<u8, anyhow::Error>(single.send(guest.queue(0), kind, 5)?.status);
    ensure!(ask(Kind::Write)? == STATUS_OK);
    ensure!(told_of(&client, "second")? == ("running".to_string(), String::new()));
    iohost.configure(&site.iohost(port))?;
    iohost.ask("reload --force").with_context(|| iohost.last_words())?;
    let fails = |client: &Daemon, why: &str| {
        let (state, problem) = told_of(client, "second")?;
        Ok(state == "failed" && problem.contains(why))
    };
    await_that("the client to be told", || fails(&client, "has given it up"))?;
    ensure!(client.last_words().contains("has given it up"), "{}", client.last_words());
    ensure!(ask(Kind::Read)? != STATUS_OK);
    // While the IOhost is away, and when it is there again.
    iohost.kill()?;
    await_that("its silence", || Ok(client.last_words().contains("its IOhost is silent")))?;
    ensure!(fails(&client, "has given it up")?, "{:?}", told_of(&client, "second")?);
    ensure!(ask(Kind::Read)? != STATUS_OK);
    iohost.start_again()?;
    let is_up =
        |client: &Daemon| Ok(client.ask("remote status")?["links"][0]["ways"][0].is_object());
    await_that("a session", || is_up(&client))?;
    testing::daemon::pause(Duration::from_secs(2));
    ensure!(fails(&client, "has given it up")?, "{:?}", told_of(&client, "second")?);
    ensure!(ask(Kind::Read)? != STATUS_OK);
    // A client that is replaced has the same guest.
    client.upgrade().with_context(|| client.last_words())?;
    await_that("a session", || is_up(&client))?;
    await_that("the new one to know", || fails(&client, "restart its guest"))?;
    ensure!(ask(Kind::Read)? != STATUS_OK);
    // It goes, and nobody but the next one can tell: the next one waits.
    guest.disconnect()?;
    let waits = |client: &Daemon| {
        let (state, problem) = told_of(client, "second")?;
        Ok(state == "waiting" && problem.contains("no such disk for this machine"))
    };
    let guest = client.frontend("second", &FrontendSpec::default())?;
    await_that("the next one to wait", || waits(&client))?;
    drop(guest);
    testing::daemon::pause(Duration::from_secs(1));
    ensure!(waits(&client)?, "without a guest: {:?}", told_of(&client, "second")?);
    // Started anew the client has asked nobody.
    client.kill()?;
    client.start_again()?;
    await_that("the answer", || {
        let problem = client.shown("second", "problem")?;
        Ok(problem.as_str().is_some_and(|why| why.contains("no such disk for this machine")))
    })?;
    ensure!(client.shown("second", "state")? == "waiting");
    // The name of a process that was killed is left.
    ensure!(UnixStream::connect(client.socket("second")).is_err(), "a guest could come");
    iohost.configure(&with)?;
    iohost.ask("reload --force").with_context(|| iohost.last_words())?;
    let mut guest = client.frontend("second", &FrontendSpec::default())?;
    let single = Single::new(&mut guest)?;
    ensure!(single.send(guest.queue(0), Kind::Read, 5)?.status == STATUS_OK);
    guest.disconnect()
}

/// A client whose daemon is stopped for good while its IOhost is replaced leaves nothing behind there.
/// For how long a client that is silent keeps its disk, seconds.
const LEASE_S: u64 = 10;

#[test]
fn a_disk_whose_client_does_not_come_back_is_let_go() -> Result<()> {
    let port = free_port()?;
    let site = site("remote-upgrade-gone")?;
    let file = site.iohost(port).replace("[[link]]", "migratable = true\n[[link]]");
    let file = file.replace("lease_s = 1", &format!("lease_s = {LEASE_S}"));
    let mut iohost = Daemon::start("upgrade-gone-iohost", &file)?;
    let mut client =
        Daemon::with("upgrade-gone-client", &site.client(&[port])).cpus("1").start()?;
    let mut random = Random(41);
    let stream = client.connect("root")?;
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 300, || true)?;
    tenant.drain()?;
    let killed_ns = now_ns();
    client.kill()?;
    iohost.upgrade()?;
    let is_locked = iohost.shown("db", "locked")? == true;
    // A busy machine may take longer than the lease.
    let is_over = now_ns() - killed_ns >= LEASE_S * 1_000_000_000;
    ensure!(is_locked || is_over, "its image is let go at once");
    await_within(3 * WITHIN, "the image to be let go", || {
        Ok(iohost.shown("db", "locked")? == false)
    })?;
    // And it is there for who comes then.
    client.start_again()?;
    tenant.reconnect(client.connect("root")?)?;
    work(&mut tenant, &mut random, 300, || true).with_context(|| said([&iohost, &client]))?;
    tenant.drain()?;
    tenant.compare_all(&mut random)?;
    Ok(())
}
