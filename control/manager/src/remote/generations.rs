//! How often each disk has changed hands, kept beyond the daemon's end: a client that had a disk before is
//! refused then, too (docs/decisions/0013, migration of a client).
//!
//! Beside the image, where every IOhost finds it that serves that; of what is no file, with the daemon's state. Read
//! and kept by whoever has the image's lock.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use config::plan::DiskPlan;
use names::{ImageKind, Kept};

use crate::disk::images;

/// Digits of the largest number, and an end of line: always so many bytes, so that one write replaces another.
const FILE_BYTES: usize = 21;

/// The numbers of one daemon.
pub(super) struct Generations {
    folder: PathBuf,
}

impl Generations {
    /// In a folder of that name, what is not kept beside its image.
    pub(super) fn in_folder(state_dir: &str, name: &str) -> Generations {
        Generations { folder: Path::new(state_dir).join(name) }
    }

    /// Beside the image of a disk, if that is a file and its folder is not another user's, who could change
    /// the number.
    pub(super) fn beside(plan: &DiskPlan) -> Option<&str> {
        let is_beside = images::kind_of(plan) == Some(ImageKind::File { is_users: false });
        plan.source.path().filter(|_| is_beside)
    }

    /// Where the number of disk `id` is, and its name there: beside `image`, or with the daemon's state.
    fn place(&self, id: &str, image: Option<&str>) -> io::Result<(Kept, String)> {
        let Some(image) = image else {
            return Ok((Kept::in_folder(&self.folder, FILE_BYTES as u64), id.to_string()));
        };
        let beside = Path::new(image).parent().zip(Path::new(image).file_name());
        let (folder, name) = beside.ok_or(ErrorKind::InvalidInput)?;
        let name = name.to_str().ok_or(ErrorKind::InvalidInput)?;
        Ok((Kept::in_folder(folder, FILE_BYTES as u64), format!("{name}.generation")))
    }

    /// What was kept of a disk last; 0 when nothing was.
    ///
    /// # Errors
    /// The file system's; `InvalidData` when it is no number: then nobody may have the disk, since one that had
    /// it before could not be told.
    pub(super) fn of(&self, id: &str, image: Option<&str>) -> io::Result<u64> {
        let (kept, name) = self.place(id, image)?;
        match kept.read(&name)? {
            None => Ok(0),
            // Nothing was told before the first number was stable.
            Some(text) if text.is_empty() => Ok(0),
            Some(text) => text.trim().parse().map_err(|_| {
                let what = format!(
                    "{} has no number: remove it when no client has the disk",
                    kept.path(&name).display()
                );
                io::Error::new(ErrorKind::InvalidData, what)
            }),
        }
    }

    /// Keeps a number; when this returns, it survives a power cut.
    ///
    /// # Errors
    /// The file system's; the number before may still be there.
    pub(super) fn keep(&self, id: &str, image: Option<&str>, generation: u64) -> io::Result<()> {
        // Within one sector: it is there whole, or not at all. In a folder of images nothing may be renamed.
        let text = format!("{generation:020}\n");
        debug_assert_eq!(text.len(), FILE_BYTES);
        let (kept, name) = self.place(id, image)?;
        kept.overwrite(&name, &text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_number_is_what_was_kept_last() {
        let folder = tempfile::tempdir().unwrap();
        let generations = Generations::in_folder(folder.path().to_str().unwrap(), "generations");
        let image = folder.path().join("db.img");
        fs::write(&image, "").unwrap();
        let image = image.to_str();
        for image in [None, image] {
            assert_eq!(generations.of("d", image).unwrap(), 0);
            for generation in [1, 7, u64::MAX, 8] {
                generations.keep("d", image, generation).unwrap();
                assert_eq!(generations.of("d", image).unwrap(), generation);
            }
        }
        // Another daemon with the same image knows.
        let other = tempfile::tempdir().unwrap();
        let other = Generations::in_folder(other.path().to_str().unwrap(), "generations");
        assert_eq!(other.of("x", image).unwrap(), 8);
        assert_eq!(other.of("d", None).unwrap(), 0);
        fs::write(folder.path().join("generations/d"), "x").unwrap();
        let error = generations.of("d", None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
