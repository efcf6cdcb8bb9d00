//! 23 tenants at work, all of whose bytes and frames are looked at: disks of each kind, and NICs in pairs.
//!
//! Each rests between its requests, so that two processors carry them all and what one of them gets is
//! what it asks for. Not who sits beside them (`tests/tests/hostile/crowd.rs`).

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testing::frontend::{FrontQueue, Frontend, FrontendSpec};
use testing::net_frontend::{Nic, NicSpec, frames};
use virtqueue::Format;
use virtqueue::driver::RingSpec;

use crate::traffic::{self, LONGEST, Traffic};
use testing::daemon::Daemon;
use testing::verified::{Load, LoadSpec};

/// Tenants with a disk: each of split and packed, in memory and on a file, and every fourth with two queues.
const DISKS: u16 = 17;
/// Tenants with a NIC: pairs that send to each other, all on one switch.
const NICS: u16 = 6;
/// How many there are.
pub const TENANTS: usize = DISKS as usize + NICS as usize;
/// The switch that the NICs are on.
pub const SWITCH: &str = "lan";
/// Requests that each queue has in flight.
const DEPTH: u16 = 4;
/// How long a queue's guest rests once all of them have come back.
const REST: Duration = Duration::from_millis(4);

/// The tenants.
#[derive(Debug)]
pub struct Crowd {
    disks: Vec<Tenant>,
    pairs: Vec<[Traffic; 2]>,
}

/// One with a disk.
#[derive(Debug)]
struct Tenant {
    loads: Vec<Load>,
    /// Held, so that it stays connected.
    _frontend: Frontend,
}

/// What all did. Nothing was wrong, or it would be an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Requests that were completed, what was read being what had been written.
    pub requests: u64,
    /// The longest that one took, nanoseconds.
    pub request_max_ns: u64,
    /// Frames that came, each once, whole and in its order.
    pub frames: u64,
    /// Frames that found no buffer.
    pub lost: u64,
}

impl Crowd {
    /// Their part of the configuration file.
    pub fn config() -> String {
        let mut config = String::new();
        for number in 0..DISKS {
            let backend = match number % 2 {
                0 => "backend = \"memory\"\n".to_string(),
                _ => format!("path = \"d{number}.img\"\n"),
            };
            let queues = queues(number);
            let _ = write!(
                config,
                "[[disk]]\nid = \"d{number}\"\n{backend}size = \"4M\"\nqueues = {queues}\n"
            );
        }
        let _ = write!(config, "[[switch]]\nid = \"{SWITCH}\"\n");
        for number in 0..NICS {
            config.push_str(&nic(&format!("n{number}"), number));
        }
        config
    }

    /// Starts them all.
    ///
    /// # Errors
    /// One of them is not served.
    pub fn start(daemon: &Daemon) -> Result<Crowd> {
        let disks =
            (0..DISKS).map(|number| Tenant::start(daemon, number)).collect::<Result<_>>()?;
        let mut pairs = Vec::new();
        for number in (0..NICS).step_by(2) {
            let connect = |number| -> Result<(Nic, u16)> {
                Ok((daemon.nic(&format!("n{number}"), NicSpec::sending(LONGEST))?, number))
            };
            let (one, two) = (connect(number)?, connect(number + 1)?);
            let pair = traffic::start_beside_others([one, two])?;
            pair.iter().for_each(Traffic::ease);
            pairs.push(pair);
        }
        let crowd = Crowd { disks, pairs };
        crowd.goes_on()?;
        Ok(crowd)
    }

    /// Requests completed, or frames sent, by each tenant so far.
    pub fn counts(&self) -> [u64; TENANTS] {
        let disks = self.disks.iter().map(|tenant| tenant.loads.iter().map(Load::done).sum());
        let mut counts = [0; TENANTS];
        let all = disks.chain(self.pairs.iter().flatten().map(Traffic::sent));
        counts.iter_mut().zip(all).for_each(|(count, done)| *count = done);
        counts
    }

    /// One of them.
    pub fn load(&self) -> Result<&Load> {
        self.disks.first().and_then(|tenant| tenant.loads.first()).context("no tenants")
    }

    /// Each of them gets on.
    ///
    /// # Errors
    /// One does not, or something was wrong.
    pub fn goes_on(&self) -> Result<()> {
        for load in self.disks.iter().flat_map(|tenant| &tenant.loads) {
            load.await_requests(u64::from(DEPTH))?;
        }
        self.pairs.iter().flatten().try_for_each(|guest| guest.await_frames(1))
    }

    /// Ends all. The daemon has counted no error, and no frame lost but for want of buffers.
    ///
    /// # Errors
    /// What was wrong, at whatever time.
    pub fn finish(self, daemon: &Daemon) -> Result<Done> {
        let mut done = Done::default();
        for (number, tenant) in self.disks.into_iter().enumerate() {
            for load in tenant.loads {
                let finished = load.finish().with_context(|| format!("tenant d{number}"))?;
                done.requests += finished.requests;
                done.request_max_ns = done.request_max_ns.max(finished.max_ns);
            }
            let errors = daemon.shown(&format!("d{number}"), "counters")?["errors"].clone();
            ensure!(errors == 0, "tenant d{number} has {errors} errors");
        }
        for (pair, first) in self.pairs.into_iter().zip((0..NICS).step_by(2)) {
            let finished = traffic::finish(pair).with_context(|| format!("tenant n{first}"))?;
            for (finished, number) in finished.into_iter().zip(first..) {
                let counters = &daemon.nic_view(&format!("n{number}"))?["counters"];
                let full = lost_to_full_rings(counters)?;
                ensure!(finished.lost <= full, "n{number} lost {}: {counters}", finished.lost);
                ensure!(counters["taken_frames"] == finished.sent, "n{number}: {counters}");
                done.frames += finished.taken;
                done.lost += finished.lost;
            }
        }
        Ok(done)
    }
}

impl Tenant {
    fn start(daemon: &Daemon, number: u16) -> Result<Tenant> {
        let format = if (number / 2).is_multiple_of(2) { Format::Split } else { Format::Packed };
        let ring = RingSpec { format, ..FrontendSpec::default().ring };
        // With what Linux takes a write is done before it is stable: no syncs of a file.
        let spec = FrontendSpec { ring, queues: queues(number), ..FrontendSpec::linux() };
        let mut frontend = daemon.frontend(&format!("d{number}"), &spec)?;
        let mut loads: Vec<Load> = Vec::new();
        let queues: Vec<FrontQueue> = frontend.take_queues();
        for (queue, at) in queues.into_iter().zip(0..) {
            let mut spec =
                LoadSpec { depth: DEPTH, rest: REST, mark: number << 1 | at, first_block: 0 };
            spec.first_block = spec.blocks() * u64::from(at);
            loads.push(Load::start_on(queue, frontend.memory(), spec)?);
        }
        Ok(Tenant { loads, _frontend: frontend })
    }
}

fn queues(number: u16) -> u16 {
    if number % 4 == 3 { 2 } else { 1 }
}

/// The part of the file for a NIC of that name and number.
pub fn nic(id: &str, number: u16) -> String {
    let mac = frames::mac(number).map(|byte| format!("{byte:02x}")).join(":");
    format!("[[nic]]\nid = \"{id}\"\nswitch = \"{SWITCH}\"\nmac = \"{mac}\"\nmtu = 9000\n")
}

/// Frames that a port has dropped, all of them for want of buffers.
///
/// # Errors
/// Some were dropped for something else.
pub fn lost_to_full_rings(counters: &Value) -> Result<u64> {
    let mut all = 0;
    // Without any, the list is left out.
    for drop in counters["drops"].as_array().into_iter().flatten() {
        ensure!(drop["reason"] == "no_buffer", "{counters}");
        all += drop["frames"].as_u64().context("no count")?;
    }
    ensure!(counters["dropped_frames"] == all, "drops without a reason: {counters}");
    Ok(all)
}
