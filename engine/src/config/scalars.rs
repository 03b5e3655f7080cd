//! The value of a key from the scalars that stand for it, one or a list.
//!
//! An error never holds a secret. Pure; runs at boot, at a reload and offline.

use super::areas::Cores;
use super::expand::Given;
use super::key::{Data, Key, Kind};
use super::problem::Fault;
use super::secret::Secret;

/// Drops the entries of a list of secrets that say that they may be nothing, and are; unless there
/// is nothing else.
pub(super) fn leave_out_optional(key: &Key, given: &mut Vec<Given>) {
    let nothing = |g: &Given| g.defaults.empty && g.text.trim().is_empty();
    if matches!(key.kind, Kind::Secrets) && !given.iter().all(nothing) {
        given.retain(|g| !nothing(g));
    }
}

/// The value of a key from its scalars.
pub(super) fn read(key: &'static Key, given: &[Given], listed: bool) -> Result<Data, Fault> {
    match key.kind {
        Kind::Secret | Kind::Secrets => {
            if given.is_empty() || given.iter().any(|g| g.text.trim().is_empty()) {
                return Err(Fault::Secret("is empty"));
            }
            if given.len() > 8 {
                return Err(Fault::Length {
                    got: given.len(),
                    allowed: "1 to 8".into(),
                });
            }
            Ok(Data::Secrets(
                given
                    .iter()
                    .map(|g| Secret::from(g.text.as_str()))
                    .collect(),
            ))
        }
        Kind::Texts(_) => {
            let mut texts: Vec<String> = Vec::new();
            for one in given {
                key.read(one)?;
                texts.push(one.text.clone());
            }
            Ok(Data::Texts(texts))
        }
        Kind::Cores if listed || given.len() > 1 => {
            if given.is_empty() {
                return Err(Fault::Length {
                    got: 0,
                    allowed: "1 or more".into(),
                });
            }
            let mut list: Vec<u16> = Vec::new();
            for one in given {
                match one.text.parse::<u16>() {
                    Ok(n) if n < 1024 && !list.contains(&n) => list.push(n),
                    Ok(n) if n < 1024 => return Err(Fault::Rule(format!("names CPU {n} twice"))),
                    Ok(_) => {
                        return Err(Fault::OutOfRange {
                            got: one.show(),
                            allowed: "CPUs 0 to 1023".into(),
                        });
                    }
                    Err(_) => {
                        return Err(Fault::NotValid {
                            got: one.show(),
                            want: "the number of a CPU".into(),
                        });
                    }
                }
            }
            Ok(Data::Cores(Cores::List(list)))
        }
        _ => key.read(given.first().unwrap_or(&Given::plain(""))),
    }
}
