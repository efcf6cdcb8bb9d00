//! Asking servers that are none: they answer as told, over loopback.

use std::net::{Ipv4Addr, TcpListener};

use proptest::prelude::*;

use super::*;

/// Serves connections with `answer`, which gets what was asked up to the end of a line (and the value).
fn server(answer: fn(&str) -> Vec<u8>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream, answer));
        }
    });
    Ok(at)
}

fn serve(mut stream: TcpStream, answer: fn(&str) -> Vec<u8>) -> io::Result<()> {
    let mut asked = vec![0; 4096];
    let mut came = 0;
    loop {
        let bytes = stream.read(&mut asked[came..])?;
        if bytes == 0 {
            return Ok(());
        }
        came += bytes;
        let text = String::from_utf8_lossy(&asked[..came]).into_owned();
        let is_whole = if text.starts_with("set") {
            came > 1024 && text.ends_with("\r\n")
        } else {
            text.ends_with("\r\n") && (text.starts_with("get") || text.ends_with("\r\n\r\n"))
        };
        if is_whole {
            stream.write_all(&answer(&text))?;
            came = 0;
        }
    }
}

fn asking(server: Server, address: SocketAddr, for_ms: u32) -> AskArguments {
    AskArguments { server, address, connections: 3, for_ms, path: "/1k".to_owned(), apart: false }
}

fn value(asked: &str) -> Vec<u8> {
    let key = asked[4..].trim_end();
    format!("VALUE {key} 0 1024\r\n{}\r\nEND\r\n", "x".repeat(1024)).into_bytes()
}

fn page(asked: &str) -> Vec<u8> {
    assert_eq!(asked, "GET /1k HTTP/1.1\r\nHost: lab\r\n\r\n");
    format!("HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 1024\r\n\r\n{}", "x".repeat(1024))
        .into()
}

#[test]
fn each_server_is_asked_for_as_long_as_told() -> Result<()> {
    let stored = |asked: &str| {
        if asked.starts_with("set") { b"STORED\r\n".to_vec() } else { value(asked) }
    };
    for (kind, at) in [(Server::Memcached, server(stored)?), (Server::Http, server(page)?)] {
        let answer = asked(&asking(kind, at, 100))?;
        let Answer::Done { operations, elapsed_ns, p50_ns, p99_ns } = answer else {
            bail!("{answer:?}");
        };
        assert!(operations >= 3 && elapsed_ns >= 100_000_000, "{operations} in {elapsed_ns}");
        assert!(0 < p50_ns && p50_ns <= p99_ns && p99_ns <= elapsed_ns);
    }
    Ok(())
}

#[test]
fn values_that_are_not_there_are_stored_first() -> Result<()> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static STORED: AtomicU32 = AtomicU32::new(0);
    let at = server(|asked| {
        if asked.starts_with("set") {
            STORED.fetch_add(1, Ordering::Relaxed);
            return b"STORED\r\n".to_vec();
        }
        if STORED.load(Ordering::Relaxed) < KEYS { b"END\r\n".to_vec() } else { value(asked) }
    })?;
    let mut connection = Connection::new(at, Protocol::memcached(0))?;
    for _ in 0..2 {
        connection.fill()?;
        assert_eq!(STORED.load(Ordering::Relaxed), KEYS);
    }
    Ok(())
}

#[test]
fn of_ten_requests_one_stores_and_all_values_come_in_turn() -> Result<()> {
    let mut protocol = Protocol::memcached(5);
    let requests: Vec<String> = (0..KEYS)
        .map(|_| {
            protocol.next();
            String::from_utf8_lossy(protocol.request()).into_owned()
        })
        .collect();
    assert_eq!(requests.iter().filter(|request| request.starts_with("set lab")).count(), 100);
    let mut keys: Vec<&str> = requests.iter().map(|request| &request[4..13]).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
    let set = requests.iter().find(|request| request.starts_with("set")).context("a set")?;
    assert_eq!(set.len(), "set lab000000 0 0 1024\r\n".len() + 1024 + 2);
    Ok(())
}

#[test]
fn answers_that_are_none_are_told() -> Result<()> {
    let head = |status: &str, rest: &str| format!("HTTP/1.1 {status}\r\n{rest}\r\n").into_bytes();
    let http = Protocol::http("/1k")?;
    for (came, why) in [
        (head("404 Not Found", ""), "the server answers `HTTP/1.1 404 Not Found`"),
        (head("200 OK", ""), "the server does not say how long its answer is"),
        (head("200 OK", "Content-Length: 65536\r\n"), "a file of 65536 bytes is too long"),
        (head("200 OK", "Content-Length: -1\r\n"), "invalid digit found in string"),
        (vec![b'x'; 4096], "an answer's head is longer than 4096 bytes"),
    ] {
        let said = http.reply_bytes(&came).map_err(|error| error.to_string());
        assert_eq!(said, Err(why.to_owned()));
    }
    let memcached = Protocol::memcached(0);
    let no_end = [b"VALUE lab000001 0 1024\r\n".to_vec(), vec![b'x'; 1100]].concat();
    for (came, why) in [
        (b"END\r\n".to_vec(), "memcached answers `END`"),
        (b"ERROR\r\n".to_vec(), "memcached answers `ERROR`"),
        (b"VALUE lab000001 0 9\r\n".to_vec(), "memcached answers `VALUE lab000001 0 9`"),
        (no_end, "a value has no end"),
    ] {
        let said = memcached.reply_bytes(&came).map_err(|error| error.to_string());
        assert_eq!(said, Err(why.to_owned()));
    }
    assert!(memcached.reply_bytes(&[b'x'; 100]).is_err());
    for path in ["1k", "/1k\r\nX: y", "/a b", &format!("/{}", "x".repeat(1000))] {
        assert!(Protocol::http(path).is_err(), "{path}");
    }
    Ok(())
}

#[test]
fn a_server_that_says_too_much_or_closes_is_an_error() -> Result<()> {
    let said = |kind, at| match asked(&asking(kind, at, 1000)) {
        Ok(answer) => format!("{answer:?}"),
        Err(error) => format!("{error:#}"),
    };
    let more = server(|asked| [page(asked), b"x".to_vec()].concat())?;
    assert_eq!(said(Server::Http, more), "more came than was asked for");
    let error = server(|_| b"SERVER_ERROR out of memory\r\n".to_vec())?;
    let why = "memcached answers `SERVER_ERROR out of memory`";
    assert_eq!(said(Server::Memcached, error), why);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let closing = listener.local_addr()?;
    thread::spawn(move || listener.incoming().take(3).for_each(drop));
    let closed = said(Server::Http, closing);
    assert!(!closed.contains("Done"), "{closed}");
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    assert_eq!(said(Server::Http, nobody), "Connection refused (os error 111)");
    Ok(())
}

proptest! {
    /// A beginning of an answer never has another length than the whole.
    #[test]
    fn the_length_of_an_answer_does_not_depend_on_how_it_comes(cut in 0usize..1100) {
        let protocols = [(Protocol::memcached(0), value("get lab000001\r\n"))];
        let Ok(http) = Protocol::http("/1k") else { return Ok(()) };
        let page = page("GET /1k HTTP/1.1\r\nHost: lab\r\n\r\n");
        for (protocol, whole) in protocols.into_iter().chain([(http, page)]) {
            let part = &whole[..cut.min(whole.len())];
            let told = protocol.reply_bytes(part).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert!(told.is_none_or(|bytes| bytes == whole.len()));
            let all = protocol.reply_bytes(&whole).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(all, Some(whole.len()));
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        let Ok(http) = Protocol::http("/1k") else { return Ok(()) };
        for protocol in [Protocol::memcached(0), http] {
            if let Ok(told) = protocol.reply_bytes(&bytes) {
                prop_assert!(told.is_none_or(|bytes| bytes <= REPLY_MAX));
            }
        }
    }
}
