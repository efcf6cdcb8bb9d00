//! Calls that wait, in numbers that only an adversary has.

use config::api::{Call, ErrorKind};
use tokio::sync::oneshot;

use super::*;
use crate::api::{Peer, Request};
use crate::clock::now;

type Asked = oneshot::Receiver<Answered>;

fn reply() -> (Reply, Asked) {
    let (request, asked) = Request::made(Call::ListDisks, Peer { uid: 0, pid: 0 });
    (request.into_parts().1, asked)
}

fn view(count: usize) -> Answer {
    let version = config::api::VersionView { version: count.to_string(), ..Default::default() };
    Answer::Version(version)
}

/// A file system that closes nothing for ten seconds may owe that to thousands of removals.
#[test]
fn any_number_of_calls_whose_images_do_not_close_is_answered_in_one_go() {
    let (mut waiting, mut turn) = (WaitingCalls::default(), Turn::begin(now()));
    let mut all = Vec::new();
    for device in 0..4_000 {
        let (reply, asked) = reply();
        waiting.remove(device, Some(reply), &mut turn);
        waiting.gone(device, "a", view(device as usize), true);
        all.push(asked);
    }
    let until = waiting.due_at().expect("they are answered in any case");
    assert!(waiting.next(until - Duration::from_secs(1), |_| false).is_none());
    assert!(all.iter_mut().all(|asked| asked.try_recv().is_err()), "it was too early");
    let late = turn.tick() + ANSWER_TIME_MAX;
    assert!(waiting.next(late, |_| false).is_none());
    for (count, mut asked) in all.into_iter().enumerate() {
        assert_eq!(asked.try_recv().expect("an answer"), Ok(view(count)));
    }
    assert_eq!(waiting.due_at(), None);
}

#[test]
fn what_is_to_be_done_comes_before_what_is_overdue_and_each_once() {
    let (mut waiting, mut turn) = (WaitingCalls::default(), Turn::begin(now()));
    let (removal, _asked) = reply();
    let (addition, _asked) = reply();
    waiting.remove(7, Some(removal), &mut turn);
    waiting.add(DiskSpec::new("a"), addition, Duration::from_secs(30), &mut turn);
    assert!(waiting.adds("a") && !waiting.adds("b"));
    let late = turn.tick() + ANSWER_TIME_MAX;
    let next = waiting.next(late, |id| id == "a");
    assert!(matches!(next, Some(Next::Add(spec, _)) if spec.id == "a"));
    assert!(matches!(waiting.next(late, |_| true), Some(Next::Removing(7, Some(_)))));
    assert!(waiting.next(late, |_| true).is_none());
}

/// Whoever resized a disk that somebody else removed meanwhile is told so, and not that it went well.
#[test]
fn who_waits_for_the_size_of_a_disk_that_goes_is_told_that_it_is_gone() {
    let (mut waiting, mut turn) = (WaitingCalls::default(), Turn::begin(now()));
    let (sizing, mut resized) = reply();
    let (removing, mut removed) = reply();
    waiting.resize(3, Some(sizing), &mut turn);
    waiting.remove(3, Some(removing), &mut turn);
    // A reload's has no answer.
    waiting.resize(3, None, &mut turn);
    waiting.gone(4, "b", view(4), false);
    assert!(resized.try_recv().is_err() && removed.try_recv().is_err(), "it was another one");
    waiting.gone(3, "a", view(3), false);
    let refused = resized.try_recv().expect("an answer").expect_err("it is gone");
    assert_eq!(
        (refused.kind, refused.error.as_str()),
        (ErrorKind::NotFound, "there is no disk \"a\"")
    );
    assert_eq!(removed.try_recv().expect("an answer"), Ok(view(3)));
    assert_eq!(waiting.due_at(), None);
    // Late words are normal.
    waiting.resized(3, Ok(view(0)));
    waiting.closed(3);
}

/// The stages are in what is handed over.
#[test]
fn who_waits_for_stages_while_another_process_takes_over_is_told_that_they_come() {
    let (mut waiting, mut turn) = (WaitingCalls::default(), Turn::begin(now()));
    let ((staging, mut staged), (removal, mut removed)) = (reply(), reply());
    waiting.stage(3, staging, &mut turn);
    waiting.remove(4, Some(removal), &mut turn);
    waiting.clear();
    let why = staged.try_recv().expect("an answer").expect_err("it is not through");
    assert_eq!((why.kind, why.error.as_str()), (ErrorKind::Busy, TAKEN_OVER));
    assert!(why.hint.starts_with("it is kept, "), "{}", why.hint);
    assert!(removed.try_recv().is_err(), "that is for the next one");
    assert_eq!(waiting.due_at(), None);
}

#[test]
fn a_stop_answers_who_is_not_there_yet_and_at_its_end_who_still_goes() {
    let (mut waiting, mut turn) = (WaitingCalls::default(), Turn::begin(now()));
    let (addition, mut added) = reply();
    let (removal, mut removed) = reply();
    waiting.add(DiskSpec::new("a"), addition, Duration::from_secs(1), &mut turn);
    waiting.remove(1, Some(removal), &mut turn);
    let (late, mut never_gone) = reply();
    waiting.remove(2, Some(late), &mut turn);
    let is_stopped = |answer: Answered| {
        let why = answer.expect_err("it is refused");
        (why.kind, why.error.as_str()) == (ErrorKind::Busy, STOPPING)
    };
    let ((sizing, mut resized), (staging, mut staged)) = (reply(), reply());
    waiting.resize(3, Some(sizing), &mut turn);
    waiting.stage(3, staging, &mut turn);
    waiting.stop_changing();
    assert!(is_stopped(added.try_recv().expect("an answer")) && !waiting.adds("a"));
    // Its disk goes with all others, and is in the plan of the next one as it is kept.
    assert!(
        [&mut resized, &mut staged]
            .into_iter()
            .all(|it| is_stopped(it.try_recv().expect("an answer")))
    );
    waiting.gone(3, "c", view(3), true);
    waiting.gone(1, "b", view(1), true);
    waiting.closed(1);
    assert_eq!(removed.try_recv().expect("an answer"), Ok(view(1)));
    waiting.stop();
    assert!(is_stopped(never_gone.try_recv().expect("an answer")));
    assert_eq!(waiting.due_at(), None);
}
