//! A program of this system, or one of Debian 13's that is unpacked beside it.
//!
//! The latter are run by their own loader and libraries, since those of this system are older. Not
//! the unpacking, which `x.d/packages.sh` does.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::vm::build_folder;

/// Of the packages' root: libraries, and the loader that takes them.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";

/// How a program is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// One that is installed, by its name.
    Installed(String),
    /// One of the packages below this root.
    Unpacked(PathBuf, String),
}

impl Program {
    /// One that is installed.
    pub fn installed(name: &str) -> Program {
        Program::Installed(name.to_owned())
    }

    /// Debian 13's.
    ///
    /// # Errors
    /// It is not unpacked.
    pub fn of_debian_13(name: &str) -> Result<Program> {
        Program::below(&build_folder().join("debian-13/root"), name)
    }

    fn below(root: &Path, name: &str) -> Result<Program> {
        let program = root.join("usr/bin").join(name);
        ensure!(
            program.is_file() && root.join(LOADER).is_file(),
            "{name} of Debian 13 is not there: `./x bench peers` unpacks it where Debian can be reached"
        );
        Ok(Program::Unpacked(root.to_owned(), name.to_owned()))
    }

    /// What its command line begins with.
    pub fn words(&self) -> Vec<String> {
        match self {
            Program::Installed(name) => vec![name.clone()],
            Program::Unpacked(root, name) => {
                let word = |path: PathBuf| path.display().to_string();
                vec![
                    word(root.join(LOADER)),
                    "--library-path".to_owned(),
                    word(root.join(LIBRARIES)),
                    word(root.join("usr/bin").join(name)),
                ]
            }
        }
    }

    /// The name of a library of its own, for what it loads by name: the shortest that begins so. None
    /// of one that is installed, which finds its own.
    pub fn library(&self, begin: &str) -> Option<String> {
        let Program::Unpacked(root, _) = self else { return None };
        let entries = std::fs::read_dir(root.join(LIBRARIES)).ok()?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(begin)).min_by_key(String::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_unpacked_program_is_run_by_its_own_loader() {
        let root = Scratch::new(&std::env::temp_dir(), "unpacked").unwrap();
        let missing = Program::below(root.path(), "dpdk-testpmd").unwrap_err().to_string();
        assert!(
            missing.contains("dpdk-testpmd of Debian 13 is not there: `./x bench peers`"),
            "{missing}"
        );
        for path in ["usr/bin/dpdk-testpmd", LOADER] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::fs::create_dir_all(root.path().join(LIBRARIES)).unwrap();
        for name in ["librte_net_vhost.so", "librte_net_vhost.so.25.0", "librte_net_vhost.so.25"] {
            std::fs::write(root.path().join(LIBRARIES).join(name), "").unwrap();
        }
        let testpmd = Program::below(root.path(), "dpdk-testpmd").unwrap();
        let place = root.path().display();
        let words = [
            format!("{place}/{LOADER}"),
            "--library-path".to_owned(),
            format!("{place}/{LIBRARIES}"),
            format!("{place}/usr/bin/dpdk-testpmd"),
        ];
        assert_eq!(testpmd.words(), words);
        let driver = testpmd.library("librte_net_vhost.so.");
        assert_eq!(driver.as_deref(), Some("librte_net_vhost.so.25"));
        assert_eq!(Program::installed("dpdk-testpmd").words(), ["dpdk-testpmd"]);
        assert_eq!(Program::installed("dpdk-testpmd").library("librte_net_vhost.so."), None);
    }
}
