//! What the API shows of guests' vCPUs.
//!
//! Not how they are found (`guests`). Called by `network::nic_views`.

use std::time::Instant;

use config::api::{RunStateView, VcpuState, VcpuView};
use config::spec;
use runstate::{Activity, Row, State};
use vcpu_tracker::vcpus::Vcpu;

use crate::clock::machine_ns;
use crate::devices::device::Device;
use crate::guests::Guests;
use crate::network::nic::NicParts;

/// Why no frame of a NIC can go to another queue.
const ONE_QUEUE: &str = "its guest has one receive queue, and there is no other one for its frames: `queues` of 2 or more";

impl Guests {
    /// The vCPUs of a device's guest that are followed.
    fn vcpu_views(&self, device: &Device, now: Instant) -> Vec<VcpuView> {
        let now_ns = machine_ns(now);
        let Some(table) = self.roster.as_ref().map(|roster| roster.table()) else {
            return Vec::new();
        };
        let view =
            |(vcpu, row): &(Vcpu, Row)| Some(self.vcpu_view(*vcpu, &table.read(*row)?, now_ns));
        device.follow().vcpus().iter().filter_map(view).collect()
    }

    fn vcpu_view(&self, vcpu: Vcpu, state: &State, now_ns: u64) -> VcpuView {
        // Of one that was never seen to be switched nothing is known.
        let is_known = state.activity != Activity::Unknown;
        let known = |what: u64| is_known.then_some(what);
        let on = self.cpus.iter().position(|cpu| *cpu == state.cpu);
        VcpuView {
            index: vcpu.index,
            thread: vcpu.tid,
            state: match state.activity {
                Activity::Unknown => VcpuState::Unknown,
                Activity::Runs => VcpuState::Runs,
                Activity::Waits => VcpuState::Waits,
                Activity::Sleeps => VcpuState::Sleeps,
            },
            cpu: is_known.then_some(state.cpu),
            for_us: known(now_ns.saturating_sub(state.since_ns) / 1000),
            ran_ms: known(state.on_ns / 1_000_000),
            off_ms: known(state.off_ns / 1_000_000),
            slice_us: (state.slice_ns > 0).then_some(state.slice_ns / 1000),
            on_sidecore: on.filter(|_| is_known).map(|at| at as u16),
        }
    }

    /// What is shown of a NIC's guest; with each vCPU as it is `now`, or without. `None` where nothing would be.
    pub(crate) fn run_state_view(
        &self,
        device: &Device,
        nic: &NicParts,
        now: Option<Instant>,
    ) -> Option<RunStateView> {
        let counters = nic.counters().snapshot();
        let redirect = nic.plan().redirect;
        let is_wanted = redirect != spec::Redirect::Off;
        let problem = match nic.plan().queues {
            0..=1 => Some(ONE_QUEUE.to_string()),
            _ => device.follow().problem().or(self.why_not.as_deref()).map(str::to_string),
        };
        let view = RunStateView {
            redirect,
            problem: problem.filter(|_| is_wanted),
            redirected: counters.redirected,
            stayed: counters.stayed,
            avoided_us: counters.avoided_ns / 1000,
            vcpus: now.map(|now| self.vcpu_views(device, now)).unwrap_or_default(),
        };
        (is_wanted || !device.follow().vcpus().is_empty()).then_some(view)
    }
}
