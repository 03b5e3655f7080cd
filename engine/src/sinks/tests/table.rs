//! The sinks of a configuration, on a core.

use ankusa_net::client::ClientConfig;
use ankusa_net::dns::ResolverThreads;
use ankusa_wal::{SinkName, SinkNo};

use super::*;
use crate::config::Config;
use crate::dispatch::{Outcome as Scheduled, SinkTable as _};
use crate::metrics::SinkLabel;
use crate::runtime::{CoreHost, spawn_core};

fn name(source: &str, name: &str) -> SinkName {
    SinkName {
        sink: SinkNo(0),
        tenant: b"acme"[..].into(),
        source: source.as_bytes().into(),
        name: name.as_bytes().into(),
    }
}

/// Also that a thread's receipt wakes a task of a real core.
#[test]
fn row_finds_its_sink_by_name_and_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.ndjson");
    let mut config = Config::tryout();
    let file = SinkConfig {
        name: "keep".into(),
        paused: true,
        kind: SinkKind::File { path: path.clone() },
    };
    let log = SinkConfig {
        name: "show".into(),
        paused: false,
        kind: SinkKind::Log,
    };
    config.sources = vec![SourceConfig {
        sinks: vec![file, log],
        ..source()
    }];
    config.dispatch.concurrency = 32;
    let core = spawn_core("test", None, move || async move {
        let threads = ResolverThreads::start_with(|_| Ok(Vec::new())).unwrap();
        let context = SinkContext {
            host: CoreHost::new(),
            client: Client::new(ClientConfig::default()),
            resolver: Resolver::new(threads),
            egress: Rc::new(config.egress.clone()),
            files: FileWriters::default(),
        };
        let label = |_: &str| SinkLabel::default();
        let sinks = CoreSinks::build(&config, &context, 3, label).unwrap();
        let keep = sinks.plan(&name("pay", "keep")).unwrap();
        assert!(keep.paused);
        assert_eq!(keep.concurrency, 11);
        assert!(!sinks.plan(&name("pay", "show")).unwrap().paused);
        assert!(sinks.plan(&name("pay", "gone")).is_none());
        assert!(sinks.plan(&name("other", "keep")).is_none());
        let envelope = HookSpec::default().envelope();
        for _ in 0..20 {
            assert_eq!(
                keep.target.deliver(&envelope, None).await,
                Scheduled::Delivered
            );
        }
        let broken = keep.target.deliver(&envelope[1..], None).await;
        assert!(matches!(broken, Scheduled::NotMade { .. }));
    });
    core.unwrap().join().unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 20);
}
