//! Which commit the program is made of, where git can say it; without git, or without a repository, nothing.
//!
//! Not here: the version, which is the workspace's. Run by cargo, which takes `SIDECORE_COMMIT` and
//! `SIDECORE_VERSION` from it; `src/version.rs` reads them.
#![expect(clippy::disallowed_macros, reason = "cargo is told by printing")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program is made of: a change elsewhere makes no other program.
const SOURCES: [&str; 6] = ["bin", "control", "data", "host", "Cargo.lock", "Cargo.toml"];
/// What git changes when another commit is the current one.
const MOVES: [&str; 3] = ["HEAD", "logs/HEAD", "packed-refs"];
const DIGITS: &str = "12";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let root = root.join("../..");
    let commit = commit(&root).unwrap_or_default();
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let told = if commit.is_empty() { version } else { format!("{version} ({commit})") };
    println!("cargo::rustc-env=SIDECORE_COMMIT={commit}");
    println!("cargo::rustc-env=SIDECORE_VERSION={told}");
}

/// The current commit, and whether the sources are others than it has.
fn commit(root: &Path) -> Option<String> {
    // The sources of a tarball may have been unpacked in somebody's repository of something else.
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let digits = format!("--short={DIGITS}");
    let mut commit = git(root, &["rev-parse", &digits, "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    if !git(root, &status)?.is_empty() {
        commit += "-dirty";
    }
    watch(root);
    Some(commit)
}

/// Cargo runs this again when one of these has changed. One that is not there would count as changed each time.
fn watch(root: &Path) {
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let of_git = MOVES.iter().copied().chain(branch.as_deref());
    let of_git = of_git.filter_map(|name| git(root, &["rev-parse", "--git-path", name]));
    let sources = SOURCES.iter().map(|name| name.to_string());
    for path in of_git.chain(sources).map(|path| root.join(path)).filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// What git answers, or nothing when it fails or is not there.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    // A hook that builds has these for its own repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let output = git.arg("--no-optional-locks").args(words).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}
