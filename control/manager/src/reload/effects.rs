//! What the changes of a reload do to guests, and whether it is done.
//!
//! What takes a device from a guest, remakes it, makes a disk smaller, or ends requests that wait is refused unless the operator insists
//! (`force`). Not here: what differs (`config::diff`), who has a device (`in_use`), and what an upgrade refuses
//! (`upgrade::adopt`).

use std::collections::BTreeMap;

use config::api::{ActionView, ApiError, EffectView, ErrorKind, ThingView};
use config::diff::{Differing, is_made_of, made_of};
use config::plan::{DevicePlan, HostPlan, LinkPlan, NicPeer, NullPlan};
use config::{Change, Plan, Source};
use control::reload::{Does, loses};

use crate::api::again::Lost;
use crate::devices::unrecorded::Unrecorded;
use crate::in_use::InUse;
use crate::sizes::misfit::Misfit;

/// Devices that one refusal names.
const NAMED_MAX: usize = 8;

/// What effects are seen by: who has devices, and the plan until then.
pub(crate) struct Seen<'a> {
    pub(crate) in_use: InUse<'a>,
    pub(crate) plan: &'a Plan,
}

impl Seen<'_> {
    /// What a reload would do to each thing that is different, in the order of its changes.
    /// Of disks that are `misfits` it is said why they are.
    pub(crate) fn effects(
        &self,
        changes: &[Change],
        wanted: &Plan,
        misfits: &[Misfit],
    ) -> Vec<EffectView> {
        let is_added = |id: &str| {
            changes.iter().any(|it| matches!(it, Change::Add(device) if device.id() == id))
        };
        let is_removed = |id: &str| {
            changes.iter().any(|it| matches!(it, Change::Remove { id: gone, .. } if gone == id))
        };
        let mut effects: Vec<EffectView> = Vec::new();
        for change in changes {
            let effect = match change {
                Change::Remove { id, .. } if is_added(id) => {
                    let what = self.what_differs(id, wanted);
                    EffectView {
                        guest_loses: loses(Does::Remake, self.in_use.guest(id)),
                        what,
                        ..self.effect(change, ActionView::Remade)
                    }
                }
                Change::Remove { id, .. } => EffectView {
                    guest_loses: loses(Does::Remove, self.in_use.guest(id)),
                    ..self.effect(change, ActionView::Removed)
                },
                // Said where it goes.
                Change::Add(device) if is_removed(device.id()) => continue,
                Change::Add(_)
                | Change::AddSwitch(_)
                | Change::AddUplink { .. }
                | Change::AddGroup(_) => self.effect(change, ActionView::Added),
                Change::RemoveUplink { .. }
                | Change::RemoveSwitch { .. }
                | Change::RemoveGroup { .. } => self.effect(change, ActionView::Removed),
                Change::Resize { id, size_bytes } => {
                    let disk = self
                        .in_use
                        .devices
                        .number_of(id)
                        .and_then(|number| self.in_use.devices.disk(number));
                    let shrinks = disk.is_some_and(|disk| *size_bytes < disk.disk.size_bytes());
                    let does = if shrinks { Does::Shrink } else { Does::Change };
                    let guest_loses = loses(does, self.in_use.guest(id));
                    EffectView { guest_loses, ..self.effect(change, ActionView::Changed) }
                }
                Change::SetClients { link, .. } => {
                    let guest_loses = self.loses_its_client(link, wanted);
                    let guest = guest_loses;
                    EffectView { guest, guest_loses, ..self.effect(change, ActionView::Changed) }
                }
                Change::Set(..)
                | Change::SetRights { .. }
                | Change::SetApiRights(_)
                | Change::Listen { .. }
                | Change::SetGroup(..)
                | Change::SetSwitch(..)
                | Change::OwnSize { .. }
                | Change::SetUplink { .. } => self.effect(change, ActionView::Changed),
            };
            let is_sized = matches!(change, Change::Resize { .. })
                || matches!(effect.action, ActionView::Added | ActionView::Remade);
            effects.push(self.say_waiting(change, say_refused(effect, is_sized, misfits)));
        }
        effects
    }

    /// Requests that wait, of disks that are resized by these changes: they end with an error.
    fn waiting(&self, changes: &[Change]) -> Option<Unrecorded> {
        let devices = self.in_use.devices;
        let resized = |change: &Change| match change {
            Change::Resize { id, .. } => {
                devices.number_of(id).and_then(|number| devices.get(number))
            }
            _ => None,
        };
        Unrecorded::of(changes.iter().filter_map(resized))
    }

    /// Says of the effect of a change which requests end by it.
    fn say_waiting(&self, change: &Change, mut effect: EffectView) -> EffectView {
        if let Some(waiting) = self.waiting(std::slice::from_ref(change)) {
            effect.needs_force = true;
            effect.what += &format!("; {waiting}");
        }
        effect
    }

    /// Refuses a reload by which requests that wait end with an error.
    ///
    /// # Errors
    /// How many, of which disks.
    pub(super) fn refuse_waiting(&self, changes: &[Change]) -> Result<(), ApiError> {
        let as_it_was = "`sidecore reload --dry-run` says what would be done; nothing was changed";
        let refusal =
            |waiting: Unrecorded| waiting.refusal("it would resize disks", "reload", as_it_was);
        self.waiting(changes).map_or(Ok(()), |waiting| Err(refusal(waiting)))
    }

    fn effect(&self, change: &Change, action: ActionView) -> EffectView {
        let (kind, id) = thing(change);
        let guest = match (kind, change) {
            (ThingView::Disk | ThingView::Nic, _) => self.in_use.has_guest(&id),
            (ThingView::Switch, _) => self.switch_has_guest(&id),
            (_, Change::RemoveUplink { switch, .. } | Change::SetUplink { switch, .. }) => {
                self.switch_has_guest(switch)
            }
            _ => false,
        };
        EffectView {
            kind,
            id,
            action,
            guest,
            guest_loses: false,
            needs_force: false,
            what: change.to_do().to_string(),
        }
    }

    fn switch_has_guest(&self, switch: &str) -> bool {
        let on_it = |nic: &&config::plan::NicPlan| nic.switch() == Some(switch);
        self.plan.nics.iter().filter(on_it).any(|nic| self.in_use.has_guest(&nic.id))
    }

    /// Which fields of a device make it another one, in words.
    fn what_differs(&self, id: &str, wanted: &Plan) -> String {
        let both = self.plan.device(id).zip(wanted.device(id));
        let Some((before, after)) = both else { return String::new() };
        let words = [&before, &after].map(shown);
        let (before, after) = (made_of(&before), made_of(&after));
        let differs = after.iter().filter_map(|(name, word)| {
            let was = before.get(name).map_or("-", String::as_str);
            let [old, new] = &words;
            let old = old.get(name).map_or(was, String::as_str);
            let new = new.get(name).unwrap_or(word);
            (was != word).then(|| format!("{name} {old:?} becomes {new:?}"))
        });
        // An heir takes it in place, so that it is not what the device is made of.
        let folder = |plan: &Plan| plan.disk(id).is_some_and(|disk| disk.spec.allow_user_folder);
        let folder = [self.plan, wanted].map(folder);
        let differs = differs.chain(
            (folder[0] != folder[1])
                .then(|| format!("allow_user_folder \"{}\" becomes \"{}\"", folder[0], folder[1])),
        );
        match differs.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() && self.in_use.waits_for_its_image(id) => {
                "its path names another image than is open, and its guest waits".to_string()
            }
            none if none.is_empty() => "who has it becomes another".to_string(),
            some => some,
        }
    }

    /// Whether a client that has a disk or a NIC of the link may have it no more.
    fn loses_its_client(&self, link: &str, wanted: &Plan) -> bool {
        let Some(before) = self.plan.links.iter().find(|one| one.id == link) else { return false };
        let after = wanted.links.iter().find(|one| one.id == link);
        let keeps = |key, disk: &String| {
            let clients = after.map(LinkPlan::clients).unwrap_or_default();
            clients.iter().any(|client| client.key == key && client.disks.contains(disk))
        };
        let keeps_nic = |key, nic: &String| {
            let clients = after.map(LinkPlan::clients).unwrap_or_default();
            clients.iter().any(|client| client.key == key && client.nics.contains(nic))
        };
        before.clients().iter().any(|client| {
            let mut disks = client.disks.iter().filter(|disk| !keeps(client.key, disk));
            let mut nics = client.nics.iter().filter(|nic| !keeps_nic(client.key, nic));
            disks.any(|disk| self.in_use.has_guest(disk))
                || nics.any(|nic| self.in_use.remote.is_nic_clients(nic))
        })
    }

    /// What another process would do that came with that plan, in words. What a reload makes anew and it takes in place
    /// is set.
    pub(super) fn told_of_heir(&self, changes: &[Change], wanted: &Plan) -> Vec<String> {
        let is_removed = |id: &str| {
            changes.iter().any(|it| matches!(it, Change::Remove { id: gone, .. } if gone == id))
        };
        let stays = |id: &str| is_removed(id) && self.stays(id, wanted);
        let told = |change: &Change| match change {
            Change::Remove { id, .. } if stays(id) => None,
            Change::Add(device) if stays(device.id()) => {
                let what = self.what_differs(device.id(), wanted);
                Some(format!("set {}: {what}", device.title()))
            }
            _ => Some(change.to_string()),
        };
        changes.iter().filter_map(told).collect()
    }

    /// Whether another process that came with that plan would take the device in place.
    fn stays(&self, id: &str, wanted: &Plan) -> bool {
        let both = self.plan.device(id).zip(wanted.device(id));
        both.is_some_and(|(before, after)| is_made_of(&made_of(&before), &made_of(&after)))
    }

    /// What guests would lose if another process came with that plan. It takes in place what it is not another
    /// device for, and links come and go with it.
    pub(super) fn lost_to_heir(&self, changes: &[Change], wanted: &Plan) -> Vec<EffectView> {
        let mut lost = self.effects(changes, wanted, &[]);
        lost.retain(|effect| {
            let is_device = matches!(effect.kind, ThingView::Disk | ThingView::Nic);
            let is_kept =
                effect.action == ActionView::Remade && is_device && self.stays(&effect.id, wanted);
            effect.guest_loses && !is_kept
        });
        let is_told = |id: &str, lost: &[EffectView]| {
            lost.iter().any(|it| it.kind == ThingView::Link && it.id == id)
        };
        for LinkPlan { id, .. } in &self.plan.links {
            if !is_told(id, &lost) && self.loses_its_client(id, wanted) {
                let before = self.plan.links.iter().find(|one| one.id == *id);
                let after = wanted.links.iter().find(|one| one.id == *id);
                let differs = before.map(|before| Differing::of_clients(before, after));
                let differs = differs.unwrap_or_default();
                let change = Change::SetClients { link: id.clone(), differs };
                let effect = self.effect(&change, ActionView::Changed);
                lost.push(EffectView { guest: true, guest_loses: true, ..effect });
            }
        }
        lost
    }
}

/// What [`made_of`] says in a program's words, in those of the configuration.
fn shown(plan: &DevicePlan) -> BTreeMap<String, String> {
    let lower = |word: String| word.to_lowercase();
    let words = match plan {
        DevicePlan::Disk(disk) => {
            let cache = match &disk.source {
                Source::File { cache, .. } => lower(format!("{cache:?}")),
                _ => String::new(),
            };
            vec![("cache", cache), ("mode", lower(format!("{:?}", disk.mode)))]
        }
        DevicePlan::Nic(nic) => {
            let peer = match &nic.peer {
                NicPeer::Switch(id) => format!("switch {id}"),
                NicPeer::Host(HostPlan::Tap { name }) => format!("tap {name}"),
                NicPeer::Host(HostPlan::Interface { name, via }) => {
                    lower(format!("{via:?} ")) + "interface " + name
                }
                NicPeer::Host(HostPlan::Remote { link, name }) => format!("{name} by link {link}"),
                NicPeer::Host(HostPlan::Lent { name }) => format!("remote {name}"),
                NicPeer::Host(HostPlan::Null(null)) => match null {
                    NullPlan::Drop => "null drop".to_string(),
                    NullPlan::Echo => "null echo".to_string(),
                    NullPlan::Generate { .. } => "null generate".to_string(),
                },
            };
            vec![("peer", peer), ("mode", lower(format!("{:?}", nic.mode)))]
        }
    };
    words.into_iter().map(|(name, word)| (name.to_string(), word)).collect()
}

/// Says of the disks in `made` that an empty image is made for each.
pub(crate) fn say_made(mut effects: Vec<EffectView>, made: &[String]) -> Vec<EffectView> {
    for effect in &mut effects {
        if effect.kind == ThingView::Disk && made.contains(&effect.id) {
            effect.what += "; its image is missing: an empty one is made";
        }
    }
    effects
}

/// Says of an effect whether a reload is refused for it, and why of a disk that `is_sized` by it and is among `misfits`.
/// What else is changed of that disk has a row of its own.
pub(super) fn say_refused(
    mut effect: EffectView,
    is_sized: bool,
    misfits: &[Misfit],
) -> EffectView {
    effect.needs_force = effect.guest_loses;
    let is_it = |misfit: &&Misfit| effect.kind == ThingView::Disk && misfit.id == effect.id;
    if let Some(misfit) = misfits.iter().find(is_it).filter(|_| is_sized) {
        effect.needs_force = true;
        effect.what += &format!("; {misfit}");
    }
    effect
}

/// Refuses a reload that gives disks sizes which do not fit what they are made of.
pub(crate) fn refuse_misfits(misfits: &[Misfit]) -> Result<(), ApiError> {
    misfits.first().map_or(Ok(()), |misfit| Err(misfit.refusal()))
}

/// Refuses a reload by which a guest loses.
pub(crate) fn refuse_losses(effects: &[EffectView]) -> Result<(), ApiError> {
    let lost: Vec<&EffectView> = effects.iter().filter(|effect| effect.guest_loses).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let name = |effect: &&EffectView| {
        let EffectView { kind, id, action, what, .. } = effect;
        match action {
            ActionView::Changed => format!("{} {id:?} ({what})", kind.word()),
            ActionView::Remade => format!("{} {id:?} (remade: {what})", kind.word()),
            _ => format!("{} {id:?} ({})", kind.word(), action.word()),
        }
    };
    let mut names: Vec<String> = lost.iter().take(NAMED_MAX).map(name).collect();
    if lost.len() > NAMED_MAX {
        names.push(format!("and {} more", lost.len() - NAMED_MAX));
    }
    let error = format!("it would take from guests what they use: {}", names.join(", "));
    let hint = "put the file back, or stop those guests; `sidecore reload --dry-run` says what would be done, and \
                `sidecore reload --force` (`force=true` in the API) does it; nothing was changed";
    Err(ApiError::new(ErrorKind::Conflict, error, hint))
}

/// What becomes of a socket of the API whose file was removed, or may have been.
pub(super) fn of_api(lost: &Lost) -> EffectView {
    EffectView {
        kind: ThingView::Daemon,
        id: lost.field().to_string(),
        action: ActionView::Changed,
        guest: false,
        guest_loses: false,
        needs_force: false,
        what: lost.to_do(),
    }
}

/// What a change is about.
fn thing(change: &Change) -> (ThingView, String) {
    match change {
        Change::Remove { kind, id }
        | Change::SetRights { kind, id, .. }
        | Change::Listen { kind, id } => ((*kind).into(), id.clone()),
        Change::Set(device, _) | Change::Add(device) => {
            (device.kind().into(), device.id().to_string())
        }
        Change::Resize { id, .. } | Change::OwnSize { id, .. } => (ThingView::Disk, id.clone()),
        Change::AddGroup(group) | Change::SetGroup(group, _) => {
            (ThingView::Group, group.id.clone())
        }
        Change::RemoveGroup { id } => (ThingView::Group, id.clone()),
        Change::SetClients { link, .. } => (ThingView::Link, link.clone()),
        Change::SetApiRights(_) => (ThingView::Daemon, "api".to_string()),
        Change::RemoveSwitch { id } => (ThingView::Switch, id.clone()),
        Change::SetSwitch(switch, _) | Change::AddSwitch(switch) => {
            (ThingView::Switch, switch.id.clone())
        }
        Change::RemoveUplink { name, .. } => (ThingView::Uplink, name.clone()),
        Change::SetUplink { uplink, .. } | Change::AddUplink { uplink, .. } => {
            (ThingView::Uplink, uplink.name().to_string())
        }
    }
}
