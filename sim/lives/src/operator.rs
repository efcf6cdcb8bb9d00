//! Operators: what they ask for, and that each call has one answer, in time, which is true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use config::api::{Answer, ApiError, Call};
use config::spec::{
    Carrier, DiskMove, DiskResize, DiskSpec, NicChange, NicMove, NicSpec, StageKind,
};
use config::{DiskPlan, Origin, Plan, Size, SwitchSpec, Target};
use manager::simulated::{Asked, Door, Heard};
use random::Random;

use crate::file;

/// How long a client of the API waits for an answer.
const ANSWER_NS_MAX: u64 = 20_000_000_000;
/// The same, where an upgrade is under way, or is asked for.
const UPGRADE_NS_MAX: u64 = 60_000_000_000;
/// Disks made through the API at a time.
const DISKS_MAX: usize = 4;
/// Calls that wait for their answer.
const PENDING_MAX: usize = 6;

/// What whoever asked a daemon that ends is told: what came of it the next one knows.
const STOPPED: &str = "the daemon is being stopped";

/// A call that is not answered.
struct Pending {
    asked: Asked,
    call: Call,
    at_ns: u64,
    /// Where it was asked.
    door: Door,
    /// Whoever it was asked of serves no more: what it has done was found.
    is_found: bool,
}

/// A call that was.
pub(crate) struct Answered {
    pub(crate) call: Call,
    /// When it was asked.
    pub(crate) at_ns: u64,
    pub(crate) answer: Result<Answer, ApiError>,
}

/// What was found of disks at a start.
pub(crate) struct Found {
    /// Those that are smaller than they were, and how large they are.
    pub(crate) smaller: Vec<(String, Size)>,
    /// Those that were not known to be there.
    pub(crate) added: Vec<DiskSpec>,
}

#[derive(Default)]
pub(crate) struct Operator {
    pending: Vec<Pending>,
    /// Disks made through the API, as they are by all that was answered.
    pub(crate) made: BTreeMap<String, DiskSpec>,
    /// And NICs.
    pub(crate) made_nics: BTreeMap<String, NicSpec>,
    /// And switches.
    pub(crate) made_switches: BTreeMap<String, SwitchSpec>,
    /// Bytes of disks made through the API that are gone.
    were: BTreeMap<String, u64>,
    /// What was asked of a daemon that has died, and was not answered.
    lost: Vec<Call>,
    count: u32,
    host: u32,
    /// When an upgrade was under way last, or another host had all turns.
    unheard_ns: u64,
}

impl Operator {
    /// That of a host.
    pub(crate) fn of(host: u8) -> Operator {
        Operator { host: host.into(), ..Operator::default() }
    }

    /// Nobody will answer any more.
    pub(crate) fn lose_all(&mut self) {
        self.lost.extend(self.pending.drain(..).map(|pending| pending.call));
    }

    /// What a daemon that has started has: what was kept, and of what was asked last either all or nothing.
    ///
    /// # Errors
    /// It has something else.
    pub(crate) fn find_all(&mut self, plan: &Plan) -> Result<Found, String> {
        let smaller = |disk: &DiskPlan| {
            let (made, found) = (self.made.get(&disk.id)?.size?, disk.spec.size?);
            (found < made).then(|| (disk.id.clone(), found))
        };
        let smaller: Vec<_> = plan.disks.iter().filter_map(smaller).collect();
        let mut lost = std::mem::take(&mut self.lost);
        for pending in &mut self.pending {
            // Whoever it was asked of has the same, should all be given back.
            lost.push(pending.call.clone());
            pending.is_found = true;
        }
        let found = plan.disks.iter().filter(|disk| disk.origin == Origin::Api);
        let found: BTreeMap<_, _> =
            found.map(|disk| (disk.id.clone(), disk.spec.clone())).collect();
        let is_new = |disk: &&DiskSpec| !self.made.contains_key(&disk.id);
        let added = found.values().filter(is_new).cloned().collect();
        self.note_gone(&found, &lost);
        find(&mut self.made, found, &lost, |call, spec| match call {
            Call::AddDisk { spec: new, .. } => Some(new.clone()),
            Call::ChangeDisk { change, .. } => spec.map(|mut spec| {
                file::apply(change, &mut spec);
                spec
            }),
            Call::ResizeDisk { resize, .. } => {
                spec.map(|spec| DiskSpec { size: Some(resize.size), ..spec })
            }
            Call::RemoveDisk { .. } => None,
            _ => spec.map(|spec| file::staged(call, spec)),
        })?;
        let found = plan.nics.iter().filter(|nic| nic.origin == Origin::Api);
        let found = found.map(|nic| (nic.id.clone(), nic.spec.clone()));
        find(&mut self.made_nics, found.collect(), &lost, |call, spec| match call {
            Call::AddNic(new) => Some(new.clone()),
            Call::SetCarrier { carrier, .. } => spec.map(|spec| NicSpec { link: *carrier, ..spec }),
            Call::ChangeNic { change, .. } => spec.map(|spec| nic_after(spec, change)),
            Call::RemoveNic { .. } => None,
            _ => spec,
        })?;
        let found = plan.switches.iter().filter(|switch| switch.origin == Origin::Api);
        let found = found.map(|switch| (switch.id.clone(), switch.spec.clone())).collect();
        find(&mut self.made_switches, found, &lost, |call, spec| match call {
            Call::AddSwitch(new) => Some(new.clone()),
            Call::RemoveSwitch { .. } => None,
            _ => spec,
        })?;
        Ok(Found { smaller, added })
    }

    /// Notes how large those were that are not found: also where they had just been made larger, and nobody heard.
    fn note_gone(&mut self, found: &BTreeMap<String, DiskSpec>, lost: &[Call]) {
        for (id, spec) in self.made.iter().filter(|(id, _)| !found.contains_key(*id)) {
            let resized = lost.iter().filter_map(|call| match call {
                Call::ResizeDisk { id: of, resize, .. } if of == id => Some(resize.size.0),
                _ => None,
            });
            let were = resized.chain(spec.size.map(|size| size.0)).max();
            self.were.insert(id.clone(), were.unwrap_or(0));
        }
    }

    /// Bytes of the disk that had that name before; none, if there was none.
    pub(crate) fn bytes_before(&self, id: &str) -> u64 {
        self.were.get(id).copied().unwrap_or(0)
    }

    /// Calls that wait for their answer.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Whether one of them is such a one.
    pub(crate) fn is_asked(&self, is_it: impl Fn(&Call) -> bool) -> bool {
        self.pending.iter().any(|pending| is_it(&pending.call))
    }

    /// Whether one of them is to remove that disk.
    pub(crate) fn is_asked_to_go(&self, id: &str) -> bool {
        let is_it = |call: &Call| {
            let taken = [removed(call), linked(call)];
            taken.into_iter().flatten().any(|it| it == id)
        };
        self.pending.iter().any(|pending| is_it(&pending.call))
    }

    /// Asks at that door. False: nobody answers there any more.
    pub(crate) fn ask(&mut self, door: &Door, call: &Call, now_ns: u64) -> bool {
        let Some(asked) = door.ask(call.clone()) else { return false };
        let (call, door) = (call.clone(), door.clone());
        self.pending.push(Pending { asked, call, at_ns: now_ns, door, is_found: false });
        true
    }

    /// Something that an operator may want. `known` are all disks.
    pub(crate) fn wish(
        &mut self,
        known: &[String],
        folder: &Path,
        cores: usize,
        random: &mut Random,
    ) -> Option<Call> {
        if self.pending.len() >= PENDING_MAX {
            return None;
        }
        let busy: BTreeSet<&str> =
            self.pending.iter().filter_map(|it| changed_disk(&it.call)).collect();
        let mut free: Vec<&String> =
            self.made.keys().filter(|id| !busy.contains(id.as_str())).collect();
        // Not always one that may be changed.
        free.extend(known.iter().filter(|id| !busy.contains(id.as_str())));
        let one = |random: &mut Random| {
            (!free.is_empty()).then(|| free[random.below(free.len() as u64) as usize].clone())
        };
        if random.one_in(4) {
            return self.wish_of_nics(&busy, known, cores, random);
        }
        Some(match random.below(24) {
            0..3 if self.made.len() < DISKS_MAX => {
                self.count += 1;
                // Some names come again, with the image that they had.
                let number = if random.one_in(4) { self.count.min(3) } else { self.count };
                let id = format!("a{number}");
                if busy.contains(id.as_str()) {
                    return None;
                }
                Call::AddDisk { spec: file::disk(&id, folder, random), force: true }
            }
            3..5 => Call::RemoveDisk { id: one(random)?, force: !random.one_in(4) },
            5..7 => Call::ChangeDisk { id: one(random)?, change: file::change(random) },
            7..9 => {
                let size = Size((file::SECTORS + random.below(64)) * 512);
                Call::ResizeDisk { id: one(random)?, resize: DiskResize { size }, force: false }
            }
            9..14 => {
                let to = match random.below(cores as u64 + 1) {
                    core if core < cores as u64 => Target::Sidecore(core as u16),
                    _ => Target::Auto,
                };
                let queue = random.one_in(2).then(|| random.below(3) as u16);
                Call::MoveDisk { id: one(random)?, wish: DiskMove { to, queue } }
            }
            14 => Call::ListDisks,
            15 => Call::ShowDisk { id: one(random)? },
            16 => Call::ListSidecores,
            17 => Call::ShowDaemon,
            18 => Call::ShowReload,
            19..22 => {
                let (kind, change) = file::stage(random);
                Call::SetStage { id: one(random)?, kind, change }
            }
            22 => {
                let kind = random.of(&[StageKind::Trace, StageKind::Fault]);
                Call::RemoveStage { id: one(random)?, kind }
            }
            _ => Call::ClearDisk { id: one(random)? },
        })
    }

    /// A move that an operator may want.
    pub(crate) fn wish_move(
        &self,
        known: &[String],
        cores: usize,
        random: &mut Random,
    ) -> Option<Call> {
        if known.is_empty() || self.pending.len() >= PENDING_MAX {
            return None;
        }
        let id = known[random.below(known.len() as u64) as usize].clone();
        let to = Target::Sidecore(random.below(cores as u64) as u16);
        Some(match file::is_nic(&id) {
            true => Call::MoveNic { id, wish: NicMove { to } },
            false => {
                let queue = random.one_in(2).then(|| random.below(3) as u16);
                Call::MoveDisk { id, wish: DiskMove { to, queue } }
            }
        })
    }

    /// One of the devices whose move is asked for and not answered.
    pub(crate) fn moved(&self, which: u64) -> Option<&str> {
        let moved = |pending: &'_ Pending| {
            matches!(pending.call, Call::MoveDisk { .. } | Call::MoveNic { .. })
        };
        let all: Vec<&Pending> = self.pending.iter().filter(|it| moved(it)).collect();
        changed_disk(&all.get(which as usize % all.len().max(1))?.call)
    }

    fn wish_of_nics(
        &self,
        busy: &BTreeSet<&str>,
        known: &[String],
        cores: usize,
        random: &mut Random,
    ) -> Option<Call> {
        let is_free = |id: &&String| file::is_nic(id) && !busy.contains(id.as_str());
        let free: Vec<&String> = self.made_nics.keys().chain(known).filter(is_free).collect();
        let at = random.below(free.len().max(1) as u64) as usize;
        let one = free.get(at).map(|id| (*id).clone());
        let switch = random.of(&file::SWITCHES_MADE);
        Some(match random.below(16) {
            12..14 if !busy.contains(switch) => match self.made_switches.contains_key(switch) {
                true => Call::RemoveSwitch { id: switch.into() },
                false => Call::AddSwitch(file::switch(switch, random)),
            },
            14 => Call::ListNics,
            0..3 if self.made_nics.len() < DISKS_MAX => {
                let id = format!("m{}", 100 * self.host + random.below(8) as u32);
                if busy.contains(id.as_str()) {
                    return None;
                }
                Call::AddNic(file::nic(&id, random))
            }
            3..5 => Call::RemoveNic { id: one?, force: !random.one_in(4) },
            5..7 => {
                let carrier = random.of(&[Carrier::Up, Carrier::Down]);
                Call::SetCarrier { id: one?, carrier }
            }
            7..10 => {
                let to = match random.below(cores as u64 + 1) {
                    core if core < cores as u64 => Target::Sidecore(core as u16),
                    _ => Target::Auto,
                };
                Call::MoveNic { id: one?, wish: NicMove { to } }
            }
            10..12 => {
                let number = random.between(1, 1000);
                let none = NicChange::default();
                let change = match random.below(4) {
                    0 => NicChange { share: Some(number as u32), ..none },
                    1 => NicChange { macs_max: Some(number as u16), ..none },
                    2 => NicChange { vlan: Some(random.of(&[0, 7])), ..none },
                    _ => NicChange { limit_packets: Some(random.of(&[0, 20_000])), ..none },
                };
                Call::ChangeNic { id: one?, change }
            }
            _ => Call::ShowSwitch { id: random.of(&["s0", "s1", "s2"]).into() },
        })
    }

    /// Nobody had a turn until now.
    pub(crate) fn has_stood_still(&mut self, now_ns: u64) {
        self.unheard_ns = now_ns;
    }

    /// What was answered since.
    ///
    /// # Errors
    /// A call that nobody will answer, or that was not answered in time.
    pub(crate) fn hear(
        &mut self,
        now_ns: u64,
        is_closed: impl Fn(&Door) -> bool,
    ) -> Result<Vec<Answered>, String> {
        if self.is_asked(|call| matches!(call, Call::Upgrade { .. })) {
            self.unheard_ns = now_ns;
        }
        // Of the time in which a daemon waits for its heir nothing is left for others.
        let since_ns = self.unheard_ns;
        let is_late = |pending: &Pending| {
            now_ns > pending.at_ns + UPGRADE_NS_MAX
                || now_ns > pending.at_ns.max(since_ns) + ANSWER_NS_MAX
        };
        let mut answered = Vec::new();
        let mut left = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            match pending.asked.hear() {
                Heard::Nothing if is_late(&pending) => {
                    return Err(format!("{:?} is not answered in time", pending.call));
                }
                Heard::Nothing => left.push(pending),
                Heard::Nobody if is_closed(&pending.door) => {
                    if !pending.is_found {
                        self.lost.push(pending.call);
                    }
                }
                Heard::Nobody => return Err(format!("{:?} will not be answered", pending.call)),
                Heard::Answer(answer) => {
                    let Pending { call, at_ns, .. } = pending;
                    if (*answer).as_ref().is_err_and(|why| why.error.contains(STOPPED)) {
                        self.lost.push(call.clone());
                    }
                    answered.push(Answered { call, at_ns, answer: *answer });
                }
            }
        }
        self.pending = left;
        answered.iter().for_each(|answered| self.note(answered));
        Ok(answered)
    }

    /// What is there from now on.
    fn note(&mut self, Answered { call, answer, .. }: &Answered) {
        // What some queue has not come to in time is done all the same.
        let is_late = |why: &ApiError| why.hint.starts_with("it is kept, and ");
        let is_staged = matches!(call, Call::SetStage { .. } | Call::RemoveStage { .. });
        if answer.as_ref().is_err_and(|why| !(is_staged && is_late(why))) {
            return;
        }
        match call {
            Call::SetStage { id, .. } | Call::RemoveStage { id, .. } => {
                if let Some(spec) = self.made.get_mut(id) {
                    *spec = file::staged(call, spec.clone());
                }
            }
            Call::AddDisk { spec, .. } => drop(self.made.insert(spec.id.clone(), spec.clone())),
            Call::RemoveDisk { id, .. } => {
                let were = self.made.remove(id).and_then(|spec| spec.size);
                self.were.extend(were.map(|size| (id.clone(), size.0)));
            }
            Call::AddNic(spec) => drop(self.made_nics.insert(spec.id.clone(), spec.clone())),
            Call::RemoveNic { id, .. } => drop(self.made_nics.remove(id)),
            Call::SetCarrier { id, carrier } => {
                if let Some(spec) = self.made_nics.get_mut(id) {
                    spec.link = *carrier;
                }
            }
            Call::ChangeNic { id, change } => {
                if let Some(spec) = self.made_nics.get_mut(id) {
                    *spec = nic_after(spec.clone(), change);
                }
            }
            Call::AddSwitch(spec) => {
                self.made_switches.insert(spec.id.clone(), spec.clone());
            }
            Call::RemoveSwitch { id } => drop(self.made_switches.remove(id)),
            Call::ChangeDisk { id, change } => {
                self.made.get_mut(id).into_iter().for_each(|spec| file::apply(change, spec));
            }
            Call::ResizeDisk { id, resize, .. } => {
                if let Some(spec) = self.made.get_mut(id) {
                    spec.size = Some(resize.size);
                }
            }
            _ => {}
        }
    }
}

/// Compares what was `found` with what was `made`, which `lost` calls may have changed as `after` says, each of them or not; from then on that is there.
fn find<T: Clone + PartialEq + std::fmt::Debug>(
    made: &mut BTreeMap<String, T>,
    found: BTreeMap<String, T>,
    lost: &[Call],
    after: impl Fn(&Call, Option<T>) -> Option<T>,
) -> Result<(), String> {
    let ids: BTreeSet<&String> = made.keys().chain(found.keys()).collect();
    for id in ids {
        let mut may_be = vec![made.get(id).cloned()];
        for call in lost.iter().filter(|call| changed_disk(call) == Some(id)) {
            let changed: Vec<_> = may_be.iter().map(|before| after(call, before.clone())).collect();
            may_be.extend(changed);
        }
        if !may_be.contains(&found.get(id).cloned()) {
            let found = found.get(id);
            return Err(format!("after a start there is {found:?}, and should be {may_be:?}"));
        }
    }
    *made = found;
    Ok(())
}

/// A NIC after what was asked of it.
fn nic_after(spec: NicSpec, change: &NicChange) -> NicSpec {
    NicSpec {
        share: change.share.unwrap_or(spec.share),
        macs_max: change.macs_max.or(spec.macs_max),
        vlan: change.vlan.map_or(spec.vlan, |vlan| Some(vlan).filter(|vlan| *vlan > 0)),
        limit_packets: change
            .limit_packets
            .map_or(spec.limit_packets, |limit| Some(limit).filter(|limit| *limit > 0)),
        ..spec
    }
}

/// The device that a call removes.
pub(crate) fn removed(call: &Call) -> Option<&str> {
    match call {
        Call::RemoveDisk { id, .. } | Call::RemoveNic { id, .. } => Some(id),
        _ => None,
    }
}

/// The NIC whose cable a call takes out or puts in.
pub(crate) fn linked(call: &Call) -> Option<&str> {
    match call {
        Call::SetCarrier { id, .. } => Some(id),
        _ => None,
    }
}

/// The device or the switch that a call changes.
pub(crate) fn changed_disk(call: &Call) -> Option<&str> {
    match call {
        Call::AddDisk { spec, .. } => Some(&spec.id),
        Call::AddNic(spec) => Some(&spec.id),
        Call::AddSwitch(spec) => Some(&spec.id),
        Call::RemoveSwitch { id } => Some(id),
        Call::RemoveNic { id, .. }
        | Call::ChangeNic { id, .. }
        | Call::SetCarrier { id, .. }
        | Call::MoveNic { id, .. }
        | Call::RemoveDisk { id, .. }
        | Call::ChangeDisk { id, .. }
        | Call::ResizeDisk { id, .. }
        | Call::MoveDisk { id, .. }
        | Call::SetStage { id, .. }
        | Call::RemoveStage { id, .. }
        | Call::ClearDisk { id } => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
