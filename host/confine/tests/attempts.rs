//! What is forbidden, attempted on this kernel: in a process of its own for each, which confines itself
//! first. What became of it is what it printed, or the signal that ended it.

use std::fmt::Debug;
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use confine::{Files, Kind, Mode, Needs, process, thread};

/// Tells a child which attempt it is to make, and in which folder.
const ATTEMPT: &str = "CONFINE_ATTEMPT";
const FOLDER: &str = "CONFINE_FOLDER";
const SIGSYS: i32 = 31;

/// Runs the attempt of that name in a child: the test `attempt` of this program.
fn child(name: &str, folder: &Path) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "attempt", "--nocapture"]).env(ATTEMPT, name).env(FOLDER, folder);
    command.output().unwrap()
}

/// What the child printed of its attempt.
fn outcome(name: &str, folder: &Path) -> String {
    let output = child(name, folder);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find_map(|line| line.split_once("became: "));
    match said {
        Some((_, said)) => said.to_string(),
        None => panic!("{name}: {:?} {text}", output.status),
    }
}

/// A line of its own, for whoever started this.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

fn became<T, E: Debug>(result: Result<T, E>) {
    match result {
        Ok(_) => say("became: done"),
        Err(error) => say(&format!("became: {error:?}")),
    }
}

/// Only in a child.
#[test]
fn attempt() {
    let Ok(name) = std::env::var(ATTEMPT) else { return };
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let (mode, kind, what) = match name.split(' ').collect::<Vec<_>>()[..] {
        ["strict", kind, what] => (Mode::Strict, kind, what),
        ["off", kind, what] => (Mode::Off, kind, what),
        [kind, what] => (Mode::On, kind, what),
        _ => panic!("{name}"),
    };
    let files = Files {
        images: vec![folder.join("images")],
        own: vec![folder.join("run")],
        read: vec!["/proc".into()],
        ..Files::default()
    };
    let files = what.starts_with("file-").then_some(&files);
    process(mode, files, Needs::default()).unwrap();
    thread(match kind {
        "sidecore" => Kind::Sidecore,
        "api" => Kind::Api,
        "closer" => Kind::Closer,
        "parting" => Kind::Parting,
        "opener" => Kind::Opener,
        _ => Kind::Control,
    })
    .unwrap();
    make(what, &folder);
    // Not back through the harness, which does what no thread of the daemon does.
    std::process::exit(0);
}

fn make(what: &str, folder: &Path) {
    use rustix::{mount, process, system, thread};
    match what {
        "execve" => became::<(), _>(Err(Command::new("/bin/true").exec())),
        "mount" => became(mount::mount("none", "/proc", "proc", mount::MountFlags::empty(), None)),
        "chroot" => became(process::chroot("/")),
        "hostname" => became(system::sethostname(b"other")),
        "module" => {
            let file = UnixListener::bind(folder.join("m")).unwrap();
            became(system::finit_module(file, c"", 0));
        }
        "uid" => became(thread::set_thread_uid(rustix::fs::Uid::from_raw(1))),
        "descriptor" => {
            let flags = process::PidfdFlags::empty();
            let us = process::pidfd_open(process::getpid(), flags).unwrap();
            became(process::pidfd_getfd(us, 0, process::PidfdGetfdFlags::empty()));
        }
        "spawn" => became(Command::new("/bin/true").spawn()),
        "thread" => became(std::thread::Builder::new().spawn(|| ()).unwrap().join()),
        "udp" => became(UdpSocket::bind("127.0.0.1:0")),
        "listen" => became(UnixListener::bind(folder.join("socket"))),
        "open" | "file-open-other" => became(std::fs::read(folder.join("other"))),
        "file-open" => became(std::fs::read(folder.join("images/image"))),
        "file-link" => became(std::fs::read(folder.join("images/link"))),
        "file-make" => became(std::fs::write(folder.join("images/new"), "new")),
        "file-make-other" => became(std::fs::write(folder.join("new"), "new")),
        "file-truncate-other" => became(rustix::fs::open(
            folder.join("other"),
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
            rustix::fs::Mode::empty(),
        )),
        "file-listen" => became(UnixListener::bind(folder.join("run/socket"))),
        "file-listen-other" => became(UnixListener::bind(folder.join("images/socket"))),
        "file-move-out" => {
            became(std::fs::rename(folder.join("images/image"), folder.join("moved")));
        }
        "file-refused" => {
            for path in ["images/image", "images/made", "images/link", "other"] {
                say(&format!("became: {:?}", confine::refuses_image(&folder.join(path))));
            }
        }
        "rights" => {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let fields = ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp:"];
            let is_one = |line: &&str| fields.iter().any(|field| line.starts_with(field));
            let fields: Vec<&str> = status.lines().filter(is_one).collect();
            say(&format!("became: {}", fields.join(" ").replace('\t', "")));
        }
        other => panic!("no attempt is called {other}"),
    }
}

/// A folder with an image, a link out of it, and a file that is nobody's business.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    for name in ["images", "run"] {
        std::fs::create_dir(folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("images/image"), "image").unwrap();
    std::fs::write(folder.join("other"), "precious").unwrap();
    symlink(folder.join("other"), folder.join("images/link")).unwrap();
    place
}

#[test]
fn what_only_an_attacker_does_ends_the_process() {
    let place = place();
    for what in ["execve", "mount", "chroot", "hostname", "module", "uid", "descriptor"] {
        let ended = child(&format!("control {what}"), place.path()).status.signal();
        assert_eq!(ended, Some(SIGSYS), "{what}");
    }
}

#[test]
fn what_a_thread_has_no_use_for_is_refused_and_ends_nothing() {
    let place = place();
    for (kind, what) in [
        ("control", "udp"),
        ("control", "spawn"),
        ("sidecore", "thread"),
        ("sidecore", "udp"),
        ("sidecore", "listen"),
        ("sidecore", "open"),
        ("api", "open"),
        ("api", "spawn"),
        ("closer", "open"),
        ("closer", "listen"),
        ("opener", "listen"),
        ("parting", "open"),
        ("parting", "listen"),
    ] {
        if what == "thread" {
            // The harness's way to say that there is no thread is to panic.
            assert!(!child("sidecore thread", place.path()).status.success());
            continue;
        }
        let said = outcome(&format!("{kind} {what}"), place.path());
        assert!(said.contains("PermissionDenied"), "{kind} {what}: {said}");
    }
    assert!(!place.path().join("socket").exists());
    assert_eq!(outcome("control thread", place.path()), "done");
    assert_eq!(outcome("control open", place.path()), "done");
    assert_eq!(outcome("control listen", place.path()), "done");
}

#[test]
fn the_strict_form_ends_the_process_instead() {
    let place = place();
    for (kind, what) in [("control", "udp"), ("sidecore", "udp"), ("api", "listen")] {
        let ended = child(&format!("strict {kind} {what}"), place.path()).status.signal();
        assert_eq!(ended, Some(SIGSYS), "{kind} {what}");
    }
    // What the C library tries is refused and no more.
    let said = outcome("strict sidecore open", place.path());
    assert!(said.contains("PermissionDenied"), "{said}");
    assert_eq!(outcome("off control udp", place.path()), "done");
    assert_eq!(outcome("off sidecore spawn", place.path()), "done");
}

#[test]
fn files_outside_of_the_folders_are_not_reached_by_links_either() {
    if confine::landlock_abi().is_none_or(|abi| abi < 3) {
        return say("skipped: this kernel has no landlock, or an old one");
    }
    let place = place();
    for what in ["open", "make", "listen"] {
        assert_eq!(outcome(&format!("control file-{what}"), place.path()), "done", "{what}");
    }
    for what in ["open-other", "link", "make-other", "truncate-other", "listen-other", "move-out"] {
        let said = outcome(&format!("control file-{what}"), place.path());
        let denied = ["PermissionDenied", "code: 13", "CrossesDevices", "code: 18"];
        assert!(denied.iter().any(|word| said.contains(word)), "{what}: {said}");
    }
    assert_eq!(std::fs::read(place.path().join("other")).unwrap(), b"precious");
    assert!(!place.path().join("new").exists());
}

#[test]
fn an_image_that_was_given_up_is_named_with_what_to_do() {
    if confine::landlock_abi().is_none() {
        return say("skipped: this kernel has no landlock");
    }
    let place = place();
    let output = child("control file-refused", place.path());
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<&str> =
        text.lines().filter_map(|line| Some(line.split_once("became: ")?.1)).collect();
    let folder = place.path().display();
    let right = format!(
        "is in none of the daemon's image_folders: put it into one of {folder}/images; or add its folder \
         to image_folders in [daemon] of the file, then `sidecore upgrade`"
    );
    assert_eq!(
        said,
        [
            "None".to_string(),
            "None".to_string(),
            format!("Some(\"its image {folder}/images/link, which is {folder}/other, {right}\")"),
            format!("Some(\"its image {folder}/other, {right}\")"),
        ]
    );
}

#[test]
fn only_control_keeps_rights_and_few_of_them() {
    let place = place();
    let of = |kind: &str| outcome(&format!("{kind} rights"), place.path());
    for kind in ["sidecore", "api", "closer", "parting"] {
        // They cannot even read this: it is read before, by control's list.
        assert!(!child(&format!("{kind} rights"), place.path()).status.success(), "{kind}");
    }
    let said = of("control");
    assert!(said.contains("NoNewPrivs:1") && said.contains("Seccomp:2"), "{said}");
    let field = |name: &str| {
        let value = said.split_once(name).unwrap().1.split(' ').next().unwrap();
        u64::from_str_radix(value, 16).unwrap()
    };
    // DAC_OVERRIDE, NET_ADMIN, NET_RAW, IPC_LOCK, BPF.
    let most = 1 << 1 | 1 << 12 | 1 << 13 | 1 << 14 | 1u64 << 39;
    assert_eq!(field("CapEff:") & !most, 0, "{said}");
    assert_eq!(field("CapPrm:") & !most, 0, "{said}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(field("CapBnd:") & !most, 0, "{said}");
    }
}
