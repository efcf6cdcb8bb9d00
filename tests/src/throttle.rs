//! A cgroup whose processes write to one block device slowly, so that a write stays in flight for
//! as long as a test needs. cgroup v1 and root only; who lacks them is told why.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use testing::daemon::await_that;

const BLKIO: &str = "/sys/fs/cgroup/blkio";
const LIMIT: &str = "blkio.throttle.write_bps_device";

/// The cgroup; removed with this value, when its processes are gone.
#[derive(Debug)]
pub struct Throttle {
    dir: PathBuf,
}

impl Throttle {
    /// For writes to the device that the file system of `folder` is on. The inner error is why this
    /// machine cannot do it.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path, bytes_per_second: u64) -> Result<Result<Throttle, String>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Err("only root may make cgroups".to_string()));
        }
        if !Path::new(BLKIO).join(LIMIT).exists() {
            return Ok(Err(format!("there is no {BLKIO}/{LIMIT} (cgroup v1 with blkio)")));
        }
        let number = std::fs::metadata(folder)?.dev();
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let Some(disk) = whole_disk(device) else {
            return Ok(Err(format!("{} is on no block device", folder.display())));
        };
        let dir = Path::new(BLKIO).join(format!("sidecore-test-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        let throttle = Throttle { dir };
        let line = format!("{disk} {bytes_per_second}");
        if let Err(error) = std::fs::write(throttle.dir.join(LIMIT), &line) {
            return Ok(Err(format!("writes to {disk} cannot be limited: {error}")));
        }
        Ok(Ok(throttle))
    }

    /// Its folder, to whose `cgroup.procs` a process is written.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let gone = || Ok(std::fs::remove_dir(&self.dir).is_ok());
        // An empty cgroup that is left harms nobody, and there is nobody to tell.
        let _ = await_that("the cgroup to be removed", gone);
    }
}

/// `major:minor` of the disk that a device is, or is a part of: limits are for whole disks.
fn whole_disk((major, minor): (u32, u32)) -> Option<String> {
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let device = std::fs::canonicalize(device).ok()?;
    let disk = if device.join("partition").exists() { device.parent()? } else { &device };
    Some(std::fs::read_to_string(disk.join("dev")).ok()?.trim().to_string())
}
