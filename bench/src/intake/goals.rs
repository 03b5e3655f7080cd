//! What the figures are to reach, and whether they do. A goal that is missed is said, and fails
//! nothing: `gate` is for that.

use serde_json::json;

use crate::report::{Figure, Report, number};

/// Goals so far.
#[derive(Default)]
pub struct Goals {
    all: Vec<Goal>,
}

struct Goal {
    figure: String,
    median: f64,
    bound: f64,
    at_least: bool,
}

impl Goals {
    /// The median of a figure is to be at least this; the figure goes into the report.
    pub fn at_least(&mut self, report: &mut Report, figure: Figure, bound: f64) {
        self.add(report, figure, bound, true);
    }

    /// At most this.
    pub fn at_most(&mut self, report: &mut Report, figure: Figure, bound: f64) {
        self.add(report, figure, bound, false);
    }

    fn add(&mut self, report: &mut Report, figure: Figure, bound: f64, at_least: bool) {
        self.all.push(Goal {
            figure: figure.name.clone(),
            median: figure.median,
            bound,
            at_least,
        });
        report.figure(figure);
    }

    /// Prints them and puts them into the report.
    pub fn tell(&self, report: &mut Report) {
        let mut rows = Vec::new();
        for goal in &self.all {
            let holds = match goal.at_least {
                true => goal.median >= goal.bound,
                false => goal.median <= goal.bound,
            };
            let sign = if goal.at_least { ">=" } else { "<=" };
            println!(
                "{}  {}: {:.3} {sign} {:.3}",
                if holds { "reached" } else { "MISSED " },
                goal.figure,
                goal.median,
                goal.bound
            );
            rows.push(json!({
                "figure": goal.figure, "median": number(goal.median), "goal": number(goal.bound),
                "at": if goal.at_least { "least" } else { "most" }, "reached": holds,
            }));
        }
        report.extra("goals", json!(rows));
    }
}
