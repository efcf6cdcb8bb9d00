//! Devices of the plan that are not open: disks still held by requests of a process that has ended,
//! or anything in trouble. They have no socket, so that a VMM is refused and comes again instead of waiting for an
//! answer that nobody gives.
//!
//! Here they are found, shown and dropped. Not here: how one is opened (`open`), and when one is tried again
//! (`control::retry`).

use std::collections::HashMap;
use std::time::Instant;

use config::plan::DevicePlan;
use control::retry::Retry;
use sidecore::{instant_of, nanos_of};
use tracing::{error, warn};

use super::not_open::NotOpen;

/// Devices that one line of the log names besides the first.
const ALIKE_NAMED: usize = 3;

/// A device that is in the plan and not open.
#[derive(Clone, Debug)]
pub(crate) struct Shut {
    plan: DevicePlan,
    /// Why it is not open and what to do.
    problem: String,
    /// Somebody found that; otherwise nothing is known yet.
    is_found: bool,
    hope: Hope,
}

/// Whether it opens by itself.
#[derive(Clone, Copy, Debug)]
enum Hope {
    /// It is tried again.
    Waits(Retry),
    /// An operator has to act first.
    Failed,
}

impl Shut {
    /// A device that waits for what may pass by itself, such as the device that it replaces.
    pub(crate) fn waiting_for(plan: DevicePlan, why: &NotOpen, now: Instant) -> Shut {
        let hope = Hope::Waits(Retry::from(nanos_of(now)));
        Shut { plan, problem: why.to_string(), is_found: why.is_found(), hope }
    }

    /// A device that an operator has to see to.
    pub(crate) fn failed(plan: DevicePlan, problem: String) -> Shut {
        Shut { plan, problem, is_found: true, hope: Hope::Failed }
    }

    /// What was asked for.
    pub(crate) fn plan(&self) -> &DevicePlan {
        &self.plan
    }

    /// Why it is not open and what to do.
    pub(crate) fn problem(&self) -> &str {
        &self.problem
    }

    /// The same, and what brings it back, for operators.
    pub(crate) fn told(&self) -> String {
        match self.is_waiting() {
            true => self.problem.clone(),
            false => format!("{}; when that is right, `sidecore reload`", self.problem),
        }
    }

    /// Whether it is tried again.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.hope, Hope::Waits(_))
    }

    /// Why it is not open, but for its own names.
    fn reason(&self) -> String {
        let image = self.plan.disk().and_then(|disk| disk.source.path());
        let socket = match &self.plan {
            DevicePlan::Disk(disk) => &disk.socket,
            DevicePlan::Nic(nic) => &nic.socket,
        };
        // In quotes: one letter that is a name is a part of many words.
        let id = format!("{:?}", self.plan.id());
        let names = image.into_iter().chain([socket.as_str(), &id]);
        names.fold(self.problem.clone(), |text, name| text.replace(name, "*"))
    }

    fn retry_mut(&mut self) -> Option<&mut Retry> {
        match &mut self.hope {
            Hope::Waits(retry) => Some(retry),
            Hope::Failed => None,
        }
    }

    /// When it is tried again.
    fn due_at(&self) -> Option<Instant> {
        match self.hope {
            Hope::Waits(retry) => Some(instant_of(retry.due_at())),
            Hope::Failed => None,
        }
    }

    /// It was tried again in vain; some device `goes` which may have what it needs.
    fn still(&mut self, why: &NotOpen, goes: bool, now: Instant) {
        // Of what nobody knows yet holds what was found.
        let is_news = why.is_found() || !self.is_found;
        if is_news {
            (self.problem, self.is_found) = (why.to_string(), why.is_found());
        }
        self.hope = match self.hope {
            Hope::Waits(retry) => {
                let retry = retry.unless_given_up(why.obstacle(), goes, nanos_of(now));
                retry.map_or(Hope::Failed, Hope::Waits)
            }
            Hope::Failed => Hope::Failed,
        };
        if !self.is_waiting() {
            error!(device = self.plan.id(), "cannot be served: {why}");
        }
    }
}

/// Devices of the plan that are not open, at most one of each name.
#[derive(Default)]
pub(crate) struct ShutDevices(Vec<Shut>);

impl ShutDevices {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Shut> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The one of that name.
    pub(crate) fn named(&self, id: &str) -> Option<&Shut> {
        self.0.iter().find(|shut| shut.plan.id() == id)
    }

    /// Takes one in; it takes the place of another of its name.
    pub(crate) fn insert(&mut self, shut: Shut) {
        self.remove(shut.plan.id());
        self.0.push(shut);
    }

    /// It is open, or planned no more: what it was.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Shut> {
        let at = self.0.iter().position(|shut| shut.plan.id() == id)?;
        Some(self.0.remove(at))
    }

    /// None is to be opened any more.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// One is planned otherwise.
    pub(crate) fn set_plan(&mut self, plan: &DevicePlan) {
        if let Some(shut) = self.0.iter_mut().find(|shut| shut.plan.id() == plan.id()) {
            shut.plan.clone_from(plan);
        }
    }

    /// When the next one is tried again.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.0.iter().filter_map(Shut::due_at).min()
    }

    /// Those that are to be tried again.
    pub(crate) fn due(&self, now: Instant) -> Vec<DevicePlan> {
        let is_due = |shut: &&Shut| shut.due_at().is_some_and(|at| at <= now);
        self.0.iter().filter(is_due).map(|shut| shut.plan.clone()).collect()
    }

    /// One was tried again in vain; some device `goes` which may have what it needs. False: there is none.
    #[must_use]
    pub(crate) fn still(&mut self, id: &str, why: &NotOpen, goes: bool, now: Instant) -> bool {
        let shut = self.0.iter_mut().find(|shut| shut.plan.id() == id);
        shut.map(|shut| shut.still(why, goes, now)).is_some()
    }

    /// A disk is gone: what waited for its image or socket is tried at once, and has all the time again.
    pub(crate) fn retry_all(&mut self, now: Instant) {
        let retries = self.0.iter_mut().filter_map(Shut::retry_mut);
        retries.for_each(|retry| *retry = Retry::from(nanos_of(now)));
    }

    /// It is known what became of the images of these.
    pub(crate) fn hurry(&mut self, ids: &[String], now: Instant) {
        for shut in &mut self.0 {
            if ids.iter().any(|id| id == shut.plan.id()) {
                shut.retry_mut().into_iter().for_each(|retry| retry.hurry(nanos_of(now)));
            }
        }
    }

    /// Writes into the log which devices are not open, and why.
    pub(crate) fn log(&self) {
        for Alike { first, more } in alike(self.iter()) {
            let (device, why) = (first.plan.id(), &first.problem);
            match first.is_waiting() {
                true => warn!(device, "waits: {why}{more}"),
                false => error!(device, "cannot be served: {why}{more}"),
            }
        }
    }
}

/// Devices that are not open for one reason.
pub(crate) struct Alike<'a> {
    pub(crate) first: &'a Shut,
    /// The others, in words.
    pub(crate) more: String,
}

/// Devices that are not open, those together that are not for the same reason: a file system that is not mounted is one
/// thing to be told, not a thousand.
pub(crate) fn alike<'a>(shut: impl Iterator<Item = &'a Shut>) -> Vec<Alike<'a>> {
    let mut kinds: Vec<(&Shut, Vec<&str>)> = Vec::new();
    let mut places: HashMap<(String, bool), usize> = HashMap::new();
    for one in shut {
        let kind = (one.reason(), one.is_waiting());
        let at = *places.entry(kind).or_insert(kinds.len());
        match kinds.get_mut(at) {
            Some((_, others)) => others.push(one.plan.id()),
            None => kinds.push((one, Vec::new())),
        }
    }
    kinds.into_iter().map(|(first, others)| Alike { first, more: more(&others) }).collect()
}

fn more(others: &[&str]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let named = others.get(..others.len().min(ALIKE_NAMED)).unwrap_or_default().join(", ");
    let rest = if others.len() > ALIKE_NAMED { ", ..." } else { "" };
    format!(" (the same of {} more: {named}{rest})", others.len())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::now;

    #[test]
    fn a_thousand_devices_without_their_file_system_are_one_line() {
        let host = cpus::HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
        let text: String = (0..1000)
            .map(|n| format!("[[disk]]\nid = \"vm{n}\"\npath = \"/srv/image{n}\"\n"))
            .collect();
        let plan = config::plan::load(&text, "f", "/etc", &host, None).unwrap();
        let mut shut: Vec<Shut> = plan
            .disks
            .into_iter()
            .map(|disk| {
                let why = format!("cannot open {}: No such file", disk.source.path().unwrap());
                Shut::failed(DevicePlan::Disk(disk), why)
            })
            .collect();
        shut[7].problem = "something else".to_string();
        let told: Vec<String> = alike(shut.iter())
            .iter()
            .map(|it| format!("{}{}", it.first.problem, it.more))
            .collect();
        let expected =
            "cannot open /srv/image0: No such file (the same of 998 more: vm1, vm2, vm3, ...)";
        assert_eq!(told, [expected, "something else"]);
    }

    #[test]
    fn a_device_waits_fails_and_is_replaced() {
        let plan = |id: &str| {
            let host = cpus::HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
            let text = format!("[[disk]]\nid = {id:?}\npath = \"/{id}\"\n");
            let plan = config::plan::load(&text, "f", "/etc", &host, None).unwrap();
            DevicePlan::Disk(plan.disks[0].clone())
        };
        let (start, mut shut) = (now(), ShutDevices::default());
        let later = start + Duration::from_secs(3);
        let living = NotOpen::Living("held".to_string());
        shut.insert(Shut::waiting_for(plan("a"), &living, start));
        shut.insert(Shut::failed(plan("b"), "missing".to_string()));
        assert_eq!((shut.due(start), shut.due_at()), (vec![plan("a")], Some(start)));
        // Nobody knows anything new.
        assert!(shut.still("a", &NotOpen::Late("late".to_string()), false, start));
        assert_eq!(shut.named("a").unwrap().problem(), "held");
        assert!(shut.due(start).is_empty() && shut.due_at() > Some(start));
        shut.hurry(&["a".to_string(), "b".to_string()], start);
        assert_eq!(shut.due_at(), Some(start));
        assert!(shut.still("a", &living, true, later));
        assert!(!shut.named("a").unwrap().is_waiting());
        assert!(!shut.still("c", &living, true, later));
        // What has failed is not tried again by itself.
        shut.retry_all(later);
        assert_eq!(shut.due_at(), None);
        let late = |text: &str| NotOpen::Late(text.to_string());
        shut.insert(Shut::waiting_for(plan("a"), &late("no thread"), later));
        assert!(shut.still("a", &late("late"), false, later));
        assert_eq!(shut.named("a").unwrap().problem(), "late", "there is a thread now");
        assert_eq!(shut.len(), 2);
        assert_eq!(shut.remove("a").map(|it| it.plan().id().to_string()).as_deref(), Some("a"));
        assert!(shut.named("a").is_none());
    }
}
