//! What one front-end is, for whoever looks at it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cpus::HostCpus;

use super::*;
use crate::bounds::Bounds;
use crate::devices::device::Device;
use crate::devices::device_plan::Facts;
use crate::devices::kind::Kind;
use crate::network::nic::NicParts;

const LATER: Duration = Duration::from_secs(11);

/// A front-end that has just connected to a NIC, and the other end of its socket.
fn connected(now: Instant) -> (Connection, OwnedFd) {
    let host = HostCpus { online: vec![0], auto: vec![0], auto_count: 1 };
    let text = "[[nic]]\nid = \"n\"\nnull = \"drop\"\n";
    let plan = config::plan::load(text, "f", "/", &host, None).expect("a good file");
    let plan = plan.nics.into_iter().next().expect("a nic");
    let device = Device::new(0, Facts::from(&plan), Kind::Nic(NicParts::new(plan, None)));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let connection = device.new_connection(ours.into(), &Bounds::without_limits(), now);
    (connection, theirs.into())
}

fn heard(message: Message) -> Held {
    Held { message, fds: Vec::new(), need_reply: false }
}

#[test]
fn who_says_nothing_is_ended_and_who_says_what_it_is_stays() {
    let now = crate::clock::now();
    let (mut connection, _theirs) = connected(now);
    assert!(connection.gives_way(now) && connection.apply(true).is_none());
    assert_eq!(connection.overdue(now + LATER), Some("it said nothing of a front-end for 10 s"));
    assert!(connection.hear(heard(Message::SetOwner), now));
    assert!(!connection.hear(heard(Message::GetFeatures), now), "one at a time");
    let applied = connection.apply(true).expect("a message");
    assert!(applied.reply.is_ok() && connection.is_read());
    assert_eq!((connection.due_at(), connection.gives_way(now)), (None, false));
}

/// What it said to another process is said again by that, not heard from it.
#[test]
fn who_comes_from_another_process_is_known() {
    let now = crate::clock::now();
    let (mut connection, _theirs) = connected(now);
    let Connection { session, front_end, .. } = &mut connection;
    session.apply(Message::SetOwner, Vec::new(), false, front_end).expect("taken");
    connection.go_on();
    assert!(!connection.is_beginning() && connection.beginning().is_none());
    assert_eq!((connection.overdue(now + LATER), connection.gives_way(now)), (None, false));
}
