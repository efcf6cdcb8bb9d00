//! Devices made through the API, on disk: written whole, synced, renamed; never half.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use config::Plan;
use config::plan::Origin;
use config::saved::{self, Devices};

use crate::manager::Manager;

/// Longest state that is read, bytes.
const STATE_BYTES_MAX: u64 = 16 << 20;
const NAME: &str = "disks.json";

/// Where the state of a daemon is kept.
pub(crate) struct StateFile {
    folder: PathBuf,
}

impl StateFile {
    pub(crate) fn in_folder(folder: &str) -> StateFile {
        StateFile { folder: PathBuf::from(folder) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }

    /// What was kept; nothing when nothing was.
    ///
    /// # Errors
    /// Unreadable, damaged, or of a newer program; the file is left as it is.
    pub(crate) fn read(&self) -> Result<Devices, String> {
        let path = self.path();
        let wrong = |what: String| format!("{}: {what}", path.display());
        let length = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Devices::default()),
            Err(error) => return Err(wrong(error.to_string())),
        };
        if length > STATE_BYTES_MAX {
            return Err(wrong(format!("{length} bytes are no state of this program")));
        }
        let text = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
        saved::read(&text).map_err(|e| wrong(e.to_string()))
    }

    /// Keeps `devices`: when this returns they survive a power cut, and before, what was kept does.
    ///
    /// # Errors
    /// What the file system said; what was kept before is still there.
    pub(crate) fn write(&self, devices: &Devices) -> io::Result<()> {
        self.replace(devices).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.folder.display()))
        })
    }

    fn replace(&self, devices: &Devices) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let temporary = self.folder.join(format!("{NAME}.new"));
        let mut file = File::create(&temporary)?;
        file.write_all(saved::write(devices).as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, self.path())?;
        sync_folder(&self.folder)
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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
