//! The bytes of a request: unique body, optional key header and signature.
//!
//! One template per body size, patched in place, so that an unsigned request costs a few dozen
//! bytes of writing. The body is JSON, `{"id":"<run>-<seq>","p":"…"}`, where it is long enough
//! to be; `id` is unique to the request, so that a dedupe key taken from the JSON works too.
//!
//! Runs on the load thread; not shared.

use aws_lc_rs::digest;

use super::plan::LoadPlan;
use super::sign::Signer;

/// `<16 hex digits of the run>-<16 hex digits of the seq>`.
const ID_BYTES: usize = 33;
const BODY_BEFORE: &[u8] = b"{\"id\":\"";
const BODY_BETWEEN: &[u8] = b"\",\"p\":\"";
const BODY_AFTER: &[u8] = b"\"}";
const FRAME_BYTES: usize = BODY_BEFORE.len() + ID_BYTES + BODY_BETWEEN.len() + BODY_AFTER.len();

/// Makes requests.
pub struct RequestFactory {
    templates: Vec<Template>,
    signer: Option<Signer>,
    digests: bool,
    /// Scratch for signed requests, whose head differs each time.
    signed: Vec<u8>,
}

/// A request ready to be sent.
pub struct Prepared<'a> {
    /// Head and body.
    pub bytes: &'a [u8],
    /// SHA-256 of the body, when asked for.
    pub sha256: Option<[u8; 32]>,
}

struct Template {
    /// Head and body of an unsigned request; of a signed one the head ends before its last CRLF.
    bytes: Vec<u8>,
    body_at: usize,
    /// Where the id's digits stand: in the body, and in the key header.
    body_id_at: Option<usize>,
    key_at: Option<usize>,
}

impl RequestFactory {
    /// A factory for the plan; `digests` asks for the SHA-256 of each body.
    pub fn new(plan: &LoadPlan, digests: bool) -> Result<RequestFactory, String> {
        let signer = match &plan.signature {
            Some((scheme, secret)) => Some(Signer::new(*scheme, secret)?),
            None => None,
        };
        let templates = plan
            .body
            .sizes
            .iter()
            .map(|size| Template::new(plan, *size))
            .collect();
        Ok(RequestFactory {
            templates,
            signer,
            digests,
            signed: Vec::new(),
        })
    }

    /// Request `seq`, valid until the next call. `unix_s` is read for signatures only.
    pub fn make(&mut self, seq: u64, unix_s: impl FnOnce() -> u64) -> Prepared<'_> {
        let index = (seq % self.templates.len() as u64) as usize;
        let template = &mut self.templates[index];
        template.patch(seq);
        let body = &template.bytes[template.body_at..];
        let sha256 = self.digests.then(|| sha256(body));
        let Some(signer) = &self.signer else {
            return Prepared {
                bytes: &template.bytes,
                sha256,
            };
        };
        self.signed.clear();
        self.signed
            .extend_from_slice(&template.bytes[..template.body_at - 2]);
        let mut id = [0u8; 20];
        id[..4].copy_from_slice(b"msg_");
        write_hex(&mut id[4..], seq);
        signer.append_headers(&mut self.signed, &id, unix_s(), body);
        self.signed.extend_from_slice(b"\r\n");
        self.signed.extend_from_slice(body);
        Prepared {
            bytes: &self.signed,
            sha256,
        }
    }
}

impl Template {
    fn new(plan: &LoadPlan, body_bytes: usize) -> Template {
        let mut head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {body_bytes}\r\n",
            plan.path, plan.target
        );
        for (name, value) in &plan.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut key_at = None;
        if let Some(name) = &plan.key_header {
            head.push_str(&format!("{name}: {:016x}-", plan.run));
            key_at = Some(head.len());
            head.push_str("0000000000000000\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        let body_at = bytes.len();
        let body_id_at = append_body(&mut bytes, plan.run, body_bytes).map(|at| body_at + at);
        Template {
            bytes,
            body_at,
            body_id_at,
            key_at,
        }
    }

    fn patch(&mut self, seq: u64) {
        for at in [self.body_id_at, self.key_at].into_iter().flatten() {
            write_hex(&mut self.bytes[at..at + 16], seq);
        }
    }
}

/// Appends a body of exactly `body_bytes`; the result is where in it the seq's digits stand
/// (nowhere in a body too short for them).
fn append_body(out: &mut Vec<u8>, run: u64, body_bytes: usize) -> Option<usize> {
    if body_bytes < FRAME_BYTES {
        out.extend(std::iter::repeat_n(b'0', body_bytes));
        return (body_bytes >= 16).then_some(0);
    }
    out.extend_from_slice(BODY_BEFORE);
    out.extend_from_slice(format!("{run:016x}-").as_bytes());
    let at = BODY_BEFORE.len() + 17;
    out.extend_from_slice(b"0000000000000000");
    out.extend_from_slice(BODY_BETWEEN);
    // Padding that does not compress to nothing: a fixed pseudo-random alphabet walk.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..body_bytes - FRAME_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.push(b'a' + (state % 26) as u8);
    }
    out.extend_from_slice(BODY_AFTER);
    Some(at)
}

fn write_hex(out: &mut [u8], value: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (i, slot) in out.iter_mut().enumerate() {
        *slot = DIGITS[((value >> (60 - 4 * i)) & 15) as usize];
    }
}

/// SHA-256 of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0u8; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::sign::Scheme;
    use super::*;

    fn plan(size: usize) -> LoadPlan {
        let mut plan = LoadPlan::new("127.0.0.1:4000".parse().unwrap(), "/webhooks/demo");
        plan.body.sizes = vec![size];
        plan
    }

    fn split(bytes: &[u8]) -> (String, Vec<u8>) {
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        (
            String::from_utf8(bytes[..at + 2].to_vec()).unwrap(),
            bytes[at + 4..].to_vec(),
        )
    }

    #[test]
    fn body_has_the_size_asked_for_and_the_length_says_so() {
        for size in [0, 1, 15, 16, 48, 49, 50, 1024, 10_000] {
            let mut factory = RequestFactory::new(&plan(size), false).unwrap();
            let (head, body) = split(factory.make(7, || 0).bytes);
            assert_eq!(body.len(), size);
            assert!(head.contains(&format!("Content-Length: {size}\r\n")));
        }
    }

    #[test]
    fn two_requests_never_have_the_same_body() {
        let mut factory = RequestFactory::new(&plan(1024), true).unwrap();
        let first = factory.make(1, || 0).sha256.unwrap();
        let second = factory.make(2, || 0).sha256.unwrap();
        assert_ne!(first, second);
        let again = factory.make(1, || 0);
        assert_eq!(again.sha256.unwrap(), first);
        assert_eq!(sha256(&split(again.bytes).1), first);
    }

    #[test]
    fn long_bodies_are_json_with_a_unique_id() {
        let mut plan = plan(200);
        plan.run = 0xabc;
        let mut factory = RequestFactory::new(&plan, false).unwrap();
        let (_, body) = split(factory.make(0x12, || 0).bytes);
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["id"], "0000000000000abc-0000000000000012");
    }

    #[test]
    fn signed_and_keyed_head_is_well_formed() {
        let mut plan = plan(64);
        plan.key_header = Some("X-Event-Id".to_owned());
        plan.signature = Some((Scheme::StandardWebhooks, "whsec_c2VjcmV0".to_owned()));
        let mut factory = RequestFactory::new(&plan, false).unwrap();
        let (head, body) = split(factory.make(3, || 1_700_000_000).bytes);
        assert_eq!(body.len(), 64);
        assert!(head.contains("X-Event-Id: "));
        assert!(head.contains("-0000000000000003\r\nwebhook-id: msg_0000000000000003\r\nwebhook-timestamp: 1700000000\r\n"));
    }
}
