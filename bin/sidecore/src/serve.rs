//! `serve`: from the file's text to a running daemon.
//!
//! Here is what only a program does: read the file, look at the host, log to stderr, tell systemd.
//! The rest is `manager::run`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::iter::once;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Plan;
use config::api::{ApiError, ErrorKind};
use config::spec::DaemonSpec;
use confine::{Landlock, Mode};
use cpus::HostCpus;
use manager::Unread;
use manager::upgrade::Heir;
use manager::upgrade::launcher::Launcher;
use names::{Purpose, SocketPlace};
use rustix::fs::OFlags;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, configure_io_flusher_behavior, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit,
};
use sd_notify::NotifyState;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use vcpu_tracker::{Tracker, Unavailable};

use crate::check;
use crate::cli::ServeArgs;
use crate::failure::Failure;
use crate::output::Output;

/// What to do about mistakes that say themselves what would be right.
const CORRECT: &str = "correct the file and reload again; nothing was changed";
/// Longest configuration file, in bytes: thousands of disks.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Checks the file, and unless that is all, serves until told to stop. With a `limit` another daemon's answer is waited
/// for no longer than that.
pub(crate) fn serve(
    args: &ServeArgs,
    limit: Option<Duration>,
    output: &Output,
) -> Result<(), Failure> {
    if args.with_parent {
        end_with_parent()?;
    }
    let heir = heir_of(args)?;
    let read = || -> Result<(ConfigFile, Plan), Failure> {
        let mut file = ConfigFile::named(&args.config)?;
        if !args.check {
            // Whoever asks a daemon where something is declared is in another folder.
            file.name = file.path.display().to_string();
        }
        file.is_chosen = !args.heir;
        // Its mistakes are said of the file as it was named.
        let plan = file.load(None).map_err(|failure| failure.in_file(&args.config))?;
        Ok((file, plan))
    };
    let (file, plan) = match (read(), &heir) {
        (Err(failure), Some(heir)) => heir.refuse(&failure.in_a_sentence()),
        (read, _) => read?,
    };
    if args.check {
        // The limits are those that a daemon would have which is started here.
        raise_nofile();
        image_folders(&plan.daemon, &file)?;
        return check::check((&file.name, &file.path), &plan, limit, output);
    }
    start_log();
    raise_nofile();
    if args.with_parent {
        never_wait_for_own_disks();
    }
    // Before anything else is open, and any right is dropped. An heir would be no child of the parent that this one is to
    // end with.
    let launcher = (!args.with_parent).then(Launcher::start);
    if let Some(Err(error)) = &launcher {
        tracing::warn!(%error, "no launcher could be started: there will be no upgrade");
    }
    // Before the first front-end can lend memory, and take it away again.
    let handled = guest_memory::recover_from_sigbus().map_err(|error| Failure::Daemon {
        error: format!("the handler for lost memory cannot be installed: {error}"),
        hint: "report it, with the kernel's version (`uname -r`)".to_string(),
    });
    let run_state = manager::wants_run_state(&plan).then(run_state).flatten();
    match (handled.and_then(|()| confine(&plan, &file)), &heir) {
        // Its daemon tells the operator.
        (Err(failure), Some(heir)) => heir.refuse(&failure.in_a_sentence()),
        (confined, _) => confined?,
    }
    let file = ConfigFile { is_chosen: false, ..file };
    let options = manager::Options {
        version: crate::version::VERSION,
        commit: crate::version::COMMIT,
        file: file.name.clone(),
        path: file.path.display().to_string(),
        load: Box::new(move |running: &Plan| read_again(&file, running)),
        ready: Box::new(|| tell_systemd(NotifyState::Ready)),
        // Until then its predecessor is what ends, or goes on, for all.
        committed: Box::new(|| tell_systemd(NotifyState::MainPid(std::process::id()))),
        stopping: Box::new(|| tell_systemd(NotifyState::Stopping)),
        launcher: launcher.and_then(Result::ok),
        run_state,
        heir,
        handed_over: Box::new(|pid| tell_systemd(NotifyState::MainPid(pid))),
    };
    manager::run(plan, options).map_err(|error| Failure::host(error.to_string(), error.hint()))
}

/// What sees which vCPUs run: it takes rights that are given up next.
fn run_state() -> Option<Result<Tracker, Unavailable>> {
    let mut seed = [0; 4];
    let random = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    let started = Tracker::start(u32::from_ne_bytes(seed));
    if let Err(why) = &started {
        tracing::warn!("which vCPUs run cannot be seen, so `redirect` does nothing: {why}");
    }
    random.is_ok().then_some(started)
}

/// The plan that a daemon with this file makes.
pub(crate) fn plan_of(file: &Path) -> Result<Plan, Failure> {
    ConfigFile::named(file)?.load(None)
}

/// A process that serves a disk of its own kernel must not wait for that disk when it takes memory. Where it may not
/// say so, it works all the same.
pub(crate) fn never_wait_for_own_disks() {
    // All that is mapped from now on counts, and a thread without CAP_IPC_LOCK would be refused its memory.
    let no_limit = Rlimit { current: None, maximum: None };
    let unlimited = setrlimit(Resource::Memlock, no_limit);
    let lock = || mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT);
    if let Err(error) =
        unlimited.and_then(|()| lock()).and_then(|()| configure_io_flusher_behavior(true))
    {
        tracing::warn!(%error, "its memory could not be kept out of its own disks' way");
    }
}

/// This process is told to end when its parent has ended, however that did.
fn end_with_parent() -> Result<(), Failure> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Failure::usage(format!("--with-parent: {error}"), "leave it out"))?;
    // It may have ended before that.
    match parent.is_none_or(|parent| parent == Pid::INIT) {
        true => Err(Failure::usage("--with-parent: there is none", "it is for `sidecore client`")),
        false => Ok(()),
    }
}

/// The launcher of a daemon that was started as `words`: its name, and what followed.
pub(crate) fn launch(words: &[OsString]) -> Result<(), Failure> {
    let (program, words) = words.split_first().ok_or_else(|| {
        Failure::usage("a launcher of nothing".to_string(), "it is run by the daemon")
    })?;
    manager::upgrade::launcher::run(Path::new(program), words).map_err(|error| {
        let hint = "it is run by the daemon, and of no use by itself";
        Failure::usage(format!("the launcher ends: {error}"), hint)
    })
}

/// The daemon's end of the channel, when this process is to take over from one.
fn heir_of(args: &ServeArgs) -> Result<Option<Heir>, Failure> {
    if !args.heir {
        return Ok(None);
    }
    let heir = Heir::from_stdin().map_err(|error| {
        let hint = "it is given by the daemon that is replaced: use `sidecore upgrade`";
        Failure::usage(format!("--heir: {error}"), hint)
    })?;
    Ok(Some(heir))
}

/// Gives up what is not needed from here on. Whatever must keep it is forked before; no thread is made
/// before.
fn confine(plan: &Plan, file: &ConfigFile) -> Result<(), Failure> {
    let failed = |error: confine::Error| {
        Failure::host(error.to_string(), "see what `sidecore doctor` says of this kernel")
    };
    let files = files(plan, file)?;
    let confined = {
        let needs = confine::Needs {
            speaks_ip: !plan.links.is_empty(),
            // Landlock holds nobody back from giving a file away (decision 22).
            gives_sockets_away: files.is_none() || plan.gives_sockets_away(),
        };
        confine::process(Mode::of_environment(), files.as_ref(), needs).map_err(failed)?
    };
    match (confined.mode, confined.landlock) {
        (Mode::Off, _) => {
            tracing::warn!("not confined: {}=off in the environment", confine::ENVIRONMENT);
        }
        (_, Landlock::Missing) => {
            tracing::info!("this kernel has no landlock: files are not restricted");
        }
        _ => {}
    }
    Ok(())
}

/// All that the daemon opens, with `image_folders`; nothing without. Its own folders are made if they are
/// not there.
fn files(plan: &Plan, file: &ConfigFile) -> Result<Option<confine::Files>, Failure> {
    let daemon = &plan.daemon;
    if daemon.image_folders.is_empty() {
        return Ok(None);
    }
    let images = image_folders(daemon, file)?;
    let own = own_folders(plan, file)?;
    // The file is read again by its name, and may be a link.
    let target = file.path.canonicalize().ok();
    let target = target.iter().filter_map(|target| target.parent()).map(Path::to_path_buf);
    let keys = plan.links.iter().filter_map(|link| link.key_file.as_ref()).map(PathBuf::from);
    // Who owners and groups of sockets are.
    let read = ["/proc", "/sys", "/etc/passwd", "/etc/group", &file.folder]
        .map(PathBuf::from)
        .into_iter()
        .chain(target);
    let read = read.chain(keys);
    let is_there = |path: &PathBuf| path.exists();
    let devices = [PathBuf::from("/dev/net/tun")].into_iter().filter(is_there).collect();
    Ok(Some(confine::Files { images, own, devices, read: read.filter(is_there).collect() }))
}

/// The folders of sockets and of state. One that is missing is made, where nobody else than root and the daemon's user
/// leads the way. A device without a folder for its socket has none, and the others go on.
fn own_folders(plan: &Plan, file: &ConfigFile) -> Result<Vec<PathBuf>, Failure> {
    let daemon = &plan.daemon;
    let of_socket = |path: &Path, purpose| {
        SocketPlace::make(path, purpose).map(|place| place.real_folder().to_path_buf())
    };
    let state = Path::new(&daemon.state_dir);
    let in_run = Path::new(&daemon.run_dir).join("socket");
    let apis = once(&daemon.api).chain(&daemon.api_read);
    let mut made = vec![
        (state, names::make_folder(state)),
        (Path::new(&daemon.run_dir), of_socket(&in_run, Purpose::Socket)),
    ];
    made.extend(apis.map(|api| (Path::new(api), of_socket(Path::new(api), Purpose::Own))));
    let mut own: Vec<PathBuf> = Vec::new();
    for (path, folder) in made {
        let folder = folder.map_err(|refused| {
            let hint = "correct the paths in the file, or make the folder for the daemon's user";
            Failure::host(format!("{}: {}: {refused}", file.name, path.display()), hint)
        })?;
        own.extend((!own.contains(&folder)).then_some(folder));
    }
    let disks = plan.disks.iter().map(|disk| &disk.socket);
    for socket in disks.chain(plan.nics.iter().map(|nic| &nic.socket)) {
        match of_socket(Path::new(socket), Purpose::Socket) {
            Ok(folder) => own.extend((!own.contains(&folder)).then_some(folder)),
            Err(refused) => tracing::warn!("no socket can be made at {socket}: {refused}"),
        }
    }
    Ok(own)
}

/// The folders that are to have all images.
fn image_folders(daemon: &DaemonSpec, file: &ConfigFile) -> Result<Vec<PathBuf>, Failure> {
    let image = |folder: &String| {
        Path::new(folder).canonicalize().map_err(|error| {
            let hint = "make it, or take it out of image_folders in [daemon]";
            Failure::host(format!("{}: image_folders: {folder:?}: {error}", file.name), hint)
        })
    };
    let images = daemon.image_folders.iter().map(image).collect::<Result<Vec<_>, _>>()?;
    for precious in
        [Some(file.path.clone()), file.path.canonicalize().ok(), std::env::current_exe().ok()]
    {
        let Some(precious) = precious else { continue };
        // Whoever can write these decides what an heir is, which has the rights of the start.
        if let Some(folder) = images.iter().find(|folder| precious.starts_with(folder)) {
            let (folder, precious) = (folder.display(), precious.display());
            let what = format!("{}: image_folders: {folder} has {precious} in it", file.name);
            let hint = "what is in image_folders can be written by a daemon that is taken over: name folders \
                        that have images only";
            return Err(Failure::usage(what, hint));
        }
    }
    Ok(images)
}

/// The configuration file, as named on the command line.
struct ConfigFile {
    name: String,
    path: PathBuf,
    folder: String,
    /// Whoever is told of it may name another one.
    is_chosen: bool,
    /// As they were at the start: the daemon leaves those of its sidecores to them, and a change of
    /// these takes a restart.
    host: HostCpus,
}

impl ConfigFile {
    fn named(path: &Path) -> Result<ConfigFile, Failure> {
        let name = path.display().to_string();
        let whole = std::path::absolute(path)
            .map_err(|error| Failure::usage(format!("{name}: {error}"), "name a file"))?;
        let folder = whole.parent().and_then(Path::to_str).map(str::to_string);
        let folder = folder.ok_or_else(|| {
            Failure::usage(format!("{name} is in no folder whose name is UTF-8"), "name a file")
        })?;
        let host = host::Topology::of_this_host().host_cpus();
        Ok(ConfigFile { name, path: whole, folder, is_chosen: true, host })
    }

    /// Reads it and makes a plan of it.
    fn load(&self, running: Option<&Plan>) -> Result<Plan, Failure> {
        let text = self.text()?;
        let plan = config::plan::load(&text, &self.name, &self.folder, &self.host, running);
        let plan = plan.map_err(Failure::Config)?;
        let hint = "give each device a socket of its own";
        manager::check::sockets(&plan).map_err(|error| Failure::usage(error, hint))?;
        Ok(plan)
    }

    fn text(&self) -> Result<String, Failure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            let hint = match (self.path.exists(), self.is_chosen) {
                (true, true) => "name a text file of UTF-8 that this user may read with --config",
                (true, false) => "put a text file of UTF-8 there that the daemon's user may read",
                (false, true) => {
                    "put it there, or name another one with --config; `sidecore docs FOLDER` writes what may be in it"
                }
                (false, false) => {
                    "put it back: it is the one that the daemon was started with, and another one takes a restart"
                }
            };
            Failure::usage(format!("{} cannot be read: {error}", self.name), hint)
        };
        // What is no file may never answer, or never end.
        let quiet = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options().read(true).custom_flags(quiet.bits() as i32).open(&self.path);
        let file = opened.map_err(|error| unreadable(&error))?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(unreadable(&"it is no regular file"));
        }
        let mut text = Vec::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
        if read.map_err(|error| unreadable(&error))? as u64 > FILE_BYTES_MAX {
            return Err(unreadable(&format!("it has more than {FILE_BYTES_MAX} bytes")));
        }
        String::from_utf8(text).map_err(|error| {
            let (right, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
            let line = right.iter().filter(|byte| **byte == b'\n').count() + 1;
            unreadable(&format!("line {line} is no UTF-8"))
        })
    }
}

/// Reads the file beside the plan in force.
fn read_again(file: &ConfigFile, running: &Plan) -> Result<Plan, Unread> {
    let wanted = file.load(Some(running)).map_err(|refused| {
        let of_an_heir = manager::of_an_heir(running, |beside| file.load(beside).ok());
        match of_an_heir {
            Some(_) => Unread { refused: upgrade_error(refused), of_an_heir },
            None => reload_error(refused).into(),
        }
    })?;
    // One that goes unnoticed until the next start would leave every guest without its disks.
    file.load(None).map_err(start_error)?;
    Ok(wanted)
}

/// What a reload is refused with: every mistake with its place.
fn reload_error(failure: Failure) -> ApiError {
    let (error, hint) = failure.parts();
    match hint.is_empty() {
        true => ApiError::new(ErrorKind::Refused, error, CORRECT),
        false => ApiError::new(ErrorKind::Refused, error, format!("{hint}; nothing was changed")),
    }
}

/// The same of a file that a process which takes over could do: what is wrong goes with the file that is in force.
fn upgrade_error(failure: Failure) -> ApiError {
    let error = match failure {
        Failure::Config(refusal) => refusal.in_a_line(),
        other => other.parts().0,
    };
    let hint = "`sidecore upgrade`, or a restart, puts this file into force; a reload goes by [daemon] and links as they \
                were when the daemon was started; nothing was changed";
    ApiError::new(ErrorKind::Refused, error, hint)
}

/// The same of a file that a reload could do, and a start could not.
fn start_error(failure: Failure) -> ApiError {
    let ApiError { kind, error, hint } = reload_error(failure);
    ApiError::new(kind, format!("a start would refuse this file: {error}"), hint)
}

/// What is logged by that word of `SIDECORE_LOG`: a level, or levels of parts of the program beside `info`. A word that
/// is neither names a part that is not there, so that nothing at all would be logged.
fn directives(word: &str) -> Option<String> {
    let parts = || word.split(',').map(str::trim).filter(|part| !part.is_empty());
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    let is_known = parts().all(|part| part.contains('=') || is_level(part));
    // The last level holds.
    is_known.then(|| once("info").chain(parts()).collect::<Vec<_>>().join(","))
}

pub(crate) fn start_log() {
    let word = std::env::var_os("SIDECORE_LOG").unwrap_or_default();
    let filter = word.to_str().and_then(directives).and_then(|it| EnvFilter::try_new(it).ok());
    let is_known = filter.is_some();
    let filter = filter.unwrap_or_else(|| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // A line that cannot be written is lost. To say so there would end the daemon.
        .log_internal_errors(false)
        .with_target(false);
    // Under systemd the journal has the time.
    match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.without_time().init(),
        None => log.init(),
    }
    if !is_known {
        tracing::warn!(
            "SIDECORE_LOG is {word:?}, and is to be error, warn, info, debug, trace or off: logging as with info"
        );
    }
}

/// Takes all the descriptors that this process may have: each queue takes up to five.
fn raise_nofile() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

pub(crate) fn tell_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(false, &[state]) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_known_as_one() {
        for (word, told) in [
            ("", Some("info")),
            (" DEBUG ", Some("info,DEBUG")),
            ("off", Some("info,off")),
            ("manager=trace", Some("info,manager=trace")),
            ("warn,manager=trace", Some("info,warn,manager=trace")),
            ("dbug", None),
            ("sidecore", None),
        ] {
            assert_eq!(directives(word).as_deref(), told, "{word}");
        }
        let all = "info,manager=trace,remote=off";
        assert!(EnvFilter::try_new(all).is_ok());
    }
}
