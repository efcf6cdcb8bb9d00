//! How disks of other machines stand ([`Standing`]), kept beyond the daemon's end, since guests outlive it: what was not
//! flushed, and then lost at the IOhost, has to be told to the same guest by the daemon's successor.
//!
//! A file for each disk that was asked for and not settled. It need not survive a power cut, which takes the guests along:
//! one of another boot of this machine says nothing. That data was lost stands in `unsynced`, which survives it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use names::Kept;
use remote::client::Standing;
use remote::wire::Verifier;
use tracing::warn;

/// Longest file that is read, bytes: four numbers, a link and a name.
const FILE_BYTES_MAX: u64 = 1024;

/// What is kept by one daemon.
pub(super) struct Standings {
    kept: Kept,
    /// This boot of the machine.
    machine: u64,
    /// As far as it was asked for or told: which disk of which link, and how it stands.
    known: BTreeMap<String, (String, Option<Standing>)>,
    /// Of these the file system has not taken the last word.
    unwritten: BTreeSet<String>,
}

impl Standings {
    pub(super) fn in_folder(state_dir: &str, machine: u64) -> Standings {
        let kept = Kept::in_folder(Path::new(state_dir).join("standings"), FILE_BYTES_MAX);
        Standings { kept, machine, known: BTreeMap::new(), unwritten: BTreeSet::new() }
    }

    /// How disk `id`, which is `whose`, stood last. Never lost: that is kept elsewhere.
    pub(super) fn of(&mut self, id: &str, whose: &str) -> Option<Standing> {
        let known = self.known.get(id).filter(|(of, _)| of == whose);
        known.map_or_else(|| self.read(id, whose), |(_, standing)| *standing)
    }

    fn read(&self, id: &str, whose: &str) -> Option<Standing> {
        let text = match self.kept.read(id) {
            Ok(text) => text?,
            Err(error) => {
                let path = self.kept.path(id);
                let path = path.display();
                warn!(disk = id, %error, "how it stood cannot be read from {path}: it is as a new one");
                return None;
            }
        };
        let mut words = text.split_whitespace();
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (machine, boot, contents, unflushed) = (number()?, number()?, number()?, number()?);
        let is_it = machine == self.machine && words.next() == Some(whose);
        let verifier = Some(Verifier { boot, contents });
        let is_unflushed = unflushed != 0;
        is_it.then_some(Standing { verifier, is_unflushed, is_lost: false, image: 0 })
    }

    /// Keeps how it stands now; when this returns, it survives the end of this process.
    ///
    /// # Errors
    /// The file system's. This process knows it all the same.
    pub(super) fn keep(
        &mut self,
        id: &str,
        whose: &str,
        standing: Option<Standing>,
    ) -> io::Result<()> {
        // Which image it is on is kept with those of all disks (`bonds`).
        let standing = standing
            .map(|standing| Standing { is_lost: false, image: 0, ..standing })
            .filter(|standing| standing.verifier.is_some());
        let now = (whose.to_string(), standing);
        let is_known = self.known.insert(id.to_string(), now.clone()) == Some(now);
        if is_known && !self.unwritten.contains(id) {
            return Ok(());
        }
        let kept = self.write(id, whose, standing);
        match kept {
            Ok(()) => self.unwritten.remove(id),
            // The next word of it tries again.
            Err(_) => self.unwritten.insert(id.to_string()),
        };
        kept
    }

    fn write(&self, id: &str, whose: &str, standing: Option<Standing>) -> io::Result<()> {
        let Some(Standing { verifier: Some(verifier), is_unflushed, .. }) = standing else {
            return self.kept.remove(id);
        };
        let Verifier { boot, contents } = verifier;
        let (machine, unflushed) = (self.machine, u8::from(is_unflushed));
        // Whole, or the one before: no disk is called so.
        let text = format!("{machine:x} {boot:x} {contents:x} {unflushed} {whose}\n");
        self.kept.replace(id, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(boot: u64, is_unflushed: bool) -> Option<Standing> {
        let verifier = Some(Verifier { boot, contents: u64::MAX });
        Some(Standing { verifier, is_unflushed, is_lost: false, image: 0 })
    }

    #[test]
    fn a_successor_knows_how_a_disk_stood_and_after_a_boot_nobody_does() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let mut first = Standings::in_folder(folder, 7);
        assert_eq!(first.of("vm1", "rack/db"), None);
        for kept in [standing(3, true), standing(u64::MAX, false), standing(4, true)] {
            let lost = kept.map(|one| Standing { is_lost: true, ..one });
            first.keep("vm1", "rack/db", lost).unwrap();
            assert_eq!(first.of("vm1", "rack/db"), kept, "what is lost is marked elsewhere");
            assert_eq!(Standings::in_folder(folder, 7).of("vm1", "rack/db"), kept);
        }
        // Another disk, the same name for another one, another boot.
        assert_eq!(Standings::in_folder(folder, 7).of("vm2", "rack/db"), None);
        assert_eq!(Standings::in_folder(folder, 7).of("vm1", "rack/web"), None);
        assert_eq!(Standings::in_folder(folder, 8).of("vm1", "rack/db"), None);
        first.keep("vm1", "rack/db", None).unwrap();
        assert_eq!(first.of("vm1", "rack/db"), None);
        assert_eq!(Standings::in_folder(folder, 7).of("vm1", "rack/db"), None);
        first.keep("vm1", "rack/db", None).unwrap();
    }

    #[test]
    fn what_cannot_be_kept_is_known_as_long_as_the_daemon_runs() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("standings"), "a file").unwrap();
        let mut kept = Standings::in_folder(folder.path().to_str().unwrap(), 7);
        assert!(kept.keep("vm1", "rack/db", standing(3, true)).is_err());
        assert_eq!(kept.of("vm1", "rack/db"), standing(3, true));
    }
}
