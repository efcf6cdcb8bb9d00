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
//! | `front_ends` | front-ends come and go; messages, held until the queues they concern are back; queues that a sidecore has stopped; who never comes to a request |
//! | `calls` | what operators ask for |
//! | `reload`, `network::reload` | the file read again; switches and NICs of it |
//! | `check`, `views` | a file looked at before it is served; what operators are shown |
//! | `in_use`, `sizes` | which devices guests have; what size a disk may have |
//! | `daemon_view` | the daemon itself, for operators |
//! | `turn` | the time of a turn, and whom it touched |
//! | `devices` | those that are open, by number: `device`, its front-ends (`connection`, `front_end`, `beginning`), its queues (`queue`, `start`, `metered`), what differs between kinds (`kind`), descriptors that came from outside (`lent`) |
//! | `disk` | what only a disk has: which image it is, and when a guest waits for its own (`image`, `bonds`), locks that follow rings (`locks`), requests that wait or fail (`stalls`, `failures`), lost data (`unsynced`), a look at images (`watch`) |
//! | `service` | how queues are served, changed while they are |
//! | `network` | bridges and their ports, NICs, those that lead to the host; operators' calls of them |
//! | `opening` | devices that are not open, and opening them |
//! | `bounds` | what one device can use up of descriptors, mappings, memory and addresses |
//! | `sidecores` | the sidecores from this side: their loads, where a queue goes, and what is on its way |
//! | `guests` | guests' vCPUs: found and followed, asked for, shown, and seen on sidecores' processors |
//! | `state` | what is kept on disk of devices made through the API |
//! | `remote` | links: disks of other machines, and disks for them |
//! | `upgrade` | another process takes over, or this one does |
//! | `rights` | who may open a socket |
//! | `defects` | what control counted on and did not find |
//! | `clock` | the time, which loops alone read |
//! | `ending` | the end of the process at once |
//! | `threads` | what would hold control up is done there |
//! | `simulated` | all of this on one thread, in made-up time |
//! | `trial` | the same, for tests of what control promises |
//! | `api`, `by_links` | calls and answers on the API's sockets; what clients of links want of control |
//! | `problems` | several of one device, told together |
//! | `poll`, `sockets` | the system calls |
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
mod ending;
mod front_ends;
mod guests;
mod in_use;
mod insist;
mod manager;
mod network;
mod opening;
mod options;
mod poll;
mod problems;
mod reload;
mod remote;
mod rights;
mod rooms;
mod service;
mod sidecores;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod sizes;
mod sockets;
mod state;
mod threads;
#[cfg(test)]
mod trial;
mod turn;
pub mod upgrade;
mod views;

pub use begin::{STOP_THAT_ONE, StartError, run};
pub use bounds::BoundsError;
pub use disk::images::ImageError;
pub use guests::wants_run_state;
pub use network::NetworkError;
pub use options::{Options, Unread, of_an_heir};
pub use remote::read_key;
pub use rights::RightsError;
pub use state::StateError;
