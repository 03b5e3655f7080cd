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
