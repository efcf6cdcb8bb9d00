//! What whoever asks how the folder of state is may rely on.

use std::time::Duration;

use config::api::{Answer, Call, DaemonView};

use crate::simulated::{Asked, Heard};
use crate::state::{StateError, StateFile};
use crate::trial::Trial;
use crate::trial::vmm::{Vmm, WRITE};

const DISK: &str = "[[disk]]\nid = \"a\"\nbackend = \"memory\"\nsize = \"1M\"\n";

fn heard(asked: &mut Asked) -> Option<DaemonView> {
    match asked.hear() {
        Heard::Nothing => None,
        Heard::Answer(answer) => match *answer {
            Ok(Answer::Daemon(shown)) => Some(*shown),
            other => panic!("{other:?}"),
        },
        Heard::Nobody => panic!("nobody answers"),
    }
}

/// A folder whose file system hangs holds up nobody but who asks for it, and he is told.
#[test]
fn nobody_waits_for_a_folder_that_does_not_answer() {
    let mut trial = Trial::of(DISK);
    let mut vmm = Vmm::served(&mut trial, "a", 1);
    trial.slow(Duration::from_secs(60));
    let mut asked = trial.asks(Call::ShowDaemon);
    trial.rest();
    assert!(heard(&mut asked).is_none());
    assert_eq!(vmm.does(&mut trial, WRITE, 0, 1), Some(0));
    assert!(trial.ask(Call::ListDisks).is_ok());
    trial.pass(Duration::from_millis(1_500));
    let mut later = trial.asks(Call::ShowDaemon);
    trial.pass(Duration::from_millis(600));
    let problem = heard(&mut asked).expect("he has waited for 2 s").state.problem;
    assert!(problem.is_some_and(|why| why.contains("state has not answered for 2 s: ")));
    assert!(heard(&mut later).is_none());
    trial.pass(Duration::from_millis(1_500));
    let problem = heard(&mut later).expect("so has he").state.problem;
    assert!(problem.is_some_and(|why| why.contains("has not answered for 3 s: ")));
    // It answers again, and is looked at again.
    trial.slow(Duration::ZERO);
    trial.pass(Duration::from_secs(60));
    let mut asked = trial.asks(Call::ShowDaemon);
    trial.rest();
    assert_eq!(heard(&mut asked).expect("at once").state.problem, None);
}

/// What was changed before he asked is seen, also where a look was under way that began before.
#[test]
fn who_asks_is_told_of_a_look_that_began_afterwards() {
    let mut trial = Trial::of(DISK);
    let folder = trial.path("state");
    trial.slow(Duration::from_millis(100));
    let mut first = trial.asks(Call::ShowDaemon);
    trial.pass(Duration::from_millis(50));
    let mut second = trial.asks(Call::ShowDaemon);
    trial.pass(Duration::from_millis(60));
    assert!(heard(&mut first).is_some_and(|shown| shown.state.problem.is_none()));
    assert!(heard(&mut second).is_none());
    std::fs::remove_dir_all(&folder).expect("it goes");
    std::fs::write(&folder, "").expect("a file in its place");
    trial.pass(Duration::from_millis(100));
    assert!(heard(&mut second).is_some_and(|shown| shown.state.problem.is_some()));
}

/// One who stops the daemon keeps nobody waiting.
#[test]
fn who_waits_is_answered_by_a_daemon_that_stops() {
    let mut trial = Trial::of(DISK);
    trial.slow(Duration::from_secs(60));
    let mut asked = trial.asks(Call::ShowDaemon);
    trial.rest();
    trial.manager().begin_stop();
    while !trial.has_ended() {
        trial.pass(Duration::from_millis(1));
    }
    let Heard::Answer(answer) = asked.hear() else { panic!("he waits still") };
    assert!(answer.is_err_and(|why| why.error.contains("being stopped")));
}

/// A lock that others no longer find keeps nobody out, so it is told of, and taken anew while nobody else has been there.
#[test]
fn a_lock_that_was_removed_is_taken_anew_and_one_of_another_daemon_is_respected() {
    let mut trial = Trial::of(DISK);
    let add = |trial: &mut Trial, id: &str| {
        let spec = format!("{{\"id\": {id:?}, \"backend\": \"memory\", \"size\": \"1M\"}}");
        trial
            .ask(Call::AddDisk { spec: serde_json::from_str(&spec).expect("a disk"), force: false })
    };
    let problem = |trial: &mut Trial| {
        let mut asked = trial.asks(Call::ShowDaemon);
        trial.rest();
        heard(&mut asked).expect("at once").state.problem
    };
    add(&mut trial, "b").expect("it is kept");
    assert_eq!(problem(&mut trial), None);
    let (folder, lock) = (trial.path("state"), trial.path("state/lock"));
    let start = || StateFile::of_a_start(folder.to_str().expect("a path"), "other.sock");
    std::fs::remove_file(&lock).expect("it is there");
    let told = problem(&mut trial).expect("anybody could have the folder");
    assert!(told.contains("state/lock was removed, so another daemon"), "{told}");
    add(&mut trial, "c").expect("it is kept, and the folder locked");
    assert_eq!(problem(&mut trial), None);
    assert!(matches!(start(), Err(StateError::Held { .. })));
    // The whole folder, and another daemon comes before anything is kept.
    std::fs::remove_dir_all(&folder).expect("it is there");
    let mut others = start().expect("nobody has it");
    others.keep(&trial.manager().rooms.plan, &[]).expect("it is kept");
    let kept = std::fs::read_to_string(folder.join("disks.json")).expect("it is there");
    let refused = add(&mut trial, "d").expect_err("it would be lost, or what is there");
    assert!(refused.error.contains("whose `api` is other.sock"), "{}", refused.error);
    let told = problem(&mut trial).expect("both keep something");
    assert!(told.contains("another daemon keeps its state there, or did"), "{told}");
    assert_eq!(std::fs::read_to_string(folder.join("disks.json")).expect("it is there"), kept);
    // And when that has ended: what it kept is not overwritten either.
    drop(others);
    add(&mut trial, "d").expect_err("what is there would be lost");
    assert_eq!(std::fs::read_to_string(folder.join("disks.json")).expect("it is there"), kept);
}
