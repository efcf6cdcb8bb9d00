//! A process of this machine, as the kernel shows it: for what a daemon says of its own, which may be in others' hands.
//!
//! What a process was started with is its own choice, and so is how long that is: it proves nothing, and is read with a
//! bound. Called by `doctor` and `check`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};

/// Bytes of a file of the kernel's that are read, at most.
const BYTES_MAX: u64 = 1 << 20;

/// A process. It stays the same one: of one that has ended nothing is read, whoever has its number by then.
pub(crate) struct Process {
    folder: File,
}

impl Process {
    /// The one of that number; nothing, where none is seen.
    pub(crate) fn of(pid: u32) -> Option<Process> {
        File::open(format!("/proc/{pid}")).ok().map(|folder| Process { folder })
    }

    /// The words that it says it was started with.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let line = self.read("cmdline").unwrap_or_default();
        line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
    }

    /// Who started it.
    pub(crate) fn parent(&self) -> Option<u32> {
        self.stat()?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Whether a signal has stopped it, so that another one lets it go on.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stat().is_some_and(|stat| stat.trim_start().starts_with('T'))
    }

    /// The users that it is: its own, the one that decides what it may, and those that it may become again.
    pub(crate) fn users(&self) -> Option<Vec<u32>> {
        let status = self.read("status").ok()?;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    }

    /// The user that decides what it may.
    pub(crate) fn user(&self) -> Option<u32> {
        self.users()?.get(1).copied()
    }

    /// Whether names of files are those of the same files to it and to this process; nothing, where that is not shown.
    pub(crate) fn shares_names(&self) -> Option<bool> {
        let link = |name| rustix::fs::readlinkat(&self.folder, name, Vec::new()).ok();
        let own = std::fs::read_link("/proc/self/ns/mnt").ok()?;
        let its = link("ns/mnt")?;
        // It may have another root, too.
        let root = openat(&self.folder, "root", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = File::from(root.ok()?).metadata().ok()?;
        let own_root = Path::new("/").metadata().ok()?;
        let is_root = (root.dev(), root.ino()) == (own_root.dev(), own_root.ino());
        Some(is_root && its.as_bytes() == own.as_os_str().as_encoded_bytes())
    }

    /// What the kernel says of its state and what follows; its name before that may have anything in it.
    fn stat(&self) -> Option<String> {
        let stat = self.read("stat").ok()?;
        let stat = String::from_utf8_lossy(&stat);
        stat.rsplit_once(')').map(|(_, behind)| behind.to_string())
    }

    fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        let file = openat(&self.folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        File::from(file).take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_is_shown_as_it_is() {
        let own = Process::of(std::process::id()).expect("it is there");
        let user = rustix::process::geteuid().as_raw();
        assert_eq!((own.user(), own.users().map(|users| users.len())), (Some(user), Some(4)));
        assert_eq!(own.parent(), Some(std::os::unix::process::parent_id()));
        assert_eq!((own.shares_names(), own.is_stopped()), (Some(true), false));
        assert!(Process::of(u32::MAX).is_none());
    }

    #[test]
    fn of_one_that_has_ended_nothing_is_said() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("a process");
        let process = Process::of(child.id()).expect("it is there");
        assert!(process.users().is_some());
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert_eq!((process.users(), process.parent()), (None, None));
        assert_eq!(process.words(), [[0_u8; 0]]);
    }

    #[test]
    fn no_more_words_are_read_than_is_bounded() {
        let mut sleep = Command::new("sh");
        // A word may have 128 KiB.
        sleep.args(["-c", "read end"]).args((0..9).map(|_| "x".repeat(127 << 10)));
        let mut child = sleep.stdin(std::process::Stdio::piped()).spawn().expect("a process");
        // Between fork and exec it has this program's words.
        let shown = || Process::of(child.id()).expect("it is there").words();
        while shown().first().is_none_or(|word| word != b"sh") {
            std::thread::yield_now();
        }
        let words = shown();
        drop(child.stdin.take());
        child.wait().expect("it has ended");
        let bytes: usize = words.iter().map(|word| word.len() + 1).sum();
        assert_eq!(bytes as u64, BYTES_MAX + 1);
    }
}
