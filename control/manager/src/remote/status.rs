//! What operators are shown of links.

use std::time::{Duration, Instant};

use backend::link::LinkSnapshot;
use config::api::{LinkDiskView, LinkView, LinkWayView};
use config::plan::{DiskPlan, LinkEnd};
use config::spec::{LinkRole, LinkSecurity};
use remote::iohost::shard_of;

use super::link::{End, OneLink};
use super::serving::Serving;
use super::using::Using;
use super::waits::PATIENCE;
use crate::devices::Devices;
use crate::opening::shut::{Shut, ShutDevices};
use crate::views::{self, told};

/// A stranger is not answered, whatever is wrong.
const NO_ANSWER: &str = "no IOhost answers; they are asked in turn. Check their addresses and ports, that the way is \
                         open, that `security` is the same at both ends, `iohost_key`, and that their file has this machine's key \
                         (`sidecore link key FILE` prints it)";

impl OneLink {
    /// For operators. `has_port` says which ports are there.
    pub(super) fn view(
        &self,
        devices: (&Devices, &ShutDevices),
        now: Instant,
        has_port: impl Fn(u32) -> bool,
    ) -> LinkView {
        let (line, plan) = (&self.line, self.line.plan());
        let security =
            if plan.key_file.is_some() { LinkSecurity::Noise } else { LinkSecurity::None };
        let nics = match &self.end {
            End::Client(_, ports) => ports.views(has_port),
            End::Iohost(serving) => {
                let its = serving.ports().iter().filter(|(port, _)| has_port(**port));
                its.map(|(_, port)| port.view()).collect()
            }
        };
        let mut view = LinkView {
            id: plan.id.clone(),
            declared: plan.origin.to_string(),
            role: plan.role(),
            security,
            addresses: Vec::new(),
            sidecore: line.core(0).map(|core| core as u16),
            sidecores: Vec::new(),
            sockets: line.sockets().iter().map(ToString::to_string).collect(),
            problem: line.problem().map(str::to_string),
            peer: None,
            sessions: 0,
            round_trip_ns: None,
            frames_in: 0,
            frames_out: 0,
            frames_dropped: 0,
            frames_unsent: 0,
            handshakes: 0,
            hellos_refused: 0,
            refusals: Vec::new(),
            mismatches: 0,
            frames_misplaced: 0,
            violations: 0,
            writes_again: 0,
            leases_over: 0,
            ways: Vec::new(),
            disks: self.disk_views(devices, now),
            nics,
        };
        match (&self.end, &plan.end) {
            (End::Client(using, _), LinkEnd::Client { iohosts, .. }) => {
                view.addresses = iohosts.iter().map(ToString::to_string).collect();
                using.add_up(&mut view, now);
            }
            (End::Iohost(serving), LinkEnd::Iohost { listen, .. }) => {
                view.addresses = vec![listen.to_string()];
                view.sidecores = line.cores().map(|core| core as u16).collect();
                serving.add_up(&mut view);
                let twins = serving.twins((now, line.patience())).into_iter();
                let problems: Vec<_> = view
                    .problem
                    .take()
                    .into_iter()
                    .chain(twins)
                    .chain(serving.strangers.lately(serving.unread(), now))
                    .collect();
                view.problem = (!problems.is_empty()).then(|| problems.join("; "));
                view.ways = serving.ways(&view.sidecores);
                view.refusals = serving.strangers.views(serving.unread(), now);
            }
            _ => {}
        }
        view
    }

    /// Disks that are open, and those that are not.
    fn disk_views(
        &self,
        (devices, shut): (&Devices, &ShutDevices),
        now: Instant,
    ) -> Vec<LinkDiskView> {
        let plan = self.line.plan();
        let is_of = |disk: &DiskPlan| match plan.role() {
            LinkRole::Client => {
                matches!(&disk.source, config::Source::Remote { link: id, .. } if *id == plan.id)
            }
            LinkRole::Iohost => plan.clients().iter().any(|client| client.disks.contains(&disk.id)),
        };
        let of_shut = |shut: &Shut| LinkDiskView {
            id: shut.plan().id().to_string(),
            in_use: false,
            client: None,
            requests: 0,
            errors: 0,
            in_flight: 0,
            problem: Some(shut.told()),
        };
        let shut = shut.iter().filter(|shut| shut.plan().disk().is_some_and(is_of)).map(of_shut);
        devices
            .values()
            .filter(|device| device.disk().is_some_and(|disk| is_of(&disk.plan)))
            .map(|device| {
                let mut view = LinkDiskView {
                    id: device.facts().id.clone(),
                    in_use: !device.attached().is_empty(),
                    client: self.client_of(&device.facts().id),
                    requests: 0,
                    errors: 0,
                    in_flight: 0,
                    problem: views::problem_of(device, now),
                };
                for queue in device.queues() {
                    let seen = queue.counters().snapshot();
                    view.requests += seen.requests;
                    view.errors += seen.errors;
                    view.in_flight += seen.in_flight;
                }
                view
            })
            .chain(shut)
            .collect()
    }

    /// The client that has that disk now, by its name.
    fn client_of(&self, disk: &str) -> Option<String> {
        let serving = self.serving()?;
        let (key, _) = serving.export(serving.number_of(disk)?)?.holder()?;
        // Where security is `none` there is one, without a key.
        let mut clients = self.line.plan().clients().iter();
        let client = clients.find(|client| client.key.is_none_or(|its| its == *key))?;
        Some(client.name.clone())
    }
}

/// What is wrong with a way to an IOhost of which nothing was heard for so long, or ever.
fn silence(has_session: bool, silent: Option<Duration>) -> Option<String> {
    // One that is replaced, or whose session only became old, answers sooner.
    if silent.is_some_and(|time| time < PATIENCE) {
        return None;
    }
    if !has_session {
        return Some(NO_ANSWER.to_string());
    }
    let time_s = silent?.as_secs();
    Some(format!(
        "its IOhost has been silent for {time_s} s; what is shown of the way there is from before"
    ))
}

/// How the way to the IOhost is.
fn way_to_iohost(peer: String, sidecore: Option<u16>, seen: &LinkSnapshot) -> LinkWayView {
    LinkWayView {
        peer,
        sidecore,
        round_trip_ns: told(seen.round_trip_ns),
        frames_sent: seen.frames_sent,
        frames_lost: seen.frames_lost,
        records_again: seen.records_again,
        frames_under_way: seen.frames_under_way,
        window_frames: seen.window_frames,
        credit_frames: seen.credit_frames,
    }
}

impl Using {
    /// What it did, and whether its IOhost is there, which is one of the addresses in the view.
    fn add_up(&self, view: &mut LinkView, now: Instant) {
        let Some(seen) = self.seen() else { return };
        view.sessions = seen.is_up;
        let iohost = usize::try_from(seen.iohost).ok().and_then(|at| view.addresses.get(at));
        view.peer = iohost.filter(|_| seen.is_up > 0).cloned();
        let silent = self.silent_since().map(|since| now.saturating_duration_since(since));
        view.problem = view.problem.take().or(silence(view.peer.is_some(), silent));
        view.round_trip_ns = told(seen.round_trip_ns);
        (view.frames_in, view.frames_out) = (seen.frames_in, seen.frames_out);
        view.frames_dropped = seen.strange + seen.dropped + seen.lost_in;
        view.frames_unsent = seen.lost_out;
        view.handshakes = seen.handshakes;
        (view.mismatches, view.violations) = (seen.mismatches, seen.violations);
        view.writes_again = seen.writes_again;
        let core = view.sidecore;
        view.ways.extend(view.peer.clone().map(|peer| way_to_iohost(peer, core, &seen)));
    }
}

impl Serving {
    /// What its shards did, in all.
    fn add_up(&self, view: &mut LinkView) {
        for seen in self.parts().iter().map(|part| part.counters.snapshot()) {
            view.sessions += seen.sessions;
            view.frames_in += seen.frames_in;
            view.frames_out += seen.frames_out;
            let dropped =
                [seen.frames_unknown, seen.frames_dropped, seen.frames_misplaced, seen.lost_in];
            let refused = seen.hellos_strange + seen.greets_dropped;
            view.hellos_refused += refused;
            view.frames_dropped += dropped.iter().sum::<u64>() + refused;
            view.frames_unsent += seen.lost_out;
            view.frames_misplaced += seen.frames_misplaced;
            view.handshakes += seen.hellos;
            view.mismatches += seen.mismatches;
            view.violations += seen.violations;
            view.leases_over += seen.leases_over;
        }
        view.hellos_refused += self.strangers.all();
        view.frames_dropped += self.strangers.all();
    }

    /// How the ways to its clients are.
    fn ways(&self, sidecores: &[u16]) -> Vec<LinkWayView> {
        let ways = self.clients().iter().map(|(number, client)| {
            let shard = shard_of(*number);
            let part = self.parts().get(shard);
            let place = part.and_then(|part| part.sessions.get((number & 0xffff) as usize));
            let seen = place.map(|one| one.snapshot());
            // Of a session that has just begun nothing was shown yet.
            let seen = seen.filter(|seen| seen.session == u64::from(*number)).unwrap_or_default();
            LinkWayView {
                peer: client.clone(),
                sidecore: sidecores.get(shard).copied(),
                round_trip_ns: told(seen.round_trip_ns),
                frames_sent: seen.frames_sent,
                frames_lost: seen.frames_lost,
                records_again: seen.records_again,
                frames_under_way: seen.frames_under_way,
                window_frames: seen.window_frames,
                credit_frames: seen.credit_frames,
            }
        });
        ways.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iohost_that_is_silent_is_told_of_before_its_session_is_over() {
        let after = |ms| Some(Duration::from_millis(ms));
        assert_eq!(silence(true, None), None);
        assert_eq!(silence(true, after(900)), None);
        let said = silence(true, after(2_500)).unwrap();
        assert!(said.starts_with("its IOhost has been silent for 2 s; what"), "{said}");
        // While one is replaced nobody has to look for a mistake.
        assert_eq!(silence(false, after(100)), None);
        assert_eq!(silence(false, after(2_500)).as_deref(), Some(NO_ANSWER));
        assert_eq!(silence(false, None).as_deref(), Some(NO_ANSWER));
    }
}
