//! Which commit a program says that it is of: the build script run on repositories of a test's own, and the
//! program as it was built here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sidecore");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs");

/// The script, built, and a folder with sources.
struct Bed {
    folder: TempDir,
    script: PathBuf,
}

impl Bed {
    fn new() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let mut rustc = Command::new(rustc);
        rustc.args(["--edition=2024", "-Awarnings", SCRIPT, "-o"]).arg(&script);
        assert!(rustc.status().unwrap().success());
        let bed = Bed { folder, script };
        fs::create_dir_all(bed.root().join("bin/sidecore")).unwrap();
        fs::write(bed.root().join("Cargo.toml"), "").unwrap();
        bed
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// The two values that cargo takes, and what it is to watch.
    fn run(&self, path: Option<&Path>) -> (String, String, Vec<String>) {
        let mut script = Command::new(&self.script);
        script.env("CARGO_MANIFEST_DIR", self.root().join("bin/sidecore"));
        script.env("CARGO_PKG_VERSION", "1.2.3");
        if let Some(path) = path {
            script.env("PATH", path);
        }
        let output = script.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let all = |key: &str| {
            let key = format!("cargo::{key}=");
            text.lines().filter_map(|line| line.strip_prefix(&key)).map(str::to_string).collect()
        };
        let one = |key: &str| {
            let found: Vec<String> = all(&format!("rustc-env={key}"));
            assert_eq!(found.len(), 1, "{text}");
            found.into_iter().next().unwrap()
        };
        (one("SIDECORE_COMMIT"), one("SIDECORE_VERSION"), all("rerun-if-changed"))
    }

    fn git(&self, folder: &Path, words: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(folder).args(["-c", "user.name=n", "-c", "user.email=e@example.org"]);
        git.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", self.folder.path());
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        let output = git.args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    }

    /// The folder is a repository from now on.
    fn commit_all(&self, folder: &Path) -> String {
        self.git(folder, &["init", "--quiet"]);
        self.git(folder, &["add", "--all"]);
        self.git(folder, &["commit", "--quiet", "--no-gpg-sign", "-m", "x"]);
        self.git(folder, &["rev-parse", "--short=12", "HEAD"])
    }
}

fn nothing() -> (String, String, Vec<String>) {
    (String::new(), "1.2.3".into(), vec!["build.rs".into()])
}

#[test]
fn a_repository_has_a_commit_and_may_be_dirty() {
    let bed = Bed::new();
    let commit = bed.commit_all(&bed.root());
    assert_eq!(commit.len(), 12);
    let (said, version, watched) = bed.run(None);
    assert_eq!((said.as_str(), version.as_str()), (&*commit, &*format!("1.2.3 ({commit})")));
    for wanted in ["/.git/HEAD", "/.git/logs/HEAD", "/bin", "/Cargo.toml"] {
        let is_wanted = |path: &String| path.ends_with(wanted) && Path::new(path).exists();
        assert!(watched.iter().any(is_wanted), "{wanted}: {watched:?}");
    }
    assert!(watched.iter().any(|path| path.contains("/.git/refs/heads/")), "{watched:?}");
    // What no program is made of.
    fs::write(bed.root().join("README.md"), "x").unwrap();
    assert_eq!(bed.run(None).0, commit);
    for (name, text) in [("Cargo.toml", "#"), ("bin/sidecore/new.rs", "")] {
        let before = fs::read(bed.root().join(name));
        fs::write(bed.root().join(name), text).unwrap();
        let version = format!("1.2.3 ({commit}-dirty)");
        assert_eq!(bed.run(None).1, version, "{name}");
        match before {
            Ok(bytes) => fs::write(bed.root().join(name), bytes).unwrap(),
            Err(_) => fs::remove_file(bed.root().join(name)).unwrap(),
        }
    }
    assert_eq!(bed.run(None).0, commit);
}

#[test]
fn a_tarball_has_none_nor_does_it_take_anothers() {
    let bed = Bed::new();
    assert_eq!(bed.run(None), nothing());
    // Unpacked in a repository of something else.
    bed.commit_all(bed.folder.path());
    assert_eq!(bed.run(None), nothing());
    // A repository without a commit, and a machine without git.
    let bed = Bed::new();
    bed.git(&bed.root(), &["init", "--quiet"]);
    assert_eq!(bed.run(None), nothing());
    bed.commit_all(&bed.root());
    assert_eq!(bed.run(Some(bed.folder.path())), nothing());
}

#[test]
fn the_program_says_what_it_was_built_from() {
    let output = Command::new(PROGRAM).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let rest = text.strip_prefix(&format!("sidecore {version}")).expect(&text).trim_end();
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short=12", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    // Absolute, so that a tarball in another repository is not taken for that one's.
    let has_repository = Path::new(SCRIPT).ancestors().nth(3).unwrap().join(".git").exists();
    match git.output() {
        Ok(commit) if has_repository && commit.status.success() => {
            let commit = String::from_utf8(commit.stdout).unwrap();
            let (commit, dirty) = (format!(" ({})", commit.trim()), commit.trim());
            assert!(rest == commit || rest == format!(" ({dirty}-dirty)"), "{text}");
        }
        _ => assert_eq!(rest, ""),
    }
}
