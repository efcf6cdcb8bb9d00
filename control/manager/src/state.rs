//! Devices made through the API, on disk: written whole, synced, renamed; never half. And that one daemon
//! alone keeps its state in a folder.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use config::Plan;
use config::api::ApiError;
use config::plan::{DiskPlan, NicPlan, Origin, SwitchPlan};
use config::saved::{self, Devices, DiskStages, SavedError};
use names::{Kept, Locking, Refused};
use rustix::io::Errno;
use tracing::{error, warn};

use crate::opening::apart;

mod looks;
mod seen;

pub(crate) use looks::{FolderLooks, Told};
pub(crate) use seen::SeenImages;

/// Longest state that is read, bytes: as many disks as there may be, whose paths are as long as they may be and written
/// twice.
const STATE_BYTES_MAX: u64 = 64 << 20;
const NAME: &str = "disks.json";
/// Which daemon keeps its state there: locked for as long as it lives.
pub(crate) const LOCK: &str = "lock";
/// The folder in it that says which image each guest is on.
pub(crate) const IMAGES: &str = "images";
/// The folder in it that has the marks of lost data.
pub(crate) const UNSYNCED: &str = "unsynced";
/// Between two tries of a process that has taken over: its predecessor has the lock until it has ended.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);
/// How often that may fail until it is told: predecessors end within seconds.
const TRIES_SILENT: u32 = 30;

/// Failure to have or to read what a daemon keeps. The file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Folder of another daemon.
    #[error("state_dir {folder} is kept by another daemon, {holder}")]
    Held {
        /// Its path.
        folder: String,
        /// Process that has its lock.
        holder: Holder,
    },
    /// Folder whose lock cannot be taken.
    #[error(
        "whether another daemon keeps state_dir {folder} cannot be told: {}: {source}: remove that file if none \
         does",
        path.display()
    )]
    Lock {
        /// Its path.
        folder: String,
        /// Path of the lock.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Failure to read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Text that is damaged, or of a newer program.
    #[error("{}: {source}", path.display())]
    Text {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        source: SavedError,
    },
    /// Device that does not go with the configuration file.
    #[error("{kind} {id:?} of {}: {source}; {}", path.display(), source.hint)]
    Device {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        id: String,
        /// Path of the file.
        path: PathBuf,
        /// Reason, with what to do.
        source: Box<ApiError>,
    },
}

/// Process that has the lock of a folder.
#[derive(Debug)]
pub struct Holder {
    /// Line that it wrote.
    words: String,
    /// Whether it can be seen, and lives.
    is_alive: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)?;
        match self.is_alive {
            true => Ok(()),
            // What is left of it has the lock then.
            false => f.write_str(
                ", which has ended, or cannot be seen from here; of one that has ended, another process may \
                 still be in a call to the kernel (`grep FLOCK /proc/locks` names it), as where a file system \
                 does not answer",
            ),
        }
    }
}

/// Where the state of a daemon is kept.
pub(crate) struct StateFile {
    kept: Kept,
    hold: Hold,
    /// The images that were there once.
    pub(crate) seen: SeenImages,
    /// What is kept of stages of the file's disks.
    pub(crate) staged: Vec<DiskStages>,
}

/// Whether other daemons are kept out.
enum Hold {
    /// As long as it is open.
    Ours(Lock),
    /// This one has to wait for its predecessor, whose program hands no lock over.
    Awaited { next: Instant, tries: u32 },
    /// The folder has no locks, or may not be written to: whoever writes to it is told.
    Unknown,
}

/// The lock of this daemon.
struct Lock {
    fd: OwnedFd,
    /// Device and number of its file, if they can be told.
    id: Option<(u64, u64)>,
}

impl From<OwnedFd> for Lock {
    fn from(fd: OwnedFd) -> Lock {
        let id = rustix::fs::fstat(&fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
        Lock { fd, id }
    }
}

impl StateFile {
    fn of(kept: Kept, hold: Hold) -> StateFile {
        StateFile { kept, hold, seen: SeenImages::default(), staged: Vec::new() }
    }

    /// Of a daemon that is started; others are kept out of its folder from now on.
    ///
    /// # Errors
    /// Another daemon has it: which one, and what to do. Or what was kept cannot be read, so that nothing is begun.
    pub(crate) fn of_a_start(folder: &str, api: &str) -> Result<StateFile, StateError> {
        StateFile::of_a_look(folder).read()?;
        let kept = Kept::in_folder(folder, STATE_BYTES_MAX);
        let folder = folder.to_string();
        let hold = lock(&kept, api).map_err(|why| match why {
            Unlocked::Held(holder) => StateError::Held { folder, holder },
            Unlocked::Unknown { path, source } => StateError::Lock { folder, path, source },
        })?;
        Ok(StateFile::of(kept, hold))
    }

    /// Of one that takes over, with its predecessor's `lock`. Without one it locks the folder when that has ended.
    pub(crate) fn of_an_heir(folder: &str, lock: Option<OwnedFd>, now: Instant) -> StateFile {
        let kept = Kept::in_folder(folder, STATE_BYTES_MAX);
        let awaited = Hold::Awaited { next: now + LOCK_INTERVAL, tries: 0 };
        let hold = lock.map_or(awaited, |lock| Hold::Ours(lock.into()));
        StateFile::of(kept, hold)
    }

    /// What an heir is handed, so that the folder is never without its lock.
    pub(crate) fn lock_held(&self) -> Option<BorrowedFd<'_>> {
        match &self.hold {
            Hold::Ours(lock) => Some(lock.fd.as_fd()),
            Hold::Awaited { .. } | Hold::Unknown => None,
        }
    }

    /// Which file the lock is, for [`check_folder`].
    pub(crate) fn lock_id(&self) -> Option<(u64, u64)> {
        match &self.hold {
            Hold::Ours(lock) => lock.id,
            Hold::Awaited { .. } | Hold::Unknown => None,
        }
    }

    /// Has the lock be the one that others find: one that was removed is taken anew.
    ///
    /// # Errors
    /// Another file is there, so another daemon may keep its state in the folder, or did.
    fn hold_on(&mut self, api: &str) -> io::Result<()> {
        let Some(id) = self.lock_id() else { return Ok(()) };
        match self.kept.file_id(LOCK)? {
            Some(found) if found == id => Ok(()),
            Some(_) => Err(io::Error::other(replaced(&self.kept))),
            None => {
                warn!("{}: removed, and made anew", self.kept.path(LOCK).display());
                self.hold = lock(&self.kept, api).map_err(io::Error::other)?;
                Ok(())
            }
        }
    }

    /// The heir has the lock, and this process may take long to end.
    pub(crate) fn let_lock_go(&mut self) {
        self.hold = Hold::Unknown;
    }

    /// Writes down that this process has the lock now. That it is held is what counts: a full file system keeps
    /// what was written before.
    pub(crate) fn note_holder(&self, api: &str) {
        if let Hold::Ours(lock) = &self.hold {
            let text = holder(api);
            let _ = rustix::fs::ftruncate(&lock.fd, 0)
                .and_then(|()| rustix::io::pwrite(&lock.fd, text.as_bytes(), 0));
        }
    }

    /// Tries again, where a predecessor had the lock.
    pub(crate) fn lock_when_due(&mut self, api: &str, now: Instant) {
        let Hold::Awaited { next, tries } = self.hold else { return };
        if next > now {
            return;
        }
        self.hold = lock(&self.kept, api).unwrap_or_else(|why| {
            if tries + 1 == TRIES_SILENT {
                error!(
                    "another daemon may keep its state in the same folder, {why}: each overwrites what the other \
                     keeps; stop one of them"
                );
            }
            Hold::Awaited { next: now + LOCK_INTERVAL, tries: tries.saturating_add(1) }
        });
    }

    /// When that is.
    pub(crate) fn lock_due_at(&self) -> Option<Instant> {
        match self.hold {
            Hold::Awaited { next, .. } => Some(next),
            Hold::Ours(_) | Hold::Unknown => None,
        }
    }

    /// For whoever looks while no daemon runs, or beside one.
    pub(crate) fn of_a_look(folder: &str) -> StateFile {
        let kept = Kept::in_folder(folder, STATE_BYTES_MAX);
        StateFile::of(kept, Hold::Unknown)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.kept.path(NAME)
    }

    /// What was kept; nothing when nothing was.
    ///
    /// # Errors
    /// Unreadable, damaged, or of a newer program; the file is left as it is.
    pub(crate) fn read(&self) -> Result<Devices, StateError> {
        let path = self.path();
        match self.kept.read(NAME) {
            Ok(Some(text)) => {
                saved::read(&text).map_err(|source| StateError::Text { path, source })
            }
            Ok(None) => Ok(Devices::default()),
            Err(source) => Err(StateError::Read { path, source }),
        }
    }

    /// Keeps `devices`: when this returns they survive a power cut, and before, what was kept does.
    ///
    /// # Errors
    /// What the file system said; what was kept before is still there.
    pub(crate) fn write(&self, devices: &Devices) -> io::Result<()> {
        self.kept.replace_for_good(NAME, &saved::write(devices)).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path().display()))
        })
    }
}

/// That a daemon can keep what it has to in `folder`, as far as a look tells: nothing is written.
///
/// # Errors
/// Why not.
pub(crate) fn look_at(folder: &str) -> Result<(), Refused> {
    let parts = ["", IMAGES, UNSYNCED].map(|part| Path::new(folder).join(part));
    parts.into_iter().try_for_each(|part| Kept::in_folder(part, STATE_BYTES_MAX).look())
}

/// The same of a running daemon's, whose lock is the file `lock`, if it has one.
///
/// # Errors
/// Why not.
pub(crate) fn check_folder(folder: &str, lock: Option<(u64, u64)>) -> io::Result<()> {
    look_at(folder)?;
    let kept = Kept::in_folder(folder, STATE_BYTES_MAX);
    match (lock, kept.file_id(LOCK)) {
        (Some(lock), Ok(Some(found))) if found != lock => Err(io::Error::other(replaced(&kept))),
        (Some(_), Ok(None)) => Err(io::Error::other(format!(
            "{} was removed, so another daemon could be started on it: any change by command has it made anew",
            kept.path(LOCK).display()
        ))),
        _ => Ok(()),
    }
}

/// Another lock is there than the one that this daemon has.
fn replaced(kept: &Kept) -> String {
    let words = kept.read(LOCK).ok().flatten().unwrap_or_default();
    format!(
        "{} is another file than this daemon has locked: another daemon keeps its state there, or did ({}); nothing \
         more is kept: stop that one, and start this one anew",
        kept.path(LOCK).display(),
        words.lines().next().unwrap_or("nothing is in it")
    )
}

/// The lock of a folder in which a daemon may keep its state, as it was looked at.
#[derive(Debug)]
pub struct Keeper {
    folder: String,
    /// Line of its holder, or of the one before.
    words: String,
    /// Process that has it, if one lives and can be seen.
    pid: Option<u32>,
}

impl Keeper {
    /// Of that folder; nothing, where no daemon has ever kept anything, or nobody may look. No lock is taken.
    pub(crate) fn of(folder: &str) -> Option<Keeper> {
        let kept = Kept::in_folder(folder, STATE_BYTES_MAX);
        let (file, words) = kept.look_at_lock(LOCK).ok().flatten()?;
        Some(Keeper { folder: folder.to_string(), words, pid: backend::lock_holder(file.as_fd()) })
    }

    /// The process that has it, if one lives and can be seen.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether that process has it, as far as can be seen.
    pub fn is(&self, pid: u32) -> bool {
        match self.pid {
            Some(its) => its == pid,
            None => self.words.starts_with(&format!("process {pid},")),
        }
    }

    /// Where whoever has it is asked; nothing, where nobody is seen that has it.
    pub fn api(&self) -> Option<&str> {
        self.pid?;
        self.words.split_once("`api` is ").map(|(_, api)| api.trim_end())
    }

    /// What a start says that finds it held.
    pub fn refusal(self) -> Option<StateError> {
        let Keeper { folder, words, pid } = self;
        pid?;
        Some(StateError::Held { folder, holder: Holder { words, is_alive: true } })
    }
}

/// Whose the lock is, in words.
fn holder(api: &str) -> String {
    format!("process {}, whose `api` is {api}\n", std::process::id())
}

/// Takes the lock, and writes down who has it.
///
/// # Errors
/// Who has it.
fn lock(kept: &Kept, api: &str) -> Result<Hold, Unlocked> {
    match kept.lock(LOCK, &holder(api)) {
        Ok(Locking::Taken(lock)) => Ok(Hold::Ours(lock.into())),
        Ok(Locking::Held(words)) => Err(Unlocked::Held(Holder::of(words))),
        // Nothing is kept there either, or there are no locks.
        Err(error) if kept.is_closed() || has_no_locks(&error) => {
            warn!(
                "{}: not locked, so another daemon may use that folder too: {error}",
                kept.path(LOCK).display()
            );
            Ok(Hold::Unknown)
        }
        Err(source) => Err(Unlocked::Unknown { path: kept.path(LOCK), source }),
    }
}

/// Why a folder is not locked.
#[derive(Debug, thiserror::Error)]
enum Unlocked {
    /// By whom it is.
    #[error("{0}")]
    Held(Holder),
    /// Nobody knows whether it is, and why.
    #[error("{}: {source}", path.display())]
    Unknown { path: PathBuf, source: io::Error },
}

fn has_no_locks(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::ROFS].contains(&errno)
    })
}

impl Holder {
    /// Of what the holder of a lock has written: looks whether that process lives.
    fn of(words: String) -> Holder {
        let pid = words.strip_prefix("process ").and_then(|rest| rest.split(',').next());
        let state = pid.and_then(|pid| names::kernel_text(format!("/proc/{pid}/stat")).ok());
        let is_dead = state
            .is_none_or(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")));
        Holder { words, is_alive: !is_dead }
    }
}

/// Devices that are kept, planned beside those of the file.
pub(crate) struct Planned {
    pub(crate) disks: Vec<DiskPlan>,
    pub(crate) switches: Vec<SwitchPlan>,
    pub(crate) nics: Vec<NicPlan>,
    /// What commands had added to disks of the file.
    pub(crate) staged: Vec<DiskStages>,
    /// The images that were there once, if that was kept.
    pub(crate) images: Option<Vec<String>>,
}

/// Plans what `state` keeps into `plan`, which is that of the file.
///
/// # Errors
/// The state cannot be read, or which device does not go with the file, and what to do.
pub(crate) fn plan_kept(state: &StateFile, plan: &mut Plan) -> Result<Planned, StateError> {
    let kept = state.read()?;
    let wrong = |kind: &'static str, id: &str, error: ApiError| {
        let (id, path, source) = (id.to_string(), state.path(), Box::new(error));
        StateError::Device { kind, id, path, source }
    };
    for spec in &kept.groups {
        let group = plan.group_kept(spec).map_err(|e| wrong("group", &spec.id, e))?;
        plan.groups.push(group);
    }
    let (disks, switches, nics, images) = (Vec::new(), Vec::new(), Vec::new(), kept.images);
    plan.keep_staged(&kept.stages);
    let staged = kept.stages;
    let mut planned = Planned { disks, switches, nics, staged, images };
    for spec in &kept.disks {
        let disk = plan.disk_kept(spec).map_err(|e| wrong("disk", &spec.id, e))?;
        plan.disks.push(disk.clone());
        planned.disks.push(disk);
    }
    for spec in &kept.switches {
        let made = plan.switch_from_api(spec).map_err(|e| wrong("switch", &spec.id, e))?;
        plan.switches.push(made.clone());
        planned.switches.push(made);
    }
    for spec in &kept.nics {
        let nic = plan.nic_kept(spec).map_err(|e| wrong("nic", &spec.id, e))?;
        plan.nics.push(nic.clone());
        planned.nics.push(nic);
    }
    // What the file has is checked with the file.
    match apart::check(plan, None) {
        Err(same) if same.origin == Origin::Api => {
            let (kind, id) = (same.kind.word(), same.id.clone());
            Err(wrong(kind, &id, same.into()))
        }
        _ => Ok(planned),
    }
}

impl StateFile {
    /// Keeps what was made through the API, and that the images of these disks were there which are `open` now.
    ///
    /// # Errors
    /// What the file system said, or another daemon may have the folder; what was kept before still is.
    pub(crate) fn keep(&mut self, plan: &Plan, open: &[&str]) -> io::Result<()> {
        self.hold_on(&plan.daemon.api)?;
        let (seen, staged) = (self.seen.with(open, plan), plan.staged());
        let Plan { disks, switches, nics, groups, .. } = plan;
        let disks = disks.iter().filter(|disk| disk.origin == Origin::Api);
        let switches = switches.iter().filter(|switch| switch.origin == Origin::Api);
        let nics = nics.iter().filter(|nic| nic.origin == Origin::Api);
        let groups = groups.iter().filter(|group| group.origin == Origin::Api);
        self.write(&Devices {
            disks: disks.map(|disk| disk.spec.clone()).collect(),
            switches: switches.map(|switch| switch.spec.clone()).collect(),
            nics: nics.map(|nic| nic.spec.clone()).collect(),
            groups: groups.map(|group| group.spec.clone()).collect(),
            stages: staged.clone(),
            images: Some(seen.iter().cloned().collect()),
        })?;
        self.seen.set(seen);
        self.staged = staged;
        Ok(())
    }

    /// Whether it is kept already which images were there, and what commands have added to disks of the file.
    pub(crate) fn has_kept(&self, plan: &Plan, open: &[&str]) -> bool {
        self.seen.are(&self.seen.with(open, plan)) && self.staged == plan.staged()
    }
}
