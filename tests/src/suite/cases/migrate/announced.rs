//! What the network hears of where a guest is: RARP, or ARP that asks for the address of him who asks.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use rustix::time::{ClockId, clock_gettime};
use testing::clock::now_ns;
use testing::namespace::Namespace;
use testing::timing::{PATIENCE, are_judged};

const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const LOOK_MS: i64 = 20;
/// The guest may be first by so much: the daemon's second word comes after 50 ms.
const FIRST_MS: u64 = 100;

/// An announcement: its type, and when it was heard, in microseconds since 1970.
type Heard = (u16, u64);

/// Listens for announcements of a guest, until it is asked for what came.
pub(super) struct Listener {
    /// When the guest stopped at the source; 0 until what came is asked for.
    stopped_us: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Heard>>,
}

impl Listener {
    /// Listens to all interfaces of a namespace for frames from that address.
    pub(super) fn new(host: &Namespace, mac: &str) -> Result<Listener> {
        let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
        let mac: Vec<u8> = bytes.collect::<Result<_, _>>().context("a MAC address")?;
        let sockets = host.inside(|| Ok::<_, anyhow::Error>([open(RARP)?, open(ARP)?]))??;
        let stopped_us = Arc::new(AtomicU64::new(0));
        let asked = Arc::clone(&stopped_us);
        let thread = std::thread::spawn(move || hear(&sockets, &mac, &asked));
        Ok(Listener { stopped_us, thread })
    }

    /// Whether somebody said where the guest is since it stopped at the source, before the guest itself could, or so
    /// soon after it that the daemon has not waited for it. By how much the guest was first is judged where times are.
    pub(super) fn end(self, stopped_us: u64) -> Result<String> {
        self.stopped_us.store(stopped_us, Ordering::Relaxed);
        let heard = self.thread.join().map_err(|_| anyhow::anyhow!("who listens panicked"))?;
        let since: Vec<&Heard> = heard.iter().filter(|(_, at)| *at >= stopped_us).collect();
        let rarp = since.iter().find(|(kind, _)| *kind == RARP).context("no RARP was heard")?;
        let late_ms = (rarp.1 - since[0].1) / 1000;
        ensure!(
            late_ms <= FIRST_MS || !are_judged(),
            "the guest itself was first, by {late_ms} ms"
        );
        Ok(format!("RARP, {late_ms} ms after the first word of it"))
    }
}

/// A socket on which frames of that type arrive.
fn open(kind: u16) -> Result<OwnedFd> {
    let protocol = u32::from(kind.to_be()).try_into().ok().map(Protocol::from_raw);
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, protocol)?)
}

/// Everything until it is asked; then it waits for RARP of since the guest's stop, which may be under way.
fn hear(sockets: &[OwnedFd; 2], mac: &[u8], stopped_us: &AtomicU64) -> Vec<Heard> {
    let mut heard: Vec<Heard> = Vec::new();
    let mut asked_at = None;
    let mut frame = [0; 2048];
    loop {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        let mut fds = sockets
            .each_ref()
            .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
        let _ = poll(&mut fds, Some(&wait));
        for socket in sockets {
            while let Ok((_, len)) = recv(socket, &mut frame, RecvFlags::empty()) {
                heard.extend(announces(&frame[..len], mac).map(|kind| (kind, now_us())));
            }
        }
        let since = stopped_us.load(Ordering::Relaxed);
        if since > 0 {
            let asked = *asked_at.get_or_insert_with(now_ns);
            let is_late = u128::from(now_ns() - asked) > PATIENCE.as_nanos();
            if is_late || heard.iter().any(|(kind, at)| *kind == RARP && *at >= since) {
                return heard;
            }
        }
    }
}

fn announces(frame: &[u8], mac: &[u8]) -> Option<u16> {
    let is_ours = frame.get(..6)? == [0xff; 6] && frame.get(6..12)? == mac;
    let kind = u16::from_be_bytes(*frame.get(12..14)?.first_chunk()?);
    let asks_for_itself =
        || frame.get(28..32).is_some_and(|sender| frame.get(38..42) == Some(sender));
    (is_ours && (kind == RARP || (kind == ARP && asks_for_itself()))).then_some(kind)
}

fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
