//! A sparse RAM disk: a page is taken when it is first written, and given back by a discard.
//!
//! It is an array of mappings of one size of one memory file, so that a resize adds or drops mappings
//! and copies nothing, and a process that takes over gets the file. Every access is checked by
//! [`Area`]; the guest's buffers are checked by its map.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{Area, GuestMap, MapError, Mapping, Span};
use request::{Op, Request, Status};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate,
    memfd_create,
};

/// Bytes of one mapping, as a power of two: 1 GiB, so that a terabyte is 1,024 mappings of the
/// 65,530 a process may have.
const CHUNK_SHIFT: u32 = 30;
const CHUNK_SIZE: u64 = 1 << CHUNK_SHIFT;

/// A RAM disk. Cheap to clone: clones are the same disk.
#[derive(Clone, Debug)]
pub struct Memory {
    /// All of [`CHUNK_SIZE`] except the last.
    chunks: Arc<[Area]>,
    /// A whole number of chunks, which only grows.
    file: Arc<OwnedFd>,
    size_bytes: u64,
}

impl Memory {
    /// A disk of zeroes.
    ///
    /// # Errors
    /// As [`Mapping::own`].
    pub(crate) fn new(size_bytes: u64) -> Result<Memory, MapError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("sidecore-disk", flags)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)?;
        Memory::over(file, 0)?.resized(size_bytes)
    }

    /// The disk of `size_bytes` that another process served until now from [`Self::file`].
    ///
    /// # Errors
    /// As [`Mapping::own`].
    pub(crate) fn over(file: OwnedFd, size_bytes: u64) -> Result<Memory, MapError> {
        let whole = Memory { chunks: [].into(), file: Arc::new(file), size_bytes: 0 };
        whole.mapped(size_bytes)
    }

    /// How many mappings a disk of so many bytes is.
    pub fn mappings_of(size_bytes: u64) -> u64 {
        size_bytes.div_ceil(CHUNK_SIZE)
    }

    /// Where its bytes are.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The same bytes with another end. What lies beyond a smaller end is lost; what a larger end
    /// adds is zeroes. `self` must not be served from any more.
    pub(crate) fn resized(&self, size_bytes: u64) -> Result<Memory, MapError> {
        let has = u64::try_from(fstat(&self.file)?.st_size).unwrap_or(0);
        let needed = size_bytes.next_multiple_of(CHUNK_SIZE);
        if has < needed {
            ftruncate(&self.file, needed)?;
        }
        let resized = self.mapped(size_bytes)?;
        // What is grown later begins as zeroes.
        let end = size_bytes.min(has);
        if end < has {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, hole, end, has - end)?;
        }
        Ok(resized)
    }

    /// So many bytes of the file, which has them.
    fn mapped(&self, size_bytes: u64) -> Result<Memory, MapError> {
        let mut chunks: Vec<Area> = Vec::with_capacity((size_bytes / CHUNK_SIZE) as usize + 1);
        let mut size_left = size_bytes;
        while size_left > 0 {
            // A chunk is mapped whole even when the disk ends within it, so that it can grow.
            let mapped = match self.chunks.get(chunks.len()) {
                Some(old) => Area::whole(Arc::clone(old.mapping())),
                None => {
                    let offset = (chunks.len() as u64) << CHUNK_SHIFT;
                    Area::whole(Mapping::own(&self.file, offset, CHUNK_SIZE)?)
                }
            };
            let len = size_left.min(CHUNK_SIZE);
            size_left -= len;
            let bad = MapError::Length { offset: 0, len };
            chunks.push(mapped.window(0, len as usize).ok_or(bad)?);
        }
        Ok(Memory { chunks: chunks.into(), file: Arc::clone(&self.file), size_bytes })
    }

    #[inline]
    pub(crate) fn serve(&self, request: &Request<'_>, memory: &GuestMap) -> Status {
        let done = match request.op {
            Op::Read => {
                self.transfer(request, |chunk, at, span| chunk.copy_to_guest(at, memory, span))
            }
            Op::Write { .. } => {
                self.transfer(request, |chunk, at, span| chunk.copy_from_guest(at, memory, span))
            }
            // It lives as long as the daemon: no later moment is more stable than this one.
            Op::Flush => true,
            Op::Discard => self.each_chunk(request, |chunk, at, len| {
                // Only advice: pages that stay are as good.
                let _ = chunk.mapping().release_pages(at, len);
                true
            }),
            Op::WriteZeroes { .. } => self.each_chunk(request, zero),
        };
        if done { Status::Ok } else { Status::IoError }
    }

    /// Copies every segment. The common request, one segment within one chunk, is one look-up, one
    /// check, one copy.
    #[inline]
    fn transfer(&self, request: &Request<'_>, copy: impl Fn(&Area, usize, Span) -> bool) -> bool {
        let mut offset = request.offset;
        for &segment in request.segments {
            let mut left = segment;
            while !left.is_empty() {
                let Some(chunk) = self.chunks.get((offset >> CHUNK_SHIFT) as usize) else {
                    return false;
                };
                let at = (offset & (CHUNK_SIZE - 1)) as usize;
                let fits = (chunk.len().saturating_sub(at) as u64).min(left.len().into()) as u32;
                if fits == 0 || !copy(chunk, at, left.first(fits)) {
                    return false;
                }
                offset += u64::from(fits);
                left = left.after(fits);
            }
        }
        offset - request.offset == request.len
    }

    /// The parts of the request's range, chunk by chunk.
    fn each_chunk(&self, request: &Request<'_>, act: impl Fn(&Area, usize, usize) -> bool) -> bool {
        let end = request.offset.checked_add(request.len);
        let Some(end) = end.filter(|end| *end <= self.size_bytes) else {
            return false;
        };
        let mut offset = request.offset;
        while offset < end {
            let Some(chunk) = self.chunks.get((offset >> CHUNK_SHIFT) as usize) else {
                return false;
            };
            let at = (offset & (CHUNK_SIZE - 1)) as usize;
            let len = (end - offset).min(CHUNK_SIZE - at as u64);
            if !act(chunk, at, len as usize) {
                return false;
            }
            offset += len;
        }
        true
    }
}

/// Makes the range read as zeroes: whole pages are given back, their edges are written.
fn zero(chunk: &Area, at: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    let end = at + len;
    let (first, last) = (at.next_multiple_of(page), end / page * page);
    // The kernel refuses locked memory.
    if first >= last || chunk.mapping().release_pages(first, last - first).is_err() {
        return chunk.zero(at, len);
    }
    chunk.zero(at, first - at) && chunk.zero(last, end - last)
}
