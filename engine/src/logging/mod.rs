//! Logging: what is said goes to a bounded queue, and one thread writes it out.
//!
//! Owns the subscriber (text or JSON lines on standard error), its level, and the writer. A core
//! that logs formats the line and puts it in the queue; when the queue is full the line is
//! dropped and counted, so a standard error that nobody reads never stalls a shard. How many
//! lines were dropped is said in the log itself once there is room again, and is a metric.
//!
//! Places on a path that traffic or faults can reach say the same thing at most once per
//! interval: [`log_limited!`](crate::log_limited).
//!
//! Set up once, at boot; used from every thread.

mod limited;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

pub use limited::Site;
pub use writer::{LineWriter, QUEUE_BYTES_MAX, QUEUE_LINES_MAX, WriterThread};

/// Why logging could not be set up.
#[derive(Debug, Error)]
pub enum LogError {
    /// The writer's thread.
    #[error("no thread for the log: {0}")]
    Thread(#[from] io::Error),
    /// Somebody has set it up before.
    #[error("logging is set up already")]
    AlreadySet,
}

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// For people; with colours when that makes sense.
    Text {
        /// Colours.
        with_colours: bool,
    },
    /// One JSON object a line.
    Json,
}

static LINES: OnceLock<LineWriter> = OnceLock::new();

/// Lines of the process's log that were dropped so far, for the metric.
pub fn dropped_count() -> u64 {
    LINES.get().map_or(0, LineWriter::dropped_count)
}

/// The log of the process. Dropping it does not flush: call [`Log::close`].
pub struct Log {
    thread: WriterThread,
    level: reload::Handle<LevelFilter, Registry>,
}

impl Log {
    /// Sets logging up for the process, on standard error.
    pub fn start(level: LevelFilter, format: LineFormat) -> Result<Log, LogError> {
        let note: fn(u64) -> String = match format {
            LineFormat::Text { .. } => |count| format!("{count} log lines were dropped\n"),
            LineFormat::Json => |count| {
                format!(
                    "{{\"level\":\"WARN\",\"message\":\"log lines were dropped\",\"count\":{count}}}\n"
                )
            },
        };
        let (writer, thread) = writer::start(io::stderr(), note)?;
        let (filter, level) = reload::Layer::new(level);
        let registry = tracing_subscriber::registry().with(filter);
        let set = match format {
            LineFormat::Text { with_colours } => registry
                .with(
                    fmt::layer()
                        .with_ansi(with_colours)
                        .with_target(false)
                        .with_writer(writer),
                )
                .try_init(),
            LineFormat::Json => {
                let layer = fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false);
                registry.with(layer.with_writer(writer)).try_init()
            }
        };
        set.map_err(|_| LogError::AlreadySet)?;
        _ = LINES.set(thread.lines());
        Ok(Log { thread, level })
    }

    /// Another level from now on (reload).
    pub fn set_level(&self, level: LevelFilter) {
        // It fails only when the subscriber is gone, and that is as old as the process.
        _ = self.level.reload(level);
    }

    /// Writes out what is queued, for at most `patience`. What is said later goes nowhere.
    pub fn close(self, patience: Duration) {
        self.thread.close(patience);
    }
}
