//! Any specs, and any two plans: what is written is read again as it was, and a difference done gives the plan that it is
//! a difference to.

use std::collections::BTreeSet;

use config::plan::{DeviceKind, DevicePlan, DiskPlan, NicPlan, Plan, Source, SwitchPlan, load};
use config::read::{Document, json};
use config::saved::{self, Devices, DiskStages};
use config::spec::{
    BackendKind, Cache, Carrier, Format, Mode, NullKind, OnFailure, Policy, Spoof, StageKind,
    StageSpec,
};
use config::{Change, DiskSpec, GroupSpec, Mac, NicSpec, Size, Spec, SwitchSpec, UplinkSpec, diff};
use cpus::HostCpus;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn host() -> HostCpus {
    HostCpus { online: vec![0, 1, 2, 3], auto: vec![3, 2, 1], auto_count: 1 }
}

fn plan(spec: &Spec) -> Result<Plan, TestCaseError> {
    let text = toml::to_string(spec).map_err(|error| TestCaseError::fail(error.to_string()))?;
    load(&text, "f", "/etc", &host(), None)
        .map_err(|refusal| TestCaseError::fail(format!("{text}\n{refusal}")))
}

/// One of a few, so that two plans have some of all in common.
fn one_of<T: Clone + std::fmt::Debug + 'static>(all: &[T]) -> impl Strategy<Value = T> + use<T> {
    select(all.to_vec())
}

fn policies() -> impl Strategy<Value = Option<Policy>> {
    of(one_of(&[Policy::Adaptive, Policy::Poll, Policy::Notify, Policy::Es2, Policy::Elvis]))
}

/// What it is made of: (kind, its image's folder, size, cache, failures).
type Medium = (BackendKind, &'static str, u64, Option<Cache>, Option<OnFailure>);

fn media() -> BoxedStrategy<Medium> {
    use BackendKind::{File, Memory, Null};
    (
        one_of(&[File, File, File, Memory, Null]),
        one_of(&["/one", "/two"]),
        one_of(&[0, 1 << 20, 2 << 20]),
        of(one_of(&[Cache::Auto, Cache::Page])),
        of(one_of(&[OnFailure::Wait, OnFailure::Error])),
    )
        .boxed()
}

fn disk(id: &'static str) -> BoxedStrategy<DiskSpec> {
    let served = (one_of(&[100, 7]), policies(), of(1..3u32), of(one_of(&["g", "h"])));
    let seen = (any::<bool>(), 1..3u16, of(one_of(&["x", "y"])), of(one_of(&[512, 4096])));
    let access = (one_of(&[Mode::Listen, Mode::Connect]), of(one_of(&["kvm"])), any::<[bool; 3]>());
    let others = (one_of(&[60, 5]), of(Just(Format::Raw)));
    (media(), served, seen, access, others)
        .prop_map(move |it| {
            let ((kind, folder, size, cache, failure), served, seen, access, others) = it;
            let ((share, policy, iops, group), (readonly, queues, serial, block_size)) =
                (served, seen);
            let (
                (mode, socket_group, [unsealed, folder_of_user, migratable]),
                (drain_timeout, format),
            ) = (access, others);
            let is_file = kind == BackendKind::File;
            let size = if is_file { size } else { size.max(1 << 20) };
            DiskSpec {
                backend: Some(kind),
                path: is_file.then(|| format!("{folder}/{id}.img")),
                size: (size > 0).then_some(Size(size)),
                cache: cache.filter(|_| is_file),
                on_full: failure.filter(|_| is_file),
                on_error: failure.filter(|_| is_file),
                format: format.filter(|_| is_file),
                allow_user_folder: is_file && folder_of_user,
                migratable: is_file && migratable,
                readonly,
                queues,
                serial: serial.map(str::to_string),
                block_size,
                share,
                policy,
                limit_iops: iops,
                group: group.map(str::to_string),
                mode,
                socket_group: socket_group.filter(|_| mode == Mode::Listen).map(str::to_string),
                allow_unsealed_memory: unsealed,
                drain_timeout,
                // As good as drawn.
                stage: stages().filter(|_| share == 7).take(1).collect(),
                ..DiskSpec::new(id)
            }
        })
        .boxed()
}

fn stages() -> impl Iterator<Item = StageSpec> {
    // A fault that does nothing is none.
    let delay_us = |kind| (kind == StageKind::Fault).then_some(9);
    let stage = move |kind| StageSpec { delay_us: delay_us(kind), ..StageSpec::new(kind) };
    StageKind::ALL.into_iter().map(stage)
}

fn nic(id: &'static str) -> BoxedStrategy<NicSpec> {
    let peer = (
        one_of(&[None, Some("s"), Some("s"), Some("t"), Some("t")]),
        of(1..4u16),
        of(1..3u16),
        of(Just(Spoof::Deny)),
    );
    let seen = (1..3u16, one_of(&[1500, 9000]), any::<bool>(), of(one_of(&[1, 2])));
    let served = (one_of(&[100, 7]), policies(), of(1..3u32), of(one_of(&["g", "h"])));
    let others = (one_of(&[Carrier::Up, Carrier::Down]), any::<bool>(), of(one_of(&["kvm"])));
    (peer, seen, served, others)
        .prop_map(move |it| {
            let ((switch, vlan, macs_max, spoof), seen, served, others) = it;
            let ((queues, mtu, guest_offloads, mac), (share, policy, packets, group)) =
                (seen, served);
            let (link, allow_unsealed_memory, socket_group) = others;
            let last = id.as_bytes()[0];
            NicSpec {
                switch: switch.map(str::to_string),
                null: switch.is_none().then_some(NullKind::Drop),
                vlan: vlan.filter(|_| switch.is_some()),
                macs_max: macs_max.filter(|_| switch.is_some()),
                spoof: spoof.filter(|_| switch.is_some()),
                mac: mac.map(|first| Mac([2, first, 0, 0, 0, last])),
                queues,
                mtu,
                guest_offloads,
                share,
                policy,
                limit_packets: packets,
                group: group.map(str::to_string),
                link,
                socket_group: socket_group.map(str::to_string),
                allow_unsealed_memory,
                ..NicSpec::new(id)
            }
        })
        .boxed()
}

fn switch(id: &'static str) -> BoxedStrategy<SwitchSpec> {
    let uplink = (one_of(&["0", "1"]), of(1..4u16), one_of(&[100, 7]), policies());
    let uplink = uplink.prop_map(move |(tap, vlan, share, policy)| {
        let tap = Some(format!("{id}{tap}"));
        UplinkSpec { tap, vlan, share, policy, ..UplinkSpec::default() }
    });
    (one_of(&[300, 60]), one_of(&[4096, 99]), vec(uplink, 0..2))
        .prop_map(move |(ageing_s, macs_max, uplink)| SwitchSpec {
            ageing_s,
            macs_max,
            uplink,
            ..SwitchSpec::new(id)
        })
        .boxed()
}

fn group(id: &'static str) -> BoxedStrategy<GroupSpec> {
    (of(1..3u32), of(one_of(&[Size(1 << 20)])))
        .prop_map(move |(iops, bytes)| GroupSpec {
            limit_iops: iops,
            limit_bytes: bytes,
            ..GroupSpec::new(id)
        })
        .boxed()
}

/// Mostly there, so that two plans mostly have it in common.
fn most<T: std::fmt::Debug + 'static>(it: BoxedStrategy<T>) -> BoxedStrategy<Option<T>> {
    proptest::option::weighted(0.8, it).boxed()
}

/// Some of all, and whatever they name.
fn specs() -> BoxedStrategy<Spec> {
    let disks = (most(disk("a")), most(disk("b")), most(disk("c")));
    let nics = (most(nic("n")), most(nic("m")));
    let switches = (most(switch("s")), most(switch("t")));
    let groups = (of(group("g")), of(group("h")));
    (disks, nics, switches, groups)
        .prop_map(|((a, b, c), (n, m), (s, t), (g, h))| {
            let mut spec = Spec {
                disk: [a, b, c].into_iter().flatten().collect(),
                nic: [n, m].into_iter().flatten().collect(),
                switch: [s, t].into_iter().flatten().collect(),
                group: [g, h].into_iter().flatten().collect(),
                ..Spec::default()
            };
            let groups: Vec<String> = spec.group.iter().map(|group| group.id.clone()).collect();
            let switches: Vec<String> =
                spec.switch.iter().map(|switch| switch.id.clone()).collect();
            for disk in &mut spec.disk {
                disk.group = disk.group.take().filter(|id| groups.contains(id));
            }
            for nic in &mut spec.nic {
                nic.group = nic.group.take().filter(|id| groups.contains(id));
            }
            // One whose switch is not there is connected to nothing else.
            spec.nic.retain(|nic| nic.switch.as_ref().is_none_or(|id| switches.contains(id)));
            spec
        })
        .boxed()
}

/// The same device with one field as another has it, if that can be read.
fn with_field_of<T: Serialize + DeserializeOwned>(one: &T, other: &T, field: usize) -> Option<T> {
    let [mut one, other] = [one, other].map(|it| match serde_json::to_value(it) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("{other:?} is no table"),
    });
    let different: BTreeSet<String> = one
        .keys()
        .chain(other.keys())
        .filter(|key| one.get(*key) != other.get(*key))
        .cloned()
        .collect();
    let key = different.iter().nth(field.checked_rem(different.len())?)?;
    match other.get(key) {
        Some(value) => one.insert(key.clone(), value.clone()),
        None => one.remove(key),
    };
    serde_json::from_value(Value::Object(one)).ok()
}

/// Two that differ in little: with all of a device different it is always made anew, and no change in place is seen.
fn neighbours() -> BoxedStrategy<(Spec, Spec)> {
    (specs(), specs(), vec(any::<usize>(), 1..3))
        .prop_map(|(one, other, fields)| {
            let mut near = one.clone();
            for field in fields {
                for at in 0..one.disk.len() {
                    let twin = other.disk.iter().find(|it| it.id == one.disk[at].id);
                    let mut next = near.clone();
                    let made = twin.and_then(|twin| with_field_of(&near.disk[at], twin, field));
                    let Some(made) = made else { continue };
                    next.disk[at] = made;
                    near = if plan(&next).is_ok() { next } else { near };
                }
                for at in 0..one.nic.len() {
                    let twin = other.nic.iter().find(|it| it.id == one.nic[at].id);
                    let mut next = near.clone();
                    let made = twin.and_then(|twin| with_field_of(&near.nic[at], twin, field));
                    let Some(made) = made else { continue };
                    next.nic[at] = made;
                    near = if plan(&next).is_ok() { next } else { near };
                }
            }
            (one, near)
        })
        .boxed()
}

/// What is left of a plan to compare: lines move without being a change, and what needs nothing done is taken over with
/// the plan.
fn bare_disk(disk: &DiskPlan) -> DiskPlan {
    let mut bare = disk.clone();
    bare.origin = config::plan::Origin::Api;
    (bare.spec, bare.drain_timeout_s, bare.format, bare.user_folder) =
        (DiskSpec::new(&bare.id), 0, None, false);
    bare.stages.trace.iter_mut().for_each(|stage| stage.by = config::api::StagedBy::Command);
    bare
}

fn bare_nic(nic: &NicPlan) -> NicPlan {
    NicPlan { origin: config::plan::Origin::Api, spec: NicSpec::new(&nic.id), ..nic.clone() }
}

fn bare_switch(switch: &SwitchPlan) -> SwitchPlan {
    let mut bare = switch.clone();
    bare.uplinks.sort_by(|one, other| one.name().cmp(other.name()));
    SwitchPlan { origin: config::plan::Origin::Api, spec: SwitchSpec::new(&bare.id), ..bare }
}

/// Does one change, as whoever applies a difference has to.
fn apply(change: &Change, plan: &mut Plan, wanted: &Plan) {
    match change {
        Change::Remove { kind: DeviceKind::Disk, id } => plan.disks.retain(|it| it.id != *id),
        Change::Remove { kind: DeviceKind::Nic, id } => plan.nics.retain(|it| it.id != *id),
        Change::Add(device) => add(device, plan),
        Change::Set(device, _) => set(device, plan),
        Change::Resize { id, size_bytes } => {
            let mine = plan.disks.iter_mut().find(|mine| mine.id == *id).expect("it is there");
            mine.resized(*size_bytes);
        }
        Change::OwnSize { id, .. } => {
            let mine = plan.disks.iter_mut().find(|mine| mine.id == *id).expect("it is there");
            mine.source = wanted.disk(id).expect("it stays").source.clone();
        }
        Change::SetRights { kind: DeviceKind::Disk, id, .. } => {
            let mine = plan.disks.iter_mut().find(|mine| mine.id == *id).expect("it is there");
            mine.rights = wanted.disk(id).expect("it stays").rights.clone();
        }
        Change::SetRights { kind: DeviceKind::Nic, id, .. } => {
            let mine = plan.nics.iter_mut().find(|mine| mine.id == *id).expect("it is there");
            mine.rights = wanted.nic(id).expect("it stays").rights.clone();
        }
        Change::SetApiRights(_) | Change::SetClients { .. } => {}
        Change::AddGroup(group) => plan.groups.push(group.clone()),
        Change::SetGroup(group, _) => {
            let mine = plan.groups.iter_mut().find(|mine| mine.id == group.id);
            mine.expect("it is there").limit = group.limit;
        }
        Change::RemoveGroup { id } => {
            assert_eq!(plan.members(id), (vec![], vec![]), "group {id} goes with members in it");
            plan.groups.retain(|group| group.id != *id);
        }
        other => apply_to_switch(other, plan),
    }
}

fn add(device: &DevicePlan, plan: &mut Plan) {
    match device {
        DevicePlan::Disk(disk) => plan.disks.push(disk.clone()),
        DevicePlan::Nic(nic) => {
            let is_there = nic.switch().is_none_or(|id| plan.switch(id).is_some());
            assert!(is_there, "nic {} comes before its switch", nic.id);
            plan.nics.push(nic.clone());
        }
    }
}

/// What a device that runs follows; who may open its socket is a change of its own.
fn set(device: &DevicePlan, plan: &mut Plan) {
    match device {
        DevicePlan::Disk(disk) => {
            let mine = plan.disks.iter_mut().find(|mine| mine.id == disk.id).expect("it is there");
            mine.service = disk.service.clone();
            (mine.on_full, mine.on_error) = (disk.on_full, disk.on_error);
            mine.stages.clone_from(&disk.stages);
        }
        DevicePlan::Nic(nic) => {
            let mine = plan.nics.iter_mut().find(|mine| mine.id == nic.id).expect("it is there");
            let rights = mine.rights.clone();
            *mine = NicPlan { rights, ..nic.clone() };
        }
    }
}

fn apply_to_switch(change: &Change, plan: &mut Plan) {
    let switch = |plan: &mut Plan, id: &str| -> usize {
        plan.switches.iter().position(|mine| mine.id == id).expect("it is there")
    };
    match change {
        Change::AddSwitch(added) => plan.switches.push((**added).clone()),
        Change::RemoveSwitch { id } => {
            let on_it = plan.nics.iter().filter(|nic| nic.switch() == Some(id));
            assert_eq!(on_it.count(), 0, "switch {id} goes with nics on it");
            plan.switches.retain(|switch| switch.id != *id);
        }
        Change::SetSwitch(set, _) => {
            let at = switch(plan, &set.id);
            let mine = &mut plan.switches[at];
            (mine.ageing_s, mine.macs_max) = (set.ageing_s, set.macs_max);
        }
        Change::RemoveUplink { switch: of, name } => {
            let at = switch(plan, of);
            plan.switches[at].uplinks.retain(|uplink| uplink.name() != name);
        }
        Change::AddUplink { switch: of, uplink } => {
            let at = switch(plan, of);
            plan.switches[at].uplinks.push((**uplink).clone());
        }
        Change::SetUplink { switch: of, uplink, .. } => {
            let at = switch(plan, of);
            let mine = plan.switches[at].uplinks.iter_mut();
            let mine = mine.into_iter().find(|mine| mine.name() == uplink.name());
            *mine.expect("it is there") = (**uplink).clone();
        }
        other => panic!("{other:?} is not of this kind"),
    }
}

fn sorted<T, U: Ord>(all: &[T], bare: impl Fn(&T) -> T, by: impl Fn(&T) -> U) -> Vec<T> {
    let mut all: Vec<T> = all.iter().map(bare).collect();
    all.sort_by_key(by);
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A file that a program wrote is read as it was meant.
    #[test]
    fn what_is_written_as_a_file_is_read_as_it_was(spec in specs()) {
        let text = toml::to_string(&spec).expect("a file");
        let read = Document::parse(&text, "f").expect("it is read");
        prop_assert_eq!(&read.spec, &spec, "{}", text);
    }

    /// The same of a body of the API, one device at a time.
    #[test]
    fn what_is_written_as_a_body_is_read_as_it_was(spec in specs()) {
        for disk in &spec.disk {
            let body = serde_json::to_vec(disk).expect("a body");
            prop_assert_eq!(&json::<DiskSpec>(&body).expect("it is read"), disk);
        }
        for nic in &spec.nic {
            let body = serde_json::to_vec(nic).expect("a body");
            prop_assert_eq!(&json::<NicSpec>(&body).expect("it is read"), nic);
        }
        for switch in &spec.switch {
            let body = serde_json::to_vec(switch).expect("a body");
            prop_assert_eq!(&json::<SwitchSpec>(&body).expect("it is read"), switch);
        }
    }

    /// And of what is kept between two runs of the daemon, whichever version of the format that takes.
    #[test]
    fn what_is_kept_is_read_as_it_was_and_planned_as_it_was(spec in specs()) {
        let devices = Devices {
            disks: spec.disk.clone(),
            switches: spec.switch.clone(),
            nics: spec.nic.clone(),
            groups: spec.group.clone(),
            stages: vec![DiskStages { disk: "a".into(), stage: stages().collect() }],
            images: Some(spec.disk.iter().filter_map(|disk| disk.path.clone()).collect()),
        };
        let read = saved::read(&saved::write(&devices)).expect("it is read");
        prop_assert_eq!(&read, &devices);
        // A plan keeps what was written, so that it can be planned again.
        let plan = plan(&spec)?;
        let kept: Vec<DiskSpec> = plan.disks.iter().map(|disk| disk.spec.clone()).collect();
        prop_assert_eq!(&kept, &spec.disk);
        let empty = self::plan(&Spec { group: spec.group.clone(), ..Spec::default() })?;
        for (disk, again) in plan.disks.iter().zip(&kept) {
            let made = empty.disk_kept(again).expect("it was planned before");
            prop_assert_eq!(bare_disk(&made), bare_disk(disk));
        }
    }

    /// What goes makes room for what comes.
    #[test]
    fn removals_come_before_additions(one in specs(), other in specs()) {
        let changes = diff(&plan(&one)?, &plan(&other)?).changes;
        let is_removal = |change: &Change| {
            matches!(change, Change::Remove { .. } | Change::RemoveSwitch { .. }
                | Change::RemoveUplink { .. })
        };
        let is_addition = |change: &Change| {
            matches!(change, Change::Add(_) | Change::AddSwitch(_) | Change::AddUplink { .. })
        };
        let first = changes.iter().position(is_addition).unwrap_or(changes.len());
        let last = changes.iter().rposition(is_removal).map_or(0, |at| at + 1);
        prop_assert!(last <= first, "{:?}", changes);
    }

    /// Any text at all is read or refused, with a place that is in it.
    #[test]
    fn any_text_is_read_or_refused_where_it_is_wrong(text in "(\\[{1,2}(disk|nic|link|x)\\]{1,2}|id|path|size|=|\"a\"|7|,|\n| |\\[|\\]|\\{|\\}){0,40}") {
        if let Err(refusal) = load(&text, "f", "/etc", &host(), None) {
            let lines = text.split('\n').count();
            for kind in &refusal.mistakes {
                prop_assert!((1..=lines.max(1)).contains(&kind.first.line), "{refusal}");
                prop_assert!(kind.first.column >= 1 && kind.first.width >= 1);
            }
        }
    }
}

proptest! {
    // So many that each field is often the one that differs.
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// What a reload does is the plan that the file asks for: a field that no change carries would be lost in silence.
    #[test]
    fn a_difference_that_is_done_gives_the_plan_that_was_wanted(
        (one, other) in prop_oneof![(specs(), specs()), neighbours(), neighbours(), neighbours()],
    ) {
        let (mut running, wanted) = (plan(&one)?, plan(&other)?);
        let changes = diff(&running, &wanted).changes;
        for change in &changes {
            apply(change, &mut running, &wanted);
        }
        // A size that is named no more leaves the disk as it is.
        for disk in &mut running.disks {
            let is_named = wanted.disk(&disk.id).is_some_and(|it| it.source.size_bytes().is_some());
            if let Source::File { size_bytes, .. } = &mut disk.source {
                *size_bytes = size_bytes.filter(|_| is_named);
            }
        }
        let by = |disk: &DiskPlan| disk.id.clone();
        let disks = [&running, &wanted].map(|plan| sorted(&plan.disks, bare_disk, by));
        prop_assert_eq!(&disks[0], &disks[1], "{:?}", changes);
        let by = |nic: &NicPlan| nic.id.clone();
        let nics = [&running, &wanted].map(|plan| sorted(&plan.nics, bare_nic, by));
        prop_assert_eq!(&nics[0], &nics[1], "{:?}", changes);
        let by = |switch: &SwitchPlan| switch.id.clone();
        let switches = [&running, &wanted].map(|plan| sorted(&plan.switches, bare_switch, by));
        prop_assert_eq!(&switches[0], &switches[1], "{:?}", changes);
        let limits = [&running, &wanted].map(|plan| {
            let mut limits: Vec<_> = plan.groups.iter().map(|it| (it.id.clone(), it.limit)).collect();
            limits.sort_by(|one, other| one.0.cmp(&other.0));
            limits
        });
        prop_assert_eq!(&limits[0], &limits[1], "{:?}", changes);
        // Done once more, nothing is different.
        prop_assert_eq!(diff(&wanted, &wanted).changes, vec![]);
    }
}
