//! Two disks of one image, however its name is spelled: by `..`, by a link of either kind, by two names of a device.
//!
//! Not here: names that read the same, which are a mistake in the file (`config`). Called by `check`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use config::plan::DiskPlan;
use config::{Plan, Source};

use crate::failure::Failure;

/// What an image is, whatever its name.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// A file, by its file system and its number there.
    File(u64, u64),
    /// A block device.
    Device(u64),
    /// A name where nothing is yet, in a folder.
    Missing(u64, u64, OsString),
}

impl Identity {
    /// Nothing, where that cannot be seen.
    fn of(path: &Path) -> Option<Identity> {
        if let Ok(found) = path.metadata() {
            return Some(match found.file_type().is_block_device() {
                true => Identity::Device(found.rdev()),
                false => Identity::File(found.dev(), found.ino()),
            });
        }
        let folder = path.parent()?.metadata().ok()?;
        Some(Identity::Missing(folder.dev(), folder.ino(), path.file_name()?.to_os_string()))
    }
}

/// That no two disks have one image, unless all of them only read it.
///
/// # Errors
/// The first that has that of another one.
pub(super) fn is_nobody_elses(plan: &Plan) -> Result<(), Failure> {
    let mut taken: HashMap<Identity, &DiskPlan> = HashMap::new();
    for disk in &plan.disks {
        let Source::File { path, .. } = &disk.source else { continue };
        let Some(identity) = Identity::of(Path::new(path)) else { continue };
        let Some(other) = taken.insert(identity, disk) else { continue };
        if !(disk.readonly && other.readonly) {
            let name = |disk: &DiskPlan| super::at(&disk.origin, "disk", &disk.id);
            let error = format!(
                "{}: its image {path} is that of {} ({}), by another name",
                name(disk),
                name(other),
                other.source.path().unwrap_or_default()
            );
            let hint =
                "give each disk its own image; only disks that are all `readonly` may share one";
            return Err(Failure::host(error, hint));
        }
    }
    Ok(())
}
