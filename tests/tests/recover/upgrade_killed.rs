//! The daemon is killed in the middle of an upgrade, at each step of it: until it has said that nothing of
//! it is in flight its heir ends, and whoever is started next serves; from then on the heir serves. Nothing
//! is lost, and there is never more than one owner (reliability U2, docs/decisions/0009).

use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use testing::daemon::Daemon;
use testing::daemon::sidecore_binary;
use testing::frontend::{FrontendSpec, LINUX_FEATURES};
use testing::load::Random;
use testing::verified::Load;
use tests::link_site::free_port;
use tests::tenant::{Tenant, TenantSpec, work, work_until};
use virtqueue::Format;

const DISK_BYTES: u64 = 8 << 20;
const DISKS: &str = "[[disk]]\nid = \"disk\"\npath = \"disk.raw\"\nsize = \"8M\"\nqueues = 2\n";

/// The packet after which it is killed, and whether the heir serves then.
const STEPS: [(&str, bool); 12] = [
    ("hello", false),
    ("begin", false),
    ("device", false),
    ("link", false),
    ("told", false),
    ("estate", false),
    // It may have given its queues back by then, and must not have said so.
    ("ready", false),
    ("rings", false),
    ("flip", true),
    ("taken", true),
    ("yours", true),
    ("serving", true),
];

fn spec(format: Format) -> TenantSpec {
    TenantSpec::usual(format, 64 << 10)
}

/// Asks for an upgrade by the relay, again where the machine is too busy for one: what became of the heir.
fn relayed(daemon: &Daemon, tenant: &mut Tenant, random: &mut Random) -> Result<String> {
    let file = daemon.dir().join("relayed");
    loop {
        let mut call = daemon.call_upgrade()?;
        let became = work_until(tenant, random, "the relay", |_| {
            Ok(file.exists() || call.is_refused_for_now()?)
        });
        became.with_context(|| daemon.last_words())?;
        // Its operator was cut off, or was answered just before.
        if !call.was_refused_for_now()? {
            return Ok(std::fs::read_to_string(&file)?);
        }
        let _ = std::fs::remove_file(&file);
    }
}

/// One upgrade in whose midst the daemon is killed.
fn die_after(step: &str, heir_serves: bool, format: Format, random: &mut Random) -> Result<()> {
    let mut daemon = Daemon::with("upgrade-killed", DISKS).installed().start()?;
    let stream = daemon.connect("disk")?;
    let mut tenant = Tenant::over(stream, spec(format), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, random, 200)?;
    let before = daemon.pid();
    let program = sidecore_binary()?;
    std::fs::write(daemon.dir().join("relay"), format!("{step} {before} {}", program.display()))?;
    daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
    let outcome = relayed(&daemon, &mut tenant, random)?;
    match (outcome.split_once(' '), heir_serves) {
        (Some(("serves", pid)), true) => daemon.succeed(pid.parse()?)?,
        (None, false) if outcome == "ended" => {
            ensure!(UnixStream::connect(daemon.socket("disk")).is_err(), "somebody listens still");
            daemon.reap()?;
            daemon.start_again()?;
            tenant.reconnect(daemon.connect("disk")?)?;
        }
        _ => bail!("the heir: {outcome}\n{}", daemon.last_words()),
    }
    work(&mut tenant, random, 200)?;
    tenant.drain()?;
    tenant.compare_all(random)?;
    let counters = daemon.shown("disk", "counters")?;
    ensure!(counters["errors"] == 0 && counters["in_flight"] == 0, "{counters}");
    if heir_serves {
        // It is a whole daemon: another one takes over from it.
        daemon.install(None)?;
        daemon.upgrade()?;
        work(&mut tenant, random, 50)?;
        tenant.drain()?;
    }
    ensure!(daemon.pid() != before);
    drop(tenant);
    daemon.stop()
}

#[test]
fn a_daemon_that_is_killed_in_an_upgrade_leaves_one_owner_or_none_and_loses_nothing() -> Result<()>
{
    for (round, format) in [(1, Format::Split), (2, Format::Packed)] {
        for (step, heir_serves) in STEPS {
            let mut random = Random(round);
            die_after(step, heir_serves, format, &mut random)
                .with_context(|| format!("killed after {step:?}, {format:?}"))?;
        }
    }
    Ok(())
}

/// The process that took over dies on probation: the one before takes everything back, whatever was in flight
/// there. No front-end sees its connection end, and what a RAM disk held is still there.
#[test]
fn an_heir_that_dies_after_it_took_over_gives_everything_back() -> Result<()> {
    let more = "[[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"8M\"\n";
    let disks = DISKS.replace("queues = 2\n", "");
    for (number, step) in ["taken", "yours", "serving"].iter().cycle().take(6).enumerate() {
        let mut daemon =
            Daemon::with("upgrade-back", &format!("{disks}{more}")).installed().start()?;
        let format = if number < 3 { Format::Split } else { Format::Packed };
        let ring = spec(format).ring;
        let mut guests = Vec::new();
        for id in ["disk", "ram"] {
            let spec = FrontendSpec { ring, inflight: true, ..FrontendSpec::default() };
            let spec = FrontendSpec { features: LINUX_FEATURES, ..spec };
            let mut frontend = daemon.frontend(id, &spec)?;
            let (load, _) = Load::start(&mut frontend)?;
            load.await_requests(50)?;
            guests.push((load, frontend));
        }
        let task = format!("heir-{step} {} {}", daemon.pid(), sidecore_binary()?.display());
        std::fs::write(daemon.dir().join("relay"), task)?;
        daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
        // Not for the machine's sake: the heir came as far as it was to.
        let refused = daemon.refuses_upgrade("the new process t");
        refused.with_context(|| format!("{step}: {}", daemon.last_words()))?;
        daemon.is_alive().context(*step)?;
        for (load, _) in &guests {
            load.await_requests(100).with_context(|| format!("{step}: {}", daemon.last_words()))?;
        }
        daemon.install(None)?;
        daemon.upgrade().with_context(|| format!("after {step}"))?;
        for (load, _frontend) in guests {
            load.await_requests(50)?;
            load.finish()?;
        }
        for id in ["disk", "ram"] {
            let counters = daemon.shown(id, "counters")?;
            ensure!(counters["errors"] == 0 && counters["in_flight"] == 0, "{step}: {counters}");
        }
        daemon.stop()?;
    }
    Ok(())
}

/// The next version may write a format that this one does not read, and the other way round: the two speak the best one
/// that both know. Forth to a version that knows only the first format, and back.
#[test]
fn a_version_that_reads_only_an_older_format_takes_over_and_hands_over_again() -> Result<()> {
    let config =
        format!("{DISKS}[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"nic\"\nswitch = \"lan\"\n");
    for format in [Format::Split, Format::Packed] {
        let mut random = Random(7);
        let mut daemon = Daemon::with("upgrade-older", &config).installed().start()?;
        let stream = daemon.connect("disk")?;
        let mut tenant = Tenant::over(stream, spec(format), Tenant::blank(DISK_BYTES))?;
        work(&mut tenant, &mut random, 200)?;
        let task = format!("older {} {}", daemon.pid(), sidecore_binary()?.display());
        std::fs::write(daemon.dir().join("relay"), task)?;
        daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
        let outcome = relayed(&daemon, &mut tenant, &mut random)?;
        let Some(("serves", pid)) = outcome.split_once(' ') else {
            bail!("the heir: {outcome}\n{}", daemon.last_words());
        };
        daemon.succeed(pid.parse()?)?;
        work(&mut tenant, &mut random, 200)?;
        // The program that it was started as is the real one.
        daemon.upgrade()?;
        work(&mut tenant, &mut random, 200)?;
        tenant.drain()?;
        tenant.compare_all(&mut random)?;
        let counters = daemon.shown("disk", "counters")?;
        ensure!(counters["errors"] == 0 && counters["requests"] == tenant.done, "{counters}");
        drop(tenant);
        daemon.stop()?;
    }
    Ok(())
}

/// What the older format has no words for is not dropped.
#[test]
fn links_are_not_handed_to_a_version_that_knows_none() -> Result<()> {
    let port = free_port()?;
    let link = format!(
        "[[link]]\nid = \"rack\"\nrole = \"iohost\"\nudp = \"127.0.0.1:{port}\"\nsecurity = \"none\"\n\
         [[link.client]]\nname = \"other\"\ndisks = [\"disk\"]\n"
    );
    let mut daemon =
        Daemon::with("upgrade-links", &format!("{DISKS}{link}")).installed().start()?;
    let task = format!("older {} {}", daemon.pid(), sidecore_binary()?.display());
    std::fs::write(daemon.dir().join("relay"), task)?;
    daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
    daemon.refuses_upgrade("knows no links that are handed over: restart the daemon")?;
    daemon.is_alive()?;
    ensure!(daemon.ask("remote status")?["links"][0]["problem"].is_null(), "the link is gone");
    daemon.stop()
}

/// By then it has the API's socket, its thread, and all connections.
#[test]
fn an_heir_that_refuses_at_the_last_moment_takes_nothing_away() -> Result<()> {
    let mut daemon = Daemon::with("upgrade-spoiled", DISKS).installed().start()?;
    let stream = daemon.connect("disk")?;
    let mut random = Random(1);
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 50)?;
    let task = format!("spoil-rings {} {}", daemon.pid(), sidecore_binary()?.display());
    std::fs::write(daemon.dir().join("relay"), task)?;
    daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
    daemon.refuses_upgrade("a packet that makes no sense")?;
    daemon.is_alive()?;
    // The same connection, and the API's socket.
    work(&mut tenant, &mut random, 50)?;
    let counters = daemon.shown("disk", "counters")?;
    ensure!(counters["errors"] == 0, "{counters}");
    daemon.install(None)?;
    daemon.upgrade()?;
    work(&mut tenant, &mut random, 50)?;
    tenant.drain()?;
    drop(tenant);
    daemon.stop()
}

#[test]
fn an_heir_that_cannot_serve_a_device_leaves_its_socket_where_it_is() -> Result<()> {
    let mut daemon = Daemon::with("upgrade-swapped", DISKS).installed().start()?;
    let task = format!("swap-listener {} {}", daemon.pid(), sidecore_binary()?.display());
    std::fs::write(daemon.dir().join("relay"), task)?;
    daemon.install(Some(Path::new(env!("CARGO_BIN_EXE_relay_heir"))))?;
    let said = daemon.refuses_upgrade("disk \"disk\"")?;
    ensure!(said.contains("its socket"), "{said}");
    daemon.is_alive()?;
    let stream = daemon.connect("disk").context("its socket is gone")?;
    let mut random = Random(1);
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    work(&mut tenant, &mut random, 50)?;
    tenant.drain()?;
    drop(tenant);
    daemon.stop()
}

/// A package may put a new program in place just when an heir has started from the old one: what the heir
/// starts in its turn is not at the name it was started by.
#[test]
fn a_program_replaced_while_it_starts_can_be_upgraded() -> Result<()> {
    replaced("$PWD/sidecore")
}

/// The same where it was found along `PATH`, so that only the kernel knows its name.
#[test]
fn a_program_of_the_path_replaced_while_it_starts_can_be_upgraded() -> Result<()> {
    replaced("sidecore")
}

fn replaced(name: &str) -> Result<()> {
    let copy = format!(
        "cp \"$1\" sidecore && exec 3<sidecore && rm sidecore && shift && \
         exec -a \"{name}\" /proc/self/fd/3 \"$@\""
    );
    let config = Daemon::with("upgrade-replaced", DISKS);
    let mut daemon = config.through(&["bash", "-c", &copy, "bash"]).start()?;
    let program = std::fs::read_link(format!("/proc/{}/exe", daemon.pid()))?;
    let is_gone = program.to_string_lossy().ends_with("sidecore (deleted)");
    ensure!(is_gone, "it is {}", program.display());
    daemon.install(None)?;
    let stream = daemon.connect("disk")?;
    let mut random = Random(1);
    let mut tenant = Tenant::over(stream, spec(Format::Split), Tenant::blank(DISK_BYTES))?;
    for _ in 0..2 {
        work(&mut tenant, &mut random, 50)?;
        daemon.upgrade()?;
    }
    work(&mut tenant, &mut random, 50)?;
    tenant.drain()?;
    drop(tenant);
    daemon.stop()
}
