//! libblkio's virtio-blk driver over vhost-user, with its buffers held as checked memory.
//!
//! libblkio speaks a vhost-user dialect of its own: it asks for REPLY_ACK, CONFIG and
//! CONFIGURE_MEM_SLOTS, maps unsealed memfds of odd sizes, some of them after the rings run, and
//! does not accept packed rings over vhost-user.
#![expect(unsafe_code, reason = "libblkio gives completions as memory that it has initialised")]

use std::fs::File;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use guest_memory::{Area, Health, Mapping, Seal};

/// No request of a test needs longer.
const WAIT: Duration = Duration::from_secs(60);

/// A started device.
pub struct Client {
    /// Before `device`: libblkio frees buffers when both are gone.
    queues: Vec<Blkioq>,
    device: Blkio,
}

/// A buffer that the device can reach, seen through a mapping of our own.
pub struct Buffer {
    region: MemoryRegion,
    area: Area,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// As given to the request.
    pub tag: usize,
    /// 0, or a negative error number.
    pub result: i32,
}

impl Client {
    /// Connects and starts `queues` queues of `queue_size` entries.
    ///
    /// # Errors
    /// libblkio's, with the step at which it came.
    pub fn start(socket: &Path, queues: u16, queue_size: u16) -> Result<Client> {
        let mut device = Blkio::new("virtio-blk-vhost-user").context("making a client")?;
        let path = socket.to_str().context("a socket path that is not text")?;
        device.set_str("path", path).context("setting the path")?;
        device.connect().with_context(|| format!("connecting to {path}"))?;
        device.set_i32("num-queues", queues.into()).context("setting the number of queues")?;
        device.set_i32("queue-size", queue_size.into()).context("setting the queue size")?;
        let queues = device.start().context("starting the queues")?.queues;
        Ok(Client { queues, device })
    }

    /// Capacity, bytes.
    ///
    /// # Errors
    /// libblkio's.
    pub fn capacity_bytes(&self) -> Result<u64> {
        self.device.get_u64("capacity").context("asking for the capacity")
    }

    /// Most queues that the device allows.
    ///
    /// # Errors
    /// libblkio's.
    pub fn queues_max(&self) -> Result<i32> {
        self.device.get_i32("max-queues").context("asking for the number of queues")
    }

    /// Memory of `len` bytes (a multiple of 4 KiB), announced to the running device.
    ///
    /// # Errors
    /// libblkio's, or the mapping's.
    pub fn buffer(&mut self, len: usize) -> Result<Buffer> {
        let region = self.device.alloc_mem_region(len).context("allocating a buffer")?;
        self.device.map_mem_region(&region).context("announcing a buffer")?;
        let own = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", region.fd))
            .context("opening a buffer's memory again")?;
        let area =
            Area::whole(Mapping::shared(&own, 0, len as u64, Seal::Any, &Health::default())?);
        Ok(Buffer { region, area })
    }

    /// Takes a buffer back from the running device. Nothing that uses it may be in flight.
    pub fn take_back(&mut self, buffer: Buffer) {
        self.device.unmap_mem_region(&buffer.region);
        self.device.free_mem_region(&buffer.region);
    }

    /// Starts a read into bytes `at..at + len` of a buffer.
    ///
    /// # Errors
    /// The bytes are not all there.
    pub fn read(
        &mut self,
        queue: usize,
        offset: u64,
        (buffer, at, len): (&Buffer, usize, usize),
        tag: usize,
    ) -> Result<()> {
        let place = buffer.place(at, len)? as *mut u8;
        self.queues[queue].read(offset, place, len, tag, ReqFlags::empty());
        Ok(())
    }

    /// Starts a write of bytes `at..at + len` of a buffer.
    ///
    /// # Errors
    /// The bytes are not all there.
    pub fn write(
        &mut self,
        queue: usize,
        offset: u64,
        (buffer, at, len): (&Buffer, usize, usize),
        tag: usize,
    ) -> Result<()> {
        let place = buffer.place(at, len)? as *const u8;
        self.queues[queue].write(offset, place, len, tag, ReqFlags::empty());
        Ok(())
    }

    /// Starts a flush.
    pub fn flush(&mut self, queue: usize, tag: usize) {
        self.queues[queue].flush(tag, ReqFlags::empty());
    }

    /// Starts making a range read as zeroes.
    pub fn write_zeroes(&mut self, queue: usize, offset: u64, len: u64, tag: usize) {
        self.queues[queue].write_zeroes(offset, len, tag, ReqFlags::empty());
    }

    /// Starts a discard.
    pub fn discard(&mut self, queue: usize, offset: u64, len: u64, tag: usize) {
        self.queues[queue].discard(offset, len, tag, ReqFlags::empty());
    }

    /// Submits what was started and waits until `count` requests of that queue have ended.
    ///
    /// # Errors
    /// libblkio's, or they did not end within a minute.
    pub fn wait(&mut self, queue: usize, count: usize) -> Result<Vec<Ended>> {
        let mut ended = Vec::with_capacity(count);
        let mut left = WAIT;
        while ended.len() < count {
            let most = (count - ended.len()).min(64);
            let mut places: Vec<MaybeUninit<Completion>> =
                (0..most).map(|_| MaybeUninit::uninit()).collect();
            let waited = self.queues[queue].do_io(&mut places, most, Some(&mut left), None);
            let got = match waited {
                Ok(got) => got,
                Err(error) => bail!("waiting, {} of {count} ended: {error}", ended.len()),
            };
            ensure!(got > 0, "only {} of {count} requests ended in a minute", ended.len());
            for place in &places[..got] {
                // SAFETY: `do_io` says that it initialised the first `got` places.
                let done = unsafe { place.assume_init_ref() };
                ended.push(Ended { tag: done.user_data, result: done.ret });
            }
        }
        Ok(ended)
    }
}

impl Buffer {
    /// Copies `bytes` in at `at`.
    ///
    /// # Errors
    /// They do not fit.
    pub fn fill(&self, at: usize, bytes: &[u8]) -> Result<()> {
        ensure!(self.area.write(at, bytes), "{} bytes do not fit at {at}", bytes.len());
        Ok(())
    }

    /// Bytes `at..at + len`.
    ///
    /// # Errors
    /// They are not all there.
    pub fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        ensure!(self.area.read(at, &mut bytes), "no {len} bytes at {at}");
        Ok(bytes)
    }

    /// The address at which libblkio knows byte `at`.
    fn place(&self, at: usize, len: usize) -> Result<usize> {
        let end = at.checked_add(len);
        ensure!(end.is_some_and(|end| end <= self.region.len), "no {len} bytes at {at}");
        Ok(self.region.addr + at)
    }
}
