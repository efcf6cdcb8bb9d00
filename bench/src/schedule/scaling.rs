//! Time of a request with 1, 16, 256 and 4,096 busy queues on one sidecore, 4 requests in each.
//!
//! | row | what |
//! |---|---|
//! | `scaling.N.ns` | the sidecore's time in passes that found work, for a request |
//! | `scaling.N.iops` | requests a second, driver and sidecore working at once |
//!
//! With many queues the driver's one core offers more slowly than the sidecore takes, and the sidecore's
//! time would be that of looking at empty ones. So from 256 queues on, for the first row, the daemon is
//! stopped by a signal while all of them are offered their requests, and goes on when every one has
//! work; the round's number is the median of its stops. Few queues need no stop, and would be measured
//! badly with one, since their work is over in microseconds: both sides just run.

use super::daemon::{Daemon, Disk};
use super::{Options, PATIENCE_NS, row};
use anyhow::{Context, Result, ensure};
use testing::clock::now_ns;
use testing::frontend::{Frontend, FrontendSpec};
use testing::lane::{BLOCK_BYTES, DEPTH, LANE_BYTES, Lane, RING};
use testing::load::Random;
use testing::report::Row;
use testing::slots::{SECTOR_SIZE, Slots};

const COUNTS: [u16; 4] = [1, 16, 256, 4096];
const QUEUES_PER_DISK: u16 = 64;
/// Fewest queues for which the daemon is stopped while they are offered work.
const STOPPED_MIN: u16 = 256;
/// From the last completion until the sidecore is certainly in a pass that finds nothing: the time that
/// it is stopped must not be part of one that found work.
const SETTLE_NS: u64 = 1_000_000;

/// A daemon and front-ends with so many queues in all.
struct Bed {
    count: u16,
    frontends: Vec<(Frontend, Vec<Lane>)>,
    random: Random,
    blocks: u64,
    daemon: Daemon,
}

pub(super) fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut beds = Vec::new();
    for count in COUNTS {
        eprintln!("bench: schedule.scaling.{count}: starting a daemon with {count} queues");
        beds.push(Bed::start(options, count)?);
    }
    let [rounds, stops] = if options.quick { [5, 4] } else { [15, 10] };
    let free_ns = if options.quick { 50_000_000 } else { 200_000_000 };
    let [mut times, mut rates] = [(); 2].map(|()| vec![Vec::new(); beds.len()]);
    for round in 1..=rounds {
        for (bed, (times, rates)) in beds.iter_mut().zip(times.iter_mut().zip(&mut rates)) {
            let [iops, ns] = bed.round(free_ns, stops).with_context(|| format!("round {round}"))?;
            times.push(ns);
            rates.push(iops);
        }
        eprintln!("bench: schedule.scaling: round {round} of {rounds}");
    }
    let mut rows = Vec::new();
    for (count, (times, rates)) in COUNTS.iter().zip(times.iter().zip(&rates)) {
        rows.push(row(format!("scaling.{count}.ns"), "ns", times));
        rows.push(row(format!("scaling.{count}.iops"), "1/s", rates));
    }
    // Round by round, so that drift hits both sides.
    let (first, last) = times.first().zip(times.last()).context("nothing was measured")?;
    let ratios: Vec<f64> = last.iter().zip(first).map(|(many, one)| many / one).collect();
    rows.push(row("scaling.4096_over_1.ns_ratio".to_string(), "1", &ratios));
    Ok(rows)
}

impl Bed {
    fn start(options: &Options, count: u16) -> Result<Bed> {
        let disks = count.div_ceil(QUEUES_PER_DISK);
        let queues = count.min(QUEUES_PER_DISK);
        let ids: Vec<String> = (0..disks).map(|number| format!("disk{number}")).collect();
        let disk = |id: &String| Disk { policy: Some("poll"), ..Disk::null(id.clone(), queues) };
        let disks: Vec<Disk> = ids.iter().map(disk).collect();
        let daemon = Daemon::start(options, &format!("scaling-{count}"), "", &disks)?;
        let spec = FrontendSpec {
            memory_bytes: (u64::from(queues) * LANE_BYTES).next_multiple_of(2 << 20),
            queues,
            ring: RING,
            ..FrontendSpec::linux()
        };
        let (mut frontends, mut blocks) = (Vec::new(), 0);
        for mut frontend in daemon.frontends(&ids, &spec)? {
            blocks = frontend.capacity_sectors()? * SECTOR_SIZE / u64::from(BLOCK_BYTES);
            let mut lanes = Vec::new();
            for queue in 0..queues {
                let slots = Slots::new(frontend.memory(), DEPTH, BLOCK_BYTES)?;
                lanes.push(Lane::new(&mut frontend.queue(queue).driver, slots)?);
            }
            frontends.push((frontend, lanes));
        }
        // The last of them may be on their way.
        let start_ns = now_ns();
        loop {
            let attached = daemon.counters()?.queues;
            if attached == count {
                break;
            }
            let told = || format!("{attached} queues are attached instead of {count}");
            ensure!(now_ns() - start_ns < PATIENCE_NS, told());
        }
        daemon.stop()?;
        Ok(Bed { count, frontends, random: Random(0x5eed), blocks, daemon })
    }

    /// Requests a second, and the sidecore's nanoseconds for one.
    fn round(&mut self, free_ns: u64, stops: usize) -> Result<[f64; 2]> {
        self.daemon.go_on()?;
        let [iops, mut ns] = self.run_free(free_ns)?;
        if self.count >= STOPPED_MIN {
            let each = (0..stops).map(|_| self.run_stopped()).collect::<Result<Vec<f64>>>()?;
            ns = row(String::new(), "ns", &each).value;
        }
        self.daemon.stop()?;
        Ok([iops, ns])
    }

    /// Both sides at once: the driver goes round and offers again where all are answered.
    fn run_free(&mut self, for_ns: u64) -> Result<[f64; 2]> {
        let before = self.daemon.counters()?;
        let (start_ns, mut requests) = (now_ns(), 0);
        let mut heard_ns = start_ns;
        let elapsed_ns = loop {
            let ended = self.turn()?;
            let now_ns = now_ns();
            requests += ended;
            if ended > 0 {
                heard_ns = now_ns;
            }
            ensure!(now_ns - heard_ns < PATIENCE_NS, "nothing was answered for 10 s");
            if now_ns - start_ns >= for_ns && requests > 0 {
                break now_ns - start_ns;
            }
        };
        let late = self.collect()?;
        let after = self.daemon.counters()?;
        let busy_ns = after.busy_ns.saturating_sub(before.busy_ns);
        let iops = requests as f64 * 1e9 / elapsed_ns as f64;
        Ok([iops, busy_ns as f64 / (requests + late) as f64])
    }

    /// Every queue has work when the daemon goes on; the sidecore's nanoseconds for a request.
    fn run_stopped(&mut self) -> Result<f64> {
        let before = self.daemon.counters()?;
        self.daemon.stop()?;
        self.turn()?;
        self.daemon.go_on()?;
        let requests = self.collect()?;
        spin_for(SETTLE_NS);
        let after = self.daemon.counters()?;
        Ok(after.busy_ns.saturating_sub(before.busy_ns) as f64 / requests.max(1) as f64)
    }

    /// Takes what is answered, and offers again on queues that have nothing in flight; gives how many
    /// were taken.
    fn turn(&mut self) -> Result<u64> {
        let mut ended = 0;
        for (frontend, lanes) in &mut self.frontends {
            for (queue, lane) in frontend.queues().iter_mut().zip(lanes) {
                ended += lane.take(&mut queue.driver)?;
                if queue.driver.in_flight() > 0 {
                    continue;
                }
                if lane.offer(&mut queue.driver, &mut self.random, self.blocks)? {
                    queue.kick()?;
                }
            }
        }
        Ok(ended)
    }

    /// Waits for all that is in flight; gives how many that were.
    fn collect(&mut self) -> Result<u64> {
        let (start_ns, mut ended) = (now_ns(), 0);
        for (frontend, lanes) in &mut self.frontends {
            for (queue, lane) in frontend.queues().iter_mut().zip(lanes) {
                let mut looks = 0u32;
                while queue.driver.in_flight() > 0 {
                    ended += lane.take(&mut queue.driver)?;
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(1024) {
                        ensure!(now_ns() - start_ns < PATIENCE_NS, "not answered within 10 s");
                    }
                }
            }
        }
        Ok(ended)
    }
}

/// Waits without giving the core away.
fn spin_for(ns: u64) {
    let start_ns = now_ns();
    while now_ns() - start_ns < ns {
        std::hint::spin_loop();
    }
}
