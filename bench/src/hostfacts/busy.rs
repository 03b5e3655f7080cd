//! How idle the machine was over a span of time, from `/proc/stat`.

/// Totals of processor time at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyMark {
    idle: u64,
    total: u64,
}

/// The totals now.
pub fn busy_mark() -> BusyMark {
    parse(&super::read("/proc/stat"))
}

impl BusyMark {
    /// Share of all cores' time that was idle since this mark (0 when nothing can be read).
    pub fn idle_since(&self) -> f64 {
        self.idle_until(busy_mark())
    }

    fn idle_until(&self, later: BusyMark) -> f64 {
        let total = later.total.saturating_sub(self.total);
        if total == 0 {
            0.0
        } else {
            later.idle.saturating_sub(self.idle) as f64 / total as f64
        }
    }
}

fn parse(stat: &str) -> BusyMark {
    let Some(line) = stat.lines().find(|line| line.starts_with("cpu ")) else {
        return BusyMark::default();
    };
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|t| t.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq steal: waiting for the disk leaves the core free.
    BusyMark {
        idle: ticks.get(3).unwrap_or(&0) + ticks.get(4).unwrap_or(&0),
        total: ticks.iter().sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_the_disk_counts_as_idle() {
        let before = parse("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n");
        let after = parse("cpu  150 0 150 750 150 0 0 0 0 0\n");
        assert!((before.idle_until(after) - 0.5).abs() < 1e-9);
        assert_eq!(before.idle_until(before), 0.0);
    }
}
