//! libblkio against `sidecore`, and against qemu-storage-daemon to show that the test itself is
//! right. Each server is a process; `SIDECORE_BIN` names the program, which otherwise is looked for
//! beside the tests.
//!
//! Packed rings are not here: libblkio does not accept them over vhost-user.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use testing::content::block_content;
use testing::daemon::Daemon;
use testing::load::Random;
use testing::scratch::Scratch;
use testing::server::{DiskSetup, Medium, Server, Who};
use tests::blkio_client::{Buffer, Client, Ended};

const DISK_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
const QUEUE_SIZE: u16 = 64;
const ID: &str = "foreign";

/// libblkio does not seal its memfds.
fn disk(queues: u16, medium: Medium) -> DiskSetup {
    let id = ID.to_string();
    DiskSetup { id, medium, size_bytes: DISK_BYTES, queues, unsealed_memory: true }
}

/// A server with one disk, in a folder of its own.
struct Bed {
    server: Server,
    socket: PathBuf,
    _dir: Option<Scratch>,
}

impl Bed {
    fn sidecore(name: &str, queues: u16, medium: fn(PathBuf) -> Medium) -> Result<Bed> {
        let disk = disk(queues, medium("images/disk.raw".into()));
        let daemon = Daemon::start(name, &disk.declared())?;
        Bed::of(Server::ours(Who::Sidecore, daemon), None)
    }

    fn qemu(name: &str, queues: u16) -> Result<Bed> {
        let dir = Scratch::new(&std::env::temp_dir(), name)?;
        let image = dir.path().join("disk.raw");
        std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        let disk = disk(queues, Medium::File(image));
        Bed::of(Server::qemu_storage_daemon(dir.path(), 0, &disk)?, Some(dir))
    }

    fn of(mut server: Server, dir: Option<Scratch>) -> Result<Bed> {
        let socket = server.wait_for(ID)?;
        Ok(Bed { server, socket, _dir: dir })
    }

    fn client(&mut self, queues: u16) -> Result<Client> {
        let client = Client::start(&self.socket, queues, QUEUE_SIZE);
        client.with_context(|| self.server.last_words())
    }
}

/// Everything that a disk must do for one client, on each of its queues.
fn exercise(bed: &mut Bed, queues: u16) -> Result<()> {
    let mut client = bed.client(queues)?;
    ensure!(client.capacity_bytes()? == DISK_BYTES, "capacity {}", client.capacity_bytes()?);
    ensure!(client.queues_max()? >= queues.into(), "queues {}", client.queues_max()?);
    // The rings run already. An odd number of pages, as other users of libblkio have.
    let buffer = client.buffer(67 * BLOCK)?;
    for queue in 0..usize::from(queues) {
        what_is_written_is_read(&mut client, queue, &buffer)?;
        zeroes_and_discards_end(&mut client, queue, &buffer)?;
        beyond_the_end_is_an_error(&mut client, queue, &buffer)?;
    }
    client.take_back(buffer);
    let other = client.buffer(130 * BLOCK)?;
    large_requests_keep_their_bytes(&mut client, &other)?;
    all_queues_at_once(&mut client, usize::from(queues), &other)?;
    drop(client);
    what_was_flushed_is_there_for_the_next_client(bed)
}

/// Deep queues of single blocks, in random order.
fn what_is_written_is_read(client: &mut Client, queue: usize, buffer: &Buffer) -> Result<()> {
    let mut random = Random(queue as u64 + 1);
    for _ in 0..40 {
        let first = random.below(DISK_BYTES / BLOCK as u64 - 64);
        let mut block = vec![0; BLOCK];
        for slot in 0..64 {
            block_content(first + slot as u64, &mut block);
            buffer.fill(slot * BLOCK, &block)?;
            let place = (buffer, slot * BLOCK, BLOCK);
            client.write(queue, (first + slot as u64) * BLOCK as u64, place, slot)?;
        }
        all_good(client.wait(queue, 64)?)?;
        buffer.fill(0, &vec![0xee; 64 * BLOCK])?;
        for slot in (0..64).rev() {
            let place = (buffer, slot * BLOCK, BLOCK);
            client.read(queue, (first + slot as u64) * BLOCK as u64, place, slot)?;
        }
        all_good(client.wait(queue, 64)?)?;
        for slot in 0..64 {
            block_content(first + slot as u64, &mut block);
            let found = buffer.bytes(slot * BLOCK, BLOCK)?;
            ensure!(found == block, "queue {queue}: block {} differs", first + slot as u64);
        }
    }
    client.flush(queue, 0);
    all_good(client.wait(queue, 1)?)
}

fn zeroes_and_discards_end(client: &mut Client, queue: usize, buffer: &Buffer) -> Result<()> {
    const LEN: usize = 16 * BLOCK;
    buffer.fill(0, &[0x77; LEN])?;
    client.write(queue, 0, (buffer, 0, LEN), 1)?;
    all_good(client.wait(queue, 1)?)?;
    client.write_zeroes(queue, BLOCK as u64, 2 * BLOCK as u64, 2);
    all_good(client.wait(queue, 1)?)?;
    client.read(queue, 0, (buffer, 0, LEN), 3)?;
    all_good(client.wait(queue, 1)?)?;
    let found = buffer.bytes(0, LEN)?;
    let is_zeroed = |at: usize| (BLOCK..3 * BLOCK).contains(&at);
    let wrong = found.iter().enumerate().find(|(at, byte)| (**byte == 0) != is_zeroed(*at));
    ensure!(wrong.is_none(), "queue {queue}: after write zeroes, byte {wrong:?}");
    client.discard(queue, 8 * BLOCK as u64, 4 * BLOCK as u64, 4);
    all_good(client.wait(queue, 1)?)
}

/// The request fails, and those after it do not.
fn beyond_the_end_is_an_error(client: &mut Client, queue: usize, buffer: &Buffer) -> Result<()> {
    client.read(queue, DISK_BYTES, (buffer, 0, BLOCK), 1)?;
    let ended = client.wait(queue, 1)?;
    ensure!(ended[0].result < 0, "queue {queue}: a read beyond the end gave {:?}", ended[0]);
    client.read(queue, DISK_BYTES - BLOCK as u64, (buffer, 0, BLOCK), 2)?;
    all_good(client.wait(queue, 1)?)
}

/// From one sector to half a megabyte, at odd sectors.
fn large_requests_keep_their_bytes(client: &mut Client, buffer: &Buffer) -> Result<()> {
    let mut random = Random(7);
    for len in [512, 1536, BLOCK + 512, 64 * 1024, 128 * 1024 + 512, 512 * 1024] {
        let offset = random.below((DISK_BYTES - len as u64) / 512) * 512;
        let bytes: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        // Not at the start of a page.
        buffer.fill(512, &bytes)?;
        client.write(0, offset, (buffer, 512, len), len)?;
        all_good(client.wait(0, 1)?)?;
        buffer.fill(512, &vec![0xee; len])?;
        client.read(0, offset, (buffer, 512, len), len)?;
        all_good(client.wait(0, 1)?)?;
        ensure!(buffer.bytes(512, len)? == bytes, "{len} bytes at {offset} differ");
    }
    Ok(())
}

/// Requests of every queue in flight together, none of them lost or mixed up.
fn all_queues_at_once(client: &mut Client, queues: usize, buffer: &Buffer) -> Result<()> {
    let each = 128 / queues;
    let mut block = vec![0; BLOCK];
    for turn in 0..20u64 {
        let number = |queue: usize, slot: usize| turn * 128 + (queue * each + slot) as u64;
        let place = |queue: usize, slot: usize| (queue * each + slot) * BLOCK;
        for queue in 0..queues {
            for slot in 0..each {
                block_content(number(queue, slot), &mut block);
                buffer.fill(place(queue, slot), &block)?;
                let at = number(queue, slot) * BLOCK as u64;
                client.write(queue, at, (buffer, place(queue, slot), BLOCK), slot)?;
            }
        }
        for queue in 0..queues {
            all_good(client.wait(queue, each)?)?;
        }
        buffer.fill(0, &vec![0; 128 * BLOCK])?;
        for queue in 0..queues {
            for slot in 0..each {
                let at = number(queue, slot) * BLOCK as u64;
                client.read(queue, at, (buffer, place(queue, slot), BLOCK), slot)?;
            }
        }
        for queue in 0..queues {
            all_good(client.wait(queue, each)?)?;
            for slot in 0..each {
                block_content(number(queue, slot), &mut block);
                let found = buffer.bytes(place(queue, slot), BLOCK)?;
                ensure!(found == block, "queue {queue} block {}", number(queue, slot));
            }
        }
    }
    Ok(())
}

/// One client at a time, one after the other; `all_queues_at_once` wrote block 0 last.
fn what_was_flushed_is_there_for_the_next_client(bed: &mut Bed) -> Result<()> {
    for _ in 0..3 {
        let mut client = bed.client(1)?;
        let buffer = client.buffer(BLOCK)?;
        client.read(0, 0, (&buffer, 0, BLOCK), 0)?;
        all_good(client.wait(0, 1)?)?;
        let mut block = vec![0; BLOCK];
        block_content(0, &mut block);
        ensure!(buffer.bytes(0, BLOCK)? == block, "block 0 is gone after a reconnect");
    }
    Ok(())
}

fn all_good(ended: Vec<Ended>) -> Result<()> {
    let bad: Vec<_> = ended.into_iter().filter(|one| one.result != 0).collect();
    ensure!(bad.is_empty(), "failed requests: {bad:?}");
    Ok(())
}

#[test]
fn qemu_storage_daemon_passes_the_same_test() -> Result<()> {
    exercise(&mut Bed::qemu("blkio-qemu", 2)?, 2)
}

#[test]
fn sidecore_serves_a_memory_disk_on_one_queue() -> Result<()> {
    exercise(&mut Bed::sidecore("blkio-memory-1", 1, Medium::Memory)?, 1)
}

#[test]
fn sidecore_serves_a_memory_disk_on_four_queues() -> Result<()> {
    exercise(&mut Bed::sidecore("blkio-memory-4", 4, Medium::Memory)?, 4)
}

#[test]
fn sidecore_serves_a_file_on_one_queue() -> Result<()> {
    exercise(&mut Bed::sidecore("blkio-file-1", 1, Medium::File)?, 1)
}

#[test]
fn sidecore_serves_a_file_on_four_queues() -> Result<()> {
    exercise(&mut Bed::sidecore("blkio-file-4", 4, Medium::File)?, 4)
}
