//! Connections with ten numbered lines a second: each line arrives once and in order, by one connection.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

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

    /// The number of the last line that came; 0 before the first one.
    ///
    /// # Errors
    /// The place does not answer, or what came is no number.
    pub fn at(&self) -> Result<u64> {
        // The last one may not be whole yet.
        let last = format!("tail -n 2 stream-{} | head -n 1", self.port);
        let last = self.to.run(&last)?;
        let last = last.trim();
        if last.is_empty() {
            return Ok(0);
        }
        last.parse().with_context(|| format!("{last:?} came on {self}"))
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
        let all = || self.streams.iter().map(Stream::at).collect::<Result<Vec<u64>>>();
        let before = all()?;
        loop {
            pause(LOOK);
            let now = all()?;
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

    /// Ends each: the name of a check, and its outcome.
    pub fn end(self) -> Vec<(String, Result<String>)> {
        self.streams.into_iter().map(|stream| (stream.to_string(), stream.end())).collect()
    }
}
