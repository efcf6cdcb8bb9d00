//! Loads that others put on a guest: a server in it, and who asks it from outside (`lab ask`).

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cpus::Cpus;
use super::guests::{Guests, Outcome};
use super::network::Seat;
use super::steering::{Steered, Steering};
use crate::orders::{Answer, ECHO_PORT, Order, Server};

/// Before each turn: connections grow, and a store that is empty is filled.
const WARM_UP_MS: u32 = 500;
/// Of an echo: until the daemon knows how long an answer takes and how long slices are. The same with all configurations.
const WARM_UP_ECHO_MS: u32 = 3000;

/// What is asked of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) server: Server,
    /// At moments of no pattern, not one after the other (`lab ask --apart`).
    pub(crate) apart: bool,
}

/// The first guest's server is asked for a time, between the guest's markers. Gives also where frames went in that
/// time, if `steering` is there to be asked.
///
/// The orders for these, and the answers, are a hundred bytes of a serial port, each an exit, which are counted with
/// the thousands of the load.
///
/// # Errors
/// It does not start, or does not answer; or what [`Steering::since`] says.
pub(super) fn between_marks(
    guests: &mut Guests,
    asked: Asked,
    for_ms: u32,
    cpus: &Cpus,
    steering: Option<&Steering>,
) -> Result<(Outcome, Option<Steered>)> {
    guests.tell(0, &Order::Serve { server: asked.server })?;
    let warm_up_ms = if asked.server == Server::Echo { WARM_UP_ECHO_MS } else { WARM_UP_MS };
    ask(asked, warm_up_ms, cpus)?;
    let before = steering.map(Steering::so_far).transpose()?.unwrap_or_default();
    guests.tell(0, &Order::Mark { end: false })?;
    let outcome = ask(asked, for_ms, cpus);
    guests.tell(0, &Order::Mark { end: true })?;
    let outcome = outcome?;
    Ok((outcome, steering.map(|steering| steering.since(before)).transpose()?))
}

/// Runs `lab ask` where the other end of network loads runs, before all others on that CPU. It has limits of its own.
fn ask(asked: Asked, for_ms: u32, cpus: &Cpus) -> Result<Outcome> {
    let guest = Seat(0).guest();
    let (name, address) = match asked.server {
        Server::Memcached => ("memcached", format!("{guest}:11211")),
        Server::Http => ("http", format!("{guest}:80")),
        Server::Echo => ("echo", format!("{guest}:{ECHO_PORT}")),
    };
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "chrt", "-f", "1", "taskset", "-c"]);
    command.arg(cpus.peer.to_string()).arg(std::env::current_exe()?);
    command.args(["ask", name, &address, "--for-ms", &for_ms.to_string()]);
    if asked.server == Server::Echo {
        // One flow: what another one does to it is not what is asked.
        command.args(["--connections", "1"]);
    }
    if asked.apart {
        command.arg("--apart");
    }
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
