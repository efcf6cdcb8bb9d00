//! Which image each disk's guest is on, kept beyond the daemon's end and beyond the disk's own: a guest
//! that comes back is served from that image alone.
//!
//! A guest is known by the socket that it comes to, since its VMM knows nothing else, and where nobody came to that one
//! before, by its disk's name. A file for each disk, written whole, synced and renamed before the guest's first request;
//! all are read when the daemon starts. Not here: which images are the same, and the rule (`image`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use config::api::{Answer, ApiError, ErrorKind};
use config::{Change, Plan};
use names::Kept;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::device::Device;
use crate::image::Image;
use crate::manager::Manager;
use crate::state;

mod bond;
mod vetting;

pub(crate) use bond::Bond;
pub(crate) use vetting::Vetting;

const FORMAT: &str = "sidecore-image";
const VERSION: u64 = 1;
/// Longest file that is read, bytes: a name and a socket of 4,095 bytes, each of them escaped, and the facts.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// Files that are kept; beyond that those go that were written first, and are of no disk that there is. Four times as
/// many as a daemon has disks.
const FILES_MAX: usize = 4 * config::spec::DISKS_MAX;
const FOLDER: &str = "images";

/// What is kept by one daemon.
pub(crate) struct Bonds {
    kept: Kept,
    folder: PathBuf,
    /// By disk.
    entries: BTreeMap<String, Entry>,
    /// The disk whose guest came to each socket last.
    sockets: BTreeMap<String, String>,
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
        let folder = Path::new(state_dir).join(FOLDER);
        let others = Kept::in_folder(state_dir, FILE_BYTES_MAX).names().unwrap_or_default();
        let mut others = others.iter().filter(|(name, _)| name != state::LOCK).peekable();
        let is_news = others.peek().is_some() && others.all(|(name, _)| name != FOLDER);
        let kept = Kept::in_folder(&folder, FILE_BYTES_MAX);
        let (entries, sockets) = entries(&kept);
        let boot = boot.trim().to_string();
        Bonds { kept, folder, entries, sockets, boot, is_news, is_starting: true }
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
        if let Err(error) = names::make_folder(&self.folder, names::Purpose::Own) {
            warn!("which images guests are on cannot be kept: {error}");
        }
    }

    /// The image that the guest was on last which comes to `socket`, or that of disk `id`; and whether that was that
    /// guest of that disk.
    pub(crate) fn of(&self, id: &str, socket: &str) -> (Remembered, bool) {
        let by_socket = self.sockets.get(socket).map(String::as_str);
        let whose = by_socket.unwrap_or(id);
        let Some(entry) = self.entries.get(whose) else { return (Remembered::Nothing, true) };
        let remembered = match &entry.remembered {
            // It may have been put back.
            Remembered::Unreadable(_) => read(&self.kept, whose).remembered,
            remembered => remembered.clone(),
        };
        (remembered, whose == id && by_socket.is_some())
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
        if !self.entries.contains_key(id) {
            self.make_room(is_there)?;
        }
        let remembered = Remembered::Image(image.clone());
        let entry = Entry { remembered, socket: socket.map(str::to_string) };
        write(&self.kept, id, &entry)?;
        self.take_out(id);
        self.entries.insert(id.to_string(), entry);
        let Some(socket) = socket else { return Ok(()) };
        let before = self.sockets.insert(socket.to_string(), id.to_string());
        let Some((whose, other)) = before.and_then(|whose| self.entries.get_key_value(&whose))
        else {
            return Ok(());
        };
        // Its guest comes there no more.
        let other = Entry { socket: None, ..other.clone() };
        let whose = whose.clone();
        write(&self.kept, &whose, &other)?;
        self.entries.insert(whose, other);
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

/// What is kept, by disk, and whose each socket is: of two that came to one the last.
fn entries(kept: &Kept) -> (BTreeMap<String, Entry>, BTreeMap<String, String>) {
    let (mut entries, mut sockets) = (BTreeMap::new(), BTreeMap::new());
    let mut names = match kept.names() {
        Ok(names) => names,
        Err(error) => {
            warn!("which images guests were on cannot be read, so that all are served: {error}");
            return (entries, sockets);
        }
    };
    names.retain(|(name, _)| !name.starts_with('.'));
    names.sort_unstable_by_key(|(_, at)| std::cmp::Reverse(*at));
    for (name, _) in names.into_iter().take(FILES_MAX) {
        let entry = read(kept, &name);
        if let Some(socket) = &entry.socket {
            sockets.entry(socket.clone()).or_insert_with(|| name.clone());
        }
        entries.insert(name, entry);
    }
    (entries, sockets)
}

fn read(kept: &Kept, id: &str) -> Entry {
    let unreadable = |what: String| Entry {
        remembered: Remembered::Unreadable(format!("{}: {what}", kept.path(id).display())),
        socket: None,
    };
    match kept.read(id) {
        Ok(None) => Entry { remembered: Remembered::Nothing, socket: None },
        Ok(Some(text)) => parse(&text).unwrap_or_else(unreadable),
        Err(error) => unreadable(error.to_string()),
    }
}

fn parse(text: &str) -> Result<Entry, String> {
    let text: Text = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match (text.format.as_str(), text.version) {
        (FORMAT, VERSION) => {
            Ok(Entry { remembered: Remembered::Image(text.image), socket: text.socket })
        }
        (FORMAT, version) => Err(format!("it is of version {version}, of a newer program")),
        _ => Err(format!("`format` is not {FORMAT:?}")),
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

impl Manager {
    /// Keeps which image the guest of a device is on, which is about to be served, if that is another one.
    pub(crate) fn keep_begun(&mut self, number: u32) {
        let Some(parts) = self.disk_parts_mut(number) else { return };
        let Some(image) = parts.bond.take_unkept() else { return };
        let id = parts.plan.id.clone();
        self.keep_image(&id, &image);
    }

    /// Keeps which image the guest of a disk is on.
    pub(crate) fn keep_image(&mut self, id: &str, image: &Image) {
        let plan = self.plan.disk(id).filter(|_| !self.is_exported(id));
        let socket = plan.map(|plan| plan.socket.as_str());
        let kept = self.bonds.keep(id, socket, image, |id| self.plan.disk(id).is_some());
        let why = kept.err().map(|error| error.to_string());
        let number = self.number_of(id);
        let is_news = match number.and_then(|number| self.disk_parts_mut(number)) {
            Some(parts) => parts.bond.kept(image, why.clone()),
            None => why.is_some(),
        };
        if let Some(why) = why.filter(|_| is_news) {
            warn!(disk = id, "that its guest is on {image} {}", unkept(&why));
        }
    }

    /// An operator has the guest of a disk go on with the image that is there.
    pub(crate) fn accept_image(&mut self, id: &str) -> Result<Answer, ApiError> {
        let number = self.number_of(id).ok_or_else(|| match self.plan.disk(id) {
            Some(_) => {
                let error = format!("disk {id:?} is not open");
                ApiError::new(ErrorKind::Refused, error, "`sidecore show` says why")
            }
            None => self.plan.no_such_disk(id),
        })?;
        if self.leads_elsewhere(number) {
            let error =
                format!("what the path of disk {id:?} names now is not the image that is open");
            let hint = "`sidecore reload` opens it; what was open may have no name any more, and be lost with \
                        the daemon";
            return Err(ApiError::new(ErrorKind::Refused, error, hint));
        }
        let parts = self.disk_parts_mut(number).ok_or_else(|| ApiError::no_such_disk(id))?;
        let had_lost = std::mem::take(&mut parts.was_empty);
        let accepted = parts.bond.accept();
        if accepted.is_none() && !had_lost {
            let error = format!("the guest of disk {id:?} is on the image that is there");
            return Err(ApiError::new(ErrorKind::Conflict, error, "there is nothing to accept"));
        }
        if let Some(image) = accepted {
            self.keep_image(id, &image);
            info!(disk = id, "accepted: its guest goes on with {image}");
        }
        self.accept_remote(number);
        self.judge_again(number);
        self.settle();
        self.show(id, true)
    }

    /// The rings of a disk whose guest waits are judged once more.
    pub(crate) fn judge_again(&mut self, number: u32) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        for queue in &mut device.queues {
            (queue.gave_up, queue.problem) = (None, None);
        }
        self.touched.insert(number);
    }

    /// Whether what its path names now is not what is open, for disk `number`: an operator put something else there.
    fn leads_elsewhere(&mut self, number: u32) -> bool {
        let Some(parts) = self.disk_parts(number) else { return false };
        let (plan, open) = (parts.plan.clone(), parts.file);
        if plan.source.path().is_none() || open.is_none() {
            return false;
        }
        match self.openers.check(&plan, &self.bonds) {
            Ok(lies) => lies.file().is_some() && lies.file() != open,
            // It is told when it is opened.
            Err(_) => false,
        }
    }

    /// Disks whose guests wait for their image, and whose paths name another one by now than is open: a reload opens
    /// them anew, which takes nothing from a guest that waits.
    pub(crate) fn opened_anew(&mut self, wanted: &Plan) -> Vec<Change> {
        let waits = |device: &Device| {
            let disk = device.kind.disk()?;
            (disk.bond.refused().is_some() && !device.removing).then_some(device.number)
        };
        let waiting: Vec<u32> = self.devices.values().filter_map(waits).collect();
        let mut changes = Vec::new();
        for number in waiting {
            let Some(id) = self.devices.get(&number).map(|device| device.facts.id.clone()) else {
                continue;
            };
            let Some(plan) = wanted.disk(&id).cloned() else { continue };
            if self.leads_elsewhere(number) {
                changes.push(Change::Remove { id });
                changes.push(Change::Add(Box::new(plan)));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests;
