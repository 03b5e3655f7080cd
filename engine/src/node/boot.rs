//! Before the first core starts: the machine, the data directory, the CPUs.
//!
//! Blocking, on the main thread. Every refusal says what is wrong and what to do.

use ankusa_wal::disk::preflight;
use ankusa_wal::home::Home;

use crate::config::{Config, Cores, Origin};

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
    let cpus = cpus(&config.node.cores)?;
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
        return Err(fatal.join("\n"));
    }
    home.grow(cpus.len() as u16).map_err(|e| e.to_string())?;
    Ok(Prepared { home, cpus })
}

/// The CPUs to run on: those that this process may use, or the ones named.
fn cpus(cores: &Cores) -> Result<Vec<usize>, String> {
    let allowed = allowed_cpus();
    match cores {
        Cores::All => Ok(allowed),
        Cores::Count(count) => {
            let count = usize::from(*count);
            if count > allowed.len() {
                // More cores than CPUs: they share, which only a test wants.
                return Ok((0..count).map(|n| allowed[n % allowed.len()]).collect());
            }
            Ok(allowed.into_iter().take(count).collect())
        }
        Cores::List(list) => {
            let list: Vec<usize> = list.iter().map(|c| usize::from(*c)).collect();
            match list.iter().find(|cpu| !allowed.contains(cpu)) {
                Some(cpu) => Err(format!(
                    "node.cores: CPU {cpu} is not among those this process may use ({allowed:?})"
                )),
                None => Ok(list),
            }
        }
    }
}

fn allowed_cpus() -> Vec<usize> {
    #[expect(unsafe_code, reason = "std does not tell which CPUs a process may use")]
    // SAFETY: a zeroed cpu_set_t is valid, the call writes at most its size, and CPU_ISSET reads
    // below CPU_SETSIZE only.
    let cpus: Vec<usize> = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 {
            (0..libc::CPU_SETSIZE as usize)
                .filter(|cpu| libc::CPU_ISSET(*cpu, &set))
                .collect()
        } else {
            Vec::new()
        }
    };
    if cpus.is_empty() { vec![0] } else { cpus }
}
