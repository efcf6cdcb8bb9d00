//! What the operator wrote about disks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::told::{Change, Number, Set, Told, Written};
use super::{
    DRAIN_TIMEOUT_DEFAULT_S, Mode, OnFailure, Policy, SHARE_DEFAULT, SocketMode, StageSpec,
    usual_share,
};
use crate::size::Size;
use crate::target::Target;

told! {
    /// One disk of one guest.
    spec DiskSpec;
    /// What may be changed on a running disk. What is not named stays.
    #[schemars(extend("x-fixed" = fixed_in_a_disk()))]
    #[cfg_attr(feature = "cli", group(required = true, multiple = true))]
    change DiskChange;

    /// Name of the disk: 1 to 64 lower-case letters, digits, `-`, `_`, `.`, beginning with a letter or
    /// digit.
    id: (String) anew;
    /// Unix socket on which the VMM reaches the disk. Default: `<run_dir>/<id>.sock`.
    access;
    /// What the disk is made of. Default: `file` if there is a path, `remote` if there is a link.
    backend: Option<BackendKind> ("KIND") anew;
    /// `file`: the raw image or block device.
    path: Option<String> ("PATH") anew;
    /// `file`: the image may lie in a folder that belongs to another user than root and the daemon's, if
    /// that user owns the image: links of that user are not followed, and nothing is made there. Needless
    /// for what is in `image_folders`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_user_folder: bool anew since 6;
    /// `file`: whether the host's page cache is used. Default: `auto`.
    cache: Option<Cache> ("CACHE") anew;
    /// `file`: the format of the image, if it is said. An image that no disk has served yet, and that begins
    /// as qcow2, QED, VMDK, VHDX, VHD, VDI, Parallels, Bochs, cloop or LUKS, is refused without.
    format: Option<Format> ("FORMAT") since 6;
    /// Capacity, such as `10G` (powers of 1024); a multiple of 512 bytes. Needed for `null` and `memory`;
    /// for `file`, the image's own size if it is not given, or no longer, which then must be a multiple of 512, too. With it, an image that is shorter is made
    /// longer, and a new disk whose image is missing gets an empty one. Of a longer one its guest sees the first part
    /// alone: a new disk is refused so without `--force`, and so is one that is longer than its whole file system. An
    /// image that was there once is not made anew: its disk is `failed` until it is put back.
    size: Option<Size> ("SIZE");
    /// `remote`: the link to the machine that has the disk.
    link: Option<String> ("LINK") anew;
    /// `remote`: the disk's name there. Default: the same as here.
    remote: Option<String> ("DISK") anew;
    /// Logical block size that the guest sees, in bytes: 512, or 4096 for an image that was partitioned on a disk
    /// with such sectors. The size of the disk is a multiple of it. Default: 512; of a remote disk what its
    /// IOhost says.
    block_size: Option<u32> ("BYTES", 512..=4096, 4096) anew since 6;
    /// `file`: what becomes of a request for which there is no space (the file system, a quota or a thin pool
    /// is full): `wait` until there is some, or `error`. Default: `wait`.
    on_full: Option<OnFailure> ("WHAT") since 6,
        /// What becomes of a request for which there is no space. With `error`, those that wait end so within a
        /// second.
        set device;
    /// `file`: what becomes of a request that the medium fails: `error`, or `wait` until it is well again. A
    /// flush that fails is an error in either case: what it lost does not come back. Default: `error`.
    on_error: Option<OnFailure> ("WHAT") since 6,
        /// What becomes of a request that the medium fails.
        set device;
    /// The guest may not write.
    readonly: bool anew;
    /// Serial number that the guest sees: at most 20 printable ASCII characters. Default: the
    /// first 20 of the id, unless another disk has those.
    serial: Option<String> ("TEXT") anew;
    /// Queues offered to the guest; one for each vCPU is usual.
    // More than any guest has vCPUs that would gain from one each.
    queues: u16 ("N", 1..=64, 4) = 1 "one_queue" anew;
    /// How much of a busy core each queue gets, against the others' shares.
    share: u32 ("N", 1..=10_000, 200) = SHARE_DEFAULT "usual_share",
        /// How much of a busy core each queue gets, against the others' shares.
        set service;
    policy;
    /// Most microseconds that a request is to wait in its queue before the daemon takes it. A queue
    /// that misses this is served in the middle of other queues' turns, for which its own share pays, so
    /// nobody else gets less; with `urgency = "off"` misses are only counted. Waiting for a limit does not
    /// count. Default: no target.
    // Less than a piece of another queue's turn nobody can have.
    latency_target_us: Option<u32> ("US", 10..=1_000_000, 200, "target"),
        /// Most microseconds that a request is to wait in its queue; 0 for no target.
        set service (0..=1_000_000);
    /// Microseconds for which the call that tells the guest of a completion may wait, while at least four
    /// more of the same queue's requests are with the disk: fewer interrupts, for disks with many requests
    /// in flight. With fewer it never waits. Default: calls do not wait.
    // The sidecore is awake meanwhile.
    moderate_us: Option<u32> ("US", 1..=1000, 20, "waiting"),
        /// Microseconds for which the call that tells the guest of a completion may wait for others; 0 for no
        /// waiting.
        set service (0..=1000);
    /// Most requests a second of all its queues together. Default: no limit.
    limit_iops: Option<u32> ("N", 1..=1_000_000_000, 5000, "limit"),
        /// Most requests a second of all its queues together; 0 for no limit.
        set service (0..=1_000_000_000);
    /// Most bytes a second, read and written, of all its queues together: `4K` or more (powers of 1024).
    /// Default: no limit.
    limit_bytes: Option<Size> ("SIZE"),
        /// Most bytes a second, read and written, of all its queues together (K, M, G, T: powers of 1024); 0
        /// for no limit.
        set service;
    /// What may be used at once after a pause, as milliseconds of the full limit. A request
    /// that is larger is served whole, and those after it wait until it is earned. Default: 100.
    // With less, a sidecore that wakes late would lose allowance.
    limit_burst_ms: Option<u32> ("MS", 4..=60_000, 100),
        /// What may be used at once after a pause, as milliseconds of the full limit. It stays when the limit
        /// is taken away, for the next one, also over a restart.
        set service;
    group;
    allow_unsealed_memory;
    /// Its guest may move to another daemon, on this host or another: the image is locked only while
    /// a guest here runs on it, so that two daemons can have the disk and one at a time uses it. For a
    /// file or block device that both can reach; a `memory` disk stays where it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    migratable: bool anew since 5;
    /// Seconds that a front-end that stops a queue waits for requests that the disk does not answer;
    /// then its connection is closed, and the disk serves nobody before it has answered.
    drain_timeout: u32 ("SECONDS", 1..=86_400, 30) = DRAIN_TIMEOUT_DEFAULT_S "usual_drain_timeout";
    /// What is done to its requests on their way, in their order; each is a table `[[disk.stage]]`, and on the
    /// command line a text such as `trace,entries=8192`. `sidecore disk stage` adds, changes and removes them while the
    /// disk runs.
    stage: Vec<StageSpec> ("STAGE") since 7;
}

/// What a running disk keeps, and why, by the names of the fields. The schema of [`DiskChange`] carries it, for
/// whoever tries.
pub fn fixed_in_a_disk() -> serde_json::Value {
    let anew =
        "remove the disk and add it again; one that the file declares: change it there and reload";
    serde_json::json!({
        "id": "a disk keeps its name: remove it and add another",
        "size": "`sidecore disk resize` gives it another one",
        "backend": anew, "path": anew, "allow_user_folder": anew, "cache": anew, "format": anew,
        "link": anew, "remote": anew, "block_size": anew, "readonly": anew, "serial": anew,
        "queues": anew, "migratable": anew, "socket": anew, "mode": anew,
        "allow_unsealed_memory": anew, "drain_timeout": anew,
        "stage": "`sidecore disk stage` adds, changes and removes them",
    })
}

impl DiskSpec {
    /// A disk of that name with every default.
    pub fn new(id: &str) -> DiskSpec {
        DiskSpec {
            id: id.to_string(),
            queues: 1,
            share: SHARE_DEFAULT,
            drain_timeout: DRAIN_TIMEOUT_DEFAULT_S,
            ..DiskSpec::default()
        }
    }
}

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Answers at once and keeps nothing: measures the path itself.
    Null,
    /// Sparse memory of the daemon; gone with it.
    Memory,
    /// A raw image or a block device.
    File,
    /// A disk of another machine, by a link.
    Remote,
}

/// Whether the host's page cache is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Past the page cache where the file system can do that, otherwise through it.
    #[default]
    Auto,
    /// Past the page cache (`O_DIRECT`); refused where that does not work.
    Direct,
    /// Through the page cache.
    Page,
}

/// How the bytes of an image are a disk's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One by one, whatever the image begins with.
    Raw,
}

/// A new capacity for a running disk. The guest is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskResize {
    /// The new capacity; a multiple of 512 bytes.
    pub size: Size,
}

/// Another sidecore for queues of a disk, while they run. They stay there, whatever the loads, until they
/// are moved again, are let go (`auto`), or their front-end starts them anew; meanwhile that sidecore is not
/// parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[serde(deny_unknown_fields)]
pub struct DiskMove {
    /// Number of the sidecore to move to; `auto`: stay for now, and be moved by the loads again.
    #[cfg_attr(feature = "cli", arg(long, value_name = "SIDECORE"))]
    pub to: Target,
    /// The queue to move. Without it, all that are served.
    #[cfg_attr(feature = "cli", arg(long, value_name = "QUEUE",
        value_parser = crate::number::of::<u16>("queue", 0..=65_535)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u16>,
}

fn one_queue() -> u16 {
    1
}

fn usual_drain_timeout() -> u32 {
    DRAIN_TIMEOUT_DEFAULT_S
}

words! {
    BackendKind { Null => "null", Memory => "memory", File => "file", Remote => "remote" }
    Cache { Auto => "auto", Direct => "direct", Page => "page" }
}
