//! NICs and switches as the API shows them.
//!
//! A frame is *taken* from a port (its guest sent it, or it came from outside) and *delivered* to
//! others; each port counts both ways, and drops by their reason.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{AccessView, HeldView, NicServiceView, RunStateView};
use crate::mac::Mac;
use crate::spec::{Carrier, NullKind, Spoof, Via};

/// Every NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NicList {
    /// The NICs, in the order they were declared; without their queues.
    pub nics: Vec<NicView>,
}

/// One NIC as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NicView {
    /// Its name.
    pub id: String,
    /// Where it was declared: `api`, or the file and line.
    pub declared: String,
    /// How far it is.
    pub state: NicState,
    /// Why it does not serve, if something is wrong: what happened and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether frames pass: its cable is in, and the tap or interface that it is wired to is up. Its guest sees a
    /// carrier as long as its cable is in.
    pub link: Carrier,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The switch that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// The tap interface that it is wired to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tap: Option<String>,
    /// The interface of this host that it is wired to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How frames come from that interface and go to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<Via>,
    /// The link by whose IOhost it is a port of a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_link: Option<String>,
    /// Its name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// What it does when it is connected to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub null: Option<NullKind>,
    /// Which frames it has.
    #[serde(flatten)]
    pub vlans: VlanView,
    /// Addresses that its guest may use.
    pub macs_max: u16,
    /// Whether its guest may use others than its own.
    #[serde(default)]
    pub spoof: Spoof,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Its socket.
    #[serde(flatten)]
    pub access: AccessView,
    /// Whether its guest is offered frames that are not cut and have no checksum yet.
    #[serde(default = "yes")]
    pub guest_offloads: bool,
    /// Queue pairs offered: `queues` of the file.
    #[serde(alias = "queues_max")]
    pub queue_pairs_max: u16,
    /// Queues that a sidecore serves now: of each queue pair one receives and one transmits.
    pub queues_attached: u16,
    /// How its queues are served.
    #[serde(flatten)]
    pub service: NicServiceView,
    /// Memory that is not sealed against shrinking is accepted.
    pub allow_unsealed_memory: bool,
    /// The sidecore that has all of its queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecore: Option<u16>,
    /// An operator moved it there: it stays, whatever the loads, until it is moved again, let go, or its
    /// front-end goes.
    #[serde(default)]
    pub by_hand: bool,
    /// What its transmit queues waited for limits, all together.
    #[serde(flatten)]
    pub held: HeldView,
    /// The vCPUs of its guest, and where frames went by what they did; absent where they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_state: Option<RunStateView>,
    /// What its port did.
    pub counters: PortCountersView,
    /// What the other end of its wire did; absent on a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PortCountersView>,
    /// Its queues that are or were set up; absent in a list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<NicQueueView>,
}

impl NicView {
    /// Queue pairs of which a sidecore serves a queue now.
    pub fn queue_pairs_attached(&self) -> u16 {
        self.queues_attached.div_ceil(2)
    }
}

/// Which frames a port has. None of the three is there when tags pass as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VlanView {
    /// Its frames have no tag, and are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Its frames carry the tag of one of these VLANs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<Vec<u16>>,
    /// With `trunk`: frames without a tag are of this VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<u16>,
}

/// As in the configuration.
impl From<&crate::plan::VlanPlan> for VlanView {
    fn from(plan: &crate::plan::VlanPlan) -> VlanView {
        use crate::plan::VlanPlan;
        match plan {
            VlanPlan::None => VlanView::default(),
            VlanPlan::Access(vlan) => VlanView { vlan: Some(*vlan), ..VlanView::default() },
            VlanPlan::Trunk { native, allowed } => {
                VlanView { vlan: None, trunk: Some(allowed.clone()), native: *native }
            }
        }
    }
}

/// How far a NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NicState {
    /// No front-end is connected.
    Waiting,
    /// A front-end is connected; no queue runs.
    Connected,
    /// At least one queue runs.
    Running,
    /// A queue or the session broke the rules, or what it is wired to is gone or, by a link, not given: its frames are
    /// lost; see `problem`.
    Failed,
}

impl NicState {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            NicState::Waiting => "waiting",
            NicState::Connected => "connected",
            NicState::Running => "running",
            NicState::Failed => "failed",
        }
    }
}

/// One queue of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NicQueueView {
    /// Its number: 2p receives and 2p + 1 transmits for queue pair p.
    pub index: u16,
    /// The sidecore that serves it; absent while none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecore: Option<u16>,
    /// What it took of that sidecore's time at the last look, in percent.
    #[serde(default)]
    pub busy_percent: u32,
    /// Entries of its ring.
    pub size: u16,
    /// `split` or `packed`.
    pub format: String,
    /// The first rule that its driver broke; it is not served since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
    /// Kicks: guest to us.
    pub kicks: u64,
    /// Calls: us to guest.
    pub calls: u64,
    /// Turns in the sidecore's loop.
    pub visits: u64,
    /// Frames that waited in a transmit queue for longer than its latency target, at most: counted by
    /// when the ring was looked at before.
    #[serde(default)]
    pub missed: u64,
    /// What it waited for limits; a receive queue waits for none.
    #[serde(flatten)]
    pub held: HeldView,
}

/// What a port did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortCountersView {
    /// Frames taken from it: what its guest sent, or what came from outside.
    pub taken_frames: u64,
    /// Their bytes, with the Ethernet header.
    pub taken_bytes: u64,
    /// Those to a multicast address, or to all.
    pub taken_multicast: u64,
    /// Frames delivered to it.
    pub delivered_frames: u64,
    /// Their bytes, with the Ethernet header.
    pub delivered_bytes: u64,
    /// Those to a multicast address, or to all.
    pub delivered_multicast: u64,
    /// Frames that had to be cut or summed for it, since it lacks an offload.
    pub slow_frames: u64,
    /// Frames that went nowhere, for whatever reason; the sum of `drops`.
    pub dropped_frames: u64,
    /// The same by reason; reasons that never happened are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drops: Vec<DropView>,
}

/// Frames that went nowhere for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DropView {
    /// The reason's name.
    pub reason: String,
    /// How many.
    pub frames: u64,
    /// What it means.
    pub means: String,
}

/// Every switch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchList {
    /// The switches, in the order they were declared; without their table of addresses.
    pub switches: Vec<SwitchView>,
}

/// One switch as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SwitchView {
    /// Its name.
    pub id: String,
    /// Where it was declared: `api`, or the file and line.
    pub declared: String,
    /// What is wrong with it, if something is: what happened and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Seconds for which an address is remembered.
    pub ageing_s: u32,
    /// Addresses that are remembered at most.
    pub macs_max: u16,
    /// Its ports: uplinks, then NICs.
    pub ports: Vec<PortView>,
    /// Its table of addresses; absent in a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macs: Option<Vec<MacView>>,
}

/// One port of a switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortView {
    /// The NIC's name, or the interface's.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Whether frames pass: a NIC's cable is in, an uplink's interface is open, and up.
    pub link: Carrier,
    /// Why no frames pass, if something is wrong; or what a tap has lost that was removed and made again, until a reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Which frames it has.
    #[serde(flatten)]
    pub vlans: VlanView,
    /// The sidecore that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecore: Option<u16>,
    /// How it is served, in words, once it is open: such as `tap`, `packet`, `xdp, zero-copy`, `link`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_as: Option<String>,
    /// What it did.
    pub counters: PortCountersView,
}

/// What a port of a switch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// A guest's.
    Nic,
    /// A tap interface of this host.
    Tap,
    /// Another interface of this host.
    Interface,
    /// A NIC of another machine's guest.
    Remote,
}

impl PortKind {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            PortKind::Nic => "nic",
            PortKind::Tap => "tap",
            PortKind::Interface => "interface",
            PortKind::Remote => "remote",
        }
    }
}

/// Where a switch knows an address to be: a NIC's own, or one from which a port has sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MacView {
    /// The address. A broken guest may send from any.
    pub mac: String,
    /// Its VLAN; absent where tags pass as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The port's name.
    pub port: String,
    /// Seconds since it was last seen; 0 for a NIC's own, which is known always.
    pub age_s: u64,
}

fn yes() -> bool {
    true
}
