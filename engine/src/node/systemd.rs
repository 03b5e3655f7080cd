//! What the service manager is told: ready, reloading, stopping, alive. Silent when there is
//! none. Main thread.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use super::beats::Beats;

/// How often things are looked at where no watchdog is set.
const TICK: Duration = Duration::from_secs(5);

/// The node serves.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The node is on its way to serving, and says so again within `within`.
pub fn starting(within: Duration) {
    let micros = u32::try_from(within.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::ExtendTimeoutUsec(micros)]);
}

/// The node reads its configuration again; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "telling the service manager"),
    }
}

/// The node is on its way down.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// The watchdog, where the service manager set one.
pub struct Watchdog {
    patience: Option<Duration>,
    next: Instant,
}

impl Watchdog {
    /// As the environment says.
    pub fn new() -> Watchdog {
        Watchdog {
            patience: sd_notify::watchdog_enabled(),
            next: Instant::now(),
        }
    }

    /// How often [`Watchdog::look`] wants to be called.
    pub fn tick(&self) -> Duration {
        self.patience.map_or(TICK, |p| (p / 4).min(TICK))
    }

    /// Pings, unless a core is stuck.
    pub fn look(&mut self, beats: &Beats) {
        let Some(patience) = self.patience else {
            return;
        };
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + self.tick() / 2;
        match beats.stuck(patience / 2) {
            None => tell(&[NotifyState::Watchdog]),
            Some(core) => tracing::error!(core, "the core does not come round; no ping"),
        }
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "telling the service manager");
    }
}
