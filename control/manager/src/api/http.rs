//! Connections and requests of the API.

use std::collections::BTreeMap;
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderValue, Method as HttpMethod, Request as HttpRequest, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use config::api::{Answer, ApiError, Call, ErrorKind};
use config::routes::{Method, ROUTES, Route};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::SocketAddr;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::places::{Entry, PER_USER_MAX, Places};
use super::{
    ANSWER_S_MAX, BODY_BYTES_MAX, CALLERS_KEPT, CALLERS_MAX, CONNECTION_S_MAX, Door, NewSocket,
    Peer, REQUEST_S_MAX, Request, Role, Socket, UPGRADE_S_MAX, Watched,
};

/// The user of a caller of whom nothing is known: nobody's.
const UNKNOWN_UID: u32 = 65_534;
/// Longest request line with its headers, in bytes.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// How often it is looked whether all that is left has been sent when the server stops, and the time between two looks:
/// a second for an operator's caller that gets its processor late.
const LAST_LOOKS: u32 = 100;
/// Whoever has not asked yet, and who may only look, has those: nobody who keeps a connection open is to make each stop
/// longer.
const LAST_LOOKS_OF_OTHERS: u32 = 20;
const LAST_LOOK: Duration = Duration::from_millis(10);
/// Longest time for telling a caller that there are too many.
const TURN_AWAY: Duration = Duration::from_millis(10);

/// One socket with those who are connected to it.
struct Gate {
    router: Router,
    places: Arc<Mutex<Crowd>>,
}

/// Who is connected, and how each is told to go.
struct Crowd {
    places: Places,
    leave: BTreeMap<u64, oneshot::Sender<()>>,
}

/// One caller's place; given back when it is dropped.
#[derive(Clone)]
struct Permit(Arc<Permitted>);

struct Permitted {
    id: u64,
    from: Peer,
    /// When its request has to be whole.
    whole_by: Instant,
    crowd: Arc<Mutex<Crowd>>,
}

impl Drop for Permitted {
    fn drop(&mut self) {
        let mut crowd = lock(&self.crowd);
        crowd.places.leave(self.id);
        crowd.leave.remove(&self.id);
    }
}

/// Nothing panics while it is held.
fn lock(crowd: &Mutex<Crowd>) -> std::sync::MutexGuard<'_, Crowd> {
    crowd.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Accepts until told to stop. Bounded by [`CALLERS_MAX`] connections at a time to each socket. Gives the sockets that it
/// has in the end.
pub(super) async fn run(
    (mut api, mut read): (Watched, Option<Watched>),
    door: Door,
    version: &'static str,
    (mut others, [mut left, mut stopped]): (
        mpsc::UnboundedReceiver<NewSocket>,
        [oneshot::Receiver<()>; 2],
    ),
) -> Vec<Socket> {
    let gate = |role| {
        let places = Places::new(CALLERS_MAX, CALLERS_KEPT, door.own);
        let places = Arc::new(Mutex::new(Crowd { places, leave: BTreeMap::new() }));
        Gate { router: router(door.clone(), version, role), places }
    };
    let (operates, shows) = (gate(Role::Operates), gate(Role::Shows));
    let sockets = loop {
        let (gate, accepted) = tokio::select! {
            _ = &mut stopped => break [Some(api), read],
            // Those who are here are answered, and nobody else comes.
            _ = &mut left => {
                drop((api, read));
                let _ = stopped.await;
                break [None, None];
            }
            Some(NewSocket { role, socket }) = others.recv() => {
                // The one before is closed: whoever waits there, or finds it by another name, is not to wait for ever.
                match (Watched::of(socket), role) {
                    (Ok(socket), Role::Operates) => api = socket,
                    (Ok(socket), Role::Shows) => read = Some(socket),
                    (Err(error), _) => {
                        tracing::error!(%error, "a socket of the API that was made again cannot be watched");
                    }
                }
                continue;
            }
            accepted = api.listener.accept() => (&operates, accepted),
            accepted = accept(read.as_ref()) => (&shows, accepted),
        };
        match accepted {
            Ok((stream, _)) => gate.admit(stream).await,
            Err(error) => {
                // Descriptors ran out, most likely: wait for some to be given back.
                tracing::warn!(%error, "the API could not accept a client");
                sleep(Duration::from_millis(100)).await;
            }
        }
    };
    // Those who have been answered are to get it.
    let is_somebody_here =
        || [&operates, &shows].iter().any(|gate| !lock(&gate.places).places.is_empty());
    // By looks: while the machine stands still one passes.
    for look in 0..LAST_LOOKS {
        let is_waited_for = match look < LAST_LOOKS_OF_OTHERS {
            true => is_somebody_here(),
            false => lock(&operates.places).places.owes(),
        };
        if !is_waited_for {
            break;
        }
        sleep(LAST_LOOK).await;
    }
    sockets.into_iter().flatten().filter_map(|socket| socket.end().ok()).collect()
}

/// The next connection at that socket; never where there is none.
async fn accept(at: Option<&Watched>) -> std::io::Result<(UnixStream, SocketAddr)> {
    match at {
        Some(socket) => socket.listener.accept().await,
        None => std::future::pending().await,
    }
}

impl Gate {
    /// Serves one more caller, unless there are too many.
    async fn admit(&self, stream: UnixStream) {
        // Of a peer that the kernel does not tell of, the overflow user of its namespaces.
        let from = match stream.peer_cred() {
            Ok(peer) => Peer { uid: peer.uid(), pid: peer.pid().unwrap_or(0) },
            Err(_) => Peer { uid: UNKNOWN_UID, pid: 0 },
        };
        let now = crate::clock::now();
        let (leave, told) = oneshot::channel();
        let id = {
            let mut crowd = lock(&self.places);
            let id = match crowd.places.enter(from.uid, now) {
                Entry::Free(id) => Some(id),
                Entry::Instead { id, of } => {
                    if let Some(leave) = crowd.leave.remove(&of) {
                        let _ = leave.send(());
                    }
                    Some(id)
                }
                Entry::Full => None,
            };
            id.inspect(|id| drop(crowd.leave.insert(*id, leave)))
        };
        let Some(id) = id else { return turn_away(stream).await };
        let whole_by = Instant::from_std(now) + Duration::from_secs(REQUEST_S_MAX);
        let crowd = Arc::clone(&self.places);
        let permit = Permit(Arc::new(Permitted { id, from, whole_by, crowd }));
        let service = self.router.clone().layer(Extension(permit.clone()));
        tokio::spawn(async move {
            tokio::select! {
                () = connection(stream, service) => {}
                _ = told => tracing::debug!("a slow API client gave way to another"),
            }
            drop(permit);
        });
    }
}

/// One connection: one request, within its time.
async fn connection(stream: UnixStream, service: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(REQUEST_S_MAX))
        .keep_alive(false)
        // A caller may say that it has sent all, and still wait for the answer.
        .half_close(true)
        .max_buf_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    match timeout(Duration::from_secs(CONNECTION_S_MAX), served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an API client broke off"),
        Err(_) => tracing::debug!("an API client took more than {CONNECTION_S_MAX} s"),
    }
}

/// Tells a caller that there are too many. Bounded by [`TURN_AWAY`], for nobody else is accepted
/// meanwhile.
async fn turn_away(mut stream: UnixStream) {
    let error = ApiError::new(
        ErrorKind::Busy,
        format!(
            "as many clients are connected as may be: {CALLERS_MAX}, and {PER_USER_MAX} of one user"
        ),
        "try again when others are done",
    );
    let body = serde_json::to_string(&error).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let polite = async {
        // Closing with bytes unread would reset the connection before the answer is read.
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(text.as_bytes()).await;
    };
    let _ = timeout(TURN_AWAY, polite).await;
}

/// Everything of [`ROUTES`] that the role has, the description, and refusals for the rest.
fn router(door: Door, version: &'static str, role: Role) -> Router {
    let description = Bytes::from(config::openapi::document(version).to_string());
    let mut router = Router::new().route(
        "/openapi.json",
        get(move || async move { json_response(StatusCode::OK, description.into()) }),
    );
    for route in &ROUTES {
        match role == Role::Operates || route.is_shown() {
            true => {}
            // Its path has nothing else, and is not to look as if there were none.
            false if route.method == Method::Get => {
                router = router.route(route.path, get(for_operators));
                continue;
            }
            false => continue,
        }
        let filter = match route.method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Put => MethodFilter::PUT,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        };
        let handler = async move |State(door): State<Door>,
                                  Extension(permit): Extension<Permit>,
                                  names: Result<Option<Path<Names>>, PathRejection>,
                                  request: HttpRequest<Body>| {
            match serve_route(route, (&door, &permit), names, request).await {
                Ok(answer) => json_of(route.success, &answer),
                Err(error) => refusal(&error),
            }
        };
        router = router.route(route.path, on(filter, handler));
    }
    match role {
        Role::Operates => router.method_not_allowed_fallback(wrong_method).fallback(wrong_path),
        Role::Shows => router.method_not_allowed_fallback(only_shown).fallback(only_shown),
    }
    .with_state(door)
}

/// What stands for `{id}` and `{kind}` in a path, in their order.
type Names = Vec<(String, String)>;

async fn serve_route(
    route: &Route,
    (door, permit): (&Door, &Permit),
    names: Result<Option<Path<Names>>, PathRejection>,
    request: HttpRequest<Body>,
) -> Result<Answer, Refusal> {
    let names = match names {
        Ok(names) => names.map(|Path(names)| names).unwrap_or_default(),
        Err(rejection) => {
            let hint = "write a disk's name as it is, in the path";
            return Err(ApiError::new(ErrorKind::Malformed, rejection.body_text(), hint).into());
        }
    };
    let query = request.uri().query().unwrap_or_default().to_string();
    let body = to_bytes(request.into_body(), BODY_BYTES_MAX);
    let body = timeout_at(permit.0.whole_by, body).await.map_err(|_| {
        let error =
            format!("the request was not whole {REQUEST_S_MAX} s after its client connected");
        let error = ApiError::new(ErrorKind::Malformed, error, "send it at once");
        Refusal { status: StatusCode::REQUEST_TIMEOUT, error }
    })?;
    let body = body.map_err(|error| {
        let error = ApiError::new(
            ErrorKind::Malformed,
            format!("the body could not be read ({error})"),
            format!("a body has at most {BODY_BYTES_MAX} bytes"),
        );
        Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, error }
    })?;
    let names: Vec<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
    let call = route.operation.call(&names, &query, &body)?;
    lock(&permit.0.crowd).places.asked(permit.0.id);
    let answer = ask(door, permit.0.from, call).await;
    lock(&permit.0.crowd).places.answered(permit.0.id, crate::clock::now());
    Ok(answer?)
}

/// Puts a call to the control loop and waits for its answer.
async fn ask(door: &Door, from: Peer, call: Call) -> Result<Answer, ApiError> {
    let limit_s = if matches!(call, Call::Upgrade { .. }) { UPGRADE_S_MAX } else { ANSWER_S_MAX };
    let (reply, answer) = oneshot::channel();
    door.requests.try_send(Request { call, from, reply }).map_err(|error| match error {
        TrySendError::Full(_) => ApiError::new(
            ErrorKind::Busy,
            "too many requests wait for the control loop",
            "try again in a moment",
        ),
        TrySendError::Disconnected(_) => stopping(),
    })?;
    // Full only after 2^64 - 2 wake-ups that nobody read: then it is readable anyway.
    let _ = rustix::io::write(&door.wake, &1u64.to_ne_bytes());
    match within(limit_s, answer).await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) => Err(stopping()),
        None => Err(ApiError::new(
            ErrorKind::Busy,
            format!("the control loop gave no answer within {limit_s} s"),
            "the request may still be carried out: look with `sidecore ls` before repeating it",
        )),
    }
}

/// Waits for so many seconds in which this process ran: one second and one look after the other, so that a machine
/// that stood still is no reason to give up.
async fn within<T>(seconds: u64, what: impl Future<Output = T>) -> Option<T> {
    let mut what = std::pin::pin!(what);
    for _ in 0..seconds {
        if let Ok(done) = timeout(Duration::from_secs(1), &mut what).await {
            return Some(done);
        }
    }
    None
}

fn stopping() -> ApiError {
    let error = "the daemon is stopping, or another process takes over from it";
    ApiError::new(ErrorKind::Busy, error, "try again once it runs again")
}

async fn wrong_method(method: HttpMethod, request: HttpRequest<Body>) -> Response {
    let path = request.uri().path();
    let error = ApiError::new(
        ErrorKind::Malformed,
        format!("{method} is not possible on {path:?}"),
        "/openapi.json describes every request",
    );
    refusal(&Refusal { status: StatusCode::METHOD_NOT_ALLOWED, error })
}

/// Of a request that asks for more than the socket has.
async fn only_shown(method: HttpMethod, request: HttpRequest<Body>) -> Response {
    match [HttpMethod::GET, HttpMethod::HEAD].contains(&method) {
        true => wrong_path(request).await,
        false => for_operators(method, request).await,
    }
}

async fn for_operators(method: HttpMethod, request: HttpRequest<Body>) -> Response {
    let path = request.uri().path();
    let error = ApiError::new(
        ErrorKind::Forbidden,
        format!("{method} {path:?} is for operators, and this socket only shows"),
        "ask at the socket of `api` in [daemon], which is for operators",
    );
    refusal(&Refusal::from(error))
}

async fn wrong_path(request: HttpRequest<Body>) -> Response {
    let path = request.uri().path();
    let error = ApiError::new(
        ErrorKind::NotFound,
        format!("there is nothing at {path:?}"),
        "/openapi.json describes every request",
    );
    refusal(&Refusal::from(error))
}

/// A refusal with its HTTP status.
struct Refusal {
    status: StatusCode,
    error: ApiError,
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        let status = StatusCode::from_u16(error.kind.status());
        Refusal { status: status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), error }
    }
}

fn refusal(refusal: &Refusal) -> Response {
    json_of(refusal.status.as_u16(), &refusal.error)
}

fn json_of(status: u16, value: &impl serde::Serialize) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match serde_json::to_vec(value) {
        Ok(bytes) => json_response(status, bytes.into()),
        Err(error) => {
            tracing::error!(%error, "an answer of the API could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn json_response(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
