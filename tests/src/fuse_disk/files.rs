//! The file system: a folder with one file, in memory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::journal::{Sync, Write};
use super::rules::{Call, Fate};
use super::{Core, FILE};

const FILE_INODE: INodeNo = INodeNo(2);
/// How long the kernel may believe what it was told of a name or a size.
const BELIEVE: Duration = Duration::from_secs(1);
/// Requests that the kernel sends beside one another.
const BACKGROUND_MAX: u16 = 256;
/// Of an open file or a write: it is to be stable when it is answered (fcntl.h, x86-64 and arm64).
const O_DSYNC: i32 = 0o10_000;
/// fallocate's modes (linux/falloc.h): a hole, and zeroes.
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

pub(super) struct Files {
    core: Arc<Core>,
}

impl Files {
    pub(super) fn new(core: Arc<Core>) -> Files {
        Files { core }
    }

    fn fate(&self, call: Call) -> Fate {
        self.core.state().rules.fate(call)
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let size = self.core.state().bytes.len() as u64;
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            FILE_INODE => (FileType::RegularFile, 0o600, size),
            _ => return None,
        };
        let time = UNIX_EPOCH;
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Changes the bytes and logs it; gives what ends the entry.
    fn put(&self, offset: u64, bytes: &[u8], stable: bool) -> impl FnOnce() + Send + 'static {
        let mut state = self.core.state();
        let arrived = self.core.order.next();
        let start = offset as usize;
        let end = start + bytes.len();
        if state.bytes.len() < end {
            state.bytes.resize(end, 0);
        }
        state.bytes[start..end].copy_from_slice(bytes);
        let write = Write { arrived, answered: None, stable, offset, bytes: bytes.into() };
        let index = state.journal.begin_write(write);
        let core = Arc::clone(&self.core);
        move || core.state().journal.end_write(index, core.order.next())
    }
}

impl Filesystem for Files {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_ASYNC_READ;
        if self.core.writeback_cache {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        let lacking = |_| std::io::Error::other("this kernel's FUSE lacks what the test needs");
        config.add_capabilities(wanted).map_err(lacking)?;
        // What the kernel allows at most, when that is less.
        if let Err(most) = config.set_max_background(BACKGROUND_MAX) {
            let _ = config.set_max_background(most);
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.attributes(FILE_INODE).filter(|_| name.as_bytes() == FILE.as_bytes());
        let fate = self.fate(Call::Name);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match (fate.error, found) {
                (Some(number), _) => reply.error(Errno::from_i32(number)),
                (None, Some(attributes)) => reply.entry(&BELIEVE, &attributes, Generation(0)),
                (None, None) => reply.error(Errno::ENOENT),
            }),
        );
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.attributes(inode);
        let fate = self.fate(Call::Name);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match (fate.error, found) {
                (Some(number), _) => reply.error(Errno::from_i32(number)),
                (None, Some(attributes)) => reply.attr(&BELIEVE, &attributes),
                (None, None) => reply.error(Errno::ENOENT),
            }),
        );
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size.filter(|_| inode == FILE_INODE) {
            self.core.state().bytes.resize(size as usize, 0);
        }
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&BELIEVE, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let fate = self.fate(Call::Open);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match fate.error {
                Some(number) => reply.error(Errno::from_i32(number)),
                None => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            }),
        );
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let fate = self.fate(Call::Close);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match fate.error {
                Some(number) => reply.error(Errno::from_i32(number)),
                None => reply.ok(),
            }),
        );
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let fate = self.fate(Call::Read);
        let bytes = {
            let state = self.core.state();
            let start = (offset as usize).min(state.bytes.len());
            let end = (start + size as usize).min(state.bytes.len());
            let end = fate.short.map_or(end, |short| end.min(start + short));
            state.bytes[start..end].to_vec()
        };
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match fate.error {
                Some(number) => reply.error(Errno::from_i32(number)),
                None => reply.data(&bytes),
            }),
        );
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let stable = flags.0 & O_DSYNC != 0;
        let fate = self.fate(Call::Write);
        if let Some(number) = fate.error {
            return reply.error(Errno::from_i32(number));
        }
        let len = fate.short.map_or(data.len(), |short| data.len().min(short));
        let end = self.put(offset, &data[..len], stable);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || {
                end();
                reply.written(len as u32);
            }),
        );
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let fate = self.fate(Call::Allocate);
        if let Some(number) = fate.error {
            return reply.error(Errno::from_i32(number));
        }
        let size = self.core.state().bytes.len() as u64;
        let end = offset.saturating_add(length).min(size);
        if mode & (PUNCH_HOLE | ZERO_RANGE) == 0 || offset >= end {
            // Space is always there; nothing is beyond the end.
            return reply.ok();
        }
        let ended = self.put(offset, &vec![0; (end - offset) as usize], false);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || {
                ended();
                reply.ok();
            }),
        );
    }

    fn fsync(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        let began = self.core.order.next();
        let fate = self.fate(Call::Sync);
        let core = Arc::clone(&self.core);
        self.core.later.answer(
            fate.wait_ns,
            Box::new(move || match fate.error {
                Some(number) => reply.error(Errno::from_i32(number)),
                None => {
                    {
                        let mut state = core.state();
                        let ended = core.order.next();
                        state.journal.synced(Sync { began, ended });
                    }
                    reply.ok();
                }
            }),
        );
    }
}
