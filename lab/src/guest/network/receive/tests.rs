//! Receiving over loopback: from the peer's sources, and from ends that lose, repeat, flood and say nothing.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;

use anyhow::bail;

use super::*;
use crate::orders::PEER_PORT;
use crate::peer::tests::shared;

/// Loopback loses nothing, and a busy machine is slow.
const WAIT: Duration = Duration::from_millis(150);

fn at(offset: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(shared()?, PEER_PORT + offset))
}

fn said(answer: Result<Answer>) -> String {
    match answer {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn each_load_receives_as_many_as_ordered() -> Result<()> {
    for operations in [1, 63, 64, 65, 128, 129, 5000] {
        for bytes in [8, 256, 1472] {
            for answer in [
                udp_receive(at(4)?, bytes, Amount::once(operations))?,
                tcp_receive(at(5)?, bytes, Amount::once(operations))?,
            ] {
                let Answer::Done { operations: told, elapsed_ns, p50_ns: 0, p99_ns: 0 } = answer
                else {
                    bail!("{answer:?}");
                };
                assert_eq!(told, operations);
                assert!(elapsed_ns > 0);
            }
        }
    }
    tcp_receive(at(5)?, 1 << 20, Amount::once(20))?;
    Ok(())
}

#[test]
fn nothing_is_on_its_way_after_the_last() -> Result<()> {
    let mut reception = Reception::new(at(4)?, 100, Duration::from_secs(60))?;
    for count in [1, 500, 64] {
        assert_eq!(reception.take(count)?, count);
        assert_eq!((reception.asked, reception.lost), (reception.seen, 0));
    }
    reception.socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let more = reception.socket.recv(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(more, Err(ErrorKind::WouldBlock));
    Ok(())
}

/// Answers grants with as many of each datagram as `copies` says.
fn source(mut copies: impl FnMut(u64) -> u32 + Send + 'static) -> Result<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = socket.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        let mut line = [0; 64];
        loop {
            let (bytes, from) = socket.recv_from(&mut line)?;
            let grant = Grant::decode(&line[..bytes]).ok_or(ErrorKind::InvalidData)?;
            let mut message = vec![0; grant.bytes as usize];
            for number in grant.numbers() {
                message[..8].copy_from_slice(&number.to_le_bytes());
                for _ in 0..copies(number) {
                    socket.send_to(&message, from)?;
                }
            }
        }
    });
    Ok(at)
}

#[test]
fn what_is_lost_is_asked_for_again_and_what_is_repeated_is_passed_over() -> Result<()> {
    // Each 100 one is lost, and one comes twice; once the last of a window.
    let peer = source(|number| match number % 100 {
        50 => 0,
        70 => 2,
        _ => u32::from(number != 127),
    })?;
    let mut reception = Reception::new(peer, 64, WAIT)?;
    assert_eq!(reception.take(128)?, 128);
    assert_eq!(reception.take(2000)?, 2000);
    let numbers = reception.seen;
    assert!(numbers >= 2149, "{numbers}");
    assert!(reception.lost >= 43, "{}", reception.lost);
    Ok(())
}

#[test]
fn too_much_loss_and_silence_are_errors() -> Result<()> {
    let half = source(|number| (number % 2) as u32)?;
    let lost = Reception::new(half, 64, WAIT)?.take(100_000);
    let lost = lost.map_err(|error| error.to_string());
    assert!(lost.as_ref().is_err_and(|said| said.contains("were lost or late")), "{lost:?}");
    let doubled = source(|_| 2)?;
    let late = Reception::new(doubled, 64, WAIT)?.take(100_000);
    assert!(late.is_err_and(|error| error.to_string().contains("were lost or late")));
    // Each grant is lost, so nothing counts but the times.
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut reception = Reception::new(silent.local_addr()?, 64, Duration::from_millis(1))?;
    let none = reception.take(1).map_err(|error| error.to_string());
    assert_eq!(none, Err("20 times nothing came".to_owned()));
    assert_eq!(reception.lost, 19);
    Ok(())
}

#[test]
fn nobody_there_is_named_and_sizes_are_bounded() -> Result<()> {
    let once = Amount::once(10);
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let refused =
        format!("{peer} (`lab peer` is the other end): Connection refused (os error 111)");
    assert_eq!(said(udp_receive(peer, 10, once)), format!("receiving from {refused}"));
    assert_eq!(said(udp_receive(peer, 7, once)), "bytes: 7, not 8 to 1472");
    assert_eq!(said(udp_receive(peer, 1473, once)), "bytes: 1473, not 8 to 1472");
    let peer = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let refused = format!("connecting to {peer} (`lab peer` is the other end): Connection refused");
    assert!(said(tcp_receive(peer, 10, once)).starts_with(&refused));
    assert_eq!(said(tcp_receive(peer, 0, once)), "bytes: 0, not 1 to 1048576");
    Ok(())
}

#[test]
fn a_connection_that_ends_is_an_error() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let peer = listener.local_addr()?;
    thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.read_exact(&mut [0; 4])?;
        stream.write_all(&[0; 99])
    });
    let why = format!("receiving from {peer} (`lab peer` is the other end): failed to fill whole");
    let said = said(tcp_receive(peer, 10, Amount::once(100)));
    assert!(said.starts_with(&why), "{said}");
    Ok(())
}
