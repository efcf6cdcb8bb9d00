//! Last closes of images: one takes as long as its file system wants, since what was kept back is written
//! then, and its locks go.
//!
//! One thread closes for each file system or device, and ends when nothing is left; so one that is dead
//! keeps one thread, whatever else its images keep. Not here: the last close of a disk whose locks follow
//! its rings (`disk::locks`). Called by `openers`.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use backend::Disk;
use confine::Kind;
use names::Medium;

use super::Wake;
use crate::disk::images::{self, FileId, ImageNames};
use crate::threads::{self, Before};

/// What is to be closed, and what was. As many as there were disks open at most.
#[derive(Clone, Default)]
pub(super) struct Closings(Arc<Inner>);

#[derive(Default)]
struct Inner {
    list: Mutex<List>,
    /// Something was closed.
    closed: Condvar,
}

#[derive(Default)]
struct List {
    waiting: VecDeque<Closing>,
    /// Media whose thread runs.
    running: BTreeSet<Medium>,
    /// What these are at.
    under_way: Vec<(Medium, PathBuf)>,
    /// Devices whose images are closed, and of which nobody has been told.
    over: Vec<u32>,
}

/// An image that is closed for the last time.
pub(super) struct Closing {
    pub(super) medium: Medium,
    pub(super) path: PathBuf,
    pub(super) disk: Arc<Disk>,
    /// It was made for a disk of which nothing has come, and is removed.
    pub(super) made: Option<(ImageNames, FileId)>,
    /// The device that it was of, if its end is waited for.
    pub(super) device: Option<u32>,
}

impl Closings {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an image closed; who calls it waits for nothing.
    pub(super) fn close(&self, closing: Closing, wake: &Wake) {
        self.list().waiting.push_back(closing);
        self.go_on(wake);
    }

    /// Has threads for all that waits; those that could not be had before are asked for again.
    pub(super) fn go_on(&self, wake: &Wake) {
        let idle: BTreeSet<Medium> = {
            let list = self.list();
            let media = list.waiting.iter().map(|closing| closing.medium.clone());
            media.filter(|medium| !list.running.contains(medium)).collect()
        };
        for medium in idle {
            self.list().running.insert(medium.clone());
            let (closings, wake, of) = (self.clone(), wake.clone(), medium.clone());
            let begun = threads::begin("opener", Kind::Opener, move || closings.run(&of, &wake));
            if begun.is_err() {
                self.list().running.remove(&medium);
            }
        }
    }

    fn run(&self, medium: &Medium, wake: &Wake) {
        while let Some(Closing { path, disk, device, made, .. }) = self.next(medium) {
            // Nobody looks after it any more, and who opens it next may be another daemon.
            disk.mark_lost();
            drop(disk);
            if let Some((names, made)) = made {
                images::unmake(&path, names, made);
            }
            let mut list = self.list();
            list.under_way.retain(|(of, _)| of != medium);
            list.over.extend(device);
            drop((list, path));
            self.0.closed.notify_all();
            wake.wake();
        }
    }

    /// The next one of a medium; nothing: its thread has ended.
    fn next(&self, medium: &Medium) -> Option<Closing> {
        let mut list = self.list();
        let at = list.waiting.iter().position(|closing| closing.medium == *medium);
        let next = at.and_then(|at| list.waiting.remove(at));
        match &next {
            Some(closing) => {
                let under_way = (medium.clone(), closing.path.clone());
                list.under_way.push(under_way);
            }
            None => drop(list.running.remove(medium)),
        }
        next
    }

    /// What whoever opens the image of that name waits for, or he would meet this process's own lock.
    pub(super) fn last_of(&self, path: &Path) -> LastClose {
        LastClose { closings: self.clone(), path: path.to_path_buf() }
    }

    /// Devices whose images were closed since this was asked last.
    pub(super) fn take_over(&self) -> Vec<u32> {
        std::mem::take(&mut self.list().over)
    }

    /// Whether something is not closed yet.
    pub(super) fn is_any(&self) -> bool {
        let list = self.list();
        !list.waiting.is_empty() || !list.under_way.is_empty()
    }
}

/// The last close of what has that name, if one is under way.
pub(super) struct LastClose {
    closings: Closings,
    path: PathBuf,
}

impl LastClose {
    fn is_in(&self, list: &List) -> bool {
        list.waiting.iter().any(|closing| closing.path == self.path)
            || list.under_way.iter().any(|(_, other)| *other == self.path)
    }
}

impl Before for LastClose {
    #[cfg(any(test, feature = "simulated"))]
    fn is_over(&self) -> bool {
        !self.is_in(&self.closings.list())
    }

    fn wait(&self) {
        let Closings(inner) = &self.closings;
        let waited = inner.closed.wait_while(self.closings.list(), |list| self.is_in(list));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
