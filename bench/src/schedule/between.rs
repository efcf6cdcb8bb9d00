//! Between idle and saturated: one queue at set rates, for each policy. What `adaptive` costs and gains
//! stands beside what `poll` and `notify` do.
//!
//! Requests come whether or not the earlier ones are answered, with exponential gaps from a seed. A
//! latency runs from the moment at which the request was due, so a late driver is not left out.

use anyhow::{Result, bail, ensure};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};
use testing::histogram::Histogram;
use testing::load::Random;
use testing::report::{ROUNDS_MIN, Row};
use testing::slots::{Kind, SECTOR_SIZE, STATUS_OK, Slots};
use virtqueue::driver::Prepared;

use super::daemon::{Daemon, Disk};
use super::{Options, PATIENCE_NS, USUAL_RING, row};

/// Requests a second, with their words in the names of rows.
const RATES: [(u32, &str); 5] =
    [(1_000, "1k"), (5_000, "5k"), (10_000, "10k"), (20_000, "20k"), (50_000, "50k")];
const POLICIES: [&str; 3] = ["poll", "notify", "adaptive"];
const SLOTS: u16 = 64;
const BLOCK_BYTES: u32 = 4096;
const DISK: &str = "paced";
const SEED: u64 = 0x5eed;

/// What one round showed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    cpu_percent: f64,
    p50_us: f64,
    p99_us: f64,
    kicks_per_request: f64,
}

/// A daemon with one queue, and the driver of that queue.
struct Bed {
    policy: &'static str,
    frontend: Frontend,
    slots: Slots,
    requests: Vec<Request>,
    idle: Vec<u16>,
    random: Random,
    blocks: u64,
    latencies: Histogram,
    daemon: Daemon,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    prepared: Prepared,
    due_ns: u64,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut beds = Vec::new();
    for policy in POLICIES {
        beds.push(Bed::start(options, policy)?);
    }
    let times_ns = if options.quick { [20, 100] } else { [100, 500] }.map(|ms| ms * 1_000_000);
    let mut rows = Vec::new();
    for (rate, word) in RATES {
        let mut seen = vec![Vec::new(); beds.len()];
        for _ in 0..ROUNDS_MIN {
            for (bed, seen) in beds.iter_mut().zip(&mut seen) {
                seen.push(bed.round(rate, times_ns)?);
            }
        }
        for (bed, seen) in beds.iter().zip(&seen) {
            let of_one = rows_of(&format!("between.{word}.{}", bed.policy), seen);
            let told: Vec<String> =
                of_one.iter().map(|row| format!("{:.2} {}", row.value, row.unit)).collect();
            eprintln!("bench: schedule.between.{word}.{}: {}", bed.policy, told.join(", "));
            rows.extend(of_one);
        }
    }
    Ok(rows)
}

fn rows_of(name: &str, seen: &[Seen]) -> Vec<Row> {
    let told = |what: &str, unit, value: &dyn Fn(&Seen) -> f64| {
        let values: Vec<f64> = seen.iter().map(value).collect();
        row(format!("{name}.{what}"), unit, &values)
    };
    vec![
        told("cpu_percent", "%", &|s| s.cpu_percent),
        told("p50_us", "us", &|s| s.p50_us),
        told("p99_us", "us", &|s| s.p99_us),
        told("kicks_per_request", "kicks", &|s| s.kicks_per_request),
    ]
}

impl Bed {
    fn start(options: &Options, policy: &'static str) -> Result<Bed> {
        let disk = Disk { policy: Some(policy), ..Disk::null(DISK.to_string(), 1) };
        let daemon = Daemon::start(options, &format!("between-{policy}"), "", &[disk])?;
        let spec = FrontendSpec { ring: USUAL_RING, ..FrontendSpec::linux() };
        let mut frontend = daemon.frontend(DISK, &spec)?;
        let blocks = frontend.capacity_sectors()? * SECTOR_SIZE / u64::from(BLOCK_BYTES);
        let slots = Slots::new(frontend.memory(), SLOTS, BLOCK_BYTES)?;
        let driver = &mut frontend.queue(0).driver;
        driver.disarm_calls();
        let mut requests = Vec::new();
        for slot in 0..SLOTS {
            let (buffers, count) = slots.buffers(slot, Kind::Read);
            let prepared = driver.prepare(&buffers[..count])?;
            slots.write_header(slot, Kind::Read, 0);
            requests.push(Request { prepared, due_ns: 0 });
        }
        daemon.stop()?;
        Ok(Bed {
            policy,
            frontend,
            slots,
            requests,
            idle: (0..SLOTS).collect(),
            random: Random(SEED),
            blocks,
            latencies: Histogram::default(),
            daemon,
        })
    }

    fn round(&mut self, rate: u32, [warm_ns, measured_ns]: [u64; 2]) -> Result<Seen> {
        self.daemon.go_on()?;
        self.run(rate, warm_ns)?;
        self.latencies.clear();
        let kicks = self.frontend.queue(0).kicks();
        let ([_, before], start_ns) = (self.daemon.cpu()?, now_ns());
        self.run(rate, measured_ns)?;
        let ([_, after], end_ns) = (self.daemon.cpu()?, now_ns());
        let kicks = self.frontend.queue(0).kicks() - kicks;
        self.daemon.stop()?;
        let used_ns = after.since(before).used_ns as f64;
        let us_at = |quantile| self.latencies.quantile(quantile) as f64 / 1e3;
        Ok(Seen {
            cpu_percent: used_ns * 100.0 / (end_ns - start_ns) as f64,
            p50_us: us_at(0.5),
            p99_us: us_at(0.99),
            kicks_per_request: kicks as f64 / self.latencies.count().max(1) as f64,
        })
    }

    /// Sends requests at that rate for so long, at least one, and waits for the last answer.
    fn run(&mut self, rate: u32, for_ns: u64) -> Result<()> {
        let start_ns = now_ns();
        let mut due_ns = start_ns;
        let mut heard_ns = start_ns;
        loop {
            let used = self.frontend.queue(0).driver.take_used();
            let now_ns = now_ns();
            if let Some(used) = used {
                self.finish(used.token as u16, now_ns)?;
                heard_ns = now_ns;
            }
            if due_ns <= now_ns && due_ns - start_ns < for_ns {
                if let Some(slot) = self.idle.pop() {
                    self.send(slot, due_ns)?;
                    due_ns += gap_ns(&mut self.random, rate);
                }
            } else if due_ns - start_ns >= for_ns && self.idle.len() == usize::from(SLOTS) {
                return Ok(());
            }
            let waited_ns = now_ns.saturating_sub(heard_ns.max(due_ns));
            if waited_ns > PATIENCE_NS {
                let fault = self.frontend.queue(0).driver.fault();
                bail!("nothing was answered for {waited_ns} ns (fault of the ring: {fault:?})");
            }
        }
    }

    fn send(&mut self, slot: u16, due_ns: u64) -> Result<()> {
        let block = self.random.below(self.blocks);
        self.slots.set_sector(slot, block * u64::from(BLOCK_BYTES) / SECTOR_SIZE);
        let request = &mut self.requests[usize::from(slot)];
        request.due_ns = due_ns;
        let queue = self.frontend.queue(0);
        queue.driver.add_prepared(request.prepared, slot.into())?;
        if queue.driver.publish() {
            queue.kick()?;
        }
        Ok(())
    }

    fn finish(&mut self, slot: u16, now_ns: u64) -> Result<()> {
        let status = self.slots.status(slot);
        ensure!(status == STATUS_OK, "a request ended with status {status}");
        let due_ns = self.requests[usize::from(slot)].due_ns;
        self.latencies.record(now_ns.saturating_sub(due_ns));
        self.idle.push(slot);
        Ok(())
    }
}

/// The time to the next request of a Poisson stream of that rate, nanoseconds.
fn gap_ns(random: &mut Random, rate: u32) -> u64 {
    const STEPS: u64 = 1 << 53;
    let part = (random.below(STEPS) + 1) as f64 / STEPS as f64;
    (-part.ln() * 1e9 / f64::from(rate)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_those_of_a_poisson_stream() {
        let mut random = Random(SEED);
        let gaps: Vec<u64> = (0..200_000).map(|_| gap_ns(&mut random, 10_000)).collect();
        let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
        assert!((mean - 100_000.0).abs() < 1_000.0, "{mean}");
        // A part of 1/e is longer than the mean.
        let longer = gaps.iter().filter(|gap| **gap > 100_000).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0f64).exp()).abs() < 0.01, "{longer}");
        let mut again = Random(SEED);
        assert_eq!(gap_ns(&mut again, 10_000), gaps[0]);
    }

    #[test]
    fn a_round_gives_four_rows() {
        let seen = Seen { cpu_percent: 12.0, p50_us: 3.0, p99_us: 9.0, kicks_per_request: 0.5 };
        let rows = rows_of("between.1k.poll", &[seen; 5]);
        let found: Vec<(&str, f64)> =
            rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        assert_eq!(
            found,
            [
                ("schedule.between.1k.poll.cpu_percent", 12.0),
                ("schedule.between.1k.poll.p50_us", 3.0),
                ("schedule.between.1k.poll.p99_us", 9.0),
                ("schedule.between.1k.poll.kicks_per_request", 0.5),
            ]
        );
    }
}
