//! The CPUs of this host that the process may use, and what is odd about a wish for others.
//!
//! Reads the affinity of the calling thread; does not pin anything. Runs at boot and offline.

use crate::config::Cores;

/// The CPUs that this process may use, the lowest first; never empty.
pub fn allowed() -> Vec<usize> {
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

/// What is odd about these cores where these CPUs may be used. More cores than CPUs share them:
/// a store of many shards can be opened so, and nothing is gained by it.
pub fn oddness(cores: &Cores, allowed: &[usize]) -> Option<String> {
    match cores {
        Cores::All => None,
        Cores::Count(count) => (usize::from(*count) > allowed.len()).then(|| {
            let n = allowed.len();
            let plural = if n == 1 { "" } else { "s" };
            format!(
                "{count} cores share the {n} CPU{plural} that this process may use, and each locks memory of its own; allowed without sharing: 1 to {n}, or all"
            )
        }),
        Cores::List(list) => {
            let absent = list.iter().find(|cpu| !allowed.contains(&usize::from(**cpu)))?;
            Some(format!(
                "CPU {absent} is not among those that this process may use: {}",
                spoken(allowed)
            ))
        }
    }
}

/// `0-3, 8, 10-11`.
fn spoken(cpus: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let run = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_cores_than_cpus_and_a_cpu_that_is_not_there_are_odd() {
        let cpus = [0, 1, 2, 5];
        for cores in [Cores::All, Cores::Count(4), Cores::List(vec![5, 0])] {
            assert_eq!(oddness(&cores, &cpus), None, "{cores:?}");
        }
        let of = |cores| oddness(&cores, &cpus).unwrap_or_default();
        assert!(
            of(Cores::Count(5)).starts_with("5 cores share the 4 CPUs that this process may use")
                && of(Cores::Count(5)).ends_with("allowed without sharing: 1 to 4, or all")
        );
        assert_eq!(
            of(Cores::List(vec![0, 3])),
            "CPU 3 is not among those that this process may use: 0-2, 5"
        );
    }

    #[test]
    fn this_process_may_use_a_cpu() {
        assert!(!allowed().is_empty());
    }
}
