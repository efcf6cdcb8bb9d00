//! Devices made through the API, on disk: written whole, synced, renamed; never half.

use std::io;
use std::path::PathBuf;

use config::Plan;
use config::plan::Origin;
use config::saved::{self, Devices};
use names::Kept;

use crate::manager::Manager;

/// Longest state that is read, bytes.
const STATE_BYTES_MAX: u64 = 16 << 20;
const NAME: &str = "disks.json";

/// Where the state of a daemon is kept.
pub(crate) struct StateFile {
    kept: Kept,
}

impl StateFile {
    pub(crate) fn in_folder(folder: &str) -> StateFile {
        StateFile { kept: Kept::in_folder(folder, STATE_BYTES_MAX) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.kept.path(NAME)
    }

    /// What was kept; nothing when nothing was.
    ///
    /// # Errors
    /// Unreadable, damaged, or of a newer program; the file is left as it is.
    pub(crate) fn read(&self) -> Result<Devices, String> {
        let path = self.path();
        let wrong = |what: String| format!("{}: {what}", path.display());
        match self.kept.read(NAME).map_err(|e| wrong(e.to_string()))? {
            Some(text) => saved::read(&text).map_err(|e| wrong(e.to_string())),
            None => Ok(Devices::default()),
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

impl Manager {
    /// What was made through the API, to be kept.
    pub(crate) fn keep(&self) -> std::io::Result<()> {
        let Plan { disks, switches, nics, groups, .. } = &self.plan;
        let disks = disks.iter().filter(|disk| disk.origin == Origin::Api);
        let switches = switches.iter().filter(|switch| switch.origin == Origin::Api);
        let nics = nics.iter().filter(|nic| nic.origin == Origin::Api);
        let groups = groups.iter().filter(|group| group.origin == Origin::Api);
        self.state.write(&Devices {
            disks: disks.map(|disk| disk.spec.clone()).collect(),
            switches: switches.map(|switch| switch.spec.clone()).collect(),
            nics: nics.map(|nic| nic.spec.clone()).collect(),
            groups: groups.map(|group| group.spec.clone()).collect(),
        })
    }
}
