//! How often each disk has changed hands, kept beyond the daemon's end: a client that had a disk before is
//! refused then, too (docs/decisions/0013, migration of a client).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The numbers of one daemon: a file for each disk.
pub(crate) struct Generations {
    folder: PathBuf,
}

impl Generations {
    pub(crate) fn in_folder(state_dir: &str) -> Generations {
        Generations { folder: Path::new(state_dir).join("generations") }
    }

    /// What was kept of disk `id` last; 0 when nothing was.
    ///
    /// # Errors
    /// The file system's; `InvalidData` when it is no number: then nobody may have the disk, since one that had
    /// it before could not be told.
    pub(crate) fn of(&self, id: &str) -> io::Result<u64> {
        let path = self.folder.join(id);
        match fs::read_to_string(&path) {
            Ok(text) => text.trim_end().parse().map_err(|_| {
                let what = format!(
                    "{} has no number: remove it when no client has the disk",
                    path.display()
                );
                io::Error::new(io::ErrorKind::InvalidData, what)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Keeps a number; when this returns, it survives a power cut.
    ///
    /// # Errors
    /// The file system's; the number before is still there.
    pub(crate) fn keep(&self, id: &str, generation: u64) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // No disk is named so.
        let fresh = self.folder.join(format!("_{id}"));
        let mut file = File::create(&fresh)?;
        writeln!(file, "{generation}")?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join(id))?;
        // The folder may be new as well.
        let above = self.folder.parent().unwrap_or(&self.folder);
        [self.folder.as_path(), above].iter().try_for_each(|folder| File::open(folder)?.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_was_kept_last() {
        let folder = tempfile::tempdir().unwrap();
        let generations = Generations::in_folder(folder.path().to_str().unwrap());
        assert_eq!(generations.of("d").unwrap(), 0);
        for generation in [1, 7, u64::MAX] {
            generations.keep("d", generation).unwrap();
            assert_eq!(generations.of("d").unwrap(), generation);
        }
        fs::write(folder.path().join("generations/d"), "x").unwrap();
        assert_eq!(generations.of("d").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
