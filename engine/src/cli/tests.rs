//! The command line: what is refused, with which code, and what the commands print.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use clap::CommandFactory;
use serde_json::{Value, json};

use super::admin_client::{CallError, call, for_people};
use super::args::Cli;
use super::*;
use crate::config::{AdminConfig, Config, Secret};

fn exit(args: &[&str]) -> Exit {
    run(std::iter::once("ankusa")
        .chain(args.iter().copied())
        .map(OsString::from))
}

#[test]
fn the_declared_commands_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_wrong_command_line_ends_with_64() {
    for args in [
        vec![],
        vec!["fly"],
        vec!["check-config", "--jsn"],
        vec!["check-config", "--json", "--json"],
        vec!["check-config", "-c", "a", "--config", "b"],
        vec!["check-config", "more"],
        vec!["wal"],
        vec!["wal", "repair"],
        vec!["wal", "repair", "--shard", "0", "--yes"],
        vec!["wal", "verify", "--shard", "x"],
        vec!["wal", "bench", "--seconds", "0"],
        vec!["hook", "show"],
        vec!["hook", "show", "../../x"],
        vec!["replay", "show", "a/b"],
        vec!["completions", "cobol"],
    ] {
        assert_eq!(exit(&args), Exit::Usage, "{args:?}");
    }
    assert_eq!(exit(&["--help"]), Exit::Ok);
    assert_eq!(exit(&["--version"]), Exit::Ok);
}

#[test]
fn a_wrong_configuration_ends_with_78() {
    for command in ["check-config", "print-config"] {
        assert_eq!(
            exit(&[command, "--config", "/does/not/exist"]),
            Exit::Config,
            "{command}"
        );
    }
    assert_eq!(
        exit(&[
            "hook",
            "show",
            "0190a1b2-0000-7000-8000-000000000000",
            "-c",
            "/does/not/exist"
        ]),
        Exit::Config
    );
}

#[test]
fn every_flag_and_command_has_a_text() {
    fn look(command: &clap::Command) {
        assert!(
            command.get_about().is_some() || command.get_name() == "help",
            "{}",
            command.get_name()
        );
        for argument in command.get_arguments() {
            assert!(
                argument.get_help().is_some(),
                "{} {}",
                command.get_name(),
                argument.get_id()
            );
        }
        command.get_subcommands().for_each(look);
    }
    look(&Cli::command());
}

fn file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("a.yml");
    std::fs::write(&path, text).unwrap();
    path
}

fn printed(run: impl FnOnce(&mut Vec<u8>) -> std::io::Result<Exit>) -> (Exit, String) {
    let mut out = Vec::new();
    let exit = run(&mut out).unwrap();
    (exit, String::from_utf8(out).unwrap())
}

const GOOD: &str = "http: { ip: 127.0.0.1 }\nsources: { a: { verify: { type: github, secret: CANARYCANARYCANARY }, sinks: [ { type: log } ] } }\n";

#[test]
fn check_config_prints_a_summary_or_every_problem() {
    let dir = tempfile::tempdir().unwrap();
    let env = Env::of(&[("ANKUSA_NODE_NAME", "n")]);
    let good = file(dir.path(), GOOD);
    let (exit, text) = printed(|out| config_commands::check(Some(&good), &env, false, out));
    assert_eq!(exit, Exit::Ok);
    let expected = format!(
        "configuration: {}\nnode: n, data in ./data\ningest: POST http://127.0.0.1:4000/webhooks/{{source}}\nadmin: http://127.0.0.1:4002\nsources: 1, with 1 sink\nok\n",
        good.display()
    );
    assert_eq!(text, expected);
    let bad = file(dir.path(), "http: { prot: 1 }\nwal: { type: none }\n");
    let (exit, text) = printed(|out| config_commands::check(Some(&bad), &env, false, out));
    assert_eq!(exit, Exit::Config);
    let f = bad.display();
    assert_eq!(
        text,
        format!(
            "{f}:1:9: http.prot: unknown key; did you mean port?\n{f}:2:14: wal.type: none is not in this version yet; disk and dual are\n2 problems in the configuration\n"
        )
    );
    let (_, text) = printed(|out| config_commands::check(Some(&bad), &env, true, out));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value["problems"][1],
        json!({ "key": "wal.type", "text": "none is not in this version yet; disk and dual are", "line": 2, "column": 14 })
    );
}

#[test]
fn check_config_prints_warnings_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let odd = file(dir.path(), "http: {}\n");
    let (exit, text) = printed(|out| config_commands::check(Some(&odd), &Env::of(&[]), false, out));
    assert_eq!(exit, Exit::Ok);
    assert!(
        text.starts_with(&format!(
            "warning: {}: sources: there is no source",
            odd.display()
        )),
        "{text}"
    );
    let (_, text) = printed(|out| config_commands::check(Some(&odd), &Env::of(&[]), true, out));
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap()["warnings"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn print_config_shows_no_secret_in_either_form() {
    let dir = tempfile::tempdir().unwrap();
    let good = file(dir.path(), GOOD);
    for json in [false, true] {
        let (exit, text) =
            printed(|out| config_commands::print(Some(&good), &Env::of(&[]), json, out));
        assert_eq!(exit, Exit::Ok);
        assert!(
            text.contains("[REDACTED]") && !text.contains("CANARY"),
            "{text}"
        );
    }
}

/// A node that answers one request, and hands back what it was asked.
fn node(answer: &'static str) -> (AdminConfig, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut byte = [0];
        while !seen.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            seen.push(byte[0]);
        }
        let text = String::from_utf8(seen).unwrap();
        let length = text
            .lines()
            .find_map(|l| l.strip_prefix("content-length: "))
            .map_or(0, |n| n.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        text + &String::from_utf8(body).unwrap()
    });
    let admin = AdminConfig {
        port,
        token: Some(Secret::from("tok")),
        ..Config::tryout().admin
    };
    (admin, asked)
}

#[test]
fn an_order_reaches_the_node_with_its_token() {
    let (admin, asked) = node("HTTP/1.1 201 Created\r\n\r\n{\"id\":\"r1\"}");
    assert_eq!(
        call(
            &admin,
            "POST",
            "/v1/replays",
            Some(&json!({ "kind": "dlq" }))
        )
        .unwrap(),
        json!({ "id": "r1" })
    );
    let asked = asked.join().unwrap();
    assert!(
        asked.starts_with("POST /v1/replays HTTP/1.0\r\n"),
        "{asked}"
    );
    assert!(
        asked.contains("\r\nauthorization: Bearer tok\r\n")
            && asked.ends_with("\r\n\r\n{\"kind\":\"dlq\"}"),
        "{asked}"
    );
}

#[test]
fn a_refusal_and_an_odd_answer_are_told_apart() {
    let ask = |answer| call(&node(answer).0, "GET", "/v1/hooks/x", None).unwrap_err();
    assert_eq!(
        ask("HTTP/1.1 404 Not Found\r\n\r\n{\"error\":\"not_found\"}").to_string(),
        "the node answered 404: not_found"
    );
    assert_eq!(
        ask("HTTP/1.1 500 Oops\r\n\r\n<html>").to_string(),
        "the node answered 500"
    );
    assert!(matches!(
        ask("HTTP/1.1 200 OK\r\n\r\n{\"cut"),
        CallError::Odd(..)
    ));
    assert!(matches!(ask("SSH-2.0"), CallError::Odd(..)));
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let nobody = AdminConfig {
        port,
        ..Config::tryout().admin
    };
    assert!(matches!(
        call(&nobody, "GET", "/", None).unwrap_err(),
        CallError::Unreachable(..)
    ));
}

#[test]
fn an_answer_for_people_has_no_control_characters() {
    let value = json!({ "id": "a", "deliveries": [ { "sink": "x\u{1b}[2J", "attempts": 2 } ], "none": [], "tags": ["b"] });
    assert_eq!(
        for_people(&value),
        "id: a\ndeliveries:\n  1.\n    sink: x\\u{1b}[2J\n    attempts: 2\nnone: []\ntags:\n  - b\n"
    );
}

#[test]
fn wal_tools_refuse_what_is_no_store_and_a_store_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let at = |more: &[&str]| {
        let data = dir.path().to_str().unwrap();
        exit(&[&["wal"], more, &["--data-dir", data]].concat())
    };
    assert_eq!(at(&["verify"]), Exit::Failure);
    assert!(
        std::fs::read_dir(dir.path()).unwrap().next().is_none(),
        "nothing was made"
    );
    let home = ankusa_wal::home::Home::open(dir.path(), 1, |bytes| bytes.fill(7)).unwrap();
    assert_eq!(at(&["verify"]), Exit::Failure, "a node has it");
    drop(home);
    assert_eq!(at(&["verify", "--shard", "0"]), Exit::Ok);
    assert_eq!(at(&["stat", "--json"]), Exit::Ok);
    assert_eq!(at(&["dump", "--bodies", "--json"]), Exit::Ok);
    assert_eq!(
        at(&["repair", "--shard", "0"]),
        Exit::Ok,
        "a sound shard has nothing to agree to"
    );
    assert_eq!(
        at(&["stat", "--shard", "1"]),
        Exit::Failure,
        "there is no such shard"
    );
}
