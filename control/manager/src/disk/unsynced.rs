//! Disks that once could not make data stable, remembered beyond the daemon's end.
//!
//! The kernel tells of a lost page once. A disk keeps that in mind as long as it is open
//! (`backend::Disk::sync_failed`); after a crash, the successor's first flush would succeed and hide
//! it. So control leaves a mark on disk, and a disk that has one is opened as failed until an
//! operator clears it. The image has a mark itself where it takes one (`backend`), for whoever else opens it: that is put
//! there by the threads that look at images (`watch`), since the file system may not answer. Not here: what a failed disk refuses (`backend`).

use std::io;
use std::path::Path;

use config::Plan;
use config::plan::DiskPlan;
use names::Kept;
use tracing::{error, warn};

use crate::disk::DiskParts;
use crate::state;

/// What follows of it where an image has no mark.
pub(crate) const UNMARKED: &str =
    "another daemon that opens it does not know, nor does this one with another `state_dir`";
/// Longest mark that is read, bytes: a path, or a link and a name.
const MARK_BYTES_MAX: u64 = 16 << 10;

/// The marks of one daemon: a file for each disk, which says which image it was.
pub(crate) struct Unsynced {
    marks: Kept,
}

impl Unsynced {
    pub(crate) fn in_folder(state_dir: &str) -> Unsynced {
        Unsynced {
            marks: Kept::in_folder(Path::new(state_dir).join(state::UNSYNCED), MARK_BYTES_MAX),
        }
    }

    /// Whether disk `id` has a mark that was made for `image`. One that cannot be read, or was not
    /// finished, counts: it says that something was lost.
    pub(crate) fn has(&self, id: &str, image: &str) -> bool {
        match self.marks.read(id) {
            Ok(Some(text)) => text.is_empty() || text.trim_end_matches('\n') == image,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Marks disk `id`; when this returns, the mark survives a power cut.
    ///
    /// # Errors
    /// What the file system said; there may be no mark then.
    pub(crate) fn note(&self, id: &str, image: &str) -> io::Result<()> {
        let noted = self.marks.replace_for_good(id, &format!("{image}\n"));
        // A full file system has room for an empty file, mostly, and such a mark counts for any image.
        noted.or_else(|error| self.marks.replace_for_good(id, "").map_err(|_| error))
    }

    /// Marks a disk that has lost data, and says so.
    pub(crate) fn mark(&self, parts: &DiskParts) {
        let id = &parts.plan.id;
        let image = DiskParts::marked_as(&parts.plan).unwrap_or_default();
        error!(
            disk = id,
            "it could not make data stable: no flush succeeds until you have checked its data and say \
             `sidecore disk clear {id}`"
        );
        if let Err(error) = self.note(id, &image) {
            error!(disk = id, %error, "that could not be kept: a restart of the daemon forgets it");
        }
    }

    /// Takes the mark of disk `id` away, if there is one.
    ///
    /// # Errors
    /// What the file system said; the mark is still there.
    pub(crate) fn forget(&self, id: &str) -> io::Result<()> {
        self.marks.remove(id)
    }

    /// Whether the disk that `plan` has has a mark.
    pub(crate) fn is_lost(&self, plan: &DiskPlan) -> bool {
        DiskParts::marked_as(plan).is_some_and(|image| self.has(&plan.id, &image))
    }

    /// A disk that has a mark, here or on its image, is opened as failed, and so is one that had lost data when its image
    /// was given up. Whether it has one here.
    pub(crate) fn recall(&self, parts: &mut DiskParts) -> bool {
        let id = &parts.plan.id;
        let is_lost = self.is_lost(&parts.plan) || parts.lost_before;
        match (is_lost, parts.disk.is_marked()) {
            (true, _) => {
                warn!(disk = id, "it could not make data stable before; no flush succeeds")
            }
            (false, true) => warn!(
                disk = id,
                "its image is marked: a daemon could not make data stable in it before; no flush succeeds until you \
                 have checked its data and say `sidecore disk clear {id}`"
            ),
            (false, false) => {}
        }
        match is_lost {
            true => parts.assume_lost(),
            false => parts.lost_before = false,
        }
        is_lost
    }

    /// Says once of a disk that has lost data that its image could not be marked, or takes no mark.
    pub(crate) fn say_unmarked(parts: &mut DiskParts) {
        let unmarked = parts.disk.unmarked();
        if let Some(error) = unmarked.filter(|_| !parts.unmarked_said) {
            let id = &parts.plan.id;
            warn!(
                disk = id,
                "that it has lost data does not stand on its image ({error}): {UNMARKED}"
            );
        }
        parts.unmarked_said = unmarked.is_some();
    }

    /// A disk is gone for good, and with it what was said of it. One that is only made anew, because
    /// its part of the file was changed, keeps its mark.
    pub(crate) fn forget_gone(&self, id: &str, plan: &Plan) {
        if plan.disk(id).is_none()
            && let Err(error) = self.forget(id)
        {
            warn!(disk = id, %error, "its mark of lost data could not be removed");
        }
    }
}

/// What an operator reads of a disk that has lost data.
pub(crate) fn words(parts: &DiskParts) -> String {
    let id = &parts.plan.id;
    if parts.locks.is_fenced() {
        return format!(
            "the disk could not make data stable, and what it lost is not known: when its image is here, check its \
             data and say `sidecore disk clear {id}`"
        );
    }
    if parts.lost_before {
        return format!(
            "it could not make data stable before, and what was lost is not known; its image is elsewhere by now: check \
             its data, and say `sidecore disk clear {id}`, also where its guest is"
        );
    }
    let mut text = format!(
        "the disk could not make data stable, and what it lost is not known: no flush succeeds until you have \
         checked its data and say `sidecore disk clear {id}`"
    );
    if parts.locks.may_part() {
        text += "; its image stays locked here until then, also for a guest that moves";
    }
    if let Some(error) = parts.disk.unmarked() {
        text += &format!("; that does not stand on its image ({error}): {UNMARKED}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Unsynced;

    #[test]
    fn a_mark_belongs_to_one_disk_and_its_image() {
        let folder = tempfile::tempdir().expect("a folder");
        let marks = Unsynced::in_folder(folder.path().to_str().expect("text"));
        assert!(!marks.has("vm1", "/srv/vm1.img"));
        marks.note("vm1", "/srv/vm1.img").expect("written");
        assert!(marks.has("vm1", "/srv/vm1.img"));
        assert!(!marks.has("vm1", "/srv/other.img") && !marks.has("vm2", "/srv/vm1.img"));
        marks.forget("vm1").expect("removed");
        assert!(!marks.has("vm1", "/srv/vm1.img"));
        marks.forget("vm1").expect("nothing to remove");
    }

    #[test]
    fn a_mark_that_cannot_be_read_or_was_not_finished_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let marks = Unsynced::in_folder(folder.path().to_str().expect("text"));
        std::fs::create_dir_all(folder.path().join("unsynced/vm1")).expect("a folder in its place");
        assert!(marks.has("vm1", "/srv/vm1.img"));
        std::fs::write(folder.path().join("unsynced/vm2"), "").expect("a file");
        assert!(marks.has("vm2", "/srv/vm2.img"));
    }
}
