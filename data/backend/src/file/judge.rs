//! What the kernel's answer to one command means for its request.

use request::{Op, Request, Status};
use rustix::io::Errno;

use super::open::Lack;
use super::{File, Progress, Step};
use crate::Started;
use crate::sys::{PIECES_MAX, ZEROES_MAX};

/// How often one command is repeated when the kernel says to come again.
const TRIES_MAX: u8 = 8;

impl File {
    /// What the kernel's answer means: the end, or (`None`) that [`Self::next`] goes on.
    #[inline]
    pub(super) fn after(
        &mut self,
        result: i32,
        request: &Request<'_>,
        progress: &mut Progress,
    ) -> Option<Started> {
        if was_sync(request.op, progress) {
            self.opened.faults.count_sync();
        }
        if result < 0 {
            return self.refused(
                Errno::from_raw_os_error(result.wrapping_neg()),
                request,
                progress,
            );
        }
        let ended = match (request.op, progress.step) {
            (Op::Flush, _) | (_, Step::Sync) => {
                // One of several flushes at a time is told of a failure, and all have failed.
                let ok = !self.opened.sync_failed();
                Some(if ok { Status::Ok } else { Status::IoError })
            }
            (Op::Discard, _) => Some(Status::Ok),
            (Op::Read | Op::Write { .. }, _) | (Op::WriteZeroes { .. }, Step::Fill) => {
                self.transferred(result as u32, request, progress)
            }
            (Op::WriteZeroes { unmap: false, .. }, Step::Punch) => {
                progress.step = Step::Reserve;
                None
            }
            (Op::WriteZeroes { .. }, _) => self.stabilize(request, progress),
        };
        ended.map(Started::Done)
    }

    #[inline]
    fn transferred(
        &self,
        bytes: u32,
        request: &Request<'_>,
        progress: &mut Progress,
    ) -> Option<Status> {
        progress.done += u64::from(bytes);
        progress.tries = 0;
        if progress.done >= request.len {
            return self.stabilize(request, progress);
        }
        if bytes == 0 {
            // The file has become shorter than it was.
            self.opened.faults.count_short();
            return Some(Status::IoError);
        }
        let whole = match progress.step {
            Step::Fill => u64::from(bytes) == ZEROES_MAX,
            _ => bytes == progress.asked || request.segments.len() > PIECES_MAX,
        };
        if !whole {
            self.opened.faults.count_short();
        }
        None
    }

    /// All is written; what is asked to be stable, and is not yet, is synced.
    #[inline]
    fn stabilize(&self, request: &Request<'_>, progress: &mut Progress) -> Option<Status> {
        let sync = match request.op {
            Op::Write { sync } => sync && progress.unstable,
            Op::WriteZeroes { sync, .. } => sync,
            _ => false,
        };
        if sync {
            progress.step = Step::Sync;
            return None;
        }
        Some(Status::Ok)
    }

    #[cold]
    fn refused(
        &mut self,
        error: Errno,
        request: &Request<'_>,
        progress: &mut Progress,
    ) -> Option<Started> {
        // Nothing here cancels requests: the kernel does with all that wait for a worker thread (io-wq) when it
        // cannot make one.
        let is_undone = matches!(error, Errno::AGAIN | Errno::INTR | Errno::CANCELED);
        if is_undone && progress.tries < TRIES_MAX {
            progress.tries += 1;
            return None;
        }
        let unsupported = matches!(error, Errno::OPNOTSUPP | Errno::NOSYS);
        match (request.op, progress.step) {
            (Op::Flush, _) | (_, Step::Sync) => self.opened.latch_sync_failed(),
            (Op::Discard, _) if unsupported => {
                self.opened.note_lack(Lack::PunchHole);
                return Some(Started::Done(Status::Unsupported));
            }
            // Less than a block of the device: nothing to give back, and nothing was promised.
            (Op::Discard, _) if error == Errno::INVAL => return Some(Started::Done(Status::Ok)),
            (_, Step::Punch) if unsupported => {
                self.without(Lack::PunchHole, progress);
                return None;
            }
            (_, Step::ZeroRange) if unsupported => {
                self.without(Lack::ZeroRange, progress);
                return None;
            }
            (_, Step::Punch | Step::ZeroRange) if error == Errno::INVAL => {
                progress.step = Step::Fill;
                return None;
            }
            // The zeroes are there already.
            (_, Step::Reserve) if unsupported => {
                return self.stabilize(request, progress).map(Started::Done);
            }
            // Asked of this write, not of the disk: several may be in flight when the first is refused.
            (Op::Write { sync: true }, _) if unsupported && !progress.unstable => {
                self.opened.note_lack(Lack::StableWrite);
                return None;
            }
            (Op::Read | Op::Write { .. }, _) | (_, Step::Fill)
                if error == Errno::INVAL && !progress.cached_only =>
            {
                // Aligned by the facts, and refused all the same.
                progress.cached_only = true;
                return None;
            }
            (Op::Write { sync: true }, _) if !progress.unstable && !is_about_this_write(error) => {
                self.opened.latch_sync_failed();
            }
            // What a sync lost is lost, whatever there is room for later: only this one waits.
            _ => {
                if let Some(stall) = self.opened.waits.with(error) {
                    return Some(Started::Stalled(stall));
                }
            }
        }
        self.opened.faults.count(error);
        Some(Started::Done(Status::IoError))
    }

    /// Chooses another way to make zeroes.
    fn without(&self, lack: Lack, progress: &mut Progress) {
        self.opened.note_lack(lack);
        progress.step = Step::Start;
    }
}

/// Whether the command that ended asked for something to be stable.
#[inline]
fn was_sync(op: Op, progress: &Progress) -> bool {
    match (op, progress.step) {
        (Op::Flush, _) | (_, Step::Sync) => true,
        (Op::Write { sync }, _) => sync && !progress.unstable,
        _ => false,
    }
}

/// Whether a failed stable write failed before anything was written, so that it says nothing about
/// data written earlier.
fn is_about_this_write(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::FAULT | Errno::INVAL | Errno::BADF
    )
}
