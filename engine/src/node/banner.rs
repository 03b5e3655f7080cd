//! What the node says when it starts: its promise in one line, where it listens, what to try.

use std::net::SocketAddr;
use std::path::Path;

use crate::config::{Config, Origin, SinkKind};

/// The promise of `disk` mode, as the store keeps it.
pub fn durability_line(data_dir: &Path, backed_up_every_ms: Option<u64>) -> String {
    let loss = match backed_up_every_ms {
        Some(ms) => format!(
            "a lost host loses at most the hooks acked since the last backup (every {ms} ms)"
        ),
        None => "a lost host loses everything on it (no backups are configured)".into(),
    };
    format!(
        "store at {}. A 2xx means: durable to power loss on this host; {loss}.",
        data_dir.display()
    )
}

/// The ports, and for the try-out a request to send and where its delivery appears.
pub fn ready_lines(config: &Config, ingest: SocketAddr, admin: Option<SocketAddr>) -> Vec<String> {
    let mut lines = vec![match admin {
        Some(admin) => {
            format!("listening: hooks on http://{ingest}, administration on http://{admin}")
        }
        None => format!("listening: hooks on http://{ingest}"),
    }];
    if config.origin == Origin::Tryout
        && let Some(source) = config.sources.first()
    {
        lines.push(format!(
            "try: curl -i http://{ingest}{}/{} -H 'content-type: application/json' -d '{{\"hello\":\"world\"}}'",
            config.http.prefix, source.name
        ));
        for sink in &source.sinks {
            if let SinkKind::File { path } = &sink.kind {
                lines.push(format!("delivered hooks appear in {}", path.display()));
            }
        }
    }
    lines
}
