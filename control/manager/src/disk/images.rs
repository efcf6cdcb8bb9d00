//! Images by their names: what a back-end opens, found as `names` has it.
//!
//! Not here: when one is opened (`opening`, `locks`), and what is done with it (`backend`).

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;

use backend::{Cache, Disk, Names, OpenError, Source, Unopened, Waits};
use config::plan::DiskPlan;
use config::spec::OnFailure;
use names::{ImageKind, Refused};
use rustix::fs::{OFlags, fstat};
use tracing::{info, warn};

/// Name of an image that is not used, or under which none is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Name that is refused.
    #[error("{0}")]
    Name(#[from] Refused),
    /// Image that is missing and that cannot be made.
    #[error("{}", unmade(path, source))]
    Make {
        /// Its path.
        path: String,
        /// Reason.
        source: Refused,
    },
}

/// The same words as where it is opened.
fn unmade(path: &str, why: &Refused) -> String {
    match why {
        Refused::NoNew { .. } | Refused::NotMade { .. } | Refused::AmongDevices { .. } => {
            format!("cannot open {path}: {why}")
        }
        why => format!("{path} is missing, and cannot be made: {why}"),
    }
}

/// Which file an image is: its device, and its number there.
pub(crate) type FileId = (u64, u64);

/// How the image of one disk is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImageNames {
    user_folder: bool,
}

impl ImageNames {
    pub(crate) fn of(plan: &DiskPlan) -> ImageNames {
        ImageNames { user_folder: plan.user_folder }
    }
}

impl Names for ImageNames {
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Unopened> {
        Maker::new(*self).open(path, flags)
    }
}

/// The same, which knows what it has made.
pub(crate) struct Maker {
    names: ImageNames,
    made: Cell<Option<FileId>>,
}

impl Maker {
    pub(crate) fn new(names: ImageNames) -> Maker {
        Maker { names, made: Cell::default() }
    }

    /// The image that was missing and was made; nothing, if none was.
    pub(crate) fn made(&self) -> Option<FileId> {
        self.made.get()
    }
}

impl Names for Maker {
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Unopened> {
        let ImageNames { user_folder } = self.names;
        if !flags.contains(OFlags::CREATE) {
            let opened = names::open_image(path, user_folder, flags);
            // Whoever only asks what has its name now is told by the kernel.
            let is_asked = flags.contains(OFlags::PATH);
            return opened.map_err(|why| match why.is_missing() && !is_asked {
                true => unopened(names::as_device(path, why)),
                false => unopened(why),
            });
        }
        let opened = names::open_or_make_image(path, user_folder, flags - OFlags::CREATE);
        let (opened, is_new) = opened.map_err(unopened)?;
        if is_new {
            let stat = fstat(&opened).map_err(Unopened::Os)?;
            self.made.set(Some((stat.st_dev, stat.st_ino)));
        }
        Ok(opened)
    }
}

fn unopened(refused: Refused) -> Unopened {
    match refused {
        Refused::Os { source, .. } => Unopened::Os(source),
        Refused::Kind { .. } => Unopened::NotADisk,
        refused => Unopened::Refused(refused.to_string()),
    }
}

/// Has an image that was made survive a power cut, before anybody is told that it is there. Waits for its file system.
///
/// # Errors
/// Why not.
pub(crate) fn keep_made(path: &Path, names: ImageNames) -> Result<(), OpenError> {
    let failed = |source| OpenError::Os { what: "sync", path: path.into(), source };
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        machine.sync_made(path).map_err(failed)?;
    }
    names::sync_image(path, names.user_folder).map_err(|refused| match refused.errno() {
        Some(source) => failed(source),
        None => OpenError::Refused { path: path.into(), why: refused.to_string() },
    })
}

/// Removes an image that was made in vain, as long as nobody has it. Waits for its file system.
pub(crate) fn unmake(path: &Path, names: ImageNames, made: FileId) {
    match names::unmake_image(path, names.user_folder, made) {
        Ok(true) => info!("{}: made in vain, and removed", path.display()),
        Ok(false) => warn!("{}: made in vain, and another's by now: it stays", path.display()),
        Err(error) => warn!("an empty image that was made in vain stays: {error}"),
    }
}

/// What lies at the name of a disk's image; nothing, if nothing does or it may not be used.
pub(crate) fn kind_of(plan: &DiskPlan) -> Option<ImageKind> {
    let path = Path::new(plan.source.path()?);
    names::kind_of_image(path, plan.user_folder).ok().flatten()
}

/// Whether its name is refused, whatever the kernel says of it.
pub(crate) fn check(plan: &DiskPlan) -> Result<(), ImageError> {
    let Some(path) = plan.source.path() else { return Ok(()) };
    match names::kind_of_image(Path::new(path), plan.user_folder) {
        Err(refused) if refused.errno().is_none() => Err(refused.into()),
        _ => Ok(()),
    }
}

/// The name of a disk's image, if nothing is there.
pub(crate) fn missing(plan: &DiskPlan) -> Option<&str> {
    let path = plan.source.path()?;
    let kind = names::kind_of_image(Path::new(path), plan.user_folder);
    (kind == Ok(None)).then_some(path)
}

/// Whether its image is a device: one that is missing is to be activated, and is never made. Waits for its file system.
pub(crate) fn is_among_devices(plan: &DiskPlan) -> bool {
    plan.source.path().is_some_and(|path| names::is_among_devices(Path::new(path)))
}

/// What an operator reads of an image that is not here, and is missing when its locks are asked for.
pub(crate) fn is_away(plan: &DiskPlan, is_device: bool) -> String {
    let path = plan.source.path().unwrap_or_default();
    match is_device {
        true => format!("{path} is missing; {}", names::ACTIVATE),
        false => format!("{path} is missing: put it back"),
    }
}

/// What an operator reads of an image that was there once: it is not made anew, since it would hold nothing of what its
/// guest wrote. What he may do is harmless where its file system comes back meanwhile.
pub(crate) fn is_gone(plan: &DiskPlan, is_device: bool) -> String {
    let path = plan.source.path().unwrap_or_default();
    if is_device {
        return format!("its image {path} is missing, and was there before; {}", names::ACTIVATE);
    }
    let anew = match plan.source.size_bytes().is_some() && !plan.readonly {
        true => format!(" (or `touch {path}`, for an empty one)"),
        false => String::new(),
    };
    format!(
        "its image {path} is missing, and was there before; put it back, or mount its file system{anew}"
    )
}

/// How many bytes the file system has, if it says so, in which an image could be made at a name where nothing is.
///
/// # Errors
/// None can be made there, and why not.
pub(crate) fn can_be_made(plan: &DiskPlan) -> Result<Option<u64>, ImageError> {
    let Some(path) = plan.source.path() else { return Ok(None) };
    names::can_make_image(Path::new(path), plan.user_folder)
        .map_err(|source| ImageError::Make { path: path.to_string(), source })
}

/// Why the image of a disk is not one that this process may open, if so.
pub(crate) fn given_up(plan: &DiskPlan) -> Option<String> {
    confine::refuses_image(Path::new(plan.source.path()?))
}

/// Why a new size of that disk would be lost, if its image is a file that its path does not name any more.
pub(crate) fn lost_its_name(plan: &DiskPlan, disk: &Disk) -> Option<String> {
    let (path, own) = (plan.source.path()?, disk.file_id()?);
    if kind_of(plan) == Some(ImageKind::Block) {
        return None;
    }
    match file_of(plan) {
        Some(named) if named == own => None,
        Some(_) => Some(format!(
            "{path} is another file than the one that the disk is on: put that one back"
        )),
        None => missing(plan).map(|path| {
            format!(
                "{path} was removed or renamed, and what its guest writes is lost when the daemon closes it: \
                 put it back, or copy the disk from within the guest"
            )
        }),
    }
}

/// Which file the name of a disk's image leads to, by its device and its number there.
pub(crate) fn file_of(plan: &DiskPlan) -> Option<FileId> {
    let path = Path::new(plan.source.path()?);
    let found = names::open_image(path, plan.user_folder, OFlags::PATH).ok()?;
    let stat = fstat(&found).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// What the back-end is asked to open.
pub(crate) fn source_of(plan: &DiskPlan) -> Source {
    match &plan.source {
        // Whoever opens one asks its link (`remote`), and never comes here.
        config::Source::Remote { .. } => Source::Null { size_bytes: 0 },
        config::Source::Null { size_bytes } => Source::Null { size_bytes: *size_bytes },
        config::Source::Memory { size_bytes } => Source::Memory { size_bytes: *size_bytes },
        config::Source::File { path, size_bytes, cache } => Source::File {
            waits: waits_of(plan),
            path: path.into(),
            size_bytes: *size_bytes,
            readonly: plan.readonly,
            cache: match cache {
                config::spec::Cache::Auto => Cache::Auto,
                config::spec::Cache::Direct => Cache::Direct,
                config::spec::Cache::Page => Cache::Page,
            },
        },
    }
}

/// Which failures its requests wait out.
pub(crate) fn waits_of(plan: &DiskPlan) -> Waits {
    let waits = |on| on == OnFailure::Wait;
    Waits { full: waits(plan.on_full), failed: waits(plan.on_error) }
}
