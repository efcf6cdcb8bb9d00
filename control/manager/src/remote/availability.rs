//! Availability of another machine's disk here: what its guest's requests do while they are not done, and why.
//!
//! Decided from what its IOhost said, whether that is heard, and whether a guest is at the disk; from nothing that
//! front-ends do. Not here: the asking (`disks`), and who is told (`views`, the log).

use std::time::Instant;

use config::api::Removed;
use remote::client::Over;

use super::waits::Waits;

/// What requests do that are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// They end as soon as what is in their way is gone.
    Wait,
    /// Each is answered with an error.
    Fail,
}

/// What the log is to say of a disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogLine {
    /// Why requests are not done.
    Warn(String),
    /// That they are, or can be.
    Info(&'static str),
}

/// What an operator is shown of a disk of another machine. What its IOhost gave up comes before everything else, for as
/// long as requests fail; then that the IOhost is silent; then what it said; then that it says nothing.
///
/// A guest is *there* from the start of its first ring to the end of its last: one that is reset, or whose VMM connects
/// anew, is another one. `docs/remote.md` has the same rows for operators.
///
/// | at the IOhost | the guest | requests | state | reason |
/// |---|---|---|---|---|
/// | the disk is served | there | are done | running | |
/// | the disk is there | not there | | waiting | |
/// | silent | there or not | wait | waiting | [`Hindrance::Silent`] |
/// | silent for `fail_after_s` | there | fail until it is heard | failed | [`SILENT`] |
/// | | another one, while it is silent | wait | waiting | [`Hindrance::Silent`] |
/// | taken away (of the client, or at all) from a guest that is there | there; the IOhost silent, started anew, or not | fail | failed | [`GIVEN_UP`] |
/// | and given again | still there | fail | failed | [`GIVEN_AGAIN`] |
/// | taken away | another one, or none | wait | waiting | [`NO_DISK`] |
/// | taken away while no guest was there | not there | | waiting | none: it is told when it is asked |
/// | | there | wait | waiting | [`NO_DISK`] |
/// | started anew without the disk | still there, or another one | wait | waiting | [`NO_DISK`] |
/// | given to another machine after a lease | still there | fail | failed | [`TAKEN`] |
/// | | another one | wait | waiting | [`Hindrance::Unanswered`] |
/// | has no room, or cannot open it | there | wait | waiting | what it said |
/// | made smaller | still there | fail | failed | [`SHRUNK`] |
/// | | another one | are done | running | |
/// | has another image | still there | wait | waiting | the bond's (`disk::bonds`) |
///
/// A client's daemon that is started anew has asked nobody: all guests are other ones then. One that takes over by an
/// upgrade goes on where the one before was.
#[derive(Debug)]
pub(crate) struct Availability {
    life: Life,
    /// Its IOhost has none for this machine, and is asked until it has.
    is_missing: bool,
    /// Why it is not asked for though a guest is there.
    unasked: Option<&'static str>,
    waits: Waits,
    /// What the log said last.
    said: Option<Hindrance>,
}

#[derive(Debug)]
enum Life {
    /// No guest is there: nobody asks for it.
    Free,
    Asked(AskedFor),
}

/// What it has while it is asked for.
#[derive(Debug)]
struct AskedFor {
    /// Its number on the link.
    number: u16,
    /// How large it was when its IOhost said so last.
    told_bytes: Option<u64>,
    answer: Answer,
}

/// What its IOhost made of the asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Neither yes nor no.
    None,
    Served,
    /// Not now; it is asked for again and again.
    Refused(&'static str),
    /// It has become smaller since, and no request of it is done any more.
    Shrunk,
    /// Nothing of it is executed any more, and why.
    Over(Over),
}

/// Why requests are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hindrance {
    /// They fail.
    Fails(&'static str),
    /// Its IOhost is not heard.
    Silent,
    /// Its IOhost said so.
    Refused(&'static str),
    /// Its IOhost has said neither yes nor no.
    Unanswered,
}

/// Said of a disk that an IOhost does not have.
pub(super) const NO_DISK: &str = "its IOhost has no such disk for this machine, or its image is not open there: see its [[link.client]] and \
                                   its `sidecore ls`; requests wait until it has";
pub(super) const BUSY: &str = "another machine has it, or its IOhost has no room; it is asked for again and again, and requests wait";
pub(super) const FAILED: &str =
    "its IOhost cannot open it: see its log; it is asked for again and again, and requests wait";
const GIVEN_UP: &str = "its IOhost has given it up, so that every request fails; restart its guest when it is there again";
const GIVEN_AGAIN: &str = "its IOhost has given it up and has it again, but every request of its guest fails; restart its guest";
const TAKEN: &str =
    "another machine has taken it, so that every request fails; restart its guest to have it back";
const ENDED: &str = "its IOhost has ended it, so that every request fails; restart its guest";
const UNSYNCED: &str = "its IOhost could not make stable what was written last, and every request fails; check its data, \
                        and restart its guest";
const SILENT: &str = "its IOhost was silent for longer than `fail_after_s`, so that every request fails until it is heard again";
const SHRUNK: &str = "its IOhost has made it smaller while its guest used it, so that every request fails; restart its guest";

/// What the end of a disk means that no guest has any more.
pub(super) fn words_of(why: Over) -> &'static str {
    match why {
        Over::Released => "in order",
        Over::Unsynced => "its IOhost could not make stable what was written last; check its data",
        Over::Revoked => "its IOhost had given it up",
        Over::Taken => "another machine had taken it",
        Over::Changed => "its IOhost has another image than its guest was on",
        Over::Silent => "its IOhost was silent, and what was under way failed",
    }
}

impl Availability {
    /// Of a disk that is not asked for, whose link may be silent.
    pub(super) fn new(silent_since: Option<Instant>) -> Availability {
        let (life, waits) = (Life::Free, Waits::since(silent_since));
        Availability { life, is_missing: false, unasked: None, waits, said: None }
    }

    fn asked(&self) -> Option<&AskedFor> {
        match &self.life {
            Life::Free => None,
            Life::Asked(asked) => Some(asked),
        }
    }

    /// Its number on its link, while it is asked for.
    pub(super) fn number(&self) -> Option<u16> {
        self.asked().map(|asked| asked.number)
    }

    /// It is asked for by that number.
    pub(super) fn ask(&mut self, number: u16, now: Instant) {
        self.life = Life::Asked(AskedFor { number, told_bytes: None, answer: Answer::None });
        self.unasked = None;
        self.waits.ask(now);
    }

    /// It cannot be asked for, and why.
    pub(super) fn cannot_ask(&mut self, why: &'static str) {
        self.unasked = Some(why);
    }

    /// A process before this one has asked for it: how large it was told to be, whether it has shrunk, and why it is over.
    pub(super) fn go_on_as(
        &mut self,
        number: u16,
        (told_bytes, is_shrunk): (Option<u64>, bool),
        over: Option<Over>,
    ) {
        let answer = match over {
            Some(why) => Answer::Over(why),
            None if is_shrunk => Answer::Shrunk,
            None => Answer::None,
        };
        self.life = Life::Asked(AskedFor { number, told_bytes, answer });
    }

    /// How large its IOhost said that it is, and whether it was larger; while it is asked for by that number.
    pub(super) fn told(&self, number: u16) -> Option<(Option<u64>, bool)> {
        let asked = self.asked().filter(|asked| asked.number == number)?;
        Some((asked.told_bytes, asked.answer == Answer::Shrunk))
    }

    /// It is asked for no more: by which number it was.
    pub(super) fn release(&mut self) -> Option<u16> {
        self.waits.end_asking();
        self.unasked = None;
        match std::mem::replace(&mut self.life, Life::Free) {
            Life::Free => None,
            Life::Asked(asked) => Some(asked.number),
        }
    }

    /// Its IOhost serves it.
    pub(super) fn is_served(&mut self) {
        self.hears(Answer::Served);
    }

    /// Its IOhost has said no; with another image (`None`) the bond says what is wrong.
    pub(super) fn is_refused(&mut self, why: Option<&'static str>) {
        self.hears(why.map_or(Answer::Served, Answer::Refused));
    }

    /// Its IOhost says that it is so large.
    pub(super) fn has_size(&mut self, bytes: u64) {
        let Life::Asked(asked) = &mut self.life else { return };
        let before = asked.told_bytes.replace(bytes);
        if before.is_some_and(|before| bytes < before) {
            self.hears(Answer::Shrunk);
        }
    }

    /// An answer came. What fails goes on failing, unless it is asked for anew.
    fn hears(&mut self, answer: Answer) {
        self.waits.end_asking();
        let Life::Asked(asked) = &mut self.life else { return };
        if !matches!(asked.answer, Answer::Shrunk | Answer::Over(_)) {
            asked.answer = answer;
        }
    }

    /// Nothing of it is executed any more. One that fell silent is asked for anew by its link, with whatever size it has
    /// then.
    pub(super) fn is_over(&mut self, why: Over) {
        self.waits.end_asking();
        if let Life::Asked(asked) = &mut self.life {
            (asked.told_bytes, asked.answer) = (None, Answer::Over(why));
        }
    }

    /// Its IOhost has none for this machine, or has it.
    pub(super) fn set_missing(&mut self, is_missing: bool) {
        self.is_missing = is_missing;
    }

    /// What becomes of requests of a disk that its IOhost has no more.
    pub(crate) fn removed(&self) -> Option<Removed> {
        match self.asked().map(|asked| asked.answer) {
            Some(Answer::Over(Over::Revoked)) => Some(Removed::Fails),
            _ => self.is_missing.then_some(Removed::Waits),
        }
    }

    /// There is a session, in which what is not over is asked for once more; or none any more.
    pub(super) fn note_session(&mut self, is_there: bool, now: Instant) {
        let mut is_asked = false;
        if let (Life::Asked(asked), true) = (&mut self.life, is_there) {
            is_asked = match asked.answer {
                Answer::Over(Over::Silent) | Answer::Refused(_) | Answer::Served | Answer::None => {
                    asked.answer = Answer::None;
                    true
                }
                Answer::Shrunk | Answer::Over(_) => false,
            };
        }
        self.waits.note_session(is_there, is_asked, now);
    }

    pub(super) fn note_silence(&mut self, now: Instant) {
        self.waits.note_silence(now);
    }

    pub(super) fn note_heard(&mut self) {
        self.waits.note_heard();
    }

    fn hindrance(&self, now: Instant) -> Option<Hindrance> {
        let answer = self.asked().map(|asked| asked.answer);
        let fails = match answer {
            Some(Answer::Shrunk) => Some(SHRUNK),
            Some(Answer::Over(why)) => Some(self.over(why)),
            Some(Answer::None | Answer::Served | Answer::Refused(_)) | None => None,
        };
        let refused = match answer {
            Some(Answer::Refused(why)) => Some(why),
            _ => self.is_missing.then_some(NO_DISK).or(self.unasked),
        };
        if let Some(fails) = fails {
            Some(Hindrance::Fails(fails))
        } else if self.waits.is_silent(now) {
            Some(Hindrance::Silent)
        } else if let Some(why) = refused {
            Some(Hindrance::Refused(why))
        } else {
            self.waits.is_unanswered(now).then_some(Hindrance::Unanswered)
        }
    }

    fn over(&self, why: Over) -> &'static str {
        match why {
            Over::Revoked if self.is_missing => GIVEN_UP,
            Over::Revoked => GIVEN_AGAIN,
            Over::Taken => TAKEN,
            Over::Unsynced => UNSYNCED,
            Over::Silent => SILENT,
            // What an honest IOhost says of what was given back alone; or of the process before this one.
            Over::Released | Over::Changed => ENDED,
        }
    }

    fn words(&self, hindrance: Hindrance, now: Instant) -> String {
        match hindrance {
            Hindrance::Fails(why) | Hindrance::Refused(why) => why.to_string(),
            Hindrance::Silent | Hindrance::Unanswered => {
                let text = self.waits.text(now, "its guest's requests wait");
                text.unwrap_or_default()
            }
        }
    }

    /// What is in the way of its guest's requests: what they do, and why.
    pub(crate) fn verdict(&self, now: Instant) -> Option<(Requests, String)> {
        let hindrance = self.hindrance(now)?;
        let requests = match hindrance {
            Hindrance::Fails(_) => Requests::Fail,
            Hindrance::Silent | Hindrance::Refused(_) | Hindrance::Unanswered => Requests::Wait,
        };
        Some((requests, self.words(hindrance, now)))
    }

    /// What the log is to say, if it has not: what is in the way, or that nothing is any more. That an IOhost is silent is
    /// said of its link, once for all of its disks.
    pub(crate) fn take_news(&mut self, now: Instant) -> Option<LogLine> {
        let hindrance = self.hindrance(now);
        let answer = self.asked().map(|asked| asked.answer);
        let is_open = hindrance.is_none() && answer == Some(Answer::None);
        if hindrance == self.said || hindrance == Some(Hindrance::Silent) || is_open {
            return None;
        }
        self.said = hindrance;
        Some(match hindrance {
            Some(hindrance) => LogLine::Warn(self.words(hindrance, now)),
            None if answer == Some(Answer::Served) => LogLine::Info("its IOhost serves it"),
            None => LogLine::Info("nothing is in the way of its requests any more"),
        })
    }
}

#[cfg(test)]
mod tests;
