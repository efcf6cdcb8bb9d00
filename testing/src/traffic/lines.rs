//! Connections with ten numbered lines a second: each line arrives once and in order, by one connection.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::clock::now_ns;
use crate::daemon::pause;
use crate::place::{Place, until, until_listened};
use crate::timing::PATIENCE;

/// The first port of several.
const PORT: u16 = 7101;
/// Between two looks at what came.
const LOOK: Duration = Duration::from_millis(100);

/// A connection from one place to another, on which lines come until it is ended.
pub struct Stream<'a> {
    from: &'a dyn Place,
    to: &'a dyn Place,
    port: u16,
}

impl<'a> Stream<'a> {
    /// Opens it, to an address of `to`.
    ///
    /// # Errors
    /// A command failed.
    pub fn open(
        from: &'a dyn Place,
        to: &'a dyn Place,
        address: &str,
        port: u16,
    ) -> Result<Stream<'a>> {
        to.run(&format!(
            "rm -f stream-{port}
            tail -f /dev/null | busybox nc -l -p {port} >stream-{port} 2>/dev/null &
            {}",
            until_listened(port)
        ))?;
        from.run(&format!(
            "rm -f stop-{port} ended-{port}
            {{ n=0
            while [ ! -e stop-{port} ]; do n=$((n + 1)); echo $n; sleep 0.1; done |
                busybox nc {address} {port} >/dev/null 2>&1
            echo over >ended-{port}; }} >/dev/null 2>&1 &"
        ))?;
        Ok(Stream { from, to, port })
    }

    /// Ends it and waits for its end; every number came once and in order.
    ///
    /// # Errors
    /// One did not.
    pub fn end(self) -> Result<String> {
        let port = self.port;
        let over = until(&format!("[ -e ended-{port} ]"));
        self.from.asked(&format!("touch stop-{port}; {over}"))?;
        let same = format!(
            "last=$(tail -n 1 stream-{port}); echo \"$last lines\"
            [ \"$last\" -gt 0 ] && seq 1 \"$last\" | cmp -s - stream-{port}"
        );
        if let (0, said) = self.to.does(&same)? {
            return Ok(said.trim().to_owned());
        }
        // The first that is not as it should be, and the end, with what cannot be seen of it.
        let (_, found) = self.to.does(&format!(
            "ls -l stream-{port}; seq 1 100000 | cmp stream-{port} -
            tail -c 40 stream-{port} | od -c"
        ))?;
        bail!("of the {self} some are missing: {}", found.replace('\n', " "))
    }
}

impl std::fmt::Display for Stream<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lines {} to {}", self.from.name(), self.to.name())
    }
}

/// Several of them, which are looked at together.
#[derive(Default)]
pub struct Lines<'a> {
    streams: Vec<Stream<'a>>,
}

impl<'a> Lines<'a> {
    /// Without any.
    pub fn new() -> Lines<'a> {
        Lines::default()
    }

    /// One more, at a port of its own.
    ///
    /// # Errors
    /// As [`Stream::open`].
    pub fn open(&mut self, from: &'a dyn Place, to: &'a dyn Place, address: &str) -> Result<()> {
        let port = PORT + self.streams.len() as u16;
        self.streams.push(Stream::open(from, to, address, port)?);
        Ok(())
    }

    /// Waits until new lines have come on all of them.
    ///
    /// # Errors
    /// They did not in time.
    pub fn go_on(&self) -> Result<String> {
        let start = now_ns();
        let before = self.last()?;
        loop {
            pause(LOOK);
            let now = self.last()?;
            let waited = Duration::from_nanos(now_ns() - start);
            if before.iter().zip(&now).all(|(before, now)| now > before) {
                return Ok(format!("after {:.1} s", waited.as_secs_f64()));
            }
            ensure!(
                waited < PATIENCE,
                "last lines of the connections: {before:?}, and after {waited:?} {now:?}"
            );
        }
    }

    /// The number of each one's last line; 0 before the first. One question to each place.
    fn last(&self) -> Result<Vec<u64>> {
        let mut last = vec![0; self.streams.len()];
        let mut left: Vec<usize> = (0..last.len()).collect();
        while let Some(first) = left.first() {
            let place = self.streams[*first].to;
            let is_here = |at: &usize| self.streams[*at].to.name() == place.name();
            let (here, elsewhere) = left.into_iter().partition::<Vec<usize>, _>(is_here);
            let ports = here.iter().map(|at| format!(" {}", self.streams[*at].port));
            // The last one may not be whole yet.
            let said = place.run(&format!(
                "for port in{}; do echo $(tail -n 2 stream-$port | head -n 1); done",
                ports.collect::<String>()
            ))?;
            for (at, line) in here.into_iter().zip(said.lines().chain(std::iter::repeat(""))) {
                last[at] = line.trim().parse().unwrap_or(0);
            }
            left = elsewhere;
        }
        Ok(last)
    }

    /// Ends each: the name of a check, and its outcome.
    pub fn end(self) -> Vec<(String, Result<String>)> {
        self.streams.into_iter().map(|stream| (stream.to_string(), stream.end())).collect()
    }
}
