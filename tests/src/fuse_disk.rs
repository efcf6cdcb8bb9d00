//! A disk in the test's own process: a file of a FUSE file system that the daemon opens as any other.
//!
//! Every write and sync that reaches it is logged in one order with what the test's front-end sends
//! and sees, so that what a power cut would leave can be worked out for any moment
//! ([`crate::power_cut`]). It fails, waits, hangs and vanishes as told. Needs root, and no libfuse.

mod files;
mod journal;
mod later;
mod rules;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::mount::{UnmountFlags, unmount};
use testing::mounts::{Mount, detach};
use testing::scratch::{Scratch, is_in_one};

pub use journal::{Journal, Survivors, Sync, Write};
pub use rules::{Call, Counts, How, Rule, Tally, When};

use crate::ledger::Order;
use later::Later;
use rules::Rules;

/// The name of the one file.
const FILE: &str = "disk";
/// What its mounts are called in `/proc/self/mounts`, before the number of the process.
const SOURCE: &str = "sidecore-test-disk-";

/// What disk to make.
#[derive(Clone, Debug)]
pub struct FuseDiskSpec {
    /// Bytes.
    pub size_bytes: u64,
    /// Whether the kernel keeps written pages back until a sync or until it likes to
    /// (`FUSE_WRITEBACK_CACHE`); otherwise each write reaches the disk before it is done.
    pub writeback_cache: bool,
    /// Whose moments its log has.
    pub order: Order,
}

/// A mounted disk; unmounted when dropped, whoever has it open.
#[derive(Debug)]
pub struct FuseDisk {
    core: Arc<Core>,
    /// Ends when the kernel hangs up; dropping it alone would wait for those who have it open.
    session: Option<BackgroundSession>,
    folder: Scratch,
}

/// What the handlers of the file system and the test share.
#[derive(Debug)]
struct Core {
    state: Mutex<State>,
    later: Later,
    order: Order,
    writeback_cache: bool,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    journal: Journal,
    rules: Rules,
}

impl Core {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FuseDisk {
    /// Mounts one in a folder of its own; `name` tells several of one process apart.
    ///
    /// # Errors
    /// The system's; most likely that this is not root, or that there is no `/dev/fuse`.
    pub fn mount(name: &str, spec: &FuseDiskSpec) -> Result<FuseDisk> {
        sweep();
        let folder = Scratch::new(&std::env::temp_dir(), name)?;
        let state = State {
            bytes: vec![0; spec.size_bytes as usize],
            journal: Journal::default(),
            rules: Rules::default(),
        };
        let core = Arc::new(Core {
            state: Mutex::new(state),
            later: Later::start()?,
            order: spec.order.clone(),
            writeback_cache: spec.writeback_cache,
        });
        let mut config = Config::default();
        let source = format!("{SOURCE}{}", std::process::id());
        config.mount_options = vec![MountOption::FSName(source), MountOption::DefaultPermissions];
        config.acl = SessionACL::All;
        config.n_threads = Some(2);
        let files = files::Files::new(Arc::clone(&core));
        let session = fuser::spawn_mount(files, folder.path(), &config).with_context(|| {
            format!(
                "mounting a test disk on {} (needs root and /dev/fuse)",
                folder.path().display()
            )
        })?;
        Ok(FuseDisk { core, session: Some(session), folder })
    }

    /// The file that is the disk.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    /// The moments that its log has.
    pub fn order(&self) -> &Order {
        &self.core.order
    }

    /// From now on, until [`FuseDisk::heal`], calls go as the rule says. The first rule that
    /// applies to a call counts.
    pub fn obey(&self, rule: Rule) {
        self.core.state().rules.add(rule);
    }

    /// No rule any more, and whatever hangs or waits is answered.
    pub fn heal(&self) {
        self.core.state().rules.clear();
        self.core.later.release();
    }

    /// Calls so far, and those that a rule made fail.
    pub fn counts(&self) -> Counts {
        self.core.state().rules.counts()
    }

    /// What was written and synced so far.
    pub fn journal(&self) -> Journal {
        self.core.state().journal.clone()
    }

    /// The bytes of a range as a read would give them now.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.core.state().bytes[offset..offset + len].to_vec()
    }

    /// Changes the bytes behind everybody's back, as a lying medium does.
    pub fn spoil(&self, offset: usize, bytes: &[u8]) {
        self.core.state().bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Goes away as a yanked disk: what is open gives ENOTCONN from now on.
    ///
    /// # Errors
    /// It could not be unmounted.
    pub fn vanish(&mut self) -> Result<()> {
        self.core.later.release();
        end(self.folder.path())?;
        self.session = None;
        Ok(())
    }
}

impl Drop for FuseDisk {
    fn drop(&mut self) {
        if self.session.is_some()
            && let Err(error) = self.vanish()
        {
            // Not worth a failure of the test that has passed; the next mount sweeps it away.
            let _ = error;
        }
    }
}

/// Ends the connection (what waits gets ECONNABORTED) and takes the mount out of the tree, also when
/// files of it are open.
fn end(folder: &Path) -> Result<()> {
    // The first fails as busy when somebody has it open, but has ended the connection by then.
    let _ = unmount(folder, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    let is_there = Mount::all()?.iter().any(|mount| mount.place == folder);
    if is_there { detach(folder) } else { Ok(()) }
}

/// Unmounts those of processes that are gone, in folders of this user's tests.
fn sweep() {
    for Mount { source, place } in Mount::all().unwrap_or_default() {
        let owner = source.strip_prefix(SOURCE).and_then(|pid| pid.parse::<u32>().ok());
        let is_gone = owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if is_gone && is_in_one(&place) {
            let _ = detach(&place);
        }
    }
}
