//! The server over a real socket, with a control loop that answers by rote.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use config::api::{DiskList, ReloadView, VersionView};
use config::spec::DaemonSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::again::Lost;
use super::*;
use crate::rights::Accounts;

/// Opens and serves.
fn serve(socket: &Path, version: &'static str) -> io::Result<(Server, Calls)> {
    let rights = Rights::own();
    let place = |path| Place { path, rights: &rights, inherited: None };
    let (entrance, calls) = open(place(socket), None).map_err(|(_, error)| error)?;
    let mut server = entrance.prepare(version)?;
    server.begin();
    Ok((server, calls))
}

/// A daemon's part: the server, and a thread that answers each call with `answer`.
struct Fixture {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    server: Option<Server>,
    stop: mpsc::Sender<()>,
    control: Option<JoinHandle<Vec<Call>>>,
}

impl Fixture {
    fn new(answer: fn(&Call) -> Result<Answer, ApiError>) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api.sock");
        let (server, calls) = serve(&socket, "1.2.3").unwrap();
        let (stop, stopped) = mpsc::channel();
        let control = std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let wake = calls.wake_fd();
                let step = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&step)).unwrap();
                while let Some(request) = calls.take() {
                    seen.push(request.call.clone());
                    let answer = answer(&request.call);
                    request.answer(answer);
                }
                if stopped.try_recv() != Err(mpsc::TryRecvError::Empty) {
                    return seen;
                }
            }
        });
        Fixture { _folder: folder, socket, server: Some(server), stop, control: Some(control) }
    }

    /// Sends bytes as they are and reads to the end: status, headers, body.
    fn raw(&self, bytes: &[u8]) -> (u16, String, String) {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        // The server may refuse before it has read all.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        response(stream)
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: sidecore\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, headers, body) = self.raw(text.as_bytes());
        assert!(headers.contains("content-type: application/json"), "{headers}");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Stops everything and gives the calls that came.
    fn finish(mut self) -> Vec<Call> {
        let _ = self.stop.send(());
        self.control.take().unwrap().join().unwrap()
    }
}

fn response(mut stream: UnixStream) -> (u16, String, String) {
    let mut bytes = Vec::new();
    // A refusal before all was read ends in a reset, after the answer.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, head.to_lowercase(), body.to_string())
}

fn rote(call: &Call) -> Result<Answer, ApiError> {
    match call {
        Call::ListDisks => Ok(Answer::Disks(DiskList::default())),
        Call::Reload { .. } | Call::ShowReload => Ok(Answer::Reloaded(ReloadView::default())),
        Call::ShowDisk { id } => Err(ApiError::no_such_disk(id)),
        _ => Ok(Answer::Version(VersionView { program: "p".into(), ..VersionView::default() })),
    }
}

#[test]
fn every_route_reaches_the_control_loop_as_its_call() {
    let fixture = Fixture::new(rote);
    let bodies = |route: &config::routes::Route| match route.operation {
        config::routes::Operation::AddDisk => r#"{"id":"vm 1","path":"/a"}"#,
        config::routes::Operation::ResizeDisk => r#"{"size":"1G"}"#,
        config::routes::Operation::MoveDisk | config::routes::Operation::MoveNic => r#"{"to":1}"#,
        config::routes::Operation::ChangeDisk => r#"{"share":5}"#,
        config::routes::Operation::SetStage => r#"{"entries":2048}"#,
        config::routes::Operation::AddNic => r#"{"id":"n","switch":"lan"}"#,
        config::routes::Operation::ChangeNic => r#"{"vlan":5}"#,
        config::routes::Operation::SetLink => r#"{"link":"down"}"#,
        config::routes::Operation::AddSwitch => r#"{"id":"lan"}"#,
        config::routes::Operation::AddGroup => r#"{"id":"g","limit_packets":5}"#,
        config::routes::Operation::ChangeGroup => r#"{"limit_iops":5}"#,
        _ => "",
    };
    let mut wanted = Vec::new();
    for route in &config::routes::ROUTES {
        let method = route.method.word().to_uppercase();
        let path = route.path.replace("{id}", "vm%201").replace("{kind}", "trace");
        let (status, answer) = fixture.ask(&method, &path, bodies(route));
        let shown = route.operation == config::routes::Operation::ShowDisk;
        assert_eq!(status, if shown { 404 } else { route.success }, "{answer}");
        wanted
            .push(route.operation.call(&["vm 1", "trace"], "", bodies(route).as_bytes()).unwrap());
    }
    assert_eq!(fixture.finish(), wanted);
}

#[test]
fn the_description_is_served_and_needs_no_control_loop() {
    let fixture = Fixture::new(rote);
    let (status, document) = fixture.ask("GET", "/openapi.json", "");
    assert_eq!(status, 200);
    assert_eq!(document, config::openapi::document("1.2.3"));
    assert_eq!(fixture.finish(), []);
}

#[test]
fn junk_is_refused_with_what_to_do_and_reaches_nobody() {
    let fixture = Fixture::new(rote);
    let long = "x".repeat(BODY_BYTES_MAX + 1);
    for (method, path, body, status, error) in [
        ("GET", "/v1/nothing", "", 404, "there is nothing at \"/v1/nothing\""),
        ("GET", "/v1/disks/a/b/c", "", 404, "there is nothing at \"/v1/disks/a/b/c\""),
        ("PUT", "/v1/disks", "", 405, "PUT is not possible on \"/v1/disks\""),
        ("POST", "/v1/disks", "{}", 400, "`id` is missing"),
        ("POST", "/v1/disks/a/resize", r#"{"size":"x"}"#, 400, "size: \"x\" is not a size"),
        ("POST", "/v1/disks", &long, 413, "the body could not be read (length limit exceeded)"),
        ("GET", "/v1/disks/%ff", "", 400, "Invalid URL: Invalid UTF-8 in `id`"),
    ] {
        let (found, answer) = fixture.ask(method, path, body);
        assert_eq!((found, answer["error"].as_str().unwrap()), (status, error));
        assert!(!answer["hint"].as_str().unwrap().is_empty());
    }
    for junk in [&b"\x00\xff\x13junk\r\n\r\n"[..], b"GET\r\n\r\n", &[b'a'; 100_000]] {
        let (status, ..) = fixture.raw(junk);
        let start = String::from_utf8_lossy(&junk[..junk.len().min(20)]);
        assert!((400..500).contains(&status), "{start}: {status}");
    }
    assert_eq!(fixture.raw(b"GET /v1/disks HT").0, 0, "half a request is no request");
    let (status, _) = fixture.ask("GET", "/v1/disks", "");
    assert_eq!(status, 200, "and others are still served");
    assert_eq!(fixture.finish(), [Call::ListDisks]);
}

#[test]
fn one_client_too_many_is_turned_away_and_the_others_are_served() {
    let fixture = Fixture::new(rote);
    let mut idle: Vec<UnixStream> =
        (0..CALLERS_MAX).map(|_| UnixStream::connect(&fixture.socket).unwrap()).collect();
    let (status, answer) = fixture.ask("GET", "/v1/disks", "");
    assert_eq!((status, answer["hint"].as_str()), (503, Some("try again when others are done")));
    let mut first = idle.swap_remove(0);
    first.write_all(b"GET /v1/disks HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(response(first).0, 200);
    fixture.finish();
}

/// A byte now and then, for as long as that is let: its place is another's when it is needed, and nobody has one
/// for longer than a request may take.
#[test]
fn a_client_that_drips_gives_way_and_is_ended() {
    let fixture = Fixture::new(rote);
    let mut dripping: Vec<UnixStream> =
        (0..CALLERS_MAX).map(|_| UnixStream::connect(&fixture.socket).unwrap()).collect();
    let until = crate::clock::now() + std::time::Duration::from_secs(60);
    let mut bytes = b"POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n".iter();
    loop {
        let byte = [bytes.next().copied().unwrap_or(b'x')];
        dripping.retain_mut(|caller| caller.write_all(&byte).is_ok());
        // One place is enough, and it is had while all others drip on.
        if fixture.ask("GET", "/v1/disks", "").0 == 200 {
            break;
        }
        assert!(crate::clock::now() < until, "nobody gave way");
    }
    assert!(dripping.len() > CALLERS_MAX / 2, "{} were left", dripping.len());
    // And none of them stays, whatever it goes on to send.
    while !dripping.is_empty() {
        let byte = [bytes.next().copied().unwrap_or(b'x')];
        dripping.retain_mut(|caller| caller.write_all(&byte).is_ok());
        let step = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        poll(&mut [], Some(&step)).unwrap();
        assert!(crate::clock::now() < until, "{} still drip", dripping.len());
    }
    fixture.finish();
}

#[test]
fn the_socket_that_shows_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [api, read] = ["api", "read"].map(|name| folder.path().join(name));
    let rights = Rights::own();
    let place = |path| Place { path, rights: &rights, inherited: None };
    let (entrance, calls) = open(place(&api), Some(place(&read))).unwrap();
    let mut server = entrance.prepare("1").unwrap();
    server.begin();
    let ask = |socket: &Path, method: &str, path: &str| {
        let mut stream = UnixStream::connect(socket).unwrap();
        let text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(text.as_bytes()).unwrap();
        response(stream)
    };
    for route in &config::routes::ROUTES {
        let method = route.method.word().to_uppercase();
        if route.is_shown() {
            continue;
        }
        let (status, _, body) = ask(&read, &method, &route.path.replace("{id}", "a"));
        assert_eq!(status, 403, "{method} {}: {body}", route.path);
        assert!(body.contains("is for operators, and this socket only shows"), "{body}");
    }
    for (method, path) in [("PUT", "/v1/disks"), ("DELETE", "/"), ("BREW", "/v1/reload")] {
        assert_eq!(ask(&read, method, path).0, 403, "{method} {path}");
    }
    assert_eq!(ask(&read, "GET", "/v1/upgrade").0, 404);
    assert_eq!(ask(&read, "GET", "/openapi.json").0, 200);
    assert!(calls.take().is_none(), "something reached control");
    let waits = std::thread::spawn(move || ask(&read, "GET", "/v1/disks").0);
    let wake = calls.wake_fd();
    poll(&mut [PollFd::new(&wake, PollFlags::IN)], None).unwrap();
    let request = calls.take().unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!((request.from.uid, request.from.pid as u32), (own, std::process::id()));
    request.answer(Ok(Answer::Disks(DiskList::default())));
    assert_eq!(waits.join().unwrap(), 200);
    drop(server);
    assert!(!api.exists() && !folder.path().join("read").exists(), "both are taken away");
}

/// O9: the size that is claimed is not waited for, and who does not read holds nobody up.
#[test]
fn o09_a_gibibyte_and_readers_that_do_not_read_hold_up_nobody() {
    let fixture = Fixture::new(rote);
    let head = "POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n";
    let mut huge = UnixStream::connect(&fixture.socket).unwrap();
    huge.write_all(head.as_bytes()).unwrap();
    // It comes in pieces, until nobody takes them any more.
    let piece = [b'x'; 4096];
    let taken = (0..262_144).take_while(|_| huge.write_all(&piece).is_ok()).count();
    assert!(taken < 1024, "{taken} pages of a body were taken");
    let (status, _, body) = response(huge);
    assert_eq!(status, 413, "{body}");
    let mut deaf = Vec::new();
    for _ in 0..CALLERS_MAX - 1 {
        let mut caller = UnixStream::connect(&fixture.socket).unwrap();
        caller.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        deaf.push(caller);
    }
    for _ in 0..20 {
        assert_eq!(fixture.ask("GET", "/v1/disks", "").0, 200);
    }
    drop(deaf);
    assert_eq!(fixture.finish().len(), 20, "what was refused reached control");
}

#[test]
fn the_socket_is_its_owner_s_alone_and_is_taken_away_at_the_end() {
    let mut fixture = Fixture::new(rote);
    let mode = std::fs::metadata(&fixture.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = serve(&fixture.socket, "").unwrap_err();
    let own = format!("another daemon serves it, process {}", std::process::id());
    assert_eq!(second.to_string(), own);
    drop(fixture.server.take());
    assert!(!fixture.socket.exists());
    fixture.finish();
}

#[test]
fn a_dead_daemon_s_socket_is_replaced_and_other_files_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    drop(serve(&socket, "").unwrap());
    std::fs::write(&socket, "precious").unwrap();
    let error = serve(&socket, "").unwrap_err();
    assert_eq!(error.to_string(), "something that is not a socket is in its place");
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

/// A daemon's two sockets in that folder, not answered yet.
fn entrance_in(folder: &Path) -> (DaemonSpec, Entrance, Calls) {
    let path = |name: &str| folder.join(name).display().to_string();
    let daemon = DaemonSpec {
        api: path("api.sock"),
        api_read: Some(path("read.sock")),
        ..DaemonSpec::default()
    };
    let rights = Rights::own();
    let place = |path| Place { path, rights: &rights, inherited: None };
    let read = daemon.api_read.as_deref().map(Path::new);
    let (entrance, calls) = open(place(Path::new(&daemon.api)), read.map(place)).unwrap();
    (daemon, entrance, calls)
}

#[test]
fn a_socket_of_which_it_is_not_known_whether_it_was_removed_is_left_and_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, entrance, _calls) = entrance_in(folder.path());
    let mut listening = entrance.listening().unwrap();
    let node = || std::fs::metadata(&daemon.api).unwrap().ino();
    let (before, put) = (node(), |mode| {
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    });
    put(0o777);
    let to_do: Vec<String> = listening.lost(&daemon).iter().map(Lost::to_do).collect();
    let (made, undone) = listening.make_again(&daemon, &mut Accounts::default());
    put(0o700);
    assert_eq!(
        (to_do.len(), made.len(), undone.len()),
        (2, 0, 2),
        "{to_do:?}, {made:?}, {undone:?}"
    );
    let api = &daemon.api;
    let left = format!(
        "leave the API's socket {api} as it is, since it is not known whether it was removed: "
    );
    let (why, at) = (to_do[0].strip_prefix(&left), folder.path().display().to_string());
    assert!(why.is_some_and(|why| why.contains(&at)), "{to_do:?}");
    assert!(undone[0].starts_with("it is not known whether the API's socket "), "{undone:?}");
    assert_eq!(node(), before);
    assert!(listening.lost(&daemon).is_empty());
    entrance.remove();
}

#[test]
fn whoever_comes_to_a_socket_that_was_made_again_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (daemon, entrance, _calls) = entrance_in(folder.path());
    let mut listening = entrance.listening().unwrap();
    let mut server = entrance.prepare("1.2.3").unwrap();
    server.begin();
    let asks = |name: &str| {
        let mut stream = UnixStream::connect(path(name)).unwrap();
        stream.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        response(stream).0
    };
    for name in ["api.sock", "read.sock"] {
        assert_eq!(asks(name), 200, "{name}");
        std::fs::rename(path(name), path(&format!("old-{name}"))).unwrap();
    }
    let (made, undone) = listening.make_again(&daemon, &mut Accounts::default());
    assert_eq!((made.len(), undone.len()), (2, 0), "{made:?}, {undone:?}");
    for name in ["api.sock", "read.sock"] {
        assert_eq!(asks(name), 200, "{name}");
    }
    assert!(listening.lost(&daemon).is_empty());
    // By another name of the old ones nobody is answered, and nobody waits: they are closed.
    for name in ["old-api.sock", "old-read.sock"] {
        let refused = UnixStream::connect(path(name)).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ConnectionRefused), "{name}");
    }
    drop(server);
    assert!(!Path::new(&daemon.api).exists(), "what was made is taken away");
}

#[test]
fn a_client_hears_when_the_daemon_stops_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let (server, calls) = serve(&socket, "").unwrap();
    let mut caller = UnixStream::connect(&socket).unwrap();
    caller.write_all(b"GET /v1/disks HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let wake = calls.wake_fd();
    poll(&mut [PollFd::new(&wake, PollFlags::IN)], None).unwrap();
    drop(calls.take().unwrap());
    let (status, _, body) = response(caller);
    assert_eq!(status, 503);
    assert!(body.contains("the daemon is stopping, or another process takes over"), "{body}");
    drop(server);
}
