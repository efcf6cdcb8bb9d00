//! Connections and requests of the API.

use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method as HttpMethod, Request as HttpRequest, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on};
use config::api::{Answer, ApiError, Call, ErrorKind};
use config::routes::{Method, ROUTES, Route};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::{ANSWER_S_MAX, BODY_BYTES_MAX, CLIENTS_MAX, CONNECTION_S_MAX, Door, Request};

/// Longest time for the request's line and headers, in seconds.
const HEADERS_S_MAX: u64 = 5;
/// Longest request line with its headers, in bytes.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// Longest time for what is left to be sent when the server stops.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// Longest time for telling a client that there are too many.
const TURN_AWAY: Duration = Duration::from_millis(10);

/// Accepts until told to stop. Bounded by [`CLIENTS_MAX`] connections at a time.
pub(super) async fn run(
    listener: UnixListener,
    door: Door,
    version: &'static str,
    mut stopped: oneshot::Receiver<()>,
) {
    let service = router(door, version);
    let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let accepted = tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Descriptors ran out, most likely: wait for some to be given back.
                tracing::warn!(%error, "the API could not accept a client");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match clients.clone().try_acquire_owned() {
            Ok(permit) => {
                let service = service.clone();
                tokio::spawn(async move {
                    connection(stream, service).await;
                    drop(permit);
                });
            }
            Err(_) => turn_away(stream).await,
        }
    }
    // Those who have been answered are to get it.
    let _ = timeout(LAST_ANSWERS, clients.acquire_many(CLIENTS_MAX as u32)).await;
}

/// One connection: one request, within its time.
async fn connection(stream: UnixStream, service: Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEADERS_S_MAX))
        .keep_alive(false)
        // A client may say that it has sent all, and still wait for the answer.
        .half_close(true)
        .max_buf_size(HEADERS_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    match timeout(Duration::from_secs(CONNECTION_S_MAX), served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an API client broke off"),
        Err(_) => tracing::debug!("an API client took more than {CONNECTION_S_MAX} s"),
    }
}

/// Tells a client that there are too many. Bounded by [`TURN_AWAY`], for nobody else is accepted
/// meanwhile.
async fn turn_away(mut stream: UnixStream) {
    let error = ApiError::new(
        ErrorKind::Busy,
        format!("{CLIENTS_MAX} clients are connected already"),
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

/// Everything of [`ROUTES`], the description, and refusals for the rest.
fn router(door: Door, version: &'static str) -> Router {
    let description = Bytes::from(config::openapi::document(version).to_string());
    let mut router = Router::new().route(
        "/openapi.json",
        get(move || async move { json_response(StatusCode::OK, description.into()) }),
    );
    for route in &ROUTES {
        let filter = match route.method {
            Method::Get => MethodFilter::GET,
            Method::Post => MethodFilter::POST,
            Method::Patch => MethodFilter::PATCH,
            Method::Delete => MethodFilter::DELETE,
        };
        let handler = async move |State(door): State<Door>,
                                  id: Result<Option<Path<String>>, PathRejection>,
                                  request: HttpRequest<Body>| {
            match serve_route(route, &door, id, request).await {
                Ok(answer) => json_of(route.success, &answer),
                Err(error) => refusal(&error),
            }
        };
        router = router.route(route.path, on(filter, handler));
    }
    router.method_not_allowed_fallback(wrong_method).fallback(wrong_path).with_state(door)
}

async fn serve_route(
    route: &Route,
    door: &Door,
    id: Result<Option<Path<String>>, PathRejection>,
    request: HttpRequest<Body>,
) -> Result<Answer, Refusal> {
    let id = match id {
        Ok(id) => id.map(|Path(id)| id).unwrap_or_default(),
        Err(rejection) => {
            let hint = "write a disk's name as it is, in the path";
            return Err(ApiError::new(ErrorKind::Malformed, rejection.body_text(), hint).into());
        }
    };
    let query = request.uri().query().unwrap_or_default().to_string();
    let body = to_bytes(request.into_body(), BODY_BYTES_MAX).await.map_err(|error| {
        let error = ApiError::new(
            ErrorKind::Malformed,
            format!("the body could not be read ({error})"),
            format!("a body has at most {BODY_BYTES_MAX} bytes"),
        );
        Refusal { status: StatusCode::PAYLOAD_TOO_LARGE, error }
    })?;
    let call = route.operation.call(&id, &query, &body)?;
    Ok(ask(door, call).await?)
}

/// Puts a call to the control loop and waits for its answer.
async fn ask(door: &Door, call: Call) -> Result<Answer, ApiError> {
    let (reply, answer) = oneshot::channel();
    door.requests.try_send(Request { call, reply }).map_err(|error| match error {
        TrySendError::Full(_) => ApiError::new(
            ErrorKind::Busy,
            "too many requests wait for the control loop",
            "try again in a moment",
        ),
        TrySendError::Disconnected(_) => stopping(),
    })?;
    // Full only after 2^64 - 2 wake-ups that nobody read: then it is readable anyway.
    let _ = rustix::io::write(&door.wake, &1u64.to_ne_bytes());
    match timeout(Duration::from_secs(ANSWER_S_MAX), answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(stopping()),
        Err(_) => Err(ApiError::new(
            ErrorKind::Busy,
            format!("the control loop gave no answer within {ANSWER_S_MAX} s"),
            "the request may still be carried out: look with `sidecore ls` before repeating it",
        )),
    }
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
