//! What the service manager is told: ready, stopping. Silent when there is none. Main thread.

use sd_notify::NotifyState;

/// The node serves.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// The node is on its way down.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "telling the service manager");
    }
}
