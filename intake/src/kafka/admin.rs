//! The client that asks questions, and what it says by itself: a broker that refuses our
//! certificate, credentials or rights shows as one that does not answer, and only the client's own
//! events say why.
//!
//! Invariants: an error names what to do about it; no secret is in one. One thread's at a time;
//! side threads only, its calls block.
#![expect(unsafe_code, reason = "the client's own events have no safe wrapper")]

use std::cell::RefCell;
use std::ffi::CStr;
use std::sync::Arc;

use rdkafka::admin::AdminClient;
use rdkafka::bindings as sys;
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;

use super::codes::failure_of;
use super::settings::KafkaSettings;
use super::token;
use crate::log::{AskError, Class, PermanentAbout};

/// Events taken at a time.
const EVENTS_MAX: usize = 10_000;

const SSL: i32 = -181;
const AUTHENTICATION: i32 = -169;
const ALL_BROKERS_DOWN: i32 = -187;
/// What the client says when a broker takes a connection and hangs up: it wanted TLS, another
/// mechanism, or a certificate that we did not show.
const HUNG_UP: &str = "ApiVersion";

/// A broker may say what it thinks of our certificate only after the handshake.
fn is_tls(code: i32, text: &str) -> bool {
    code == SSL || text.contains("SSL routines")
}

fn worth(code: i32, text: &str) -> u8 {
    match code {
        _ if code == AUTHENTICATION || is_tls(code, text) => 3,
        _ if text.contains(HUNG_UP) => 2,
        ALL_BROKERS_DOWN => 0,
        _ => 1,
    }
}

/// A client for questions, and the last thing that it said by itself. One thread's.
pub(super) struct Admin {
    pub(super) client: AdminClient<DefaultClientContext>,
    settings: Arc<KafkaSettings>,
    /// Since the last question that was answered; the client does not repeat itself.
    said: RefCell<Option<(i32, String)>>,
}

impl Admin {
    /// Makes the client; no broker need be there.
    pub(super) fn new(settings: &Arc<KafkaSettings>) -> Result<Admin, KafkaError> {
        let mut config = settings.common("ask");
        // Errors and wishes for a token come as events, for us to take.
        let events = sys::RD_KAFKA_EVENT_ERROR | sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH;
        config.set("enabled_events", events.to_string());
        let admin = Admin {
            client: config.create()?,
            settings: Arc::clone(settings),
            said: RefCell::default(),
        };
        // SAFETY: the client lives as long as `admin`.
        let _ = unsafe { token::give(admin.native(), settings) };
        Ok(admin)
    }

    pub(super) fn native(&self) -> *mut sys::rd_kafka_t {
        self.client.inner().native_ptr()
    }

    pub(super) fn topic(&self) -> &str {
        &self.settings.topic
    }

    /// Takes what the client said by itself. To be called about once a second: it is kept until
    /// then.
    pub(super) fn hear(&self) {
        // SAFETY: the client lives; the queue is given back after its last use, and so is each
        // event. The text belongs to the event and is copied before that.
        unsafe {
            let queue = sys::rd_kafka_queue_get_main(self.native());
            for _ in 0..EVENTS_MAX {
                let event = sys::rd_kafka_queue_poll(queue, 0);
                if event.is_null() {
                    break;
                }
                match sys::rd_kafka_event_type(event) {
                    sys::RD_KAFKA_EVENT_ERROR => {
                        let code = sys::rd_kafka_event_error(event) as i32;
                        let text = CStr::from_ptr(sys::rd_kafka_event_error_string(event));
                        let text = text.to_string_lossy();
                        // What follows are times and counts: the same error would be another text.
                        let text = text.split(" (after ").next().unwrap_or_default();
                        let text = text.to_owned();
                        tracing::debug!(code, text, "the Kafka client reports");
                        self.note(code, text);
                    }
                    sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH => {
                        let _ = token::give(self.native(), &self.settings);
                    }
                    _ => {}
                }
                sys::rd_kafka_event_destroy(event);
            }
            sys::rd_kafka_queue_destroy(queue);
        }
    }

    /// What is about us is worth more than that a connection is gone, which follows from it; and
    /// that than that all of them are.
    fn note(&self, code: i32, text: String) {
        let mut said = self.said.borrow_mut();
        let kept = said.as_ref();
        if kept.is_none_or(|(last, before)| worth(*last, before) <= worth(code, &text)) {
            *said = Some((code, text));
        }
    }

    /// A question was answered: what was said before is not why the next one is not.
    pub(super) fn answered(&self) {
        self.hear();
        *self.said.borrow_mut() = None;
    }

    /// What an error code of a question means, and what to do about it. A broker that refuses us
    /// shows as one that does not answer; the client has said why.
    pub(super) fn error(&self, code: i32) -> AskError {
        self.hear();
        let failure = failure_of(code);
        let said = self.said.borrow();
        match (failure.class, said.as_ref()) {
            (Class::NotFound, _) => AskError::NotFound(self.topic().to_owned()),
            (_, Some((AUTHENTICATION, text))) => AskError::Denied(self.credentials(text)),
            (_, Some((code, text))) if is_tls(*code, text) => AskError::Denied(format!(
                "{text}; see intake.kafka.ssl: its ca must be the brokers' authority, its cert known to them and not ended"
            )),
            (_, Some((_, text))) if text.contains(HUNG_UP) => AskError::Denied(format!(
                "{text}; the broker hangs up on us: see intake.kafka.ssl and intake.kafka.sasl"
            )),
            (Class::Permanent(PermanentAbout::Access), _) if code == AUTHENTICATION => {
                AskError::Denied(self.credentials(failure.reason))
            }
            (Class::Permanent(PermanentAbout::Access), _) => {
                AskError::Denied(self.rights(failure.reason))
            }
            (_, Some((_, text))) => AskError::Unreachable(format!("{}: {text}", failure.reason)),
            _ => AskError::Unreachable(failure.reason.to_owned()),
        }
    }

    fn credentials(&self, text: &str) -> String {
        let mechanism = self
            .settings
            .sasl
            .as_ref()
            .map(|sasl| sasl.mechanism.name());
        match mechanism {
            Some(name) => {
                format!("{text}; see intake.kafka.sasl ({name}): user, password or token")
            }
            None => format!("{text}; the brokers want SASL: set intake.kafka.sasl"),
        }
    }

    fn rights(&self, text: &str) -> String {
        let user = self
            .settings
            .sasl
            .as_ref()
            .map(|sasl| sasl.username.as_str());
        format!(
            "{text}; kafka-acls.sh --bootstrap-server {} --add --allow-principal User:{} --operation Read --operation Write --operation Describe --operation DescribeConfigs --topic {}",
            self.settings.brokers.join(","),
            user.filter(|user| !user.is_empty())
                .unwrap_or("<principal>"),
            self.topic(),
        )
    }

    pub(super) fn kafka_error(&self, error: &KafkaError) -> AskError {
        match error.rdkafka_error_code() {
            Some(code) => self.error(code as i32),
            None => AskError::Unreachable(error.to_string()),
        }
    }
}

/// What an error of a replay's consumer means.
pub(super) fn consumer_error(error: &KafkaError, topic: &str) -> AskError {
    let Some(code) = error.rdkafka_error_code() else {
        return AskError::Unreachable(error.to_string());
    };
    let failure = failure_of(code as i32);
    match failure.class {
        Class::NotFound => AskError::NotFound(topic.to_owned()),
        Class::Permanent(PermanentAbout::Access) => AskError::Denied(failure.reason.to_owned()),
        _ => AskError::Unreachable(failure.reason.to_owned()),
    }
}
