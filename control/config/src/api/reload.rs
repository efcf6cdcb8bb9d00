//! What a reload did, or would do.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::DeviceKind;

/// What a reload did, or what it would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadView {
    /// The file that was read.
    pub file: String,
    /// What was changed, in order, in words; of a dry run, what is to be done.
    pub changes: Vec<String>,
    /// What is different in the file and comes into force only when the daemon is restarted: fields by their names, and
    /// links, as `link rack`.
    pub restart_needed: Vec<String>,
    /// What became of each thing that is different.
    #[serde(default)]
    pub effects: Vec<EffectView>,
    /// Devices that are not open when it is over, or now if nothing was changed, with or without a change of theirs.
    #[serde(default)]
    pub not_open: Vec<NotOpenView>,
    /// Nothing was changed: this is what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Why a reload would refuse the file, where an upgrade does what is different: a dry run's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_needed: Option<String>,
}

/// What an upgrade took over from the file: what was different when it was asked for, as a reload would say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TakenFileView {
    /// The file.
    pub file: String,
    /// What was changed, in order, in words.
    pub changes: Vec<String>,
    /// What else came into force, which no reload does: fields by their names, and links, as `link rack`.
    pub put_into_force: Vec<String>,
    /// Why nothing is said of the file: the process before could not read it, and the new one could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_compared: Option<String>,
}

/// A device that is planned and not open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotOpenView {
    /// What it is.
    pub kind: ThingView,
    /// Its name.
    pub id: String,
    /// It is tried again by itself; if not, by the next reload.
    pub retried: bool,
    /// Why it is not open, and what to do.
    pub problem: String,
}

/// What a reload does to one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EffectView {
    /// What it is.
    pub kind: ThingView,
    /// Its name.
    pub id: String,
    /// What is done to it.
    pub action: ActionView,
    /// A guest uses it now.
    pub guest: bool,
    /// That guest loses by it: the device goes, goes and comes, or becomes smaller. Without `force`
    /// the reload is refused.
    pub guest_loses: bool,
    /// Without `force` the reload is refused for this: that guest loses, or a disk becomes longer than the whole
    /// file system of its image, or one that is opened anew is shorter than its image, or requests that wait end
    /// with an error by its resize.
    #[serde(default)]
    pub needs_force: bool,
    /// What is to be done, or what is different, in words.
    pub what: String,
}

/// Things that a file declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum ThingView {
    Disk,
    Nic,
    Switch,
    Uplink,
    Group,
    Link,
    Daemon,
}

impl From<DeviceKind> for ThingView {
    fn from(kind: DeviceKind) -> ThingView {
        match kind {
            DeviceKind::Disk => ThingView::Disk,
            DeviceKind::Nic => ThingView::Nic,
        }
    }
}

impl ThingView {
    /// As messages name it.
    pub fn word(self) -> &'static str {
        match self {
            ThingView::Disk => "disk",
            ThingView::Nic => "nic",
            ThingView::Switch => "switch",
            ThingView::Uplink => "uplink",
            ThingView::Group => "group",
            ThingView::Link => "link",
            ThingView::Daemon => "daemon",
        }
    }
}

/// What a reload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ActionView {
    /// It is made.
    Added,
    /// It goes.
    Removed,
    /// It goes and is made anew: its guest sees the device go and come.
    Remade,
    /// It is changed in place: its guest keeps it.
    Changed,
}

impl ActionView {
    /// As tables show it.
    pub fn word(self) -> &'static str {
        match self {
            ActionView::Added => "added",
            ActionView::Removed => "removed",
            ActionView::Remade => "remade",
            ActionView::Changed => "changed",
        }
    }
}

/// Whether a field of [`ReloadView::restart_needed`] is put into force by a restart alone: a process that takes over
/// listens where its predecessor did, and goes on with what that keeps. An `api_read` where there was none is made by it.
pub fn upgrade_refuses(field: &str) -> bool {
    matches!(field, "daemon.api" | "daemon.api_read" | "daemon.state_dir")
}
