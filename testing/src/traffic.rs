//! Traffic between places, and what is asked of it: each gives the detail of a check, or why it failed.
//!
//! Not rates: how fast a machine is says nothing of a network. Frames by front-ends of our own are
//! `net_frontend`'s.

mod lines;
mod load;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::clock::now_ns;
use crate::place::{Place, end_of, until_listened};
use crate::timing::{self, judge};

pub use lines::{Lines, Stream};
pub use load::Load;

/// Where bytes are listened for.
const PORT: u16 = 6000;
/// Bytes that are sent and compared.
const BYTES: u32 = 2 << 20;
/// Datagrams, and how many a second: a rate that an emulated guest can take, also when it has to wait for its core.
const DATAGRAMS: &str = "-u -b 5M -k 200";

/// Starts an iperf3 server in a place, which stays, and waits until it listens.
///
/// # Errors
/// It does not.
pub fn serve(place: &dyn Place) -> Result<()> {
    place.run(&format!("iperf3 -s -D && {}", until_listened(5201)))?;
    Ok(())
}

/// Sends 4 MiB by TCP to an iperf3 server; `words` are its address, and more of iperf3's (`-R`, `-P 4`).
///
/// # Errors
/// None arrived; what iperf3 said.
pub fn tcp(from: &dyn Place, words: &str) -> Result<String> {
    let end = iperf(from, &format!("-n 4M -c {words}"))?;
    let received = &end["sum_received"];
    ensure!(received["bytes"].as_u64() > Some(0), "iperf3 -c {words}: nothing arrived: {end}");
    Ok(format!("{:.1} Mbit/s", received["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6))
}

/// Sends 200 datagrams to an iperf3 server. How many arrive is the machine's speed: nine of ten are asked for
/// where times are judged, otherwise that any do, and they are sent again until one has.
///
/// # Errors
/// Fewer arrived.
pub fn udp(from: &dyn Place, words: &str) -> Result<String> {
    let start = now_ns();
    loop {
        let end = iperf(from, &format!("{DATAGRAMS} -c {words}"))?;
        let sum = &end["sum"];
        let count = |name: &str| sum[name].as_u64().unwrap_or_default();
        let (sent, lost) = (count("packets"), count("lost_packets"));
        let told = format!("{lost} of {sent} datagrams lost");
        if lost < sent {
            judge(10 * lost < sent, || format!("iperf3 -u -c {words}: {told}"))?;
            return Ok(told);
        }
        let is_late = u128::from(now_ns() - start) >= timing::PATIENCE.as_nanos();
        ensure!(!is_late && !timing::are_judged(), "iperf3 -u -c {words}: {told}");
    }
}

/// Sends 2 MiB of noise by TCP, and compares. The noise is made once for each place that sends.
///
/// # Errors
/// Other bytes came, or none.
pub fn same_bytes(from: &dyn Place, to: &dyn Place, address: &str) -> Result<&'static str> {
    // A listener whose own input ends would say so, and the sender would stop. One that nobody came to
    // must not stay.
    to.run(&format!(
        "[ ! -e listener ] || kill \"$(cat listener)\" 2>/dev/null
        rm -f got; tail -f /dev/null | busybox nc -l -p {PORT} >got 2>/dev/null & echo $! >listener
        {}",
        until_listened(PORT)
    ))?;
    let sent = from.run(&format!(
        "[ -s noise ] || head -c {BYTES} /dev/urandom >noise
        busybox nc {address} {PORT} <noise >/dev/null; cksum <noise"
    ))?;
    let got = to.run("cksum <got")?;
    let (here, there) = (from.name(), to.name());
    let (sent, got) = (end_of(&sent), end_of(&got));
    ensure!(sent == got, "{here} sent {sent}, {there} got {got}");
    Ok("")
}

/// Runs iperf3 with these words: what it counted at its end.
///
/// # Errors
/// It failed; what it said.
pub fn iperf(from: &dyn Place, words: &str) -> Result<Value> {
    let (_, said) = from.does(&format!("iperf3 -J -i 0 {words}"))?;
    let place = from.name();
    let Ok(mut told) = serde_json::from_str::<Value>(&said) else {
        bail!("iperf3 {words} in {place} said no JSON: {}", end_of(&said));
    };
    if let Some(error) = told["error"].as_str() {
        bail!("iperf3 {words} in {place}: {error}");
    }
    Ok(told.get_mut("end").with_context(|| format!("iperf3 {words} in {place}: no end"))?.take())
}

#[cfg(test)]
mod tests;
