//! Signals, on a thread of their own: SIGTERM and SIGINT stop, SIGHUP reloads.

use std::sync::mpsc::Sender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::message::Event;

/// Starts the thread. It ends with the process.
pub fn watch(events: Sender<Event>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if events.send(Event::Signal(signal)).is_err() {
                    return;
                }
            }
        })?;
    Ok(())
}

/// Whether this signal asks the node to stop.
pub fn stops(signal: i32) -> bool {
    signal == SIGTERM || signal == SIGINT
}
