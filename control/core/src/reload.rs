//! A reload after its changes: what is opened late and what is resized is waited for, then it is answered.
//!
//! What cannot be opened late after all is taken back, also when nobody waits for an answer any more. Not here: reading the
//! file, comparing, opening and changing, which are one event.
//!
//! | | something is resized | something is late | some of it has failed | nothing is late |
//! |---|---|---|---|---|
//! | asked | waits | waits | waits, if some is late | answered |
//! | asked, and time is up | waits | answered: not yet | answered: refused | answered |
//! | answered | - | waits | taken back | over |
//!
//! What was answered is over when nothing is late any more; another reload may begin before, and what that one does not
//! plan otherwise is late as before, though that one does not wait for it. And whether a guest loses by a change, for
//! which it is refused unless an operator insists:
//!
//! | | nobody has the device | its guest waits for its image | its guest uses it |
//! |---|---|---|---|
//! | added, changed | no | no | no |
//! | remade | no | no | yes |
//! | made smaller, removed | no | yes | yes |

use schedule::Nanos;

/// What a change does to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It is added, or served otherwise.
    Change,
    /// It goes, and another one comes in its place.
    Remake,
    /// It has less room.
    Shrink,
    /// It goes.
    Remove,
}

/// Who has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// No guest.
    Nobody,
    /// One that waits for its image, and has lost nothing when the disk is opened anew.
    Waits,
    /// One that uses it.
    Uses,
}

/// Whether a guest loses by a change.
pub fn loses(does: Does, guest: Guest) -> bool {
    match (does, guest) {
        (Does::Change, _) | (_, Guest::Nobody) | (Does::Remake, Guest::Waits) => false,
        (Does::Remake, Guest::Uses) | (Does::Shrink | Does::Remove, _) => true,
    }
}

/// How something stands that is opened late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It is tried again.
    Late,
    /// It cannot be opened.
    Failed,
    /// It is open, or nobody wants it any more.
    Open,
}

/// A reload. `L` is something that is opened late, `D` what has been done.
#[derive(Debug)]
pub struct Reload<L, D> {
    asked: Option<Asked<L, D>>,
    /// What is late of those that are answered, and may still fail: that of the last one first.
    answered: Vec<L>,
}

/// One whose answer is waited for.
#[derive(Debug)]
struct Asked<L, D> {
    late: Vec<L>,
    /// Devices that get another size.
    resizing: Vec<u32>,
    done: D,
    until: Nanos,
}

/// What a reload has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is late.
    Done,
    /// Something of it is late still.
    NotYet,
    /// Something of it cannot be opened.
    Refused,
}

/// What is to be done about a reload now.
#[derive(Debug, PartialEq, Eq)]
pub struct Next<L, D> {
    /// These could not be opened, first those of the one that is answered: what was there before them is to be served
    /// again.
    pub failed: Vec<L>,
    /// Whoever asked is to be answered.
    pub answer: Option<(Outcome, D)>,
}

impl<L, D> Default for Reload<L, D> {
    fn default() -> Reload<L, D> {
        Reload { asked: None, answered: Vec::new() }
    }
}

impl<L, D> Reload<L, D> {
    /// Whether its answer is waited for: no other may begin.
    pub fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// When it is answered in any case.
    pub fn due_at(&self) -> Option<Nanos> {
        self.asked.as_ref().map(|asked| asked.until)
    }

    /// What is late of those that are answered and is planned otherwise now: it is not taken back any more.
    pub fn replace(&mut self, is_it: impl Fn(&L) -> bool) -> Vec<L> {
        self.answered.extract_if(.., |late| is_it(late)).collect()
    }

    /// What changes has been done, and this is late.
    pub fn begin(&mut self, late: Vec<L>, resizing: Vec<u32>, done: D, until: Nanos) {
        self.asked = Some(Asked { late, resizing, done, until });
    }

    /// Nothing is waited for or taken back any more: what has been done, if whoever asked is not answered yet.
    pub fn end(&mut self) -> Option<D> {
        self.answered.clear();
        self.asked.take().map(|asked| asked.done)
    }

    /// A device has not got its new size: what has been done, if that was asked for here.
    pub fn not_resized(&mut self, device: u32) -> Option<&mut D> {
        let asked = self.asked.as_mut().filter(|asked| asked.resizing.contains(&device));
        asked.map(|asked| &mut asked.done)
    }

    /// What is late: of one that is not answered yet, or of those that are, that of the last one first.
    pub fn late(&self) -> &[L] {
        self.asked.as_ref().map_or(&self.answered, |asked| &asked.late)
    }

    /// Looks how all stands that is late. `None`: it waits, or there is none.
    pub fn look(
        &mut self,
        now: Nanos,
        stands: impl Fn(&L) -> Stands,
        resizes: impl Fn(u32) -> bool,
    ) -> Option<Next<L, D>> {
        let is_late = |late: &L| stands(late) == Stands::Late;
        let has_failed = |late: &mut L| stands(late) == Stands::Failed;
        let before: Vec<L> = self.answered.extract_if(.., has_failed).collect();
        self.answered.retain(is_late);
        let over = self.asked.take_if(|asked| {
            let resizes = asked.resizing.iter().any(|device| resizes(*device));
            !resizes && (now >= asked.until || !asked.late.iter().any(is_late))
        });
        let Some(Asked { mut late, done, .. }) = over else {
            return (!before.is_empty()).then_some(Next { failed: before, answer: None });
        };
        let mut failed: Vec<L> = late.extract_if(.., has_failed).collect();
        late.retain(is_late);
        let outcome = match (failed.is_empty(), late.is_empty()) {
            (false, _) => Outcome::Refused,
            (true, false) => Outcome::NotYet,
            (true, true) => Outcome::Done,
        };
        failed.extend(before);
        self.answered.splice(..0, late);
        Some(Next { failed, answer: Some((outcome, done)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTIL: Nanos = Nanos(10);
    /// Two that are late: how the first and the second stand.
    const EACH: [Stands; 3] = [Stands::Late, Stands::Failed, Stands::Open];

    fn begun() -> Reload<usize, &'static str> {
        let mut reload = Reload::default();
        reload.begin(vec![0, 1], vec![7], "done", UNTIL);
        reload
    }

    fn failed(both: [Stands; 2]) -> Vec<usize> {
        [0, 1].into_iter().filter(|it| both[*it] == Stands::Failed).collect()
    }

    #[test]
    fn a_guest_loses_when_the_table_says() {
        for (does, expected) in [
            (Does::Change, [false, false, false]),
            (Does::Remake, [false, false, true]),
            (Does::Shrink, [false, true, true]),
            (Does::Remove, [false, true, true]),
        ] {
            let guests = [Guest::Nobody, Guest::Waits, Guest::Uses];
            assert_eq!(guests.map(|guest| loses(does, guest)), expected, "{does:?}");
        }
    }

    #[test]
    fn it_is_answered_when_the_table_says() {
        for both in EACH.into_iter().flat_map(|one| EACH.map(|other| [one, other])) {
            let is_late = both.contains(&Stands::Late);
            for (now, resizes) in [(9, false), (9, true), (10, false), (10, true)] {
                let mut reload = begun();
                let next = reload.look(Nanos(now), |it| both[*it], |_| resizes);
                let why = format!("{both:?} at {now}, {resizes}");
                if resizes || is_late && now < 10 {
                    assert_eq!((next, reload.is_asked()), (None, true), "{why}");
                    continue;
                }
                let outcome = match (both.contains(&Stands::Failed), is_late) {
                    (true, _) => Outcome::Refused,
                    (false, true) => Outcome::NotYet,
                    (false, false) => Outcome::Done,
                };
                let expected = Next { failed: failed(both), answer: Some((outcome, "done")) };
                assert_eq!((next, reload.is_asked()), (Some(expected), false), "{why}");
                let late: Vec<usize> =
                    [0, 1].into_iter().filter(|it| both[*it] == Stands::Late).collect();
                assert_eq!(reload.late(), late, "{why}");
            }
        }
    }

    #[test]
    fn what_fails_after_the_answer_is_taken_back_once() {
        let mut reload = begun();
        let late = |_: &usize| Stands::Late;
        assert!(reload.look(UNTIL, late, |_| false).is_some());
        assert_eq!((reload.due_at(), reload.look(UNTIL, late, |_| true)), (None, None));
        let one = |it: &usize| if *it == 0 { Stands::Failed } else { Stands::Late };
        let expected = Next { failed: vec![0], answer: None };
        assert_eq!(reload.look(UNTIL, one, |_| false), Some(expected));
        assert_eq!((reload.look(UNTIL, one, |_| false), reload.late()), (None, [1].as_slice()));
        assert_eq!(reload.look(UNTIL, |_| Stands::Open, |_| false), None);
        assert!(reload.late().is_empty());
    }

    #[test]
    fn another_begins_when_one_is_answered() {
        let mut reload = begun();
        assert!(reload.is_asked() && reload.due_at() == Some(UNTIL));
        *reload.not_resized(7).unwrap() = "not resized";
        assert!(reload.not_resized(8).is_none());
        let next = reload.look(UNTIL, |_| Stands::Late, |_| false).unwrap();
        assert_eq!(next.answer, Some((Outcome::NotYet, "not resized")));
        assert!(!reload.is_asked() && reload.not_resized(7).is_none());
        reload.begin(vec![2], Vec::new(), "more", Nanos(30));
        assert_eq!((reload.is_asked(), reload.late()), (true, [2].as_slice()));
        reload.end();
        assert_eq!(reload.look(Nanos(30), |_| Stands::Failed, |_| false), None);
    }

    #[test]
    fn another_neither_waits_for_what_was_late_before_nor_forgets_it() {
        let mut reload = begun();
        assert!(reload.look(UNTIL, |_| Stands::Late, |_| false).is_some());
        // The second is planned otherwise.
        assert_eq!(reload.replace(|it| *it == 1), [1]);
        reload.begin(vec![2], Vec::new(), "more", Nanos(30));
        let stands = |failed: usize| {
            move |it: &usize| if *it == failed { Stands::Failed } else { Stands::Late }
        };
        let expected = Next { failed: vec![0], answer: None };
        assert_eq!(reload.look(Nanos(20), stands(0), |_| false), Some(expected));
        assert!(reload.is_asked());

        let mut reload = begun();
        assert!(reload.look(UNTIL, |_| Stands::Late, |_| false).is_some());
        reload.begin(Vec::new(), Vec::new(), "nothing", Nanos(30));
        let next = reload.look(UNTIL, |_| Stands::Late, |_| false).unwrap();
        assert_eq!(next.answer, Some((Outcome::Done, "nothing")), "it waits for nothing");
        assert_eq!(reload.late(), [0, 1]);
        reload.begin(vec![2], Vec::new(), "more", Nanos(30));
        let all = Next { failed: vec![2, 0, 1], answer: Some((Outcome::Refused, "more")) };
        assert_eq!(reload.look(Nanos(25), |_| Stands::Failed, |_| false), Some(all));
    }
}
