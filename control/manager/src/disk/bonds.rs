//! Which image each disk's guest is on, kept beyond the daemon's end and beyond the disk's own: a guest
//! that comes back is served from that image alone.
//!
//! A guest is known by the socket that it comes to, since its VMM knows nothing else, and where nobody came to that one
//! before, by its disk's name. Each disk has a file, and each socket whose guest's disk has another guest since. A file is
//! written whole, synced and renamed before the guest's first request. All are read when the daemon starts. Not here:
//! which images are the same, and the rule (`image`); what an operator decides (`accept`).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use config::plan::DiskPlan;
use names::Kept;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::disk::image::Image;
use crate::state;

mod accept;
mod bond;
mod vetting;
pub(crate) mod vmm;

pub(crate) use accept::Images;
pub(crate) use bond::Bond;
pub(crate) use vetting::Vetting;

const FORMAT: &str = "sidecore-image";
const VERSION: u64 = 1;
/// Longest file that is read, bytes: a name and a socket of 4,095 bytes, each of them escaped, and the facts.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// Files that are kept; beyond that those go that were written first, and are of no disk that there is. Four times as
/// many as a daemon has disks.
const FILES_MAX: usize = 4 * config::spec::DISKS_MAX;
/// Begins the names of files that are of a socket alone; no disk has such a name. Its path follows, in hexadecimal digits.
const OF_SOCKET: &str = "socket=";

/// What is kept by one daemon.
pub(crate) struct Bonds {
    kept: Kept,
    folder: PathBuf,
    /// By disk, or [`of_socket`].
    entries: BTreeMap<String, Entry>,
    /// What is kept of the guest that came to each socket last.
    sockets: BTreeMap<String, String>,
    /// Why nothing that was kept could be read.
    unread: Option<String>,
    /// This boot of the host.
    boot: String,
    /// A daemon that remembers nothing has had this state before.
    is_news: bool,
    /// What was there at the start is not open yet.
    is_starting: bool,
}

/// What is kept of the guest of one disk.
#[derive(Clone, Debug)]
struct Entry {
    remembered: Remembered,
    /// Where it came to; nothing of a client's on a link.
    socket: Option<String>,
}

/// What is known of the image that a disk's guest was on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// No guest was served there.
    #[default]
    Nothing,
    /// It was on that one.
    Image(Image),
    /// It was on some image, and the reason why nobody knows on which.
    Unreadable(String),
}

/// File that keeps no image.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    /// Malformed text.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Version of a newer program.
    #[error("it is of version {0}, of a newer program")]
    Newer(u64),
    /// Format of something else.
    #[error("`format` is not {FORMAT:?}")]
    NotOurs,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: String,
    version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
    image: Image,
}

impl Bonds {
    /// Reads what is kept, and which boot this is: later on there may be no such file for this process.
    pub(crate) fn in_folder(state_dir: &str) -> Bonds {
        let boot = names::kernel_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let folder = Path::new(state_dir).join(state::IMAGES);
        let others = Kept::in_folder(state_dir, FILE_BYTES_MAX).names().unwrap_or_default();
        let mut others = others.iter().filter(|(name, _)| name != state::LOCK).peekable();
        let is_news = others.peek().is_some() && others.all(|(name, _)| name != state::IMAGES);
        let kept = Kept::in_folder(&folder, FILE_BYTES_MAX);
        let (read, unread) = match entries(&kept) {
            Ok(read) => (read, None),
            Err(error) => (Default::default(), Some(format!("{}: {error}", folder.display()))),
        };
        let (entries, sockets) = read;
        let boot = boot.trim().to_string();
        Bonds { kept, folder, entries, sockets, unread, boot, is_news, is_starting: true }
    }

    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether a disk may have been used before without being remembered: it was there at the start, when a daemon that
    /// remembers began with the state of one that did not. `is_tried_again`: it could not be opened then.
    pub(crate) fn may_have_missed(&self, is_tried_again: bool) -> bool {
        self.is_news && (self.is_starting || is_tried_again)
    }

    /// All that was there at the start was tried: from now on what is used is remembered.
    pub(crate) fn begin(&mut self) {
        self.is_starting = false;
        if let Err(error) = names::make_folder(&self.folder) {
            warn!("which images guests are on cannot be kept: {error}");
        }
    }

    /// The image that the guest was on last which comes to `socket`, or that of disk `id`; and whether that was that
    /// guest of that disk.
    pub(crate) fn of(&self, id: &str, socket: &str) -> (Remembered, bool) {
        let by_socket = self.sockets.get(&real(socket)).map(String::as_str);
        let whose = by_socket.unwrap_or(id);
        let Some(entry) = self.entries.get(whose) else {
            let unread = self.unread.clone().map(Remembered::Unreadable);
            return (unread.unwrap_or_default(), true);
        };
        let remembered = match &entry.remembered {
            // It may have been put back.
            Remembered::Unreadable(_) => read(&self.kept, whose).remembered,
            remembered => remembered.clone(),
        };
        (remembered, whose == id && by_socket.is_some())
    }

    /// Whether the guest of that disk was on what has the name of its image.
    pub(crate) fn remember(&self, disk: &DiskPlan) -> bool {
        let name = disk.source.path();
        let remembered = self.of(&disk.id, &disk.socket).0;
        matches!(remembered, Remembered::Image(image) if Some(image.name.as_str()) == name)
    }

    /// Keeps the image that the guest of disk `id` is on, which came to `socket`. When this returns, it survives a power
    /// cut. `is_there` says of which disks nothing may be forgotten.
    ///
    /// # Errors
    /// What the file system said; what was kept before is still there.
    pub(crate) fn keep(
        &mut self,
        id: &str,
        socket: Option<&str>,
        image: &Image,
        is_there: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let socket = socket.map(real);
        let socket = socket.as_deref();
        if !self.entries.contains_key(id) {
            self.make_room(&is_there)?;
        }
        self.set_apart(id, socket, &is_there)?;
        let remembered = Remembered::Image(image.clone());
        let entry = Entry { remembered, socket: socket.map(str::to_string) };
        write(&self.kept, id, &entry)?;
        self.take_out(id);
        self.entries.insert(id.to_string(), entry);
        let Some(socket) = socket else { return Ok(()) };
        let before = self.sockets.insert(socket.to_string(), id.to_string());
        let Some(whose) = before.filter(|whose| whose != id) else { return Ok(()) };
        // Its guest comes there no more.
        if whose.starts_with(OF_SOCKET) {
            self.entries.remove(&whose);
            return self.kept.remove(&whose);
        }
        let Some(other) = self.entries.get_mut(&whose) else { return Ok(()) };
        other.socket = None;
        write(&self.kept, &whose, other)
    }

    /// Moves what is kept under the name of disk `id` to a file of its guest's socket, if that is not `socket`: another guest
    /// begins there. Two disks may swap their sockets, and the guest that waits comes back a day later.
    fn set_apart(
        &mut self,
        id: &str,
        socket: Option<&str>,
        is_there: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let Some(own) = self.entries.get(id).and_then(|entry| entry.socket.clone()) else {
            return Ok(());
        };
        let is_last = self.sockets.get(&own).is_some_and(|whose| whose == id);
        if socket == Some(&own) || !is_last {
            return Ok(());
        }
        self.make_room(is_there)?;
        let Some(entry) = self.entries.get(id).cloned() else { return Ok(()) };
        let name = of_socket(&own);
        write(&self.kept, &name, &entry)?;
        self.sockets.insert(own, name.clone());
        self.entries.insert(name, entry);
        Ok(())
    }

    fn take_out(&mut self, id: &str) {
        if let Some(socket) = self.entries.remove(id).and_then(|entry| entry.socket)
            && self.sockets.get(&socket).is_some_and(|whose| whose == id)
        {
            self.sockets.remove(&socket);
        }
    }

    /// Forgets what the guest was on which came to `socket`, and that of disk `id`.
    ///
    /// # Errors
    /// What the file system said; it is still kept.
    pub(crate) fn forget(&mut self, id: &str, socket: &str) -> io::Result<()> {
        let socket = &*real(socket);
        self.set_apart(id, Some(socket), |_| true)?;
        let by_socket = self.sockets.get(socket).cloned();
        for whose in by_socket.iter().map(String::as_str).chain([id]) {
            self.take_out(whose);
            self.kept.remove(whose)?;
        }
        Ok(())
    }

    /// Removes the oldest files when there are as many as are kept.
    fn make_room(&mut self, is_there: impl Fn(&str) -> bool) -> io::Result<()> {
        if self.entries.len() < FILES_MAX {
            return Ok(());
        }
        let mut names = self.kept.names()?;
        let excess = (names.len() + 1).saturating_sub(FILES_MAX);
        names.retain(|(name, _)| !is_there(name));
        names.sort_unstable_by_key(|(_, at)| *at);
        for (name, _) in names.iter().take(excess) {
            self.kept.remove(name)?;
            self.take_out(name);
        }
        Ok(())
    }
}

/// A socket's one name, however a file spells it: by a link, or with `..`.
fn real(socket: &str) -> String {
    names::real_name(Path::new(socket)).to_string_lossy().into_owned()
}

/// The name of what is kept of whose guest comes to that socket, and whose disk has another guest. A path has at most
/// 107 bytes.
fn of_socket(socket: &str) -> String {
    let digits = socket.bytes().map(|byte| format!("{byte:02x}"));
    std::iter::once(OF_SOCKET.to_string()).chain(digits).collect()
}

/// What is kept, by name, and which of it each socket's is: of two that came to one the last.
type Read = (BTreeMap<String, Entry>, BTreeMap<String, String>);

/// # Errors
/// What the file system said of the folder.
fn entries(kept: &Kept) -> io::Result<Read> {
    let (mut entries, mut sockets) = (BTreeMap::new(), BTreeMap::new());
    let mut names = kept.names()?;
    names.retain(|(name, _)| !name.starts_with('.'));
    names.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
    for (name, _) in names.into_iter().take(FILES_MAX) {
        let entry = read(kept, &name);
        if let Some(socket) = &entry.socket {
            sockets.entry(socket.clone()).or_insert_with(|| name.clone());
        }
        entries.insert(name, entry);
    }
    Ok((entries, sockets))
}

fn read(kept: &Kept, id: &str) -> Entry {
    let unreadable = |error: &dyn fmt::Display| Entry {
        remembered: Remembered::Unreadable(format!("{}: {error}", kept.path(id).display())),
        socket: None,
    };
    match kept.read(id) {
        Ok(None) => Entry { remembered: Remembered::Nothing, socket: None },
        Ok(Some(text)) => parse(&text).unwrap_or_else(|error| unreadable(&error)),
        Err(error) => unreadable(&error),
    }
}

fn parse(text: &str) -> Result<Entry, EntryError> {
    let text: Text = serde_json::from_str(text)?;
    match (text.format.as_str(), text.version) {
        (FORMAT, VERSION) => {
            let socket = text.socket.as_deref().map(real);
            Ok(Entry { remembered: Remembered::Image(text.image), socket })
        }
        (FORMAT, version) => Err(EntryError::Newer(version)),
        _ => Err(EntryError::NotOurs),
    }
}

fn write(kept: &Kept, id: &str, entry: &Entry) -> io::Result<()> {
    // What cannot be read stays as it is.
    let Remembered::Image(image) = entry.remembered.clone() else { return Ok(()) };
    let (format, socket) = (FORMAT.to_string(), entry.socket.clone());
    let text = Text { format, version: VERSION, socket, image };
    kept.replace_for_good(id, &format!("{}\n", serde_json::to_string(&text)?))
}

/// What an operator reads of a guest's image that is not kept.
pub(crate) fn unkept(why: &str) -> String {
    format!(
        "cannot be kept: after a restart of the daemon it would be served from another image, too: {why}; make \
         room in `state_dir`"
    )
}

#[cfg(test)]
mod tests;
