//! The operators' door: HTTP on a Unix socket, turned into [`config::api::Call`]s; and a second one, if it is
//! asked for, at which everything is shown and nothing is changed.
//!
//! One thread of its own, so that a slow or hostile caller holds up nobody else. It owns no state:
//! each request becomes a [`Request`] on a channel to the control loop, which is woken by an
//! eventfd and sends back the answer. Not here: what a call does (the control loop), and what the
//! requests and bodies are (`config::routes`).
//!
//! Bounded: [`CALLERS_MAX`] connections at each, [`BODY_BYTES_MAX`] a body, one request a connection,
//! [`REQUEST_S_MAX`] for all of the request and [`CONNECTION_S_MAX`] from the first byte to the last. Whoever
//! can write to the socket is an operator: the kernel has looked at the socket's owner, group, mode and ACL, and
//! nobody looks again. What they send is still checked, and junk is answered with 4xx and what to do.

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
use rustix::process::geteuid;
use tokio::sync::{mpsc, oneshot};

pub(crate) mod again;
mod http;
pub(crate) mod listen;
mod places;

use crate::rights::Rights;

/// Most connections at a time; one more is answered 503, unless one of them is slow.
pub const CALLERS_MAX: usize = 64;
/// Of these, the last are root's and the daemon's own user's.
const CALLERS_KEPT: usize = 8;
/// Longest time from connecting until a request is whole, in seconds.
pub const REQUEST_S_MAX: u64 = 5;
/// Longest body, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest life of a connection, in seconds.
pub const CONNECTION_S_MAX: u64 = 75;
/// How long the control loop may take over one call, in seconds; shorter than a connection's life,
/// so that its caller is told.
pub(crate) const ANSWER_S_MAX: u64 = 20;
/// The same for an upgrade, whose own bounds add up to nearly a minute: who is told too early does not know what
/// came of it.
const UPGRADE_S_MAX: u64 = 60;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Everything.
    Operates,
    /// Nothing is changed by it.
    Shows,
}

/// Who is at the other end, as the kernel knew when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of the user.
    pub uid: u32,
    /// Number of the process, or 0: it is not of this namespace.
    pub pid: i32,
}

/// One call of an operator, and the place for its answer.
#[derive(Debug)]
pub struct Request {
    /// What is asked.
    pub call: Call,
    /// Who asks.
    pub from: Peer,
    reply: oneshot::Sender<Result<Answer, ApiError>>,
}

impl Request {
    /// One, and the place where its answer lies.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn made(
        call: Call,
        from: Peer,
    ) -> (Request, oneshot::Receiver<Result<Answer, ApiError>>) {
        let (reply, answer) = oneshot::channel();
        (Request { call, from, reply }, answer)
    }

    /// Answers it. A caller that has gone meanwhile misses nothing else.
    pub fn answer(self, answer: Result<Answer, ApiError>) {
        self.into_parts().1.answer(answer);
    }

    /// Writes who asks for a change into the log, one line each; what only shows has none. The command's name
    /// is what the process calls itself.
    pub(crate) fn log_change(&self) {
        let Some(change) = self.call.change() else { return };
        let Peer { uid, pid } = self.from;
        let command = names::kernel_text(format!("/proc/{pid}/comm")).unwrap_or_default();
        let command = command.trim_end_matches('\n');
        tracing::info!(uid, pid, command, "asked for: {change}");
    }

    /// The call, and the duty to answer it later.
    pub fn into_parts(self) -> (Call, Reply) {
        let change = self.call.change();
        (self.call, Reply { change, caller: self.reply, refused: None })
    }
}

/// The duty to answer one call.
#[derive(Debug)]
pub struct Reply {
    /// What it asks to have changed.
    change: Option<String>,
    caller: oneshot::Sender<Result<Answer, ApiError>>,
    /// Why it is refused, when what was begun is undone.
    refused: Option<ApiError>,
}

impl Reply {
    /// It is answered by that, when it is answered: first what was begun is undone.
    #[must_use]
    pub(crate) fn refusing(self, why: ApiError) -> Reply {
        Reply { refused: Some(why), ..self }
    }

    /// Whether it is known that it is refused, and only what was begun is to be undone.
    pub(crate) fn is_refusing(&self) -> bool {
        self.refused.is_some()
    }

    /// Answers the call. That a change was refused is in the log, as that it was asked for.
    pub fn answer(self, answer: Result<Answer, ApiError>) {
        let answer = self.refused.map_or(answer, Err);
        if let (Some(change), Err(refused)) = (&self.change, &answer) {
            tracing::info!("refused: {change}: {}", refused.in_a_line());
        }
        let _ = self.caller.send(answer);
    }

    /// The same where the log says already what came of it.
    pub(crate) fn answer_logged(self, answer: Result<Answer, ApiError>) {
        Reply { change: None, ..self }.answer(answer);
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

    /// Has whoever waits come again: there may be more.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Answers nobody any more: whoever asks from now on is told to ask again.
    pub fn close(&mut self) {
        self.requests = None;
    }
}

/// The thread's end of the same.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    requests: SyncSender<Request>,
    wake: Arc<OwnedFd>,
    /// The daemon's own user, which this thread may not ask for.
    own: u32,
}

#[cfg(any(test, feature = "simulated"))]
impl Door {
    /// Whether that is this one.
    pub(crate) fn is_same(&self, other: &Door) -> bool {
        Arc::ptr_eq(&self.wake, &other.wake)
    }

    /// Asks as an operator does, without a thread between: the place of the answer. Nothing: nobody answers any more.
    pub(crate) fn ask(&self, call: Call) -> Option<oneshot::Receiver<Result<Answer, ApiError>>> {
        let (request, answer) = Request::made(call, Peer { uid: self.own, pid: 0 });
        self.requests.try_send(request).ok()?;
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        Some(answer)
    }
}

/// The running server. Dropped, it stops, and if it has begun it takes its sockets away.
#[derive(Debug)]
pub struct Server {
    /// The sockets are another process's.
    is_given_away: bool,
    /// `None`: it has begun.
    begin: Option<oneshot::Sender<()>>,
    stop: Option<oneshot::Sender<()>>,
    /// `None`: it takes nobody in any more.
    leave: Option<oneshot::Sender<()>>,
    /// Gives those at which it answered last. No other descriptor of them is here: one that is made again is to be
    /// closed, and a file may have more names.
    thread: Option<JoinHandle<Vec<Socket>>>,
}

impl Server {
    /// Answers from now on.
    pub fn begin(&mut self) {
        if let Some(begin) = self.begin.take() {
            let _ = begin.send(());
        }
    }

    /// From now on the sockets are another process's; those who are connected still have their answers.
    pub fn take_nobody_in(&mut self) {
        self.is_given_away = true;
        drop(self.leave.take());
    }

    /// Stops, when those who are connected have their answers, and leaves the sockets to another
    /// process.
    pub fn give_sockets_away(mut self) {
        self.is_given_away = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.begin.take());
        drop(self.stop.take());
        // One that panicked has closed its sockets, and the next daemon replaces them.
        let sockets = self.thread.take().and_then(|thread| thread.join().ok());
        let own = sockets.into_iter().flatten().filter(|_| !self.is_given_away);
        own.for_each(Socket::remove);
    }
}

/// A socket of the API that is to be opened.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) rights: &'a Rights,
    /// It listens already, in this process or another.
    pub(crate) inherited: Option<OwnedFd>,
}

impl Place<'_> {
    fn open(self) -> io::Result<Socket> {
        let listener = match self.inherited {
            Some(listener) => UnixListener::from(listener),
            None => listen::listen(self.path, self.rights)?,
        };
        Ok(Socket { path: self.path.to_path_buf(), listener })
    }
}

#[derive(Debug)]
struct Socket {
    path: PathBuf,
    listener: UnixListener,
}

impl Socket {
    /// Takes its name away, if it still has that.
    fn remove(self) {
        let listener = OwnedFd::from(self.listener);
        if matches!(listen::is_at(&self.path, &listener), Ok(true)) {
            listen::remove(&self.path);
        }
    }
}

/// A socket at which the thread answers.
#[derive(Debug)]
struct Watched {
    path: PathBuf,
    listener: tokio::net::UnixListener,
}

impl Watched {
    /// Within a runtime.
    fn of(socket: Socket) -> io::Result<Watched> {
        let listener = tokio::net::UnixListener::from_std(socket.listener)?;
        Ok(Watched { path: socket.path, listener })
    }

    /// Within the same.
    fn end(self) -> io::Result<Socket> {
        Ok(Socket { path: self.path, listener: self.listener.into_std()? })
    }
}

/// A socket in the place of one whose name does not lead to it any more.
#[derive(Debug)]
struct NewSocket {
    role: Role,
    socket: Socket,
}

/// The sockets, open and not answered yet.
#[derive(Debug)]
pub struct Entrance {
    api: Socket,
    /// At which everything is shown and nothing changed.
    read: Option<Socket>,
    handles: Door,
    /// By which control gives its thread others.
    again: mpsc::UnboundedSender<NewSocket>,
    others: mpsc::UnboundedReceiver<NewSocket>,
}

/// Descriptors of the API's sockets, for a process that takes over.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) api: OwnedFd,
    /// The one that only shows.
    pub(crate) read: Option<OwnedFd>,
    /// They could not be given to those whom the plan names.
    pub(crate) is_ungiven: bool,
    /// Those that are made again, for the thread that answers.
    again: mpsc::UnboundedSender<NewSocket>,
}

impl Entrance {
    /// Takes the sockets away again, before anybody was let in.
    pub(crate) fn remove(self) {
        let sockets = [Some(self.api), self.read].into_iter().flatten();
        sockets.for_each(Socket::remove);
    }

    /// Other descriptors of the sockets.
    ///
    /// # Errors
    /// None is left.
    pub(crate) fn listening(&self) -> io::Result<Listening> {
        let duplicate = |socket: &Socket| Ok(OwnedFd::from(socket.listener.try_clone()?));
        let read: io::Result<_> = self.read.as_ref().map(duplicate).transpose();
        let (api, again) = (duplicate(&self.api)?, self.again.clone());
        Ok(Listening { api, read: read?, is_ungiven: false, again })
    }

    /// The thread's end, without a thread.
    #[cfg(any(test, feature = "simulated"))]
    pub(crate) fn door(&self) -> &Door {
        &self.handles
    }

    /// A thread of its own that can answer, and takes nobody in before [`Server::begin`]: it is known by
    /// then that it can. `version` is what `/openapi.json` shows.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn prepare(self, version: &'static str) -> io::Result<Server> {
        let Entrance { api, read, handles, others, .. } = self;
        let (begin, begun) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (leave, left) = oneshot::channel();
        let (made, is_made) = sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("api".to_string()).spawn(move || {
            let confined = confine::thread(Kind::Api).map_err(io::Error::other);
            let within = runtime.enter();
            let watched =
                confined.and_then(|()| Ok((Watched::of(api)?, read.map(Watched::of).transpose()?)));
            drop(within);
            match watched {
                Ok(listeners) => {
                    let _ = made.send(Ok(()));
                    runtime.block_on(async {
                        // One that never began may share the sockets with a process that serves.
                        if begun.await.is_err() {
                            return Vec::new();
                        }
                        let told = (others, [left, stopped]);
                        http::run(listeners, handles, version, told).await
                    })
                }
                Err(error) => {
                    drop(made.send(Err(error)));
                    Vec::new()
                }
            }
        })?;
        let (begin, stop, thread) = (Some(begin), Some(stop), Some(thread));
        let leave = Some(leave);
        is_made.recv().map_err(|_| io::Error::other("it ended at its start"))??;
        Ok(Server { is_given_away: false, begin, stop, leave, thread })
    }
}

/// Opens the socket, and the one that only shows.
///
/// A socket that a dead daemon left is replaced; one that a living daemon serves is an error (`AddrInUse`),
/// and so is anything else of that name.
///
/// # Errors
/// The path, and what the kernel said.
pub(crate) fn open(
    api: Place<'_>,
    read: Option<Place<'_>>,
) -> Result<(Entrance, Calls), (PathBuf, io::Error)> {
    let opened = |place: Place<'_>| {
        let path = place.path.to_path_buf();
        place.open().map_err(|error| (path, error))
    };
    let (api, read) = (opened(api)?, read.map(opened).transpose()?);
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wake = Arc::new(wake.map_err(|error| (api.path.clone(), error.into()))?);
    // As many as there can be callers of both, so that a living caller always finds room.
    let (sender, requests) = sync_channel(2 * CALLERS_MAX);
    let handles = Door { requests: sender, wake: wake.clone(), own: geteuid().as_raw() };
    // Some at each reload.
    let (again, others) = mpsc::unbounded_channel();
    Ok((Entrance { api, read, handles, again, others }, Calls { requests: Some(requests), wake }))
}

#[cfg(test)]
mod tests;
