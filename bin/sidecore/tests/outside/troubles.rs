//! Each command where something is in its way: no daemon, somebody else's socket, no right, nobody who reads, a narrow
//! terminal. It says so in a line and a hint, ends with the status of the manual, and never with a panic.

use std::fs::{File, Permissions, set_permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::harness::{Daemon, PROGRAM, json, run};
use crate::helps::{Leaf, leaves};

/// What a folder's daemon has.
const FILE: &str = "[[disk]]\nid = \"vm1-root\"\nbackend = \"null\"\nsize = \"1G\"\n[[switch]]\nid = \"lan\"\n\
    [[nic]]\nid = \"vm1-net\"\nswitch = \"lan\"\n[[group]]\nid = \"tenant1\"\n";
/// User `nobody` of most systems: some other one than who made the folder.
const SOMEBODY_ELSE: u32 = 65534;

/// A line of each command that asks a daemon and cannot do without: of its examples, without what it pipes to.
fn lines_that_ask() -> Vec<String> {
    let asks = leaves().into_iter().filter(|leaf| leaf.help.contains("--api <SOCKET>"));
    let line = |leaf: Leaf| {
        let own = format!("sidecore {}", leaf.words);
        let examples = leaf.examples();
        let mut lines = examples.iter().flat_map(|example| example.split(" && "));
        let line = lines.find(|line| line.starts_with(&own));
        let line = line.unwrap_or_else(|| panic!("no example of {own}: {examples:?}"));
        line.split(" | ").next().unwrap().trim_start_matches("sidecore ").to_string()
    };
    let lines = asks.filter(|leaf| leaf.words != "doctor").map(line);
    let lines: Vec<String> = lines.collect();
    assert!(lines.len() > 25, "{lines:?}");
    lines
}

fn sidecore(folder: &Path, line: &str, api: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).current_dir(folder).env("SIDECORE_API", api);
    command
}

/// That a command failed with status 3, for people and for programs, with these words.
fn is_unreachable(folder: &Path, line: &str, api: &Path, words: &str) {
    let (code, out, error) = run(&mut sidecore(folder, line, api));
    assert_eq!((code, out.as_str()), (3, ""), "{line}: {error}");
    assert!(error.starts_with("sidecore: ") && error.contains(words), "{line}: {error}");
    assert_eq!(error.lines().count(), 2, "{line}: {error}");
    let (code, out, error) = run(&mut sidecore(folder, &format!("{line} --json"), api));
    assert_eq!((code, out.as_str()), (3, ""), "{line}: {error}");
    let told = json(&error);
    let is_told = |what: &str| told[what].as_str().is_some_and(|text| !text.is_empty());
    assert!(is_told("error") && is_told("hint"), "{line}: {error}");
}

#[test]
fn without_a_daemon_each_command_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let listener = folder.path().join("left.sock");
    drop(UnixListener::bind(&listener).unwrap());
    for line in lines_that_ask() {
        is_unreachable(folder.path(), &line, &folder.path().join("none.sock"), "start the daemon");
        is_unreachable(folder.path(), &line, &listener, "start the daemon");
    }
    let long = folder.path().join("a".repeat(200));
    is_unreachable(folder.path(), "ls", &long, "at most 107 bytes");
    is_unreachable(folder.path(), "ls", Path::new("tcp://a:1"), "the API is a Unix socket");
    let (code, out, error) = run(&mut sidecore(folder.path(), "doctor", &listener));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.contains("no daemon can be asked which one it is"), "{out}");
    assert!(out.contains("warn     daemon") && out.contains("left.sock"), "{out}");
    assert!(out.contains("start the daemon"), "{out}");
}

#[test]
fn a_socket_of_somebody_else_is_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    for (nth, (answer, words)) in [
        ("\0\u{1}garbage\r\n\r\n", "does not speak HTTP"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "not what this version knows"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not what this version knows"),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", "status 404 without a word"),
        ("HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\n{\"no\": 1}", "status 500 without a word"),
        ("", "the connection was closed before an answer came"),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = folder.path().join(format!("{nth}.sock"));
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                // The whole of a small request, so that closing it is no reset.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        for line in ["ls", "show a", "sidecores", "nic rm a", "reload", "top"] {
            is_unreachable(folder.path(), line, &socket, words);
        }
    }
}

#[test]
fn a_socket_without_the_right_says_who_has_it() {
    let daemon = Daemon::start(FILE);
    let api = daemon.folder.path().join("run/api.sock");
    let is_root = rustix::process::geteuid().is_root();
    set_permissions(daemon.folder.path(), Permissions::from_mode(0o755)).unwrap();
    if !is_root {
        set_permissions(&api, Permissions::from_mode(0o000)).unwrap();
    }
    for line in ["ls", "nic rm vm1-net", "top", "remote status"] {
        let mut command = sidecore(Path::new("/"), line, &api);
        if is_root {
            command.uid(SOMEBODY_ELSE);
        }
        let (code, out, error) = run(&mut command);
        assert_eq!((code, out.as_str()), (3, ""), "{line}: {error}");
        assert!(error.contains("Permission denied") && error.contains("`api_owner`"), "{error}");
    }
}

#[test]
fn a_daemon_that_is_stopped_is_given_up_and_named() {
    let daemon = Daemon::start(FILE);
    let pid = Pid::from_child(&daemon.child);
    daemon.signal(Signal::STOP);
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    let pid = daemon.child.id();
    for line in ["ls", "show vm1-root", "nic rm vm1-net", "reload", "upgrade", "top"] {
        let (code, out, error) = daemon.run(&format!("--timeout 20ms {line}"));
        assert_eq!((code, out.as_str()), (3, ""), "{line}: {error}");
        assert!(error.contains("within 20ms\n"), "{line}: {error}");
        let todo = format!("process {pid} is stopped: `kill -CONT {pid}` lets it go on");
        assert!(error.contains(&todo), "{line}: {error}");
    }
    let (code, out, error) = daemon.run("--timeout 20ms doctor");
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("\nwarn     daemon ") && out.contains(&format!("kill -CONT {pid}")),
        "{out}"
    );
}

/// Waits until the daemon's log has that so often.
#[expect(clippy::disallowed_methods, reason = "nobody is told what a daemon logs")]
fn await_log(daemon: &Daemon, said: &str, count: usize) {
    let log = || std::fs::read_to_string(daemon.folder.path().join("log")).unwrap();
    let is_said = || {
        let is_said = log().matches(said).count() >= count;
        if !is_said {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        is_said
    };
    assert!((0..1200).any(|_| is_said()), "{said}: {}", log());
}

#[test]
fn an_api_socket_that_was_removed_is_made_again_on_a_signal() {
    let mut daemon = Daemon::start(FILE);
    let api = daemon.folder.path().join("run/api.sock");
    std::fs::remove_file(&api).unwrap();
    let (code, _, error) = daemon.run("ls");
    assert_eq!(code, 3);
    assert!(error.contains("makes its socket anew on SIGHUP, if that was removed"), "{error}");
    daemon.signal(Signal::HUP);
    await_log(&daemon, "was removed, and is made again", 1);
    assert_eq!(daemon.run("ls").0, 0);
    // Another daemon has the name: it is that one's, and stays so.
    std::fs::remove_file(&api).unwrap();
    let text = format!("[daemon]\napi = {api:?}\nrun_dir = \"other\"\nstate_dir = \"other\"\n");
    std::fs::write(daemon.folder.path().join("other.toml"), text).unwrap();
    let mut other = Command::new(PROGRAM);
    other.args(["serve", "--config", "other.toml"]).current_dir(daemon.folder.path());
    other.env("NOTIFY_SOCKET", daemon.folder.path().join("notify")).stderr(Stdio::null());
    let mut other = other.spawn().unwrap();
    daemon.expect_notice("READY=1\n");
    daemon.signal(Signal::HUP);
    let taken = format!("cannot be made again: another daemon serves it, process {}", other.id());
    await_log(&daemon, &taken, 1);
    assert_eq!(json(&daemon.run("ls --json").1)["disks"].as_array().map(Vec::len), Some(0));
    daemon.signal(Signal::TERM);
    daemon.expect_notice("STOPPING=1\n");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    let (code, _, error) = daemon.run("ls");
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(code, 0, "{error}");
}

/// Lines that print something at a daemon of [`FILE`], or at none.
const PRINTS: [&str; 18] = [
    "ls",
    "show vm1-root",
    "show vm1-net",
    "disk ls",
    "disk show vm1-root --print qemu",
    "nic ls",
    "nic show vm1-net",
    "switch ls",
    "switch show lan",
    "group ls",
    "group show tenant1",
    "remote status",
    "sidecores",
    "top --count 1 --interval 0.1",
    "reload --dry-run",
    "doctor",
    "serve --check --config sidecore.toml",
    "disk set nothing --share 7",
];

#[test]
fn json_is_all_of_the_output_and_nobody_need_read_it() {
    let daemon = Daemon::start(FILE);
    let folder = daemon.folder.path();
    let api = folder.join("run/api.sock");
    for line in PRINTS {
        let (code, out, error) = run(&mut sidecore(folder, &format!("{line} --json"), &api));
        let failed = line.contains("nothing");
        assert_eq!(
            (code, out.is_empty(), error.is_empty()),
            (failed.into(), failed, !failed),
            "{line}: {error}"
        );
        json(if failed { &error } else { &out });
    }
    for line in
        PRINTS.into_iter().chain(["completions bash", "--help", "disk add --help", "--version"])
    {
        for json in ["", " --json"] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let line = format!("{line}{json}");
            let mut command = sidecore(folder, &line, &api);
            let (code, _, error) = run(command.stdout(writer));
            assert!(
                !error.contains("panicked") && !error.contains("roken pipe"),
                "{line}: {error}"
            );
            assert_eq!(code, i32::from(line.contains("nothing")), "{line}: {error}");
        }
    }
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for line in ["ls", "ls --json", "completions bash"] {
        let (code, _, error) = run(sidecore(folder, line, &api).stdout(full()));
        assert_eq!(code, 2, "{line}");
        assert!(error.contains("the output cannot be written: No space left"), "{error}");
    }
}

#[test]
fn a_narrow_terminal_has_tables_of_its_width_and_no_colours() {
    let long = "tenant-42-of-rack-7-vm-17-root";
    let daemon = Daemon::start(&FILE.replace("vm1-root", long));
    let folder = daemon.folder.path();
    let api = folder.join("run/api.sock");
    for columns in [40, 80, 120] {
        for line in
            ["ls", "nic ls", "switch ls", "group ls", "sidecores", "top --count 1 --interval 0.1"]
        {
            let shown = on_a_terminal(columns, &mut sidecore(folder, line, &api));
            let text = shown.trim_start_matches("\u{1b}[H\u{1b}[J");
            assert!(!text.contains('\u{1b}'), "{line}: {text:?}");
            let widest = text.lines().map(|line| line.trim_end().chars().count()).max();
            assert!(widest <= Some(columns.into()), "{line} in {columns}:\n{text}");
        }
    }
    let narrow = on_a_terminal(40, &mut sidecore(folder, "ls", &api));
    assert!(narrow.contains("columns more: --wide"), "{narrow}");
    let wide = on_a_terminal(40, &mut sidecore(folder, "ls --wide", &api));
    let (_, piped, _) = run(&mut sidecore(folder, "ls", &api));
    assert_eq!(wide.replace("\r\n", "\n"), piped);
    let (code, out, error) = run(sidecore(folder, "ls", &api).env("NO_COLOR", "1"));
    assert_eq!((code, out, error.as_str()), (0, piped, ""));
}

/// What a command shows on a terminal of so many columns.
fn on_a_terminal(columns: u16, command: &mut Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&ours, size).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    command.env("NO_COLOR", "1").stdin(Stdio::null()).stderr(Stdio::null()).stdout(theirs);
    let mut child = command.spawn().unwrap();
    // The last end of the terminal but the child's own.
    command.stdout(Stdio::null());
    let (mut shown, mut ours) = (Vec::new(), File::from(ours));
    let mut piece = [0; 4096];
    // It ends with an error when the last one has closed it.
    while let Ok(length @ 1..) = ours.read(&mut piece) {
        shown.extend_from_slice(&piece[..length]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}

#[test]
fn a_line_that_is_none_is_told_to_programs_as_all_else_is() {
    for line in [
        "ls --nope",
        "nic add",
        "disk",
        "",
        "frobnicate",
        "disk add a --queues 99",
        "show a --memory 1G",
        "disk move a --to -1",
        "top --interval nan",
        "serve --config",
    ] {
        let words = || line.split_whitespace();
        let (code, out, error) = run(Command::new(PROGRAM).args(words()).arg("--json"));
        assert_eq!((code, out.as_str()), (2, ""), "{line}: {error}");
        let told = json(&error);
        assert!(told["error"].as_str().is_some_and(|text| !text.is_empty()), "{line}: {error}");
        assert!(!error.contains("launcher"), "{line}: {error}");
        let (code, out, error) = run(Command::new(PROGRAM).args(words()));
        assert_eq!((code, out.as_str()), (2, ""), "{line}");
        assert!(serde_json::from_str::<serde_json::Value>(&error).is_err(), "{line}: {error}");
    }
    // What was asked for is no mistake.
    let (code, out, error) = run(Command::new(PROGRAM).args(["disk", "--json", "--help"]));
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(out.contains("Usage: sidecore disk"), "{out}");
}
