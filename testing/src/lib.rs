//! The harness: what tests, benches, the lab and the demo start, ask and end.
//!
//! No crate that ships may depend on it (tidy, `unshipped`).
//!
//! | module | what |
//! |---|---|
//! | `bed` | what a case of `./x test` is given, and where its outcomes go |
//! | `client` | disks' clients that others have made: fio with libblkio, SPDK's bdevperf |
//! | `clock` | the monotonic clock, nanoseconds |
//! | `content` | fills a disk, and looks whether it kept what was written |
//! | `daemon` | a `sidecore`: how it is started, asked, replaced, killed and ended; what the kernel says of it |
//! | `fio` | `fio --verify` in a guest's file system, in rounds |
//! | `frontend` | a vhost-user front-end of our own: guest memory, rings, kicks and calls |
//! | `histogram` | latencies, with quantiles |
//! | `image` | guests' images: programs, scripts and modules as an initramfs |
//! | `lacking` | what a test says that is not done here |
//! | `lane` | the requests of one of many busy queues |
//! | `load` | keeps a number of requests in flight and measures |
//! | `mover` | an operator who moves queues between sidecores, many a second |
//! | `mounts` | what is mounted in folders of tests, and how it is let go of |
//! | `namespace` | network namespaces by name, and what runs in them |
//! | `net_frontend` | a NIC's driver on such a front-end: frames out and in |
//! | `own_network` | a network namespace of a test's own |
//! | `place` | a guest or a namespace, where commands run |
//! | `qmp` | QEMU's monitor |
//! | `report` | the table and the JSON lines of what was measured |
//! | `scratch` | folders that go away, also after a crash |
//! | `server` | whoever is measured, this project's daemon or another one |
//! | `slots` | virtio-blk requests at fixed places of guest memory |
//! | `spdk` | SPDK where it was built, its vhost target as a server |
//! | `testpmd` | starts DPDK's `dpdk-testpmd`, on either side of a NIC's socket |
//! | `timing` | times and rates, judged only where the run asks for it |
//! | `traffic` | TCP, UDP, bytes, numbered lines and load between two places |
//! | `unpacked` | programs of Debian 13 that are unpacked, not installed |
//! | `verified` | reads and writes that are compared, on a thread of their own |
//! | `vm` | a guest: QEMU with a stock kernel |
//! | `wire` | a wire that loses, doubles and delays |

pub mod bed;
pub mod client;
pub mod clock;
pub mod content;
pub mod daemon;
pub mod fio;
pub mod frontend;
pub mod histogram;
pub mod image;
pub mod lacking;
pub mod lane;
pub mod load;
pub mod mounts;
pub mod mover;
pub mod namespace;
pub mod net_frontend;
pub mod own_network;
pub mod place;
pub mod qmp;
pub mod report;
pub mod scratch;
pub mod server;
pub mod slots;
pub mod spdk;
pub mod testpmd;
pub mod timing;
pub mod traffic;
pub mod unpacked;
pub mod verified;
pub mod vm;
pub mod wire;
