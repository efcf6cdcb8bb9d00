//! One disk: resolved from its spec, and compared with its neighbours.

use super::SOCKET_PATH_MAX;
use super::{BackendKind, Cache, Defaults, DiskSpec, Mistake, Mode, Path, Policy, Size};

/// Longest path that Linux takes, without the final NUL, in bytes.
pub(crate) const PATH_MAX: usize = 4095;
/// Longest name of a disk, in bytes.
const ID_MAX: usize = 64;
/// Longest serial number, in bytes (VIRTIO 1.2, 5.2.6: VIRTIO_BLK_ID_BYTES).
const SERIAL_MAX: usize = 20;
/// What a capacity is a multiple of, in bytes (VIRTIO 1.2, 5.2.4).
const SECTOR_BYTES: u64 = 512;

/// Where a disk was declared. Each keeps to its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the configuration file.
    File {
        /// The file's name as the operator gave it.
        file: String,
        /// Its line, from 1.
        line: u32,
    },
    /// Through the API.
    Api,
}

/// As `show` prints it: `file:line` or `api`.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File { file, line } => write!(f, "{file}:{line}"),
            Origin::Api => f.write_str("api"),
        }
    }
}

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
}

impl Source {
    /// What sort it is.
    pub fn kind(&self) -> BackendKind {
        match self {
            Source::Null { .. } => BackendKind::Null,
            Source::Memory { .. } => BackendKind::Memory,
            Source::File { .. } => BackendKind::File,
        }
    }

    /// The capacity asked for, in bytes.
    pub fn size_bytes(&self) -> Option<u64> {
        match self {
            Source::Null { size_bytes } | Source::Memory { size_bytes } => Some(*size_bytes),
            Source::File { size_bytes, .. } => *size_bytes,
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
    /// What it is made of.
    pub source: Source,
    /// The guest may not write.
    pub readonly: bool,
    /// At most 20 printable ASCII characters.
    pub serial: String,
    /// 1 to 64.
    pub queues: u16,
    /// 1 to 10,000.
    pub share: u32,
    /// When its queues are polled.
    pub policy: Policy,
    /// Memory that is not sealed against shrinking is accepted.
    pub allow_unsealed_memory: bool,
    /// Seconds that a front-end waits for requests that the disk does not answer, 1 to 86,400.
    pub drain_timeout_s: u32,
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
        }
        self.spec.size = Some(Size(bytes));
    }

    /// What this disk cannot share with others: name, socket, and an image that one of both writes.
    pub(super) fn clashes(
        &self,
        others: &[&DiskPlan],
        api: &str,
        at: &Path,
        mistakes: &mut Vec<Mistake>,
    ) {
        if self.socket == api {
            let wrong = format!("{:?} is the socket of the API", self.socket);
            mistakes.push(Mistake::new(at.key("socket"), wrong, "give the disk its own socket"));
        }
        for other in others {
            let theirs = format!("disk {:?} ({})", other.id, other.origin);
            if self.id == other.id {
                let wrong = format!("the name {:?} is taken by {theirs}", self.id);
                let right = match other.origin {
                    Origin::Api => format!(
                        "give each disk a name of its own, or remove the other one first: \
                         `sidecore disk rm {}`",
                        other.id
                    ),
                    Origin::File { .. } => "give each disk a name of its own".to_string(),
                };
                mistakes.push(Mistake::new(at.key("id"), wrong, right));
            } else if self.socket == other.socket {
                let wrong = format!("the socket {:?} is that of {theirs}", self.socket);
                let right = "give each disk a socket of its own";
                mistakes.push(Mistake::new(at.key("socket"), wrong, right));
            }
            let shared = self.id != other.id
                && self.source.path().is_some_and(|path| other.source.path() == Some(path));
            if shared && !(self.readonly && other.readonly) {
                let path = self.source.path().unwrap_or_default();
                let wrong = format!("the image {path:?} is already that of {theirs}");
                let right = "give each disk its own image; only disks that are all readonly may \
                             share one";
                mistakes.push(Mistake::new(at.key("path"), wrong, right));
            }
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
    let before = mistakes.len();
    check_id(&spec.id, &at.key("id"), mistakes);
    let serial = resolve_serial(spec, &at.key("serial"), mistakes);
    let source = resolve_source(spec, folder, at, mistakes);
    let default_socket = format!("{}/{}.sock", defaults.daemon.run_dir, spec.id);
    let written = spec.socket.as_deref().unwrap_or(&default_socket);
    // A default socket of a bad name would only repeat that complaint.
    let socket = match spec.socket.is_some() || mistakes.len() == before {
        true => absolute(written, folder, SOCKET_PATH_MAX, &at.key("socket"), mistakes),
        false => None,
    };
    // Not the readers of files and bodies, but others might make a spec by hand.
    if !(1..=crate::spec::QUEUES_MAX).contains(&spec.queues) {
        let wrong = format!("{} is out of bounds", spec.queues);
        let right = "write a number from 1 to 64";
        mistakes.push(Mistake::new(at.key("queues"), wrong, right));
    }
    if !(1..=crate::spec::SHARE_MAX).contains(&spec.share) {
        let wrong = format!("{} is out of bounds", spec.share);
        let right = "write a number from 1 to 10000";
        mistakes.push(Mistake::new(at.key("share"), wrong, right));
    }
    if !(1..=crate::spec::DRAIN_TIMEOUT_MAX_S).contains(&spec.drain_timeout) {
        let wrong = format!("{} is out of bounds", spec.drain_timeout);
        let right = "write seconds, from 1 to 86400";
        mistakes.push(Mistake::new(at.key("drain_timeout"), wrong, right));
    }
    if mistakes.len() != before {
        return None;
    }
    Some(DiskPlan {
        id: spec.id.clone(),
        origin,
        socket: socket?,
        mode: spec.mode,
        source: source?,
        readonly: spec.readonly,
        serial,
        queues: spec.queues,
        share: spec.share,
        policy: spec.policy.unwrap_or(defaults.policy),
        allow_unsealed_memory: spec.allow_unsealed_memory,
        drain_timeout_s: spec.drain_timeout,
        spec: spec.clone(),
    })
}

fn check_id(id: &str, at: &Path, mistakes: &mut Vec<Mistake>) {
    let wrong = if id.is_empty() {
        "a name cannot be empty".to_string()
    } else if id.len() > ID_MAX {
        format!("a name of {} bytes is too long", id.len())
    } else if !id.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) {
        format!("the name {id:?} does not begin with a letter or digit")
    } else if let Some(bad) =
        id.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.'))
    {
        format!("{bad:?} is not possible in a name")
    } else {
        return;
    };
    let right = "a name has 1 to 64 of a-z, 0-9, '-', '_', '.', and begins with a letter or digit";
    mistakes.push(Mistake::new(at.clone(), wrong, right));
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

fn resolve_source(
    spec: &DiskSpec,
    folder: Option<&str>,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<Source> {
    let kind = match (spec.backend, &spec.path) {
        (Some(kind), _) => kind,
        (None, Some(_)) => BackendKind::File,
        (None, None) => {
            let right = "name an image with `path`, or choose `backend`: \"null\", \"memory\" or \
                         \"file\"";
            mistakes.push(Mistake::new(at.clone(), "the disk has no back-end", right));
            return None;
        }
    };
    let size = spec.size.map(|size| check_size(size, &at.key("size"), mistakes));
    if kind == BackendKind::File {
        let Some(path) = &spec.path else {
            let right = "add `path`: the raw image or block device";
            mistakes.push(Mistake::new(at.clone(), "a file back-end has no `path`", right));
            return None;
        };
        let path = absolute(path, folder, PATH_MAX, &at.key("path"), mistakes)?;
        let cache = spec.cache.unwrap_or_default();
        return Some(Source::File { path, size_bytes: size, cache });
    }
    for (name, given) in [("path", spec.path.is_some()), ("cache", spec.cache.is_some())] {
        if given {
            let wrong = format!("a {kind} back-end has no `{name}`");
            let right = format!("take `{name}` out, or make it backend \"file\"");
            mistakes.push(Mistake::new(at.key(name), wrong, right));
        }
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

/// A capacity: at least one sector, and whole sectors.
pub(super) fn check_size(size: Size, at: &Path, mistakes: &mut Vec<Mistake>) -> u64 {
    let bytes = size.0;
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        let wrong = format!("{bytes} bytes are not whole sectors");
        let up = bytes.max(1).checked_next_multiple_of(SECTOR_BYTES).unwrap_or(SECTOR_BYTES);
        let right = format!("make it a multiple of {SECTOR_BYTES}, such as {up}");
        mistakes.push(Mistake::new(at.clone(), wrong, right));
    }
    bytes
}

/// An absolute path without `.` and doubled slashes, so that equal places read the same. `..` is
/// kept, since only the file system knows what it means behind a symbolic link.
pub(super) fn absolute(
    written: &str,
    folder: Option<&str>,
    longest: usize,
    at: &Path,
    mistakes: &mut Vec<Mistake>,
) -> Option<String> {
    let joined = match (written.starts_with('/'), folder) {
        (true, _) => written.to_string(),
        (false, Some(folder)) if !written.is_empty() => format!("{folder}/{written}"),
        _ => {
            let wrong = format!("{written:?} is not an absolute path");
            let right = "write the whole path, beginning with '/'";
            mistakes.push(Mistake::new(at.clone(), wrong, right));
            return None;
        }
    };
    let parts = joined.split('/').filter(|part| !part.is_empty() && *part != ".");
    let path: String = parts.flat_map(|part| ["/", part]).collect();
    if path.contains('\0') || path.is_empty() {
        let wrong = format!("{written:?} is not a path of a file");
        mistakes.push(Mistake::new(at.clone(), wrong, "write the whole path"));
        return None;
    }
    if path.len() > longest {
        let wrong = format!("the path {path:?} has {} bytes", path.len());
        let right = match longest == SOCKET_PATH_MAX {
            true => {
                format!("a Unix socket's path has at most {longest} bytes; choose a shorter one")
            }
            false => format!("a path has at most {longest} bytes"),
        };
        mistakes.push(Mistake::new(at.clone(), wrong, right));
        return None;
    }
    Some(path)
}
