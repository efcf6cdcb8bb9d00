//! Each row of the table, and each step between two of them: what is shown is what requests do.

use std::time::Duration;

use super::*;
use crate::clock::now;

/// What happens to a disk, as its link tells it.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A guest's first ring is to start.
    Comes,
    /// Its last ring has ended.
    Goes,
    Session(bool),
    Served(u64),
    Refused(&'static str),
    OtherImage,
    Over(Over),
    Missing(bool),
    /// Time passes.
    Seconds(u64),
}

use Event::{Comes, Goes, Missing, OtherImage, Refused, Seconds, Served, Session};
use Requests::{Fail, Wait};

/// Taken away from a guest that is there: what its link says then.
const TAKEN_AWAY: [Event; 2] = [Missing(true), Event::Over(Over::Revoked)];
/// A guest is there and is served.
const THERE: [Event; 2] = [Comes, Served(8192)];
/// Its IOhost is started anew, and takes longer than one that only answers late.
const RESTARTED: [Event; 3] = [Session(false), Seconds(2), Session(true)];
/// It has no such disk.
const NONE_THERE: [Event; 2] = [Missing(true), Refused(NO_DISK)];

/// A disk, and what time it is for it.
struct Seen(Availability, Instant);

impl Seen {
    fn sees(&mut self, events: &[Event]) {
        let Seen(disk, at) = self;
        for event in events {
            match *event {
                Comes => disk.ask(7, *at),
                Goes => drop(disk.release()),
                Session(is_there) => disk.note_session(is_there, *at),
                Served(bytes) => {
                    disk.is_served();
                    disk.has_size(bytes);
                }
                Refused(why) => disk.is_refused(Some(why)),
                OtherImage => disk.is_refused(None),
                Event::Over(why) => disk.is_over(why),
                Missing(is_missing) => disk.set_missing(is_missing),
                Seconds(count) => *at += Duration::from_secs(count),
            }
        }
    }
}

/// One that has seen all of this, and when that was over.
fn after(events: &[&[Event]]) -> (Availability, Instant) {
    let mut seen = Seen(Availability::new(None), now());
    events.iter().for_each(|some| seen.sees(some));
    (seen.0, seen.1)
}

const SILENT_FOR: &str = "its IOhost has been silent for ";
const NOT_GIVEN_FOR: &str = "its IOhost has not given it for ";

/// The guest is another one.
const AGAIN: [Event; 2] = [Goes, Comes];
const AWAY: [Event; 2] = [Session(false), Seconds(2)];
/// Requests have waited for as long as they do.
const SILENCE: [Event; 1] = [Event::Over(Over::Silent)];
const TO_ANOTHER: [Event; 1] = [Event::Over(Over::Taken)];

/// What happens in turn; what requests do then, and how the reason begins; and what is said of a disk that was removed.
type Row = (&'static [&'static [Event]], Option<(Requests, &'static str)>, Option<Removed>);

const ROWS: &[Row] = &[
    // Served, or nobody is there.
    (&[&THERE], None, None),
    (&[&THERE, &[Goes]], None, None),
    (&[&THERE, &RESTARTED, &[Served(8192)]], None, None),
    // Silent, for a while and for longer than requests wait.
    (&[&AWAY], Some((Wait, SILENT_FOR)), None),
    (&[&THERE, &AWAY], Some((Wait, SILENT_FOR)), None),
    (&[&THERE, &AWAY, &SILENCE], Some((Fail, SILENT)), None),
    (&[&THERE, &AWAY, &SILENCE, &AGAIN], Some((Wait, SILENT_FOR)), None),
    (&[&THERE, &AWAY, &SILENCE, &AGAIN, &SILENCE], Some((Fail, SILENT)), None),
    (&[&THERE, &AWAY, &SILENCE, &[Session(true)]], None, None),
    (&[&THERE, &AWAY, &SILENCE, &[Session(true), Seconds(2)]], Some((Wait, NOT_GIVEN_FOR)), None),
    (&[&THERE, &AWAY, &SILENCE, &[Session(true)], &[Served(4096)]], None, None),
    // Taken away from a guest that is there: as long as that one is, whatever its IOhost does.
    (&[&THERE, &TAKEN_AWAY], Some((Fail, GIVEN_UP)), Some(Removed::Fails)),
    (&[&THERE, &TAKEN_AWAY, &AWAY], Some((Fail, GIVEN_UP)), Some(Removed::Fails)),
    (&[&THERE, &TAKEN_AWAY, &RESTARTED], Some((Fail, GIVEN_UP)), Some(Removed::Fails)),
    (
        &[&THERE, &TAKEN_AWAY, &RESTARTED, &[Seconds(9)]],
        Some((Fail, GIVEN_UP)),
        Some(Removed::Fails),
    ),
    (&[&THERE, &TAKEN_AWAY, &[Missing(false)]], Some((Fail, GIVEN_AGAIN)), Some(Removed::Fails)),
    // Another one waits; so does none.
    (&[&THERE, &TAKEN_AWAY, &AGAIN], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    (&[&THERE, &TAKEN_AWAY, &[Goes]], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    (&[&THERE, &TAKEN_AWAY, &[Goes], &AWAY], Some((Wait, SILENT_FOR)), Some(Removed::Waits)),
    (&[&THERE, &TAKEN_AWAY, &[Goes], &RESTARTED], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    (&[&THERE, &TAKEN_AWAY, &[Goes, Missing(false)]], None, None),
    (&[&THERE, &TAKEN_AWAY, &AGAIN, &[Missing(false), Served(8192)]], None, None),
    // Taken away while no guest was there: told when it is asked.
    (&[&[Comes], &NONE_THERE], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    // Started anew without it.
    (&[&THERE, &RESTARTED, &NONE_THERE], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    (&[&THERE, &RESTARTED, &NONE_THERE, &AGAIN], Some((Wait, NO_DISK)), Some(Removed::Waits)),
    (&[&THERE, &RESTARTED, &NONE_THERE, &[Missing(false), Served(8192)]], None, None),
    // Given to another machine.
    (&[&THERE, &TO_ANOTHER], Some((Fail, TAKEN)), None),
    (&[&THERE, &TO_ANOTHER, &RESTARTED], Some((Fail, TAKEN)), None),
    (&[&THERE, &TO_ANOTHER, &AGAIN], None, None),
    (&[&THERE, &TO_ANOTHER, &AGAIN, &[Seconds(2)]], Some((Wait, NOT_GIVEN_FOR)), None),
    // Ended for another reason, or for none.
    (&[&THERE, &[Event::Over(Over::Unsynced)]], Some((Fail, UNSYNCED)), None),
    (&[&THERE, &[Event::Over(Over::Released)]], Some((Fail, ENDED)), None),
    (&[&THERE, &[Event::Over(Over::Changed)], &RESTARTED], Some((Fail, ENDED)), None),
    // No room, not to be opened: until that is otherwise, or is asked anew.
    (&[&[Comes, Refused(BUSY)]], Some((Wait, BUSY)), None),
    (&[&[Comes, Refused(FAILED)], &AWAY], Some((Wait, SILENT_FOR)), None),
    (&[&[Comes, Refused(FAILED), Seconds(9)]], Some((Wait, FAILED)), None),
    (&[&[Comes, Refused(FAILED), Served(512)]], None, None),
    (&[&[Comes, Refused(FAILED), Goes]], None, None),
    // Made smaller: for this guest it stays so, whatever size it has then.
    (&[&THERE, &[Served(4096)]], Some((Fail, SHRUNK)), None),
    (&[&THERE, &[Served(4096), Served(8192)], &RESTARTED], Some((Fail, SHRUNK)), None),
    (&[&THERE, &[Served(4096)], &NONE_THERE], Some((Fail, SHRUNK)), Some(Removed::Waits)),
    (&[&THERE, &[Served(4096)], &AGAIN, &[Served(4096)]], None, None),
    // Another image: its bond says so.
    (&[&[Comes, OtherImage, Seconds(9)]], None, None),
];

#[test]
fn what_is_shown_is_what_requests_do() {
    for (events, expected, removed) in ROWS {
        let (disk, at) = after(events);
        let shown = disk.verdict(at);
        let is_it = match (&shown, expected) {
            (Some((requests, why)), Some((as_expected, begins))) => {
                requests == as_expected && why.starts_with(begins)
            }
            (None, None) => true,
            _ => false,
        };
        assert!(is_it, "{events:?}: {shown:?} for {expected:?}");
        assert_eq!(disk.removed(), *removed, "{events:?}");
    }
}

/// What one process tells the next of a disk that was asked for.
#[test]
fn what_fails_goes_on_failing_in_the_next_process() {
    let go_on = |is_shrunk, over| {
        let mut heir = Availability::new(None);
        heir.go_on_as(9, (Some(4096), is_shrunk), over);
        heir.note_session(false, now());
        heir.note_session(true, now());
        (heir.number(), heir.verdict(now() + Duration::from_secs(2)))
    };
    assert_eq!(go_on(true, None), (Some(9), Some((Requests::Fail, SHRUNK.to_string()))));
    let over = go_on(false, Some(Over::Released));
    assert_eq!(over, (Some(9), Some((Requests::Fail, ENDED.to_string()))));
    for asked_anew in [None, Some(Over::Silent)] {
        let (_, shown) = go_on(false, asked_anew);
        assert!(shown.is_some_and(|(requests, _)| requests == Requests::Wait), "{asked_anew:?}");
    }
}

#[test]
fn its_number_and_size_are_those_of_who_asks_now() {
    let (mut disk, at) = after(&[]);
    disk.has_size(8192);
    assert_eq!((disk.number(), disk.told(7)), (None, None), "nobody asked for it");
    disk.ask(7, at);
    disk.has_size(8192);
    assert_eq!((disk.told(7), disk.told(6)), (Some((Some(8192), false)), None));
    disk.has_size(4096);
    assert_eq!(disk.told(7), Some((Some(4096), true)));
    assert_eq!((disk.release(), disk.release()), (Some(7), None));
    disk.ask(8, at);
    assert_eq!(disk.told(8), Some((None, false)));
    // Asked for anew, with whatever size it has then.
    disk.has_size(8192);
    disk.is_over(Over::Silent);
    assert_eq!(disk.told(8), Some((None, false)));
}

/// The log has each reason once, whatever comes how often, and that it is over.
#[test]
fn the_log_says_once_what_is_in_the_way_and_that_it_is_gone() {
    let said = |events: &[&[Event]], then: &[&[Event]]| {
        let (disk, at) = after(events);
        let mut seen = Seen(disk, at);
        let mut words = vec![seen.0.take_news(at)];
        for events in then {
            seen.sees(events);
            words.push(seen.0.take_news(seen.1));
            assert_eq!(seen.0.take_news(seen.1), None, "{events:?}: it is said already");
        }
        words
    };
    let bad = |why: &str| Some(LogLine::Warn(why.to_string()));
    let served = || Some(LogLine::Info("its IOhost serves it"));
    // Withdrawn; its IOhost is started anew; its guest is reset; it may have it again.
    let steps: [&[Event]; 6] =
        [&TAKEN_AWAY, &RESTARTED, &[Goes], &[Comes], &[Missing(false)], &[Served(1)]];
    let words = [None, bad(GIVEN_UP), None, bad(NO_DISK), None, None, served()];
    assert_eq!(said(&[&THERE], &steps), words);
    // Asked for again and again; a silence is its link's to tell.
    let steps: [&[Event]; 4] = [
        &[Refused(BUSY)],
        &[Refused(BUSY)],
        &[Session(false), Seconds(5)],
        &[Session(true), Refused(BUSY)],
    ];
    assert_eq!(said(&[&[Comes]], &steps), [None, bad(BUSY), None, None, None]);
    // Another machine has it, and gives it back.
    let (mut disk, at) = after(&[&[Comes, Seconds(1)]]);
    let told = disk.take_news(at).expect("news");
    assert!(matches!(told, LogLine::Warn(why) if why.starts_with(NOT_GIVEN_FOR)));
    assert_eq!(disk.take_news(at + Duration::from_secs(9)), None);
    disk.is_served();
    assert_eq!(disk.take_news(at), served());
    assert_eq!(said(&[&THERE], &[&[Goes]]), [None, None], "nothing was wrong");
}
