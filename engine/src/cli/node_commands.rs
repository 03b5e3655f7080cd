//! `hook show` and `replay`: questions and orders to the running node, over its admin API.
//!
//! Runs offline, beside a running node.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::admin_client::{CallError, call, for_people};
use super::args::{HookCommand, ReplayCommand};
use crate::config::Config;
use crate::exit::Exit;

/// Runs `hook …`.
pub(super) fn hook(
    config: &Config,
    command: &HookCommand,
    out: &mut impl Write,
) -> io::Result<Exit> {
    match command {
        HookCommand::Show { id, body, json } => {
            let path = format!("/v1/hooks/{id}{}", if *body { "?body=true" } else { "" });
            finish(call(&config.admin, "GET", &path, None), *json, out)
        }
    }
}

/// Runs `replay …`.
pub(super) fn replay(
    config: &Config,
    command: &ReplayCommand,
    out: &mut impl Write,
) -> io::Result<Exit> {
    let admin = &config.admin;
    let patch = |id: &str, state: &str| {
        call(
            admin,
            "PATCH",
            &format!("/v1/replays/{id}"),
            Some(&json!({ "state": state })),
        )
    };
    match command {
        ReplayCommand::Start {
            tenant,
            source,
            sink,
            json,
        } => {
            let mut order = Map::new();
            order.insert("kind".into(), json!("dlq"));
            for (key, value) in [("tenant", tenant), ("source", source), ("sink", sink)] {
                if let Some(value) = value {
                    order.insert(key.into(), json!(value));
                }
            }
            finish(
                call(admin, "POST", "/v1/replays", Some(&Value::Object(order))),
                *json,
                out,
            )
        }
        ReplayCommand::List { json } => finish(call(admin, "GET", "/v1/replays", None), *json, out),
        ReplayCommand::Show { id, json } => finish(
            call(admin, "GET", &format!("/v1/replays/{id}"), None),
            *json,
            out,
        ),
        ReplayCommand::Pause { id, json } => finish(patch(id, "paused"), *json, out),
        ReplayCommand::Resume { id, json } => finish(patch(id, "running"), *json, out),
        ReplayCommand::Cancel { id, json } => finish(patch(id, "cancelled"), *json, out),
    }
}

fn finish(answer: Result<Value, CallError>, json: bool, out: &mut impl Write) -> io::Result<Exit> {
    match answer {
        Ok(value) if json => writeln!(out, "{value:#}").map(|()| Exit::Ok),
        Ok(value) => write!(out, "{}", for_people(&value)).map(|()| Exit::Ok),
        Err(error) => {
            eprintln!("ankusa: {error}");
            Ok(Exit::Failure)
        }
    }
}
