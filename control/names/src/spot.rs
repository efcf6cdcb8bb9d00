//! Where names are, as the kernel tells them apart: two paths that lead to one folder, and end in one name, are one name.
//!
//! Not here: whose the way is (`walk`), and what has the name. Nothing is opened.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use rustix::fs::stat;

/// A name: the folder's device and inode, and what follows that is not there yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    device: u64,
    inode: u64,
    rest: Vec<OsString>,
}

/// Spots of many names, of which many lie in one folder: each is asked for once.
#[derive(Debug, Default)]
pub struct Spots(HashMap<PathBuf, Option<Spot>>);

impl Spots {
    /// The spot of `path`, whether something is there or not; nothing where not even the root can be looked at.
    pub fn of(&mut self, path: &Path) -> Option<Spot> {
        let (above, name) = path.parent().zip(path.file_name())?;
        let above = self.0.entry(above.to_path_buf()).or_insert_with(|| folder(above));
        let mut spot = above.clone()?;
        spot.rest.push(name.to_os_string());
        Some(spot)
    }
}

/// The folder at `path`. What is missing of it will be made as it is spelled, so that `..` leads back there.
fn folder(path: &Path) -> Option<Spot> {
    let (mut there, mut rest) = (PathBuf::from("/"), Vec::new());
    for part in path.components() {
        match part {
            Component::Normal(name) if rest.is_empty() && stat(there.join(name)).is_ok() => {
                there.push(name);
            }
            Component::Normal(name) => rest.push(name.to_os_string()),
            Component::ParentDir if rest.pop().is_none() => there.push(".."),
            _ => {}
        }
    }
    let found = stat(&there).ok()?;
    Some(Spot { device: found.st_dev, inode: found.st_ino, rest })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn spellings_of_one_name_are_one_spot_and_others_are_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        std::fs::create_dir_all(root.join("run/deep")).expect("folders");
        symlink(root.join("run/deep"), root.join("link")).expect("a link");
        let mut spots = Spots::default();
        let mut of = |path: &str| spots.of(&root.join(path)).expect("a spot");
        let one = of("run/deep/a.sock");
        for same in [
            "run//deep/./a.sock",
            "run/../run/deep/a.sock",
            "link/a.sock",
            // As the kernel has it, and not as it is written: up from where the link leads.
            "link/../deep/a.sock",
            // `new` is made on the way.
            "run/new/../deep/a.sock",
        ] {
            assert_eq!(of(same), one, "{same}");
        }
        for other in ["run/a.sock", "run/deep/b.sock", "link/../a.sock"] {
            assert_ne!(of(other), one, "{other}");
        }
        // A folder that is made when the first of both is.
        assert_eq!(of("run/new/a.sock"), of("link/../new/../new/a.sock"));
        assert_ne!(of("run/new/a.sock"), of("run/new/x/a.sock"));
    }
}
