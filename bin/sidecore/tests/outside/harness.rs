//! A daemon of a test's own and the commands that ask it. Used by the tests beside it.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sidecore");

/// A daemon in a folder of its own. Killed when dropped, so that a failed test leaves none.
pub(crate) struct Daemon {
    pub(crate) folder: tempfile::TempDir,
    notify: UnixDatagram,
    pub(crate) child: Child,
}

impl Daemon {
    /// Starts one and waits until it is ready. Every path in the file is in the folder.
    pub(crate) fn start(disks: &str) -> Daemon {
        Daemon::with_sidecores("max = 1", disks)
    }

    /// The same with other lines for its sidecores.
    pub(crate) fn with_sidecores(sidecores: &str, disks: &str) -> Daemon {
        Daemon::begin(Path::new(PROGRAM), sidecores, disks, None)
    }

    /// One that serves nothing, of the program at that path.
    pub(crate) fn of_program(program: &Path) -> Daemon {
        Daemon::begin(program, "max = 1", "", None)
    }

    /// One that another user runs, whose all is there. It takes root.
    pub(crate) fn of_user(user: u32, disks: &str) -> Daemon {
        Daemon::begin(Path::new(PROGRAM), "max = 1", disks, Some(user))
    }

    fn begin(program: &Path, sidecores: &str, disks: &str, user: Option<u32>) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        let notify = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
        let text = format!(
            "[daemon]\napi = \"run/api.sock\"\nrun_dir = \".\"\nstate_dir = \"state\"\n\
             [sidecores]\n{sidecores}\n{disks}"
        );
        std::fs::create_dir(folder.path().join("state")).unwrap();
        std::fs::write(folder.path().join("sidecore.toml"), text).unwrap();
        if let Some(user) = user {
            for name in ["", "notify", "state", "sidecore.toml"] {
                std::os::unix::fs::chown(folder.path().join(name), Some(user), Some(user)).unwrap();
            }
        }
        let child = Daemon::spawn(program, folder.path(), user);
        let daemon = Daemon { folder, notify, child };
        daemon.expect_notice("READY=1\n");
        daemon
    }

    /// What it logs is in `log`.
    fn spawn(program: &Path, folder: &Path, user: Option<u32>) -> Child {
        let mut command = Command::new(program);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
            .args(["serve", "--config", "sidecore.toml"])
            .current_dir(folder)
            .env("NOTIFY_SOCKET", folder.join("notify"))
            .env("SIDECORE_CONFINE", "strict")
            .stderr(File::options().append(true).create(true).open(folder.join("log")).unwrap())
            .spawn()
            .unwrap()
    }

    /// Starts it again, when it has ended.
    pub(crate) fn again(&mut self) {
        self.child = Daemon::spawn(Path::new(PROGRAM), self.folder.path(), None);
    }

    pub(crate) fn expect_notice(&self, wanted: &str) {
        let mut notice = [0; 256];
        let length = self.notify.recv(&mut notice).unwrap();
        assert_eq!(String::from_utf8_lossy(&notice[..length]), wanted);
    }

    pub(crate) fn run(&self, line: &str) -> (i32, String, String) {
        let api = self.folder.path().join("run/api.sock");
        run(Command::new(PROGRAM)
            .args(line.split(' '))
            .current_dir(self.folder.path())
            .env("SIDECORE_API", api))
    }

    /// Waits until it is kept in the daemon's `state_dir` that this image was there. A machine that is busy may take
    /// long to open it.
    #[expect(clippy::disallowed_methods, reason = "nobody is told what a daemon keeps")]
    pub(crate) fn keeps_image(&self, name: &str) {
        let kept = self.folder.path().join("state/disks.json");
        for _ in 0..1200 {
            if std::fs::read_to_string(&kept).is_ok_and(|text| text.contains(name)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} is not kept as seen\n{}", self.log());
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that took over, and is ended with its test.
pub(crate) struct Heir(pub(crate) Pid);

impl Heir {
    pub(crate) fn of(pid: &str) -> Heir {
        Heir(pid.parse().ok().and_then(Pid::from_raw).expect("a process"))
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Two addresses of this process alone, with a port that is none of those that the kernel gives out: one test has it.
pub(crate) fn addresses_of_its_own(port: u16) -> [SocketAddr; 2] {
    // A number of a process has 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    [64, 128].map(|which| SocketAddr::from(([127, which | high, middle, low], port)))
}

/// An IOhost that listens there.
pub(crate) fn iohost(address: &SocketAddr) -> String {
    format!(
        "[[disk]]\nid = \"m\"\nbackend = \"null\"\nsize = \"1M\"\n[[link]]\nid = \"rack\"\nrole = \"iohost\"\n\
         security = \"none\"\nudp = \"{address}\"\n[[link.client]]\nname = \"c\"\ndisks = [\"m\"]\n"
    )
}

pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
