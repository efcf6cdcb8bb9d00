//! Operators' calls that wait: for an image, for queues that a change needs back, for the end of a device.
//!
//! Each is answered once. Not here: what is asked, in which words it is answered, and calls that wait for moves
//! ([`crate::moves`]) or for what sidecores know.
//!
//! | | opened | sized | staged | gone | gone, its image not closed | closed | due |
//! |---|---|---|---|---|---|---|---|
//! | opening | over | - | - | - | - | - | over |
//! | sizing | - | over | - | over | over | - | over |
//! | staging | - | - | over | over | over | - | over |
//! | removing | - | - | - | over | closing | - | over |
//! | closing | - | - | - | - | - | over | over |

use schedule::Nanos;

/// What a call waits for: `A` is what it adds, `V` what was seen last of the device that it removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait<A, V> {
    /// An image, until which nothing is added.
    Opening(A),
    /// The queues of a device, which is resized when they are back.
    Sizing(u32),
    /// The queues of a device, which get other stages while they are served.
    Staging(u32),
    /// The queues of a device, which is removed when they are back.
    Removing(u32),
    /// A device's image is being closed; the device is gone.
    Closing(u32, V),
}

#[derive(Debug)]
struct Call<A, V, R> {
    wait: Wait<A, V>,
    /// Then it is over in any case.
    until: Nanos,
    reply: R,
}

/// All calls that wait, in the order in which they came. `R` is where the answer goes.
#[derive(Debug)]
pub struct Calls<A, V, R>(Vec<Call<A, V, R>>);

impl<A, V, R> Default for Calls<A, V, R> {
    fn default() -> Calls<A, V, R> {
        Calls(Vec::new())
    }
}

/// A call that waits no longer: for what it did, and where its answer goes.
pub type Over<A, V, R> = (Wait<A, V>, R);

impl<A, V: Clone, R> Calls<A, V, R> {
    /// One waits, until some time at the latest.
    pub fn wait(&mut self, wait: Wait<A, V>, until: Nanos, reply: R) {
        self.0.push(Call { wait, until, reply });
    }

    /// When one is over in any case.
    pub fn due_at(&self) -> Option<Nanos> {
        self.0.iter().map(|call| call.until).min()
    }

    /// Whether something is added of which that is true.
    pub fn adds(&self, is_it: impl Fn(&A) -> bool) -> bool {
        self.0.iter().any(|call| matches!(&call.wait, Wait::Opening(added) if is_it(added)))
    }

    /// Nothing is added or changed any more, and those who have something removed go on waiting: where the answers of the
    /// others go.
    pub fn give_up_changes(&mut self) -> Vec<R> {
        let is_it = |call: &Call<A, V, R>| match call.wait {
            Wait::Opening(_) | Wait::Sizing(_) | Wait::Staging(_) => true,
            Wait::Removing(_) | Wait::Closing(..) => false,
        };
        std::iter::from_fn(|| self.take(is_it)).map(|(_, reply)| reply).collect()
    }

    /// Nobody waits for stages any more, of whichever device: where the answers go.
    pub fn give_up_stages(&mut self) -> Vec<R> {
        let is_it = |call: &Call<A, V, R>| matches!(call.wait, Wait::Staging(_));
        std::iter::from_fn(|| self.take(is_it)).map(|(_, reply)| reply).collect()
    }

    /// Nothing is waited for any more: where the answers of all go.
    pub fn give_up(&mut self) -> Vec<R> {
        std::mem::take(&mut self.0).into_iter().map(|call| call.reply).collect()
    }

    fn take(&mut self, is_it: impl Fn(&Call<A, V, R>) -> bool) -> Option<Over<A, V, R>> {
        let at = self.0.iter().position(is_it)?;
        let Call { wait, reply, .. } = self.0.remove(at);
        Some((wait, reply))
    }

    /// The next one whose time is up.
    pub fn due(&mut self, now: Nanos) -> Option<Over<A, V, R>> {
        self.take(|call| call.until <= now)
    }

    /// The next addition of whose image it is known what became of it.
    pub fn opened(&mut self, is_known: impl Fn(&A) -> bool) -> Option<(A, R)> {
        let is_over = |wait: &Wait<A, V>| matches!(wait, Wait::Opening(added) if is_known(added));
        match self.take(|call| is_over(&call.wait))? {
            (Wait::Opening(added), reply) => Some((added, reply)),
            _ => None,
        }
    }

    /// A device has another size, or was refused it.
    pub fn sized(&mut self, device: u32) -> Option<R> {
        self.take(|call| matches!(call.wait, Wait::Sizing(of) if of == device))
            .map(|(_, reply)| reply)
    }

    /// The queues of a device have the stages that they are to have.
    pub fn staged(&mut self, device: u32) -> Option<R> {
        self.take(|call| matches!(call.wait, Wait::Staging(of) if of == device))
            .map(|(_, reply)| reply)
    }

    /// Whether somebody waits for that.
    pub fn stages(&self, device: u32) -> bool {
        self.0.iter().any(|call| matches!(call.wait, Wait::Staging(of) if of == device))
    }

    /// A device is gone. Those who remove it go on waiting if its image is `closing`, and are told then what was seen of
    /// it last.
    pub fn gone(&mut self, device: u32, closing: Option<&V>) -> Vec<Over<A, V, R>> {
        if let Some(view) = closing {
            let is_removal =
                |wait: &Wait<A, V>| matches!(wait, Wait::Removing(of) if *of == device);
            for call in self.0.iter_mut().filter(|call| is_removal(&call.wait)) {
                call.wait = Wait::Closing(device, view.clone());
            }
        }
        let waits = |call: &Call<A, V, R>| match call.wait {
            Wait::Sizing(of) | Wait::Staging(of) | Wait::Removing(of) => of == device,
            Wait::Opening(_) | Wait::Closing(..) => false,
        };
        std::iter::from_fn(|| self.take(waits)).collect()
    }

    /// The image of a device that is gone is closed: what was seen of it last, for whoever removed it.
    pub fn closed(&mut self, device: u32) -> Option<(V, R)> {
        match self.take(|call| matches!(call.wait, Wait::Closing(of, _) if of == device))? {
            (Wait::Closing(_, view), reply) => Some((view, reply)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Waits = Wait<&'static str, &'static str>;

    const UNTIL: Nanos = Nanos(10);

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Opened,
        Sized,
        Staged,
        Gone,
        GoneButNotClosed,
        Closed,
        Due,
        /// Any of these, of another device or too early.
        Other,
    }

    /// What is over then, and what still waits.
    fn after(wait: Waits, event: Event) -> (Option<Waits>, Option<Waits>) {
        let mut calls = Calls::default();
        calls.wait(wait.clone(), UNTIL, 'r');
        let back = |reply: char| (reply == 'r').then(|| wait.clone());
        let over = match event {
            Event::Opened => calls.opened(|it| *it == "a").map(|(it, _)| Wait::Opening(it)),
            Event::Sized => calls.sized(3).and_then(back),
            Event::Staged => {
                let waits = calls.stages(3);
                let over = calls.staged(3).and_then(back);
                assert_eq!(waits, over.is_some());
                over
            }
            Event::Gone => calls.gone(3, None).pop().map(|(it, _)| it),
            Event::GoneButNotClosed => calls.gone(3, Some(&"seen")).pop().map(|(it, _)| it),
            Event::Closed => calls.closed(3).map(|(view, _)| Wait::Closing(3, view)),
            Event::Due => calls.due(UNTIL).map(|(it, _)| it),
            Event::Other => {
                assert!(calls.opened(|it| *it == "b").is_none());
                assert!(calls.sized(4).is_none() && calls.closed(4).is_none());
                assert!(calls.staged(4).is_none() && !calls.stages(4));
                assert!(calls.gone(4, None).is_empty() && calls.gone(4, Some(&"it")).is_empty());
                calls.due(Nanos(9)).map(|(it, _)| it)
            }
        };
        let still = calls.due(UNTIL).map(|(it, _)| it);
        (over, still)
    }

    #[test]
    fn each_call_meets_each_event_as_the_table_says() {
        use Event::{Closed, Due, Gone, GoneButNotClosed, Opened, Other, Sized, Staged};
        let (opening, staging) = (Wait::Opening("a"), Wait::Staging(3));
        let (sizing, removing, closing) =
            (Wait::Sizing(3), Wait::Removing(3), Wait::Closing(3, "v"));
        let all = [Opened, Sized, Staged, Gone, GoneButNotClosed, Closed, Due, Other];
        for (wait, over) in [
            (opening, [true, false, false, false, false, false, true, false]),
            (sizing, [false, true, false, true, true, false, true, false]),
            (staging, [false, false, true, true, true, false, true, false]),
            (removing.clone(), [false, false, false, true, false, false, true, false]),
            (closing, [false, false, false, false, false, true, true, false]),
        ] {
            for (event, is_over) in all.into_iter().zip(over) {
                let still = match (&wait, event) {
                    (Wait::Removing(_), GoneButNotClosed) => Some(Wait::Closing(3, "seen")),
                    _ => Some(wait.clone()),
                };
                let expected = if is_over { (Some(wait.clone()), None) } else { (None, still) };
                assert_eq!(after(wait.clone(), event), expected, "{wait:?}, {event:?}");
            }
        }
    }

    #[test]
    fn who_came_first_is_answered_first_and_once() {
        let mut calls: Calls<&str, &str, u8> = Calls::default();
        calls.wait(Wait::Sizing(3), Nanos(20), 0);
        calls.wait(Wait::Removing(3), Nanos(10), 1);
        calls.wait(Wait::Removing(4), Nanos(30), 2);
        calls.wait(Wait::Opening("a"), Nanos(5), 3);
        assert_eq!(calls.due_at(), Some(Nanos(5)));
        assert!(calls.adds(|it| *it == "a") && !calls.adds(|it| *it == "b"));
        assert_eq!(calls.gone(3, None), [(Wait::Sizing(3), 0), (Wait::Removing(3), 1)]);
        assert!(calls.gone(3, None).is_empty());
        assert_eq!(calls.due_at(), Some(Nanos(5)));
        calls.wait(Wait::Closing(5, "v"), Nanos(40), 4);
        calls.wait(Wait::Staging(4), Nanos(50), 5);
        calls.wait(Wait::Sizing(4), Nanos(50), 6);
        calls.wait(Wait::Staging(7), Nanos(60), 7);
        assert_eq!(calls.give_up_stages(), [5, 7]);
        calls.wait(Wait::Staging(4), Nanos(50), 5);
        assert_eq!(calls.give_up_changes(), [3, 6, 5]);
        assert!(!calls.adds(|_| true) && !calls.stages(4));
        assert_eq!(calls.give_up(), [2, 4]);
        assert_eq!(calls.give_up(), []);
        assert_eq!(calls.due_at(), None);
    }
}
