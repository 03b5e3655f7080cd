//! What cores and the main thread tell each other.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::claims::ClaimMessage;
use crate::reload::ReloadNo;

use super::core::Core;

/// Something to run on a core; off the request path.
pub type Call = Box<dyn FnOnce(&Rc<Core>) + Send>;

/// What a core's inbox takes.
pub enum Message {
    /// About a claim.
    Claim(ClaimMessage),
    /// Run this.
    Call(Call),
    /// Stop: finish what is in flight, close the store, end.
    Stop,
}

/// What the main thread is told.
#[derive(Debug)]
pub enum Event {
    /// A core opened its shards.
    Opened {
        /// The core.
        core: usize,
        /// A line for each shard.
        lines: Vec<String>,
    },
    /// A core takes requests.
    Serving {
        /// The core.
        core: usize,
        /// The ingest address.
        ingest: SocketAddr,
        /// The admin address, on the core that serves it.
        admin: Option<SocketAddr>,
    },
    /// A core cannot go on; the text says why and what to do.
    Failed {
        /// The core.
        core: usize,
        /// Why.
        why: String,
    },
    /// A core has closed its shards. `Some`: not cleanly.
    Stopped {
        /// The core.
        core: usize,
        /// What went wrong.
        why: Option<String>,
    },
    /// A core has made a new configuration ready, or cannot.
    Prepared {
        /// The core.
        core: usize,
        /// For which reload.
        reload: ReloadNo,
        /// Why it cannot.
        result: Result<(), String>,
    },
    /// A signal came.
    Signal(i32),
}
