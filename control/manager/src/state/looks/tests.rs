//! What whoever asks how the folder of state is may rely on.

use std::time::Duration;

use config::api::{Answer, Call, DaemonView};

use crate::simulated::{Asked, Heard};
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
