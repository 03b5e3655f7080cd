//! Where hooks go: one attempt to deliver one hook to one sink.
//!
//! Owns the sinks' wire formats (the HTTP request, the message), what an answer means, and the
//! work of an attempt. An attempt ends as one of [`Outcome`]; `Delivered` is said only when the
//! sink has confirmed: a 2xx, a synced file, a printed line.
//!
//! Does not: decide when to try, how often, or in which order (dispatch does), read hooks from the
//! store, write outcomes, or remember anything of an attempt. Keeps no hook back: an attempt that
//! cannot be made now says so.
//!
//! Runs on a shard core; the file sink's writing runs on a thread of its own.

mod answer;
mod file;
mod forward;
mod http;
mod log;
mod message;
mod outcome;
mod request;
mod stamp;
mod table;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use ankusa_net::client::Client;
use ankusa_net::dns::Resolver;
use ankusa_wal::format::Envelope;
use ankusa_wal::host::Host;
use thiserror::Error;

pub use answer::{judge, parse_retry_after};
pub use file::{FILE_QUEUE_BYTES_MAX, FILE_QUEUE_MAX, FileSink, FileWriters};
pub use forward::{ForwardRule, may_never_go};
pub use http::HttpSink;
pub use log::LogSink;
pub use message::{MESSAGE_VERSION, MessageWriter};
pub use outcome::{Cause, Outcome};
pub use request::{OwnHeaders, request_headers};
pub use stamp::{Signer, Stamp, stamp};
pub use table::{CoreSinks, TableError};

use crate::config::{EgressConfig, SinkConfig, SinkKind, SourceConfig};

/// A hook to be delivered: its envelope, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The hook.
    pub hook: Envelope<'a>,
    /// The replay job that asked for it.
    pub replay_id: Option<&'a str>,
}

/// What the sinks of one core share.
#[derive(Clone)]
pub struct SinkContext {
    /// Time and turns.
    pub host: Rc<dyn Host>,
    /// Connections.
    pub client: Client,
    /// Names.
    pub resolver: Resolver,
    /// Where deliveries may go.
    pub egress: Rc<EgressConfig>,
    /// The writers of files, one set for all cores.
    pub files: FileWriters,
}

/// Why a sink cannot be made.
#[derive(Debug, Error)]
pub enum SinkError {
    /// A configured header.
    #[error("a header of the sink cannot be sent")]
    Header,
    /// The path and query of the URL.
    #[error("the path of the sink's URL cannot be sent")]
    Target,
    /// The thread that writes the file.
    #[error("no thread for the file: {0}")]
    Thread(#[from] std::io::Error),
}

/// One sink of one source, on one core.
pub enum Sink {
    /// An HTTP endpoint.
    Http(Box<HttpSink>),
    /// A file of newline-delimited JSON.
    File(FileSink),
    /// The log.
    Log(LogSink),
}

impl Sink {
    /// Makes a sink from its validated configuration.
    pub fn build(
        source: &SourceConfig,
        sink: &SinkConfig,
        context: &SinkContext,
    ) -> Result<Sink, SinkError> {
        let forward = ForwardRule::new(source);
        Ok(match &sink.kind {
            SinkKind::Http(config) => {
                Sink::Http(Box::new(HttpSink::new(config, forward, context)?))
            }
            SinkKind::File { path } => {
                let writer = context.files.writer(path)?;
                Sink::File(FileSink::new(writer, forward, Rc::clone(&context.host)))
            }
            SinkKind::Log => Sink::Log(LogSink::new(&sink.name)),
        })
    }

    /// Makes one attempt.
    ///
    /// # Cancel safety
    /// Dropping it gives the attempt up; the sink may have received the hook, or still receive it.
    pub async fn deliver(&self, delivery: &Delivery<'_>) -> Outcome {
        match self {
            Sink::Http(sink) => sink.deliver(delivery).await,
            Sink::File(sink) => sink.deliver(delivery).await,
            Sink::Log(sink) => sink.deliver(delivery),
        }
    }
}
