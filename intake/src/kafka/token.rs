//! The token of SASL OAUTHBEARER: where it comes from, when it ends, and how a client is given it.
//!
//! Invariants: a token is read when a client wants one, never kept; its text is in no error and no
//! log. Reads a file: side threads and boot, never a core.
#![expect(unsafe_code, reason = "a token is set through the library's raw calls")]

use std::ffi::{CStr, CString, c_char};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::bindings as sys;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::consumer::ConsumerContext;

use super::base64;
use super::settings::{KafkaSettings, Sasl, SaslMechanism};

/// How long a token that does not say is taken to be good.
const UNSAID: Duration = Duration::from_secs(300);
/// The principal's name where none is configured.
const PRINCIPAL: &str = "ankusa";

struct Token {
    text: String,
    principal: String,
    ends_ms: i64,
}

impl Token {
    fn read(sasl: &Sasl) -> Result<Token, String> {
        let text = match &sasl.token_file {
            Some(file) => std::fs::read_to_string(file)
                .map_err(|error| format!("the token file {}: {error}", file.display()))?,
            None => sasl.password.clone(),
        };
        let text = text.trim().to_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let unsaid = now.unwrap_or_default() + UNSAID;
        Ok(Token {
            ends_ms: ends_s(&text).map_or(unsaid.as_millis() as i64, |s| s.saturating_mul(1_000)),
            principal: match sasl.username.as_str() {
                "" => PRINCIPAL.to_owned(),
                name => name.to_owned(),
            },
            text,
        })
    }
}

/// The `exp` of a JSON web token.
fn ends_s(token: &str) -> Option<i64> {
    let claims = base64::decode(token.split('.').nth(1)?)?;
    let claims = String::from_utf8(claims).ok()?;
    let after = claims.split("\"exp\"").nth(1)?;
    let number = after.trim_start().strip_prefix(':')?.trim_start();
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn bearer(settings: &KafkaSettings) -> Option<&Sasl> {
    let sasl = settings.sasl.as_ref();
    sasl.filter(|sasl| sasl.mechanism == SaslMechanism::Oauthbearer)
}

/// Gives a client its token; nothing where the mechanism has none. Why, when it did not work: the
/// client then also says so as an error of its own, and asks again.
///
/// # Safety
/// `rk` is a client that lives.
pub(super) unsafe fn give(
    rk: *mut sys::rd_kafka_t,
    settings: &KafkaSettings,
) -> Result<(), String> {
    let Some(sasl) = bearer(settings) else {
        return Ok(());
    };
    let refused = match Token::read(sasl) {
        // SAFETY: passed on.
        Ok(token) => unsafe { set(rk, &token) },
        Err(why) => Err(why),
    };
    if let Err(why) = &refused
        && let Ok(text) = CString::new(why.as_str())
    {
        // SAFETY: passed on; the text is copied.
        unsafe { sys::rd_kafka_oauthbearer_set_token_failure(rk, text.as_ptr()) };
    }
    refused
}

/// # Safety
/// `rk` is a client that lives.
unsafe fn set(rk: *mut sys::rd_kafka_t, token: &Token) -> Result<(), String> {
    let c = |text: &str| CString::new(text).map_err(|_| "the token holds a zero byte".to_owned());
    let (text, principal) = (c(&token.text)?, c(&token.principal)?);
    let mut error = [0 as c_char; 512];
    // SAFETY: every pointer outlives the call, which copies what it keeps; the library ends the
    // text of an error with a zero.
    unsafe {
        let code = sys::rd_kafka_oauthbearer_set_token(
            rk,
            text.as_ptr(),
            token.ends_ms,
            principal.as_ptr(),
            std::ptr::null_mut(),
            0,
            error.as_mut_ptr(),
            error.len(),
        );
        match code as i32 {
            0 => Ok(()),
            _ => Err(CStr::from_ptr(error.as_ptr())
                .to_string_lossy()
                .into_owned()),
        }
    }
}

/// A consumer's side of it: the client library asks this when it wants a token.
pub(super) struct Bearer(pub(super) std::sync::Arc<KafkaSettings>);

impl ClientContext for Bearer {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let sasl = bearer(&self.0).ok_or("no token is configured")?;
        let token = Token::read(sasl)?;
        Ok(OAuthToken {
            token: token.text,
            principal_name: token.principal,
            lifetime_ms: token.ends_ms,
        })
    }
}

impl ConsumerContext for Bearer {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `{"sub":"ankusa","exp": 2000000000}` between two other parts.
    const JWT: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbmt1c2EiLCJleHAiOiAyMDAwMDAwMDAwfQ.";

    #[test]
    fn end_of_a_token_is_what_it_says_and_else_some_minutes_away() {
        let mut sasl = Sasl {
            mechanism: SaslMechanism::Oauthbearer,
            username: String::new(),
            password: format!("{JWT}\n"),
            token_file: None,
        };
        let token = Token::read(&sasl).unwrap();
        assert_eq!(
            (token.ends_ms, token.text.as_str()),
            (2_000_000_000_000, JWT)
        );
        assert_eq!(token.principal, "ankusa");
        sasl.password = "opaque".to_owned();
        assert!(Token::read(&sasl).unwrap().ends_ms > 0);
        assert_eq!(ends_s("a.b.c"), None);
        sasl.token_file = Some("/does/not/exist".into());
        assert!(
            Token::read(&sasl)
                .err()
                .unwrap()
                .contains("/does/not/exist")
        );
    }
}
