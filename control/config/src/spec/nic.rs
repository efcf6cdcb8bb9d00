//! What the operator wrote about NICs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{Change, Number, Set, Told, Written};
use super::{MTU_DEFAULT, Mode, Policy, SHARE_DEFAULT, SocketMode, Spoof, Via, usual_share};
use crate::mac::Mac;
use crate::size::Size;
use crate::target::Target;

told! {
    /// One network card of one guest.
    spec NicSpec;
    /// What may be changed on a running NIC. What is not named stays; everything else a guest learns when
    /// it connects.
    #[schemars(extend("x-fixed" = fixed_in_a_nic()))]
    change NicChange;

    /// Name of the NIC: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit. No disk has the same.
    id: (String) anew;
    /// The switch that it is a port of. A NIC has one of `switch`, `tap`, `interface`, `by_link` and `null`.
    switch: Option<String> ("ID") anew;
    /// The tap interface that it is wired to. It is made if it is not there; what was made is removed
    /// with the NIC, and stays when the daemon stops; a start removes what no port leads to any more.
    tap: Option<String> ("NAME") anew;
    /// The interface of this host whose network it is wired to.
    interface: Option<String> ("NAME") anew;
    /// `interface`: how frames come from it and go to it. Default: `packet`.
    via: Option<Via> ("VIA") anew;
    /// The link with whose IOhost it is: there it is a port of a switch, an `uplink` with `remote`.
    by_link: Option<String> ("LINK") anew;
    /// `by_link`: its name there. Default: its name here.
    remote: Option<String> ("NAME") anew;
    /// Nothing is behind it: for measuring.
    null: Option<NullKind> ("KIND") anew;
    /// `null = "generate"`: bytes of each frame, from 60 to the MTU and 14. Default: 60.
    size: Option<u32> ("BYTES", 60..=65_549, 1514) anew;
    /// `null = "generate"`: frames a second. Default: 0, as many as the guest takes.
    rate: Option<u32> ("N", 0..=4_294_967_295_u32, 100_000) anew;
    /// Its Ethernet address. Default: made from the id (`by_link`: from its name there), always the same for one; so
    /// write it where two hosts of one network have NICs of the same name.
    mac: Option<Mac> ("MAC") anew;
    /// `switch`: its frames have no tag, and are of this VLAN. Without `vlan` and `trunk`, it reaches
    /// only ports without them; while no port of the switch has either, tags pass as they are.
    vlan: Option<u16> ("N", 1..=4094, 10),
        /// Its frames have no tag, and are of this VLAN; 0 takes every rule about VLANs away.
        set device (0..=4094);
    /// `switch`: its frames carry the tag of one of these VLANs.
    trunk: Option<Vec<u16>> ("N,N...", 1..=4094),
        /// Its frames carry the tag of one of these VLANs.
        set device;
    /// With `trunk`: frames without a tag are of this VLAN.
    native: Option<u16> ("N", 1..=4094, 1),
        /// With `trunk`: frames without a tag are of this VLAN.
        set device;
    /// `switch`: addresses that the guest may use. Frames from more are dropped. Default: 1024.
    macs_max: Option<u16> ("N", 1..=32_768, 256),
        /// Addresses that the guest may use. Frames from more are dropped.
        set device;
    /// `switch`: whether the guest may send from other addresses than the NIC's own. Default: `allow`.
    spoof: Option<Spoof> ("RULE"),
        /// Whether the guest may send from other addresses than the NIC's own.
        set device;
    /// Queue pairs offered to the guest, each to receive and to transmit; one for each vCPU is
    /// usual.
    queues: u16 ("N", 1..=16, 4) = 1 "one_pair" anew;
    /// Largest IP packet, in bytes; `by_link`: up to 9000, whatever the link's own is. The guest is told.
    mtu: u16 ("BYTES", 68..=65_535, 9000) = MTU_DEFAULT "usual_mtu" anew;
    /// Whether its cable is in when it is made. `sidecore nic link` changes it while it runs.
    link: Carrier ("STATE");
    /// Whether the guest is offered frames that are not cut and have no checksum yet (`GUEST_CSUM`, `GUEST_TSO4`,
    /// `GUEST_TSO6`, `GUEST_ECN`, `GUEST_USO4`, `GUEST_USO6`). `false` costs throughput, and is for a guest that
    /// attaches XDP or looks at frames with a program that cannot take such ones: the daemon finishes every frame.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set))]
    guest_offloads: (bool) anew since 6;
    /// Unix socket on which the VMM reaches the NIC. Default: `<run_dir>/<id>.sock`.
    access;
    /// How much of a busy core each transmit queue gets, against the others' shares.
    share: u32 ("N", 1..=10_000, 200) = SHARE_DEFAULT "usual_share",
        /// How much of a busy core each transmit queue gets, against the others' shares.
        set service;
    policy;
    /// Most microseconds that a request is to wait in its queue before the daemon takes it, for its
    /// transmit queues. A queue that misses this is served in the middle of other queues' turns, for which its own share pays, so
    /// nobody else gets less; with `urgency = "off"` misses are only counted. Waiting for a limit does not
    /// count. Default: no target.
    latency_target_us: Option<u32> ("US", 10..=1_000_000, 200, "target"),
        /// Most microseconds that a request is to wait in its queue, for transmit queues; 0 for no target.
        set service (0..=1_000_000);
    /// Microseconds for which the call that tells the guest of frames it sent may wait after the last time
    /// when it was asked whether it wants one: fewer interrupts for guests that send much. A frame after a
    /// pause is told of at once, the last ones as soon as the queue is polled no longer, and what is received
    /// always at once. A guest that waits for room in its ring or its socket may wait as long (and a turn of
    /// the sidecore). 0 for no waiting. Default: 64.
    moderate_us: Option<u32> ("US", 0..=1000, 20, "waiting") since 4,
        /// Microseconds for which the call that tells the guest of frames it sent may wait after the one before;
        /// 0 for no waiting.
        set service;
    /// When a frame for the guest goes to another of its queues than its flow's own, because the vCPU that
    /// this one interrupts has no core; with two `queues` or more. Frames of a flow stay in order. Default:
    /// `off`.
    redirect: Option<Redirect> ("WHEN") since 4,
        /// When a frame for the guest goes to another of its queues than its flow's own.
        set service;
    /// The vCPU that each queue pair interrupts, from the first pair on. Default: pair 0 vCPU 0, pair 1
    /// vCPU 1, as Linux guests do with as many queues as vCPUs.
    vcpus: Option<Vec<u16>> ("N,N...", 0..=65_535) since 4,
        /// The vCPU that each queue pair interrupts, from the first pair on; of those that are not named pair 0 has
        /// vCPU 0, pair 1 vCPU 1.
        set service;
    qmp;
    /// Most packets a second that all its queues together send, and as many that they receive: each way
    /// has an allowance of its own. A packet is what the guest's ring carries, up to 64 KiB with
    /// offloads. What the guest sends beyond it waits in its ring; what is sent to it is dropped, and
    /// counted as `over_limit`. Default: no limit.
    limit_packets: Option<u32> ("N", 1..=1_000_000_000, 100_000, "limit"),
        /// Most packets a second that all its queues together send, and as many that they receive; 0 for no
        /// limit.
        set service (0..=1_000_000_000);
    /// Most bytes a second that all its queues together send, and as many that they receive, with
    /// Ethernet headers: `4K` or more (powers of 1024). Default: no limit.
    limit_bytes: Option<Size> ("SIZE"),
        /// Most bytes a second that all its queues together send, and as many that they receive (K, M,
        /// G, T: powers of 1024); 0 for no limit.
        set service;
    /// What may be used at once after a pause, as milliseconds of the full limit. A frame
    /// that is larger passes whole, and those after it wait until it is earned. Default: 100.
    limit_burst_ms: Option<u32> ("MS", 4..=60_000, 100),
        /// What may be used at once after a pause, as milliseconds of the full limit. It stays when the limit
        /// is taken away, for the next one, also over a restart.
        set service;
    group;
    allow_unsealed_memory;
}

impl NicSpec {
    /// A NIC of that name with every default, connected to nothing yet.
    pub fn new(id: &str) -> NicSpec {
        NicSpec {
            id: id.to_string(),
            queues: 1,
            mtu: MTU_DEFAULT,
            guest_offloads: true,
            share: SHARE_DEFAULT,
            ..NicSpec::default()
        }
    }
}

/// What a NIC that is connected to nothing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum NullKind {
    /// What the guest sends goes nowhere.
    Drop,
    /// What the guest sends comes back, its two addresses swapped.
    Echo,
    /// Frames come by themselves; what the guest sends goes nowhere.
    Generate,
}

/// When a frame goes to another queue than its flow's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Redirect {
    /// When that one's vCPU waits for a core. One that its guest has halted is woken.
    Auto,
    /// Whenever that one's vCPU has no core, also when it is halted.
    Always,
    /// Never.
    #[default]
    Off,
}

/// Whether a NIC's cable is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
// The API's word for it.
#[schemars(rename = "LinkState")]
pub enum Carrier {
    /// It is: frames pass.
    #[default]
    Up,
    /// It is not: frames are dropped, and the guest sees no carrier.
    Down,
}

/// What a running NIC keeps, and why, by the names of the fields. The schema of [`NicChange`] carries it,
/// for whoever tries.
pub fn fixed_in_a_nic() -> serde_json::Value {
    let told = "a guest learns it when it connects: remove the nic and add it again; one that the file declares: \
                change it there and reload";
    let place = "it is where the nic is plugged in: remove the nic and add it again; one that the file declares: \
                 change it there and reload";
    let link = "`sidecore nic link` takes the cable out and puts it in";
    serde_json::json!({
        "id": "a nic keeps its name: remove it and add another",
        "mtu": told, "mac": told, "queues": told, "socket": told, "mode": told,
        "allow_unsealed_memory": told, "guest_offloads": told,
        "switch": place, "tap": place, "interface": place, "via": place, "null": place,
        "by_link": place, "remote": place,
        "size": place, "rate": place,
        "link": link,
    })
}

/// A NIC's cable, taken out or put in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkChange {
    /// Whether it is in from now on.
    pub link: Carrier,
}

/// Another sidecore for a NIC of a switch, with all its queues, while they run. It stays there, whatever the
/// loads, until it is moved again, is let go (`auto`), or its front-end goes; meanwhile that sidecore is not
/// parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct NicMove {
    /// Number of the sidecore to move to; `auto`: stay for now, and be moved by the loads again.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIDECORE"))]
    pub to: Target,
}

fn yes() -> bool {
    true
}

/// Not written where it says nothing, so that an older daemon reads what this one has saved.
fn is_yes(said: &bool) -> bool {
    *said
}

fn one_pair() -> u16 {
    1
}

fn usual_mtu() -> u16 {
    MTU_DEFAULT
}

words! {
    NullKind { Drop => "drop", Echo => "echo", Generate => "generate" }
    Carrier { Up => "up", Down => "down" }
    Redirect { Auto => "auto", Always => "always", Off => "off" }
}
