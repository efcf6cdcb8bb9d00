//! Disks in mode `connect`: the VMM listens and the daemon comes, as often as it takes.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testing::clock::now_ns;
use testing::daemon::Daemon;
use testing::frontend::{Frontend, FrontendSpec};
use testing::verified::Load;
use tests::single::Single;

const DISKS: &str =
    "[[disk]]\nid = \"vm\"\nmode = \"connect\"\nbackend = \"memory\"\nsize = \"4M\"\n";
/// The daemon tries once a second; the rest is for a loaded machine.
const RETRY_MS: u64 = 90_000;

fn listen(daemon: &Daemon) -> Result<UnixListener> {
    UnixListener::bind(daemon.socket("vm")).context("listening as a VMM")
}

/// The daemon's next connection.
fn accept(listener: &UnixListener) -> Result<UnixStream> {
    let timeout = Timespec { tv_sec: (RETRY_MS / 1000) as i64, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&listener.as_fd(), PollFlags::IN)], Some(&timeout))?;
    ensure!(ready == 1, "the daemon did not connect within {RETRY_MS} ms");
    Ok(listener.accept()?.0)
}

fn start(listener: &UnixListener) -> Result<Frontend> {
    Frontend::over(accept(listener)?, FrontendSpec::default())
}

#[test]
fn the_daemon_connects_as_soon_as_a_vmm_listens() -> Result<()> {
    let daemon = Daemon::start("connect-late", DISKS)?;
    ensure!(daemon.shown("vm", "state")? == "waiting");
    let listener = listen(&daemon)?;
    let mut frontend = start(&listener)?;
    Single::new(&mut frontend)?.exercise(frontend.queue(0), 1)?;
    ensure!(daemon.shown("vm", "state")? == "running");
    ensure!(daemon.shown("vm", "problem")?.is_null());
    Ok(())
}

#[test]
fn a_vmm_that_goes_and_comes_back_is_served_again() -> Result<()> {
    let daemon = Daemon::start("connect-again", DISKS)?;
    let mut listener = listen(&daemon)?;
    for life in 0..3u64 {
        let mut frontend = start(&listener).with_context(|| format!("life {life}"))?;
        let single = Single::new(&mut frontend)?;
        if life > 0 {
            // What the life before has written is still there.
            single.send(frontend.queue(0), testing::slots::Kind::Read, 900 + life - 1)?;
            single.compare(900 + life - 1)?;
        }
        single.exercise(frontend.queue(0), 900 + life)?;
        let (load, _) = Load::start(&mut frontend)?;
        load.await_requests(100)?;
        load.finish()?;
        // The whole VMM goes, with its socket.
        drop(frontend);
        drop(listener);
        std::fs::remove_file(daemon.socket("vm"))?;
        daemon.await_sleep()?;
        listener = listen(&daemon)?;
    }
    Ok(())
}

#[test]
fn a_vmm_that_hangs_up_at_once_is_not_called_in_a_loop() -> Result<()> {
    let daemon = Daemon::start("connect-storm", DISKS)?;
    let listener = listen(&daemon)?;
    listener.set_nonblocking(true)?;
    let (start_ns, mut connections) = (now_ns(), 0);
    let mut took_s = 0;
    while took_s < 90 && (connections < 3 || now_ns() - start_ns < 2_500_000_000) {
        if accept(&listener).is_ok() {
            connections += 1;
        }
        took_s = (now_ns() - start_ns) / 1_000_000_000;
    }
    ensure!(connections >= 3, "{connections} connections in {took_s} s");
    // About one a second, and what waited while this test had no processor.
    ensure!(connections <= 4 + took_s, "{connections} connections in {took_s} s");
    Ok(())
}
