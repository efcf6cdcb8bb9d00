//! A lean client of the Network Block Device protocol: fixed newstyle, simple replies, one connection, many requests.
//!
//! Not a library for anybody else: it knows what a bench needs of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testing::clock::now_ns;
use testing::slots::Kind;

use super::{BLOCK_BYTES, DEPTH_MAX, DISK_BYTES, Far, check, mark};

const START_NS: u64 = 10_000_000_000;
const WAIT: Duration = testing::timing::PATIENCE;
const GREETING: &[u8; 16] = b"NBDMAGICIHAVEOPT";
const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REPLY_BYTES: usize = 16;
const READ: u16 = 0;
const WRITE: u16 = 1;

/// A connection.
pub(super) struct Nbd {
    stream: TcpStream,
    /// What waits to be sent, and how much of it was.
    out: Vec<u8>,
    sent: usize,
    /// What came and was not taken yet.
    came: Vec<u8>,
    start: usize,
    end: usize,
    /// Of each tag.
    asked: [(Kind, u64); DEPTH_MAX as usize],
}

impl Nbd {
    /// As soon as the server listens.
    pub(super) fn connect(at: SocketAddr) -> Result<Nbd> {
        let start = now_ns();
        let mut stream = loop {
            match TcpStream::connect(at) {
                Ok(stream) => break stream,
                Err(error) if now_ns() - start > START_NS => {
                    bail!("nobody listens at {at}: {error}")
                }
                #[expect(clippy::disallowed_methods, reason = "there is nothing to wait on yet")]
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WAIT))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).context("its greeting")?;
        ensure!(greeting.starts_with(GREETING), "no newstyle server");
        stream.write_all(&u32::from(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes())?;
        let option = [&b"IHAVEOPT"[..], &EXPORT_NAME.to_be_bytes(), &0u32.to_be_bytes()].concat();
        stream.write_all(&option)?;
        let mut export = [0; 10];
        stream.read_exact(&mut export).context("its export")?;
        let size = u64::from_be_bytes(*export.first_chunk().context("a size")?);
        ensure!(size == DISK_BYTES, "the export has {size} bytes");
        stream.set_nonblocking(true)?;
        let came = vec![0; 2 * usize::from(DEPTH_MAX) * (BLOCK_BYTES + REPLY_BYTES)];
        let asked = [(Kind::Read, 0); DEPTH_MAX as usize];
        Ok(Nbd { stream, out: Vec::new(), sent: 0, came, start: 0, end: 0, asked })
    }

    /// The reply at the front of what came, if it is whole: its tag, and how long it is.
    fn reply(&self) -> Result<Option<(u16, usize)>> {
        let bytes = &self.came[self.start..self.end];
        let Some(head) = bytes.first_chunk::<REPLY_BYTES>() else { return Ok(None) };
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        ensure!((word(0), word(4)) == (REPLY_MAGIC, 0), "a reply with error {}", word(4));
        let tag = word(12) as u16;
        let (kind, block) = *self.asked.get(usize::from(tag)).context("a tag of nobody's")?;
        if kind != Kind::Read {
            return Ok(Some((tag, REPLY_BYTES)));
        }
        let Some(data) = bytes.get(REPLY_BYTES..REPLY_BYTES + BLOCK_BYTES) else { return Ok(None) };
        check(block, data)?;
        Ok(Some((tag, REPLY_BYTES + BLOCK_BYTES)))
    }
}

impl Far for Nbd {
    fn ask(&mut self, kind: Kind, block: u64, tag: u16) -> Result<()> {
        let word = if kind == Kind::Read { READ } else { WRITE };
        self.asked[usize::from(tag)] = (kind, block);
        self.out.extend(REQUEST_MAGIC.to_be_bytes());
        self.out.extend(0u16.to_be_bytes());
        self.out.extend(word.to_be_bytes());
        self.out.extend(u64::from(tag).to_be_bytes());
        self.out.extend((block * BLOCK_BYTES as u64).to_be_bytes());
        self.out.extend((BLOCK_BYTES as u32).to_be_bytes());
        if kind != Kind::Read {
            let end = self.out.len() + BLOCK_BYTES;
            self.out.extend(mark(block));
            self.out.resize(end, 0xa5);
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.sent == self.out.len() {
            return Ok(());
        }
        match self.stream.write(&self.out[self.sent..]) {
            Ok(len) => self.sent += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("sending"),
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        Ok(())
    }

    fn take(&mut self, ended: &mut dyn FnMut(u16)) -> Result<()> {
        if self.start > 0 {
            self.came.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.stream.read(&mut self.came[self.end..]) {
            Ok(0) => bail!("the server closed the connection"),
            Ok(len) => self.end += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error).context("receiving"),
        }
        while let Some((tag, len)) = self.reply()? {
            self.start += len;
            ended(tag);
        }
        Ok(())
    }
}
