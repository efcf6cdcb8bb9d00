//! The peer over loopback, on addresses that only this process uses.

use std::net::Ipv4Addr;

use super::*;

/// An address on loopback for `index` (0 to 3) of this process: the peer's ports are fixed.
pub(crate) fn own_address(index: u8) -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, index << 6 | high & 63, middle, low)
}

/// Sends a byte and waits for it.
fn is_echoed(stream: &mut TcpStream) -> bool {
    let mut back = [0; 1];
    let sent = stream.write_all(&[7]);
    sent.is_ok() && stream.read_exact(&mut back).is_ok() && back == [7]
}

#[test]
fn connections_are_bounded_and_places_come_back() -> Result<()> {
    let address = IpAddr::V4(own_address(1));
    let _failed = start(address)?;
    let dial = |offset| TcpStream::connect(SocketAddr::new(address, PEER_PORT + offset));
    // Sinks count with echoes.
    let _sinks = [dial(3)?, dial(3)?];
    let mut open = Vec::new();
    // Sinks are accepted on another thread: until they are, there may be room for two more.
    let refused = (0..CONNECTIONS_MAX + 1).find_map(|_| {
        let mut stream = dial(2).ok()?;
        let echoed = is_echoed(&mut stream);
        open.push(stream);
        (!echoed).then_some(())
    });
    assert!(refused.is_some());
    assert!((CONNECTIONS_MAX - 2..=CONNECTIONS_MAX).contains(&(open.len() - 1)), "{}", open.len());
    for stream in open.iter_mut().rev().skip(1) {
        assert!(is_echoed(stream));
    }
    drop(open);
    // Their threads end when they come to run.
    assert!((0..100_000).any(|_| dial(2).is_ok_and(|mut stream| is_echoed(&mut stream))));
    Ok(())
}

#[test]
fn an_address_in_use_is_named() -> Result<()> {
    let address = IpAddr::V4(own_address(2));
    let _failed = start(address)?;
    let Err(error) = start(address) else { anyhow::bail!("two peers have one address") };
    let said = format!("{error:#}");
    assert_eq!(said, format!("UDP {address}:7001: Address already in use (os error 98)"));
    Ok(())
}

#[test]
fn failures_end_a_socket_when_nothing_works_between() {
    let failure = || io::Result::<()>::Err(io::Error::other("broken"));
    let mut failures = Failures::default();
    for _ in 0..FAILURES_MAX {
        assert!(matches!(failures.bear(failure()), Ok(None)));
    }
    assert!(matches!(failures.bear(Ok(3)), Ok(Some(3))));
    for _ in 0..FAILURES_MAX {
        assert!(matches!(failures.bear(failure()), Ok(None)));
    }
    assert!(failures.bear(failure()).is_err());
}
