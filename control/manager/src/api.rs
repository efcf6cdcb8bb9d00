//! The operators' door: HTTP on a Unix socket, turned into [`config::api::Call`]s.
//!
//! One thread of its own, so that a slow or hostile client holds up nobody else. It owns no state:
//! each request becomes a [`Request`] on a channel to the control loop, which is woken by an
//! eventfd and sends back the answer. Not here: what a call does (the control loop), and what the
//! requests and bodies are (`config::routes`).
//!
//! Bounded: [`CLIENTS_MAX`] connections, [`BODY_BYTES_MAX`] a body, one request a connection, and
//! [`CONNECTION_S_MAX`] from the first byte to the last. Whoever can write to the socket is an
//! operator; what they send is still checked, and junk is answered with 4xx and what to do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use config::api::{Answer, ApiError, Call};
use confine::Kind;
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::oneshot;

mod http;
mod listen;

/// Most connections at a time; one more is answered 503.
pub const CLIENTS_MAX: usize = 64;
/// Longest body, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest life of a connection, in seconds.
pub const CONNECTION_S_MAX: u64 = 30;
/// How long the control loop may take over one call, in seconds; shorter than a connection's life,
/// so that its client is told.
const ANSWER_S_MAX: u64 = 20;

/// One call of an operator, and the place for its answer.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub call: Call,
    reply: oneshot::Sender<Result<Answer, ApiError>>,
}

impl Request {
    /// Answers it. A client that has gone meanwhile misses nothing else.
    pub fn answer(self, answer: Result<Answer, ApiError>) {
        let _ = self.reply.send(answer);
    }

    /// The call, and the duty to answer it later.
    pub fn into_parts(self) -> (Call, Reply) {
        (self.call, Reply(self.reply))
    }
}

/// The duty to answer one call.
#[derive(Debug)]
pub struct Reply(oneshot::Sender<Result<Answer, ApiError>>);

impl Reply {
    /// Answers the call.
    pub fn answer(self, answer: Result<Answer, ApiError>) {
        let _ = self.0.send(answer);
    }
}

/// The control loop's end: calls come out here.
#[derive(Debug)]
pub struct Calls {
    /// `None`: nobody answers any more.
    requests: Option<Receiver<Request>>,
    wake: Arc<OwnedFd>,
}

impl Calls {
    /// Readable when a call came; for the control loop's poll set.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The next call, if there is one. Take until there is none after each wake-up; the first
    /// `take` after it clears the wake-up, so none is lost.
    pub fn take(&self) -> Option<Request> {
        // Cleared before looking: a call that comes after the look sets it again.
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        self.requests.as_ref()?.try_recv().ok()
    }

    /// Answers nobody any more: whoever asks from now on is told to ask again.
    pub fn close(&mut self) {
        self.requests = None;
    }
}

/// The thread's end of the same.
#[derive(Clone, Debug)]
struct Door {
    requests: SyncSender<Request>,
    wake: Arc<OwnedFd>,
}

/// The running server. Dropped, it stops, and if it has begun it takes its socket away.
#[derive(Debug)]
pub struct Server {
    /// `None`: it is another process's.
    socket: Option<PathBuf>,
    /// `None`: it has begun, and the socket is its own.
    begin: Option<oneshot::Sender<()>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers from now on.
    pub fn begin(&mut self) {
        if let Some(begin) = self.begin.take() {
            let _ = begin.send(());
        }
    }

    /// Stops, when those who are connected have their answers, and leaves the socket to another
    /// process.
    pub fn give_socket_away(mut self) {
        self.socket = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that never began may share the socket with a process that serves.
        let socket = if self.begin.is_some() { None } else { self.socket.take() };
        drop(self.begin.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(socket) = socket {
            listen::remove(&socket);
        }
    }
}

/// The socket, open and not answered yet.
#[derive(Debug)]
pub struct Entrance {
    path: PathBuf,
    listener: UnixListener,
    handles: Door,
}

impl Entrance {
    /// Another descriptor of the socket, for a process that takes over.
    ///
    /// # Errors
    /// None is left.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.listener.try_clone()?.into())
    }

    /// A thread of its own that can answer, and takes nobody in before [`Server::begin`]: it is known by
    /// then that it can. `version` is what `/openapi.json` shows.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn prepare(self, version: &'static str) -> io::Result<Server> {
        let Entrance { path, listener, handles } = self;
        let (begin, begun) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (made, is_made) = sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("api".to_string()).spawn(move || {
            let confined = confine::thread(Kind::Api).map_err(io::Error::other);
            let within = runtime.enter();
            let watched = confined.and_then(|()| tokio::net::UnixListener::from_std(listener));
            drop(within);
            match watched {
                Ok(listener) => {
                    let _ = made.send(Ok(()));
                    runtime.block_on(async {
                        if begun.await.is_ok() {
                            http::run(listener, handles, version, stopped).await;
                        }
                    });
                }
                Err(error) => drop(made.send(Err(error))),
            }
        })?;
        let (begin, stop, thread) = (Some(begin), Some(stop), Some(thread));
        is_made.recv().map_err(|_| io::Error::other("it ended at its start"))??;
        Ok(Server { socket: Some(path), begin, stop, thread })
    }
}

/// Opens the socket, or goes on with `inherited`, which listens there already.
///
/// The socket's mode is 0660. A socket that a dead daemon left is replaced; one that a living
/// daemon serves is an error (`AddrInUse`), and so is anything else of that name.
///
/// # Errors
/// What the kernel said.
pub fn open(socket: &Path, inherited: Option<OwnedFd>) -> io::Result<(Entrance, Calls)> {
    let listener = match inherited {
        Some(listener) => UnixListener::from(listener),
        None => listen::listen(socket)?,
    };
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    // As many as there can be clients, so that a living client always finds room.
    let (sender, requests) = sync_channel(CLIENTS_MAX);
    let handles = Door { requests: sender, wake: wake.clone() };
    Ok((
        Entrance { path: socket.to_path_buf(), listener, handles },
        Calls { requests: Some(requests), wake },
    ))
}

#[cfg(test)]
mod tests;
