//! Which image each disk's guest is on, kept beyond the daemon's end and beyond the disk's own: a guest
//! that comes back is served from that image alone.
//!
//! A file for each disk, written whole, synced and renamed before the guest's first request. Not here:
//! which images are the same, and the rule (`image`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use config::api::{Answer, ApiError, ErrorKind};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::image::{Found, Image, Verdict, judge};
use crate::manager::Manager;

const FORMAT: &str = "sidecore-image";
const VERSION: u64 = 1;
/// Longest file that is read, bytes: a name of 4,095 bytes, each of them escaped, and the facts.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Files that are kept; beyond that the oldest goes. Four times as many as a daemon has disks.
const FILES_MAX: usize = 4 * config::spec::DISKS_MAX;

/// What is kept by one daemon.
pub(crate) struct Images {
    folder: PathBuf,
    /// This boot of the host.
    boot: String,
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
struct Kept {
    format: String,
    version: u64,
    image: Image,
}

impl Images {
    /// Reads which boot this is: later on there may be no such file for this process.
    pub(crate) fn in_folder(state_dir: &str) -> Images {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Images { folder: Path::new(state_dir).join("images"), boot: boot.trim().to_string() }
    }

    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// The image that the guest of disk `id` was on last.
    pub(crate) fn of(&self, id: &str) -> Remembered {
        let path = self.folder.join(id);
        match read(&path) {
            Ok(image) => Remembered::Image(image),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Remembered::Nothing,
            Err(error) => Remembered::Unreadable(format!("{}: {error}", path.display())),
        }
    }

    /// Keeps the image that the guest of disk `id` is on. When this returns, it survives a power cut.
    ///
    /// # Errors
    /// What the file system said; what was kept before is still there.
    pub(crate) fn keep(&self, id: &str, image: &Image) -> io::Result<()> {
        let is_new_folder = !self.folder.exists();
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(id);
        if !path.exists() {
            self.make_room()?;
        }
        let kept = Kept { format: FORMAT.to_string(), version: VERSION, image: image.clone() };
        // Names of disks begin with a letter or a digit.
        let temporary = self.folder.join(format!(".{id}"));
        let mut file = File::create(&temporary)?;
        writeln!(file, "{}", serde_json::to_string(&kept)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(&self.folder)?.sync_all()?;
        match self.folder.parent().filter(|_| is_new_folder) {
            Some(above) => File::open(above)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Forgets what the guest of disk `id` was on.
    ///
    /// # Errors
    /// What the file system said; it is still kept.
    pub(crate) fn forget(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the oldest file when there are as many as are kept.
    fn make_room(&self) -> io::Result<()> {
        let entries: Vec<fs::DirEntry> = fs::read_dir(&self.folder)?.flatten().collect();
        if entries.len() < FILES_MAX {
            return Ok(());
        }
        let time = |entry: &&fs::DirEntry| {
            entry.metadata().and_then(|facts| facts.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
        };
        match entries.iter().min_by_key(time) {
            Some(oldest) => fs::remove_file(oldest.path()),
            None => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<Image> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let kept: Kept = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match (kept.format.as_str(), kept.version) {
        (FORMAT, VERSION) => Ok(kept.image),
        (FORMAT, version) => Err(wrong(format!("it is of version {version}, of a newer program"))),
        _ => Err(wrong(format!("`format` is not {FORMAT:?}"))),
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
    pub(crate) fn new(found: Option<Found>, remembered: Remembered) -> Bond {
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
        let image = self.found.as_ref()?.image.clone();
        if (self.is_known() || self.remembered == Remembered::Nothing) && self.refused.is_none() {
            return None;
        }
        (self.refused, self.before) = (None, None);
        if let Some(found) = &mut self.found {
            *found = found.resized(image.bytes);
        }
        self.remembered = Remembered::Image(image.clone());
        Some(image)
    }

    /// The image is served to other machines from here on. What is to be kept, if it is not what was
    /// remembered; and whether that was another image.
    pub(crate) fn export(&mut self) -> Option<(Image, bool)> {
        let image = self.found.as_ref()?.image.clone();
        let is_other = self.remembered != Remembered::Nothing && !self.is_known();
        let now = Remembered::Image(image.clone());
        (std::mem::replace(&mut self.remembered, now.clone()) != now).then_some((image, is_other))
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
        if let Err(error) = self.images.keep(id, image) {
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
mod tests {
    use super::*;

    fn of_state(folder: &Path) -> Images {
        Images::in_folder(folder.to_str().expect("text"))
    }

    fn image(name: &str) -> Image {
        let text = format!(
            r#"{{"name":"{name}","boot":"b","bytes":512,"what":{{"kind":"file","device":[8,1],"inode":7}}}}"#
        );
        serde_json::from_str(&text).expect("an image")
    }

    #[test]
    fn what_is_kept_is_found_by_the_next_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let images = of_state(folder.path());
        assert_eq!(images.of("vm1"), Remembered::Nothing);
        images.keep("vm1", &image("/a")).expect("kept");
        images.keep("vm1.new", &image("/b")).expect("kept");
        let again = of_state(folder.path());
        assert_eq!(again.of("vm1"), Remembered::Image(image("/a")));
        assert_eq!(again.of("vm1.new"), Remembered::Image(image("/b")));
        again.forget("vm1").expect("forgotten");
        again.forget("vm1").expect("nothing to forget");
        assert_eq!(again.of("vm1"), Remembered::Nothing);
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let images = of_state(folder.path());
        images.keep("vm1", &image("/a")).expect("kept");
        let path = folder.path().join("images/vm1");
        let text = fs::read_to_string(&path).expect("text");
        for damaged in [
            String::new(),
            text[..text.len() / 2].to_string(),
            text.replace("\"version\":1", "\"version\":2"),
            text.replace(FORMAT, "sidecore-state"),
            "x".repeat(1 << 20),
        ] {
            fs::write(&path, &damaged).expect("written");
            let found = images.of("vm1");
            assert!(matches!(found, Remembered::Unreadable(_)), "{found:?}");
            let bond = Bond::new(None, found);
            assert!(matches!(bond.judge("vm1", 0, true), Verdict::Other(_)), "a running driver");
            assert_eq!(bond.judge("vm1", 0, false), Verdict::Remember);
        }
    }

    #[test]
    fn only_so_many_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let images = of_state(folder.path());
        fs::create_dir_all(&images.folder).expect("a folder");
        for number in 0..FILES_MAX {
            fs::write(images.folder.join(format!("d{number}")), "").expect("written");
        }
        images.keep("vm1", &image("/a")).expect("kept");
        assert_eq!(fs::read_dir(&images.folder).expect("entries").count(), FILES_MAX);
        assert_eq!(images.of("vm1"), Remembered::Image(image("/a")));
    }
}
