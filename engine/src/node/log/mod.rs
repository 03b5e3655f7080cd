//! The node's intake log, under `wal.type: dual`: opened, looked after, and the way through the boot
//! before the node serves.
//!
//! Owns the adapter and what is said about it ([`Status`]); what the commit needs to know is in
//! [`NodeLog`], which is kept up to date here. Does not publish, does not decide what a hook is
//! answered, does not replay: those are [`crate::dual`] and [`crate::recover`].
//!
//! [`Intake::open`] runs on the main thread before the cores are pinned; everything else on core 0.

mod adapter;
mod boot;
mod memory;
mod status;
mod steps;
mod upkeep;
mod way;

pub use adapter::Adapter;
pub use boot::{boot, waits, what_to_do};
pub use status::{Phase, Status};
pub use upkeep::{ask_head, keep};
pub use way::Way;

use std::sync::Arc;

use ankusa_intake::Expected;

use crate::config::Config;
use crate::dual::{DualSettings, NodeLog};

/// The node's intake log.
pub struct Intake {
    /// The adapter.
    pub adapter: Adapter,
    /// What the commit knows of it.
    pub log: Arc<NodeLog>,
    /// What is said about it.
    pub status: Status,
    /// `intake.node_id`.
    pub node: String,
    /// `intake.topic`.
    pub topic: String,
    /// `intake.kafka.brokers`, as the brokers' own tools take them.
    pub brokers: String,
    /// Whether the topic's settings are judged.
    pub is_verifying: bool,
    /// What they must be.
    pub expected: Expected,
}

impl Intake {
    /// Opens the log of a configuration; `None` where it has none.
    ///
    /// # Errors
    /// A text for the operator.
    pub fn open(config: &Config, cores: usize) -> Result<Option<Arc<Intake>>, String> {
        let (Some(intake), Some(settings)) = (&config.intake, DualSettings::of(config)) else {
            return Ok(None);
        };
        Ok(Some(Arc::new(Intake {
            adapter: Adapter::open(config, intake)?,
            log: NodeLog::new(settings, cores),
            status: Status::default(),
            node: intake.node_id.clone(),
            topic: intake.topic.clone(),
            brokers: intake.kafka.brokers.join(","),
            is_verifying: intake.verify_topic,
            expected: Expected {
                backup_max_age_ms: config.backup.max_age_ms.unwrap_or_default(),
                max_record_bytes: intake.max_record_bytes,
            },
        })))
    }

    /// The word of readiness.
    pub fn word(&self) -> &'static str {
        self.status.word(&self.log)
    }

    /// Whether the log keeps the node from being ready, and why.
    pub fn reason(&self) -> Option<String> {
        self.status.reason(&self.log, self.adapter.log().ready())
    }
}
