//! What the daemon has given up: P24, S8, CVE-2026-1386; and that it serves as a user without rights.
//! What is refused to a confined thread is attempted in `confine`'s own tests.
#![expect(clippy::disallowed_macros, reason = "a test prints what it measured")]

use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use testing::bed::tests_all;
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::lacking::left_out;
use testing::net_frontend::{Header, Nic, NicSpec, frames};
use tests::single::Single;

const DISKS: &str = "[[disk]]\nid = \"file\"\npath = \"images/file.raw\"\nsize = \"4M\"\n\
                     [[disk]]\nid = \"ram\"\nbackend = \"memory\"\nsize = \"4M\"\n";
const LAN: &str = "[[switch]]\nid = \"lan\"\n\
                   [[nic]]\nid = \"a\"\nswitch = \"lan\"\nmac = \"52:54:00:00:00:01\"\n\
                   [[nic]]\nid = \"b\"\nswitch = \"lan\"\nmac = \"52:54:00:00:00:02\"\n";
/// CHOWN, DAC_OVERRIDE, NET_ADMIN, NET_RAW, IPC_LOCK, BPF.
const KEPT: u64 = 1 | 1 << 1 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 39;
/// The second of them: files whatever their mode.
const DAC_OVERRIDE: u64 = 1 << 1;
/// A frame crosses within so long on a machine that also does other work.
const CROSSING_MS: u64 = 90_000;

/// Writes to a disk, and reads it again.
fn exercise(daemon: &Daemon, id: &str) -> Result<()> {
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend(id, &spec)?;
    let single = Single::new(&mut frontend)?;
    for block in 0..32 {
        single.exercise(frontend.queue(0), block)?;
    }
    frontend.disconnect()
}

/// Sends a frame from one NIC to the other until one arrives.
fn exchange(daemon: &Daemon) -> Result<()> {
    let [mut a, mut b] = ["a", "b"].map(|id| Nic::connect(&daemon.socket(id), NicSpec::default()));
    let (a, b) = (a.as_mut(), b.as_mut());
    let (a, b) = a.ok().zip(b.ok()).with_context(|| daemon.last_words())?;
    let frame = frames::small(frames::mac(1), frames::mac(2));
    for _ in 0..50 {
        ensure!(a.pair(0).send(&Header::default(), &frame, &[])?, "no slot is free");
        if let Some(got) = b.pair(0).receive_within(CROSSING_MS / 50)? {
            ensure!(got.bytes == frame, "the frame arrived as {:02x?}", got.bytes);
            return a.pair(0).drain(CROSSING_MS);
        }
        a.pair(0).drain(CROSSING_MS)?;
    }
    anyhow::bail!("no frame crossed")
}

/// Waits until every thread is confined: one that has just been made is not yet.
fn await_confined(daemon: &Daemon, kept: u64) -> Result<()> {
    let mut last = Ok(0);
    let waited = await_that("all threads to be confined", || {
        last = all_threads_are_confined(daemon, kept);
        Ok(last.as_ref().is_ok_and(|threads| *threads >= 3))
    });
    waited.with_context(|| format!("at last: {last:?}"))
}

/// Looks at every thread: filtered, without new privileges, and only control with rights, but for those that walk to
/// images in folders of other users.
fn all_threads_are_confined(daemon: &Daemon, kept: u64) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(format!("/proc/{}/task", daemon.pid()))? {
        let status = std::fs::read_to_string(entry?.path().join("status"))?;
        let field = |name: &str| {
            let found = status.lines().find_map(|line| line.strip_prefix(name));
            found.map(str::trim).with_context(|| format!("no {name}"))
        };
        let name = field("Name:")?;
        ensure!(field("Seccomp:")? == "2", "{name} is not filtered");
        ensure!(field("NoNewPrivs:")? == "1", "{name} may gain rights");
        // The process's two, and its own; sidecores and the API have one more in this form.
        let filters: u32 = field("Seccomp_filters:")?.parse()?;
        ensure!(filters >= 3, "{name} has {filters} filters");
        let rights = |set| -> Result<u64> { Ok(u64::from_str_radix(field(set)?, 16)?) };
        // The thread that the process began with.
        let is_control = field("Pid:")? == daemon.pid().to_string();
        // Who opens and looks at images may be kept out of a folder that root is not.
        let most = match name {
            _ if is_control => kept,
            "opener" | "watch" => kept & DAC_OVERRIDE,
            _ => 0,
        };
        for set in ["CapEff:", "CapPrm:"] {
            ensure!(rights(set)? & !most == 0, "{name} has {set} {:x}", rights(set)?);
        }
        for set in ["CapInh:", "CapAmb:"] {
            ensure!(rights(set)? == 0, "{name} has {set} {:x}", rights(set)?);
        }
        ensure!(rights("CapBnd:")? & !kept == 0, "{name} has a bound of {:x}", rights("CapBnd:")?);
        count += 1;
    }
    Ok(count)
}

#[test]
fn every_thread_of_a_working_daemon_is_confined() -> Result<()> {
    let mut daemon = Daemon::start("confined", &format!("{DISKS}{LAN}"))?;
    exercise(&daemon, "file")?;
    exercise(&daemon, "ram")?;
    exchange(&daemon)?;
    await_confined(&daemon, KEPT)?;
    let doctor = daemon.ask("doctor")?;
    let mut checks = doctor["checks"].as_array().into_iter().flatten();
    let check = checks.find(|check| check["name"] == "confinement").context("no check")?;
    ensure!(check["state"] == "ok", "{check}");
    let found = check["found"].as_str().unwrap_or_default();
    let pid = daemon.pid();
    ensure!(found.starts_with(&format!("process {pid}: of ")), "{found}");
    ensure!(found.contains(" filtered, ") && found.contains("files: any"), "{found}");
    daemon.is_alive()
}

#[test]
fn a_user_without_rights_serves_files_memory_and_switches() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        left_out("starting a daemon as another user needs root");
        return Ok(());
    }
    let lines = "image_folders = [\"images\"]";
    let mut daemon =
        Daemon::with("nobody", &format!("{DISKS}{LAN}")).daemon(lines).as_nobody().start()?;
    for id in ["file", "ram"] {
        exercise(&daemon, id)?;
    }
    exchange(&daemon)?;
    await_confined(&daemon, 0)?;
    // At run time too, and after a restart with what was kept.
    daemon.ask("disk add later --path images/later.raw --size 4M")?;
    exercise(&daemon, "later")?;
    daemon.stop()?;
    daemon.start_again()?;
    exercise(&daemon, "later")?;
    let said = daemon.refuses("disk add tap --path /etc/shadow --readonly");
    ensure!(said?.contains("image_folders"), "it was not said why");
    daemon.is_alive()
}

#[test]
fn an_image_outside_of_the_folders_is_refused_by_file_reload_and_api() -> Result<()> {
    let lines = "image_folders = [\"images\"]";
    let mut daemon = Daemon::with("folders", DISKS).daemon(lines).start()?;
    let dir = daemon.dir().to_owned();
    std::fs::write(dir.join("outside.raw"), vec![7; 1 << 20])?;
    symlink(dir.join("outside.raw"), dir.join("images/link.raw"))?;
    exercise(&daemon, "file")?;
    let said = daemon.refuses("disk add bad --path outside.raw")?;
    ensure!(said.contains("is in none of the daemon's image_folders"), "{said}");
    ensure!(said.contains("add its folder to image_folders in [daemon]"), "{said}");
    let said = daemon.refuses("disk add bad --path images/link.raw")?;
    ensure!(said.contains("link.raw, which is ") && said.contains("outside.raw"), "{said}");
    let said = daemon.refuses("disk add bad --path images/../outside.raw")?;
    ensure!(said.contains("image_folders"), "{said}");
    let file = std::fs::read_to_string(dir.join("sidecore.toml"))?;
    let more = format!("{file}[[disk]]\nid = \"bad\"\npath = \"outside.raw\"\n");
    std::fs::write(dir.join("sidecore.toml"), &more)?;
    let said = daemon.refuses("reload")?;
    ensure!(said.contains("sidecore.toml:") && said.contains("image_folders"), "{said}");
    // What the file widens holds from the next start on.
    let wider = more.replace("[\"images\"]", "[\"images\", \"outside.raw\"]");
    std::fs::write(dir.join("sidecore.toml"), wider)?;
    let said = daemon.refuses("reload")?;
    ensure!(said.contains("image_folders"), "{said}");
    daemon.stop()?;
    daemon.start_again()?;
    let list = daemon.ask("show bad")?;
    ensure!(list["state"] != "failed", "{list}");
    exercise(&daemon, "file")?;
    daemon.ask("disk add inside --path images/inside.raw --size 4M")?;
    exercise(&daemon, "inside")
}

/// One request to the API, and its status.
fn request(api: &Path, method: &str, path: &str, body: &str) -> Result<u32> {
    let mut stream = UnixStream::connect(api)?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status")?;
    Ok(status.parse()?)
}

/// S8, CVE-2026-1386: whoever may write to the folder of sockets puts links to a file, and to a folder, in
/// the place of a device's socket while that comes and goes. The file keeps its content and its mode.
#[test]
fn s8_sockets_replaced_by_links_thousands_of_times() -> Result<()> {
    let (links_min, added_min) = if tests_all() { (10_000, 1_000) } else { (2_000, 200) };
    let mut daemon = Daemon::start("s8", DISKS)?;
    let dir = daemon.dir().to_owned();
    let (precious, folder) = (dir.join("precious"), dir.join("folder"));
    std::fs::write(&precious, "precious")?;
    std::fs::set_permissions(&precious, std::fs::Permissions::from_mode(0o600))?;
    std::fs::create_dir(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
    let (links, over) = (AtomicU32::new(0), AtomicBool::new(false));
    let socket = daemon.socket("raced");
    let (added, refused) = std::thread::scope(|scope| -> Result<_> {
        scope.spawn(|| {
            let ours = dir.join("link");
            while !over.load(Ordering::Relaxed) {
                let turn = links.load(Ordering::Relaxed);
                let to = if turn.is_multiple_of(4) { &folder } else { &precious };
                let made = symlink(to, &ours);
                // As soon as there is a socket, or after some looks without one.
                let mut looks = 0..turn % 1024;
                while looks.next().is_some() && socket.symlink_metadata().is_err() {}
                let made = made.and_then(|()| std::fs::rename(&ours, &socket));
                // Gone again for most of the time, so that devices can come.
                let gone = std::fs::remove_file(&socket);
                if made.is_ok() && gone.is_ok() {
                    links.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let (mut added, mut refused) = (0, 0);
        let body = "{\"id\": \"raced\", \"backend\": \"null\", \"size\": \"1M\"}";
        let api = daemon.dir().join("api.sock");
        let raced = (|| {
            while links.load(Ordering::Relaxed) < links_min || added < added_min {
                match request(&api, "POST", "/v1/disks", body)? {
                    201 => added += 1,
                    _ => refused += 1,
                }
                request(&api, "DELETE", "/v1/disks/raced", "")?;
            }
            Ok((added, refused))
        })();
        over.store(true, Ordering::Relaxed);
        raced
    })?;
    println!("s8: {links:?} links, {added} devices came, {refused} did not");
    let mode = |path: &Path| -> Result<u32> { Ok(path.metadata()?.permissions().mode() & 0o7777) };
    ensure!(std::fs::read_to_string(&precious)? == "precious", "it was written to");
    ensure!(mode(&precious)? == 0o600, "its mode is {:o}", mode(&precious)?);
    ensure!(mode(&folder)? == 0o700, "its mode is {:o}", mode(&folder)?);
    ensure!(folder.read_dir()?.next().is_none(), "something was made in the folder");
    exercise(&daemon, "file")?;
    daemon.is_alive()
}
