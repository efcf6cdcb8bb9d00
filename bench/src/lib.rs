//! What the benches are made of, as a library so that the integration tests can use it too.
//!
//! | module | what |
//! |---|---|
//! | `frontend` | a vhost-user front-end of our own: guest memory, rings, kicks and calls |
//! | `net_frontend` | a NIC's driver on such a front-end: frames out and in |
//! | `slots` | virtio-blk requests at fixed places of guest memory |
//! | `load` | keeps a number of them in flight and measures |
//! | `verified` | reads and writes that are compared, on a thread of their own |
//! | `mover` | an operator who moves queues between sidecores, many a second |
//! | `content` | fills a disk, and looks whether it kept what was written |
//! | `histogram` | latencies, with quantiles |
//! | `server` | starts `sidecore` and `qemu-storage-daemon`, and ends them again |
//! | `testpmd` | starts DPDK's `dpdk-testpmd`, on either side of a NIC's socket |
//! | `scratch` | folders that go away, also after a crash |
//! | `report` | the table and the JSON lines |
//!
//! The programs' subcommands are modules of the binary.

pub mod clock;
pub mod content;
pub mod frontend;
pub mod histogram;
pub mod load;
pub mod mover;
pub mod net_frontend;
pub mod report;
pub mod scratch;
pub mod server;
pub mod slots;
pub mod testpmd;
pub mod verified;
