//! Which image each disk's guest is on, kept beyond the daemon's end and beyond the disk's own: a guest
//! that comes back is served from that image alone.
//!
//! A file for each disk, written whole, synced and renamed before the guest's first request. Not here:
//! which images are the same, and the rule (`image`).

use std::io;
use std::path::{Path, PathBuf};

use backend::{Disk, OpenError, Vet};
use config::api::{Answer, ApiError, ErrorKind};
use config::plan::DiskPlan;
use config::spec::Format;
use names::Kept;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::disk::source_of;
use crate::image::{Found, Image, Verdict, judge};
use crate::images::ImageNames;
use crate::manager::Manager;

const FORMAT: &str = "sidecore-image";
const VERSION: u64 = 1;
/// Longest file that is read, bytes: a name of 4,095 bytes, each of them escaped, and the facts.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Files that are kept; beyond that those go that were written first, and are of no disk that there is. Four times as
/// many as a daemon has disks.
const FILES_MAX: usize = 4 * config::spec::DISKS_MAX;
const FOLDER: &str = "images";

/// What is kept by one daemon.
pub(crate) struct Bonds {
    kept: Kept,
    folder: PathBuf,
    /// This boot of the host.
    boot: String,
    /// A daemon that remembers nothing has had this state before.
    is_news: bool,
    /// What was there at the start is not open yet.
    is_starting: bool,
}

/// What is known of the image that a disk's guest was on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Remembered {
    /// No guest of a disk of that name was served here.
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
    image: Image,
}

impl Bonds {
    /// Reads which boot this is: later on there may be no such file for this process.
    pub(crate) fn in_folder(state_dir: &str) -> Bonds {
        let boot = names::kernel_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let folder = Path::new(state_dir).join(FOLDER);
        let others = Kept::in_folder(state_dir, FILE_BYTES_MAX).names().unwrap_or_default();
        let is_news = !others.is_empty() && others.iter().all(|(name, _)| name != FOLDER);
        let kept = Kept::in_folder(&folder, FILE_BYTES_MAX);
        Bonds { kept, folder, boot: boot.trim().to_string(), is_news, is_starting: true }
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

    /// The image that the guest of disk `id` was on last.
    pub(crate) fn of(&self, id: &str) -> Remembered {
        let unreadable = |what: String| {
            Remembered::Unreadable(format!("{}: {what}", self.kept.path(id).display()))
        };
        match self.kept.read(id) {
            Ok(None) => Remembered::Nothing,
            Ok(Some(text)) => parse(&text).map_or_else(unreadable, Remembered::Image),
            Err(error) => unreadable(error.to_string()),
        }
    }

    /// Keeps the image that the guest of disk `id` is on. When this returns, it survives a power cut. `is_there` says
    /// of which disks nothing may be forgotten.
    ///
    /// # Errors
    /// What the file system said; what was kept before is still there.
    pub(crate) fn keep(
        &self,
        id: &str,
        image: &Image,
        is_there: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        if matches!(self.of(id), Remembered::Nothing) {
            self.make_room(is_there)?;
        }
        let text = Text { format: FORMAT.to_string(), version: VERSION, image: image.clone() };
        self.kept.replace_for_good(id, &format!("{}\n", serde_json::to_string(&text)?))
    }

    /// Forgets what the guest of disk `id` was on.
    ///
    /// # Errors
    /// What the file system said; it is still kept.
    pub(crate) fn forget(&self, id: &str) -> io::Result<()> {
        self.kept.remove(id)
    }

    /// Removes the oldest files when there are as many as are kept.
    fn make_room(&self, is_there: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut names = self.kept.names()?;
        let excess = (names.len() + 1).saturating_sub(FILES_MAX);
        names.retain(|(name, _)| excess > 0 && !is_there(name));
        names.sort_unstable_by_key(|(_, at)| *at);
        names.iter().take(excess).try_for_each(|(name, _)| self.kept.remove(name))
    }
}

/// What is known of an image before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Vetting {
    pub(crate) vet: Vet,
    remembered: Remembered,
    boot: String,
}

impl Vetting {
    /// It is raw, whatever it begins with.
    #[cfg(test)]
    pub(crate) fn none() -> Vetting {
        Vetting { vet: Vet::Raw, remembered: Remembered::Nothing, boot: String::new() }
    }

    /// Of the disk that `plan` has. `was_used`: it was taken before, so far as is known.
    pub(crate) fn of(plan: &DiskPlan, bonds: &Bonds, was_used: bool) -> Vetting {
        let remembered = bonds.of(&plan.id);
        let vet = match (plan.format, &remembered) {
            (Some(Format::Raw), _) => Vet::Raw,
            (None, Remembered::Unreadable(_)) => Vet::Used,
            (None, _) if was_used => Vet::Used,
            (None, _) => Vet::Unknown,
        };
        Vetting { vet, remembered, boot: bonds.boot.clone() }
    }

    /// What `open` makes of the image of the disk that `plan` has, whose guest may have made what it begins with.
    ///
    /// # Errors
    /// As `open`.
    pub(crate) fn vetted<T>(
        &self,
        plan: &DiskPlan,
        open: impl Fn(Vet) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        match open(self.vet) {
            Err(OpenError::Foreign { .. }) if self.is_known(plan) => open(Vet::Raw),
            opened => opened,
        }
    }

    /// Whether the guest of that disk was on what is there.
    fn is_known(&self, plan: &DiskPlan) -> bool {
        let there = Disk::look(&source_of(plan), &ImageNames::of(plan), Vet::Raw);
        there.is_ok_and(|there| {
            Bond::new(Found::of(&there, plan, &self.boot), self.remembered.clone()).is_known()
        })
    }
}

fn parse(text: &str) -> Result<Image, String> {
    let text: Text = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match (text.format.as_str(), text.version) {
        (FORMAT, VERSION) => Ok(text.image),
        (FORMAT, version) => Err(format!("it is of version {version}, of a newer program")),
        _ => Err(format!("`format` is not {FORMAT:?}")),
    }
}

/// What ties a disk's guest to its image.
#[derive(Debug, Default)]
pub(crate) struct Bond {
    /// Nothing while the image is with another process that did not say.
    found: Option<Found>,
    remembered: Remembered,
    /// What was remembered before a front-end began with a new driver. Rings that it tells of later are
    /// judged by that, because one that nobody has used yet looks new in either case.
    before: Option<(u32, Remembered)>,
    /// To be kept before its guest is served.
    unkept: Option<Image>,
    refused: Option<String>,
    /// That it is refused was not logged yet.
    is_news: bool,
    refusals: u64,
}

impl Bond {
    pub(crate) fn new(mut found: Option<Found>, remembered: Remembered) -> Bond {
        // What its IOhost has is known when that has said so; until then it is what it was.
        if let (Some(found), Remembered::Image(image)) = (&mut found, &remembered)
            && image.is_same(&found.image)
            && let Some(number) = image.told_number()
        {
            found.image = found.image.told(number);
        }
        Bond { found, remembered, ..Bond::default() }
    }

    /// What front-end `link` of disk `id` may do. `was_running`: a ring of its driver was served before.
    pub(crate) fn judge(&self, id: &str, link: u32, was_running: bool) -> Verdict {
        let remembered = match &self.before {
            Some((of, before)) if *of == link && was_running => before,
            _ => &self.remembered,
        };
        match remembered {
            Remembered::Nothing => judge(id, None, self.found.as_ref(), was_running),
            Remembered::Image(image) => judge(id, Some(image), self.found.as_ref(), was_running),
            Remembered::Unreadable(_) if !was_running => Verdict::Remember,
            Remembered::Unreadable(why) => Verdict::Other(format!(
                "which image its guest was on cannot be read ({why}): put that file back; or start the \
                 guest anew; or, if this is its image, `sidecore disk accept {id}`"
            )),
        }
    }

    /// A ring of front-end `link` is to be served.
    pub(crate) fn begin(&mut self, link: u32, verdict: &Verdict) {
        self.refused = None;
        let Some(found) = self.found.as_ref().filter(|_| *verdict == Verdict::Remember) else {
            return;
        };
        let now = Remembered::Image(found.image.clone());
        self.unkept = Some(found.image.clone());
        let before = std::mem::replace(&mut self.remembered, now);
        if self.before.as_ref().is_none_or(|(of, _)| *of != link) {
            self.before = Some((link, before));
        }
    }

    /// The image that is to be kept before its guest is served, if it is not kept yet.
    pub(crate) fn take_unkept(&mut self) -> Option<Image> {
        self.unkept.take()
    }

    /// Its guest waits, for that reason.
    pub(crate) fn refuse(&mut self, why: String) {
        self.is_news = self.refused.as_ref() != Some(&why);
        self.refusals += u64::from(self.is_news);
        self.refused = Some(why);
    }

    /// Whether its guest waits, and the log has said so.
    pub(crate) fn is_refused_again(&mut self) -> bool {
        self.refused.is_some() && !std::mem::take(&mut self.is_news)
    }

    /// Whether what is there has the name of what its guest was on, or nothing is known of that.
    pub(crate) fn has_same_name(&self) -> bool {
        match (&self.remembered, &self.found) {
            (Remembered::Image(image), Some(found)) => image.name == found.image.name,
            _ => true,
        }
    }

    /// Whether the guest of this disk was on the image that was found.
    pub(crate) fn is_known(&self) -> bool {
        match (&self.remembered, &self.found) {
            (Remembered::Image(image), Some(found)) => image.is_same(&found.image),
            _ => false,
        }
    }

    /// The front-end that was refused is gone.
    pub(crate) fn forget_refusal(&mut self) {
        self.refused = None;
    }

    /// What operators call the image that is there.
    pub(crate) fn name(&self) -> String {
        self.found.as_ref().map_or_else(String::new, |found| found.image.name.clone())
    }

    /// Why its guest waits, if it does.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// How often a guest was refused.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Its image was opened anew. Whether it is another one.
    pub(crate) fn find(&mut self, found: Option<Found>) -> bool {
        let before = std::mem::replace(&mut self.found, found);
        let (Some(before), Some(now)) = (before, &self.found) else { return false };
        !before.image.is_same(&now.image)
    }

    /// Its guest is told of so many bytes. What is to be kept, if its guest is on this image.
    pub(crate) fn resized(&mut self, bytes: u64) -> Option<Image> {
        let found = self.found.as_mut()?;
        *found = found.resized(bytes);
        let image = found.image.clone();
        self.is_known().then(|| {
            self.remembered = Remembered::Image(image.clone());
            image
        })
    }

    /// An operator has its guest go on with what is there. `None`: it would anyway.
    pub(crate) fn accept(&mut self) -> Option<Image> {
        let found = self.found.as_ref()?;
        if (self.is_known() || self.remembered == Remembered::Nothing) && self.refused.is_none() {
            return None;
        }
        // Of another machine's it is known when it is served.
        let image = found.image.told(0);
        self.found = Some(Found { image: image.clone(), ..found.resized(image.bytes) });
        (self.refused, self.before) = (None, None);
        self.remembered = Remembered::Image(image.clone());
        Some(image)
    }

    /// The image is served to other machines from here on. What is to be kept, if it is not what was remembered.
    pub(crate) fn export(&mut self) -> Option<Image> {
        let image = self.found.as_ref()?.image.clone();
        let now = Remembered::Image(image.clone());
        (std::mem::replace(&mut self.remembered, now.clone()) != now).then_some(image)
    }

    /// What clients of this daemon are told of the image ([`Image::number`]).
    pub(crate) fn number(&self) -> u64 {
        self.found.as_ref().map_or(0, |found| found.image.number())
    }

    /// The image of another machine that the guest of this disk was on, as its IOhost told it; 0: not known.
    pub(crate) fn told_number(&self) -> u64 {
        match &self.remembered {
            Remembered::Image(image) if self.is_known() => image.told_number().unwrap_or(0),
            _ => 0,
        }
    }

    /// Its IOhost serves that image to it from here on; 0: whatever it has. What is to be kept, if it is not kept yet.
    pub(crate) fn tell(&mut self, number: u64) -> Option<Image> {
        let found = self.found.as_mut()?;
        let before = found.image.told_number()?;
        let is_known = match &self.remembered {
            // Whatever number it had.
            Remembered::Image(image) => image.told(number).is_same(&found.image.told(number)),
            Remembered::Nothing | Remembered::Unreadable(_) => false,
        };
        found.image = found.image.told(number);
        let image = found.image.clone();
        let now = Remembered::Image(image.clone());
        if !is_known || before == number && self.remembered == now {
            return None;
        }
        self.remembered = now;
        Some(image)
    }

    /// Its guest has gone elsewhere in order: whatever it is on when it comes back is not known here.
    pub(crate) fn part(&mut self) -> bool {
        let had = self.remembered != Remembered::Nothing;
        (self.remembered, self.before, self.refused) = (Remembered::Nothing, None, None);
        had
    }
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
    pub(crate) fn keep_image(&self, id: &str, image: &Image) {
        if let Err(error) = self.bonds.keep(id, image, |id| self.plan.disk(id).is_some()) {
            warn!(
                disk = id,
                "that its guest is on {image} cannot be kept: after a restart of the daemon it would be \
                 served from another image, too: {error}"
            );
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
        if let Some(device) = self.devices.get_mut(&number) {
            for queue in &mut device.queues {
                (queue.gave_up, queue.problem) = (None, None);
            }
        }
        self.touched.insert(number);
        self.settle();
        self.show(id, true)
    }
}

#[cfg(test)]
mod tests;
