//! Who says hello to an IOhost's link and is refused: how many for each reason, the last of each, and who the log tells
//! of.
//!
//! Anybody can send anything, from any address, so all of it is bounded, for each reason by itself: what anybody can
//! cause keeps nothing else out of the log, and is no problem of this host. Not here: who is refused (the sidecore's gate,
//! `greeter`, `clients`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use backend::link::Address;
use config::api::LinkRefusalView;
use remote::handshake::Refused;

/// How long a refused hello is a problem that is shown: whoever sent it comes again sooner. The log tells of one sender
/// once in that time.
const SHOWN_TIME: Duration = Duration::from_secs(60);
/// Senders that the log tells of in that time, for a reason: a line each. They have shown that they get what is sent to
/// their addresses.
const TOLD_MAX: usize = 64;
/// The same of hellos that cannot be read: they are looked at before that is shown, so that their addresses are whatever
/// their sender likes.
const UNPROVEN_TOLD_MAX: usize = 2;

/// Reasons to refuse a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its key is none of a client's.
    Stranger,
    /// It is not from whom it says.
    Forged,
    /// The two ends have no version, cipher or frame size in common.
    NothingInCommon,
    /// It is no hello.
    Malformed,
    /// It cannot be read: it was made for another key, or another `security`.
    Unreadable,
    /// There are too many clients.
    Crowded,
    /// So many others waited, or so much, that it was not looked at. Who sent it is not known.
    NoRoom,
}

/// All of them, in the order in which they are shown.
const REASONS: [Reason; 7] = [
    Reason::Stranger,
    Reason::Forged,
    Reason::NothingInCommon,
    Reason::Malformed,
    Reason::Unreadable,
    Reason::Crowded,
    Reason::NoRoom,
];

impl From<&Refused> for Reason {
    fn from(why: &Refused) -> Reason {
        match why {
            Refused::Malformed(_) => Reason::Malformed,
            Refused::Forged => Reason::Forged,
            Refused::NothingInCommon => Reason::NothingInCommon,
            Refused::Stranger => Reason::Stranger,
        }
    }
}

impl Reason {
    fn word(self) -> &'static str {
        match self {
            Reason::Stranger => "a stranger",
            Reason::Forged => "not authentic",
            Reason::NothingInCommon => "nothing in common",
            Reason::Malformed => "malformed",
            Reason::Unreadable => {
                "made with another `security`, or for another IOhost's key, from an address that is not proven"
            }
            Reason::Crowded => "too many clients at once",
            Reason::NoRoom => "no room for it just then",
        }
    }

    /// What is to be put right.
    fn todo(self) -> &'static str {
        match self {
            Reason::Stranger | Reason::Forged => {
                "the public key of a client is to be the `key` of a [[link.client]] here, and this IOhost's is to be \
                 its `iohost_key`"
            }
            Reason::NothingInCommon => {
                "the two programs, or what their links' interfaces carry, do not fit: see `sidecore --version` at both"
            }
            Reason::Malformed => "whatever sends it is no client",
            Reason::Unreadable => {
                "`security` is to be the same at both ends, and this IOhost's public key the client's `iohost_key` \
                 (`sidecore link key FILE` prints it)"
            }
            Reason::Crowded => "its client asks again and again",
            Reason::NoRoom => "a client asks again and again",
        }
    }

    /// Whether its sender gets what is sent to the address that it comes from.
    fn is_proven(self) -> bool {
        !matches!(self, Reason::Unreadable | Reason::NoRoom)
    }
}

/// How many hellos were refused, by reason. Whoever refuses them adds to it.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; REASONS.len()]);

impl Refusals {
    /// One more.
    pub(crate) fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

/// Senders that were told of within a while.
#[derive(Debug)]
pub(crate) struct Lately {
    told: Vec<(Address, Reason, Instant)>,
    time: Duration,
    most: usize,
}

/// Whether a sender is to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It is.
    One,
    /// It was, within that while.
    Old,
    /// So many others were.
    Full,
}

impl Lately {
    /// Once in `time` each, and `most` of them in that time.
    pub(crate) fn new(time: Duration, most: usize) -> Lately {
        Lately { told: Vec::new(), time, most }
    }

    /// Notes one.
    pub(crate) fn note(&mut self, from: Address, reason: Reason, now: Instant) -> News {
        let time = self.time;
        self.told.retain(|(.., at)| now.saturating_duration_since(*at) < time);
        if self.told.iter().any(|(who, why, _)| (*who, *why) == (from, reason)) {
            return News::Old;
        }
        if self.told.len() >= self.most {
            return News::Full;
        }
        self.told.push((from, reason, now));
        News::One
    }
}

/// The last that was refused for a reason.
struct Last {
    from: Address,
    at: Instant,
    /// The reason in words, where they say more than that of all.
    words: Option<String>,
}

/// Hellos that the sidecores of a link refused before they were read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unread {
    pub(super) unreadable: u64,
    pub(super) no_room: u64,
}

/// Whom the log told of for one reason.
struct Logged {
    lately: Lately,
    most: usize,
    /// When the log said that there are more than it tells of.
    full_at: Option<Instant>,
}

impl Logged {
    fn of(reason: Reason) -> Logged {
        let most = if reason.is_proven() { TOLD_MAX } else { UNPROVEN_TOLD_MAX };
        Logged { lately: Lately::new(SHOWN_TIME, most), most, full_at: None }
    }

    /// What the log is to say of one that was refused, if anything.
    fn note(&mut self, reason: Reason, last: &Last) -> Option<String> {
        match self.lately.note(last.from, reason, last.at) {
            News::One => Some(told(reason, last)),
            News::Old => None,
            News::Full if self.full_at.is_some_and(|at| last.at < at + SHOWN_TIME) => None,
            News::Full => {
                self.full_at = Some(last.at);
                let (most, word, seconds) = (self.most, reason.word(), SHOWN_TIME.as_secs());
                Some(format!(
                    "hellos of more than {most} senders were refused within {seconds} s: {word}; those of others are \
                     counted, and `sidecore remote status` has the last"
                ))
            }
        }
    }
}

/// Who was refused at one link.
pub(super) struct Strangers {
    counted: Arc<Refusals>,
    /// By reason.
    last: [Option<Last>; REASONS.len()],
    /// By reason.
    logged: [Logged; REASONS.len()],
}

impl Default for Strangers {
    fn default() -> Strangers {
        let logged = REASONS.map(Logged::of);
        Strangers { counted: Arc::default(), last: Default::default(), logged }
    }
}

impl Strangers {
    /// Those that are refused are counted there.
    pub(super) fn counted_by(&mut self, counted: Arc<Refusals>) {
        self.counted = counted;
    }

    /// One more that is not counted by who reads them.
    pub(super) fn count(&self, reason: Reason) {
        self.counted.add(reason);
    }

    /// One was refused. What the log is to say of it, if anything.
    pub(super) fn note(
        &mut self,
        from: Address,
        (reason, words): (Reason, Option<String>),
        now: Instant,
    ) -> Option<String> {
        let last = Last { from, at: now, words };
        let told = self.logged[reason as usize].note(reason, &last);
        self.last[reason as usize] = Some(last);
        told
    }

    /// Others may come than when those were refused.
    pub(super) fn forget(&mut self) {
        let counted = Arc::clone(&self.counted);
        *self = Strangers { counted, ..Strangers::default() };
    }

    /// How many were refused that are counted here.
    pub(super) fn all(&self) -> u64 {
        REASONS.iter().map(|reason| self.counted.of(*reason)).sum()
    }

    /// The last of each reason, in words, while that is a problem. What anybody can send in the name of others is none.
    pub(super) fn lately(&self, unread: Unread, now: Instant) -> Vec<String> {
        let problem = |reason: &Reason| {
            let last = self.last[*reason as usize].as_ref()?;
            let time = now.saturating_duration_since(last.at);
            let count = self.count_of(*reason, unread);
            let seconds = time.as_secs();
            (time < SHOWN_TIME)
                .then(|| format!("{} ({seconds} s ago, {count} in all)", told(*reason, last)))
        };
        REASONS.iter().filter(|reason| reason.is_proven()).filter_map(problem).collect()
    }

    /// For operators.
    pub(super) fn views(&self, unread: Unread, now: Instant) -> Vec<LinkRefusalView> {
        let view = |reason: &Reason| {
            let last = self.last[*reason as usize].as_ref();
            let seconds = |last: &Last| now.saturating_duration_since(last.at).as_secs();
            LinkRefusalView {
                reason: reason.word().to_string(),
                count: self.count_of(*reason, unread),
                from: last.map(|last| last.from.to_string()),
                ago_s: last.map(seconds),
            }
        };
        REASONS.iter().map(view).filter(|view| view.count > 0).collect()
    }

    fn count_of(&self, reason: Reason, unread: Unread) -> u64 {
        let more = match reason {
            Reason::Unreadable => unread.unreadable,
            Reason::NoRoom => unread.no_room,
            Reason::Stranger
            | Reason::Forged
            | Reason::NothingInCommon
            | Reason::Malformed
            | Reason::Crowded => 0,
        };
        self.counted.of(reason) + more
    }
}

fn told(reason: Reason, Last { from, words, .. }: &Last) -> String {
    let why = words.as_deref().unwrap_or(reason.word());
    format!("a hello from {from} was refused: {why}; {}", reason.todo())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    fn sender(at: u16) -> Address {
        Address::udp(format!("10.0.0.1:{at}").parse().expect("an address"))
    }

    #[test]
    fn each_sender_is_told_of_once_in_a_minute_and_the_last_of_each_reason_is_shown() {
        let (mut strangers, start) = (Strangers::default(), now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let note = |strangers: &mut Strangers, from, reason, seconds| {
            strangers.count(reason);
            strangers.note(sender(from), (reason, None), at(seconds))
        };
        let first = note(&mut strangers, 1, Reason::Stranger, 0).expect("it is told");
        assert!(
            first.starts_with("a hello from 10.0.0.1:1 was refused: a stranger; the"),
            "{first}"
        );
        assert_eq!(note(&mut strangers, 1, Reason::Stranger, 59), None, "once in a minute");
        // One that comes later, and another reason of the first.
        assert!(note(&mut strangers, 2, Reason::Stranger, 1).is_some());
        assert!(note(&mut strangers, 1, Reason::NothingInCommon, 2).is_some());
        assert!(note(&mut strangers, 1, Reason::Stranger, 60).is_some());
        let shown = strangers.lately(Unread::default(), at(61));
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].contains("from 10.0.0.1:1 ") && shown[0].ends_with("(1 s ago, 4 in all)"));
        assert!(
            shown[1].contains("nothing in common") && shown[1].ends_with("(59 s ago, 1 in all)")
        );
        assert_eq!(strangers.lately(Unread::default(), at(120)), Vec::<String>::new());
        // Counts and the last of each stay.
        let views = strangers.views(Unread { unreadable: 7, no_room: 0 }, at(120));
        let seen = views.iter().map(|it| (it.reason.as_str(), it.count, it.ago_s));
        let unreadable = Reason::Unreadable.word();
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                ("a stranger", 4, Some(60)),
                ("nothing in common", 1, Some(118)),
                (unreadable, 7, None)
            ]
        );
        assert_eq!(strangers.all(), 5);
        strangers.forget();
        assert_eq!((strangers.all(), strangers.lately(Unread::default(), at(61))), (5, vec![]));
        assert!(note(&mut strangers, 1, Reason::Stranger, 61).is_some());
    }

    #[test]
    fn a_crowd_of_senders_is_told_of_in_one_line() {
        let (mut strangers, now) = (Strangers::default(), now());
        let said = |from| strangers.note(sender(from), (Reason::Stranger, None), now);
        let told: Vec<String> = (0..1000).filter_map(said).collect();
        assert_eq!(told.len(), TOLD_MAX + 1);
        assert!(told[TOLD_MAX].starts_with("hellos of more than 64 senders"), "{}", told[TOLD_MAX]);
        let lately = &strangers.logged[Reason::Stranger as usize].lately;
        assert_eq!(lately.told.len(), TOLD_MAX);
        let later = now + SHOWN_TIME;
        assert!(strangers.note(sender(1), (Reason::Stranger, None), later).is_some());
    }

    #[test]
    fn what_anybody_can_send_hides_nothing_and_is_no_problem() {
        let (mut strangers, now) = (Strangers::default(), now());
        let forged = |from| strangers.note(sender(from), (Reason::Unreadable, None), now);
        let told: Vec<String> = (0..1000).filter_map(forged).collect();
        assert_eq!(told.len(), UNPROVEN_TOLD_MAX + 1);
        assert!(told[0].contains("from an address that is not proven; "), "{}", told[0]);
        assert!(told[UNPROVEN_TOLD_MAX].starts_with("hellos of more than 2 senders"));
        let unread = Unread { unreadable: 1000, no_room: 3 };
        assert_eq!(strangers.lately(unread, now), Vec::<String>::new());
        // It is counted, and so is what was not looked at, which is not laid to clients.
        let views = strangers.views(unread, now);
        let seen = views.iter().map(|it| (it.reason.as_str(), it.count, it.from.is_some()));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(Reason::Unreadable.word(), 1000, true), ("no room for it just then", 3, false)]
        );
        // Whoever is at its address is told of all the same, for each reason.
        for reason in [Reason::Stranger, Reason::NothingInCommon, Reason::Crowded] {
            assert!(strangers.note(sender(1), (reason, None), now).is_some(), "{reason:?}");
        }
        let said = |from| strangers.note(sender(from), (Reason::Stranger, None), now);
        // One was told before; the last line is of all others.
        assert_eq!((0..1000).filter_map(said).count(), TOLD_MAX);
        assert!(strangers.note(sender(2), (Reason::Crowded, None), now).is_some());
        assert_eq!(strangers.lately(unread, now).len(), 3);
    }
}
