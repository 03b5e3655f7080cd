//! Median and spread over rounds. Pure.

use serde::Serialize;

/// One measured thing over the rounds of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The middle of the rounds.
    pub median: f64,
    /// The least round.
    pub min: f64,
    /// The highest round.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
}

/// Median, least and most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle value; of an even number the mean of the two middle ones.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Summary {
    /// The summary of some values; zeroes for none. Values that are not numbers are left out.
    pub fn of(values: &[f64]) -> Summary {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Summary {
                median: 0.0,
                min: 0.0,
                max: 0.0,
            };
        };
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Summary {
            median,
            min: *min,
            max: *max,
        }
    }
}

impl Figure {
    /// A figure from its rounds.
    pub fn new(name: impl Into<String>, unit: &'static str, rounds: &[f64]) -> Figure {
        let Summary { median, min, max } = Summary::of(rounds);
        Figure {
            name: name.into(),
            unit,
            median,
            min,
            max,
            rounds: rounds.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(
            Summary::of(&[3.0, 1.0, 2.0]),
            Summary {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(
            Summary::of(&[]),
            Summary {
                median: 0.0,
                min: 0.0,
                max: 0.0
            }
        );
        assert_eq!(Summary::of(&[f64::NAN, 1.0]).median, 1.0);
    }
}
