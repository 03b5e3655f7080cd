//! One call: an idle connection or a new one, the request, as much of the answer as is wanted.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_lite::FutureExt;
use glommio::timer::Timer;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, StatusCode, Uri};

use super::body::Chunks;
use super::pool::{Client, Connection, Destination, Scheme};

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: Uri,
    /// Headers. `Host` is added when absent; the body's framing is not theirs to say.
    pub headers: HeaderMap,
    /// The body.
    pub body: Chunks,
    /// For a connection to be made, TLS included.
    pub connect_ms: u64,
    /// For everything.
    pub total_ms: u64,
    /// How much of the answer's body is read; more is cut off and the connection closed.
    pub response_bytes_max: usize,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, or its beginning.
    pub body: Bytes,
    /// There was more body than `response_bytes_max`.
    pub is_cut: bool,
}

/// Why there is no answer. Whether the request was carried out is known only where it says so.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Not sent: no connection could be made.
    #[error("connecting: {0}")]
    Connect(io::Error),
    /// Not sent: no connection in the time allowed.
    #[error("no connection after {0} ms")]
    ConnectTimeout(u64),
    /// Not sent: TLS could not be agreed on, or the certificate is not trusted.
    #[error("TLS: {0}")]
    Tls(io::Error),
    /// Not sent: this client has no trust configured.
    #[error("TLS is not configured")]
    NoTls,
    /// Not sent: the host is neither a name nor an address.
    #[error("not a host name")]
    HostName,
    /// Not sent: as many connections as allowed are busy.
    #[error("too many connections")]
    TooManyConnections,
    /// Perhaps carried out: no whole answer in the time allowed.
    #[error("no answer after {0} ms")]
    Timeout(u64),
    /// Perhaps carried out: the connection broke or the answer is not HTTP.
    #[error("HTTP: {0}")]
    Http(hyper::Error),
}

impl Client {
    /// Sends `call` to `destination` and reads the answer.
    ///
    /// A request that goes out on a reused connection which turns out closed, before any byte of an
    /// answer, is sent once more on a new one: it may then arrive twice.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection; the request may have been carried out.
    pub async fn call(
        &self,
        destination: &Rc<Destination>,
        call: Call,
    ) -> Result<Answer, CallError> {
        let total_ms = call.total_ms;
        within(total_ms, self.exchange(destination, call))
            .await
            .unwrap_or(Err(CallError::Timeout(total_ms)))
    }

    async fn exchange(
        &self,
        destination: &Rc<Destination>,
        call: Call,
    ) -> Result<Answer, CallError> {
        if let Some(mut connection) = self.take_idle(destination) {
            let before = connection.received.get();
            match send(&mut connection, destination, &call).await {
                Ok(response) => {
                    return self
                        .receive(connection, response, call.response_bytes_max)
                        .await;
                }
                Err(_) if connection.received.get() == before => {
                    let resent = &self.gauges().resent;
                    resent.set(resent.get() + 1);
                }
                Err(error) => return Err(CallError::Http(error)),
            }
        }
        let connecting = self.connect(destination);
        let connected = within(call.connect_ms, connecting).await;
        let mut connection =
            connected.unwrap_or(Err(CallError::ConnectTimeout(call.connect_ms)))?;
        let response = send(&mut connection, destination, &call)
            .await
            .map_err(CallError::Http)?;
        self.receive(connection, response, call.response_bytes_max)
            .await
    }

    async fn receive(
        &self,
        connection: Connection,
        response: Response<Incoming>,
        bytes_max: usize,
    ) -> Result<Answer, CallError> {
        let (parts, mut body) = response.into_parts();
        let mut kept = BytesMut::new();
        let mut is_cut = false;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(CallError::Http)?.into_data() else {
                continue;
            };
            let room = bytes_max - kept.len();
            kept.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                is_cut = true;
                break;
            }
        }
        if !is_cut {
            self.give_back(connection);
        }
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: kept.freeze(),
            is_cut,
        })
    }
}

async fn send(
    connection: &mut Connection,
    destination: &Destination,
    call: &Call,
) -> Result<Response<Incoming>, hyper::Error> {
    let mut request = Request::new(call.body.clone());
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = call.target.clone();
    *request.headers_mut() = call.headers.clone();
    request.headers_mut().remove(CONTENT_LENGTH);
    request.headers_mut().remove(TRANSFER_ENCODING);
    if !call.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::try_from(authority(destination))
    {
        request.headers_mut().insert(HOST, host);
    }
    connection.sender.ready().await?;
    connection.sender.send_request(request).await
}

/// What `Host` says of a destination.
fn authority(destination: &Destination) -> String {
    let host = &destination.host;
    let bracketed = host.contains(':') && !host.starts_with('[');
    let host = if bracketed {
        format!("[{host}]")
    } else {
        host.clone()
    };
    match (destination.scheme, destination.port) {
        (Scheme::Http, 80) | (Scheme::Https, 443) => host,
        (_, port) => format!("{host}:{port}"),
    }
}

/// `work`, unless it takes longer than `ms`.
async fn within<T>(ms: u64, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        Timer::new(Duration::from_millis(ms)).await;
        None
    };
    async { Some(work.await) }.or(late).await
}
