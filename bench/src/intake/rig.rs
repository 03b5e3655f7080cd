//! The nodes of a comparison, alive side by side: `disk`, `dual` over the log in files, and `dual`
//! over real brokers where there are some. Only one of them is under load at a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::IntakeArgs;
use super::confirm::ConfirmMark;
use crate::child::{IntakePlan, Node, NodePlan, get};
use crate::cli::fresh_dir;
use crate::ingest::{READY_PATIENCE, grow, node_subject};
use crate::load::LoadPlan;
use crate::measure::{Measured, Round, Subject, measure};
use crate::report::{Report, Row, number};

/// Where the brokers of `drills/kafka` listen.
pub const BROKERS: &str = "127.0.0.1:19091,127.0.0.1:19092,127.0.0.1:19093";

/// The three brokers, by their script. Topics made here go again.
pub struct Brokers {
    script: PathBuf,
}

impl Brokers {
    /// Brokers that are up.
    pub fn new(script: &Path) -> anyhow::Result<Brokers> {
        let script = script
            .canonicalize()
            .with_context(|| script.display().to_string())?;
        let brokers = Brokers { script };
        if brokers.call(&["status"])?.trim() == "down" {
            bail!("the brokers are down: {} up", brokers.script.display());
        }
        Ok(brokers)
    }

    /// Runs the script; what it printed.
    pub fn call(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.script)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.script.display().to_string())?;
        if !output.status.success() {
            bail!(
                "drills/kafka {}: {}: {}",
                words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Makes a topic of three replicas.
    pub fn topic(&self, what: &str, partitions: u32) -> anyhow::Result<Topic<'_>> {
        let name = format!("bench.{what}.{}", std::process::id());
        self.call(&["topic", "create", &name, &partitions.to_string()])?;
        Ok(Topic {
            brokers: self,
            name,
        })
    }
}

/// A topic, deleted in the end.
pub struct Topic<'a> {
    brokers: &'a Brokers,
    /// Its name.
    pub name: String,
}

impl Drop for Topic<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.brokers.call(&["topic", "delete", &self.name]) {
            eprintln!("the topic {} stays: {error:#}", self.name);
        }
    }
}

/// How the nodes of a comparison differ from those of others.
pub struct Setup<'a> {
    /// Names its directories.
    pub name: &'a str,
    /// Another program than that of the arguments.
    pub program: Option<&'a Path>,
    /// What every sync takes longer.
    pub sync_delay: Duration,
    /// When the log in files confirms.
    pub confirm: Duration,
    /// For how many seconds of full load the slots are made beforehand.
    pub grow_s: f64,
}

/// The nodes of a comparison.
pub struct Rig<'a> {
    /// `disk` is the first.
    pub subjects: Vec<Running>,
    log: IntakePlan,
    _topic: Option<Topic<'a>>,
}

/// A node that runs.
pub struct Running {
    /// `disk`, `dual` or `dual on Kafka`.
    pub name: &'static str,
    node: Node,
    subject: Subject,
}

/// A round, and the middle of the confirms in it, microseconds.
pub struct Compared {
    /// The round.
    pub measured: Measured,
    /// `None` in disk mode.
    pub confirm_us: Option<f64>,
}

impl<'a> Rig<'a> {
    /// Starts them.
    pub fn start(
        args: &IntakeArgs,
        brokers: Option<&'a Brokers>,
        setup: &Setup<'_>,
    ) -> anyhow::Result<Rig<'a>> {
        let bench = &args.bench;
        let mut plan = args.node.plan(bench.server_core)?;
        if let Some(program) = setup.program {
            plan.program = program.to_owned();
        }
        plan.is_floating = true;
        let root = plan.dir.clone();
        let dir = args.log_dir.join(format!("ankusa-bench-{}", setup.name));
        let log = IntakePlan::Memory {
            dir: fresh_dir(&dir)?.join("log"),
        };
        log.confirm_after(setup.confirm)?;
        let topic = match brokers {
            Some(brokers) => Some(brokers.topic(setup.name, 1)?),
            None => None,
        };
        let mut kinds = vec![("disk", None), ("dual", Some(log.clone()))];
        if let Some(topic) = &topic {
            let kafka = IntakePlan::Kafka {
                brokers: BROKERS.to_owned(),
                topic: topic.name.clone(),
            };
            kinds.push(("dual on Kafka", Some(kafka)));
        }
        let mut subjects = Vec::new();
        for (name, intake) in kinds {
            plan.dir = root.join(name.replace(' ', "-"));
            plan.intake = None;
            plan.env.clear();
            if setup.grow_s > 0.0 {
                grow(&plan, bench.load_core, args.body, setup.grow_s)?;
            }
            plan.intake = intake;
            if !setup.sync_delay.is_zero() {
                let delay_ms = setup.sync_delay.as_millis().to_string();
                plan.env.push(("ANKUSA_SYNC_DELAY_MS".to_owned(), delay_ms));
            }
            subjects.push(Running::start(name, &plan, &args.node.data)?);
        }
        Ok(Rig {
            subjects,
            log,
            _topic: topic,
        })
    }

    /// One round of each, in turn. Rows and latencies go into the report under `part`.
    pub fn round(
        &self,
        part: &str,
        round: &Round,
        plan: &dyn Fn(&Subject) -> LoadPlan,
        report: &mut Report,
    ) -> anyhow::Result<Vec<Compared>> {
        let mut rounds = Vec::new();
        for running in &self.subjects {
            let before = running.confirms();
            let measured = measure(&running.subject, &plan(&running.subject))?;
            let confirm_us = running.confirms().middle_us_since(&before);
            let name = format!("{part} {}", running.name);
            report.row(row(&name, round, &measured, confirm_us));
            report.latencies(&name, &measured.load.acked);
            judge(&name, &measured, report)?;
            rounds.push(Compared {
                measured,
                confirm_us,
            });
        }
        Ok(rounds)
    }

    /// Ends them. A clean stop would write a last backup of all that the sink has not been given.
    pub fn end(self) {
        for running in self.subjects {
            running.node.kill();
        }
        if let IntakePlan::Memory { dir } = &self.log
            && let Some(dir) = dir.parent()
        {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

impl Running {
    fn start(name: &'static str, plan: &NodePlan, data: &Path) -> anyhow::Result<Running> {
        let node = plan.start(READY_PATIENCE)?;
        let mut subject = node_subject(&node, data);
        subject.name = name.to_owned();
        Ok(Running {
            name,
            node,
            subject,
        })
    }

    fn confirms(&self) -> ConfirmMark {
        match get(self.node.admin, "/metrics") {
            Ok((200, text)) => ConfirmMark::parse(&text),
            _ => ConfirmMark::default(),
        }
    }
}

fn row(name: &str, round: &Round, measured: &Measured, confirm_us: Option<f64>) -> Row {
    let mut row = measured.row(name, round);
    row.push(("confirm_us", confirm_us.map_or(number(f64::NAN), number)));
    row
}

/// A round in which something was refused proves nothing, and one whose generator had no time for
/// it little.
fn judge(name: &str, measured: &Measured, report: &mut Report) -> anyhow::Result<()> {
    let load = &measured.load;
    if load.not_acked() > 0 {
        let ends = load.outcomes.iter();
        let ends: Vec<String> = ends
            .map(|(outcome, n)| format!("{n} x {} {}", outcome.status, outcome.word))
            .collect();
        bail!("{name}: not everything was acked: {}", ends.join(", "));
    }
    if load.generator_busy > 0.95 {
        report.warn(format!(
            "{name}: the generator was over 95 % busy in some rounds: it is the limit there"
        ));
    }
    Ok(())
}
