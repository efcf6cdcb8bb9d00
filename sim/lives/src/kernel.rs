//! The kernel and the devices beneath the daemons: commands wait here, and run in any order, late, in part
//! or not at all, whether or not the process that asked still lives.
//!
//! The files are real, empty ones: they are opened and locked by the product's own code. A command holds the
//! description that it was submitted through until it has run, and so its locks, as the real kernel does.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backend::{Asked, Holder, Kernel};
use guests::Trace;
use random::Random;
use rustix::fs::{FlockOperation, flock};

use crate::medium::{Begun, Medium, SECTOR};

/// No process has it.
const READER: u32 = u32::MAX;
/// How often somebody comes, of the looks while requests of a dead process are under way.
const READER_ONE_IN: u64 = 2;

const EIO: i32 = -5;
const EINTR: i32 = -4;
const EAGAIN: i32 = -11;
const EFAULT: i32 = -14;
const ENOSPC: i32 = -28;
const EOPNOTSUPP: i32 = -95;

/// How a disk behaves.
#[derive(Clone, Copy, Debug)]
struct Temper {
    /// A command usually takes up to so long, nanoseconds.
    usual_ns: u64,
    /// One in so many takes up to a hundred times as long; 0: none.
    slow_one_in: u64,
    /// One in so many fails; 0: none.
    fails_one_in: u64,
    /// One sync in so many fails; 0: none.
    sync_fails_one_in: u64,
    /// One transfer in so many is short; 0: none.
    short_one_in: u64,
    /// The file system has no holes.
    lacks_holes: bool,
    /// The file system does not make zeroes.
    lacks_zeroes: bool,
}

/// What has become of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// Failures that it has answered with.
    pub(crate) failures: u64,
    /// A sync has failed.
    pub(crate) sync_failed: bool,
    /// Syncs that failed when nobody was left to be told.
    pub(crate) failed_unheard: u64,
}

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    /// What was opened there last.
    file: Option<(u64, u64)>,
    medium: Medium,
    temper: Temper,
    failures: u64,
    /// A sync has failed: what a daemon keeps in its state folder.
    sync_failed: bool,
    failed_unheard: u64,
    /// Which process has locked it last.
    owner: u32,
}

/// A file as a daemon opened it.
#[derive(Debug)]
struct Known {
    disk: usize,
    direct: bool,
}

#[derive(Debug)]
struct Flight {
    due_ns: u64,
    ring: u64,
    disk: usize,
    direct: bool,
    asked: Asked,
    tag: u64,
    begun: Begun,
    /// The description, with its locks.
    _held: OwnedFd,
}

#[derive(Debug)]
struct Ring {
    done: Arc<OwnedFd>,
    completed: VecDeque<(u64, i32)>,
}

/// Somebody else on the machine, who may read an image and has taken the first lock of it.
#[derive(Debug)]
struct Reader {
    disk: usize,
    until_ns: u64,
    /// The description, with its lock.
    _held: OwnedFd,
}

/// What unwinds a daemon that is killed in the midst of a pass: nothing of what follows is done.
#[derive(Debug)]
pub(crate) struct Killed;

#[derive(Debug)]
struct Inner {
    now_ns: u64,
    random: Random,
    trace: Trace,
    disks: Vec<Disk>,
    known: BTreeMap<RawFd, Known>,
    flights: Vec<Flight>,
    rings: BTreeMap<u64, Ring>,
    rings_made: u64,
    /// Which process asks now.
    process: fn() -> u32,
    reader: Option<Reader>,
    /// Nothing fails any more.
    is_calm: bool,
    /// Who asks something of the kernel next is killed, sooner or later.
    is_doomed: bool,
}

/// One machine's, shared by the daemons that run on it.
#[derive(Debug)]
pub(crate) struct Machinery(Mutex<Inner>);

impl Machinery {
    /// One without a disk; `process` says which process asks.
    pub(crate) fn new(random: Random, trace: Trace, process: fn() -> u32) -> Arc<Machinery> {
        Arc::new(Machinery(Mutex::new(Inner {
            now_ns: 0,
            random,
            trace,
            disks: Vec::new(),
            known: BTreeMap::new(),
            flights: Vec::new(),
            rings: BTreeMap::new(),
            rings_made: 0,
            process,
            reader: None,
            is_calm: false,
            is_doomed: false,
        })))
    }

    /// From now on all disks behave, those that come too.
    pub(crate) fn calm_all(&self) {
        let mut inner = self.inner();
        inner.is_calm = true;
        inner.is_doomed = false;
        inner.reader = None;
        inner.disks.iter_mut().for_each(|disk| disk.temper.calm());
    }

    /// What is to be known of the disk at `path`, once one was opened there.
    pub(crate) fn look(&self, path: &Path) -> Look {
        let inner = self.inner();
        let disk = inner.disks.iter().find(|disk| disk.path == path);
        disk.map_or(Look::default(), |disk| Look {
            failures: disk.failures,
            sync_failed: disk.sync_failed,
            failed_unheard: disk.failed_unheard,
        })
    }

    /// What is read of the disk at `path` now, so many sectors.
    pub(crate) fn read(&self, path: &Path, sectors: usize) -> Vec<u8> {
        let mut bytes = vec![0; sectors * SECTOR];
        let inner = self.inner();
        if let Some(disk) = inner.disks.iter().find(|disk| disk.path == path) {
            disk.medium.read(0, &mut bytes);
        }
        bytes
    }

    /// Whether a process has the locks of an image whose sync has failed: it keeps it until it is told otherwise.
    pub(crate) fn is_kept(&self, path: &Path) -> bool {
        let is_locked =
            |file: std::fs::File| flock(file, FlockOperation::NonBlockingLockExclusive).is_err();
        self.look(path).sync_failed && std::fs::File::open(path).is_ok_and(is_locked)
    }

    /// A daemon is killed in the midst of one of the next passes in which it asks something of the kernel.
    pub(crate) fn doom(&self) {
        self.inner().is_doomed = true;
    }

    /// Kills who asks, if somebody is to be killed.
    fn fate(&self) {
        let mut inner = self.inner();
        if inner.is_doomed && inner.random.one_in(4) {
            inner.is_doomed = false;
            inner.trace.note(inner.now_ns, "killed in a pass", [0, 0, 0]);
            drop(inner);
            // Not a panic: nobody is told of it.
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    /// When the next command runs.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let inner = self.inner();
        let reader = inner.reader.as_ref().map(|reader| reader.until_ns);
        inner.flights.iter().map(|flight| flight.due_ns).chain(reader).min()
    }

    /// Runs what is due. How much that was.
    pub(crate) fn run(&self, now_ns: u64) -> usize {
        let mut inner = self.inner();
        inner.now_ns = now_ns;
        inner.reader.take_if(|reader| reader.until_ns <= now_ns);
        inner.look_in();
        let mut ran = 0;
        while let Some(at) = inner.due() {
            let flight = inner.flights.swap_remove(at);
            inner.execute(flight);
            ran += 1;
        }
        ran
    }

    /// The power fails: what was submitted is done in part or not at all, and caches are lost.
    pub(crate) fn cut(&self) {
        self.cut_in(Path::new("/"));
        self.inner().rings.clear();
    }

    /// The same where only what lies in that folder is a host's whose power has failed.
    pub(crate) fn cut_in(&self, folder: &Path) {
        let mut inner = self.inner();
        let is_cut: Vec<bool> =
            inner.disks.iter().map(|disk| disk.path.starts_with(folder)).collect();
        let flights = inner.flights.extract_if(.., |flight| is_cut[flight.disk]);
        for flight in flights.collect::<Vec<_>>() {
            let is_write = matches!(
                flight.asked,
                Asked::Transfer { write: true, .. }
                    | Asked::Zeroes { .. }
                    | Asked::PunchHole { .. }
            );
            if is_write && inner.random.one_in(2) {
                inner.execute(flight);
            }
        }
        let Inner { disks, random, .. } = &mut *inner;
        let cut = disks.iter_mut().zip(is_cut).filter(|(_, is_cut)| *is_cut);
        cut.for_each(|(disk, _)| disk.medium.cut(random));
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Machinery {
    fn opened(&self, path: &Path, cached: BorrowedFd<'_>, direct: Option<BorrowedFd<'_>>) {
        let mut inner = self.inner();
        let known = inner.disks.iter().position(|disk| disk.path == path);
        let disk = known.unwrap_or_else(|| {
            let mut temper = Temper::draw(&mut inner.random);
            if inner.is_calm {
                temper.calm();
            }
            inner.add(path, 0, temper)
        });
        inner.disks[disk].file = file_of(cached);
        inner.disks[disk].owner = (inner.process)();
        let fds = [(Some(cached), false), (direct, true)];
        for (fd, direct) in fds.into_iter().filter_map(|(fd, direct)| Some((fd?, direct))) {
            inner.known.insert(fd.as_raw_fd(), Known { disk, direct });
        }
    }

    fn sync(&self, file: BorrowedFd<'_>) -> bool {
        let mut inner = self.inner();
        let Some(&Known { disk, .. }) = inner.known.get(&file.as_raw_fd()) else { return false };
        let begun = inner.disks[disk].medium.begin(0, 0, false);
        let is_done = inner.sync(disk, begun.serial) == 0;
        inner.trace.note(inner.now_ns, "synced", [disk as u64, is_done.into(), 0]);
        is_done
    }

    fn holder(&self, file: BorrowedFd<'_>) -> Option<(Holder, bool)> {
        let inner = self.inner();
        let file = file_of(file);
        let is_it = |disk: usize| inner.disks[disk].file == file;
        let has_dead = inner.flights.iter().any(|it| is_it(it.disk) && inner.is_dead(it));
        if inner.reader.as_ref().is_some_and(|reader| is_it(reader.disk)) {
            return Some((Holder::Living(READER), has_dead));
        }
        if has_dead {
            return Some((Holder::Ended(None), false));
        }
        let owner = inner.disks.iter().find(|disk| disk.file == file)?.owner;
        (owner != (inner.process)()).then_some((Holder::Living(owner), false))
    }

    fn ring(&self, done: Arc<OwnedFd>) -> u64 {
        let mut inner = self.inner();
        inner.rings_made += 1;
        let number = inner.rings_made;
        inner.rings.insert(number, Ring { done, completed: VecDeque::new() });
        number
    }

    fn submit(&self, ring: u64, file: RawFd, held: OwnedFd, asked: Asked, tag: u64) {
        self.fate();
        self.inner().submit(ring, file, held, asked, tag);
    }

    fn reap(&self, ring: u64) -> Option<(u64, i32)> {
        self.fate();
        self.inner().rings.get_mut(&ring)?.completed.pop_front()
    }

    fn gone(&self, ring: u64) {
        self.inner().rings.remove(&ring);
    }
}

impl Temper {
    fn draw(random: &mut Random) -> Temper {
        let fails = random.one_in(4);
        let seldom = |random: &mut Random, on: bool| if on { random.between(20, 200) } else { 0 };
        let is_slow = random.one_in(2);
        let is_short = random.one_in(3);
        let sync_fails = random.one_in(8);
        Temper {
            usual_ns: random.of(&[2_000, 10_000, 50_000]),
            slow_one_in: seldom(random, is_slow),
            fails_one_in: seldom(random, fails),
            sync_fails_one_in: seldom(random, sync_fails) / 8,
            short_one_in: seldom(random, is_short) / 4,
            lacks_holes: random.one_in(6),
            lacks_zeroes: random.one_in(6),
        }
    }

    /// Nothing goes wrong any more.
    fn calm(&mut self) {
        (self.slow_one_in, self.fails_one_in, self.short_one_in) = (0, 0, 0);
        self.sync_fails_one_in = 0;
    }
}

impl Inner {
    fn add(&mut self, path: &Path, sectors: usize, temper: Temper) -> usize {
        let medium = Medium::new(sectors);
        let path = path.into();
        self.disks.push(Disk {
            path,
            file: None,
            medium,
            temper,
            failures: 0,
            sync_failed: false,
            failed_unheard: 0,
            owner: 0,
        });
        self.disks.len() - 1
    }

    /// Whether the process that asked has ended.
    fn is_dead(&self, flight: &Flight) -> bool {
        !self.rings.contains_key(&flight.ring)
    }

    /// While requests of a process that has ended are under way, past the page cache alone, somebody may take the first
    /// lock of their image, which no daemon has between two tries.
    fn look_in(&mut self) {
        let dead = self.flights.iter().find(|flight| flight.direct && self.is_dead(flight));
        let Some(disk) = dead.map(|flight| flight.disk) else { return };
        if self.is_calm || self.reader.is_some() || !self.random.one_in(READER_ONE_IN) {
            return;
        }
        let Ok(file) = std::fs::File::open(&self.disks[disk].path) else { return };
        let held = OwnedFd::from(file);
        let is_it = file_of(held.as_fd()) == self.disks[disk].file;
        if is_it && flock(&held, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let until_ns = self.now_ns + self.random.of(&[20_000, 1_000_000, 500_000_000]);
            self.trace.note(self.now_ns, "reader", [disk as u64, until_ns - self.now_ns, 0]);
            self.reader = Some(Reader { disk, until_ns, _held: held });
        }
    }

    fn submit(&mut self, ring: u64, file: RawFd, held: OwnedFd, asked: Asked, tag: u64) {
        let Some(&Known { disk, direct }) = self.known.get(&file) else { return };
        let (kind, offset, len) = facts(&asked);
        let writes = matches!(kind, "write" | "zeroes" | "hole");
        let written = if writes { len as usize } else { 0 };
        self.disks[disk].medium.grow((offset + len).div_ceil(SECTOR as u64) as usize);
        let begun = self.disks[disk].medium.begin(offset as usize, written, direct);
        let Temper { usual_ns, slow_one_in, .. } = self.disks[disk].temper;
        let is_slow = self.random.one_in(slow_one_in);
        let most = if is_slow { usual_ns * 100 } else { usual_ns };
        let due_ns = self.now_ns + 500 + self.random.below(most);
        self.trace.note(self.now_ns, kind, [disk as u64, offset, len]);
        self.flights.push(Flight { due_ns, ring, disk, direct, asked, tag, begun, _held: held });
    }

    /// The next that is due.
    fn due(&self) -> Option<usize> {
        let due = |(_, flight): &(usize, &Flight)| flight.due_ns <= self.now_ns;
        let all = self.flights.iter().enumerate().filter(due);
        all.min_by_key(|(_, flight)| (flight.due_ns, flight.tag)).map(|(at, _)| at)
    }

    fn execute(&mut self, flight: Flight) {
        let result = self.result(&flight);
        let (kind, offset, _) = facts(&flight.asked);
        self.trace.note(self.now_ns, kind, [flight.disk as u64, offset, result as u32 as u64]);
        let disk = &mut self.disks[flight.disk];
        let is_failure = result < 0 && ![EINTR, EAGAIN, EOPNOTSUPP].contains(&result);
        disk.failures += u64::from(is_failure);
        let is_unheard = is_failure && !self.rings.contains_key(&flight.ring);
        disk.failed_unheard += u64::from(is_unheard && matches!(flight.asked, Asked::Sync));
        // Of a process that has ended nobody is told.
        if let Some(ring) = self.rings.get_mut(&flight.ring) {
            ring.completed.push_back((flight.tag, result));
            let _ = rustix::io::write(&ring.done, &1u64.to_ne_bytes());
        }
    }

    fn result(&mut self, flight: &Flight) -> i32 {
        let temper = self.disks[flight.disk].temper;
        let fails = self.random.one_in(temper.fails_one_in);
        let is_short = self.random.one_in(temper.short_one_in);
        let direct = flight.direct;
        match &flight.asked {
            Asked::Sync => return self.sync(flight.disk, flight.begun.serial),
            Asked::Reserve => return 0,
            Asked::PunchHole { .. } if temper.lacks_holes => return EOPNOTSUPP,
            Asked::ZeroRange { .. } if temper.lacks_zeroes => return EOPNOTSUPP,
            _ if is_short && self.random.one_in(3) => return self.random.of(&[EINTR, EAGAIN]),
            _ => {}
        }
        // What is short is not nothing: that would be the end of the file.
        let sectors = |random: &mut Random, len: usize| match (fails, is_short) {
            (true, _) => random.below(len as u64 / 512 + 1) as usize * 512,
            (_, true) => len.min(512 * (1 + random.below(len as u64 / 512) as usize)),
            _ => len,
        };
        let disk = &mut self.disks[flight.disk];
        let done = match &flight.asked {
            Asked::Transfer { write: true, offset, spans, memory, stable } => {
                let Some(bytes) = gathered(spans, memory) else { return EFAULT };
                let most = sectors(&mut self.random, bytes.len());
                disk.medium.write(*offset as usize, &bytes[..most], direct, &flight.begun);
                if *stable && !fails {
                    disk.medium.write_out(*offset as usize, most);
                }
                most
            }
            Asked::Transfer { write: false, offset, spans, memory, .. } => {
                let len: usize = spans.iter().map(|span| span.len() as usize).sum();
                let mut bytes = vec![0; len];
                let there = disk.medium.read(*offset as usize, &mut bytes);
                let most = sectors(&mut self.random, len).min(there);
                let mut at = 0;
                for span in spans {
                    let here = (span.len() as usize).min(most - at);
                    if !memory.write(span.first(here as u32), 0, &bytes[at..at + here]) {
                        return EFAULT;
                    }
                    at += here;
                }
                most
            }
            Asked::Zeroes { offset, len } => {
                let most = sectors(&mut self.random, *len as usize);
                disk.medium.write(*offset as usize, &vec![0; most], direct, &flight.begun);
                most
            }
            Asked::PunchHole { offset, len } | Asked::ZeroRange { offset, len } => {
                disk.medium.clear(*offset as usize, *len as usize);
                0
            }
            Asked::Sync | Asked::Reserve => 0,
        };
        match fails {
            true => self.random.of(&[EIO, EIO, ENOSPC]),
            false => done as i32,
        }
    }

    fn sync(&mut self, disk: usize, serial: u64) -> i32 {
        let disk = &mut self.disks[disk];
        if !self.random.one_in(disk.temper.sync_fails_one_in) {
            disk.medium.sync(serial);
            return 0;
        }
        disk.medium.fail_sync(&mut self.random);
        disk.sync_failed = true;
        disk.failures += 1;
        EIO
    }
}

/// What tells a file from others.
fn file_of(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn gathered(spans: &[guest_memory::Span], memory: &guest_memory::GuestMap) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for span in spans {
        let at = bytes.len();
        bytes.resize(at + span.len() as usize, 0);
        if !memory.read(*span, 0, &mut bytes[at..]) {
            return None;
        }
    }
    Some(bytes)
}

/// A word for a command, and where it is.
fn facts(asked: &Asked) -> (&'static str, u64, u64) {
    match asked {
        Asked::Transfer { write, offset, spans, .. } => {
            let len = spans.iter().map(|span| u64::from(span.len())).sum();
            (if *write { "write" } else { "read" }, *offset, len)
        }
        Asked::Zeroes { offset, len } => ("zeroes", *offset, *len),
        Asked::Sync => ("sync", 0, 0),
        Asked::PunchHole { offset, len } | Asked::ZeroRange { offset, len } => {
            ("hole", *offset, *len)
        }
        Asked::Reserve => ("reserve", 0, 0),
    }
}
