//! Folders for sockets, files and logs that go away, also after a crash.
//!
//! A folder carries the number of the process that made it; [`Scratch::new`] first removes those
//! whose process is gone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "sidecore-test-";

/// A folder that is removed with this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new empty folder in `parent`; `name` tells several of one process apart.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn new(parent: &Path, name: &str) -> Result<Scratch> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}-{name}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Scratch { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of processes that are gone. What cannot be removed stays.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX))
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
