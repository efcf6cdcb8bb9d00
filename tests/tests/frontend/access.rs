//! Who may open which socket: tried as real other users, who need no name for it. Takes root.

use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use testing::daemon::{Daemon, await_that};
use testing::frontend::FrontendSpec;
use testing::lacking::left_out;
use tests::single::Single;

/// Users and groups that need no name.
const ALICE: u32 = 61_007;
const BOB: u32 = 61_008;
const GROUP: u32 = 61_009;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        left_out("acting as another user needs root");
    }
    is_root
}

fn disk(id: &str, lines: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\nbackend = \"memory\"\nsize = \"4M\"\n{lines}\n")
}

/// What `act` does as that user, in those groups: the kernel's credentials are a thread's.
fn as_user<T: Send + 'static>(
    uid: u32,
    groups: &[u32],
    act: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let work = move || {
        let (user, own) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
        set_thread_groups(&groups)?;
        set_thread_res_gid(own, own, own)?;
        set_thread_res_uid(user, user, user)?;
        act()
    };
    std::thread::spawn(work).join().unwrap_or_else(|_| Err(Error::other("it panicked")))
}

/// Whether that user may connect; any other refusal is an error.
fn connects(uid: u32, groups: &[u32], socket: PathBuf) -> Result<bool> {
    match as_user(uid, groups, move || UnixStream::connect(socket)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The status of a request of that user.
fn status(uid: u32, groups: &[u32], socket: PathBuf, request: &str) -> Result<u16, Error> {
    let text = format!("{request} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
    let answer = as_user(uid, groups, move || {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(text.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    })?;
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.ok_or_else(|| Error::other(answer))
}

/// Owner, group, mode.
fn rights(socket: &Path) -> Result<(u32, u32, u32)> {
    let seen = std::fs::symlink_metadata(socket)?;
    Ok((seen.uid(), seen.gid(), seen.mode() & 0o7777))
}

fn log(daemon: &Daemon) -> Result<String> {
    Ok(std::fs::read_to_string(daemon.dir().join("log"))?)
}

#[test]
fn each_socket_is_its_user_s_alone_and_the_api_s_is_no_vmm_s() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let files = [
        disk("a", &format!("socket_owner = \"{ALICE}\"")),
        disk("b", &format!("socket_owner = \"{BOB}\"")),
        disk("g", &format!("socket_group = \"{GROUP}\"")),
        disk("r", ""),
        format!("[[nic]]\nid = \"n\"\nnull = \"drop\"\nsocket_owner = \"{ALICE}\"\n"),
    ];
    let mut daemon = Daemon::start("access", &files.concat())?;
    daemon.ask(&format!("disk add late --backend memory --size 4M --socket-owner {ALICE}"))?;
    let check = |daemon: &Daemon| -> Result<()> {
        for (id, alice, bob, member) in [
            ("a", true, false, false),
            ("b", false, true, false),
            ("g", false, false, true),
            ("r", false, false, false),
            ("n", true, false, false),
            ("late", true, false, false),
            ("api", false, false, false),
        ] {
            let socket = daemon.socket(id);
            let found = [
                connects(ALICE, &[], socket.clone())?,
                connects(BOB, &[], socket.clone())?,
                connects(BOB + 9, &[GROUP], socket)?,
            ];
            ensure!(found == [alice, bob, member], "{id}: {found:?}");
        }
        Ok(())
    };
    check(&daemon)?;
    ensure!(rights(&daemon.socket("r"))? == (0, 0, 0o600));
    // The same sockets, in the hands of another process; and others, made by one that starts again.
    daemon.upgrade()?;
    check(&daemon)?;
    daemon.kill()?;
    daemon.start_again()?;
    check(&daemon)?;
    let shown = daemon.ask("show a")?;
    let alice = ALICE.to_string();
    ensure!(shown["socket_owner"] == *alice && shown["socket_mode"] == "0600");
    daemon.stop()
}

#[test]
fn rights_change_in_place_by_command_reload_and_upgrade() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let file = disk("f", "");
    let mut daemon = Daemon::start("rights", &file)?;
    daemon.ask("disk add d --backend memory --size 4M")?;
    let (d, f, api) = (daemon.socket("d"), daemon.socket("f"), daemon.socket("api"));
    let inode = std::fs::symlink_metadata(&d)?.ino();
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend("d", &spec)?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 0)?;
    daemon.ask(&format!("disk set d --socket-owner {ALICE}"))?;
    ensure!(rights(&d)? == (ALICE, 0, 0o600), "{:?}", rights(&d)?);
    daemon.ask(&format!("disk set d --socket-owner {BOB} --socket-group {GROUP}"))?;
    ensure!(rights(&d)? == (BOB, GROUP, 0o660), "{:?}", rights(&d)?);
    // What `[daemon]` says is for those who say nothing, those made by command too.
    let lines = format!("socket_owner = \"{ALICE}\"\napi_group = \"{GROUP}\"");
    daemon.configure_as(|config| config.daemon(&lines).devices(&file))?;
    let done = daemon.ask("reload")?;
    ensure!(done["restart_needed"].as_array().is_some_and(Vec::is_empty), "{done}");
    ensure!(rights(&f)? == (ALICE, 0, 0o600), "{:?}", rights(&f)?);
    ensure!(rights(&api)? == (0, GROUP, 0o660), "{:?}", rights(&api)?);
    ensure!(rights(&d)? == (BOB, GROUP, 0o660), "what it says itself holds");
    ensure!(status(BOB, &[GROUP], api.clone(), "GET /v1/version")? == 200);
    daemon.ask("disk set d --socket-owner= --socket-group=")?;
    ensure!(rights(&d)? == (ALICE, 0, 0o600), "{:?}", rights(&d)?);
    // An heir has its own file's.
    daemon.configure(&disk("f", &format!("socket_owner = \"{BOB}\"")))?;
    daemon.upgrade()?;
    ensure!(rights(&f)? == (BOB, 0, 0o600), "{:?}", rights(&f)?);
    ensure!(rights(&api)? == (0, 0, 0o600), "{:?}", rights(&api)?);
    ensure!(std::fs::symlink_metadata(&d)?.ino() == inode, "another socket was made");
    single.exercise(frontend.queue(0), 1)?;
    daemon.is_alive()
}

/// As `setfacl -m u:UID:rw SOCKET` has it.
fn let_in(uid: u32, socket: &Path) -> Result<()> {
    let entries = [(1u16, 6u16, u32::MAX), (2, 6, uid), (4, 0, u32::MAX), (16, 6, u32::MAX)];
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, may, whose) in entries.into_iter().chain([(32, 0, u32::MAX)]) {
        acl.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        acl.extend(whose.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::setxattr(socket, "system.posix_acl_access", &acl, flags)?)
}

#[test]
fn an_acl_of_a_socket_stays_until_its_rights_change() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let file = disk("a", &format!("socket_owner = \"{ALICE}\"")) + &disk("r", "");
    let mut daemon = Daemon::start("acl", &file)?;
    for socket in ["a", "r", "api"] {
        let_in(BOB, &daemon.socket(socket))?;
    }
    let reached = |daemon: &Daemon| -> Result<Vec<bool>> {
        ["a", "r", "api"].map(|id| connects(BOB, &[], daemon.socket(id))).into_iter().collect()
    };
    ensure!(reached(&daemon)? == [true; 3]);
    daemon.ask("reload")?;
    daemon.upgrade()?;
    ensure!(reached(&daemon)? == [true; 3], "{:?}", reached(&daemon)?);
    // Who is named by then has it alone.
    daemon.configure(&(disk("a", "socket_owner = \"0\"") + &disk("r", "")))?;
    daemon.ask("reload")?;
    ensure!(reached(&daemon)? == [false, true, true], "{:?}", reached(&daemon)?);
    daemon.kill()?;
    daemon.start_again()?;
    ensure!(reached(&daemon)? == [false; 3], "they were made anew");
    daemon.stop()
}

/// The listener stays, and with it the name and what waits in its queue.
#[test]
fn a_disk_that_is_made_anew_for_another_user_is_that_one_s() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let file = |more: &str| disk("d", &format!("{more}socket_owner = \"{ALICE}\""));
    let mut daemon = Daemon::start("anew", &file(""))?;
    let socket = daemon.socket("d");
    ensure!(connects(ALICE, &[], socket.clone())?);
    let anew = disk("d", &format!("readonly = true\nsocket_owner = \"{BOB}\""));
    daemon.configure(&anew)?;
    daemon.ask("reload --force")?;
    await_that("the new one", || Ok(daemon.shown("d", "readonly")? == true && socket.exists()))?;
    ensure!(rights(&socket)? == (BOB, 0, 0o600), "{:?}", rights(&socket)?);
    ensure!(!connects(ALICE, &[], socket.clone())? && connects(BOB, &[], socket)?);
    daemon.stop()
}

#[test]
fn users_that_are_not_there_are_refused_and_change_nothing() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let good = disk("good", "");
    let mut daemon = Daemon::start("nobody", &good)?;
    let before = daemon.ask("ls")?;
    let said =
        daemon.refuses("disk add x --backend memory --size 4M --socket-owner no-such-user")?;
    ensure!(said.contains("there is no user \"no-such-user\" in /etc/passwd"), "{said}");
    let said = daemon.refuses("nic add y --null drop --socket-group no-such-group")?;
    ensure!(said.contains("there is no group \"no-such-group\" in /etc/group"), "{said}");
    let bad = |lines: &str| disk("good", lines) + &disk("new", "socket_owner = \"no-such-user\"");
    for (lines, rest) in [
        ("", bad("")),
        ("", disk("good", "socket_owner = \"no-such-user\"")),
        ("socket_owner = \"no-such-user\"", good.clone()),
        ("api_group = \"no-such-group\"", good.clone()),
    ] {
        daemon.configure_as(|config| config.daemon(lines).devices(&rest))?;
        let said = daemon.refuses("reload")?;
        ensure!(said.contains("there is no") && said.contains("nothing was changed"), "{said}");
        let said = daemon.refuses("serve --config sidecore.toml --check")?;
        ensure!(said.contains("there is no"), "{said}");
    }
    for lines in [
        "api_mode = \"0666\"",
        "socket_mode = \"0640\"",
        "api_owner = \"\"",
        "api_read_group = \"0\"",
    ] {
        daemon.configure_as(|config| config.daemon(lines).devices(&good))?;
        let said = daemon.refuses("reload")?;
        ensure!(said.contains("sidecore.toml:5:"), "{said}");
    }
    ensure!(
        daemon.ask("ls")?["disks"].as_array().map(Vec::len)
            == before["disks"].as_array().map(Vec::len)
    );
    ensure!(rights(&daemon.socket("good"))? == (0, 0, 0o600));
    // A user who was removed since keeps nobody else from being served, and lets nobody in.
    daemon
        .configure_as(|config| config.daemon("api_group = \"no-such-group\"").devices(&bad("")))?;
    daemon.kill()?;
    daemon.start_again()?;
    ensure!(
        daemon.shown("new", "state")? == "failed" && daemon.shown("good", "state")? == "waiting"
    );
    ensure!(rights(&daemon.socket("api"))? == (0, 0, 0o600));
    let said = log(&daemon)?;
    ensure!(said.contains("until then root and the daemon's user alone may ask"), "{said}");
    daemon.is_alive()
}

#[test]
fn nothing_is_given_away_in_a_folder_of_others_or_without_the_right() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut daemon = Daemon::start("folder", &disk("good", ""))?;
    let open = daemon.dir().join("open");
    std::fs::create_dir(&open)?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777))?;
    let add = "disk add x --backend memory --size 4M --socket open/x.sock";
    for add in [add.to_string(), format!("{add} --socket-owner {ALICE}")] {
        let said = daemon.refuses(&add)?;
        ensure!(said.contains("others than its owner can change what is in it"), "{said}");
        ensure!(!open.join("x.sock").exists());
    }
    // It was the daemon's alone when the socket was made.
    let mode = |mode| std::fs::set_permissions(&open, std::fs::Permissions::from_mode(mode));
    mode(0o755)?;
    daemon.ask(add)?;
    mode(0o777)?;
    let said = daemon.refuses(&format!("disk set x --socket-owner {ALICE}"))?;
    ensure!(said.contains("others than its owner can change what is in it"), "{said}");
    ensure!(daemon.ask("show x")?["socket_owner"].is_null(), "it is as it was");
    // Nor by the file, of which nothing is done then.
    let place =
        |owner: &str| disk("good", "") + &disk("y", &format!("socket = \"open/y.sock\"{owner}"));
    mode(0o755)?;
    daemon.configure(&place(""))?;
    daemon.ask("reload")?;
    mode(0o777)?;
    let given = place(&format!("\nsocket_owner = \"{ALICE}\"\n")) + &disk("z", "");
    daemon.configure(&given)?;
    let said = daemon.refuses("reload")?;
    ensure!(
        said.contains("others than its owner") && said.contains("nothing was changed"),
        "{said}"
    );
    ensure!(daemon.refuses("show z")?.contains("no disk"), "all or nothing");
    daemon.is_alive()?;
    daemon.stop()?;
    drop(daemon);
    let rest = disk("good", "") + &disk("a", &format!("socket_owner = \"{ALICE}\""));
    let config = Daemon::with("no-chown", &rest);
    let mut daemon = config.through(&["setpriv", "--bounding-set=-chown"]).start()?;
    let problem = daemon.shown("a", "problem")?;
    let problem = problem.as_str().context("no problem")?;
    ensure!(problem.contains("takes CAP_CHOWN, which the daemon has not"), "{problem}");
    ensure!(!daemon.socket("a").exists() && daemon.shown("good", "state")? == "waiting");
    // What is served is not said to be another's then.
    let given = |lines: &str| disk("good", lines) + &disk("a", "");
    for (lines, rest) in [
        ("", given(&format!("socket_owner = \"{ALICE}\""))),
        ("", given(&format!("socket_group = \"{GROUP}\""))),
        (&*format!("api_owner = \"{ALICE}\""), given("")),
    ] {
        daemon.configure_as(|config| config.daemon(lines).devices(&rest))?;
        for line in ["reload", "reload --dry-run"] {
            let said = daemon.refuses(line)?;
            let why = "takes CAP_CHOWN, which the daemon has not";
            ensure!(said.contains(why) && said.contains("nothing was changed"), "{line}: {said}");
        }
        ensure!(daemon.shown("good", "socket_owner")?.is_null(), "it is as it was");
    }
    daemon.configure(&given("socket_mode = \"0660\""))?;
    daemon.ask("reload")?;
    ensure!(rights(&daemon.socket("good"))? == (0, 0, 0o660));
    daemon.is_alive()
}

/// What only the attempt tells is told, shown, and tried again.
#[test]
fn a_socket_that_a_reload_could_not_give_away_is_a_problem_until_it_can() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let mut daemon = Daemon::start("ungiven", &disk("d", ""))?;
    let (socket, aside) = (daemon.socket("d"), daemon.dir().join("aside.sock"));
    std::fs::rename(&socket, &aside)?;
    std::fs::write(&socket, "")?;
    let given = disk("d", &format!("socket_owner = \"{ALICE}\"")) + &disk("e", "");
    daemon.configure(&given)?;
    for _ in 0..2 {
        let said = daemon.refuses("reload")?;
        ensure!(said.contains("disk \"d\": its socket") && said.contains("reload again"), "{said}");
        let problem = daemon.shown("d", "problem")?;
        let problem = problem.as_str().context("no problem")?;
        ensure!(problem.contains("is opened by those who could before"), "{problem}");
    }
    ensure!(daemon.shown("e", "problem")?.is_null(), "the rest is done");
    std::fs::rename(&aside, &socket)?;
    daemon.ask("reload")?;
    ensure!(daemon.shown("d", "problem")?.is_null() && rights(&socket)? == (ALICE, 0, 0o600));
    daemon.is_alive()
}

#[test]
fn the_socket_that_shows_changes_nothing_and_changes_are_logged_with_who_asked() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let lines = format!("api_read = \"read.sock\"\napi_read_owner = \"{ALICE}\"");
    let mut daemon = Daemon::with("read", &disk("d", "")).daemon(&lines).start()?;
    let read = daemon.dir().join("read.sock");
    let check = |daemon: &Daemon| -> Result<()> {
        ensure!(rights(&read)? == (ALICE, 0, 0o600), "{:?}", rights(&read)?);
        ensure!(!connects(BOB, &[], read.clone())? && !connects(ALICE, &[], daemon.socket("api"))?);
        for path in ["disks", "disks/d", "nics", "daemon", "sidecores", "links", "version"] {
            let found = status(ALICE, &[], read.clone(), &format!("GET /v1/{path}"))?;
            ensure!(found == 200, "{path}: {found}");
        }
        for request in [
            "GET /v1/reload",
            "POST /v1/reload",
            "POST /v1/upgrade",
            "DELETE /v1/disks/d",
            "PATCH /v1/disks/d",
            // Which blocks a guest asks for is its tenant's affair.
            "GET /v1/disks/d/trace",
            "PUT /v1/disks/d/stages/trace",
            "DELETE /v1/disks/d/stages/fault",
        ] {
            let found = status(ALICE, &[], read.clone(), request)?;
            ensure!(found == 403, "{request}: {found}");
        }
        Ok(())
    };
    check(&daemon)?;
    ensure!(!log(&daemon)?.contains("asked for"), "what shows is not logged");
    daemon.upgrade()?;
    check(&daemon)?;
    daemon.refuses("disk rm d")?;
    daemon.refuses("nic rm --force no-such")?;
    daemon.refuses("disk add x --path /no-such/x.img")?;
    daemon.refuses("disk resize d 1G --force")?;
    daemon.ask("ls")?;
    let log = log(&daemon)?;
    let asked: Vec<&str> = log.lines().filter(|line| line.contains("asked for: ")).collect();
    ensure!(asked.len() == 5, "one line each: {asked:?}");
    let whats = [
        "upgrade",
        "disk rm d",
        "nic rm --force no-such",
        "disk add x --path /no-such/x.img",
        "disk resize --force d {\"size\":\"1G\"}",
    ];
    for what in &whats[1..] {
        ensure!(log.contains(&format!("refused: {what}")), "{what} is refused without a word");
    }
    for (line, what) in asked.iter().zip(whats) {
        ensure!(line.contains(&format!("asked for: {what}")), "{line}");
        ensure!(
            line.contains("uid=0") && line.contains("pid=") && line.contains("sidecore"),
            "{line}"
        );
    }
    daemon.stop()?;
    ensure!(!read.exists(), "it is taken away");
    Ok(())
}

#[test]
fn doctor_says_which_socket_a_vmm_reaches_and_what_helps() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let file = disk("a", &format!("socket_owner = \"{ALICE}\"")) + &disk("f", "");
    let daemon = Daemon::start("doctor", &file)?;
    daemon.ask("disk add d --backend memory --size 4M")?;
    let reach = |daemon: &Daemon| -> Result<Vec<(String, String, String)>> {
        let report = daemon.ask(&format!("doctor --vmm {ALICE}"))?;
        let checks = report["checks"].as_array().context("no checks")?.clone();
        let text = |check: &serde_json::Value, field: &str| {
            check[field].as_str().unwrap_or_default().to_string()
        };
        let of_reach = checks.iter().filter(|check| check["name"] == "reach");
        Ok(of_reach.map(|it| (text(it, "state"), text(it, "found"), text(it, "todo"))).collect())
    };
    let checks = reach(&daemon)?;
    let [a, f, d] = &checks[..] else { anyhow::bail!("{checks:?}") };
    ensure!(a.0 == "ok" && a.1.contains(&format!("{ALICE} reaches disk a")), "{a:?}");
    ensure!(f.0 == "warn" && f.1.contains("user root, group root, mode 0600"), "{f:?}");
    ensure!(f.2.contains(&format!("write socket_owner = \"{ALICE}\" at ")), "{f:?}");
    let line = format!("sidecore disk set d --socket-owner {ALICE}");
    ensure!(d.2.contains(&line), "{d:?}");
    // What it says helps.
    daemon.ask(line.trim_start_matches("sidecore "))?;
    ensure!(reach(&daemon)?.iter().filter(|check| check.0 == "ok").count() == 2);
    // A folder on the way.
    std::fs::set_permissions(daemon.dir(), std::fs::Permissions::from_mode(0o700))?;
    let checks = reach(&daemon)?;
    let wanted = format!("setfacl -m u:{ALICE}:x {}", daemon.dir().display());
    ensure!(checks.iter().all(|check| check.2.contains(&wanted)), "{checks:?}");
    ensure!(daemon.refuses("doctor --vmm no-such-user")?.contains("there is no user"));
    Ok(())
}

#[test]
fn the_launcher_has_what_a_start_takes_and_no_more() -> Result<()> {
    let mut daemon = Daemon::start("launcher", &disk("d", ""))?;
    // CHOWN, DAC_OVERRIDE, SETPCAP, NET_ADMIN, NET_RAW, IPC_LOCK, SYS_NICE, SYS_RESOURCE, PERFMON, BPF.
    let most = [0, 1, 8, 12, 13, 14, 23, 24, 38, 39].iter().fold(0u64, |all, bit| all | 1 << bit);
    let mut filters = Vec::new();
    for _ in 0..3 {
        let mut last = None;
        await_that("a confined launcher", || {
            let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
            let children = std::fs::read_to_string(children)?;
            let status = children.split_whitespace().find_map(|pid| {
                let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
                let is_launcher = command.split('\0').any(|word| word == "launcher");
                is_launcher.then(|| std::fs::read_to_string(format!("/proc/{pid}/status")).ok())?
            });
            last = status.filter(|status| status.contains("Seccomp:\t2"));
            Ok(last.is_some())
        })?;
        let status = last.context("no launcher")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let rights = |name| u64::from_str_radix(field(name).unwrap_or("").trim(), 16);
        for set in ["CapPrm:", "CapEff:", "CapBnd:", "CapInh:", "CapAmb:"] {
            ensure!(rights(set)? & !most == 0, "{set} {:x}", rights(set)?);
        }
        ensure!(field("NoNewPrivs:").map(str::trim) == Some("1"), "{status}");
        filters.push(field("Seccomp_filters:").map(str::trim).map(str::to_string));
        daemon.upgrade()?;
    }
    ensure!(filters.iter().all(|count| *count == filters[0]), "filters add up: {filters:?}");
    daemon.is_alive()
}

#[test]
fn a_front_end_that_gets_nowhere_is_shown_and_told_once() -> Result<()> {
    let file = disk("d", "") + "[[nic]]\nid = \"n\"\nnull = \"drop\"\n";
    let mut daemon = Daemon::start("stall", &file)?;
    let [d, n] = ["d", "n"].map(|id| daemon.connect(id));
    let (mut d, mut n) = (d?, n?);
    // GET_FEATURES and SET_OWNER of a front-end that never brings memory.
    for stream in [&mut d, &mut n] {
        for request in [1u32, 3] {
            let header = [request, 1, 0].map(u32::to_ne_bytes).concat();
            stream.write_all(&header)?;
        }
    }
    for id in ["d", "n"] {
        await_that("a problem", || {
            let problem = daemon.shown(id, "problem")?;
            Ok(problem.as_str().is_some_and(|it| it.contains("has brought no guest memory")))
        })?;
        ensure!(daemon.shown(id, "state")? == "connected");
    }
    drop((d, n));
    await_that("no problem", || Ok(daemon.shown("d", "problem")?.is_null()))?;
    let log = log(&daemon)?;
    ensure!(log.matches("has brought no guest memory").count() == 2, "{log}");
    ensure!(log.contains("share=on"), "{log}");
    daemon.is_alive()
}
