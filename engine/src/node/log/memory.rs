//! Orders to a memory log in a running node, for tests and try-outs: a file `control` in its
//! directory says what it does from now on.
//!
//! A line each: `down` (no record lands, the log does not answer), `refuse` (answers, and fails
//! every record), `silent` (never answers for a record), `latency_ms N`, `bad_topic` (a setting is not
//! as it must be), and, done once each time `N` is another number, `recreate N` and `lose_from PARTITION POSITION N`. An empty or absent file
//! is a log that works. Runs on a thread of its own that ends with the process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ankusa_intake::memory::{Fault, MemoryLog};
use ankusa_intake::{Class, Readiness, wait_for};

const LOOK: Duration = Duration::from_millis(20);

/// What the file says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Orders {
    fault: Option<Fault>,
    is_down: bool,
    is_bad: bool,
    latency: Duration,
    recreate: Option<u64>,
    lose_from: Option<(u32, u64, u64)>,
}

impl Orders {
    fn parse(text: &str) -> Orders {
        let mut orders = Orders::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let numbers: Vec<u64> = words.filter_map(|w| w.parse().ok()).collect();
            match (name, &numbers[..]) {
                ("down", []) => {
                    orders.is_down = true;
                    orders.fault = Some(Fault::Fail(Class::Unavailable));
                }
                ("refuse", []) => orders.fault = Some(Fault::Fail(Class::Unavailable)),
                ("bad_topic", []) => orders.is_bad = true,
                ("silent", []) => orders.fault = Some(Fault::Lost),
                ("latency_ms", [ms]) => orders.latency = Duration::from_millis(*ms),
                ("recreate", [no]) => orders.recreate = Some(*no),
                ("lose_from", [partition, position, no]) => {
                    orders.lose_from = Some((*partition as u32, *position, *no));
                }
                ("", _) => {}
                _ => tracing::warn!("the memory log does not know the order {line:?}"),
            }
        }
        orders
    }
}

/// Starts the thread.
pub(super) fn obey(log: &MemoryLog, dir: PathBuf) -> std::io::Result<()> {
    let log = log.clone();
    // What was done once before this process is not done again.
    let mut last = read(&dir);
    follow(&log, &last);
    std::thread::Builder::new()
        .name("ankusa-memctl".into())
        .spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                let now = read(&dir);
                if now == last {
                    continue;
                }
                follow(&log, &now);
                if now.recreate.is_some() && now.recreate != last.recreate {
                    told("recreate", wait_for(log.recreate()));
                }
                if let Some((partition, position, _)) =
                    now.lose_from.filter(|_| now.lose_from != last.lose_from)
                {
                    told("lose_from", wait_for(log.lose_from(partition, position)));
                }
                last = now;
            }
        })?;
    Ok(())
}

fn told(order: &str, result: Result<(), ankusa_intake::AskError>) {
    match result {
        Ok(()) => tracing::warn!("the memory log did as it was told: {order}"),
        Err(error) => tracing::warn!(%error, "the memory log could not: {order}"),
    }
}

fn follow(log: &MemoryLog, orders: &Orders) {
    log.always(orders.fault);
    log.set_latency(orders.latency);
    log.set_as_it_must_be(!orders.is_bad);
    log.set_ready(match orders.is_down {
        true => Readiness::Unreachable,
        false => Readiness::Up,
    });
}

fn read(dir: &Path) -> Orders {
    let text = std::fs::read_to_string(dir.join("control")).unwrap_or_default();
    Orders::parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_line_by_line_and_unknown_ones_passed_over() {
        assert_eq!(Orders::parse(""), Orders::default());
        let orders =
            Orders::parse("down\nlatency_ms 5\nrecreate 2\nnonsense 1\nlose_from 3 10 1\n");
        assert!(orders.is_down && orders.fault.is_some());
        assert_eq!(orders.latency, Duration::from_millis(5));
        assert_eq!(
            (orders.recreate, orders.lose_from),
            (Some(2), Some((3, 10, 1)))
        );
        assert!(!Orders::parse("refuse").is_down);
    }
}
