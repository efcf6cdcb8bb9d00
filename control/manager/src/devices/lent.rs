//! Descriptors that came from outside: closed, and written to, where nobody waits.
//!
//! The last close of a file may take as long as its maker wants: a socket that lingers, a file
//! system of the front-end's own, or a Unix socket in whose buffer such a descriptor lies. So all but
//! eventfds and memfds are closed by a thread of the disk that they came to, which lives while there
//! is something to do. A write to an eventfd of theirs may wait as well: they can have made it block,
//! and filled it. So there is one thread for closing and another for writing, which waits for 10 ms at most:
//! a full counter tells as much as one more, and one whose reader is gone would keep thread and descriptor
//! for good. A tenant that fills the first one's queue is not listened to ([`Closer::is_full`]), so it
//! holds that and what the few connections of one disk hold.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use confine::Kind;
use sidecore::Alarm;

use crate::threads;
/// With one message. One may bring 32: those of a table of memory are kept, and counted so beforehand; others
/// are extra.
pub(crate) const MESSAGE_DESCRIPTORS: u64 = 1;

/// Descriptors that wait to be closed before their disk takes no more.
const UNCLOSED_MAX: usize = 256;

/// How many descriptors wait to be closed, or written to, in the queues of all closers that count here: they are still
/// open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unclosed(Arc<AtomicU64>);

impl Unclosed {
    /// So many.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A descriptor that a front-end sent, or its connection itself.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Taken only by `drop`.
    fd: Option<OwnedFd>,
    closer: Closer,
}

impl Lent {
    pub(crate) fn new(fd: OwnedFd, closer: &Closer) -> Lent {
        Lent { fd: Some(fd), closer: closer.clone() }
    }

    /// One more descriptor of the same, for a sidecore. Only of what [`closes_at_once`].
    ///
    /// # Errors
    /// None is left.
    pub(crate) fn try_clone(&self) -> io::Result<OwnedFd> {
        match &self.fd {
            Some(fd) => fd.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            // Only in `drop`, which does not ask.
            None => rustix::stdio::stdin(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            self.closer.close(fd);
        }
    }
}

/// Whether the last close of it never waits. Neither question reaches the file's maker: only memory
/// files know seals, and the name of an eventfd cannot be a path.
pub(crate) fn closes_at_once(fd: &impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_eventfd(fd)
}

/// Whether it is an eventfd.
pub(crate) fn is_eventfd(fd: &impl AsFd) -> bool {
    kind_of(fd).is_ok_and(|kind| kind == "anon_inode:[eventfd]")
}

/// What the kernel calls it.
pub(crate) fn kind_of(fd: &impl AsFd) -> io::Result<String> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))?;
    Ok(link.display().to_string())
}

/// Closes and writes what may take long, for one disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closer {
    closing: Worker,
    signalling: Worker,
}

/// A thread that lives while there is something to do, and what that is.
#[derive(Clone, Debug, Default)]
struct Worker {
    queue: Arc<Mutex<Queue>>,
    unclosed: Unclosed,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    has_thread: bool,
}

#[derive(Debug)]
enum Job {
    Close(OwnedFd),
    /// Adds one to an eventfd, then closes it.
    Signal(OwnedFd),
}

impl Closer {
    /// One whose queues are counted there.
    pub(crate) fn counted_in(unclosed: &Unclosed) -> Closer {
        let worker = || Worker { unclosed: unclosed.clone(), ..Worker::default() };
        Closer { closing: worker(), signalling: worker() }
    }

    /// Closes `fd`, at once or by and by. Never waits.
    pub(crate) fn close(&self, fd: OwnedFd) {
        if closes_at_once(&fd) {
            return;
        }
        self.add(Job::Close(fd));
    }

    /// Adds one to an eventfd of a front-end's, by and by. Left out when as much waits already
    /// as may. Never waits.
    pub(crate) fn signal(&self, eventfd: OwnedFd) {
        if !self.signalling.is_full() {
            self.add(Job::Signal(eventfd));
        }
    }

    /// Whether so much waits to be closed that nothing more should be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.closing.is_full()
    }

    /// Whether more waits than comes with one message.
    pub(crate) fn is_behind(&self) -> bool {
        self.closing.waits() > MESSAGE_DESCRIPTORS as usize
    }

    fn add(&self, job: Job) {
        match job {
            Job::Close(_) => self.closing.add(job),
            Job::Signal(_) => self.signalling.add(job),
        }
    }
}

impl Worker {
    fn add(&self, job: Job) {
        let mut queue = self.queue();
        queue.jobs.push_back(job);
        self.unclosed.0.fetch_add(1, Ordering::Relaxed);
        if !queue.has_thread {
            let worker = self.clone();
            // Without a thread they wait for the next one.
            queue.has_thread =
                threads::begin("closer", Kind::Closer, move || worker.work()).is_ok();
        }
    }

    fn is_full(&self) -> bool {
        self.waits() >= UNCLOSED_MAX
    }

    fn waits(&self) -> usize {
        self.queue().jobs.len()
    }

    fn work(&self) {
        let mut alarm = None;
        while let Some(job) = self.next() {
            match job {
                Job::Close(fd) => drop(fd),
                Job::Signal(fd) => add_one(&fd, &mut alarm),
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        let job = queue.jobs.pop_front();
        queue.has_thread = job.is_some();
        if job.is_some() {
            self.unclosed.0.fetch_sub(1, Ordering::Relaxed);
        }
        job
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds one to an eventfd. Waits for 10 ms at most where it is full and was made to block.
fn add_one(eventfd: &OwnedFd, alarm: &mut Option<Alarm>) {
    if alarm.is_none() {
        *alarm = Alarm::new().ok();
    }
    // Without a timer it could wait for ever.
    let Some(alarm) = alarm else { return };
    alarm.start();
    // An error says that it is full, or that its owner has made something else of it.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
    alarm.stop();
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_never_waits_is_known_by_the_kernels_word() {
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let memfd = rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(closes_at_once(&eventfd) && closes_at_once(&memfd));
        let (socket, _end) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = tempfile::tempfile_in(".").unwrap();
        assert!(!closes_at_once(&socket) && !closes_at_once(&file));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "that nobody waits is what is tested")]
    fn an_eventfd_that_blocks_holds_up_nobody() {
        let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let closer = Closer::default();
        let began = Instant::now();
        closer.signal(full.try_clone().unwrap());
        // Nobody reads: whoever waited here would wait for ever.
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        // Nobody reads it: thread and descriptor are given back all the same, and the counter says it.
        has_ended(&closer);
        let mut counted = [0; 8];
        rustix::io::read(&full, &mut counted).unwrap();
        assert_eq!(u64::from_ne_bytes(counted), u64::MAX - 1);
        closer.signal(full.try_clone().unwrap());
        rustix::io::read(&full, &mut counted).unwrap();
        assert_eq!(u64::from_ne_bytes(counted), 1);
    }

    /// Waits until nobody signals any more.
    #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
    fn has_ended(closer: &Closer) {
        let begun = Instant::now();
        while closer.signalling.queue().has_thread {
            assert!(begun.elapsed() < Duration::from_secs(90), "a write to a full eventfd waits");
            std::thread::yield_now();
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test that is stuck must end")]
    fn signals_that_nobody_takes_keep_nothing_from_being_closed() {
        let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let closer = Closer::default();
        for _ in 0..=UNCLOSED_MAX {
            closer.signal(full.try_clone().unwrap());
        }
        assert!(!closer.is_full());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        closer.close(ours.into());
        let begun = Instant::now();
        theirs.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
        assert_eq!(io::Read::read(&mut &theirs, &mut [0]).ok(), Some(0), "{:?}", begun.elapsed());
        has_ended(&closer);
    }

    /// A socket with unsent bytes that lingers: its last close waits so long.
    fn lingering(time: Duration) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let silent = listener.accept().unwrap().0;
        rustix::net::sockopt::set_socket_linger(&sender, Some(time)).unwrap();
        sender.set_nonblocking(true).unwrap();
        while io::Write::write(&mut &sender, &[0; 65536]).is_ok() {}
        (sender.into(), silent)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "how long a close takes is what is tested")]
    fn a_close_that_lingers_holds_up_nobody() {
        let closer = Closer::default();
        let (fd, _silent) = lingering(Duration::from_secs(300));
        let began = Instant::now();
        drop(Lent::new(fd, &closer));
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(closer.closing.queue().has_thread);
        let (alone, _silent_too) = lingering(Duration::from_secs(2));
        drop(alone);
        assert!(began.elapsed() > Duration::from_secs(1), "the close of the test does not linger");
    }

    #[test]
    fn what_waits_counts_where_its_closer_does_and_nowhere_else() {
        let (unclosed, others) = (Unclosed::default(), Unclosed::default());
        let [closer, other] = [&unclosed, &others].map(Closer::counted_in);
        let (fd, _silent) = lingering(Duration::from_secs(300));
        closer.close(fd);
        while unclosed.count() > 0 {
            std::thread::yield_now();
        }
        // Behind one that is being closed, for long.
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        closer.close(ours.into());
        assert_eq!((unclosed.count(), others.count()), (1, 0));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        other.close(ours.into());
        assert_eq!(io::Read::read(&mut &theirs, &mut [0]).ok(), Some(0));
        assert_eq!((unclosed.count(), others.count()), (1, 0));
    }
}
