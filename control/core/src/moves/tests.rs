//! The table of states and events of a move, the late ones too, and who is answered when.

use super::*;

type Book = Moves<&'static str, &'static str>;

/// Each state by name, its move's number in all of them.
const ID: u64 = 1;

fn states() -> Vec<(&'static str, Book)> {
    let with = |life: Option<Life>| {
        let lives = life.into_iter().map(|life| (ID, life)).collect();
        Moves { last: ID, lives, waits: Vec::new() }
    };
    let (device, queue) = (7, 3);
    vec![
        ("none", with(None)),
        ("asked", with(Some(Life::Asked { device, queue }))),
        ("handed", with(Some(Life::Handed { device, queue }))),
        ("on its way", with(Some(Life::OnItsWay { device }))),
    ]
}

fn name(book: &Book) -> &'static str {
    match book.lives.get(&ID) {
        None => "none",
        Some(Life::Asked { .. }) => "asked",
        Some(Life::Handed { .. }) => "handed",
        Some(Life::OnItsWay { .. }) => "on its way",
    }
}

/// What an event makes of each state: its name after it, and what it gave.
fn table<T>(event: impl Fn(&mut Book) -> T) -> Vec<(&'static str, &'static str, T)> {
    let of = |(before, mut book): (&'static str, Book)| {
        let gave = event(&mut book);
        (before, name(&book), gave)
    };
    states().into_iter().map(of).collect()
}

#[test]
fn it_is_handed_once_when_its_new_sidecore_is_ready() {
    assert_eq!(
        table(|book| book.prepared(ID)),
        [
            ("none", "none", None),
            ("asked", "handed", Some((7, 3))),
            ("handed", "handed", None),
            ("on its way", "on its way", None),
        ]
    );
}

#[test]
fn a_word_of_what_has_ended_is_late_and_nothing_moves_before_it_is_handed() {
    let (queue, nic) = (Some(Mover::Queue(7, 3)), Some(Mover::Nic(7)));
    assert_eq!(
        table(|book| (book.heard(ID, false), book.heard(ID, true))),
        [
            ("none", "none", (None, None)),
            ("asked", "asked", (None, queue)),
            ("handed", "handed", (queue, queue)),
            ("on its way", "on its way", (nic, nic)),
        ]
    );
}

#[test]
fn it_ends_once() {
    for outcome in [Ok(()), Err(NotMoved::Stopped), Err(NotMoved::Stayed("busy"))] {
        let ended = table(|book| book.end(ID, outcome));
        assert!(
            ended.iter().all(|(before, after, was)| (*before != "none", "none") == (*was, *after))
        );
    }
}

#[test]
fn numbers_are_never_given_again() {
    let mut book = Book::default();
    assert_eq!(book.begin(Mover::Queue(7, 0)), 1);
    assert!(book.end(1, Ok(())));
    assert_eq!(book.begin(Mover::Nic(7)), 2);
    assert_eq!(
        (book.prepared(1), book.prepared(2)),
        (None, None),
        "the one is over, the other a NIC's"
    );
}

#[test]
fn who_waits_is_answered_when_all_are_over_with_what_stayed() {
    let mut book = Book::default();
    let moves: Vec<u64> = (0..3).map(|queue| book.begin(Mover::Queue(7, queue))).collect();
    let other = book.begin(Mover::Nic(8));
    book.wait(7, moves.clone(), "one");
    book.wait(8, [other], "two");
    book.wait(9, [], "three");
    let answered = |device, problems, who| Some(Waited { device, problems, who });
    assert_eq!(book.take_answerable(), answered(9, vec![], "three"), "nothing had to move");
    assert!(book.end(moves[1], Err(NotMoved::Stayed("busy"))) && book.end(moves[0], Ok(())));
    assert_eq!(book.take_answerable(), None);
    assert!(book.end(moves[2], Err(NotMoved::Stopped)));
    let problems = vec![(Some(1), NotMoved::Stayed("busy")), (Some(2), NotMoved::Stopped)];
    assert_eq!(book.take_answerable(), answered(7, problems, "one"));
    assert!(book.end(other, Err(NotMoved::Removed)));
    assert_eq!(book.take_answerable(), answered(8, vec![(None, NotMoved::Removed)], "two"));
    assert_eq!(book.take_answerable(), None);
}

#[test]
fn who_waits_for_one_that_is_begun_again_waits_for_that() {
    let mut book = Book::default();
    let before = book.begin(Mover::Nic(8));
    book.wait(8, [before], "one");
    let next = book.begin(Mover::Nic(8));
    book.replace(before, next);
    assert!(!book.end(before, Ok(())), "it is over");
    assert_eq!(book.take_answerable(), None);
    assert!(book.end(next, Ok(())));
    assert_eq!(book.take_answerable(), Some(Waited { device: 8, problems: vec![], who: "one" }));
}

#[test]
fn one_that_ended_before_somebody_waits_is_not_waited_for() {
    let mut book = Book::default();
    let id = book.begin(Mover::Queue(7, 0));
    assert!(book.end(id, Err(NotMoved::Stopped)));
    book.wait(7, [id], "one");
    assert!(book.take_answerable().is_some());
    let id = book.begin(Mover::Queue(7, 0));
    book.wait(7, [id], "two");
    book.answer_nobody();
    assert!(book.end(id, Ok(())));
    assert_eq!(book.take_answerable(), None);
}

#[test]
fn operators_are_told_why() {
    let texts = [NotMoved::Stopped, NotMoved::Removed, NotMoved::NotServed, NotMoved::NotThere]
        .map(|why: NotMoved<&str>| why.to_string());
    assert_eq!(
        texts,
        [
            "it is being stopped",
            "it is being removed",
            "it is not served any more",
            "it is not there any more",
        ]
    );
    assert_eq!(NotMoved::Stayed("frames are on their way").to_string(), "frames are on their way");
}
