//! Taps that this daemon made, remembered beyond its end: they stay when it stops, so that their
//! addresses and their place in a bridge do, and are removed with their port by whichever daemon has
//! it then.
//!
//! A mark holds for one boot of the host, since taps do not outlive it.

use std::io;
use std::path::Path;

use names::Kept;

/// Longest mark that is read, bytes: the number of a boot.
const MARK_BYTES_MAX: u64 = 64;

/// The marks of one daemon: a file for each tap, which says in which boot it was made.
pub(crate) struct MadeTaps {
    marks: Kept,
    boot: String,
}

impl MadeTaps {
    pub(crate) fn in_folder(state_dir: &str) -> MadeTaps {
        MadeTaps::of_boot(state_dir, boot().trim())
    }

    fn of_boot(state_dir: &str, boot: &str) -> MadeTaps {
        let marks = Kept::in_folder(Path::new(state_dir).join("taps"), MARK_BYTES_MAX);
        MadeTaps { marks, boot: boot.to_string() }
    }

    /// Whether a daemon of this state folder made the tap of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        matches!(self.marks.read(name), Ok(Some(boot)) if boot.trim() == self.boot)
    }

    /// All that daemons of this state folder made, as far as that can be read.
    pub(crate) fn all(&self) -> impl Iterator<Item = String> {
        let names = self.marks.names().unwrap_or_default().into_iter().map(|(name, _)| name);
        names.filter(|name| self.has(name))
    }

    /// Marks the tap of that name as made, or as not made by us.
    ///
    /// # Errors
    /// What the file system said; after a restart the tap is then taken for somebody else's.
    pub(crate) fn note(&self, name: &str, was_made: bool) -> io::Result<()> {
        match was_made {
            true => self.marks.replace(name, &format!("{}\n", self.boot)),
            false => self.marks.remove(name),
        }
    }
}

/// The boot of this machine. Where it is not told all have one.
fn boot() -> String {
    #[cfg(any(test, feature = "simulated"))]
    if let Some(machine) = crate::simulated::machine() {
        return machine.boot().to_string();
    }
    names::kernel_text("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::MadeTaps;

    #[test]
    fn a_mark_holds_for_one_tap_until_the_host_boots() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().to_str().expect("text");
        let taps = MadeTaps::of_boot(state, "b1");
        assert!(!taps.has("lan0"));
        taps.note("lan0", true).expect("written");
        assert!(taps.has("lan0") && !taps.has("lan1"));
        assert!(!MadeTaps::of_boot(state, "b2").has("lan0"), "the tap went with its boot");
        taps.note("lan0", false).expect("removed");
        assert!(!taps.has("lan0"));
        taps.note("lan0", false).expect("nothing to remove");
    }
}
