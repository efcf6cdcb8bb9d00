//! Small file systems and loop devices that go away again. They need root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A mounted file system; unmounted when dropped, also when files of it are open.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    /// A tmpfs of so many bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn tmpfs(path: &Path, size_bytes: u64) -> Result<Mount> {
        let size = format!("size={size_bytes}");
        Mount::made(path, &["-t", "tmpfs", "-o", &size, "tmpfs"])
    }

    /// An ext4 of so many bytes in a file of its own.
    ///
    /// # Errors
    /// The system's.
    pub fn ext4(image: &Path, size_bytes: u64, path: &Path) -> Result<Mount> {
        std::fs::File::create(image)?.set_len(size_bytes)?;
        let image = image.display().to_string();
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image])?;
        Mount::made(path, &["-o", "loop", &image])
    }

    /// What an image holds, which is not changed.
    ///
    /// # Errors
    /// The system's.
    pub fn read_only(image: &Path, path: &Path) -> Result<Mount> {
        Mount::made(path, &["-o", "loop,ro", &image.display().to_string()])
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it read-only or writable.
    ///
    /// # Errors
    /// The system's.
    pub fn remount(&self, how: &str) -> Result<()> {
        let how = format!("remount,{how}");
        run("mount", &["-o", &how, &self.path.display().to_string()])
    }

    fn made(path: &Path, how: &[&str]) -> Result<Mount> {
        std::fs::create_dir(path)?;
        let place = path.display().to_string();
        run("mount", &[how, &[place.as_str()]].concat())?;
        Ok(Mount { path: path.into() })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.path.display().to_string()]);
    }
}

/// A loop device; detached when dropped.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
    backing: PathBuf,
}

impl Loop {
    /// One over a file that is there, with logical sectors of so many bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn over(backing: &Path, sector_size: u32) -> Result<Loop> {
        let sector = format!("--sector-size={sector_size}");
        let output = Command::new("losetup")
            .args(["--show", "--find", &sector])
            .arg(backing)
            .output()
            .context("running losetup")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "losetup: {said}");
        let device = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        Ok(Loop { device, backing: backing.into() })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// Fills it with zeroes. Nobody may have it open.
    ///
    /// # Errors
    /// The system's.
    pub fn zero(&self) -> Result<()> {
        let zeroes = vec![0; std::fs::metadata(&self.backing)?.len() as usize];
        let file = std::fs::File::options().write(true).open(&self.device)?;
        std::os::unix::fs::FileExt::write_all_at(&file, &zeroes, 0)?;
        Ok(file.sync_all()?)
    }

    /// Cuts the file under it off, as a medium that loses its end.
    ///
    /// # Errors
    /// The system's.
    pub fn cut_off(&self, size_bytes: u64) -> Result<()> {
        Ok(std::fs::File::options().write(true).open(&self.backing)?.set_len(size_bytes)?)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["-d", &self.device.display().to_string()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("running {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {said} (are you root?)");
    Ok(())
}
