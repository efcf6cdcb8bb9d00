//! Two looks at a daemon's counters, and what happened a second between them.

use std::time::Duration;

use config::api::{
    DiskList, DiskView, NicList, NicView, SidecoreList, SidecoreState, SidecoreView, VcpuState,
};
use config::routes::Method;
use config::spec::Redirect;
use serde::Serialize;

use crate::client::{Client, path_of};
use crate::failure::Failure;

/// NICs whose vCPUs are asked for, each by a call of its own: more would not fit on a screen.
const NICS_ASKED_MAX: usize = 64;

/// What there was at one moment.
pub(super) struct Look {
    sidecores: Vec<SidecoreView>,
    disks: Vec<DiskView>,
    nics: Vec<NicView>,
}

/// What happened between two looks. Rates are absent where a counter began anew, or there was none before.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    /// When it was looked, in seconds since 1970.
    pub(super) at: f64,
    /// Between the looks.
    pub(super) seconds: f64,
    pub(super) sidecores: Vec<CoreRates>,
    pub(super) disks: Vec<DiskRates>,
    pub(super) nics: Vec<NicRates>,
}

#[derive(Debug, Serialize)]
pub(super) struct CoreRates {
    pub(super) index: u16,
    pub(super) cpu: Option<u32>,
    #[serde(skip)]
    pub(super) state: SidecoreState,
    pub(super) queues: u16,
    /// Of the time, with requests and frames.
    pub(super) busy_percent: Option<f64>,
    /// Of the time, looking for some in vain.
    pub(super) poll_percent: Option<f64>,
    pub(super) passes_per_s: Option<f64>,
    pub(super) requests_per_s: Option<f64>,
    pub(super) kicks_per_s: Option<f64>,
    pub(super) sleeps_per_s: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(super) struct DiskRates {
    pub(super) id: String,
    pub(super) state: &'static str,
    /// What its guest waits for, or what is wrong.
    pub(super) problem: Option<String>,
    pub(super) reads_per_s: Option<f64>,
    pub(super) writes_per_s: Option<f64>,
    pub(super) flushes_per_s: Option<f64>,
    pub(super) read_bytes_per_s: Option<f64>,
    pub(super) written_bytes_per_s: Option<f64>,
    pub(super) errors_per_s: Option<f64>,
    pub(super) held_per_s: Option<f64>,
    pub(super) in_flight: u32,
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct NicRates {
    pub(super) id: String,
    pub(super) state: &'static str,
    /// What its guest waits for, or what is wrong.
    pub(super) problem: Option<String>,
    pub(super) taken_per_s: Option<f64>,
    pub(super) delivered_per_s: Option<f64>,
    pub(super) taken_bytes_per_s: Option<f64>,
    pub(super) delivered_bytes_per_s: Option<f64>,
    pub(super) dropped_per_s: Option<f64>,
    pub(super) redirected_per_s: Option<f64>,
    pub(super) avoided_us_per_s: Option<f64>,
    /// What each vCPU of its guest does, by their numbers; only where frames follow that.
    pub(super) vcpus: Vec<VcpuState>,
}

impl Look {
    pub(super) fn take(client: &Client) -> Result<Look, Failure> {
        let sidecores: SidecoreList = client.ask(Method::Get, "/v1/sidecores")?;
        let disks: DiskList = client.ask(Method::Get, "/v1/disks")?;
        let nics: NicList = client.ask(Method::Get, "/v1/nics")?;
        let mut nics = nics.nics;
        let follows = |nic: &&mut NicView| {
            nic.run_state.as_ref().is_some_and(|state| state.redirect != Redirect::Off)
        };
        for nic in nics.iter_mut().filter(follows).take(NICS_ASKED_MAX) {
            // One that was removed since is gone at the next look.
            if let Ok(whole) = client.ask(Method::Get, &path_of("nics", &nic.id, "")) {
                *nic = whole;
            }
        }
        Ok(Look { sidecores: sidecores.sidecores, disks: disks.disks, nics })
    }
}

/// How often a second, by a counter of then and of now.
struct Pace(f64);

impl Pace {
    fn of<T>(&self, before: Option<&T>, now: &T, counter: impl Fn(&T) -> u64) -> Option<f64> {
        let more = counter(now).checked_sub(counter(before?))?;
        (self.0 > 0.0).then(|| more as f64 / self.0)
    }
}

impl Rates {
    pub(super) fn between(before: &Look, now: &Look, time: Duration) -> Rates {
        let pace = Pace(time.as_secs_f64());
        let was = |core: &SidecoreView| before.sidecores.iter().find(|was| was.index == core.index);
        let sidecores = now.sidecores.iter().map(|core| CoreRates::of(was(core), core, &pace));
        let was = |disk: &DiskView| before.disks.iter().find(|was| was.id == disk.id);
        let disks = now.disks.iter().map(|disk| DiskRates::of(was(disk), disk, &pace));
        let was = |nic: &NicView| before.nics.iter().find(|was| was.id == nic.id);
        let nics = now.nics.iter().map(|nic| NicRates::of(was(nic), nic, &pace));
        let (mut disks, mut nics): (Vec<_>, Vec<_>) = (disks.collect(), nics.collect());
        // Who does most comes first; the order of the file is kept among equals.
        disks.sort_by(|one, two| two.work().total_cmp(&one.work()));
        nics.sort_by(|one, two| two.work().total_cmp(&one.work()));
        Rates { at: 0.0, seconds: pace.0, sidecores: sidecores.collect(), disks, nics }
    }
}

impl CoreRates {
    fn of(before: Option<&SidecoreView>, now: &SidecoreView, pace: &Pace) -> CoreRates {
        let rate = |counter: fn(&SidecoreView) -> u64| pace.of(before, now, counter);
        let percent = |ns: Option<f64>| ns.map(|ns| (ns / 1e7).min(100.0));
        CoreRates {
            index: now.index,
            cpu: now.cpu,
            state: now.state,
            queues: now.queues,
            busy_percent: percent(rate(|core| core.busy_ns)),
            poll_percent: percent(rate(|core| core.idle_ns)),
            passes_per_s: rate(|core| core.passes),
            requests_per_s: rate(|core| core.requests),
            kicks_per_s: rate(|core| core.kicks),
            sleeps_per_s: rate(|core| core.sleeps),
        }
    }
}

impl DiskRates {
    fn of(before: Option<&DiskView>, now: &DiskView, pace: &Pace) -> DiskRates {
        let rate = |counter: fn(&DiskView) -> u64| pace.of(before, now, counter);
        let counters = &now.counters;
        DiskRates {
            id: now.id.clone(),
            state: now.state.word(),
            problem: now.problem.clone(),
            reads_per_s: rate(|disk| disk.counters.reads),
            writes_per_s: rate(|disk| disk.counters.writes),
            flushes_per_s: rate(|disk| disk.counters.flushes),
            read_bytes_per_s: rate(|disk| disk.counters.read_bytes),
            written_bytes_per_s: rate(|disk| disk.counters.written_bytes),
            errors_per_s: rate(|disk| disk.counters.errors),
            held_per_s: rate(|disk| disk.counters.held.held),
            in_flight: counters.in_flight,
            latency_p50_ns: counters.latency_p50_ns,
            latency_p99_ns: counters.latency_p99_ns,
        }
    }

    fn work(&self) -> f64 {
        [self.reads_per_s, self.writes_per_s, self.flushes_per_s].into_iter().flatten().sum()
    }
}

impl NicRates {
    fn of(before: Option<&NicView>, now: &NicView, pace: &Pace) -> NicRates {
        let rate = |counter: fn(&NicView) -> u64| pace.of(before, now, counter);
        let redirected = |nic: &NicView| nic.run_state.as_ref().map_or(0, |state| state.redirected);
        let avoided = |nic: &NicView| nic.run_state.as_ref().map_or(0, |state| state.avoided_us);
        let follows = now.run_state.is_some();
        let vcpus = now.run_state.iter().flat_map(|state| &state.vcpus);
        NicRates {
            id: now.id.clone(),
            state: now.state.word(),
            problem: now.problem.clone(),
            taken_per_s: rate(|nic| nic.counters.taken_frames),
            delivered_per_s: rate(|nic| nic.counters.delivered_frames),
            taken_bytes_per_s: rate(|nic| nic.counters.taken_bytes),
            delivered_bytes_per_s: rate(|nic| nic.counters.delivered_bytes),
            dropped_per_s: rate(|nic| nic.counters.dropped_frames),
            redirected_per_s: pace.of(before, now, redirected).filter(|_| follows),
            avoided_us_per_s: pace.of(before, now, avoided).filter(|_| follows),
            vcpus: vcpus.map(|vcpu| vcpu.state).collect(),
        }
    }

    fn work(&self) -> f64 {
        [self.taken_per_s, self.delivered_per_s].into_iter().flatten().sum()
    }
}

#[cfg(test)]
impl Look {
    pub(super) fn of(
        sidecores: Vec<SidecoreView>,
        disks: Vec<DiskView>,
        nics: Vec<NicView>,
    ) -> Look {
        Look { sidecores, disks, nics }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(busy_ns: u64, requests: u64) -> SidecoreView {
        SidecoreView { busy_ns, requests, ..SidecoreView::default() }
    }

    fn between(before: SidecoreView, now: SidecoreView) -> CoreRates {
        let [before, now] = [before, now].map(|core| Look::of(vec![core], Vec::new(), Vec::new()));
        let mut rates = Rates::between(&before, &now, Duration::from_millis(500));
        rates.sidecores.remove(0)
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let rates = between(core(1_000_000, 10), core(251_000_000, 1_010));
        assert_eq!((rates.busy_percent, rates.requests_per_s), (Some(50.0), Some(2_000.0)));
    }

    #[test]
    fn a_counter_that_began_anew_gives_none() {
        let rates = between(core(5_000_000, 10), core(1_000_000, 20));
        assert_eq!((rates.busy_percent, rates.requests_per_s), (None, Some(20.0)));
        let nothing = Look::of(Vec::new(), Vec::new(), Vec::new());
        let one = Look::of(vec![core(1, 1)], Vec::new(), Vec::new());
        let rates = Rates::between(&nothing, &one, Duration::from_secs(1));
        assert_eq!(rates.sidecores.first().map(|core| core.requests_per_s), Some(None));
    }
}
