//! Orders as text, and the conversation about them.

use std::fs::File;
use std::io::Cursor;
use std::thread;

use proptest::prelude::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use super::*;
use crate::orders::{PEER_PORT, Server};
use crate::peer::tests::shared;

/// What is answered to `orders`, after the first line.
fn answers(orders: &[u8]) -> Result<Vec<Value>> {
    let mut said = Vec::new();
    converse(Cursor::new(orders), &mut said)?;
    let lines: Vec<&[u8]> = said.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(lines.iter().all(|line| line.ends_with(b"\n")));
    let ready: Ready = serde_json::from_slice(lines[0])?;
    assert!(ready.ready);
    Ok(lines[1..].iter().map(|line| serde_json::from_slice(line)).collect::<Result<_, _>>()?)
}

fn error(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or("no error")
}

/// An order that can be done anywhere.
fn good() -> Result<String> {
    let peer = SocketAddr::new(shared()?, PEER_PORT);
    Ok(json!({ "load": "udp_rr", "peer": peer, "bytes": 1, "operations": 20 }).to_string())
}

#[test]
fn orders_are_what_the_page_says() -> Result<()> {
    let blk = r#"{"load":"blk_read","device":"/dev/vda","depth":1,"operations":2000}"#;
    let order =
        Order::BlkRead { device: "/dev/vda".to_owned(), depth: 1, operations: 2000, for_ms: None };
    assert_eq!(serde_json::from_str::<Order>(blk)?, order);
    assert_eq!(serde_json::to_string(&order)?, blk);
    let udp = r#"{"load":"udp_rr","peer":"10.0.0.1:7001","bytes":1,"operations":9}"#;
    let order =
        Order::UdpRr { peer: "10.0.0.1:7001".to_owned(), bytes: 1, operations: 9, for_ms: None };
    assert_eq!(serde_json::from_str::<Order>(udp)?, order);
    let done = r#"{"operations":20,"elapsed_ns":9,"p50_ns":1,"p99_ns":2}"#;
    let answer = Answer::Done { operations: 20, elapsed_ns: 9, p50_ns: 1, p99_ns: 2 };
    assert_eq!(serde_json::from_str::<Answer>(done)?, answer);
    assert_eq!(serde_json::to_string(&answer)?, done);
    let failed = Answer::Failed { error: "why".to_owned() };
    assert_eq!(serde_json::from_str::<Answer>(r#"{"error":"why"}"#)?, failed);
    Ok(())
}

proptest! {
    #[test]
    fn orders_and_answers_come_through(
        (kind, name) in (0..12, ".{0,40}"),
        (depth, bytes) in any::<(u16, u32)>(),
        for_ms in any::<Option<u32>>(),
        (operations, p50_ns, p99_ns, elapsed_ns) in any::<(u64, u64, u64, u64)>(),
    ) {
        let (device, peer) = (name.clone(), name.clone());
        let order = match kind {
            0 => Order::BlkRead { device, depth, operations, for_ms },
            1 => Order::BlkWrite { device, depth, operations, for_ms },
            2 => Order::UdpRr { peer, bytes, operations, for_ms },
            3 => Order::TcpRr { peer, bytes, operations, for_ms },
            4 => Order::UdpSend { peer, bytes, operations, for_ms },
            5 => Order::UdpReceive { peer, bytes, operations, for_ms },
            6 => Order::TcpReceive { peer, bytes, operations, for_ms },
            7 => Order::BlkMixed { device, readers: depth, writers: 3, operations, for_ms },
            8 => Order::Spin { operations, for_ms },
            9 => Order::Mark { end: depth > 9 },
            10 => Order::Serve {
                server: [Server::Http, Server::Memcached, Server::Echo][usize::from(depth % 3)],
            },
            _ => Order::TcpSend { peer, bytes, operations, for_ms },
        };
        let line = serde_json::to_string(&order)?;
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(serde_json::from_str::<Order>(&line)?, order);
        let done = Answer::Done { operations, elapsed_ns, p50_ns, p99_ns };
        for answer in [done, Answer::Failed { error: name }] {
            let line = serde_json::to_string(&answer)?;
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(serde_json::from_str::<Answer>(&line)?, answer);
        }
    }

    /// Whatever is sent: it ends, each line that is not blank has one answer, and the next order is done.
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut orders = bytes.clone();
        orders.push(b'\n');
        orders.extend(br#"{"load":"blk_read","device":"","depth":1,"operations":1}"#);
        let said = answers(&orders).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let lines = bytes.split(|byte| *byte == b'\n');
        let expected = lines.filter(|line| !line.trim_ascii().is_empty()).count() + 1;
        prop_assert_eq!(said.len(), expected);
        let last = said.last().map(error);
        prop_assert_eq!(last, Some("device : No such file or directory (os error 2)"));
    }
}

#[test]
fn a_bad_order_has_an_error_and_the_next_is_done() -> Result<()> {
    let good = good()?;
    for (bad, why) in [
        ("nonsense", "no order: expected ident at line 1 column 2"),
        ("{}", "no order: missing field `load` at line 1 column 2"),
        (r#"{"load":"rm"}"#, "no order: unknown variant `rm`"),
        (
            r#"{"load":"udp_rr","peer":"a","bytes":1,"operations":1}"#,
            "peer: `a`, not an address and a port (10.0.0.1:7001): invalid socket address syntax",
        ),
        (
            r#"{"load":"tcp_send","peer":"127.0.0.1:1","bytes":0,"operations":1}"#,
            "bytes: 0, not 1 to 1048576",
        ),
        (
            r#"{"load":"udp_send","peer":"127.0.0.1:1","bytes":1,"operations":0}"#,
            "operations: 0, not 1 to 1000000000",
        ),
        (
            r#"{"load":"blk_write","device":"/dev/nothing","depth":1,"operations":1}"#,
            "device /dev/nothing: No such file or directory (os error 2)",
        ),
    ] {
        let said = answers(format!("{bad}\n{good}\n").as_bytes())?;
        let [failed, done] = &said[..] else { anyhow::bail!("{bad}: {said:?}") };
        assert!(error(failed).starts_with(why), "{bad}: {failed}");
        assert_eq!(done["operations"], 20, "{bad}: {done}");
    }
    Ok(())
}

#[test]
fn the_first_line_has_the_clock_of_the_kernel() -> Result<()> {
    let mut said = Vec::new();
    converse(Cursor::new(b""), &mut said)?;
    let clocksource = std::fs::read_to_string(CLOCKSOURCE).unwrap_or_default();
    let ready = format!("{{\"ready\":true,\"clocksource\":\"{}\"}}\n", clocksource.trim());
    assert_eq!(String::from_utf8(said)?, ready);
    Ok(())
}

#[test]
fn a_marker_is_an_order() -> Result<()> {
    let orders = "{\"load\":\"mark\",\"end\":false}\n{\"load\":\"mark\",\"end\":true}\n";
    let said = answers(orders.as_bytes())?;
    let nothing = json!({ "operations": 0, "elapsed_ns": 0, "p50_ns": 0, "p99_ns": 0 });
    assert_eq!(said, [nothing.clone(), nothing]);
    Ok(())
}

#[test]
fn a_line_is_bounded_to_the_byte() -> Result<()> {
    let good = good()?;
    let padded = |length: usize| format!("{good}{}\n{good}\n", " ".repeat(length - good.len()));
    let said = answers(padded(LINE_MAX).as_bytes())?;
    assert_eq!((said.len(), &said[0]["operations"]), (2, &json!(20)), "{said:?}");
    for length in [LINE_MAX + 1, LINE_MAX + 2, LINE_MAX * 2 + 1, LINE_MAX * 100] {
        let said = answers(padded(length).as_bytes())?;
        assert_eq!(said.len(), 2, "{length}: {said:?}");
        assert_eq!(error(&said[0]), "a line of more than 8192 bytes");
        assert_eq!(said[1]["operations"], 20);
    }
    // The end of the file in the midst of one.
    assert_eq!(answers(&vec![b'x'; LINE_MAX * 3])?.len(), 1);
    assert_eq!(answers(&vec![b'x'; LINE_MAX])?.len(), 1);
    Ok(())
}

#[test]
fn blank_lines_are_no_orders_and_the_last_needs_no_end() -> Result<()> {
    assert_eq!(answers(b"")?, [Value::Null; 0]);
    assert_eq!(answers(b"\r\n\n \n")?, [Value::Null; 0]);
    let said = answers(format!("\r\n{}", good()?).as_bytes())?;
    assert_eq!(said.len(), 1);
    assert_eq!(said[0]["operations"], 20);
    Ok(())
}

/// A terminal as a guest's serial port is when nobody has set it: it echoes, and has lines.
#[test]
fn a_terminal_is_a_port() -> Result<()> {
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    grantpt(&outer)?;
    unlockpt(&outer)?;
    let name = ptsname(&outer, Vec::new())?.into_string()?;
    let guest = thread::spawn(move || serve(Path::new(&name)));
    let outer = File::from(outer);
    let mut answers = BufReader::new(outer.try_clone()?).lines();
    let mut next =
        || -> Result<Value> { Ok(serde_json::from_str(&answers.next().context("a line")??)?) };
    assert_eq!(next()?["ready"], true);
    for _ in 0..3 {
        (&outer).write_all(format!("{}\n", good()?).as_bytes())?;
        assert_eq!(next()?["operations"], 20);
        (&outer).write_all(b"nonsense\n")?;
        assert!(error(&next()?).starts_with("no order"));
    }
    drop((answers, outer));
    match guest.join() {
        Ok(ended) => ended,
        Err(_) => anyhow::bail!("the guest's thread has panicked"),
    }
}

#[test]
fn a_port_that_is_not_there_is_named() {
    let said = serve(Path::new("/dev/nothing")).map_err(|error| format!("{error:#}"));
    let why = "opening the port /dev/nothing: No such file or directory (os error 2)";
    assert_eq!(said, Err(why.to_owned()));
}
