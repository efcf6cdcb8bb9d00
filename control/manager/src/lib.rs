//! The one owner of control state: devices, their front-ends, sidecores, and what operators ask.
//!
//! [`run`] is the control loop of the daemon, on one thread. It opens what the plan says, carries
//! vhost-user messages between sockets and sessions (`vhost_user`), moves queues to sidecores and
//! back (`sidecore`), and answers the API (`api`). Nothing here is on the path of a request.
//!
//! | file | what |
//! |---|---|
//! | `begin`, `options` | from a plan to the loop; what the program gives it besides that |
//! | `manager` | the loop, and settling |
//! | `rooms` | what is served, and with what |
//! | `front_ends` | front-ends come and go; messages, held until the queues they concern are back; queues that a sidecore has stopped |
//! | `idle_peers` | front-ends that never come to a request |
//! | `stalls`, `failures` | disks whose requests wait; whose guests are given errors |
//! | `calls` | what operators ask for |
//! | `reload`, `network::reload` | the file read again; switches and NICs of it |
//! | `in_use`, `sizes` | which devices guests have; what size a disk may have |
//! | `daemon_view` | the daemon itself, for operators |
//! | `turn` | the time of a turn, and whom it touched |
//! | `devices` | those that are open, by number |
//! | `device` | one device's state, disk or NIC |
//! | `kind`, `disk` | what differs between them; what only a disk has |
//! | `network` | bridges and their ports, NICs, those that lead to the host; operators' calls of them |
//! | `opening` | devices that are not open, and opening them |
//! | `front_end`, `start` | memory and descriptors of a front-end; from ring facts to a queue |
//! | `bounds` | what one device can use up of descriptors, mappings and memory |
//! | `address_space` | how much memory front-ends may lend |
//! | `lent` | descriptors that came from outside |
//! | `log_rate` | how much one disk may write into the log |
//! | `queue` | a queue: its life, its ring, what is kept of it |
//! | `sidecores` | the sidecores from this side: their loads, where a queue goes, and what is on its way |
//! | `guests` | guests' vCPUs: found and followed, asked for, shown, and seen on sidecores' processors |
//! | `watch` | a look once a second whether images are where they were |
//! | `image` | which images are the same, and when a guest waits for its own |
//! | `state`, `unsynced`, `images` | what is kept on disk: devices made through the API, disks that lost data, images that guests are on |
//! | `remote` | links: disks of other machines, and disks for them |
//! | `upgrade` | another process takes over, or this one does |
//! | `rights` | who may open a socket |
//! | `defects` | what control counted on and did not find |
//! | `clock` | the time, which loops alone read |
//! | `threads` | what would hold control up is done there |
//! | `simulated` | all of this on one thread, in made-up time |
//! | `poll`, `sockets`, `frame_socket` | the system calls |
#![forbid(unsafe_code)]

pub mod api;
mod begin;
mod bounds;
mod by_links;
mod calls;
pub mod check;
mod clock;
mod daemon_view;
mod defects;
mod devices;
mod disk;
mod front_ends;
mod guests;
mod in_use;
mod manager;
mod network;
mod opening;
mod options;
mod poll;
mod reload;
mod remote;
mod rights;
mod rooms;
mod service;
mod sidecores;
#[cfg(feature = "simulated")]
pub mod simulated;
mod sizes;
mod sockets;
mod state;
mod threads;
mod turn;
pub mod upgrade;
mod views;

pub use begin::{StartError, run};
pub use bounds::BoundsError;
pub use disk::images::ImageError;
pub use guests::wants_run_state;
pub use network::NetworkError;
pub use options::Options;
pub use remote::read_key;
pub use rights::RightsError;
pub use state::StateError;
