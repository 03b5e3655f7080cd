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

/// What the promise of `dual` mode rests on.
pub struct DualPromise<'a> {
    /// The store.
    pub data_dir: &'a Path,
    /// The log, in its adapter's words: which topic, with what settings.
    pub log: &'a str,
    /// Whether the log is lost with this host.
    pub is_on_this_host: bool,
    /// Between two backups.
    pub backup_interval_ms: u64,
    /// `backup.max_age_ms`: the log keeps twice this, where it was verified.
    pub backup_max_age_ms: u64,
}

/// The promise of `dual` mode.
pub fn dual_line(promise: &DualPromise<'_>) -> String {
    let DualPromise {
        data_dir,
        log,
        backup_interval_ms: interval,
        backup_max_age_ms: age,
        ..
    } = promise;
    let loss = match promise.is_on_this_host {
        true => "the log is a file on this host, so a lost host loses every hook acked since the last backup".to_string(),
        false => format!(
            "an acked hook is lost only when this host and the log's in-sync copies are lost together, or when this host is lost while its last backup is older than the log's retention (backup.max_age_ms is {age} ms)"
        ),
    };
    format!(
        "store at {}. A 2xx means: durable to power loss on this host AND confirmed in the intake log {log}; {loss}. Backups every {interval} ms.",
        data_dir.display()
    )
}

/// Where the node listens.
pub fn listening_line(ingest: SocketAddr, admin: Option<SocketAddr>) -> String {
    match admin {
        Some(admin) => {
            format!("listening: hooks on http://{ingest}, administration on http://{admin}")
        }
        None => format!("listening: hooks on http://{ingest}"),
    }
}

/// For the try-out: commands that send a hook, show its delivery, and show that it was counted.
/// To be printed as they are: in a line of JSON their quotes would be escaped, and no shell would
/// take them.
pub fn try_lines(config: &Config, ingest: SocketAddr, admin: Option<SocketAddr>) -> Vec<String> {
    let Some(source) = config.sources.first() else {
        return Vec::new();
    };
    if config.origin != Origin::Tryout {
        return Vec::new();
    }
    let mut lines = vec![
        "try it:".to_string(),
        format!(
            "  curl -i http://{ingest}{}/{} -H 'content-type: application/json' -d '{{\"hello\":\"world\"}}'",
            config.http.prefix, source.name
        ),
    ];
    for sink in &source.sinks {
        if let SinkKind::File { path } = &sink.kind {
            lines.push(format!("  tail -n 1 {}", path.display()));
        }
    }
    lines.extend(admin.map(|admin| {
        format!("  curl -s http://{admin}/metrics | grep ankusa_ingest_requests_total")
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(log: &str, is_on_this_host: bool) -> String {
        dual_line(&DualPromise {
            data_dir: Path::new("/d"),
            log,
            is_on_this_host,
            backup_interval_ms: 60_000,
            backup_max_age_ms: 3_600_000,
        })
    }

    #[test]
    fn try_out_gives_commands_that_a_shell_takes() {
        let ingest: SocketAddr = ([127, 0, 0, 1], 4000).into();
        let admin = SocketAddr::from(([127, 0, 0, 1], 4002));
        let lines = try_lines(&Config::tryout(), ingest, Some(admin));
        assert_eq!(
            lines,
            [
                "try it:",
                r#"  curl -i http://127.0.0.1:4000/webhooks/demo -H 'content-type: application/json' -d '{"hello":"world"}'"#,
                "  tail -n 1 ./delivered.ndjson",
                "  curl -s http://127.0.0.1:4002/metrics | grep ankusa_ingest_requests_total",
            ]
        );
        // The README promises the same.
        let readme = include_str!("../../../README.md");
        for line in lines[1..].iter().map(|line| line.trim()) {
            let bare = line.replace("./", "");
            assert!(readme.contains(&format!("\n{bare}\n")), "{bare}");
        }
        let config = crate::config::for_test(
            "sources: { a: { verify: { type: none }, sinks: [ { type: log } ] } }",
        );
        assert_eq!(try_lines(&config, ingest, None), Vec::<String>::new());
    }

    #[test]
    fn start_up_line_states_the_loss_window() {
        let text = line("`t` (acks=all, min.insync.replicas=2, replicas=3)", false);
        for part in [
            "store at /d",
            "durable to power loss on this host AND confirmed in the intake log `t` (acks=all, min.insync.replicas=2, replicas=3)",
            "lost only when this host and the log's in-sync copies are lost together",
            "Backups every 60000 ms",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let text = line("`t` (intake topic settings UNVERIFIED)", false);
        assert!(
            text.contains("`t` (intake topic settings UNVERIFIED)"),
            "{text}"
        );
        assert!(line("x", true).contains("a lost host loses every hook acked"));
        let text = durability_line(Path::new("/d"), None);
        assert!(text.contains("loses everything on it"), "{text}");
    }
}
