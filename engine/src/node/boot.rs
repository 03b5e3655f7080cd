//! Before the first core starts: the machine, the data directory, the CPUs.
//!
//! Blocking, on the main thread. Every refusal says what is wrong and what to do.

use ankusa_wal::disk::preflight;
use ankusa_wal::home::Home;

use crate::config::{Config, Cores, Origin};
use crate::cpus;

/// What the cores start from.
pub struct Prepared {
    /// The data directory, owned until the process ends.
    pub home: Home,
    /// The CPU of each core.
    pub cpus: Vec<usize>,
}

/// Checks the machine and opens the data directory.
///
/// # Errors
/// A text for the operator.
pub fn prepare(config: &Config) -> Result<Prepared, String> {
    let allowed = cpus::allowed();
    let crowded = cpus::oddness(&config.node.cores, &allowed);
    let cpus = cpus(&config.node.cores, allowed)?;
    let shards = config.node.shards.unwrap_or(cpus.len() as u16);
    let random = |bytes: &mut [u8]| {
        // NOTE: fails only without a kernel random source; the identity must not be guessable
        // only where a hash key is concerned, and then boot has worse to say.
        let _ = aws_lc_rs::rand::fill(bytes);
    };
    let mut home = Home::open(&config.node.data_dir, shards, random).map_err(|e| e.to_string())?;
    let found = preflight::look(home.dir())
        .map_err(|e| format!("cannot look at {}: {e}", home.dir().display()))?;
    let lenient = config.wal.allow_unsafe_filesystem || config.origin == Origin::Tryout;
    let mut fatal = Vec::new();
    for finding in preflight::judge(&found, cpus.len() as u64) {
        if finding.fatal || !lenient {
            fatal.push(finding.message);
        } else {
            tracing::warn!("{}", finding.message);
        }
    }
    if !fatal.is_empty() {
        // Too many cores may be all that is wrong.
        fatal.extend(crowded.map(|why| format!("node.cores: {why}")));
        return Err(fatal.join("\n"));
    }
    home.grow(cpus.len() as u16).map_err(|e| e.to_string())?;
    Ok(Prepared { home, cpus })
}

/// The CPUs to run on: those that this process may use, or the ones named.
fn cpus(cores: &Cores, allowed: Vec<usize>) -> Result<Vec<usize>, String> {
    match cores {
        Cores::All => Ok(allowed),
        Cores::Count(count) => {
            let count = usize::from(*count);
            // More cores than CPUs share them, and a warning was given.
            Ok(allowed.iter().copied().cycle().take(count).collect())
        }
        Cores::List(list) => match cpus::oddness(cores, &allowed) {
            Some(why) => Err(format!("node.cores: {why}")),
            None => Ok(list.iter().map(|c| usize::from(*c)).collect()),
        },
    }
}
