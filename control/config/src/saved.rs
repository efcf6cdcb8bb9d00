//! Devices made through the API, as they are kept between two runs of the daemon.
//!
//! Text to specs and back, nothing else: `manager` writes the text to a temporary file, syncs it and
//! renames it. What is read back is not trusted: it was on a disk, and another version may have
//! written it. The devices are specs, not plans, so that a restart plans them anew.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mistake::{Mistake, Path};
use crate::plan::wrong_with_kept;
use crate::schema;
use crate::spec::told::{Told, newest};
use crate::spec::{
    DISKS_MAX, DiskSpec, GROUPS_MAX, GroupSpec, NICS_MAX, NicSpec, SWITCHES_MAX, StageSpec,
    SwitchSpec,
};

/// The highest version that is read. Like those below and between it is written only when a field says something that
/// came with it (`since` in the tables of [`crate::spec`]), so that an older program reads the rest.
pub const VERSION: u64 =
    newest(&[VERSION_OF_STAGES, DiskSpec::NEWEST, NicSpec::NEWEST, GroupSpec::NEWEST]);
/// With stages that commands have added to disks of the file.
const VERSION_OF_STAGES: u64 = 7;
/// With bursts that wait for a limit.
const VERSION_OF_BURSTS: u64 = 4;
/// With groups. Still written when there is none of these, so that an older program reads it.
const VERSION_OF_GROUPS: u64 = 3;
/// With NICs and switches. Still written when there is no group, so that an older program reads it.
const VERSION_OF_NICS: u64 = 2;
/// Disks alone; likewise.
const VERSION_OF_DISKS: u64 = 1;

const FORMAT: &str = "sidecore-state";
/// Longest path that the kernel takes, bytes.
const PATH_BYTES_MAX: usize = 4095;

/// What is kept: whatever was made through the API, in the order it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// The disks.
    pub disks: Vec<DiskSpec>,
    /// The switches. Their NICs need them, so they are planned first.
    pub switches: Vec<SwitchSpec>,
    /// The NICs.
    pub nics: Vec<NicSpec>,
    /// The groups. Disks and NICs need them, so they are planned before all else.
    pub groups: Vec<GroupSpec>,
    /// What commands have added to disks of the file.
    pub stages: Vec<DiskStages>,
    /// The images that were there once, of the file's disks as well, by their paths: none of them is made anew. Nothing,
    /// where a program has written that did not keep it.
    pub images: Option<Vec<String>>,
}

/// Stages that commands have added to a disk of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskStages {
    /// The disk's name.
    pub disk: String,
    /// What was added.
    pub stage: Vec<StageSpec>,
}

/// The file.
#[derive(Serialize)]
struct Saved<'a> {
    format: &'a str,
    version: u64,
    disks: Vec<Value>,
    #[serde(skip_serializing_if = "<[SwitchSpec]>::is_empty")]
    switches: &'a [SwitchSpec],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nics: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Value>,
    #[serde(skip_serializing_if = "<[DiskStages]>::is_empty")]
    stages: &'a [DiskStages],
    /// Programs that do not know it leave it out, and need no other version.
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<&'a [String]>,
}

/// Why a text is no saved state. Each says what to do; the daemon leaves the file as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// Not JSON: cut off or overwritten.
    #[error(
        "the saved state is damaged ({0}); put a copy of it back, or move the file away and add \
         the disks, switches, nics and groups again"
    )]
    Damaged(String),
    /// Some other JSON.
    #[error(
        "this is not a saved state of sidecore: `format` is not \"sidecore-state\"; put a copy of it back, or move the \
         file away and add the disks, switches, nics and groups again"
    )]
    NotOurs,
    /// Written by a newer program.
    #[error(
        "the saved state has version {found}, and this program reads up to {VERSION}; install the \
         newer program again, or move the file away and add the disks, switches, nics and groups \
         again"
    )]
    Newer {
        /// The version that was found.
        found: u64,
    },
}

/// The text to keep.
pub fn write(devices: &Devices) -> String {
    let Devices { disks, switches, nics, groups, stages, images } = devices;
    let kinds = match (groups.is_empty(), switches.is_empty() && nics.is_empty()) {
        _ if !stages.is_empty() => VERSION_OF_STAGES,
        _ if has_waiting_burst(devices) => VERSION_OF_BURSTS,
        (true, true) => VERSION_OF_DISKS,
        (true, false) => VERSION_OF_NICS,
        (false, _) => VERSION_OF_GROUPS,
    };
    let fields = disks.iter().map(Told::since).chain(nics.iter().map(Told::since));
    let version = fields.chain(groups.iter().map(Told::since)).fold(kinds, u64::max);
    let (disks, nics, groups) = (said(disks), said(nics), said(groups));
    let images = images.as_deref();
    let format = FORMAT;
    let saved = Saved { format, version, disks, switches, nics, groups, stages, images };
    let mut text = serde_json::to_string_pretty(&saved).unwrap_or_default();
    text.push('\n');
    text
}

/// The specs without fields of newer forms that are as usual: a program that does not know one reads the rest.
fn said<S: Told + Serialize>(specs: &[S]) -> Vec<Value> {
    let usual = serde_json::to_value(S::usual()).unwrap_or_default();
    let said = |spec: &S| {
        let mut value = serde_json::to_value(spec).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            let is_older = |name: &str| !S::SINCE.contains(&name);
            fields.retain(|name, field| is_older(name) || usual.get(name) != Some(field));
        }
        value
    };
    specs.iter().map(said).collect()
}

/// Whether something has a burst that waits for a limit: a program that does not know that refuses it.
fn has_waiting_burst(Devices { disks, nics, groups, .. }: &Devices) -> bool {
    let disks = disks
        .iter()
        .map(|disk| (disk.limit_burst_ms, disk.limit_bytes.is_some() || disk.limit_iops.is_some()));
    let nics = nics
        .iter()
        .map(|nic| (nic.limit_burst_ms, nic.limit_bytes.is_some() || nic.limit_packets.is_some()));
    let groups = groups.iter().map(|group| {
        let rates = [group.limit_iops, group.limit_packets];
        (group.limit_burst_ms, group.limit_bytes.is_some() || rates.iter().any(Option::is_some))
    });
    disks.chain(nics).chain(groups).any(|(burst, is_limited)| burst.is_some() && !is_limited)
}

/// The devices of a kept text.
pub fn read(text: &str) -> Result<Devices, SavedError> {
    let damaged = |what: &str| Err(SavedError::Damaged(what.to_string()));
    let mut value: Value =
        serde_json::from_str(text).map_err(|e| SavedError::Damaged(e.to_string()))?;
    if value["format"] != FORMAT {
        return Err(SavedError::NotOurs);
    }
    match value["version"].as_u64() {
        Some(VERSION_OF_DISKS..=VERSION) => {}
        Some(found) if found > VERSION => return Err(SavedError::Newer { found }),
        _ => return damaged("`version` is missing or no version"),
    }
    if value["disks"].is_null() {
        return damaged("`disks` is not a list");
    }
    // Disks had it as NICs have, for an option that is deleted: it does nothing.
    for disk in value["disks"].as_array_mut().into_iter().flatten() {
        disk.as_object_mut().and_then(|fields| fields.remove("qmp"));
    }
    Ok(Devices {
        disks: list(&mut value, "disks", "disk", DISKS_MAX)?,
        switches: list(&mut value, "switches", "switch", SWITCHES_MAX)?,
        nics: list(&mut value, "nics", "nic", NICS_MAX)?,
        groups: list(&mut value, "groups", "group", GROUPS_MAX)?,
        stages: stages(&mut value)?,
        images: images(&mut value)?,
    })
}

/// What commands have added, each as a command may: a fault that was meant for some bytes must not become one of all.
fn stages(value: &mut Value) -> Result<Vec<DiskStages>, SavedError> {
    let stages: Vec<DiskStages> = list(value, "stages", "stage", DISKS_MAX)?;
    for (index, kept) in stages.iter().enumerate() {
        let at = Path::item("stage", index).key("stage");
        let mistakes = wrong_with_kept(&kept.stage, &at);
        if !mistakes.is_empty() {
            return Err(damaged_by(&mistakes));
        }
    }
    Ok(stages)
}

/// The images that were there, if that was written.
fn images(value: &mut Value) -> Result<Option<Vec<String>>, SavedError> {
    let Some(images) = value.get_mut("images").map(Value::take) else { return Ok(None) };
    let damaged = || SavedError::Damaged("`images` is not a list of paths".to_string());
    let images: Vec<String> = serde_json::from_value(images).map_err(|_| damaged())?;
    let is_path = |path: &String| path.starts_with('/') && path.len() <= PATH_BYTES_MAX;
    match images.len() <= DISKS_MAX && images.iter().all(is_path) {
        true => Ok(Some(images)),
        false => Err(damaged()),
    }
}

/// One list of the file; `kind` is what its items are called in messages. One that is not there is
/// empty.
fn list<T: JsonSchema + DeserializeOwned + 'static>(
    value: &mut Value,
    name: &str,
    kind: &str,
    most: usize,
) -> Result<Vec<T>, SavedError> {
    let items = match value.get_mut(name).map(Value::take) {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(SavedError::Damaged(format!("`{name}` is not a list"))),
    };
    if items.len() > most {
        return Err(SavedError::Damaged(format!("{} {name} are too many", items.len())));
    }
    let read = |(index, item)| {
        let item = schema::read(item, &Path::item(kind, index), schema::Written::Json);
        item.map_err(|mistakes: Vec<Mistake>| damaged_by(&mistakes))
    };
    items.into_iter().enumerate().map(read).collect()
}

fn damaged_by(mistakes: &[Mistake]) -> SavedError {
    let all: Vec<String> = mistakes.iter().map(Mistake::to_string).collect();
    SavedError::Damaged(all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Format;

    fn disk() -> DiskSpec {
        DiskSpec { path: Some("/a.img".into()), readonly: true, ..DiskSpec::new("a") }
    }

    #[test]
    fn what_is_written_reads_back() {
        let disks = Devices { disks: vec![disk(), DiskSpec::new("b")], ..Devices::default() };
        let all = Devices {
            switches: vec![SwitchSpec {
                uplink: vec!["tap=lan0,trunk=10+20,native=1".parse().unwrap()],
                ..SwitchSpec::new("lan")
            }],
            nics: vec![NicSpec { switch: Some("lan".into()), ..NicSpec::new("n") }],
            ..disks.clone()
        };
        let groups = vec![GroupSpec { limit_iops: Some(7), ..GroupSpec::default() }];
        let grouped = Devices { groups, ..all.clone() };
        let waits = GroupSpec { limit_burst_ms: Some(20), ..GroupSpec::default() };
        let burst = Devices { groups: vec![waits], ..all.clone() };
        let calls = |us| NicSpec { moderate_us: Some(us), ..NicSpec::new("n") };
        let rare = Devices { nics: vec![calls(50)], ..Devices::default() };
        let each = Devices { nics: vec![calls(0)], ..Devices::default() };
        let moves = DiskSpec { migratable: true, ..DiskSpec::new("m") };
        let moves = Devices { disks: vec![moves], ..Devices::default() };
        let fails = DiskSpec { block_size: Some(4096), ..DiskSpec::new("f") };
        let fails = Devices { disks: vec![fails], ..Devices::default() };
        let asks = NicSpec { qmp: Some("/q".into()), ..NicSpec::new("q") };
        let asks = Devices { nics: vec![asks], ..Devices::default() };
        let owned = |nic| NicSpec { socket_owner: Some("u".into()), ..nic };
        let owned = Devices { nics: vec![owned(NicSpec::new("n"))], ..Devices::default() };
        let told = DiskSpec { format: Some(Format::Raw), ..disk() };
        let told = Devices { disks: vec![told], ..Devices::default() };
        let stage = vec!["trace,entries=2048".parse().unwrap()];
        let staged = DiskSpec { stage: stage.clone(), ..disk() };
        let staged = Devices { disks: vec![staged], ..Devices::default() };
        let stages = vec![DiskStages { disk: "of-the-file".into(), stage }];
        let added = Devices { stages, ..disks.clone() };
        let none = Devices::default();
        let images = Some(vec!["/a.img".to_string()]);
        let there = Devices { images, ..disks.clone() };
        for (devices, version) in [
            (disks, 1),
            (there, 1),
            (all, 2),
            (grouped, 3),
            (burst, 4),
            (rare, 4),
            (each, 4),
            (moves, 5),
            (fails, 6),
            (owned, 6),
            (asks, 4),
            (told, 6),
            (staged, 7),
            (added, 7),
            (none, 1),
        ] {
            let text = write(&devices);
            assert!(text.contains(&format!("\"version\": {version},")), "{text}");
            assert_eq!(read(&text).unwrap(), devices);
        }
    }

    #[test]
    fn the_form_of_version_1_stays_readable() {
        let text = r#"{"format":"sidecore-state","version":1,"disks":[
            {"id":"a","mode":"listen","path":"/a.img","readonly":true,"queues":1,"share":100,
             "allow_unsealed_memory":false}]}"#;
        let expected = Devices { disks: vec![disk()], ..Devices::default() };
        assert_eq!(read(text).unwrap(), expected);
        // And what has no NIC and no switch is still of that form.
        let again: Value = serde_json::from_str(&write(&expected)).unwrap();
        let (version, fields) = (&again["version"], again.as_object().unwrap().len());
        assert_eq!((version, fields), (&1.into(), 3));
    }

    #[test]
    fn a_device_of_which_nothing_new_is_said_has_no_newer_field() {
        fn check<S: Told + Serialize>() {
            let text = said(&[S::usual()]);
            assert_eq!(S::usual().since(), 1);
            let of_newer = |name: &&&str| text[0].get(name).is_some();
            assert_eq!(S::SINCE.iter().find(of_newer), None);
        }
        check::<DiskSpec>();
        check::<NicSpec>();
        check::<GroupSpec>();
        assert_eq!(VERSION, 7, "a version more is a form more: say what came with it");
    }

    #[test]
    fn a_disk_whose_guest_had_qmp_is_one_without() {
        let text = r#"{"format":"sidecore-state","version":4,"disks":[
            {"id":"a","path":"/a.img","readonly":true,"qmp":"/q"}]}"#;
        assert_eq!(read(text).unwrap().disks, [disk()]);
    }

    #[test]
    fn every_cut_of_a_state_is_refused() {
        let nics = vec![NicSpec { tap: Some("t0".into()), ..NicSpec::new("n") }];
        let text = write(&Devices { disks: vec![disk()], nics, ..Devices::default() });
        for end in 0..text.trim_end().len() {
            assert!(matches!(read(&text[..end]), Err(SavedError::Damaged(_))), "{end}");
        }
    }

    #[test]
    fn a_nic_without_receive_offloads_is_news() {
        let usual = NicSpec { tap: Some("t0".into()), ..NicSpec::new("n") };
        let finished = NicSpec { guest_offloads: false, ..usual.clone() };
        for (nic, version) in [(usual, VERSION_OF_NICS), (finished, 6)] {
            let devices = Devices { nics: vec![nic], ..Devices::default() };
            let text = write(&devices);
            assert!(text.contains(&format!("\"version\": {version}")), "{text}");
            assert_eq!(text.contains("guest_offloads"), version == 6);
            assert_eq!(read(&text).unwrap(), devices);
        }
    }

    #[test]
    fn other_states_are_refused_by_reason() {
        for (text, why) in [
            (
                "{}",
                "this is not a saved state of sidecore: `format` is not \"sidecore-state\"; put a copy of it back, or \
                 move the file away and add the disks, switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":8,"disks":[]}"#,
                "the saved state has version 8, and this program reads up to 7; install the newer \
                 program again, or move the file away and add the disks, switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":1,"disks":[{"id":"a","queues":0,"x":1}]}"#,
                "the saved state is damaged (disk[1].queues: 0 is out of bounds; `x` is not a \
                 field of disk[1]); put a copy of it back, or move the file away and add the disks, \
                 switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":2,"disks":[],"nics":[{"id":"n","mac":"x"}]}"#,
                "the saved state is damaged (nic[1].mac: \"x\" is not an Ethernet address); put a \
                 copy of it back, or move the file away and add the disks, switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":7,"disks":[],"stages":[{"disk":"a","stage":[{"kind":"x"}]}]}"#,
                "the saved state is damaged (stage[1].stage[1].kind: \"x\" is not possible here); put a copy of it \
                 back, or move the file away and add the disks, switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":7,"disks":[],"stages":[{"disk":"a","stage":[
                {"kind":"fault","delay_us":9,"ops":"x","range":"2G..1G","entries":2048}]}]}"#,
                "the saved state is damaged (stage[1].stage[1].entries: a stage \"fault\" has no `entries`; \
                 stage[1].stage[1].ops: \"x\" names no requests; stage[1].stage[1].range: \"2G..1G\" names no \
                 bytes); put a copy of it back, or move the file away and add the disks, switches, nics and groups \
                 again",
            ),
            (
                r#"{"format":"sidecore-state","version":1,"disks":[],"images":["a"]}"#,
                "the saved state is damaged (`images` is not a list of paths); put a copy of it back, or move \
                 the file away and add the disks, switches, nics and groups again",
            ),
            (
                r#"{"format":"sidecore-state","version":2,"disks":[],"nics":{}}"#,
                "the saved state is damaged (`nics` is not a list); put a copy of it back, or move \
                 the file away and add the disks, switches, nics and groups again",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), why);
        }
    }
}
