//! That an interface is kept from whom the kernel keeps it, and from nobody else.

use std::sync::Arc;

use backend::net::HostSource;

use super::Interfaces;

fn packet() -> HostSource {
    HostSource::Packet { interface: "e0".into() }
}

fn xdp() -> HostSource {
    HostSource::Xdp { interface: "e0".into(), queue: 0 }
}

#[test]
fn a_program_keeps_another_one_away_and_packet_sockets_keep_nobody() {
    let all = Arc::new(Interfaces::default());
    all.boot(0);
    let one = all.open(0, &packet()).expect("a packet socket");
    let program = all.open(0, &xdp()).expect("a program beside it");
    let refused = all.open(0, &xdp()).expect_err("two programs").to_string();
    assert!(refused.contains("another XDP program"), "{refused}");
    let other = all.open(0, &packet()).expect("a packet socket beside both");
    drop(program);
    drop(all.open(0, &xdp()).expect("a program, when the other one is gone"));
    drop((one, other));
}
