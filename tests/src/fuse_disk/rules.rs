//! Which calls of the disk fail, wait or hang.

use std::time::Duration;

use testing::load::Random;

/// A call of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A read.
    Read,
    /// A write, stable or not.
    Write,
    /// An `fsync` or `fdatasync`.
    Sync,
    /// A hole, or zeroes without data.
    Allocate,
    /// A look at a name, or at what is known of a file. What the kernel was told before it believes for a
    /// second.
    Name,
    /// An open.
    Open,
    /// A close, by whoever closes one of its descriptors.
    Close,
}

/// Which of the calls.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Every one.
    Always,
    /// The next ones, as many.
    Next(u64),
    /// Of a hundred, as many, by chance.
    Percent(u64),
}

/// What becomes of them.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// Nothing is done; the kernel gets this error number.
    Error(i32),
    /// Reads and writes transfer the first so many bytes.
    Short(usize),
    /// Done, and answered after this time.
    Delay(Duration),
    /// Done, and answered after a time between nothing and this.
    DelayUpTo(Duration),
    /// Done, and answered when the disk is healed.
    Hang,
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The call.
    pub call: Call,
    /// Which of them.
    pub when: When,
    /// What becomes of them.
    pub how: How,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All.
    pub calls: u64,
    /// Of these, those that a rule made fail.
    pub failed: u64,
}

/// Numbers of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: Tally,
    /// Writes.
    pub writes: Tally,
    /// Syncs.
    pub syncs: Tally,
    /// Holes and zeroes.
    pub allocates: Tally,
    /// Looks at names and files.
    pub names: Tally,
    /// Opens.
    pub opens: Tally,
    /// Closes.
    pub closes: Tally,
}

/// What becomes of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) error: Option<i32>,
    pub(super) short: Option<usize>,
    pub(super) wait_ns: u64,
}

#[derive(Debug)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    counts: Counts,
    random: Random,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { rules: Vec::new(), counts: Counts::default(), random: Random(0xd15c) }
    }
}

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn fate(&mut self, call: Call) -> Fate {
        let fate = self.choose(call);
        let tally = match call {
            Call::Read => &mut self.counts.reads,
            Call::Write => &mut self.counts.writes,
            Call::Sync => &mut self.counts.syncs,
            Call::Allocate => &mut self.counts.allocates,
            Call::Name => &mut self.counts.names,
            Call::Open => &mut self.counts.opens,
            Call::Close => &mut self.counts.closes,
        };
        tally.calls += 1;
        tally.failed += u64::from(fate.error.is_some());
        fate
    }

    fn choose(&mut self, call: Call) -> Fate {
        for rule in self.rules.iter_mut().filter(|rule| rule.call == call) {
            let applies = match &mut rule.when {
                When::Always => true,
                When::Next(0) => false,
                When::Next(left) => {
                    *left -= 1;
                    true
                }
                When::Percent(percent) => self.random.below(100) < *percent,
            };
            if applies {
                return fate(rule.how, &mut self.random);
            }
        }
        Fate::default()
    }
}

fn fate(how: How, random: &mut Random) -> Fate {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    match how {
        How::Error(number) => Fate { error: Some(number), ..Fate::default() },
        How::Short(bytes) => Fate { short: Some(bytes), ..Fate::default() },
        How::Delay(time) => Fate { wait_ns: ns(time), ..Fate::default() },
        How::DelayUpTo(time) => Fate { wait_ns: random.below(ns(time).max(1)), ..Fate::default() },
        How::Hang => Fate { wait_ns: u64::MAX, ..Fate::default() },
    }
}
