//! Rates beside one guest and beside another, measured in short windows that take turns.
//!
//! Because a machine is fast in one second and slow in the next. Not whose rates, nor beside whom.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};

use testing::daemon::{Daemon, pause};

/// Of the windows of each kind, this part at either end does not count: the slowest and the fastest.
const LEFT_OUT: f64 = 0.2;

/// Rates of all windows so far, each kind by itself.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    good: Vec<f64>,
    bad: Vec<f64>,
}

impl Rates {
    /// Measures `each` windows of both kinds; `window` gives the rate of one, and is told whether it is
    /// one of the bad kind.
    ///
    /// # Errors
    /// The window's.
    pub fn take(&mut self, each: usize, mut window: impl FnMut(bool) -> Result<f64>) -> Result<()> {
        for turn in 0..2 * each {
            // In the order good, bad, bad, good, so that a drift hurts neither.
            let is_bad = !matches!(turn % 4, 0 | 3);
            self.add(is_bad, window(is_bad)?);
        }
        Ok(())
    }

    /// One window more.
    pub fn add(&mut self, is_bad: bool, rate: f64) {
        if is_bad { self.bad.push(rate) } else { self.good.push(rate) }
    }

    /// Takes `each` windows of both kinds, and as many again while less than `kept_min` is kept, up to
    /// `tries` times: what only the machine's other work did evens out, what the guest does remains. How
    /// often they were taken.
    ///
    /// # Errors
    /// The window's.
    pub fn take_until(
        &mut self,
        kept_min: f64,
        tries: usize,
        each: usize,
        mut window: impl FnMut(bool) -> Result<f64>,
    ) -> Result<usize> {
        for taken in 1..tries {
            self.take(each, &mut window)?;
            // Where rates are not judged, more windows would tell nobody anything.
            if self.kept() >= kept_min || !testing::timing::are_judged() {
                return Ok(taken);
            }
        }
        self.take(each, window)?;
        Ok(tries)
    }

    /// The rate beside the good guest, and beside the bad one.
    pub fn both(&self) -> [f64; 2] {
        [typical(&self.good), typical(&self.bad)]
    }

    /// What part of its rate somebody keeps beside the bad guest.
    pub fn kept(&self) -> f64 {
        let [good, bad] = self.both();
        bad / good
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [good, bad] = self.both();
        let kept = self.kept() * 100.0;
        write!(f, "{good:.0} a second beside a good guest and {bad:.0} beside this one: {kept:.0}%")
    }
}

/// The mean of the windows in the middle: a median jumps where rates are of two kinds.
fn typical(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    let left_out = (rates.len() as f64 * LEFT_OUT) as usize;
    let middle = rates.get(left_out..rates.len() - left_out).unwrap_or_default();
    middle.iter().sum::<f64>() / middle.len().max(1) as f64
}

/// The least pause between two misdeeds.
pub const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Does `misdeed` and pauses so long after it that the processor time of this thread and of the daemon's
/// control does not count: `pauses` times what the misdeed took of it. The sidecore's time, and time in
/// which one waits for the other, does not count, so that a misdeed that holds the sidecore is done as
/// often as one that does not.
///
/// # Errors
/// The misdeed's.
pub fn then_pause(
    daemon: &Daemon,
    pauses: u32,
    misdeed: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let before = spent(daemon)?;
    misdeed()?;
    // Control clears away after a guest has gone: that counts too.
    pause(PAUSE_MIN);
    pause(((spent(daemon)? - before) * pauses).saturating_sub(PAUSE_MIN));
    Ok(())
}

/// Processor time so far of this thread and of the daemon's first one, which is control.
fn spent(daemon: &Daemon) -> Result<Duration> {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let own = Duration::new(own.tv_sec.unsigned_abs(), own.tv_nsec as u32);
    let pid = daemon.pid();
    let control = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"))?;
    let control = control.split(' ').next().and_then(|ns| ns.parse().ok());
    Ok(own + Duration::from_nanos(control.context("an odd schedstat")?))
}
