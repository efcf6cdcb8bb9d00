//! The kernel's small text files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes: the longest list of cpus is far shorter.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The files of one host.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    /// Those below a root; `/` for this host.
    pub(crate) fn below(root: &Path) -> Files {
        Files { root: root.to_path_buf() }
    }

    /// A file's text, trimmed; nothing if it cannot be read. At most its first 64 KiB.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.root.join(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_string())
    }

    /// A file's whole text.
    ///
    /// # Errors
    /// It cannot be read, or has more than so many bytes.
    pub(crate) fn whole(&self, path: &str, bytes_max: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.root.join(path))?;
        if file.take(bytes_max + 1).read_to_end(&mut bytes)? as u64 > bytes_max {
            return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's text as a number.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// A file's text as a list of cpus; empty if there is none or it is no list.
    pub(crate) fn cpus(&self, path: &str) -> Vec<u32> {
        self.text(path).and_then(|text| cpus::parse(&text).ok()).unwrap_or_default()
    }

    /// Whether something of that name is there.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The entries of a folder whose names begin so, and their numbers, sorted.
    pub(crate) fn numbered(&self, folder: &str, prefix: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> = entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }
}
