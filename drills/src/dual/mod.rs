//! Live drills of the dual commit: the node with an intake log beside its disk.
//!
//! [`kill`] is the kill drill over the log in files, where the host may be lost as well.
//! [`broker`] is the node on three real brokers. [`records`] reads that log by its documented format, for the oracle. Plain threads, blocking.

pub mod broker;
pub mod kill;
pub mod points;
mod prober;
pub mod records;
mod topic;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::client::post;
use crate::ledger::{Ledger, body};
use crate::node::{Node, NodePlan, log_tail};
use crate::sink::Sink;

/// How long an outcome may be waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What makes a node of a drill a dual one.
pub const DUAL: (&str, &str) = ("ANKUSA_WAL_TYPE", "dual");

/// Runs `ankusa` with a node's configuration, to its end.
pub fn command(node: &NodePlan, words: &[&str]) -> Result<String> {
    let output = Command::new(&node.binary)
        .args(words)
        .arg("--config")
        .arg(node.dir.join("ankusa.yml"))
        .current_dir(&node.dir)
        .env(DUAL.0, DUAL.1)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        bail!("{words:?}: {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What the administration of a running node answers.
pub fn admin(node: &NodePlan, path: &str) -> Result<Value> {
    let config = fs::read_to_string(node.dir.join("ankusa.yml"))?;
    let line = config.lines().find_map(|line| line.strip_prefix("admin: "));
    let port = line.and_then(|line| line.rsplit("port: ").next());
    let port = port.and_then(|port| port.trim_end_matches([' ', '}']).parse().ok());
    let to = SocketAddr::from(([127, 0, 0, 1], port.context("no admin port")?));
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").context("no answer")?;
    serde_json::from_str(body).with_context(|| text.clone())
}

/// Removes a folder that may not be there.
pub fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits for a node that must come up.
pub fn until_ready(node: &mut Node, plan: &NodePlan) -> Result<()> {
    if node
        .wait_ready()
        .with_context(|| log_tail(&plan.log_file()))?
    {
        return Ok(());
    }
    bail!("the node did not come up:\n{}", log_tail(&plan.log_file()))
}

/// Sends every keyed hook that was not acked again, as its provider would, until it is.
pub fn send_again(ledger: &Ledger, address: SocketAddr, body_bytes: usize) -> Result<usize> {
    let rows = ledger.rows();
    let unacked = rows.iter().filter(|(_, row)| row.acked().is_none());
    let unacked: Vec<_> = unacked
        .filter_map(|(number, row)| Some((*number, row.key.clone()?)))
        .collect();
    let mut connection = None;
    for (number, key) in &unacked {
        let (body, end) = (body(*number, body_bytes), Instant::now() + PATIENCE);
        loop {
            ledger.sending(*number, &body, Some(key));
            let answer = post(&mut connection, address, Some(key), &body);
            if answer.is_err() {
                connection = None;
            }
            let status = answer.as_ref().map(|a| a.status).unwrap_or(0);
            ledger.ended(*number, answer.ok());
            if status == 201 {
                break;
            }
            if Instant::now() > end {
                bail!("request {number} is still answered {status} after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(unacked.len())
}

/// The ids that the client was told.
pub fn acked_ids(ledger: &Ledger) -> BTreeSet<String> {
    let rows = ledger.rows();
    rows.values()
        .filter_map(|row| row.acked().map(str::to_owned))
        .collect()
}

/// The ids that a sink was given.
pub fn delivered_ids(sink: &Sink) -> BTreeSet<String> {
    sink.delivered().into_iter().map(|d| d.id).collect()
}
