//! A load's turns, and the rows they become: counts from turns with histograms, rates, latencies and processor
//! time from turns without, where there are such ([`Tracing::stays`]).

use anyhow::Result;

use super::asking;
use super::cells::Kind;
use super::configurations::{Configuration, Device};
use super::counts::{Counted, Counts};
use super::cpus::Cpus;
use super::guests::{Guests, Outcome};
use super::loads::{Load, Part};
use super::serving::Serving;
use super::steering::{Steered, Steering};
use super::tracing::Tracing;
use crate::rows::Row;
use crate::waiting;

/// A stand whose guests take orders.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) experiment: &'a str,
    pub(crate) configuration: &'a Configuration,
    pub(crate) cpus: &'a Cpus,
    pub(crate) guests: Guests,
    pub(crate) serving: Serving,
    pub(crate) steering: Option<Steering>,
    pub(crate) tracing: &'a Tracing,
    /// Turns with histograms, and as many without, where there are such.
    pub(crate) turns: u32,
}

/// What a turn came to.
#[derive(Debug)]
struct Done {
    /// Of each part its guests'.
    outcomes: Vec<Vec<Outcome>>,
    /// Where frames went meanwhile, if that is known.
    steered: Option<Steered>,
}

impl Bench<'_> {
    /// Does a load in all of its turns; gives their medians.
    ///
    /// # Errors
    /// A guest could not do it, or the kernel does not count.
    pub(crate) fn measure(&mut self, load: &Load) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let armed = self.tracing.arm()?;
        for _ in 0..self.turns {
            armed.reset()?;
            let (done, busy) = self.once_clocked(load)?;
            let all: Vec<Vec<u32>> =
                load.parts.iter().flat_map(|part| self.guests.vcpus(part)).collect();
            let counts = armed.counts(&all)?;
            for (part, outcomes) in load.parts.iter().zip(&done.outcomes) {
                let operations = operations_in(load, outcomes, counts.window_ns);
                rows.extend(self.counted(part, &counts, operations));
                let steered = done.steered.map(|steered| self.steered(part, steered, operations));
                rows.extend(steered.into_iter().flatten());
            }
            if self.tracing.stays() {
                rows.extend(self.all_timed(load, &done.outcomes, busy));
            }
        }
        drop(armed);
        if !self.tracing.stays() {
            for _ in 0..self.turns {
                let (done, busy) = self.once_clocked(load)?;
                rows.extend(self.all_timed(load, &done.outcomes, busy));
            }
        }
        Ok(Row::medians(rows))
    }

    /// What each part's guests did, and which part of that time the servers were at work, with the warm-up.
    fn once_clocked(&mut self, load: &Load) -> Result<(Done, f64)> {
        let (before, began) = (self.serving.cpu_ns(), waiting::now());
        let done = self.once(load)?;
        let served_ns = self.serving.cpu_ns().saturating_sub(before) as f64;
        Ok((done, served_ns / began.elapsed().as_nanos() as f64))
    }

    /// What the guests of all parts came to, and what serving them took; nothing of what only computes.
    fn all_timed(&self, load: &Load, done: &[Vec<Outcome>], busy: f64) -> Vec<Row> {
        let mut rows = Vec::new();
        if load.parts.iter().all(|part| part.kind == Kind::Spin) {
            return rows;
        }
        for (at, (part, outcomes)) in load.parts.iter().zip(done).enumerate() {
            rows.extend(self.timed(part, outcomes));
            // All parts have the same servers.
            if at == 0 {
                rows.push(self.row(part, "server_cpu_percent", busy * 100.0, "%"));
            }
            if load.parts.len() == 1 {
                let each_us = busy * 1e6 / rate(outcomes);
                rows.push(self.row(part, "server_cpu_us_per_op", each_us, "us/op"));
            }
        }
        rows
    }

    /// All guests at the same time.
    fn once(&mut self, load: &Load) -> Result<Done> {
        match load.parts.as_slice() {
            [Part { kind: Kind::Served(asked), for_ms: Some(for_ms), .. }] => {
                let (guests, steering) = (&mut self.guests, self.steering.as_ref());
                let (outcome, steered) =
                    asking::between_marks(guests, *asked, *for_ms, self.cpus, steering)?;
                Ok(Done { outcomes: vec![vec![outcome]], steered })
            }
            _ => {
                let outcomes = self.guests.together(load, self.configuration)?;
                Ok(Done { outcomes, steered: None })
            }
        }
    }

    /// Where its frames went, as the daemon counted them.
    fn steered(&self, part: &Part, steered: Steered, operations: f64) -> [Row; 2] {
        let each =
            |what: &str, frames: u64| self.row(part, what, frames as f64 / operations, "1/op");
        [each("redirected_per_op", steered.redirected), each("stayed_per_op", steered.stayed)]
    }

    /// What the kernel counted of a part.
    fn counted(&self, part: &Part, counts: &Counts, operations: f64) -> Vec<Row> {
        let threads = self.guests.vcpus(part).concat();
        let sum = counts.sum(&threads);
        let window_ns = counts.window_ns as f64;
        let exits = sum.all_exits() as f64;
        let mut rows = vec![self.row(part, "exits_per_s", exits * 1e9 / window_ns, "1/s")];
        for (what, percent) in shares(&sum, window_ns * threads.len().max(1) as f64, part.kind) {
            rows.push(self.row(part, &what, percent, "%"));
        }
        if part.kind == Kind::Spin {
            return rows;
        }
        let mut each = |what: &str, count: u64| {
            rows.push(self.row(part, what, count as f64 / operations, "1/op"));
        };
        each("doorbell_exits_per_op", sum.doorbells);
        each("exits_per_op", sum.all_exits());
        each("injections_per_op", sum.injected);
        each("user_exits_per_op", sum.to_user);
        for (reason, count) in &sum.exits {
            each(&format!("exits_per_op.{reason}"), *count);
        }
        rows
    }

    /// What the guests of a part came to.
    fn timed(&self, part: &Part, outcomes: &[Outcome]) -> Vec<Row> {
        let is_disk = self.configuration.device == Device::Disk;
        let what = if is_disk && part.for_ms.is_none() { "iops" } else { "ops_per_s" };
        let mut rows = vec![self.row(part, what, rate(outcomes), "1/s")];
        let p50_ns = median(outcomes.iter().map(|outcome| outcome.p50_ns).collect());
        let p99_ns = median(outcomes.iter().map(|outcome| outcome.p99_ns).collect());
        if p50_ns > 0 {
            rows.push(self.row(part, "p50_us", p50_ns as f64 / 1e3, "us"));
            rows.push(self.row(part, "p99_us", p99_ns as f64 / 1e3, "us"));
        }
        rows
    }

    fn row(&self, part: &Part, what: &str, value: f64, unit: &str) -> Row {
        let name = format!("lab.{}.{what}", part.name);
        let row = Row::new(name, self.configuration.name, value, unit);
        Row { experiment: self.experiment.to_string(), ..row }
    }
}

/// Where the time of vCPUs went, in % of it: in the guest, and outside by the reason of the exit. Of what is sent, the
/// time in guest is set beside that in which the guest did not wait for something to do.
fn shares(sum: &Counted, all_ns: f64, kind: Kind) -> Vec<(String, f64)> {
    let percent = |ns: u64| ns as f64 * 100.0 / all_ns;
    let in_guest = percent(sum.in_guest_ns);
    let mut shares = vec![("tig_percent".to_string(), in_guest)];
    let not_halted = 100.0 - percent(sum.halted_ns());
    if kind.is_send() && not_halted > 0.0 {
        let share = in_guest * 100.0 / not_halted;
        shares.push(("tig_of_not_halted_percent".to_string(), share));
    }
    let outside = sum.outside_ns.iter();
    shares.extend(outside.map(|(reason, ns)| (format!("outside_percent.{reason}"), percent(*ns))));
    shares
}

/// How many operations a part's guests did while the kernel counted: of a single guest those between its markers,
/// of several their rates in the time that was counted, since they do not begin and end at one moment.
fn operations_in(load: &Load, outcomes: &[Outcome], window_ns: u64) -> f64 {
    match outcomes {
        [one] if load.guests() == 1 => one.operations as f64,
        several => rate(several) * window_ns as f64 / 1e9,
    }
}

/// Operations a second of all together.
fn rate(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().map(Outcome::rate).sum()
}

/// The middle one, or the upper one of two.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Time in guest of what is sent, as a share of what this machine can reach: what it was while the guest only
/// computed. Rows of a configuration that has no such load have none.
pub(crate) fn of_reachable(rows: &[Row]) -> Vec<Row> {
    let spin = rows.iter().find(|row| row.name == "lab.spin.tig_percent");
    let Some(reachable) = spin.map(|row| row.value).filter(|value| *value > 0.0) else {
        return Vec::new();
    };
    let of = |row: &Row| {
        let load = row.name.strip_suffix(".tig_percent").filter(|name| name.contains("_send_"))?;
        let share = |value: f64| value * 100.0 / reachable;
        let name = format!("{load}.tig_of_reachable_percent");
        let spread = row.spread.map(share);
        Some(Row { name, value: share(row.value), spread, ..row.clone() })
    };
    rows.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(operations: u64, elapsed_ns: u64) -> Outcome {
        Outcome { operations, elapsed_ns, p50_ns: 0, p99_ns: 0 }
    }

    #[test]
    fn several_guests_are_counted_by_their_rates_and_one_by_its_operations() {
        let second = 1_000_000_000;
        let one = [outcome(1999, 2 * second)];
        let close = |value: f64, to: f64| assert!((value - to).abs() < 1e-6, "{value} is not {to}");
        close(operations_in(&Load::exchanges(1, false), &one, 7), 1999.0);
        let two = [outcome(1000, second), outcome(3000, 2 * second)];
        close(operations_in(&Load::exchanges(2, false), &two, second / 2), 1250.0);
        // The one that exchanges, beside a stream.
        close(operations_in(&Load::exchange_beside(1, false), &one, 2 * second), 1999.0);
        close(operations_in(&Load::exchange_beside(1, false), &one, second), 999.5);
    }

    #[test]
    fn time_of_vcpus_is_in_the_guest_or_outside_for_a_reason() {
        let outside = [("hlt", 500), ("npf", 100)].map(|(why, ns)| (why.to_string(), ns));
        let sum = Counted { in_guest_ns: 400, outside_ns: outside.into(), ..Counted::default() };
        let of = |kind| shares(&sum, 1000.0, kind);
        let share = |what: &str, percent| (what.to_string(), percent);
        let all = [
            share("tig_percent", 40.0),
            share("outside_percent.hlt", 50.0),
            share("outside_percent.npf", 10.0),
        ];
        assert_eq!(of(Kind::UdpRr), all);
        let sent = of(Kind::UdpSend { bytes: 256 });
        assert_eq!(sent[1], share("tig_of_not_halted_percent", 80.0));
        assert_eq!([&sent[..1], &sent[2..]].concat(), all);
        let halted =
            Counted { outside_ns: [("hlt".to_string(), 1001)].into(), ..Counted::default() };
        assert_eq!(shares(&halted, 1000.0, Kind::TcpSend { bytes: 256 }).len(), 2);
    }

    #[test]
    fn the_middle_of_guests() {
        assert_eq!(median(vec![]), 0);
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!(median(vec![4, 1]), 4);
    }

    #[test]
    fn time_in_guest_is_set_beside_what_can_be_had() {
        let row = |name: &str, value: f64| Row {
            spread: [value, value * 2.0],
            ..Row::new(name.to_string(), "qemu", value, "%")
        };
        let rows = [
            row("lab.spin.tig_percent", 80.0),
            row("lab.net.udp_rr.tig_percent", 10.0),
            row("lab.net.udp_send_256.tig_percent", 60.0),
        ];
        let found = of_reachable(&rows);
        let expected = Row {
            value: 75.0,
            spread: [75.0, 150.0],
            ..row("lab.net.udp_send_256.tig_of_reachable_percent", 0.0)
        };
        assert_eq!(found, [expected]);
        assert_eq!(of_reachable(&rows[1..]), []);
    }
}
