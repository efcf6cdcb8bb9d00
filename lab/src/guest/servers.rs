//! Servers in the guest that others put a load on: started on order, and running until the agent ends.
//!
//! Not who asks them (`ask`, in the place), nor how they come into the guest (`host::images`). Called by
//! `guest`.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use testing::clock::now_ns;

use crate::orders::{Answer, ECHO_PORT, Server};

/// From its start until it listens; emulated machines have pauses of seconds.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
/// Between two tries to reach it.
const BETWEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Who has one vCPU has use for one thread. Values of 64 MiB are more than are asked for.
const MEMCACHED: &[&str] =
    &["/usr/bin/memcached", "-u", "root", "-l", "0.0.0.0", "-U", "0", "-t", "1", "-m", "64"];
/// Where `host::images` puts this program.
const ECHO: &[&str] = &["/bin/lab", "echo"];
const HTTP: &[&str] = &["/usr/sbin/nginx", "-c", "/etc/nginx.conf", "-e", "stderr"];

/// Those that were started.
#[derive(Default)]
pub(super) struct Servers(Vec<(Server, Child)>);

impl Servers {
    /// It listens, on all addresses. One that runs is left as it is.
    ///
    /// # Errors
    /// It does not start, ends, or does not listen in time.
    pub(super) fn start(&mut self, server: Server) -> Result<Answer> {
        let (words, port) = match server {
            Server::Memcached => (MEMCACHED, 11_211),
            Server::Http => (HTTP, 80),
            Server::Echo => (ECHO, ECHO_PORT),
        };
        self.ensure(server, words, port, LISTENS_WITHIN)?;
        Ok(Answer::NOTHING)
    }

    fn ensure(
        &mut self,
        server: Server,
        words: &[&str],
        port: u16,
        within: Duration,
    ) -> Result<()> {
        let (program, rest) = words.split_first().context("a program")?;
        if let Some(at) = self.0.iter().position(|(running, _)| *running == server) {
            let (_, child) = &mut self.0[at];
            let Some(ended) = child.try_wait()? else { return Ok(()) };
            self.0.remove(at);
            bail!("{program} had ended: {ended}");
        }
        // What it complains of goes to the console, as what this agent does.
        let child = Command::new(program)
            .args(rest)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| (*program).to_owned())?;
        // From here on it ends with this.
        self.0.push((server, child));
        let listening = self.listens(port, within).with_context(|| (*program).to_owned());
        if listening.is_err()
            && let Some((_, child)) = self.0.pop()
        {
            end(child);
        }
        listening
    }

    /// Waits until the one that was started last can be reached.
    fn listens(&mut self, port: u16, within: Duration) -> Result<()> {
        let (_, child) = self.0.last_mut().context("none was started")?;
        let pid = Pid::from_raw(child.id().cast_signed()).context("no process")?;
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let until = now_ns() + within.as_nanos() as u64;
        loop {
            // Its end is what is waited for meanwhile.
            let mut wait = [PollFd::new(&ended, PollFlags::IN)];
            if poll(&mut wait, Some(&BETWEEN))? > 0 {
                bail!("it has ended: {}", child.wait()?);
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(());
            }
            let is_late = now_ns() > until;
            ensure!(!is_late, "it does not listen on port {port} after {} s", within.as_secs());
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|(_, child)| end(child));
    }
}

fn end(mut child: Child) {
    // One that has ended already cannot be killed.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A port that is listened on, and one that is not.
    fn ports() -> Result<(TcpListener, u16, u16)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let port = listener.local_addr()?.port();
        Ok((listener, port, free))
    }

    fn said(result: Result<()>) -> String {
        result.map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
    }

    #[test]
    fn a_server_is_started_once_and_ends_with_the_agent() -> Result<()> {
        let (_listener, port, _) = ports()?;
        let mut servers = Servers::default();
        let sleep = ["/bin/sleep", "1000"];
        for _ in 0..2 {
            servers.ensure(Server::Http, &sleep, port, LISTENS_WITHIN)?;
        }
        servers.ensure(Server::Memcached, &sleep, port, LISTENS_WITHIN)?;
        let pids: Vec<u32> = servers.0.iter().map(|(_, child)| child.id()).collect();
        assert_eq!(pids.len(), 2);
        drop(servers);
        for pid in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        }
        Ok(())
    }

    #[test]
    fn one_that_ends_or_does_not_listen_is_named_and_may_be_tried_again() -> Result<()> {
        let (_listener, port, free) = ports()?;
        let mut servers = Servers::default();
        // One that is to end, or not to be found, has all the time for that.
        let mut try_out = |words: &[&str], port| {
            let within =
                if words[0] == "/bin/sleep" { BETWEEN_TRIES } else { Duration::from_secs(60) };
            said(servers.ensure(Server::Http, words, port, within))
        };
        let none = "/bin/nothing: No such file or directory (os error 2)";
        assert_eq!(try_out(&["/bin/nothing"], port), none);
        let ended = "/bin/false: it has ended: exit status: 1";
        assert_eq!(try_out(&["/bin/false"], free), ended);
        let silent = format!("/bin/sleep: it does not listen on port {free} after 0 s");
        assert_eq!(try_out(&["/bin/sleep", "1000"], free), silent);
        assert_eq!(try_out(&["/bin/sleep", "5"], port), "ok");
        let (_, child) = servers.0.last_mut().context("it runs")?;
        child.wait()?;
        let again = said(servers.ensure(Server::Http, &["/bin/sleep", "1"], port, BETWEEN_TRIES));
        assert_eq!(again, "/bin/sleep had ended: exit status: 0");
        assert!(servers.0.is_empty());
        Ok(())
    }

    const BETWEEN_TRIES: Duration = Duration::from_millis(50);
}
