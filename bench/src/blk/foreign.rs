//! Servers that a client of others loads: in each round it connects, works for a time, and goes.
//!
//! Not our own driver's rounds, which stay connected (`crate::bed`).

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use testing::client::{Client, Job, fio};
use testing::report::Row;
use testing::scratch::Scratch;
use testing::server::Server;
use testing::slots::Kind;
use testing::spdk::Spdk;

use super::{BLOCK_BYTES, DISK_ID, Load, Options, Started};
use crate::bed::{DISTURBED_MAX, DRIVER_CORE};

/// A server, its socket, and the folder of its files.
struct Bed {
    server: Server,
    socket: PathBuf,
    files: Scratch,
}

/// All that are compared, and the one client of them.
pub(super) struct Beds {
    client: Client,
    beds: Vec<Bed>,
}

/// The client of that name, if it can run here.
///
/// # Errors
/// It cannot; what to do is in the message.
pub(crate) fn client(load: Load) -> Result<Client> {
    match load {
        Load::Fio => Ok(Client::Fio(fio::program()?)),
        Load::Bdevperf => {
            let spdk = Spdk::named()?;
            Spdk::may_load()?;
            Ok(Client::Bdevperf(spdk))
        }
        Load::Own => bail!("our own driver is no client of others"),
    }
}

impl Beds {
    /// Over servers whose disks were filled and compared; stops them.
    pub(super) fn new(client: Client, started: Vec<Started>) -> Result<Beds> {
        let bed = |one: Started| {
            let Started { mut server, frontend, files } = one;
            // A server that takes one front-end at a time is free for the next when this one is gone.
            frontend.disconnect()?;
            let socket = server.wait_for(DISK_ID)?;
            server.pause()?;
            Ok(Bed { server, socket, files })
        };
        Ok(Beds { client, beds: started.into_iter().map(bed).collect::<Result<_>>()? })
    }

    /// One cell of the comparison: all servers in turn, round by round.
    pub(super) fn measure(
        &mut self,
        options: &Options,
        name: &str,
        kind: Kind,
        depth: u16,
    ) -> Result<Vec<Row>> {
        let is_write = kind == Kind::Write;
        let name = format!("{name}.{}.iops", self.client.word());
        let times_ms = if options.quick { [100, 400] } else { [500, 2000] };
        let mut rounds: Vec<Vec<f64>> = self.beds.iter().map(|_| Vec::new()).collect();
        let mut disturbed = 0.0f64;
        for _ in 0..options.rounds {
            for (bed, rounds) in self.beds.iter().zip(&mut rounds) {
                let socket = bed.socket.clone();
                let job = Job {
                    socket,
                    core: DRIVER_CORE,
                    is_write,
                    depth,
                    block_bytes: BLOCK_BYTES,
                    times_ms,
                };
                let who = bed.server.who().word();
                let round = bed.round(&self.client, &job);
                let (iops, part) = round.with_context(|| format!("{name} of {who}"))?;
                rounds.push(iops);
                disturbed = disturbed.max(part);
            }
        }
        if disturbed > DISTURBED_MAX {
            let percent = disturbed * 100.0;
            eprintln!(
                "bench: {name}: other processes took up to {percent:.0}% of the server's core"
            );
        }
        let row = |(bed, rounds): (&Bed, &Vec<f64>)| {
            let row = Row::new(name.clone(), bed.server.who(), "1/s", rounds);
            eprintln!("bench: {name}: {} {:.0} IOPS", row.who, row.value);
            row
        };
        Ok(self.beds.iter().zip(&rounds).map(row).collect())
    }
}

impl Bed {
    /// Requests a second, and the part of the round in which others had the server's core.
    fn round(&self, client: &Client, job: &Job) -> Result<(f64, f64)> {
        self.server.resume()?;
        let (start_ns, before) = (testing::clock::now_ns(), self.server.cpu()?);
        let iops = client.run(self.files.path(), job);
        let cpu = self.server.cpu().map(|after| after.since(before));
        let elapsed_ns = (testing::clock::now_ns() - start_ns).max(1);
        let iops =
            iops.with_context(|| format!("the server says:\n{}", self.server.last_words()))?;
        self.server.pause()?;
        ensure!(iops.is_finite(), "no rate");
        Ok((iops, cpu?.waited_ns as f64 / elapsed_ns as f64))
    }
}
