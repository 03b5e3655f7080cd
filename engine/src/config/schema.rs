//! The JSON Schema of a configuration file, and the reference page: both written from the table.
//!
//! The schema helps an editor; the validator stays the judge (rules between keys are not in it).
//! Every number may also be a text with a unit or a `${…}`. Pure; runs offline.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::key::{Fallback, Key, Kind, Unit};
use super::not_built::NOT_BUILT;
use super::table::{children, join, row, rows, spoken};

/// The JSON Schema, draft 2020-12.
pub fn json_schema() -> Value {
    let mut schema = object("");
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("ankusa.yml");
    schema
}

fn object(pattern: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    let mut schema = json!({ "type": "object" });
    for name in children(pattern) {
        let child = join(pattern, name);
        if name == "*" {
            schema["propertyNames"] = json!({ "pattern": super::text::NAME.pattern });
            schema["additionalProperties"] = object(&child);
            return schema;
        }
        properties.insert(name.to_string(), property(&child));
        // What hangs on a type is required only beside it, which the validator knows.
        if row(&child)
            .is_some_and(|k| matches!(k.fallback, Fallback::Required) && k.types.is_empty())
        {
            required.push(json!(name));
        }
    }
    schema["properties"] = Value::Object(properties);
    schema["additionalProperties"] = json!(false);
    if !required.is_empty() {
        schema["required"] = Value::Array(required);
    }
    schema
}

fn property(pattern: &str) -> Value {
    let Some(key) = row(pattern) else {
        return object(pattern);
    };
    let reference = json!({ "type": "string", "pattern": "\\$\\{" });
    let mut schema = match key.kind {
        Kind::Int(min, max, unit) => {
            let number = json!({ "type": "integer", "minimum": min, "maximum": max });
            let text = match unit {
                Unit::Of(_) => "^[0-9_]+$|\\$\\{".to_string(),
                _ => "^[0-9_]+ *[A-Za-z%]*$|\\$\\{".to_string(),
            };
            json!({ "anyOf": [number, { "type": "string", "pattern": text }] })
        }
        Kind::Bool => json!({ "anyOf": [{ "type": "boolean" }, reference] }),
        Kind::Word(words) => json!({ "anyOf": [{ "enum": words }, reference] }),
        Kind::Text(rule) if rule.pattern.is_empty() => {
            json!({ "type": ["string", "number", "boolean"] })
        }
        Kind::Text(rule) => {
            json!({ "anyOf": [{ "type": ["string", "number"], "pattern": rule.pattern }, reference] })
        }
        Kind::Secret => json!({ "type": "string", "minLength": 1 }),
        Kind::Secrets => json!({ "anyOf": [
            { "type": "string", "minLength": 1 },
            { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1, "maxItems": 8 },
        ] }),
        Kind::Texts(_) => {
            json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
        }
        Kind::Pairs(_) => {
            json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
        }
        Kind::Cores => json!({ "anyOf": [
            { "const": "all" }, { "type": "integer", "minimum": 1, "maximum": 1024 },
            { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 1023 }, "minItems": 1, "uniqueItems": true }, reference,
        ] }),
        Kind::Map(None) => object(pattern),
        Kind::Map(Some(name)) => {
            json!({ "anyOf": [property(&join(pattern, name)), object(pattern)] })
        }
        Kind::List(min, max) => {
            json!({ "type": "array", "minItems": min, "maxItems": max, "items": object(&join(pattern, "#")) })
        }
        Kind::Opaque => json!({}),
    };
    schema["description"] = json!(key.doc);
    if let (Fallback::Value(text), false) = (key.fallback, key.hidden()) {
        schema["default"] = match key.read(&super::expand::Given::plain(text)) {
            Ok(super::key::Data::Int(n)) => json!(n),
            Ok(super::key::Data::Bool(on)) => json!(on),
            _ => json!(text),
        };
    }
    schema
}

/// The reference page, `docs/configuration.md`.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    let mut area = "";
    for key in rows() {
        let here = section(key.path);
        if here != area {
            area = here;
            let _ = write!(
                out,
                "\n## `{}`\n\n| Key | Default | Allowed | What for |\n|---|---|---|---|\n",
                spoken(area)
            );
        }
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            spoken(key.path),
            fallback(key),
            allowed(key),
            about(key)
        );
    }
    out.push_str(
        "\n## Not in this version yet\n\nSetting one of these is an error that says so.\n\n",
    );
    for row in NOT_BUILT {
        let word = row.word.map_or(String::new(), |word| format!(": {word}"));
        let but = row
            .but
            .map_or(String::new(), |but| format!(" (but `{but}`)"));
        let _ = writeln!(out, "- `{}{word}`{but}: {}", spoken(row.path), row.says);
    }
    out
}

const HEAD: &str = "\
# Configuration

Written by `ankusa config-reference` from the same table that checks a file: do not edit it here.

One YAML file: `--config FILE`, else the variable `ANKUSA_CONFIG`, else `/etc/ankusa/ankusa.yml`. Where there is none, the try-out holds: loopback only, a source `demo` without verification that delivers into `./delivered.ndjson`, data in `./data`. A whole example is in [`examples/ankusa.yml`](examples/ankusa.yml).

- `ankusa check-config` prints every problem at once, each with its line, key path and what is allowed, and ends with code 78. `ankusa print-config` prints every key in effect and where it came from; secrets print as `[REDACTED]`. `ankusa config-schema` prints a JSON Schema for editors.
- In any value: `${VAR}`, `${VAR:-default}` (also where `VAR` is empty), `${file:/absolute/path}` (line ends at its end dropped). `$${` is a plain `${`. What was expanded is not expanded again. In a list of secrets an entry such as `${OLD_SECRET:-}` that comes to nothing is left out; never write a secret behind the `:-`, because who has read the file could sign with it (a warning says so).
- Every key without `<name>` or `[]` can be set by a variable, which wins over the file: `ANKUSA_` and the path in capitals with `_` for `.`, so `http.limits.head_bytes` is `ANKUSA_HTTP_LIMITS_HEAD_BYTES`. Lists take commas.
- Numbers are whole. Bytes may carry `B`, `KiB`, `MiB`, `GiB`, `TiB`, `kB`, `MB`, `GB`, `TB`; times `ms`, `s`, `m`, `h`, `d`.
- A file has at most 1 MiB, in UTF-8, one document, no key twice. Relative paths count from the working directory.
- SIGHUP reads the file again. Keys marked *live* change at once; a change of another key is reported and waits for a restart.
";

/// The heading a key stands under.
fn section(path: &'static str) -> &'static str {
    for long in ["sources.*.verify", "sources.*.sinks", "sources.*"] {
        if path
            .strip_prefix(long)
            .is_some_and(|rest| rest.starts_with('.'))
        {
            return long;
        }
    }
    path.split('.').next().unwrap_or(path)
}

fn fallback(key: &Key) -> String {
    match key.fallback {
        Fallback::Required => "required".into(),
        Fallback::Absent => "–".into(),
        Fallback::Computed(what) => what.replace('<', "\\<"),
        Fallback::Value("") => "empty".into(),
        Fallback::Value(text) => match (key.kind, key.read(&super::expand::Given::plain(text))) {
            (Kind::Int(_, _, unit), Ok(super::key::Data::Int(n))) => match unit.short(n) {
                Some(short) => format!("`{n}` ({short})"),
                None => format!("`{n}`"),
            },
            _ => format!("`{text}`"),
        },
    }
}

fn allowed(key: &Key) -> String {
    match key.kind {
        Kind::Word(words) => words
            .iter()
            .map(|w| format!("`{w}`"))
            .collect::<Vec<_>>()
            .join(", "),
        Kind::Map(Some(name)) => format!("a map, or the value of its `{name}`"),
        Kind::List(min, max) => format!("a list of {min} to {max}"),
        Kind::Texts(rule) => format!("a list; each {}", rule.want),
        Kind::Pairs(_) => "a map of header names and texts".into(),
        Kind::Opaque => "–".into(),
        _ => key.range(),
    }
}

fn about(key: &Key) -> String {
    let mut text = key.doc.to_string();
    if !key.types.is_empty() {
        let types: Vec<_> = key.types.iter().map(|t| format!("`{t}`")).collect();
        let _ = write!(text, " For {}.", types.join(", "));
    }
    if key.live {
        text.push_str(" *live*");
    }
    text.replace('|', "\\|")
}
