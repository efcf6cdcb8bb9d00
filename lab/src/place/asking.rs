//! Loads that others put on a guest: a server in it, and who asks it from outside (`lab ask`).

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cpus::Cpus;
use super::guests::{Guests, Outcome};
use super::network::Seat;
use crate::orders::{Answer, Order, Server};

/// Before each turn: connections grow, and a store that is empty is filled.
const WARM_UP_MS: u32 = 500;

/// The first guest's server is asked for a time, between the guest's markers.
///
/// The orders for these, and the answers, are a hundred bytes of a serial port, each an exit, which are counted with
/// the thousands of the load.
///
/// # Errors
/// It does not start, or does not answer.
pub(super) fn asked(
    guests: &mut Guests,
    server: Server,
    for_ms: u32,
    cpus: &Cpus,
) -> Result<Outcome> {
    guests.tell(0, &Order::Serve { server })?;
    ask(server, WARM_UP_MS, cpus)?;
    guests.tell(0, &Order::Mark { end: false })?;
    let outcome = ask(server, for_ms, cpus);
    guests.tell(0, &Order::Mark { end: true })?;
    outcome
}

/// Runs `lab ask` where the other end of network loads runs, before all others on that CPU. It has limits of its own.
fn ask(server: Server, for_ms: u32, cpus: &Cpus) -> Result<Outcome> {
    let guest = Seat(0).guest();
    let (name, address) = match server {
        Server::Memcached => ("memcached", format!("{guest}:11211")),
        Server::Http => ("http", format!("{guest}:80")),
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "chrt", "-f", "1", "taskset", "-c"]);
    command.arg(cpus.peer.to_string()).arg(std::env::current_exe()?);
    command.args(["ask", name, &address, "--for-ms", &for_ms.to_string()]);
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "asking {name}: {}", wrong.trim());
    outcome(&String::from_utf8_lossy(&output.stdout)).with_context(|| format!("asking {name}"))
}

fn outcome(said: &str) -> Result<Outcome> {
    let answer = serde_json::from_str(said).with_context(|| format!("no answer: {said:?}"))?;
    let Answer::Done { operations, elapsed_ns, p50_ns, p99_ns } = answer else {
        anyhow::bail!("{answer:?}");
    };
    ensure!(operations > 0, "nothing was answered");
    Ok(Outcome { operations, elapsed_ns, p50_ns, p99_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_came_to_is_as_a_guest_says_it() {
        let line = "{\"operations\":20,\"elapsed_ns\":9,\"p50_ns\":1,\"p99_ns\":2}\n";
        let expected = Outcome { operations: 20, elapsed_ns: 9, p50_ns: 1, p99_ns: 2 };
        assert_eq!(outcome(line).ok(), Some(expected));
        assert!(outcome("").is_err());
        assert!(outcome("{\"error\":\"why\"}").is_err());
        assert!(outcome(&line.replace("20", "0")).is_err());
    }
}
