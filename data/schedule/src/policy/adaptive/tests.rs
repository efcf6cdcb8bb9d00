//! The bound by exhaustion and on generated gaps, and how near the better choice it comes on usual
//! ones.

use proptest::prelude::*;
use random::often;

use super::*;

const KICK: u32 = 1000;

/// A queue of the policy, what it paid, and what the fixed choices would have paid. True sums, which
/// forget nothing.
#[derive(Clone, Copy, Default)]
struct Book {
    queue: Adaptive,
    paid: u64,
    poll: u64,
    notify: u64,
}

impl Book {
    /// One gap, with the bound checked where it is tightest: when the queue is armed, and at the end.
    /// `wait` picks between what the policy would do and the most it may.
    fn gap(&mut self, poll: u32, wait: bool, kick: u32) {
        let Patience { usual, most } = self.queue.patience(kick);
        assert!(usual <= most);
        let limit = if wait { most } else { usual };
        let (spent, kicked) = if poll <= limit { (poll, false) } else { (limit, true) };
        // It may never end: then no kick is paid, by nobody.
        let open = self.paid + u64::from(spent);
        let poll_so_far = self.poll + u64::from(spent);
        assert!(open <= 2 * poll_so_far.min(self.notify) + u64::from(kick));
        self.queue.ended(poll, spent, kicked, kick);
        self.paid = open + u64::from(if kicked { kick } else { 0 });
        self.poll += u64::from(poll);
        self.notify += u64::from(kick);
        self.check();
    }

    /// Gaps that ended before anybody looked.
    fn at_once(&mut self, gaps: u8, kick: u32) {
        self.queue.ended_at_once(gaps, kick);
        self.notify += u64::from(gaps) * u64::from(kick);
        self.check();
    }

    fn check(&self) {
        let better = self.poll.min(self.notify);
        assert!(self.paid <= 2 * better, "{} for {better}: {:?}", self.paid, self.queue);
        // What the queue thinks it may waste is there.
        assert!(u64::from(self.queue.slack_poll) <= 2 * self.poll - self.paid);
        assert!(u64::from(self.queue.slack_notify) <= 2 * self.notify - self.paid);
    }
}

/// Gaps at which decisions change.
const ALPHABET: [u32; 7] = [0, 1, KICK / 2, KICK, KICK + 1, 3 * KICK, 100 * KICK];

fn all_traces(book: Book, gaps: u32) {
    if gaps == 0 {
        return;
    }
    for poll in ALPHABET {
        let mut next = book;
        next.gap(poll, false, KICK);
        all_traces(next, gaps - 1);
    }
}

#[test]
fn no_short_trace_costs_more_than_twice_the_better_choice() {
    all_traces(Book::default(), 7);
}

/// From every habit, over the moment at which half is forgotten.
#[test]
fn no_short_trace_after_a_long_habit_does() {
    for habit in ALPHABET {
        let mut book = Book::default();
        (0..HALVED_AFTER - 2).for_each(|_| book.gap(habit, false, KICK));
        all_traces(book, 4);
        book.at_once(HALVED_AFTER as u8, KICK);
        all_traces(book, 4);
    }
}

fn state() -> impl Strategy<Value = Adaptive> {
    let sum = || prop_oneof![0..10 * KICK, any::<u32>()];
    let sums = (sum(), sum(), sum(), sum(), sum(), 0..HALVED_AFTER - 1);
    sums.prop_map(|(poll, notify, spin, slack_poll, slack_notify, gaps)| Adaptive {
        poll,
        notify,
        spin,
        slack_poll,
        slack_notify,
        gaps,
    })
}

fn gap() -> impl Strategy<Value = (u32, bool, u8)> {
    let poll = prop_oneof![0..2 * KICK, 0..20 * KICK, any::<u32>()];
    (poll, any::<bool>(), prop_oneof![4 => Just(0u8), 1 => any::<u8>()])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(often(256, 1024)))]

    #[test]
    fn no_trace_costs_more_than_twice_the_better_choice(
        gaps in prop::collection::vec(gap(), 0..600),
    ) {
        let mut book = Book::default();
        for (poll, wait, at_once) in gaps {
            book.gap(poll, wait, KICK);
            book.at_once(at_once, KICK);
        }
    }

    /// The step of the proof, from any state whatever and for any price: neither slack is overdrawn.
    #[test]
    fn no_gap_takes_more_than_the_slack(
        queue in state(),
        (poll, wait, _) in gap(),
        kick in 1..1_000_000u32,
    ) {
        let Patience { usual, most } = queue.patience(kick);
        prop_assert!(usual <= most);
        let limit = if wait { most } else { usual };
        let paid = match poll <= limit {
            true => u64::from(poll),
            false => u64::from(limit) + u64::from(kick),
        };
        // Where the type ends, slack ends too.
        prop_assume!(most < u32::MAX);
        prop_assert!(paid <= u64::from(queue.slack_poll) + 2 * u64::from(poll));
        prop_assert!(paid <= u64::from(queue.slack_notify) + 2 * u64::from(kick));
    }
}

/// Numbers from a seed (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// In 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Of an open stream of this mean.
    fn exponential(&mut self, mean: f64) -> u32 {
        (-mean * (1.0 - self.unit()).ln()) as u32
    }

    /// Around a value, by a tenth.
    fn near(&mut self, value: f64) -> u32 {
        (value * (0.9 + 0.2 * self.unit())) as u32
    }
}

const GAPS: usize = 5000;

/// What was paid over what the better fixed choice pays.
fn ratio(mut gap: impl FnMut(usize, &mut Seed) -> u32) -> f64 {
    let (mut book, mut seed) = (Book::default(), Seed(5));
    (0..GAPS).for_each(|at| book.gap(gap(at, &mut seed), false, KICK));
    book.paid as f64 / book.poll.min(book.notify) as f64
}

/// Lengths and rates in prices of a kick.
const MEANS: [f64; 12] = [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.4, 2.0, 5.0, 100.0];

#[test]
fn requests_one_after_another_cost_at_most_15_percent_more_than_the_better_choice() {
    for mean in MEANS {
        let ratio = ratio(|_, seed| seed.near(mean * f64::from(KICK)));
        assert!(ratio < 1.15, "{ratio} for a gap of {mean}");
    }
}

#[test]
fn an_open_stream_costs_at_most_15_percent_more_than_the_better_choice() {
    for mean in MEANS {
        let ratio = ratio(|_, seed| seed.exponential(mean * f64::from(KICK)));
        assert!(ratio < 1.15, "{ratio} for a mean of {mean}");
    }
}

#[test]
fn bursts_and_pauses_cost_at_most_15_percent_more_than_the_better_choice() {
    for burst in [2, 3, 5, 20, 100, 1000] {
        for within in [0.01, 0.2, 0.6, 1.5] {
            for pause in [2.0, 10.0, 1000.0] {
                let ratio = ratio(|at, seed| {
                    let mean = if at % burst == 0 { pause } else { within };
                    seed.exponential(mean * f64::from(KICK))
                });
                assert!(ratio < 1.15, "{ratio} for {burst} of {within}, then {pause}");
            }
        }
    }
}

#[test]
fn bulk_is_polled_and_what_ends_it_costs_a_spin() {
    let mut book = Book::default();
    for _ in 0..1000 {
        book.at_once(200, KICK);
        book.gap(1000 * KICK, false, KICK);
    }
    assert!(book.paid <= 1000 * 5 * u64::from(KICK), "{}", book.paid);
    assert!(book.paid * 20 < book.notify.min(book.poll), "{} of {}", book.paid, book.notify);
}

/// A load that changes: what was learned is forgotten within some hundred gaps.
#[test]
fn a_changed_load_is_followed() {
    let mut book = Book::default();
    let mut phase = |gap: u32| {
        let before = book.paid;
        (0..1000).for_each(|_| book.gap(gap, false, KICK));
        (book.paid - before) as f64 / (1000 * gap.min(KICK)) as f64
    };
    for _ in 0..5 {
        let (fast, slow) = (phase(KICK / 2), phase(50 * KICK));
        assert!(fast < 1.15 && slow < 1.25, "{fast} {slow}");
    }
}
