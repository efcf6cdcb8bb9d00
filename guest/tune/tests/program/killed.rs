//! A process that is killed (SIGKILL) before or after each of its writes, and the next one, which takes all of it back.

use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::process::{Signal, getpid, kill_process};
use sidecore_tune::tree::Tree;
use tuning::change::{apply_rules, undo};
use tuning::guest::{Guest, Scope};
use tuning::journal::Journal;
use tuning::table::rules;
use tuning::{Place, System, Trouble};

use crate::{program, tree};

/// What a process that is to die is told: the tree, the command, at which write, before or after it.
const TOLD: &str = "SIDECORE_TUNE_DIES";

/// A tree whose process dies at a write.
struct Dying {
    tree: Tree,
    left: usize,
    is_after: bool,
}

impl Dying {
    fn step(&mut self, step: impl FnOnce(&mut Tree) -> Result<(), Trouble>) -> Result<(), Trouble> {
        let is_now = self.left == 0;
        self.left = self.left.wrapping_sub(1);
        if is_now && !self.is_after {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        let done = step(&mut self.tree);
        if is_now {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        done
    }
}

impl System for Dying {
    fn bytes(&mut self, path: &str, most: usize) -> Result<Vec<u8>, Trouble> {
        self.tree.bytes(path, most)
    }
    fn names(&mut self, folder: &str) -> Result<Vec<String>, Trouble> {
        self.tree.names(folder)
    }
    fn link(&mut self, path: &str) -> Result<String, Trouble> {
        self.tree.link(path)
    }
    fn parameter(&mut self, nic: &str, parameter: &str) -> Result<String, Trouble> {
        self.tree.parameter(nic, parameter)
    }
    fn write(&mut self, place: &Place, value: &str) -> Result<(), Trouble> {
        self.step(|tree| tree.write(place, value))
    }
    fn journal(&mut self) -> Result<Vec<u8>, Trouble> {
        self.tree.journal()
    }
    fn note(&mut self, line: &str) -> Result<(), Trouble> {
        self.step(|tree| tree.note(line))
    }
    fn cut(&mut self, length: usize) -> Result<(), Trouble> {
        self.step(|tree| tree.cut(length))
    }
    fn forget(&mut self) -> Result<(), Trouble> {
        self.step(Tree::forget)
    }
}

/// Does what it was told, and dies at it; without being told, nothing.
#[test]
fn a_process_that_dies() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let mut words = told.split(' ');
    let mut next = || words.next().unwrap().to_owned();
    let (root, command, left, is_after) = (next(), next(), next().parse().unwrap(), next());
    let mut tree = Tree::open(Path::new(&root), None).unwrap();
    tree.lock().unwrap();
    let mut system = Dying { tree, left, is_after: is_after == "after" };
    let guest = Guest::look(&mut system, Scope::Tree);
    let (mut journal, _) = Journal::open(&mut system, &guest.boot).unwrap();
    if command == "undo" {
        undo(&mut system, &mut journal, &guest, 1, false).unwrap();
        return;
    }
    let named: Vec<String> = rules().map(|rule| rule.name.to_owned()).collect();
    let outcomes = apply_rules(&mut system, &mut journal, &guest, &named).unwrap();
    assert!(!outcomes.is_empty());
}

fn dies(root: &Path, command: &str, at: usize, when: &str) -> ExitStatus {
    let told = format!("{} {command} {at} {when}", root.display());
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "killed::a_process_that_dies"]).env(TOLD, told);
    process.output().unwrap().status
}

fn undo_here(root: &Path) {
    let words = ["undo", "--root"];
    let mut process = Command::new(program());
    let output = process.args(words).arg(root).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// In memory, where there is such a place: a kill loses nothing of either, and thousands of syncs take their time.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn undo_after_a_kill_at_every_write_is_the_identity() {
    use std::os::unix::process::ExitStatusExt;
    let mut kills = 0;
    for when in ["before", "after"] {
        let mut at = 0;
        loop {
            let folder = folder();
            let root = folder.path();
            tree::make(root);
            let before = tree::kept(root);
            let status = dies(root, "apply", at, when);
            if status.signal().is_none() {
                assert!(status.success() && at > 40, "{status} at {at}");
                break;
            }
            // Undoing is killed too, at another write each time.
            kills += usize::from(dies(root, "undo", at % 7, when).signal().is_some());
            undo_here(root);
            assert!(tree::kept(root) == before, "killed {when} write {at}");
            assert_eq!(tree::journal(root), b"");
            (at, kills) = (at + 1, kills + 1);
        }
    }
    assert!(kills >= 100, "{kills} kills");
}
