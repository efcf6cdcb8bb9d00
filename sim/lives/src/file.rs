//! What is in the configuration file of a life, and what its operators change in it.

use std::path::{Path, PathBuf};

use config::api::{ApiError, Call, ErrorKind};
use config::spec::{
    BackendKind, Cache, DaemonSpec, DiskChange, DiskSpec, Mode, NicSpec, Policy, SidecoresSpec,
    Spoof, StageChange, StageKind, StageSpec, UplinkSpec, Via,
};
use config::{Mac, Plan, Size, Spec, SwitchSpec};
use cpus::HostCpus;
use guests::mac;
use random::Random;

use crate::rack;

/// Sectors of each disk at first.
pub(crate) const SECTORS: u64 = 160;
/// Sectors that a guest uses, when its disk has grown.
pub(crate) const SECTORS_MAX: u64 = 256;
/// Switches of the file, and those that operators make.
const SWITCHES: [&str; 2] = ["s0", "s1"];
pub(crate) const SWITCHES_MADE: [&str; 2] = ["s2", "s3"];
/// Interfaces for switches of the file, and for others.
const UPLINKS: [&str; 4] = ["t0", "t1", "t2", "e0"];
const UPLINKS_MADE: [&str; 3] = ["t4", "t5", "e1"];
/// What NICs have at first: the longest frames of guests fit.
pub(crate) const MTU: u16 = 4000;
/// Disks of the file at most, and NICs.
const DISKS_MAX: usize = 4;

/// The file, and the folder of everything.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) spec: Spec,
    folder: PathBuf,
    host: u32,
    /// Disks that the file has had.
    made: u32,
}

impl File {
    pub(crate) fn new(folder: &Path, host: u8, cpus: u32, disks: u64, random: &mut Random) -> File {
        let at = |name: &str| folder.join(name).display().to_string();
        let spec = Spec {
            daemon: DaemonSpec {
                api: at("api.sock"),
                run_dir: at("run"),
                state_dir: at("state"),
                ..DaemonSpec::default()
            },
            sidecores: SidecoresSpec {
                cpus: format!("0-{}", cpus - 1),
                min: Some(random.between(1, cpus.into()) as u16),
                ..SidecoresSpec::default()
            },
            switch: SWITCHES.map(|id| switch(id, random)).into(),
            ..Spec::default()
        };
        let mut file = File { spec, folder: folder.to_path_buf(), host: host.into(), made: 0 };
        for _ in 0..disks {
            file.add(random);
        }
        file
    }

    /// As it is read.
    ///
    /// # Errors
    /// It is not well written, or does not go with what runs.
    pub(crate) fn load(&self, running: Option<&Plan>) -> Result<Plan, ApiError> {
        let host = HostCpus { online: (0..16).collect(), auto: Vec::new(), auto_count: 1 };
        let text = toml::to_string(&self.spec).map_err(|e| error(&e.to_string()))?;
        let folder = self.folder.display().to_string();
        config::plan::load(&text, "lives.toml", &folder, &host, running)
            .map_err(|refusal| error(&refusal.to_string()))
    }

    /// An operator edits it: whose guest may be disturbed when it is read again.
    pub(crate) fn edit(&mut self, random: &mut Random) -> Option<String> {
        let at = random.below(self.spec.disk.len().max(1) as u64) as usize;
        match random.below(15) {
            8 if self.spec.nic.len() < DISKS_MAX => {
                self.made += 1;
                self.spec.nic.push(nic(&format!("n{}", 100 * self.host + self.made), random));
                None
            }
            12..15 => {
                self.edit_switch(random);
                None
            }
            9..12 => self.edit_nic(random),
            0 if self.spec.disk.len() < DISKS_MAX => {
                self.add(random);
                None
            }
            1 if self.spec.disk.get(at).is_some_and(|disk| is_own(&disk.id)) => {
                Some(self.spec.disk.remove(at).id)
            }
            2 if self.spec.disk.get(at).is_some_and(|disk| is_own(&disk.id)) => {
                let disk = self.spec.disk.get_mut(at)?;
                disk.serial = Some(format!("s{}", random.below(1000)));
                // What is in memory would be gone.
                (disk.backend == Some(BackendKind::File)).then(|| disk.id.clone()).or_else(|| {
                    disk.serial = None;
                    None
                })
            }
            3 => {
                let disk = self.spec.disk.get_mut(at)?;
                disk.size.as_mut()?.0 += 4096;
                Some(disk.id.clone())
            }
            7 => {
                let (kind, change) = stage(random);
                let disk = self.spec.disk.get_mut(at)?;
                match random.one_in(3) {
                    true => disk.stage.retain(|it| it.kind != kind),
                    false => set_stage(kind, &change, disk),
                }
                None
            }
            _ => {
                apply(&change(random), self.spec.disk.get_mut(at)?);
                None
            }
        }
    }

    fn edit_nic(&mut self, random: &mut Random) -> Option<String> {
        let at = random.below(self.spec.nic.len().max(1) as u64) as usize;
        let nic = self.spec.nic.get_mut(at)?;
        match random.below(4) {
            0 => return Some(self.spec.nic.remove(at).id),
            1 => nic.mtu = random.between(MTU.into(), u64::from(MTU) + 100) as u16,
            2 if nic.switch.is_some() => {
                nic.vlan = vlan(random);
                nic.macs_max = Some(random.between(1, 9) as u16);
                return None;
            }
            _ => {
                nic.share = random.between(1, 1000) as u32;
                return None;
            }
        }
        Some(nic.id.clone())
    }

    /// A switch of the file has an uplink more, or less, or another one; or is made anew.
    fn edit_switch(&mut self, random: &mut Random) {
        let at = random.below(self.spec.switch.len().max(1) as u64) as usize;
        let used: Vec<String> =
            self.spec.switch.iter().flat_map(|switch| &switch.uplink).filter_map(on).collect();
        let Some(switch) = self.spec.switch.get_mut(at) else { return };
        let which = random.below(switch.uplink.len().max(1) as u64) as usize;
        match random.below(6) {
            0 => switch.ageing_s = random.between(1, 300) as u32,
            1 => switch.macs_max = random.between(1, 64) as u16,
            2 if switch.uplink.get(which).is_some_and(|uplink| on(uplink).is_some()) => {
                switch.uplink.remove(which);
            }
            3 => {
                if let Some(uplink) = switch.uplink.get_mut(which) {
                    uplink.share = random.between(1, 1000) as u32;
                    if on(uplink).is_some() {
                        uplink.vlan = vlan(random);
                    }
                }
            }
            _ => {
                let name = random.of(&UPLINKS);
                if !used.iter().any(|used| used == name) {
                    switch.uplink.push(uplink(name, random));
                }
            }
        }
    }

    fn add(&mut self, random: &mut Random) {
        self.made += 1;
        let id = format!("f{}", self.made);
        self.spec.disk.push(disk(&id, &self.folder, random));
    }
}

/// A switch, which has up to two uplinks at first.
pub(crate) fn switch(id: &str, random: &mut Random) -> SwitchSpec {
    let all = if SWITCHES.contains(&id) { &UPLINKS[..] } else { &UPLINKS_MADE[..] };
    // Those of two switches are not the same, or one of them is refused.
    let all = all.iter().skip(number(id) as usize % 2).step_by(2);
    let count = random.below(3) as usize;
    let uplink = all.take(count).map(|name| uplink(name, random)).collect();
    // A table for thousands, as a switch has it that says nothing, is larger than all else that a daemon here begins with.
    SwitchSpec { uplink, macs_max: random.between(16, 64) as u16, ..SwitchSpec::new(id) }
}

/// An uplink on the interface of that name.
fn uplink(name: &str, random: &mut Random) -> UplinkSpec {
    let is_tap = name.starts_with('t');
    UplinkSpec {
        tap: is_tap.then(|| name.into()),
        interface: (!is_tap).then(|| name.into()),
        via: (!is_tap).then(|| random.of(&[Via::Packet, Via::Xdp])),
        vlan: vlan(random),
        share: random.between(1, 1000) as u32,
        ..UplinkSpec::default()
    }
}

/// The interface of an uplink, if it is on one.
fn on(uplink: &UplinkSpec) -> Option<String> {
    uplink.tap.clone().or_else(|| uplink.interface.clone())
}

/// A port of a switch, or the end of a wire.
pub(crate) fn nic(id: &str, random: &mut Random) -> NicSpec {
    let all = [&SWITCHES[..], &SWITCHES_MADE[..]].concat();
    // Those of the file are at its own switches.
    let most = if id.starts_with('n') { SWITCHES.len() } else { all.len() };
    let spec = NicSpec {
        share: random.between(1, 1000) as u32,
        mac: Some(Mac(mac(station(id).into()))),
        mtu: MTU,
        ..NicSpec::new(id)
    };
    match is_wired(id) {
        true => NicSpec { tap: Some(format!("w{}", station(id))), ..spec },
        false => NicSpec {
            switch: Some(all[station(id) as usize / 4 % most].into()),
            vlan: vlan(random),
            spoof: Some(Spoof::Deny),
            ..spec
        },
    }
}

/// The number of a NIC among all.
pub(crate) fn station(id: &str) -> u32 {
    match id.strip_prefix("nr") {
        Some(number) => 90 + number.parse().unwrap_or(0),
        None => number(id) + if id.starts_with('m') { 1000 } else { 0 },
    }
}

/// Whether a NIC of that name is wired to a tap.
pub(crate) fn is_wired(id: &str) -> bool {
    is_nic(id) && !id.starts_with("nr") && station(id) % 4 == 3
}

/// A VLAN, or none.
pub(crate) fn vlan(random: &mut Random) -> Option<u16> {
    random.of(&[None, None, Some(7)])
}

/// Whether two hosts have a disk of that name.
pub(crate) fn is_shared(id: &str) -> bool {
    id.starts_with('g')
}

/// Whether no other host has one of that name.
fn is_own(id: &str) -> bool {
    !rack::is_lent(id) && !is_shared(id)
}

/// Whether a NIC has that name.
pub(crate) fn is_nic(id: &str) -> bool {
    id.starts_with(['n', 'm'])
}

/// A disk of any kind that is honest about what was written.
pub(crate) fn disk(id: &str, folder: &Path, random: &mut Random) -> DiskSpec {
    let in_memory = is_in_memory(id);
    let image = folder.join(format!("{id}.img")).display().to_string();
    let cache = random.of(&[Cache::Auto, Cache::Auto, Cache::Direct, Cache::Page]);
    let mut spec = DiskSpec {
        backend: Some(if in_memory { BackendKind::Memory } else { BackendKind::File }),
        path: (!in_memory).then_some(image),
        size: Some(Size(SECTORS * 512)),
        cache: (!in_memory).then_some(cache),
        queues: queues(id),
        mode: if is_called(id) { Mode::Connect } else { Mode::Listen },
        ..DiskSpec::new(id)
    };
    (0..3).for_each(|_| apply(&change(random), &mut spec));
    spec
}

/// Something that may be changed of a disk while it is served.
pub(crate) fn change(random: &mut Random) -> DiskChange {
    let mut change = DiskChange::default();
    match random.below(6) {
        0 => {
            let policies =
                [Policy::Adaptive, Policy::Notify, Policy::Poll, Policy::Es2, Policy::Elvis];
            change.policy = Some(random.of(&policies));
        }
        1 => change.moderate_us = Some(random.of(&[0, 30, 400])),
        2 => change.limit_iops = Some(random.of(&[0, 50, 300])),
        3 => change.latency_target_us = Some(random.of(&[0, 20, 1000])),
        _ => change.share = Some(random.between(1, 1000) as u32),
    }
    change
}

/// A disk after that; of what can be none there is none with 0.
pub(crate) fn apply(change: &DiskChange, spec: &mut DiskSpec) {
    let set = |field: &mut Option<u32>, to: Option<u32>| {
        if to.is_some() {
            *field = to.filter(|to| *to > 0);
        }
    };
    set(&mut spec.moderate_us, change.moderate_us);
    set(&mut spec.limit_iops, change.limit_iops);
    set(&mut spec.latency_target_us, change.latency_target_us);
    spec.policy = change.policy.or(spec.policy);
    spec.share = change.share.unwrap_or(spec.share);
}

/// A disk after what was asked of its stages.
pub(crate) fn staged(call: &Call, mut spec: DiskSpec) -> DiskSpec {
    match call {
        Call::SetStage { kind, change, .. } => set_stage(*kind, change, &mut spec),
        Call::RemoveStage { kind, .. } => spec.stage.retain(|it| it.kind != *kind),
        _ => {}
    }
    spec
}

fn set_stage(kind: StageKind, change: &StageChange, spec: &mut DiskSpec) {
    let at = spec.stage.iter().position(|it| it.kind == kind);
    let before = at.map_or_else(|| StageSpec::new(kind), |at| spec.stage.remove(at));
    spec.stage.push(before.changed(change));
    spec.stage.sort_by_key(|it| StageKind::ALL.iter().position(|kind| *kind == it.kind));
}

/// A stage, and what somebody may want of it. None fails a request: what its guest wrote would not be known.
pub(crate) fn stage(random: &mut Random) -> (StageKind, StageChange) {
    let trace = |entries| (StageKind::Trace, StageChange { entries, ..StageChange::default() });
    let late = |delay, jitter| {
        let (delay_us, jitter_us) = (Some(delay), Some(jitter));
        let ops = (jitter > 300).then(|| "read+flush".to_string());
        (StageKind::Fault, StageChange { delay_us, jitter_us, ops, ..StageChange::default() })
    };
    match random.below(6) {
        0 => trace(None),
        1 => trace(Some(1024)),
        2 => trace(Some(2048)),
        3 => late(100, 0),
        4 => late(0, 5_000),
        _ => late(200_000, 300),
    }
}

/// Whether the VMM of a disk of that name listens, and its daemon connects.
pub(crate) fn is_called(id: &str) -> bool {
    id.starts_with(['a', 'f']) && number(id) % 5 == 2
}

/// What a disk is made of, whenever one of that name is made: whether all that is written is gone with it.
pub(crate) fn is_in_memory(id: &str) -> bool {
    is_nic(id) || number(id) % 3 == 1
}

pub(crate) fn queues(id: &str) -> u16 {
    (number(id) / 3 % 3 + 1) as u16
}

pub(crate) fn number(id: &str) -> u32 {
    id.get(1..).and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn error(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Refused, what, "correct the file")
}
