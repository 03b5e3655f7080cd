//! The steps before the node serves: those of a recovery.
//!
//! Runs on core 0.

use std::rc::Rc;
use std::sync::Arc;

use ankusa_recovery::{Refusal, Summary};

use super::Intake;
use crate::node::core::Core;
use crate::recover;

/// Takes them.
pub(super) async fn take(core: &Rc<Core>, intake: &Arc<Intake>) -> Result<Summary, Refusal> {
    recover::at_boot(core, intake, &core.keeper).await
}
