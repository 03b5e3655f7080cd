//! Drill `cores`: one key posted at once over many connections to every core yields one hook and
//! the same id in every answer; the store is reopened with fewer and with more cores, and every
//! key is still known, whichever core owns it now.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::client::post;
use crate::ledger::{Answer, Ledger, body};
use crate::node::{Node, NodePlan, log_tail};
use crate::oracle::{Verdict, judge};
use crate::sink::Sink;

/// Connections that post one key at once: enough that every core has some.
const CONNECTIONS: usize = 32;

/// The cores of each boot of the same store.
const BOOTS: &[usize] = &[2, 1, 4, 2];

/// The drill's settings.
#[derive(Clone, Debug)]
pub struct CoresPlan {
    /// The `ankusa` binary.
    pub binary: PathBuf,
    /// Where to work.
    pub dir: PathBuf,
    /// Keys posted at each boot.
    pub keys: u64,
}

/// Runs the drill.
pub fn run(plan: &CoresPlan) -> Result<Verdict> {
    let sink = Sink::start()?;
    let ledger = Ledger::default();
    let mut number = 1;
    let mut known: Vec<(u64, String)> = Vec::new();
    for (boot, cores) in BOOTS.iter().enumerate() {
        let node_plan = NodePlan {
            binary: plan.binary.clone(),
            dir: plan.dir.clone(),
            sink: sink.address(),
            cores: *cores,
            segment_bytes: 2 << 20,
            keyed_paused: false,
            more: String::new(),
        };
        let mut node = node_plan.start(&[])?;
        if !node.wait_ready()? {
            bail!(
                "{cores} cores: not up:\n{}",
                log_tail(&node_plan.log_file())
            );
        }
        for (number, id) in &known {
            let answer = one(&node, &ledger, *number)?;
            if answer.id.as_deref() != Some(id.as_str()) || !answer.duplicate {
                bail!(
                    "boot {boot} with {cores} cores: request {number} had id {id}, now {answer:?}"
                );
            }
        }
        for _ in 0..plan.keys {
            let id = at_once(&node, &ledger, number)
                .with_context(|| format!("boot {boot} with {cores} cores, request {number}"))?;
            known.push((number, id));
            number += 1;
        }
        if boot % 2 == 0 {
            node.kill()?;
        } else if !node.stop()? {
            bail!(
                "{cores} cores: not a clean stop:\n{}",
                log_tail(&node_plan.log_file())
            );
        }
    }
    let last = NodePlan {
        binary: plan.binary.clone(),
        dir: plan.dir.clone(),
        sink: sink.address(),
        cores: 2,
        segment_bytes: 2 << 20,
        keyed_paused: false,
        more: String::new(),
    };
    let mut node = last.start(&[])?;
    if !node.wait_ready()? {
        bail!("not up:\n{}", log_tail(&last.log_file()));
    }
    let end = Instant::now() + Duration::from_secs(20);
    let allowed = BOOTS.len() * known.len();
    loop {
        let verdict = judge(&ledger.rows(), &sink.delivered(), allowed);
        if verdict.missing == 0 || Instant::now() > end {
            node.stop()?;
            sink.stop();
            return Ok(verdict);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Posts one key once.
fn one(node: &Node, ledger: &Ledger, number: u64) -> Result<Answer> {
    let (body, key) = (body(number, 300), format!("key-{number}"));
    ledger.sending(number, &body, Some(&key));
    let answer = post(&mut None, node.address(), Some(&key), &body)?;
    ledger.ended(number, Some(answer.clone()));
    Ok(answer)
}

/// Posts one key over many connections at once; every answer must be a 201 with the same id, and
/// exactly one of them not a duplicate.
fn at_once(node: &Node, ledger: &Ledger, number: u64) -> Result<String> {
    let barrier = Arc::new(Barrier::new(CONNECTIONS));
    let address = node.address();
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (ledger, barrier) = (ledger.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || -> Result<Answer> {
                let (body, key) = (body(number, 300), format!("key-{number}"));
                ledger.sending(number, &body, Some(&key));
                barrier.wait();
                let answer = post(&mut None, address, Some(&key), &body)?;
                ledger.ended(number, Some(answer.clone()));
                Ok(answer)
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    let mut originals = 0;
    for thread in threads {
        let answer = match thread.join() {
            Ok(answer) => answer?,
            Err(_) => bail!("a poster panicked"),
        };
        match answer.id {
            Some(id) if answer.status == 201 => ids.insert(id),
            _ => bail!("not a 201: {answer:?}"),
        };
        originals += usize::from(!answer.duplicate);
    }
    if ids.len() != 1 || originals != 1 {
        bail!(
            "{} ids {ids:?}, {originals} of them not called a duplicate",
            ids.len()
        );
    }
    ids.pop_first().context("no id")
}
