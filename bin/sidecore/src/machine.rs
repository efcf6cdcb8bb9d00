//! `client`: this machine's own kernel has disks and NICs, by VDUSE.
//!
//! Here: the file for the daemon, the daemon as a child, and which devices there are to be when. What is done for one is
//! `vduse`'s, and what is served is the child's (`serve`).

use std::fmt::Write as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use config::Plan;
use config::api::{DiskList, Removed};
use config::routes::Method;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use sd_notify::NotifyState;
use tracing::{error, info, warn};
use vduse::{Device, Kind, Spec, Verb};

use crate::cli::{ClientArgs, VdpaCommand};
use crate::client::Client;
use crate::failure::Failure;
use crate::serve;

/// Between two looks at what only time tells.
const TICK_MS: i64 = 200;
/// Ticks before a daemon that ended is started again.
const RESTART_TICKS: u32 = 5;
/// Ticks before a device that could not be is tried again.
const AGAIN_TICKS: u32 = 25;
/// Ticks between two looks at what the IOhosts say.
const LOOK_TICKS: u32 = 5;

/// Runs until it is told to end and has.
pub(crate) fn client(args: &ClientArgs) -> Result<(), Failure> {
    check_folder(&args.dir)?;
    let file = match &args.config {
        Some(file) => file.clone(),
        None => write_file(args)?,
    };
    let plan = serve::plan_of(&file)?;
    let wanted = wanted(&plan, &args.dir)?;
    vduse::need_vduse().map_err(|error| failed(&error))?;
    serve::start_log();
    // It looks into memory of the kernel, which may take it away.
    guest_memory::recover_from_sigbus().map_err(|error| failed(&error))?;
    // The kernel would wait for us, to write back what we take memory for.
    serve::never_wait_for_own_disks();
    let signals = signals().map_err(|error| failed(&error))?;
    Keeper {
        program: std::env::current_exe().map_err(|error| failed(&error))?,
        file,
        api: Client::new(plan.daemon.api.clone()),
        daemon: None,
        restart_in: 0,
        devices: wanted.into_iter().map(Tended::new).collect(),
        stops: 0,
        ticks: 0,
    }
    .run(&signals)
}

/// Asks the kernel's bus, and waits for it.
pub(crate) fn vdpa(command: &VdpaCommand) -> Result<(), Failure> {
    let (verb, name) = match command {
        VdpaCommand::Add { name } => (Verb::Add, name),
        VdpaCommand::Del { name } => (Verb::Remove, name),
    };
    vduse::ask(verb, name).map_err(|error| failed(&error))
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::host(error.to_string(), "see what `sidecore doctor` says of this host, and the log")
}

/// A daemon's file of what the command line says.
fn text(args: &ClientArgs) -> String {
    let dir = args.dir.display().to_string();
    let mut text = format!(
        "[daemon]\napi = {}\nrun_dir = {}\nstate_dir = {}\n\n[sidecores]\ncpus = {}\n\n[[link]]\nid = \"iohost\"\n\
         role = \"client\"\niohosts = [{}]\n",
        quoted(&format!("{dir}/api.sock")),
        quoted(&dir),
        quoted(&format!("{dir}/state")),
        quoted(&args.cpus),
        args.iohost.iter().map(|address| quoted(address)).collect::<Vec<_>>().join(", "),
    );
    let key_file = args.key_file.as_ref().and_then(|file| std::path::absolute(file).ok());
    let key_file = key_file.map(|file| file.display().to_string());
    let words = [
        ("iohost_key", &args.iohost_key),
        ("key_file", &key_file),
        ("security", &args.security),
        ("interface", &args.interface),
    ];
    for (field, value) in words {
        if let Some(value) = value {
            let _ = writeln!(text, "{field} = {}", quoted(value));
        }
    }
    let numbers = [("mtu", args.mtu.map(u32::from)), ("fail_after_s", args.fail_after_s)];
    for (field, value) in numbers {
        if let Some(value) = value {
            let _ = writeln!(text, "{field} = {value}");
        }
    }
    let devices = args.disk.iter().map(|disk| ("disk", "link", disk));
    for (kind, link, name) in devices.chain(args.nic.iter().map(|nic| ("nic", "by_link", nic))) {
        let (id, remote) = name.split_once('=').unwrap_or((name, name));
        let (id, remote) = (quoted(id), quoted(remote));
        let _ = write!(
            text,
            "\n[[{kind}]]\nid = {id}\n{link} = \"iohost\"\nremote = {remote}\nallow_unsealed_memory = true\n"
        );
    }
    text
}

/// As TOML has it.
fn quoted(word: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in word.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

fn write_file(args: &ClientArgs) -> Result<PathBuf, Failure> {
    let file = args.dir.join("sidecore.toml");
    std::fs::write(&file, text(args)).map_err(|error| {
        let hint = "run this as root, or name another folder with --dir";
        Failure::usage(format!("{}: {error}", file.display()), hint)
    })?;
    Ok(file)
}

/// Whether what is in flight can be kept there, and nobody else can change it.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let refused =
        |what: &str, hint: &str| Err(Failure::usage(format!("{}: {what}", folder.display()), hint));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let hint = "run this as root, or name another folder with --dir";
        Failure::usage(format!("{}: {error}", folder.display()), hint)
    })?;
    let kind = rustix::fs::statfs(folder).map_err(|error| failed(&error))?.f_type;
    let its = std::fs::metadata(folder).map_err(|error| failed(&error))?;
    if kind as u64 != TMPFS_MAGIC {
        let hint = "name a folder on a tmpfs with --dir: what is in flight is kept there as memory";
        return refused("it is on no tmpfs", hint);
    }
    let is_ours = its.uid() == rustix::process::geteuid().as_raw() && its.mode() & 0o022 == 0;
    match is_ours {
        true => Ok(()),
        false => refused(
            "others may write there",
            "name another folder with --dir, one that does not exist, or chown and chmod it",
        ),
    }
}

/// The devices of a plan.
fn wanted(plan: &Plan, folder: &Path) -> Result<Vec<Spec>, Failure> {
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let disks = plan.disks.iter();
    let disks = disks.map(|disk| (&disk.id, &disk.socket, Kind::Disk, disk.allow_unsealed_memory));
    let nics = plan.nics.iter().map(|nic| {
        let kind = Kind::Nic { mac: nic.mac.0, mtu: nic.mtu };
        (&nic.id, &nic.socket, kind, nic.allow_unsealed_memory)
    });
    let mut specs = Vec::new();
    for (id, socket, kind, allows) in disks.chain(nics) {
        if !allows {
            let hint =
                "write allow_unsealed_memory = true there: nobody can seal the kernel's memory";
            return Err(Failure::usage(format!("{id:?} takes sealed memory only"), hint));
        }
        let (name, socket, folder) = (id.clone(), PathBuf::from(socket), folder.to_path_buf());
        specs.push(Spec { name, socket, kind, folder, program: program.clone() });
    }
    match specs.is_empty() {
        true => Err(Failure::usage("no disks and no NICs", "name some with --disk and --nic")),
        false => Ok(specs),
    }
}

/// Readable when this process is told to end.
pub(crate) fn signals() -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

struct Tended {
    spec: Spec,
    device: Option<Device>,
    again_in: u32,
    is_ending: bool,
    /// Its IOhost has it no more.
    gone: Option<Removed>,
    has_said_in_use: bool,
}

impl Tended {
    fn new(spec: Spec) -> Tended {
        let (again_in, is_ending, has_said_in_use) = (0, false, false);
        Tended { spec, device: None, again_in, is_ending, gone: None, has_said_in_use }
    }

    /// Begins, ends, and says why.
    fn tend(&mut self, stops: u32) {
        let name = &self.spec.name;
        if let Some(device) = self.device.take_if(|device| device.is_over()) {
            self.is_ending = false;
            if let Err(error) = device.end() {
                error!(device = name, "{error}");
                self.again_in = AGAIN_TICKS;
            }
        }
        self.again_in = self.again_in.saturating_sub(1);
        let is_wanted = stops == 0 && self.gone.is_none();
        match &self.device {
            None if is_wanted && self.again_in == 0 && self.spec.socket.exists() => {
                match Device::start(self.spec.clone()) {
                    Ok(device) => self.device = Some(device),
                    Err(error) => error!(device = name, "{error}"),
                }
            }
            Some(device) if stops > 2 => device.leave(),
            Some(device) if !is_wanted && !self.is_ending => {
                // Taken from a file system whose requests wait, it would have the kernel wait as well.
                let may_stay = stops == 1 || stops == 0 && self.gone == Some(Removed::Waits);
                let in_use = may_stay.then(|| vduse::in_use(name)).flatten();
                match in_use {
                    Some(disk) => {
                        if !std::mem::replace(&mut self.has_said_in_use, true) {
                            warn!(
                                device = name,
                                "/dev/{disk} is in use, and stays until it is not"
                            );
                        }
                    }
                    None => {
                        device.remove();
                        self.is_ending = true;
                    }
                }
            }
            _ => {}
        }
    }
}

struct Keeper {
    /// As it was called at the start: its file may be replaced meanwhile.
    program: PathBuf,
    file: PathBuf,
    api: Client,
    daemon: Option<Child>,
    restart_in: u32,
    devices: Vec<Tended>,
    /// How often it was told to end.
    stops: u32,
    ticks: u32,
}

impl Keeper {
    fn run(mut self, signals: &UnixStream) -> Result<(), Failure> {
        loop {
            self.keep_daemon()?;
            // Of one that is gone it must be known now: it may be there again, and in use.
            let looks = self.ticks.is_multiple_of(LOOK_TICKS)
                || self.devices.iter().any(|tended| tended.gone.is_some());
            if looks && self.daemon.is_some() {
                self.ask_what_is_gone();
            }
            self.devices.iter_mut().for_each(|tended| tended.tend(self.stops));
            if self.ticks == 0 {
                serve::tell_systemd(NotifyState::Ready);
            }
            if self.stops > 0 && self.devices.iter().all(|tended| tended.device.is_none()) {
                return self.end_daemon();
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK_MS * 1_000_000 };
            let mut polled = [PollFd::new(signals, PollFlags::IN)];
            if matches!(poll(&mut polled, Some(&tick)), Ok(1..)) {
                let mut bytes = [0; 16];
                let told = rustix::io::read(signals, &mut bytes).unwrap_or(0);
                self.stops = self.stops.saturating_add(told as u32);
                info!("told to end");
                serve::tell_systemd(NotifyState::Stopping);
            }
            self.ticks = self.ticks.wrapping_add(1);
        }
    }

    /// The daemon runs, or is started after a moment.
    fn keep_daemon(&mut self) -> Result<(), Failure> {
        if let Some(daemon) = &mut self.daemon {
            let Some(status) = daemon.try_wait().map_err(|error| failed(&error))? else {
                return Ok(());
            };
            match status.signal() {
                Some(signal) => {
                    warn!("the daemon was killed by signal {signal}; it is started again")
                }
                None => warn!("the daemon ended ({status}); it is started again"),
            }
            self.daemon = None;
            self.restart_in = RESTART_TICKS;
        }
        if self.restart_in > 0 {
            self.restart_in -= 1;
            return Ok(());
        }
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--config").arg(&self.file).arg("--with-parent");
        command.env_remove("NOTIFY_SOCKET");
        match command.spawn() {
            Ok(daemon) => self.daemon = Some(daemon),
            // File systems may wait for it: not a reason to end.
            Err(error) => {
                error!("the daemon cannot be started, and is tried again: {error}");
                self.restart_in = AGAIN_TICKS;
            }
        }
        Ok(())
    }

    /// Which disks their IOhosts have removed.
    fn ask_what_is_gone(&mut self) {
        // A daemon that does not answer is being started.
        let Ok(list) = self.api.ask::<DiskList>(Method::Get, "/v1/disks") else { return };
        for disk in list.disks {
            let tended = self.devices.iter_mut().find(|tended| tended.spec.name == disk.id);
            let Some(tended) = tended.filter(|tended| tended.gone != disk.removed) else {
                continue;
            };
            tended.gone = disk.removed;
            tended.has_said_in_use = false;
            if tended.gone.is_some() {
                warn!(device = disk.id, "its IOhost has removed it: it is taken from the kernel");
            }
        }
    }

    fn end_daemon(self) -> Result<(), Failure> {
        let Some(mut daemon) = self.daemon else { return Ok(()) };
        if let Some(pid) = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        daemon.wait().map(|_| ()).map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &str) -> ClientArgs {
        let cli = Cli::read(line.split_whitespace()).unwrap_or_else(|error| panic!("{error}"));
        let Command::Client(args) = cli.command else { panic!("not client: {line}") };
        args
    }

    fn plan(line: &str) -> Plan {
        let host = cpus::HostCpus { online: vec![0, 1], auto: vec![1], ..Default::default() };
        config::plan::load(&text(&args(line)), "client", "/", &host, None)
            .unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    #[test]
    fn a_command_line_is_a_daemon_s_file() {
        let key = "5ab0".repeat(16);
        let plan = plan(&format!(
            "sidecore client --iohost 10.0.0.1:7447,10.0.0.2:7447 --iohost-key {key} --key-file /k --mtu 9000 \
             --fail-after-s 120 --disk db,log=vm1-log --nic web --dir /run/c"
        ));
        let names: Vec<_> = plan.disks.iter().map(|disk| (&*disk.id, &*disk.socket)).collect();
        assert_eq!(names, [("db", "/run/c/db.sock"), ("log", "/run/c/log.sock")]);
        assert_eq!((plan.nics[0].id.as_str(), plan.links[0].mtu), ("web", 9000));
        assert!(plan.disks.iter().all(|disk| disk.allow_unsealed_memory));
        assert_eq!(plan.daemon.api, "/run/c/api.sock");
    }

    #[test]
    fn a_link_without_ip_and_keys() {
        let plan = plan(
            "sidecore client --iohost 02:00:00:00:00:01 --interface eth1 --security none --disk db",
        );
        assert_eq!(plan.links[0].key_file, None);
    }

    #[test]
    fn no_word_breaks_out_of_its_quotes() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000Ad\"");
        let line = "sidecore client --iohost a --disk x\"\n[[disk]]\nid=\"y";
        let mut words = args("sidecore client --iohost a");
        words.disk = vec![line.to_string()];
        assert_eq!(text(&words).matches("\n[[disk]]").count(), 1);
    }

    #[test]
    fn memory_that_has_to_be_sealed_is_refused_in_words() {
        let mut plan = plan("sidecore client --iohost 10.0.0.1:1 --security none --disk db");
        plan.disks[0].allow_unsealed_memory = false;
        let folder = tempfile::tempdir().unwrap();
        let error = wanted(&plan, folder.path()).unwrap_err().text();
        assert!(error.contains("allow_unsealed_memory = true"), "{error}");
    }
}
