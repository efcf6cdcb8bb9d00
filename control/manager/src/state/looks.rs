//! Looks at the folder in which a daemon keeps its state, for operators who ask how that is.
//!
//! A thread looks, because a look waits for as long as a file system does: there is one at a time. Whoever asks is told
//! of a look that began after he asked, or after [`LOOK_TIME_MAX`] that there is no answer. Not here: what is looked at
//! (`super::check_folder`), and what is kept.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use confine::Kind;
use rustix::event::{EventfdFlags, eventfd};

use super::check_folder;
use crate::api::Reply;
use crate::poll::{Poll, Token};
use crate::threads;

/// How long a folder may take to be looked at; one that answers takes less than a millisecond.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);

/// What a look has found: nothing, where all is well.
type Problem = Option<String>;

/// The looks of one daemon, and who waits for them.
pub(crate) struct FolderLooks {
    folder: String,
    /// The file that this daemon's lock is.
    lock: Option<(u64, u64)>,
    /// The look that is under way.
    under_way: Option<Look>,
    /// Those who have asked since it began.
    next: Vec<(Reply, Instant)>,
    /// Readable when a look has ended.
    bell: Arc<OwnedFd>,
}

struct Look {
    found: Receiver<Problem>,
    since: Instant,
    asked: Vec<(Reply, Instant)>,
}

/// Operators who are to be told, and what.
pub(crate) struct Told {
    pub(crate) replies: Vec<Reply>,
    pub(crate) problem: Problem,
}

impl FolderLooks {
    /// Of a folder, for a loop that hears of the end of each look.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn of(folder: &str, poll: &Poll) -> io::Result<FolderLooks> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        poll.add(&bell, Token::Folder)?;
        let (folder, bell) = (folder.to_string(), Arc::new(bell));
        Ok(FolderLooks { folder, lock: None, under_way: None, next: Vec::new(), bell })
    }

    /// An operator is told of the next look, in which the daemon's lock is to be `lock`. What he is told at once, if
    /// there can be none.
    pub(crate) fn ask(
        &mut self,
        reply: Reply,
        lock: Option<(u64, u64)>,
        now: Instant,
    ) -> Option<Told> {
        self.lock = lock;
        self.next.push((reply, now));
        self.begin(now)
    }

    /// Begins a look, if somebody waits for one and none is under way.
    fn begin(&mut self, now: Instant) -> Option<Told> {
        if self.under_way.is_some() || self.next.is_empty() {
            return None;
        }
        let asked = std::mem::take(&mut self.next);
        let (tell, found) = channel();
        let (folder, lock, bell) = (self.folder.clone(), self.lock, Arc::clone(&self.bell));
        let begun = threads::begin("folder", Kind::Opener, move || {
            // Nobody hears it when the daemon has ended.
            let _ = tell.send(check_folder(&folder, lock).err().map(|why| why.to_string()));
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        });
        match begun {
            Ok(_) => {
                self.under_way = Some(Look { found, since: now, asked });
                None
            }
            Err(error) => {
                let problem = format!("{}: no thread can look at it: {error}", self.folder);
                Some(Told { replies: replies(asked), problem: Some(problem) })
            }
        }
    }

    /// A look has ended: see [`Self::take`].
    pub(crate) fn hear(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
    }

    /// What whoever waits no longer is told: a look has ended, or was waited for too long.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Told> {
        let found = self.under_way.as_ref().and_then(|look| look.found.try_recv().ok());
        let mut told = Vec::new();
        if let Some(problem) = found
            && let Some(look) = self.under_way.take()
        {
            told.push(Told { replies: replies(look.asked), problem });
        }
        told.extend(self.begin(now));
        told.extend(self.take_overdue(now));
        told
    }

    fn take_overdue(&mut self, now: Instant) -> Option<Told> {
        let look = self.under_way.as_mut()?;
        let is_due = |(_, asked): &mut (Reply, Instant)| *asked + LOOK_TIME_MAX <= now;
        let due: Vec<_> = look.asked.extract_if(.., is_due).collect();
        let due: Vec<_> = due.into_iter().chain(self.next.extract_if(.., is_due)).collect();
        let problem = format!(
            "{} has not answered for {} s: see what its file system waits for (`dmesg`); until it answers nothing \
             that is made or changed by command can be kept",
            self.folder,
            now.saturating_duration_since(look.since).as_secs()
        );
        (!due.is_empty()).then(|| Told { replies: replies(due), problem: Some(problem) })
    }

    /// When the next is told in any case.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let look = self.under_way.as_ref()?;
        let asked = look.asked.iter().chain(&self.next).map(|(_, asked)| *asked + LOOK_TIME_MAX);
        asked.min()
    }

    /// Those who wait are told nothing of it: this process ends, or lets go.
    pub(crate) fn take_all(&mut self) -> Vec<Reply> {
        let asked = self.under_way.as_mut().map(|look| std::mem::take(&mut look.asked));
        replies(asked.into_iter().flatten().chain(std::mem::take(&mut self.next)))
    }
}

fn replies(asked: impl IntoIterator<Item = (Reply, Instant)>) -> Vec<Reply> {
    asked.into_iter().map(|(reply, _)| reply).collect()
}

#[cfg(test)]
mod tests;
