//! `${VAR}`, `${VAR:-default}` and `${file:/abs}` in scalars; `$${` is a plain `${`.
//!
//! Owns the copy of the environment that a load works with. Reads files of at most 64 KiB and
//! drops the line ends at their end. Nothing that was expanded is expanded again. Runs at boot, at
//! a reload and offline (it reads files).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;

/// The largest file of a `${file:…}`.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The environment variables of a load.
#[derive(Clone, Default)]
pub struct Env {
    vars: BTreeMap<String, OsString>,
}

impl Env {
    /// Those of this process.
    pub fn process() -> Env {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        Env { vars }
    }

    /// Exactly these.
    pub fn of(vars: &[(&str, &str)]) -> Env {
        Env {
            vars: vars
                .iter()
                .map(|(name, value)| (name.to_string(), value.into()))
                .collect(),
        }
    }

    /// The value, where it is set; an error where it is not UTF-8.
    pub(super) fn get(&self, name: &str) -> Option<Result<&str, String>> {
        let value = self.vars.get(name)?;
        Some(
            value
                .to_str()
                .ok_or_else(|| format!("the environment variable {name} is not UTF-8")),
        )
    }

    /// The names, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.vars.keys().map(String::as_str)
    }
}

/// A scalar after expansion.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// The value.
    pub text: String,
    /// The text of the file, where it held a `${…}`.
    pub raw: Option<String>,
    /// Which defaults of `${NAME:-default}` it took.
    pub defaults: Defaults,
}

/// The defaults that an expansion took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    /// An empty one: the file says that there may be nothing.
    pub empty: bool,
    /// One with a text: whoever reads the file knows it.
    pub written: bool,
}

impl Given {
    /// A value that was not expanded.
    pub fn plain(text: &str) -> Given {
        Given {
            text: text.to_string(),
            raw: None,
            defaults: Defaults::default(),
        }
    }

    /// The value for an error: short, on one line, and never what a `${…}` held.
    pub fn show(&self) -> String {
        match &self.raw {
            Some(raw) => format!("the value of {}", quoted(raw)),
            None if self.text.parse::<u64>().is_ok() => self.text.clone(),
            None => quoted(&self.text),
        }
    }
}

fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Expands a scalar.
pub(super) fn expand(text: &str, env: &Env) -> Result<Given, String> {
    if !text.contains("${") {
        return Ok(Given::plain(text));
    }
    let mut out = String::new();
    let mut rest = text;
    let mut expanded = false;
    let mut defaults = Defaults::default();
    while let Some(i) = rest.find("${") {
        if rest[..i].ends_with('$') {
            out.push_str(&rest[..i - 1]);
            out.push_str("${");
            rest = &rest[i + 2..];
            continue;
        }
        out.push_str(&rest[..i]);
        let Some(end) = rest[i..].find('}') else {
            return Err("a ${ without its }; write $${ for a plain one".into());
        };
        out.push_str(&value(&rest[i + 2..i + end], env, &mut defaults)?);
        expanded = true;
        rest = &rest[i + end + 1..];
    }
    out.push_str(rest);
    Ok(Given {
        text: out,
        raw: expanded.then(|| text.to_string()),
        defaults,
    })
}

fn value(inner: &str, env: &Env, defaults: &mut Defaults) -> Result<String, String> {
    if let Some(path) = inner.strip_prefix("file:") {
        return file(path);
    }
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !valid {
        return Err(format!(
            "{} is none of ${{VAR}}, ${{VAR:-default}}, ${{file:/absolute/path}}",
            quoted(&format!("${{{inner}}}"))
        ));
    }
    match (env.get(name).transpose()?, default) {
        (Some(""), Some(default)) | (None, Some(default)) => {
            defaults.empty |= default.is_empty();
            defaults.written |= !default.is_empty();
            Ok(default.to_string())
        }
        (Some(value), _) => Ok(value.to_string()),
        (None, None) => Err(format!("the environment variable {name} is not set")),
    }
}

fn file(path: &str) -> Result<String, String> {
    if !Path::new(path).is_absolute() {
        return Err(format!("the path of ${{file:{path}}} must be absolute"));
    }
    let fault = |what: String| format!("cannot read {path}: {what}");
    let opened = std::fs::File::open(path).map_err(|e| fault(e.to_string()))?;
    let mut bytes = Vec::new();
    opened
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| fault(e.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault("it has more than 65536 bytes".into()));
    }
    let text = String::from_utf8(bytes).map_err(|_| fault("it is not UTF-8".into()))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_string())
}
