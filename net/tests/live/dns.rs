//! Names resolved by threads of their own.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use ankusa_net::dns::{ResolveError, Resolver, ResolverThreads};
use glommio::{LocalExecutorBuilder, Placement};

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

fn look_up(host: &str) -> std::io::Result<Vec<IpAddr>> {
    LOOKUPS.fetch_add(1, Ordering::SeqCst);
    match host {
        "two.test" => Ok(["10.0.0.1", "10.0.0.2", "10.0.0.1"]
            .map(|ip| ip.parse().unwrap())
            .to_vec()),
        "none.test" => Ok(Vec::new()),
        _ => Err(std::io::Error::other("no such host")),
    }
}

#[test]
fn names_are_looked_up_once_and_remembered() {
    LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .unwrap()
        .run(async {
            let resolver = Resolver::new(ResolverThreads::start_with(look_up).unwrap());
            let many: Vec<_> = (0..50)
                .map(|_| {
                    let resolver = resolver.clone();
                    glommio::spawn_local(async move { resolver.resolve("two.test").await })
                })
                .collect();
            let expected: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
            for task in many {
                assert_eq!(&task.await.unwrap()[..], expected);
            }
            assert_eq!(LOOKUPS.load(Ordering::SeqCst), 1);
            for host in ["none.test", "gone.test"] {
                for _ in 0..2 {
                    assert!(matches!(
                        resolver.resolve(host).await,
                        Err(ResolveError::Failed { .. })
                    ));
                }
            }
            assert_eq!(LOOKUPS.load(Ordering::SeqCst), 3);
            for (text, ip) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1")] {
                assert_eq!(
                    &resolver.resolve(text).await.unwrap()[..],
                    [ip.parse::<IpAddr>().unwrap()]
                );
            }
            assert_eq!(LOOKUPS.load(Ordering::SeqCst), 3);
        });
}

#[test]
fn the_system_knows_localhost() {
    LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .unwrap()
        .run(async {
            let resolver = Resolver::new(ResolverThreads::start().unwrap());
            assert!(
                resolver
                    .resolve("localhost")
                    .await
                    .unwrap()
                    .iter()
                    .all(IpAddr::is_loopback)
            );
        });
}
