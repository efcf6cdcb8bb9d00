//! Which IOhost a client's link speaks to, and when a session with it is to begin.
//!
//! Not handshakes themselves, which control's greeter does: it is asked for a hello, which is said here until it is
//! answered; what answers goes up to it. Time is an argument. Called by `client`.

use super::Address;

/// Hellos said to one IOhost before the next one is tried, and after the first one so long a pause, which doubles.
const HELLOS: u32 = 5;
const HELLO_NS: u64 = 100_000_000;
/// A greeter that was asked for a hello is asked again.
const ASK_NS: u64 = 5_000_000_000;
/// An IOhost that refuses every device for so long is left for the next one, if there is another.
const REFUSED_NS: u64 = 1_000_000_000;
/// A session that another one followed so soon was a short one, and after so many in a row there is a pause before the
/// next, of [`HELLO_NS`] first, and up to sixteen times that.
const SHORT_NS: u64 = 1_000_000_000;
const SHORTS: u32 = 3;

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    None,
    /// Ask control for a hello to this IOhost.
    Ask(Address),
    /// Say the hello to this one.
    Say(Address),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is a session, and it will do.
    Quiet,
    /// Control was asked for a hello.
    Asked { at: u64 },
    /// It is said: so often, and again then.
    Says { times: u32, at: u64 },
}

#[derive(Debug)]
pub(super) struct Greeting {
    iohosts: Box<[Address]>,
    /// Whom hellos go to.
    target: usize,
    state: State,
    hello: Vec<u8>,
    /// Whom the session is with.
    peer: Option<Address>,
    /// Since when every device is refused.
    refused_at: Option<u64>,
    /// When the last session was made.
    made_at: Option<u64>,
    /// Sessions in a row that did not last.
    short: u32,
    /// Nobody is asked before, because of them.
    not_before: u64,
    /// Somebody would have been asked when it was looked last.
    is_paused: bool,
}

impl Greeting {
    pub(super) fn new(iohosts: Vec<Address>) -> Greeting {
        let (target, state, hello) = (0, State::Quiet, Vec::new());
        Greeting {
            iohosts: iohosts.into(),
            target,
            state,
            hello,
            peer: None,
            refused_at: None,
            made_at: None,
            short: 0,
            not_before: 0,
            is_paused: false,
        }
    }

    /// Hellos go to this one first, if there are so many.
    pub(super) fn begin_with(&mut self, target: usize) {
        self.target = if target < self.iohosts.len() { target } else { 0 };
    }

    /// Whose sealed frames count.
    #[inline]
    pub(super) fn peer(&self) -> Option<Address> {
        self.peer
    }

    /// Its place among the IOhosts, of a session that is made.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// Whose cookies and answers count.
    pub(super) fn awaits(&self) -> Option<Address> {
        match self.state {
            State::Says { .. } => self.iohosts.get(self.target).copied(),
            State::Quiet | State::Asked { .. } => None,
        }
    }

    pub(super) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Control has made a hello, or put a cookie into the one that is being said.
    pub(super) fn say(&mut self, hello: Vec<u8>, now: u64) {
        let times = match self.state {
            // Nobody wants it any more.
            State::Quiet => return,
            State::Asked { .. } => 0,
            State::Says { times, .. } => times,
        };
        self.hello = hello;
        self.state = State::Says { times, at: now };
    }

    /// There is a session with `peer`.
    pub(super) fn established(&mut self, peer: Address, now: u64) {
        self.peer = Some(peer);
        if let Some(made_at) = self.made_at.replace(now) {
            // What passed until somebody might be asked again is not how long it lasted.
            let lasted = now.saturating_sub(made_at.max(self.not_before));
            self.short = if lasted < SHORT_NS { self.short.saturating_add(1) } else { 0 };
        }
        let times = (self.short + 1).checked_sub(SHORTS);
        self.not_before = now + times.map_or(0, |times| HELLO_NS << times.min(4));
        self.state = State::Quiet;
        self.refused_at = None;
        self.turn_to_peer();
    }

    fn turn_to_peer(&mut self) {
        let Some(peer) = self.peer else { return };
        if let Some(at) = self.iohosts.iter().position(|iohost| *iohost == peer) {
            self.target = at;
        }
    }

    /// A device is refused, or (`false`) one is had.
    pub(super) fn refused(&mut self, is_refused: bool, now: u64) {
        self.refused_at = is_refused.then(|| self.refused_at.unwrap_or(now));
    }

    /// What is to be done at `now`; `wants` when the session will not do.
    pub(super) fn step(&mut self, wants: bool, now: u64) -> Step {
        let is_shunned = self.iohosts.len() > 1
            && self.refused_at.is_some_and(|at| now.saturating_sub(at) >= REFUSED_NS);
        self.is_paused =
            wants && !is_shunned && self.state == State::Quiet && now < self.not_before;
        match self.state {
            State::Quiet if is_shunned => self.ask_next(now),
            // An IOhost that has ended several sessions at once is not asked at once.
            State::Quiet if self.is_paused => Step::None,
            State::Quiet if wants => self.ask(now),
            State::Quiet => Step::None,
            _ if !wants && !is_shunned => {
                self.state = State::Quiet;
                // That one is heard again: it is the first to be asked the next time.
                self.turn_to_peer();
                Step::None
            }
            State::Asked { at } if now.saturating_sub(at) >= ASK_NS => self.ask(now),
            State::Asked { .. } => Step::None,
            State::Says { times, at } if at <= now => {
                if times >= HELLOS {
                    return self.ask_next(now);
                }
                self.state = State::Says { times: times + 1, at: now + (HELLO_NS << times) };
                self.iohosts.get(self.target).map_or(Step::None, |target| Step::Say(*target))
            }
            State::Says { .. } => Step::None,
        }
    }

    fn ask_next(&mut self, now: u64) -> Step {
        self.target = (self.target + 1) % self.iohosts.len().max(1);
        self.ask(now)
    }

    fn ask(&mut self, now: u64) -> Step {
        self.state = State::Asked { at: now };
        self.iohosts.get(self.target).map_or(Step::None, |target| Step::Ask(*target))
    }

    /// When [`Self::step`] is due, if nothing happens before.
    pub(super) fn due(&self) -> u64 {
        match self.state {
            State::Quiet => {
                let refused_at = self.refused_at.filter(|_| self.iohosts.len() > 1);
                let shunned = refused_at.map_or(u64::MAX, |at| at.saturating_add(REFUSED_NS));
                shunned.min(if self.is_paused { self.not_before } else { u64::MAX })
            }
            State::Asked { at } => at.saturating_add(ASK_NS),
            State::Says { at, .. } => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(port: u16) -> Address {
        Address::udp(([127, 0, 0, 1], port).into())
    }

    /// All steps that are due until then.
    fn run(greeting: &mut Greeting, wants: bool, until: u64) -> Vec<(u64, Step)> {
        let (mut steps, mut now) = (Vec::new(), 0);
        while now <= until {
            let step = greeting.step(wants, now);
            if let Step::Ask(_) = step {
                greeting.say(vec![1], now);
            }
            if step != Step::None {
                steps.push((now / MS, step));
            }
            now = greeting.due().max(now + MS);
        }
        steps
    }

    #[test]
    fn who_does_not_answer_is_asked_five_times_and_then_the_next_one() {
        let mut greeting = Greeting::new(vec![at(1), at(2)]);
        let steps = run(&mut greeting, true, 3_300 * MS);
        let said = [1, 101, 301, 701, 1501].map(|ms| (ms, Step::Say(at(1))));
        assert_eq!(steps[0], (0, Step::Ask(at(1))));
        assert_eq!(steps[1..6], said);
        assert_eq!(steps[6..8], [(3101, Step::Ask(at(2))), (3102, Step::Say(at(2)))]);
        assert_eq!(greeting.awaits(), Some(at(2)));
        greeting.established(at(2), 3_103 * MS);
        assert_eq!((greeting.awaits(), greeting.peer()), (None, Some(at(2))));
        assert_eq!(greeting.step(false, 4_000 * MS), Step::None);
        // The one that was spoken to is the first when its session will not do.
        assert_eq!(greeting.step(true, 5_000 * MS), Step::Ask(at(2)));
    }

    #[test]
    fn a_cookie_makes_no_more_hellos_and_a_late_hello_none() {
        let mut greeting = Greeting::new(vec![at(1)]);
        assert_eq!(greeting.step(true, 0), Step::Ask(at(1)));
        greeting.say(vec![1], 0);
        assert_eq!(greeting.step(true, 0), Step::Say(at(1)));
        assert_eq!(greeting.step(true, 50 * MS), Step::None);
        for _ in 0..HELLOS - 1 {
            greeting.say(vec![2], 50 * MS);
            assert_eq!(greeting.step(true, 50 * MS), Step::Say(at(1)));
            assert_eq!(greeting.hello(), [2]);
        }
        greeting.say(vec![2], 50 * MS);
        assert_eq!(greeting.step(true, 50 * MS), Step::Ask(at(1)), "an end of it");
        greeting.established(at(1), 0);
        greeting.say(vec![3], 60 * MS);
        assert_eq!(greeting.step(false, 60 * MS), Step::None);
    }

    #[test]
    fn an_iohost_that_refuses_everything_is_left_if_there_is_another() {
        let mut alone = Greeting::new(vec![at(1)]);
        let mut greeting = Greeting::new(vec![at(1), at(2)]);
        for one in [&mut alone, &mut greeting] {
            one.established(at(1), 0);
            one.refused(true, 0);
            one.refused(true, 900 * MS);
            assert_eq!(one.step(false, 999 * MS), Step::None);
        }
        assert_eq!(alone.step(false, 1000 * MS), Step::None);
        assert_eq!(greeting.due(), 1000 * MS);
        assert_eq!(greeting.step(false, 1000 * MS), Step::Ask(at(2)));
        greeting.refused(false, 1001 * MS);
        assert_eq!(greeting.step(false, 1001 * MS), Step::None, "it has come to terms");
        assert_eq!(greeting.due(), u64::MAX);
    }

    #[test]
    fn who_ends_each_session_at_once_is_asked_ever_more_rarely() {
        let mut greeting = Greeting::new(vec![at(1)]);
        let (mut now, mut asked) = (0, Vec::new());
        while now < 10_000 * MS {
            if greeting.step(true, now) == Step::Ask(at(1)) {
                asked.push(now / MS);
                greeting.established(at(1), now + MS);
            }
            now = if greeting.due() > now { greeting.due().min(now + MS) } else { now + MS };
        }
        assert_eq!(asked[..6], [0, 1, 2, 103, 304, 705], "{asked:?}");
        assert!(asked.len() < 14, "{asked:?}");
        // Who is heard again meanwhile is not asked, and nothing is due.
        greeting.established(at(1), 10_000 * MS);
        assert_eq!(greeting.step(true, 10_100 * MS), Step::None);
        assert_eq!(greeting.due(), 11_600 * MS);
        assert_eq!(greeting.step(false, 10_200 * MS), Step::None);
        assert_eq!(greeting.due(), u64::MAX);
        // One that lasts is the end of it.
        assert_eq!(greeting.step(true, 13_000 * MS), Step::Ask(at(1)));
        greeting.established(at(1), 13_001 * MS);
        assert_eq!(greeting.step(true, 13_002 * MS), Step::Ask(at(1)));
    }

    #[test]
    fn who_is_heard_again_is_asked_first_the_next_time() {
        let mut greeting = Greeting::new(vec![at(1), at(2)]);
        greeting.established(at(1), 0);
        let steps = run(&mut greeting, true, 3_200 * MS);
        assert_eq!(steps.last(), Some(&(3_102, Step::Say(at(2)))), "it was silent");
        assert_eq!(greeting.step(false, 3_300 * MS), Step::None);
        assert_eq!(greeting.step(true, 9_000 * MS), Step::Ask(at(1)));
    }

    #[test]
    fn a_greeter_that_says_nothing_is_asked_again() {
        let mut greeting = Greeting::new(vec![at(1)]);
        assert_eq!(greeting.step(true, 0), Step::Ask(at(1)));
        assert_eq!(greeting.step(true, ASK_NS - 1), Step::None);
        assert_eq!(greeting.step(true, ASK_NS), Step::Ask(at(1)));
    }
}
