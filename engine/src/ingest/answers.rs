//! Every answer of the ingest port: status, error word, `Retry-After`. The words are part of the
//! wire contract.
//!
//! `invalid_header` is not among them: a header with bytes that HTTP does not allow is
//! `malformed_request`, one that HTTP allows is kept and delivered as it came, and a dedupe header
//! that is empty or sent twice gives the hook no key (a duplicate can be told from the rest at the
//! sink, a refused hook may be lost at its provider).

use ankusa_net::http1::{Body, Refusal, Response};
use ankusa_wal::HookId;
use bytes::Bytes;

use crate::metrics::IngestOutcome as Outcome;
use crate::verify::Reason;

/// 201, with the id of the hook.
pub(super) fn accepted(id: HookId) -> Response {
    Response::json(
        201,
        format_args!("{{\"status\":\"accepted\",\"id\":\"{id}\"}}"),
    )
}

/// 201, with the id of the first hook of the key.
pub(super) fn duplicate(id: HookId) -> Response {
    Response::json(
        201,
        format_args!("{{\"status\":\"accepted\",\"id\":\"{id}\",\"duplicate\":true}}"),
    )
}

/// 200 with a provider's challenge.
pub(super) fn challenge(text: Vec<u8>) -> Response {
    Response::new(200, Body::Bytes(Bytes::from(text))).content_type("text/plain; charset=utf-8")
}

/// 401.
pub(super) fn verification_failed(reason: Reason) -> Response {
    Response::json(
        401,
        format_args!(
            "{{\"error\":\"verification_failed\",\"reason\":\"{}\"}}",
            reason.as_str()
        ),
    )
}

/// 404.
pub(super) fn not_found() -> Response {
    Response::fixed(404, "{\"error\":\"not_found\"}")
}

/// 404; never says whose the source might be.
pub(super) fn unknown_source() -> Response {
    Response::fixed(404, "{\"error\":\"unknown_source\"}")
}

/// 405.
pub(super) fn method_not_allowed(allow: &'static str) -> Response {
    Response::fixed(405, "{\"error\":\"method_not_allowed\"}")
        .header("Allow", ankusa_net::http1::HeaderValue::Static(allow))
}

/// 413.
pub(super) fn payload_too_large(limit: u64) -> Response {
    Response::json(
        413,
        format_args!("{{\"error\":\"payload_too_large\",\"limit\":{limit}}}"),
    )
}

/// The refusals that leave nothing behind, or a carried record.
pub(super) fn unavailable(outcome: Outcome, intake_retry_after_s: u64) -> Response {
    match outcome {
        Outcome::StoreUnavailable => {
            Response::fixed(503, "{\"error\":\"store_unavailable\"}").retry_after(1)
        }
        Outcome::StoreFull => Response::fixed(503, "{\"error\":\"store_full\"}").retry_after(1),
        Outcome::IntakeUnavailable => Response::fixed(503, "{\"error\":\"intake_unavailable\"}")
            .retry_after(intake_retry_after_s),
        Outcome::IntakePending => {
            Response::fixed(503, "{\"error\":\"intake_pending\"}").retry_after(1)
        }
        Outcome::DedupePending => {
            Response::fixed(409, "{\"error\":\"dedupe_pending\"}").retry_after(1)
        }
        _ => Response::fixed(503, "{\"error\":\"overload\"}").retry_after(1),
    }
}

/// What the server itself refuses, in the product's words.
pub fn refusal(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Malformed(doubt) => Response::json(
            400,
            format_args!(
                "{{\"error\":\"malformed_request\",\"reason\":\"{}\"}}",
                doubt.word()
            ),
        ),
        Refusal::HeadTooLarge => Response::fixed(431, "{\"error\":\"headers_too_large\"}"),
        Refusal::BodyTooLarge { limit } => payload_too_large(limit),
        Refusal::Timeout => Response::fixed(408, "{\"error\":\"request_timeout\"}"),
        Refusal::BodyCut => Response::fixed(
            400,
            "{\"error\":\"body_read_failed\",\"reason\":\"client_closed\"}",
        ),
        Refusal::Overload => Response::fixed(503, "{\"error\":\"overload\"}").retry_after(1),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use ankusa_net::http1::Doubt;
    use serde_json::Value;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/ingest.md");

    /// Cells of the rows of the table below this heading, without their back-ticks.
    fn table(heading: &str) -> Vec<Vec<String>> {
        let (_, rest) = PAGE.split_once(heading).unwrap();
        rest.lines()
            .skip_while(|line| !line.starts_with("|---"))
            .skip(1)
            .take_while(|line| line.starts_with('|'))
            .map(|line| {
                let cells = line.trim_matches('|').split('|');
                cells.map(|c| c.trim().replace('`', "")).collect()
            })
            .collect()
    }

    /// Every answer that the code can give. A new refusal does not compile here.
    fn every_answer() -> Vec<Response> {
        let every_refusal = |last: Refusal| match last {
            Refusal::Malformed(_)
            | Refusal::HeadTooLarge
            | Refusal::BodyTooLarge { .. }
            | Refusal::Timeout
            | Refusal::BodyCut
            | Refusal::Overload => [
                Refusal::HeadTooLarge,
                Refusal::BodyTooLarge { limit: 1 },
                Refusal::Timeout,
                Refusal::BodyCut,
                Refusal::Overload,
            ],
        };
        let id = HookId([1; 16]);
        let mut all = vec![
            accepted(id),
            duplicate(id),
            challenge(b"c".to_vec()),
            not_found(),
            unknown_source(),
            method_not_allowed("POST"),
            payload_too_large(1),
        ];
        all.extend(Reason::ALL.map(verification_failed));
        all.extend(Outcome::ALL.iter().map(|o| unavailable(*o, 7)));
        all.extend(every_refusal(Refusal::Overload).map(refusal));
        all.extend(Doubt::ALL.iter().map(|d| refusal(Refusal::Malformed(*d))));
        all
    }

    #[test]
    fn the_page_has_every_answer_and_no_other() {
        let of_code = |response: &Response| {
            let body: Value = serde_json::from_slice(response.body()).unwrap_or_default();
            let word = body["error"].as_str().or_else(|| body["status"].as_str());
            let after = match response.retry_after_s() {
                None => String::new(),
                Some(7) => "intake.retry_after_s".into(),
                Some(n) => n.to_string(),
            };
            let word = word.unwrap_or("the challenge").to_string();
            [response.status().to_string(), word, after]
        };
        let code: BTreeSet<_> = every_answer().iter().map(of_code).collect();
        let page: BTreeSet<_> = table("## Every answer")
            .into_iter()
            .map(|row| [row[0].clone(), row[1].clone(), row[2].clone()])
            .collect();
        assert_eq!(code, page);
    }

    #[test]
    fn the_page_has_every_reason_and_no_other() {
        let reasons = |heading: &str| -> Vec<String> {
            table(heading)
                .into_iter()
                .map(|mut row| row.remove(0))
                .collect()
        };
        let words: Vec<&str> = Reason::ALL.iter().map(|r| r.as_str()).collect();
        assert_eq!(reasons("## Why a signature fails"), words);
        assert_eq!(reasons("## Why a request is malformed"), Doubt::WORDS);
    }

    #[test]
    fn a_malformed_request_is_told_what_is_in_doubt() {
        let response = refusal(Refusal::Malformed(Doubt::ContentLength));
        assert_eq!(
            response.body(),
            b"{\"error\":\"malformed_request\",\"reason\":\"content_length\"}"
        );
    }
}
