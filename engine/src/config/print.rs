//! A configuration in effect, and what was found in a file, as text and as JSON.
//!
//! Works on entries, in which hidden values are hidden already. Pure; runs offline.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::problem::{ConfigError, Place};
use super::{Config, Loaded, Origin, Warning};

impl Config {
    /// Where a value came from, in words.
    fn source(&self, place: &Place) -> String {
        match (&self.origin, place) {
            (Origin::Tryout, Place::File(_)) => "try-out".to_string(),
            (_, Place::Env(name)) => format!("variable {name}"),
            (_, place) => place.to_string(),
        }
    }

    /// Every key in effect as YAML, each with where it came from. A key without a value stands
    /// there as a comment.
    pub fn to_yaml(&self) -> String {
        let mut out = match &self.origin {
            Origin::Tryout => "# try-out: no configuration file\n".to_string(),
            Origin::File(file) => format!("# {}\n", file.display()),
        };
        let mut last: Vec<String> = Vec::new();
        for entry in &self.effective {
            let parts = parts(&entry.path);
            let same = parts
                .iter()
                .zip(&last)
                .take_while(|(a, b)| a == b)
                .count()
                .min(parts.len() - 1);
            for depth in same..parts.len() - 1 {
                if !parts[depth].starts_with('[') {
                    let _ = writeln!(out, "{}{}:", indent(&parts, depth), parts[depth]);
                }
            }
            let name = &parts[parts.len() - 1];
            let from = self.source(&entry.place);
            let lead = indent(&parts, parts.len() - 1);
            // The first key of an item carries its dash.
            let opens = same < parts.len() - 1 && parts[parts.len() - 2].starts_with('[');
            let dash = if opens {
                format!("{}- ", &lead[2..])
            } else {
                lead.clone()
            };
            let _ = match (&entry.value, entry.note) {
                (Value::Null, Some(note)) => writeln!(out, "{lead}# {name}: # {from}: {note}"),
                (Value::Null, None) => writeln!(out, "{lead}# {name}: # not set"),
                (value, _) => writeln!(out, "{dash}{name}: {value} # {from}"),
            };
            last = parts;
        }
        out
    }

    /// Every key in effect as JSON: by path, its value and where it came from.
    pub fn to_json(&self) -> Value {
        let keys: Map<String, Value> = self
            .effective
            .iter()
            .map(|e| {
                let mut entry = json!({ "value": e.value, "from": self.source(&e.place) });
                if let Some(note) = e.note {
                    entry["note"] = json!(note);
                }
                (e.path.clone(), entry)
            })
            .collect();
        let file = match &self.origin {
            Origin::Tryout => Value::Null,
            Origin::File(file) => json!(file.display().to_string()),
        };
        json!({ "file": file, "keys": keys })
    }
}

/// `sources.a.sinks[0].url` in parts: `sources`, `a`, `sinks`, `[0]`, `url`.
fn parts(path: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for part in path.split('.') {
        match part.split_once('[') {
            Some((name, i)) => parts.extend([name.to_string(), format!("[{i}")]),
            None => parts.push(part.to_string()),
        }
    }
    parts
}

fn indent(parts: &[String], depth: usize) -> String {
    "  ".repeat(depth.min(parts.len()))
}

impl Loaded {
    /// What `check-config` says of a configuration that holds.
    pub fn summary(&self) -> Vec<String> {
        let c = &self.config;
        let sinks: usize = c.sources.iter().map(|s| s.sinks.len()).sum();
        let source = match c.http.routing {
            super::Routing::Path => "{source}",
            super::Routing::TenantPath => "{tenant}/{source}",
        };
        let from = match &c.origin {
            Origin::Tryout => "no file: the try-out".to_string(),
            Origin::File(file) => file.display().to_string(),
        };
        let http = std::net::SocketAddr::new(c.http.ip, c.http.port);
        let admin = std::net::SocketAddr::new(c.admin.ip, c.admin.port);
        vec![
            format!("configuration: {from}"),
            format!(
                "node: {}, data in {}",
                c.node.name,
                c.node.data_dir.display()
            ),
            format!("ingest: POST http://{http}{}/{source}", c.http.prefix),
            format!(
                "admin: http://{admin}{}",
                if c.admin.token.is_some() {
                    ", with a token"
                } else {
                    ""
                }
            ),
            format!(
                "sources: {}, with {sinks} sink{}",
                c.sources.len(),
                if sinks == 1 { "" } else { "s" }
            ),
        ]
    }

    /// The same as JSON, with the warnings.
    pub fn summary_json(&self) -> Value {
        let warnings: Vec<Value> = self.warnings.iter().map(warning_json).collect();
        json!({ "ok": true, "summary": self.summary(), "warnings": warnings })
    }
}

fn warning_json(warning: &Warning) -> Value {
    placed(&warning.path, &warning.place, &warning.text)
}

fn placed(path: &str, place: &Place, text: &str) -> Value {
    let mut out = json!({ "key": path, "text": text });
    match place {
        Place::File(at) if at.line > 0 => {
            out["line"] = json!(at.line);
            out["column"] = json!(at.column);
        }
        Place::Env(name) => out["variable"] = json!(name),
        _ => {}
    }
    out
}

impl ConfigError {
    /// Every problem as JSON.
    pub fn to_json(&self) -> Value {
        let problems: Vec<Value> = self
            .problems
            .iter()
            .map(|p| placed(&p.path, &p.place, &p.fault.to_string()))
            .collect();
        let file = self.file.as_ref().map(|f| f.display().to_string());
        json!({ "ok": false, "file": file, "problems": problems })
    }
}
