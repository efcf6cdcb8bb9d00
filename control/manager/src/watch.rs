//! A look once a second whether the images of disks are where they were: others may remove, replace, cut
//! or grow them under a running guest, and the kernel tells nobody.
//!
//! Threads of their own look, because a look waits for as long as a file system does. Each disk has at
//! most one look under way, and each second begins at most [`LOOKS_MAX`]. Not here: what is compared
//! (`backend::Disk::astray`).

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backend::{Astray, Disk};
use confine::Kind;
use tracing::{debug, info, warn};

use crate::disk::DiskParts;
use crate::images::ImageNames;
use crate::manager::Manager;

/// Between two looks at one disk, while there are no more than [`LOOKS_MAX`].
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks that are begun at once.
const LOOKS_MAX: usize = 256;
/// Threads that look: as many file systems may be stuck before the others are looked at no more.
const THREADS: usize = 4;

/// One look: at which device's disk.
type Look = (u32, Weak<Disk>, ImageNames);
type Looked = (u32, Weak<Disk>, Option<Astray>);

/// The looks of one daemon.
pub(crate) struct Watch {
    at: Instant,
    /// The device after which the next round begins.
    last: u32,
    under_way: BTreeSet<u32>,
    threads: Option<(SyncSender<Look>, Receiver<Looked>)>,
    has_disks: bool,
}

impl Watch {
    /// The first look is then.
    pub(crate) fn from(now: Instant) -> Watch {
        let (under_way, threads) = (BTreeSet::new(), None);
        Watch { at: now, last: 0, under_way, threads, has_disks: true }
    }

    /// When it looks next; never while there is nothing to look at.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        self.has_disks.then_some(self.at)
    }

    /// Disks were added or opened.
    pub(crate) fn wake(&mut self) {
        self.has_disks = true;
    }

    fn begin(&mut self, number: u32, disk: &Arc<Disk>, names: ImageNames) {
        if self.threads.is_none() {
            self.threads = start().inspect_err(|error| debug!("no thread for looks: {error}")).ok();
        }
        let Some((jobs, _)) = &self.threads else { return };
        if jobs.try_send((number, Arc::downgrade(disk), names)).is_ok() {
            self.under_way.insert(number);
        }
    }

    fn take(&mut self) -> Option<Looked> {
        let (_, looked) = self.threads.as_ref()?;
        match looked.try_recv() {
            Ok(looked) => {
                self.under_way.remove(&looked.0);
                Some(looked)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                self.threads = None;
                self.under_way.clear();
                None
            }
        }
    }
}

/// Starts the threads. They end when the daemon forgets them.
fn start() -> std::io::Result<(SyncSender<Look>, Receiver<Looked>)> {
    let (give, jobs) = sync_channel::<Look>(LOOKS_MAX);
    let (tell, looked) = sync_channel(LOOKS_MAX + THREADS);
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..THREADS {
        let (jobs, tell) = (Arc::clone(&jobs), tell.clone());
        std::thread::Builder::new().name("watch".to_string()).spawn(move || {
            // What it has of control's list is what it keeps when this fails.
            let _ = confine::thread(Kind::Opener);
            loop {
                let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((number, weak, names)) = job else { return };
                // Held no longer than for the look: with the last one its locks go.
                let astray = weak.upgrade().and_then(|disk| disk.astray(&names));
                if tell.send((number, weak, astray)).is_err() {
                    return;
                }
            }
        })?;
    }
    Ok((give, looked))
}

impl DiskParts {
    /// What others have done to its image, and what to do.
    pub(crate) fn astray_text(&self) -> Option<String> {
        let path = self.plan.source.path().filter(|_| self.is_here())?;
        let (id, size) = (&self.plan.id, self.disk.size_bytes());
        Some(match self.astray? {
            Astray::Removed => format!(
                "{path} was removed or renamed: its guest goes on with a file that has no such name, and what \
                 has no name at all is lost when the daemon closes it; put it back, or copy the disk from \
                 within the guest"
            ),
            Astray::Replaced => format!(
                "{path} is another image than the one that its guest is on: the guest goes on with that one \
                 until the disk is opened again, and then waits; put it back, or restart the guest to have \
                 the new one"
            ),
            Astray::Cut { bytes } => format!(
                "{path} was cut to {bytes} bytes, and its guest has a disk of {size}: requests beyond the end \
                 fail, and what was there is lost; restore it"
            ),
            Astray::Grown { bytes } => format!(
                "{path} has grown to {bytes} bytes, and its guest has a disk of {size}: `sidecore disk resize \
                 {id} {}` gives it the rest",
                bytes / 512 * 512
            ),
        })
    }
}

impl Manager {
    /// Notes what was seen, and looks again when that is due.
    pub(crate) fn watch_images(&mut self, now: Instant) {
        if self.watch.at > now {
            return;
        }
        self.watch.at = now + INTERVAL;
        while let Some((number, disk, astray)) = self.watch.take() {
            self.note_astray(number, &disk, astray);
        }
        let is_open = |parts: &&DiskParts| parts.plan.source.path().is_some() && parts.is_here();
        let open: Vec<u32> = self
            .devices
            .iter()
            .filter(|(_, device)| device.kind.disk().filter(is_open).is_some())
            .map(|(number, _)| *number)
            .collect();
        self.watch.has_disks = !open.is_empty();
        let (before, after): (Vec<u32>, Vec<u32>) =
            open.into_iter().partition(|number| *number <= self.watch.last);
        for number in after.into_iter().chain(before).take(LOOKS_MAX) {
            self.watch.last = number;
            if self.watch.under_way.contains(&number) {
                continue;
            }
            if let Some(disk) = self.devices.get(&number).and_then(|device| device.kind.disk()) {
                self.watch.begin(number, &disk.disk, ImageNames::of(&disk.plan));
            }
        }
    }

    fn note_astray(&mut self, number: u32, looked_at: &Weak<Disk>, astray: Option<Astray>) {
        let Some(device) = self.devices.get_mut(&number) else { return };
        let Some(parts) = device.kind.disk_mut() else { return };
        // It was resized, let go or opened anew meanwhile.
        if looked_at.as_ptr() != Arc::as_ptr(&parts.disk) {
            return;
        }
        let before = std::mem::replace(&mut parts.astray, astray);
        let kind = |astray: &Option<Astray>| astray.as_ref().map(std::mem::discriminant);
        if kind(&before) == kind(&astray) {
            return;
        }
        let said = parts.astray_text();
        if device.may_log() {
            let id = &device.facts.id;
            match said {
                Some(text) => warn!(disk = id, "{text}"),
                None => info!(disk = id, "its image is as it was again"),
            }
        }
    }
}
