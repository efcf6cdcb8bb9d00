//! Heirs that cannot take over, or do not: the daemon goes on, and no guest notices (reliability O12, U2).

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::verified::Load;

const DISKS: &str = "\
[[disk]]\nid = \"memory\"\nbackend = \"memory\"\nsize = \"4M\"\n\
[[disk]]\nid = \"file\"\npath = \"file.raw\"\nsize = \"4M\"\n";
const NAMES: [&str; 2] = ["memory", "file"];
/// How far each gets, and what the operator reads.
const BAD: [(&str, &str); 14] = [
    ("end", "the new process has ended"),
    ("junk", "the new process"),
    ("stay", "the new process said nothing in time"),
    ("other-format", "reads estates of formats [98, 99]"),
    ("hello end", "the new process"),
    ("hello one end", "the new process"),
    ("hello estate end", "the new process has ended"),
    ("hello estate junk", "the new process"),
    ("hello estate refuse end", "it does not feel like it"),
    ("hello estate stay", "did not answer in time"),
    ("hello estate ready end", "the new process"),
    ("hello estate ready flip end", "the new process"),
    ("hello estate ready flip stay", "did not answer in time"),
    ("hello estate ready flip refuse end", "it does not feel like it"),
];

fn spec() -> FrontendSpec {
    FrontendSpec { inflight: true, ..FrontendSpec::linux() }
}

fn loads(daemon: &Daemon) -> Result<Vec<(Load, testing::frontend::Frontend)>> {
    let start = |name: &&str| -> Result<_> {
        let mut frontend = daemon.frontend(name, &spec())?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(10)?;
        Ok((load, frontend))
    };
    NAMES.iter().map(start).collect()
}

/// What a reload would not open, an heir could not either.
fn refuses_what_cannot_be_opened(daemon: &Daemon) -> Result<()> {
    for (more, words) in [
        ("[[disk]]\nid = \"new\"\npath = \"nothing.raw\"\n", "nothing.raw"),
        ("[[switch]]\nid = \"s\"\n[[switch.uplink]]\ninterface = \"nothing7\"\n", "nothing7"),
    ] {
        daemon.configure(&format!("{DISKS}{more}"))?;
        let said = daemon.refuses_upgrade(words)?;
        ensure!(said.contains("not replaced"), "{said}");
        ensure!(daemon.refuses("reload")?.contains(words));
    }
    daemon.configure(DISKS)
}

#[test]
fn an_heir_that_fails_anywhere_leaves_the_daemon_as_it_was() -> Result<()> {
    let mut daemon = Daemon::with("upgrade-refused", DISKS).installed().start()?;
    let loads = loads(&daemon)?;
    let pid = daemon.pid();
    let bad = Path::new(env!("CARGO_BIN_EXE_bad_heir"));
    for (steps, says) in BAD {
        daemon.install(Some(bad))?;
        std::fs::write(daemon.dir().join("bad_heir"), steps)?;
        daemon.refuses_upgrade(says).with_context(|| format!("after {steps:?}"))?;
        daemon.is_alive()?;
        for (load, _) in &loads {
            load.await_requests(50).with_context(|| format!("after {steps:?}"))?;
        }
    }
    // A daemon that stood still hears what was said meanwhile: it is not the heir that was late.
    std::fs::write(
        daemon.dir().join("bad_heir"),
        format!("halt:{pid} hello wait resume:{pid} estate end"),
    )?;
    daemon.refuses_upgrade("the new process has ended")?;
    // No such program, and one that cannot be run.
    for text in [None, Some("no program")] {
        match text {
            None => std::fs::remove_file(daemon.dir().join("sidecore"))?,
            Some(text) => std::fs::write(daemon.dir().join("sidecore"), text)?,
        }
        daemon.refuses_upgrade("cannot be started")?;
    }
    ensure!(daemon.pid() == pid);
    // The configuration that it would serve is wrong.
    daemon.install(None)?;
    daemon.configure(&format!("{DISKS}[[disk]]\nid = \"file\"\n"))?;
    let said = daemon.refuses_upgrade("the disk has no back-end")?;
    ensure!(said.contains("not replaced"), "{said}");
    refuses_what_cannot_be_opened(&daemon)?;
    // What is kept is where it is.
    let file = daemon.dir().join("sidecore.toml");
    let text = std::fs::read_to_string(&file)?;
    for (field, other) in [
        ("state_dir", text.replace("\"state\"", "\"elsewhere\"")),
        ("api", text.replace("\"api.sock\"", "\"elsewhere.sock\"")),
    ] {
        ensure!(text != other);
        std::fs::write(&file, other)?;
        let expected = format!("another `{field}` takes a restart of the daemon: the file has ");
        let said = daemon.refuses_upgrade(&expected)?;
        ensure!(said.contains("/elsewhere"), "{said}");
        ensure!(!daemon.dir().join("elsewhere").exists());
    }
    std::fs::write(&file, text)?;
    daemon.upgrade()?;
    // The lock of that folder was handed over: there is no moment without it.
    let own = format!("process {}, whose `api` is ", daemon.pid());
    let lock = daemon.dir().join("state/lock");
    let holder = std::fs::read_to_string(&lock)?;
    ensure!(holder.starts_with(&own), "{holder}");
    let lock = std::fs::File::open(&lock)?;
    let taken = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    ensure!(taken == Err(rustix::io::Errno::AGAIN), "{taken:?}");
    for (load, _) in &loads {
        load.await_requests(50)?;
    }
    for (load, _frontend) in loads {
        load.finish()?;
    }
    for name in NAMES {
        ensure!(daemon.shown(name, "counters")?["errors"] == 0);
    }
    daemon.stop()
}

#[test]
fn descriptors_and_mappings_do_not_grow() -> Result<()> {
    let mut daemon = Daemon::start("upgrade-leak", DISKS)?;
    let loads = loads(&daemon)?;
    daemon.upgrade()?;
    let count = |daemon: &Daemon| -> Result<[usize; 2]> {
        Ok([daemon.descriptors()?, daemon.mappings()?.lines().count()])
    };
    let [fds, maps] = count(&daemon)?;
    for _ in 0..10 {
        daemon.upgrade()?;
        loads.iter().try_for_each(|(load, _)| load.await_requests(20))?;
    }
    let [fds_after, maps_after] = count(&daemon)?;
    daemon.await_descriptors(fds + 1).with_context(|| format!("it had {fds}, and {fds_after}"))?;
    ensure!(maps_after <= maps + 40, "{maps} mappings became {maps_after}");
    for (load, _frontend) in loads {
        load.finish()?;
    }
    daemon.stop()
}

#[test]
fn the_file_is_read_anew_and_what_was_made_by_commands_stays() -> Result<()> {
    let nics = "[[switch]]\nid = \"lan\"\n[[nic]]\nid = \"n\"\nswitch = \"lan\"\n";
    let mut daemon = Daemon::start("upgrade-file", &format!("{DISKS}{nics}"))?;
    let loads = loads(&daemon)?;
    daemon.ask("disk add made --backend memory --size 4M")?;
    daemon.ask("nic link n down")?;
    let share = DISKS.replace("id = \"file\"\n", "id = \"file\"\nshare = 300\n");
    let more = "[[disk]]\nid = \"more\"\nbackend = \"memory\"\nsize = \"4M\"\n";
    daemon.configure_as(|config| config.cpus("0-1").devices(&format!("{share}{more}{nics}")))?;
    daemon.upgrade()?;
    loads.iter().try_for_each(|(load, _)| load.await_requests(20))?;
    let cores = daemon.ask("sidecores")?;
    ensure!(cores["sidecores"].as_array().map(Vec::len) == Some(2), "{cores}");
    ensure!(daemon.shown("file", "share")? == 300);
    ensure!(daemon.shown("made", "size_bytes")? == 4 << 20);
    await_that("the new disk", || Ok(daemon.shown("more", "size_bytes")? == 4 << 20))?;
    ensure!(daemon.ask("nic show n")?["link"] == "down", "a link that was down came up");
    // A disk that the file has no more goes; the others do not notice.
    let fewer = DISKS.split("[[disk]]\nid = \"file\"").next().context("no disk")?.to_string();
    daemon.configure(&format!("{fewer}{nics}"))?;
    let said = daemon.refuses_upgrade("take from guests what they use: disk \"file\" (removed)")?;
    ensure!(said.contains("reload"), "{said}");
    loads.iter().try_for_each(|(load, _)| load.await_requests(20))?;
    let [(memory, _m), (file, file_end)] = loads.try_into().ok().context("two loads")?;
    file.finish()?;
    drop(file_end);
    await_that("the guest to be gone", || Ok(daemon.shown("file", "state")? == "waiting"))?;
    daemon.upgrade()?;
    memory.await_requests(20)?;
    daemon.refuses("show file")?;
    ensure!(!daemon.socket("file").exists(), "its socket stays");
    // One that is shorter is its guest's loss, as at a reload.
    daemon.configure(&format!("{}{nics}", fewer.replace("size = \"4M\"", "size = \"1M\"")))?;
    daemon.refuses_upgrade("disk \"memory\" (resize disk memory to 1M)")?;
    // One that is longer comes with the upgrade.
    let larger = fewer.replace("size = \"4M\"", "size = \"8M\"");
    ensure!(larger != fewer);
    daemon.configure(&format!("{larger}{nics}"))?;
    daemon.upgrade()?;
    await_that("its new size", || Ok(daemon.shown("memory", "size_bytes")? == 8 << 20))?;
    memory.await_requests(20)?;
    memory.finish()?;
    daemon.stop()
}
