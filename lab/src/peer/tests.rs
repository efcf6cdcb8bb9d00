//! The peer over loopback, on addresses that only this process uses.

use std::net::Ipv4Addr;
use std::sync::LazyLock;

use anyhow::ensure;

use super::*;
use crate::grant::Grant;

/// An address on loopback for `index` (0 to 3) of this process: the peer's ports are fixed.
pub(crate) fn own_address(index: u8) -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, index << 6 | high & 63, middle, low)
}

/// The address of a peer that all tests use which do not fill it.
pub(crate) fn shared() -> Result<IpAddr> {
    // Nobody waits for its failure.
    static PEER: LazyLock<Result<()>> = LazyLock::new(|| start(own_address(3).into()).map(drop));
    ensure!(PEER.is_ok(), "no peer: {PEER:?}");
    Ok(own_address(3).into())
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
fn what_comes_to_the_sink_wakes_nobody() -> Result<()> {
    let sink = UdpSocket::bind(SocketAddr::from((own_address(0), 0)))?;
    sink.set_nonblocking(true)?;
    let from = UdpSocket::bind(SocketAddr::from((own_address(0), 0)))?;
    // On loopback it has arrived when the send is done.
    let comes = || -> Result<bool> {
        from.send_to(&[7], sink.local_addr()?)?;
        Ok(sink.recv(&mut [0; 8]).is_ok())
    };
    assert!(comes()?, "without the filter");
    drop_all(&sink)?;
    assert!(!comes()?);
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

/// A connection to port `offset` of the shared peer, which tells `asked`, and no more.
fn told(offset: u16, asked: &[u8]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(SocketAddr::new(shared()?, PEER_PORT + offset))?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(asked)?;
    Ok(stream)
}

#[test]
fn a_source_sends_what_was_asked_for_until_the_connection_ends() -> Result<()> {
    let mut stream = told(5, &3u32.to_le_bytes())?;
    let mut back = vec![9; 30_000];
    stream.read_exact(&mut back)?;
    assert!(back.chunks(3).all(|message| message == [0, 1, 2]));
    Ok(())
}

#[test]
fn a_connection_that_asks_wrongly_is_closed() -> Result<()> {
    for asked in [0, (1 << 20) + 1, u32::MAX] {
        let read = told(5, &asked.to_le_bytes())?.read(&mut [0; 1])?;
        assert_eq!(read, 0, "{asked}");
    }
    // Half of it, and the end.
    let half = told(5, &[1, 0])?;
    half.shutdown(std::net::Shutdown::Write)?;
    assert_eq!((&half).read(&mut [0; 1])?, 0);
    Ok(())
}

#[test]
fn datagrams_that_ask_wrongly_get_nothing_and_the_next_is_answered() -> Result<()> {
    let socket = UdpSocket::bind((own_address(3), 0))?;
    socket.connect(SocketAddr::new(shared()?, PEER_PORT + 4))?;
    let good = Grant { from: 5, count: 3, bytes: 20 };
    let too_long = [&good.encode()[..], &[0]].concat();
    let too_many = Grant { count: u32::MAX, ..good };
    for bad in [b"", &b"nonsense"[..], &too_long, &too_many.encode(), &[0xff; 9000]] {
        socket.send(bad)?;
    }
    socket.send(&good.encode())?;
    socket.set_read_timeout(Some(SILENCE))?;
    let mut message = [9; 100];
    for number in 5..8u64 {
        assert_eq!(socket.recv(&mut message)?, 20);
        assert_eq!(message[..8], number.to_le_bytes());
    }
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    assert!(socket.recv(&mut message).is_err());
    Ok(())
}
