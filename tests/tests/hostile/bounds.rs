//! What one device can use up: O14, P22, E35. The next device is refused with numbers where too little is left, and
//! what is promised to one is not taken by another.

use anyhow::{Context, Result, ensure};
use testing::daemon::Daemon;
use testing::frontend::FrontendSpec;
use tests::raw_front_end::{Raw, VERSION, message, request, signal, words};
use tests::single::Single;

fn disk(id: &str) -> String {
    format!("[[disk]]\nid = \"{id}\"\npath = \"images/{id}.raw\"\nsize = \"4M\"\n")
}

/// Writes to a disk, and reads it again.
fn exercise(daemon: &Daemon, id: &str) -> Result<()> {
    let spec = FrontendSpec::linux();
    let mut frontend = daemon.frontend(id, &spec)?;
    let single = Single::new(&mut frontend)?;
    single.exercise(frontend.queue(0), 7)?;
    frontend.disconnect()
}

/// So many descriptors that `devices` disks of one queue fit, and no more: what the daemon takes itself is
/// asked of one that has plenty.
fn limit_for(devices: u64) -> Result<u64> {
    let daemon = Daemon::start("bounds-own", &disk("a"))?;
    let bounds = bounds(&daemon)?;
    let number = |name: &str| bounds["descriptors"][name].as_u64().context("no number");
    ensure!(bounds["devices"] == 1, "{bounds}");
    Ok(number("own")? + number("promised")? * devices + number("promised")? / 2)
}

/// What the daemon says of itself, over its socket.
fn bounds(daemon: &Daemon) -> Result<serde_json::Value> {
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(daemon.dir().join("api.sock"))?;
    write!(stream, "GET /v1/daemon HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    Ok(serde_json::from_str::<serde_json::Value>(body)?["bounds"].clone())
}

#[test]
fn o14_the_next_device_is_refused_and_the_others_are_served() -> Result<()> {
    let limit = limit_for(2)?;
    let lan = "[[switch]]\nid = \"lan\"\n";
    let file = format!("{lan}{}{}{}", disk("a"), disk("b"), disk("c"));
    let mut daemon = Daemon::with("o14", &file).limit("nofile", limit).start()?;
    exercise(&daemon, "a")?;
    exercise(&daemon, "b")?;
    let shown = daemon.ask("show c")?;
    let expected = format!("it may take 17 descriptors, and of {limit} only ");
    let problem = shown["problem"].as_str().unwrap_or_default();
    ensure!(shown["state"] == "failed" && problem.contains(&expected), "{shown}");
    ensure!(problem.contains("raise LimitNOFILE"), "{shown}");
    let said = daemon.refuses("disk add d --backend memory --size 4M")?;
    ensure!(said.contains(&expected) && said.contains("2 devices"), "{said}");
    let said = daemon.refuses("nic add n --switch lan")?;
    ensure!(said.contains("it may take 21 descriptors") && said.contains("2 devices"), "{said}");
    let path = daemon.dir().join("sidecore.toml");
    std::fs::write(&path, format!("{file}{}", disk("d")))?;
    let said = daemon.refuses("reload")?;
    ensure!(said.contains(&expected) && said.contains("nothing was changed"), "{said}");
    ensure!(!daemon.dir().join("images/d.raw").exists(), "it was opened before");
    // What goes makes room.
    std::fs::write(&path, file.replace(&disk("a"), ""))?;
    daemon.ask("reload")?;
    exercise(&daemon, "b")?;
    daemon.ask("reload")?;
    exercise(&daemon, "c")?;
    daemon.is_alive()
}

/// 68 descriptors are enough for a disk, and too few for many.
#[test]
fn o14_few_descriptors() -> Result<()> {
    let all: String = ["a", "b", "c", "d"].map(disk).concat();
    let mut daemon = Daemon::with("o14-68", &all).limit("nofile", 68).start()?;
    exercise(&daemon, "a")?;
    let shown = daemon.ask("show d")?;
    let problem = shown["problem"].as_str().unwrap_or_default();
    ensure!(problem.contains("descriptors, and of 68 only"), "{shown}");
    daemon.is_alive()
}

/// A hostile front-end takes all that it can get, on as many connections as it can get; its neighbour's first
/// connection, rings and all, is as before.
#[test]
fn what_is_promised_to_a_neighbour_is_not_taken() -> Result<()> {
    let limit = limit_for(2)?;
    let file = disk("good") + &disk("bad");
    let mut daemon = Daemon::with("promises", &file).limit("nofile", limit).start()?;
    let mut held = Vec::new();
    for _ in 0..8 {
        let Ok(raw) = Raw::connect(&daemon.socket("bad")) else { continue };
        for (number, payload) in [
            (request::SET_VRING_CALL, 0),
            (request::SET_VRING_KICK, 0),
            (request::SET_VRING_ERR, 0),
        ] {
            let bytes = message(number, VERSION, 8, &words(&[payload]));
            let fd = signal()?;
            let _ = raw.send_bytes(&bytes, &[std::os::fd::AsFd::as_fd(&fd)]);
        }
        // The beginning of a message, with as many descriptors as one may have.
        let fds: Vec<_> = (0..32).map(|_| signal()).collect::<Result<_>>()?;
        let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
        let _ = raw.send_bytes(&[5, 0], &fds);
        held.push(raw);
        exercise(&daemon, "good")?;
    }
    let before = bounds(&daemon)?;
    let number = |name: &str| before["descriptors"][name].as_u64().unwrap_or_default();
    let sum = number("own") + number("promised") + number("extra");
    ensure!(sum <= limit, "{before}");
    ensure!(daemon.descriptors()? as u64 <= limit, "{} are open", daemon.descriptors()?);
    exercise(&daemon, "good")?;
    drop(held);
    daemon.is_alive()?;
    exercise(&daemon, "bad")
}
