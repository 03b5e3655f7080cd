//! The confirm of the intake log as a shard core of the node sees it, from the node's own metric.
//!
//! The metric's buckets are 25 % apart, too far for a rule of 0.3 ms; its sum is exact. So the
//! middle is taken to be the mean, held within the bucket that the median is in: a few late
//! confirms cannot pull it up by more than that. Pure.

const NAME: &str = "ankusa_intake_publish_duration_seconds";
const OK: &str = "outcome=\"ok\"";

/// The metric at one moment.
#[derive(Clone, Debug, Default)]
pub struct ConfirmMark {
    /// (upper bound in seconds, confirms up to it), rising; `+Inf` is the last.
    buckets: Vec<(f64, f64)>,
    sum_s: f64,
}

impl ConfirmMark {
    /// Reads it from the text of `/metrics`.
    pub fn parse(text: &str) -> ConfirmMark {
        let mut mark = ConfirmMark::default();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(NAME).filter(|rest| rest.contains(OK)) else {
                continue;
            };
            let Some(value) = rest.rsplit(' ').next().and_then(|v| v.parse().ok()) else {
                continue;
            };
            if rest.starts_with("_sum") {
                mark.sum_s = value;
            } else if rest.starts_with("_bucket") {
                let bound = rest.split("le=\"").nth(1).and_then(|r| r.split('"').next());
                let bound = match bound {
                    Some("+Inf") => Some(f64::INFINITY),
                    other => other.and_then(|b| b.parse().ok()),
                };
                if let Some(bound) = bound {
                    mark.buckets.push((bound, value));
                }
            }
        }
        mark.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        mark
    }

    /// The middle of the confirms between `earlier` and this, microseconds; `None` without any.
    pub fn middle_us_since(&self, earlier: &ConfirmMark) -> Option<f64> {
        let before = |bound: f64| {
            let at = earlier.buckets.iter().find(|(b, _)| *b == bound);
            at.map_or(0.0, |(_, count)| *count)
        };
        let counts = self
            .buckets
            .iter()
            .map(|(b, count)| (*b, count - before(*b)));
        let counts: Vec<(f64, f64)> = counts.collect();
        let all = counts.last().map_or(0.0, |(_, count)| *count);
        if all <= 0.0 {
            return None;
        }
        let at = counts.iter().position(|(_, count)| *count >= all / 2.0)?;
        let below = at.checked_sub(1).map_or(0.0, |at| counts[at].0);
        let mean = (self.sum_s - earlier.sum_s) / all;
        Some(mean.clamp(below, counts[at].0.max(below)) * 1e6)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(counts: [u64; 4], sum: f64) -> String {
        let of = |le: &str, n: u64| format!("{NAME}_bucket{{outcome=\"ok\",le=\"{le}\"}} {n}\n");
        [
            "# HELP x y\n".to_owned(),
            of("0.004", counts[0]),
            of("0.005", counts[1]),
            of("0.006", counts[2]),
            of("+Inf", counts[3]),
            format!("{NAME}_sum{{outcome=\"ok\"}} {sum}\n"),
            format!("{NAME}_sum{{outcome=\"unavailable\"}} 99\n"),
            format!("{NAME}_bucket{{outcome=\"unavailable\",le=\"0.004\"}} 99\n"),
        ]
        .concat()
    }

    fn middle(counts: [u64; 4], sum: f64) -> Option<f64> {
        let start = ConfirmMark::parse(&text([10, 10, 10, 10], 1.0));
        ConfirmMark::parse(&text(counts, sum)).middle_us_since(&start)
    }

    #[test]
    fn the_middle_is_the_mean_within_the_bucket_of_the_median() {
        // 100 more: all between 5 and 6 ms, on average 5.2.
        assert_eq!(middle([10, 10, 110, 110], 1.52).unwrap().round(), 5200.0);
        // A tail pulls the mean to 30 ms: no further than the bucket.
        assert_eq!(middle([10, 10, 100, 110], 4.0).unwrap().round(), 6000.0);
        // Most in the first bucket.
        assert_eq!(middle([110, 110, 110, 110], 1.2).unwrap().round(), 2000.0);
        assert_eq!(middle([10, 10, 10, 10], 1.0), None);
    }
}
