//! The two lines and the visits: who is next.
//!
//! The *work line* holds queues that were kicked out of a rest; the *poll line* holds all other
//! polled queues, the one visited longest ago first. They are taken in turn. After a visit a queue
//! stands at the end of the poll line, so a queue already visited at its head ends the pass.

use crate::aim::Aim;
use crate::budget::{Budget, KICK_NS_MAX, Limits, Visited};
use crate::lines::Lines;
use crate::nanos::Nanos;
use crate::policy::{Learned, Policy, Polling, Prices};
use crate::share::Account;
use crate::urgency::{Habit, Urgency};
use crate::waits::Waits;

mod interruptions;

/// Lines of the first table.
const POLL: usize = 0;
const WORK: usize = 1;
/// The line of the second table: queues that may be armed. They stay in the poll line meanwhile.
const IDLE: usize = 0;

/// A turn of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Whose.
    pub queue: u16,
    /// What it may do.
    pub budget: Budget,
}

/// Looking at all polled queues takes no longer, as far as policies have a say, nanoseconds.
const CROWD_NS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not here.
    Absent,
    /// Its kicks are on; it is visited after a kick.
    Armed,
    /// It is visited in every pass.
    Polled,
    /// It is visited after a moment, which is in `waits`; its kicks are off.
    Limited,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    state: State,
    polling: Polling,
    /// It wanted more at its last visit.
    hungry: bool,
    /// It is polled, but only a completion of its back-end can let it go on.
    waits: bool,
    /// It has a latency target.
    is_aimed: bool,
    /// The pass of its last turn; 0: none.
    pass: u64,
    pub(crate) last_work: Nanos,
    pub(crate) account: Account,
    pub(crate) habit: Habit,
}

/// The order of visits of one sidecore. See the crate's page for the calls and their order.
#[derive(Debug)]
pub struct Schedule {
    limits: Limits,
    entries: Vec<Entry>,
    /// What only queues near idleness need.
    learned: Vec<Learned>,
    /// What only queues with a latency target need.
    aims: Vec<Aim>,
    lines: Lines<2>,
    idle: Lines<1>,
    urgency: Urgency,
    waits: Waits,
    now: Nanos,
    /// When this pass began.
    begun: Nanos,
    /// When the last turn began.
    turn: Nanos,
    prices: Prices,
    /// Counts passes, from 2: a queue that was never visited (0) was not visited in the last one.
    pass: u64,
    /// Whose turn: the work line's, else the poll line's.
    work_turn: bool,
    /// The largest share among the hungry, in the last pass and so far in this one.
    rival: u32,
    rival_next: u32,
    queues: usize,
    polled: usize,
    /// Of the polled, those that wait for a completion.
    waiting: usize,
}

impl Schedule {
    /// Room for the queues `0..queues_max` (65,534 at most), all memory taken here.
    pub fn new(limits: Limits, queues_max: u16) -> Schedule {
        let queues_max = queues_max.min(u16::MAX - 1);
        let limits = limits.sane();
        let absent = Entry {
            state: State::Absent,
            polling: Polling::new(Policy::default(), limits.kick_ns),
            hungry: false,
            waits: false,
            is_aimed: false,
            pass: 0,
            last_work: Nanos(0),
            account: Account::new(1, &limits),
            habit: Habit::new(None),
        };
        Schedule {
            limits,
            entries: vec![absent; usize::from(queues_max)],
            learned: vec![Learned::default(); usize::from(queues_max)],
            aims: vec![Aim::default(); usize::from(queues_max)],
            lines: Lines::new(queues_max),
            idle: Lines::new(queues_max),
            urgency: Urgency::new(),
            waits: Waits::new(queues_max),
            now: Nanos(0),
            begun: Nanos(0),
            turn: Nanos(0),
            prices: Prices::of_pass(limits.kick_ns, limits.look_ns, 0, false),
            pass: 2,
            work_turn: true,
            rival: 0,
            rival_next: 0,
            queues: 0,
            polled: 0,
            waiting: 0,
        }
    }

    /// Takes in `queue`, polled from now on, at the end of the poll line. `share` is cut to
    /// `1..=SHARE_MAX`. A queue that is here starts anew; a number out of range does nothing.
    pub fn add(&mut self, queue: u16, share: u32, policy: Policy, now: Nanos) {
        self.remove(queue);
        let account = Account::new(share, &self.limits);
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            debug_assert!(false, "queue {queue} is beyond queues_max");
            return;
        };
        // The pass stays: a queue that was removed and added again is not visited twice.
        let pass = entry.pass;
        let (state, habit) = (State::Polled, Habit::new(Some(queue.into())));
        let polling = Polling::new(policy, self.prices.kick);
        let (hungry, waits, is_aimed, last_work) = (false, false, false, now);
        *entry = Entry { state, polling, hungry, waits, is_aimed, pass, last_work, account, habit };
        if let Some(learned) = self.learned.get_mut(usize::from(queue)) {
            *learned = Learned::default();
        }
        self.lines.move_to_end(POLL, queue);
        self.queues += 1;
        self.polled += 1;
    }

    /// Lets `queue` go. Nothing when it is not here.
    pub fn remove(&mut self, queue: u16) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return;
        };
        match entry.state {
            State::Absent => return,
            State::Armed | State::Limited => {}
            State::Polled => self.polled -= 1,
        }
        entry.state = State::Absent;
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        self.queues -= 1;
        self.urgency.forget(queue, &mut self.entries);
        self.lines.leave(queue);
        self.idle.leave(queue);
        self.waits.remove(queue);
    }

    /// Takes `queue` in again that was let go, and whose number nobody has had since: polled, as one that comes, but with
    /// what it owes, and with what is known of it. Nothing when it is here.
    #[cold]
    pub fn come_back(&mut self, queue: u16, share: u32, policy: Policy, now: Nanos) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else { return };
        if entry.state != State::Absent {
            return;
        }
        entry.account.set_share(share, &self.limits);
        if entry.polling.policy != policy {
            entry.polling = Polling::new(policy, self.prices.kick);
        }
        (entry.state, entry.hungry, entry.last_work) = (State::Polled, false, now);
        self.lines.move_to_end(POLL, queue);
        self.queues += 1;
        self.polled += 1;
    }

    /// Another share and policy for `queue`, which keeps its credit and its place. What it waits for
    /// may have changed, so a queue that waits for a moment is polled again. True when it was armed
    /// and is polled from now on: the caller turns its kicks off.
    pub fn set(&mut self, queue: u16, share: u32, policy: Policy, now: Nanos) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return false;
        };
        if entry.state == State::Absent {
            return false;
        }
        entry.account.set_share(share, &self.limits);
        if entry.polling.policy != policy {
            entry.polling = Polling::new(policy, self.prices.kick);
        }
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        // Its last visit decided by the policy of then.
        self.idle.leave(queue);
        if entry.state == State::Limited {
            self.waits.remove(queue);
            self.poll_again(queue, now);
        }
        policy == Policy::Poll && self.kicked(queue, now)
    }

    /// Instead of [`Schedule::visited`]: `queue` may take nothing before `moment`. It is out of the
    /// lines until the pass that begins then, and comes back to the end of the poll line. Kicks
    /// meanwhile mean nothing.
    pub fn wait_until(&mut self, queue: u16, moment: Nanos) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return;
        };
        if entry.state != State::Polled {
            return;
        }
        entry.state = State::Limited;
        entry.hungry = false;
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        self.polled -= 1;
        self.urgency.forget(queue, &mut self.entries);
        self.lines.leave(queue);
        self.idle.leave(queue);
        self.waits.insert(queue, moment);
    }

    /// The moment at which the first queue that waits for one is to be visited.
    #[inline]
    pub fn next_due(&self) -> Option<Nanos> {
        self.waits.first()
    }

    /// The guest kicked. An armed queue is polled from now on and goes to the work line, or, when
    /// it was visited only just now, to the end of the poll line: who kicks fast gains nothing.
    /// True when it was armed, so that the caller turns its kicks off.
    pub fn kicked(&mut self, queue: u16, now: Nanos) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return false;
        };
        if entry.state != State::Armed {
            return false;
        }
        entry.state = State::Polled;
        entry.last_work = now;
        entry.polling.kicked();
        if entry.is_aimed
            && let Some(aim) = self.aims.get_mut(usize::from(queue))
        {
            aim.restart(now);
        }
        let just_visited = entry.pass + 1 >= self.pass;
        self.polled += 1;
        self.lines.move_to_end(if just_visited { POLL } else { WORK }, queue);
        true
    }

    /// The back-end completed something of `queue`: its guest will soon ask again, so it is polled for
    /// longer where the policy has an end to that. An armed queue stays armed.
    #[inline]
    pub fn completed(&mut self, queue: u16) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return;
        };
        entry.last_work = self.now;
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        if entry.polling.completed(self.prices.kick) {
            self.idle.leave(queue);
        }
    }

    /// Something that `queue` has begun waits for its turn: it is polled from now on, whatever it waited for,
    /// and is not to be armed before its next visit. True when it was armed, so that the caller turns its
    /// kicks off. Nothing when it is not here.
    #[cold]
    pub fn has_begun(&mut self, queue: u16, now: Nanos) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return false;
        };
        match entry.state {
            State::Absent => false,
            State::Armed => self.kicked(queue, now),
            State::Limited => {
                self.waits.remove(queue);
                self.poll_again(queue, now);
                false
            }
            State::Polled => {
                self.waiting -= usize::from(std::mem::take(&mut entry.waits));
                self.idle.leave(queue);
                false
            }
        }
    }

    /// A pass starts. `now` is the time of everything in it.
    #[inline]
    pub fn begin(&mut self, now: Nanos) {
        // Where looking at all of them takes long, each is charged as if it kept the core awake: what is
        // little for each is the whole core for all, and who waits for its turn waits longer.
        let looks_ns = self.polled as u64 * u64::from(self.limits.look_ns);
        let is_alone = self.polled.saturating_sub(self.waiting) <= 1 || looks_ns > CROWD_NS;
        let pass_ns = now.since(self.begun);
        self.prices = Prices::of_pass(self.prices.kick, self.limits.look_ns, pass_ns, is_alone);
        (self.now, self.begun) = (now, now);
        self.pass += 1;
        self.work_turn = true;
        self.rival = self.rival_next;
        self.rival_next = 0;
        self.urgency.begin(now, &mut self.entries);
        while let Some(queue) = self.waits.pop_due(now) {
            self.poll_again(queue, now);
        }
    }

    /// Time has gone on within the pass.
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        self.now = now;
    }

    /// The next queue of this pass, the two lines in turn; `None` when each had its turn. Bounded
    /// by the number of polled queues, those in debt being passed over.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "no iterator: each visit is answered first")]
    pub fn next(&mut self) -> Option<Visit> {
        loop {
            let queue = self.take_turn()?;
            let entry = self.entries.get_mut(usize::from(queue))?;
            entry.pass = self.pass;
            if let Some(budget) = entry.account.budget(self.rival, &self.limits) {
                self.turn = self.now;
                return Some(Visit { queue, budget });
            }
            // It owes: left out, at its place in the order, and as hungry as it was.
            entry.last_work = self.now;
            self.waiting -= usize::from(std::mem::take(&mut entry.waits));
            if entry.hungry {
                self.rival_next = self.rival_next.max(entry.account.share());
            }
        }
    }

    /// Whose turns probably come next, the nearer one first: for asking for what they will need. After the
    /// last turn of a pass they are those of the next one.
    #[inline]
    pub fn coming(&self) -> [Option<u16>; 2] {
        let first = self.lines.first(POLL);
        [first, first.and_then(|queue| self.lines.after(queue))]
    }

    /// What the visit of `queue` came to. The queue is charged and may become one to arm. How many requests
    /// missed the queue's latency target.
    #[inline]
    pub fn visited(&mut self, queue: u16, visited: Visited) -> u32 {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return 0;
        };
        if entry.state != State::Polled {
            return 0;
        }
        entry.account.charge(visited.requests, visited.bytes, visited.nanos);
        entry.hungry = visited.wants_more();
        if entry.hungry {
            self.rival_next = self.rival_next.max(entry.account.share());
        }
        if visited.found_work() && !visited.is_stuck() {
            entry.last_work = self.now;
        }
        let waited_ns = self.now.since(entry.last_work);
        let waits = entry.polling.policy.waits(visited, waited_ns, self.prices.kick);
        if entry.waits != waits {
            entry.waits = waits;
            self.waiting = if waits { self.waiting + 1 } else { self.waiting - 1 };
        }
        let mut missed = 0;
        if entry.is_aimed
            && let Some(aim) = self.aims.get_mut(usize::from(queue))
        {
            missed = aim.turn(visited.requests, self.turn, self.now);
            // One that wants more than its turn was has nothing left to be urgent with.
            entry.habit.presses = aim.is_late() && !entry.hungry;
        }
        let Some(learned) = self.learned.get_mut(usize::from(queue)) else {
            return missed;
        };
        if entry.polling.visited(learned, visited, self.prices, self.now) {
            self.idle.move_to_end(IDLE, queue);
        } else {
            self.idle.leave(queue);
        }
        if visited.requests > 0 {
            self.urgency.note(queue, visited, self.now, &mut self.entries);
        }
        missed
    }

    /// A queue that has been without work for long enough, each once. The caller enables its kicks,
    /// looks at the ring again, and says [`Schedule::armed`] or [`Schedule::found`]; until then, or
    /// if it says neither, the queue is polled as before.
    pub fn to_arm(&mut self) -> Option<u16> {
        let queue = self.idle.first(IDLE)?;
        self.idle.leave(queue);
        Some(queue)
    }

    /// The kicks of `queue` are on and its ring was empty afterwards: it is no longer polled.
    pub fn armed(&mut self, queue: u16) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return;
        };
        if entry.state != State::Polled {
            return;
        }
        entry.state = State::Armed;
        entry.hungry = false;
        if let Some(learned) = self.learned.get_mut(usize::from(queue)) {
            entry.polling.armed(learned, self.prices, self.now);
        }
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        self.polled -= 1;
        self.lines.leave(queue);
        self.idle.leave(queue);
    }

    /// The second look found something (the caller turned kicks off again): `queue` stays polled,
    /// at its place in the line.
    pub fn found(&mut self, queue: u16) {
        let at = usize::from(queue);
        let (Some(entry), Some(learned)) = (self.entries.get_mut(at), self.learned.get_mut(at))
        else {
            return;
        };
        entry.last_work = self.now;
        if entry.state == State::Polled {
            entry.polling.found(learned, self.prices.kick, self.now);
        }
        self.waiting -= usize::from(std::mem::take(&mut entry.waits));
        self.idle.leave(queue);
    }

    /// What a kick costs from now on, nanoseconds of the core; cut to at most a millisecond.
    pub fn set_kick_cost(&mut self, kick_ns: u32) {
        self.prices.kick = kick_ns.clamp(1, KICK_NS_MAX);
    }

    /// Queues that are polled.
    #[inline]
    pub fn polled(&self) -> usize {
        self.polled
    }

    /// Queues here, polled or not.
    pub fn queues(&self) -> usize {
        self.queues
    }

    /// Whether no queue needs a visit before a kick, [`Schedule::next_due`] or, where it is held, a
    /// completion of its back-end: the sidecore may sleep, as far as queues go. Any of these is
    /// followed by a pass.
    #[inline]
    pub fn may_rest(&self) -> bool {
        self.polled == self.waiting
    }

    /// Who has its turn next, as far as can be said now.
    pub fn next_in_line(&self) -> Option<u16> {
        let work = self.lines.first(WORK);
        work.filter(|_| self.work_turn).or_else(|| self.poll_head()).or(work)
    }

    /// Moves the queue whose turn it is to the end of the poll line.
    #[inline]
    fn take_turn(&mut self) -> Option<u16> {
        let work_first = self.work_turn;
        self.work_turn = !work_first;
        let work = self.lines.first(WORK);
        let queue = match work {
            Some(queue) if work_first => queue,
            _ => self.poll_head().or(work)?,
        };
        self.lines.move_to_end(POLL, queue);
        Some(queue)
    }

    /// The head of the poll line, unless it had its turn in this pass.
    #[inline]
    fn poll_head(&self) -> Option<u16> {
        let queue = self.lines.first(POLL)?;
        let entry = self.entries.get(usize::from(queue))?;
        (entry.pass != self.pass).then_some(queue)
    }

    /// A queue whose moment has come, or is no longer waited for. That it waited was no idleness.
    fn poll_again(&mut self, queue: u16, now: Nanos) {
        let Some(entry) = self.entries.get_mut(usize::from(queue)) else {
            return;
        };
        entry.state = State::Polled;
        entry.last_work = now;
        if let Some(aim) = self.aims.get_mut(usize::from(queue)) {
            aim.restart(now);
        }
        self.polled += 1;
        self.lines.move_to_end(POLL, queue);
    }
}
