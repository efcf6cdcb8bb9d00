//! A link by AF_XDP, between two interfaces of a namespace: in their driver and, where that cannot (an MTU of 3600 is
//! more than veth's has room for), in the stack. Of four clients at two sidecores each has a queue of its own, or the
//! first has the only one.

use anyhow::Result;
use testing::own_network::in_namespace;

use super::{remote, remote_shards};
use tests::link_stations::{Stations, Via};

#[test]
fn a_guest_has_its_disk_by_the_driver() -> Result<()> {
    in_namespace(|| remote::without_ip(&Stations::new(Via::Xdp, 1500, 1)?))
}

#[test]
fn a_guest_has_its_disk_by_the_stack() -> Result<()> {
    in_namespace(|| remote::without_ip(&Stations::new(Via::Xdp, 3600, 1)?))
}

#[test]
fn four_clients_have_two_sidecores_on_one_queue() -> Result<()> {
    in_namespace(|| remote_shards::without_ip(&Stations::new(Via::Xdp, 1500, 1)?))
}

#[test]
fn four_clients_have_two_sidecores_on_two_queues() -> Result<()> {
    in_namespace(|| remote_shards::without_ip(&Stations::new(Via::Xdp, 1500, 2)?))
}
