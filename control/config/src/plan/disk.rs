//! One disk: resolved from its spec, and compared with its neighbours.

use super::defaults::{Defaults, check_link};
use super::names::{self, Named, Origin, PATH_MAX, absolute_file, shorten};
use super::rights::Written;
use super::service::ServicePlan;
use super::stages::{self, StagesPlan};
use crate::mistake::{Mistake, Path};
use crate::size::Size;
use crate::spec::{BackendKind, Cache, DiskSpec, Format, Mode, OnFailure, SocketRights};
use crate::word::Word;

/// Longest serial number, in bytes (VIRTIO 1.2, 5.2.6: VIRTIO_BLK_ID_BYTES).
const SERIAL_MAX: usize = 20;
/// What a capacity is a multiple of, in bytes (VIRTIO 1.2, 5.2.4).
const SECTOR_BYTES: u64 = 512;

/// What a disk is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Answers at once.
    Null {
        /// Capacity, in bytes.
        size_bytes: u64,
    },
    /// The daemon's memory.
    Memory {
        /// Capacity, in bytes.
        size_bytes: u64,
    },
    /// A raw image or a block device.
    File {
        /// Its absolute path.
        path: String,
        /// Capacity, in bytes; the image's own if nothing.
        size_bytes: Option<u64>,
        /// Whether the host's page cache is used.
        cache: Cache,
    },
    /// A disk of another machine, whose size is known when that answers.
    Remote {
        /// The link, which is of the plan.
        link: String,
        /// The disk's name there.
        name: String,
    },
}

impl Source {
    /// What sort it is.
    pub fn kind(&self) -> BackendKind {
        match self {
            Source::Null { .. } => BackendKind::Null,
            Source::Memory { .. } => BackendKind::Memory,
            Source::File { .. } => BackendKind::File,
            Source::Remote { .. } => BackendKind::Remote,
        }
    }

    /// The capacity asked for, in bytes.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Source::Null { size_bytes } | Source::Memory { size_bytes } => Some(*size_bytes),
            Source::File { size_bytes, .. } => *size_bytes,
            Source::Remote { .. } => None,
        }
    }

    /// The link to the machine that has it, and its name there.
    pub fn remote(&self) -> Option<(&str, &str)> {
        match self {
            Source::Remote { link, name } => Some((link, name)),
            _ => None,
        }
    }

    /// The image or block device.
    pub fn path(&self) -> Option<&str> {
        match self {
            Source::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// One disk, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// Its name.
    pub id: String,
    /// Where it was declared.
    pub origin: Origin,
    /// Its socket: an absolute path of at most [`SOCKET_PATH_MAX`] bytes.
    pub socket: String,
    /// Who opens the socket.
    pub mode: Mode,
    /// Who may open it, in mode `listen`.
    pub rights: SocketRights,
    /// What it is made of.
    pub source: Source,
    /// The format of its image, if that is said.
    pub format: Option<Format>,
    /// The guest may not write.
    pub readonly: bool,
    /// At most 20 printable ASCII characters.
    pub serial: String,
    /// 1 to 64.
    pub queues: u16,
    /// How its queues are served.
    pub service: ServicePlan,
    /// Its image may lie in a folder of another user, who owns it.
    pub user_folder: bool,
    /// Memory that is not sealed against shrinking is accepted.
    pub allow_unsealed_memory: bool,
    /// Its image is locked only while a guest here runs on it.
    pub migratable: bool,
    /// Seconds that a front-end waits for requests that the disk does not answer, 1 to 86,400.
    pub drain_timeout_s: u32,
    /// Logical block size, 512 or 4096; `None`: that of its IOhost, or 512.
    pub block_size: Option<u32>,
    /// What becomes of requests for which there is no space.
    pub on_full: OnFailure,
    /// What becomes of requests that the medium fails.
    pub on_error: OnFailure,
    /// What is done to its requests on their way.
    pub stages: StagesPlan,
    /// What was written; with it the disk is saved, and planned again.
    pub spec: DiskSpec,
}

impl DiskPlan {
    /// The serial number as virtio-blk gives it: padded with zeroes.
    pub fn serial_bytes(&self) -> [u8; SERIAL_MAX] {
        let mut padded = [0; SERIAL_MAX];
        for (to, from) in padded.iter_mut().zip(self.serial.bytes()) {
            *to = from;
        }
        padded
    }

    /// Notes another capacity, in bytes, as it will be kept.
    pub fn resized(&mut self, bytes: u64) {
        match &mut self.source {
            Source::Null { size_bytes } | Source::Memory { size_bytes } => *size_bytes = bytes,
            Source::File { size_bytes, .. } => *size_bytes = Some(bytes),
            // Its size is the other machine's.
            Source::Remote { .. } => return,
        }
        self.spec.size = Some(Size(bytes));
    }

    /// What commands have added is what is kept of a disk of the API.
    pub(super) fn keep_stages(&mut self) {
        if self.origin == Origin::Api {
            self.spec.stage = self.stages.by_command();
        }
    }

    /// Has the stages that commands have made of `other` since, a plan of the same disk that has not come about.
    pub fn follow_stages(&mut self, other: &DiskPlan) {
        self.stages.follow(&other.stages);
        self.keep_stages();
    }

    /// By each field's name what it is that a running disk follows, as a list of changes says it.
    pub(crate) fn in_words(&self) -> Vec<(&'static str, Word)> {
        let DiskPlan { on_full, on_error, drain_timeout_s, format, .. } = self;
        let mut words = self.service.in_words();
        words.extend([
            ("on_full", Word::of(on_full)),
            ("on_error", Word::of(on_error)),
            ("drain_timeout", Word::of(drain_timeout_s)),
            ("format", Word::or(format.map(|Format::Raw| "raw"), "not said")),
        ]);
        words.extend(self.stages.in_words());
        words
    }

    /// Whether its serial number is the beginning of its name, and so may be that of another disk.
    fn has_cut_serial(&self) -> bool {
        self.spec.serial.is_none() && self.serial.len() < self.id.len()
    }

    /// Refuses the serial number of another disk where nobody chose it: a guest that has both finds its disks by it.
    pub(super) fn check_serial(&self, other: &DiskPlan, at: &Path, mistakes: &mut Vec<Mistake>) {
        if self.serial != other.serial || !(self.has_cut_serial() || other.has_cut_serial()) {
            return;
        }
        let serial = &self.serial;
        let wrong = format!("without `serial`, {serial:?} is that of {} too", other.named().text());
        let right =
            "name a `serial` of at most 20 letters: a guest with both could not tell them apart";
        mistakes.push(Mistake::new(at.key("serial"), wrong, right));
    }

    /// As its neighbours see it.
    pub(super) fn named(&self) -> Named<'_> {
        let (id, origin) = (self.id.as_str(), &self.origin);
        Named { kind: "disk", id, origin, socket: Some(&self.socket) }
    }

    /// What this disk cannot share with other disks besides name and socket: an image that one of
    /// both writes.
    pub(super) fn clashes(&self, others: &[&DiskPlan], at: &Path, mistakes: &mut Vec<Mistake>) {
        let is_remote = matches!(self.source, Source::Remote { .. });
        // One of each: of what a thousand have, a thousand mistakes would be a million.
        let mut them = others.iter().filter(|other| other.id != self.id);
        if let Some(other) = them.find(|other| is_remote && other.source == self.source) {
            let wrong = format!("the disk there is already that of {}", other.named().text());
            let right = "a disk of another machine is one disk here";
            mistakes.push(Mistake::new(at.key("link"), wrong, right));
        }
        let Some(path) = self.source.path() else { return };
        let shares = |other: &&&DiskPlan| {
            let is_it = self.id != other.id && other.source.path() == Some(path);
            is_it && !(self.readonly && other.readonly)
        };
        if let Some(other) = others.iter().find(shares) {
            let theirs = other.named().text();
            let wrong = format!("the image {path:?} is already that of {theirs}");
            let right =
                "give each disk its own image; only disks that are all readonly may share one";
            mistakes.push(Mistake::new(at.key("path"), wrong, right));
        }
    }
}

/// Fills in the defaults of one disk and checks each value.
pub(super) fn resolve(
    spec: &DiskSpec,
    defaults: &Defaults<'_>,
    origin: Origin,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<DiskPlan> {
    let mut found = Vec::new();
    names::check_id(&spec.id, &at.key("id"), &mut found);
    let serial = resolve_serial(spec, &at.key("serial"), &mut found);
    let source = resolve_source(spec, folder, at, &mut found);
    if let Some(Source::Remote { link, .. }) = &source {
        check_link(link, defaults, &at.key("link"), &mut found);
    }
    check_folder(source.as_ref(), &defaults.daemon.image_folders, &at.key("path"), &mut found);
    check_migratable(spec, source.as_ref(), &at.key("migratable"), &mut found);
    let (written, run_dir) = (spec.socket.as_deref(), &defaults.daemon.run_dir);
    let socket = names::resolve_socket((&spec.id, written), run_dir, folder, at, &mut found);
    let rights = Written::from(spec).resolve(defaults.daemon, at, &mut found);
    names::check_numbers(spec, at, &mut found);
    let service = spec.service(defaults, &origin, at, &mut found);
    let stages = stages::resolve(&spec.stage, (&origin).into(), &at.key("stage"), &mut found);
    if !found.is_empty() {
        mistakes.append(&mut found);
        return None;
    }
    Some(DiskPlan {
        id: spec.id.clone(),
        origin,
        socket: socket?,
        mode: spec.mode,
        rights,
        source: source?,
        format: spec.format,
        readonly: spec.readonly,
        serial,
        queues: spec.queues,
        service,
        // Which is in one of these, or refused.
        user_folder: spec.allow_user_folder || !defaults.daemon.image_folders.is_empty(),
        allow_unsealed_memory: spec.allow_unsealed_memory,
        migratable: spec.migratable,
        drain_timeout_s: spec.drain_timeout,
        block_size: spec.block_size,
        on_full: spec.on_full.unwrap_or(OnFailure::Wait),
        on_error: spec.on_error.unwrap_or(OnFailure::Error),
        stages,
        spec: spec.clone(),
    })
}

/// That its image is where the daemon may look. Only names are compared here; where links lead is
/// known when it is opened.
fn check_folder(
    source: Option<&Source>,
    folders: &[String],
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let Some(path) = source.and_then(Source::path).filter(|_| !folders.is_empty()) else { return };
    let path = std::path::Path::new(path);
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    if goes_up || !folders.iter().any(|folder| path.starts_with(folder)) {
        let wrong = format!("the image {path:?} is in none of the daemon's image_folders");
        let right = format!(
            "give an image that is in one of {}; or add its folder to image_folders in [daemon] of the file, and then \
             `sidecore upgrade`",
            shorten(&folders.iter().map(String::as_str).collect::<Vec<_>>())
        );
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
}

fn resolve_serial(spec: &DiskSpec, at: &Path, mistakes: &mut Vec<Mistake>) -> String {
    let Some(serial) = &spec.serial else {
        return spec.id.chars().take(SERIAL_MAX).collect();
    };
    let printable = serial.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if serial.is_empty() || serial.len() > SERIAL_MAX || !printable {
        let wrong = format!("{serial:?} is not a serial number");
        let right = "write 1 to 20 printable ASCII characters";
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
    serial.clone()
}

/// What a guest cannot take along.
fn check_migratable(
    spec: &DiskSpec,
    source: Option<&Source>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) {
    let Some(source) = source.filter(|source| spec.migratable && source.path().is_none()) else {
        return;
    };
    let (wrong, right) = match source {
        Source::Remote { .. } => (
            "a remote disk has no locks of its own".to_string(),
            "leave `migratable` out: who has the disk is the IOhost's to say",
        ),
        _ => (
            format!("a {} disk is in this daemon alone: its guest cannot move", source.kind()),
            "leave `migratable` out, or use a file or block device that both hosts can reach",
        ),
    };
    mistakes.push(Mistake::new(at.clone(), wrong, right));
}

fn resolve_source(
    spec: &DiskSpec,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<Source> {
    let kind = match (spec.backend, &spec.path) {
        (Some(kind), _) => kind,
        (None, Some(_)) => BackendKind::File,
        (None, None) if spec.link.is_some() => BackendKind::Remote,
        (None, None) => {
            let right = "name an image with `path`, or with `link` the link to the machine that has the disk; or choose \
                         `backend`: \"memory\", or for measuring \"null\"";
            mistakes.push(Mistake::new(at.clone(), "the disk has no back-end", right));
            return None;
        }
    };
    let size = spec.size.map(|size| check_size(size, &at.key("size"), mistakes));
    check_of_kind(spec, kind, at, mistakes);
    check_block_size(spec, kind, at, mistakes);
    if kind == BackendKind::Remote {
        let Some(link) = spec.link.clone() else {
            let right = "add `link`: the [[link]] to the machine that has the disk";
            mistakes.push(Mistake::new(at.clone(), "a remote back-end needs a `link`", right));
            return None;
        };
        let name = spec.remote.clone().unwrap_or_else(|| spec.id.clone());
        names::check_id(&name, &at.key("remote"), mistakes);
        return Some(Source::Remote { link, name });
    }
    if kind == BackendKind::File {
        let Some(path) = &spec.path else {
            let right = "add `path`: the raw image or block device";
            mistakes.push(Mistake::new(at.clone(), "a file back-end needs a `path`", right));
            return None;
        };
        let path = absolute_file(path, folder, PATH_MAX, &at.key("path"), mistakes)?;
        let cache = spec.cache.unwrap_or_default();
        return Some(Source::File { path, size_bytes: size, cache });
    }
    let Some(size_bytes) = size else {
        let right = "add `size`, such as \"10G\"";
        let wrong = format!("a {kind} back-end needs a `size`");
        mistakes.push(Mistake::new(at.clone(), wrong, right));
        return None;
    };
    Some(match kind {
        BackendKind::Null => Source::Null { size_bytes },
        _ => Source::Memory { size_bytes },
    })
}

/// Refuses what only another kind of back-end has.
fn check_of_kind(spec: &DiskSpec, kind: BackendKind, at: &Path, mistakes: &mut Vec<Mistake>) {
    let given = [
        ("path", spec.path.is_some(), BackendKind::File),
        ("cache", spec.cache.is_some(), BackendKind::File),
        ("on_full", spec.on_full.is_some(), BackendKind::File),
        ("on_error", spec.on_error.is_some(), BackendKind::File),
        ("allow_user_folder", spec.allow_user_folder, BackendKind::File),
        ("format", spec.format.is_some(), BackendKind::File),
        ("link", spec.link.is_some(), BackendKind::Remote),
        ("remote", spec.remote.is_some(), BackendKind::Remote),
    ];
    for (name, is_given, owner) in given {
        if is_given && owner != kind {
            let wrong = format!("a {kind} back-end takes no `{name}`");
            let right = match (name, kind) {
                ("on_full" | "on_error", BackendKind::Remote) => {
                    format!("take `{name}` out: it is said where the disk is, at its IOhost")
                }
                _ => format!("take `{name}` out, or make it backend \"{owner}\""),
            };
            mistakes.push(Mistake::new(at.key(name), wrong, right));
        }
    }
    if kind == BackendKind::Remote && spec.size.is_some() {
        let wrong = "a remote back-end takes no `size`";
        let right = "take `size` out: it is that of the disk there, and is changed there";
        mistakes.push(Mistake::new(at.key("size"), wrong, right));
    }
}

/// The logical block size: one of two, and what the capacity is a multiple of.
fn check_block_size(spec: &DiskSpec, kind: BackendKind, at: &Path, mistakes: &mut Vec<Mistake>) {
    let Some(block_size) = spec.block_size else { return };
    let at_key = at.key("block_size");
    if kind == BackendKind::Remote {
        let wrong = "a remote back-end takes no `block_size`";
        let right = "take `block_size` out: it is said where the disk is, at its IOhost";
        mistakes.push(Mistake::new(at_key, wrong, right));
    } else if ![512, 4096].contains(&block_size) {
        let wrong = format!("{block_size} is no block size");
        mistakes.push(Mistake::new(at_key, wrong, "write 512 or 4096, or leave it out"));
    } else if let Some(Size(bytes)) = spec.size
        && bytes.is_multiple_of(SECTOR_BYTES)
        && !bytes.is_multiple_of(block_size.into())
    {
        let wrong = format!("{bytes} bytes are not whole blocks of {block_size}");
        let up = bytes.checked_next_multiple_of(block_size.into()).unwrap_or(bytes);
        let right = format!("make it a multiple of {block_size}, such as {up}");
        mistakes.push(Mistake::new(at.key("size"), wrong, right));
    }
}

/// A capacity: at least one sector, and whole sectors.
pub(super) fn check_size(size: Size, at: &Path, mistakes: &mut Vec<Mistake>) -> u64 {
    let bytes = size.0;
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        let wrong = match bytes {
            0 => "0 bytes are no disk".to_string(),
            _ => format!("{bytes} bytes are not whole sectors"),
        };
        let up = bytes.max(1).checked_next_multiple_of(SECTOR_BYTES).unwrap_or(SECTOR_BYTES);
        let right = format!("make it a multiple of {SECTOR_BYTES}, such as {up}");
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
    bytes
}
