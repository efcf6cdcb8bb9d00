//! Loads over loopback: against the peer, and against ends that lose, repeat, refuse and say nothing.

use std::net::{IpAddr, TcpListener};
use std::sync::mpsc::channel;

use super::*;
use crate::orders::PEER_PORT;
use crate::peer;
use crate::peer::tests::own_address;

fn said(answer: Result<Answer>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("{error:#}"),
    }
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[test]
fn each_load_does_as_many_as_ordered() -> Result<()> {
    let address = IpAddr::V4(own_address(0));
    let _failed = peer::start(address)?;
    let at = |offset| SocketAddr::new(address, PEER_PORT + offset);
    for operations in [1, 300] {
        for bytes in [1, 7, 8, 256, 1400, 65_000] {
            for (answer, timed) in [
                (udp_rr(at(0), bytes, Amount::once(operations))?, true),
                (udp_send(at(1), bytes, Amount::once(operations))?, false),
                (tcp_rr(at(2), bytes, Amount::once(operations))?, true),
                (tcp_send(at(3), bytes, Amount::once(operations))?, false),
            ] {
                let Answer::Done { operations: told, elapsed_ns, p50_ns, p99_ns } = answer else {
                    bail!("failed");
                };
                assert_eq!(told, operations);
                assert!(p50_ns <= p99_ns && p99_ns <= elapsed_ns);
                assert_eq!(p50_ns > 0, timed);
            }
        }
    }
    tcp_send(at(3), 1 << 20, Amount::once(20))?;
    Ok(())
}

/// Serves datagrams with `answer`, which sees each and says how often it is sent back.
fn echo(mut answer: impl FnMut(u64) -> u32 + Send + 'static) -> Result<SocketAddr> {
    let socket = UdpSocket::bind(loopback())?;
    let at = socket.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 2048];
        for seen in 0.. {
            let (bytes, from) = socket.recv_from(&mut buffer)?;
            for _ in 0..answer(seen) {
                socket.send_to(&buffer[..bytes], from)?;
            }
        }
        Ok(())
    });
    Ok(at)
}

#[test]
fn what_is_lost_is_sent_again_and_what_is_late_is_passed_over() -> Result<()> {
    // Of 20 one is lost and one comes twice.
    let peer = echo(|seen| match seen % 20 {
        5 => 0,
        10 => 2,
        _ => 1,
    })?;
    for bytes in [1, 100] {
        let mut exchange = Exchange::new(peer, message(bytes, &DATAGRAM_SIZES)?, WAIT)?;
        let answer = exchange.measured(Amount::once(100))?;
        let Answer::Done { operations: 100, p50_ns, elapsed_ns, .. } = answer else {
            bail!("{answer:?}");
        };
        // 116 exchanges, the warm-up's too; a busy machine may be late with more.
        assert!(exchange.lost >= 12, "{}", exchange.lost);
        assert!(p50_ns > 0 && elapsed_ns > WAIT.as_nanos() as u64 * 4);
    }
    Ok(())
}

/// For tests: loopback loses nothing, and a busy machine is slow.
const WAIT: Duration = Duration::from_millis(150);

#[test]
fn too_much_loss_and_too_many_answers_are_errors() -> Result<()> {
    let many = "more than 100 datagrams were lost or late";
    let none = "20 datagrams in a row were lost";
    for (answers, wait, lost, why) in
        [(0, Duration::from_millis(1), 20, none), (3, LOST_AFTER, 101, many)]
    {
        let peer = echo(move |_| answers)?;
        let message = message(16, &DATAGRAM_SIZES)?;
        let mut exchange = Exchange::new(peer, message, wait)?;
        let whom = format!("waiting for {peer} (`lab peer` is the other end)");
        assert_eq!(said(exchange.measured(Amount::once(1000))), format!("{whom}: {why}"));
        assert_eq!(exchange.lost, lost);
    }
    Ok(())
}

#[test]
fn nobody_there_is_an_error_at_once() -> Result<()> {
    // Had, and given back: nobody listens.
    let peer = UdpSocket::bind(loopback())?.local_addr()?;
    let refused =
        format!("{peer} (`lab peer` is the other end): Connection refused (os error 111)");
    assert_eq!(said(udp_rr(peer, 10, Amount::once(10))), format!("waiting for {refused}"));
    assert_eq!(said(udp_send(peer, 10, Amount::once(1000))), format!("sending to {refused}"));
    let peer = TcpListener::bind(loopback())?.local_addr()?;
    let refused = format!("connecting to {peer} (`lab peer` is the other end): Connection refused");
    assert!(said(tcp_rr(peer, 10, Amount::once(10))).starts_with(&refused));
    assert!(said(tcp_send(peer, 10, Amount::once(10))).starts_with(&refused));
    Ok(())
}

#[test]
fn sizes_are_bounded() {
    let peer = loopback();
    assert_eq!(said(udp_rr(peer, 65_508, Amount::once(1))), "bytes: 65508, not 1 to 65507");
    assert_eq!(said(udp_send(peer, 0, Amount::once(1))), "bytes: 0, not 1 to 65507");
    assert_eq!(said(tcp_rr(peer, 65_537, Amount::once(1))), "bytes: 65537, not 1 to 65536");
    assert_eq!(
        said(tcp_send(peer, u32::MAX, Amount::once(1))),
        "bytes: 4294967295, not 1 to 1048576"
    );
}

#[test]
fn a_connection_carries_warm_up_and_load_to_its_end() -> Result<()> {
    let listener = TcpListener::bind(loopback())?;
    let peer = listener.local_addr()?;
    let (counted, counts) = channel();
    thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let bytes = io::copy(&mut stream, &mut io::sink())?;
        // Counted before it is closed, so before the load may end.
        let _ = counted.send(bytes);
        Ok(())
    });
    tcp_send(peer, 1000, Amount::once(5000))?;
    assert_eq!(counts.try_recv(), Ok(1000 * (5000 + 500)));
    Ok(())
}

#[test]
fn a_peer_that_ends_or_answers_where_it_should_not_is_an_error() -> Result<()> {
    let listener = TcpListener::bind(loopback())?;
    let peer = listener.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        drop(listener.accept()?);
        let (mut echoing, _) = listener.accept()?;
        let mut byte = [0; 1];
        echoing.read_exact(&mut byte)?;
        echoing.write_all(&byte)?;
        io::copy(&mut echoing, &mut io::sink()).map(|_| ())
    });
    let ended = said(tcp_rr(peer, 1, Amount::once(100)));
    assert!(ended.contains(&peer.to_string()) && !ended.contains("Done"), "{ended}");
    assert_eq!(said(tcp_send(peer, 1, Amount::once(1))), format!("{peer} is no sink: it answers"));
    Ok(())
}
