//! What the integration tests in `tests/` are made of.
//!
//! What is tested runs as a process of its own, reached over a real socket.
//!
//! | module | what |
//! |---|---|
//! | `blkio_client` | libblkio, a driver that this project did not write |
//! | `crowd` | many tenants at work, all of whose bytes and frames are looked at |
//! | `demo` | what `./x demo` shows to a person |
//! | `dirty` | the pages that the daemon marks, and those that have changed |
//! | `door` | where a hostile front-end gets in, and what must be true once it has gone |
//! | `faulty` | a guest at work beside a disk that fails |
//! | `fuse_disk` | a disk in the test's process, with a volatile cache and faults as told |
//! | `ledger` | what each sector of a disk may hold |
//! | `hostile_bed` | a hostile guest beside a good one, and what that one keeps |
//! | `hostile_guest` | a guest that writes whatever bytes in its rings |
//! | `link_site` | keys and files of two daemons with a link between them |
//! | `link_stations` | a pair of interfaces, for a link without IP |
//! | `misdeeds` | what hostile guests and front-ends do, by the rows of `docs/security.md` |
//! | `mixed` | requests of all kinds, known to a ledger |
//! | `mounts` | small file systems and loop devices |
//! | `neighbour` | a guest at work beside a front-end that misbehaves |
//! | `packets` | TCP and UDP packets, and what arrives of them put together again |
//! | `power_cut` | loads a disk that may lose power at any moment, and judges each cut |
//! | `raw_front_end` | a front-end that says anything at all |
//! | `rows` | what was measured, for `./x bench recover` |
//! | `sight` | whether it can be seen here which vCPUs run |
//! | `single` | one request, and how it ended |
//! | `soak` | eight guests that stay, whatever happens to the daemon |
//! | `suite` | the groups of `./x test` and their cases |
//! | `tenant` | a guest whose memory outlives its back-ends |
//! | `throttle` | a cgroup that writes slowly |
//! | `windows` | rates beside one guest and beside another, in windows that take turns |

pub mod blkio_client;
pub mod crowd;
pub mod demo;
pub mod dirty;
pub mod door;
pub mod faulty;
pub mod fuse_disk;
pub mod hostile_bed;
pub mod hostile_guest;
pub mod link_site;
pub mod link_stations;
pub mod misdeeds;
pub mod mixed;
pub mod mounts;
pub mod neighbour;
pub mod packets;
pub mod power_cut;
pub mod raw_front_end;
pub mod rows;
pub mod sight;
pub mod single;
pub mod soak;
pub mod starved;
pub mod streams;
pub mod suite;
pub mod tenant;
pub mod throttle;
pub mod traffic;
pub mod windows;

pub use ledger;
