//! Reads a partition back: one consumer, assigned by hand, on a thread of its own.
//!
//! Invariants: it never joins a group and never commits; it starts where it is told or says why it
//! cannot (no silent jump); it ends at the head as of its start. A broker that goes away is waited
//! for with patience, then it is an error: the caller asks again from where it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::admin::consumer_error;
use super::settings::KafkaSettings;
use super::token::Bearer;
use crate::ask::{Asked, Feed, wait_for};
use crate::log::{AskError, Bounds, ReplayRequest};
use crate::replay::Chunker;

/// A topic that is said to be missing for so long is.
const MISSING_MAX: Duration = Duration::from_secs(5);

/// An end short of the head is the end when nothing came for so long and the head still stands.
const END_WAIT: Duration = Duration::from_secs(2);

/// Nothing read for this long ends a replay with an error.
const SILENCE_MAX: Duration = Duration::from_secs(15);
const POLL_WAIT: Duration = Duration::from_millis(200);

/// The thread's body.
pub(super) fn read_back(
    settings: &Arc<KafkaSettings>,
    request: ReplayRequest,
    bounds: Asked<Bounds>,
    feed: &Feed,
) {
    if let Err(error) = read(settings, request, bounds, feed) {
        feed.send(Err(error));
    }
}

fn read(
    settings: &Arc<KafkaSettings>,
    request: ReplayRequest,
    bounds: Asked<Bounds>,
    feed: &Feed,
) -> Result<(), AskError> {
    let bounds = wait_for(bounds)?;
    let start = bounds.start(request.from)?;
    let topic = &settings.topic;
    let partition = request.partition as i32;
    let mut chunker = Chunker::new(request);
    if start >= bounds.head {
        feed.send(Ok(chunker.finish(bounds.head)));
        return Ok(());
    }
    let told = |error: &KafkaError| consumer_error(error, topic);
    let consumer: BaseConsumer<Bearer> = settings
        .consumer()
        .create_with_context(Bearer(Arc::clone(settings)))
        .map_err(|e| told(&e))?;
    let mut at = TopicPartitionList::new();
    at.add_partition_offset(topic, partition, Offset::Offset(start as i64))
        .map_err(|e| told(&e))?;
    consumer.assign(&at).map_err(|e| told(&e))?;
    let mut heard = Instant::now();
    let mut last_error = None;
    // The topic was there a moment ago: a broker that does not know it yet, or not for now, is asked
    // again before it is believed.
    let mut missing: Option<Instant> = None;
    let mut ended: Option<Instant> = None;
    while feed.is_read() {
        match consumer.poll(POLL_WAIT) {
            None => {}
            Some(Ok(message)) => {
                heard = Instant::now();
                (missing, ended) = (None, None);
                let position = u64::try_from(message.offset()).unwrap_or(0);
                let full = add(&mut chunker, position, &message);
                let done = position + 1 >= bounds.head;
                if full && !done && !feed.send(Ok(chunker.take())) {
                    return Ok(());
                }
                if done {
                    feed.send(Ok(chunker.finish(bounds.head)));
                    return Ok(());
                }
            }
            Some(Err(KafkaError::PartitionEOF(_))) => {
                ended.get_or_insert_with(Instant::now);
            }
            Some(Err(error)) => match error.rdkafka_error_code() {
                Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
                    return Err(AskError::Truncated {
                        wanted: start,
                        earliest: bounds.earliest,
                    });
                }
                _ => match told(&error) {
                    AskError::Unreachable(text) => last_error = Some(text),
                    AskError::NotFound(text) => {
                        let since = *missing.get_or_insert_with(Instant::now);
                        if since.elapsed() > MISSING_MAX {
                            return Err(AskError::NotFound(text));
                        }
                        last_error = Some(format!("{text} is not there"));
                    }
                    other => return Err(other),
                },
            },
        }
        // IMPORTANT: an end short of the head is not believed at once: a broker that has just come to
        // lead may not know yet what was confirmed, and the replay would leave it out. It can be
        // the end, though: what is not a record has a position too.
        if ended.is_some_and(|at| at.elapsed() > END_WAIT) {
            match consumer.fetch_watermarks(topic, partition, END_WAIT) {
                Ok((_, head)) if u64::try_from(head).is_ok_and(|head| head >= bounds.head) => {
                    feed.send(Ok(chunker.finish(bounds.head)));
                    return Ok(());
                }
                Ok((_, head)) => last_error = Some(format!("{topic} ends at {head} for now")),
                Err(error) => last_error = Some(error.to_string()),
            }
        }
        if heard.elapsed() > SILENCE_MAX {
            let text = last_error.unwrap_or_else(|| "nothing was read for 15 s".to_owned());
            return Err(AskError::Unreachable(text));
        }
    }
    Ok(())
}

fn add(chunker: &mut Chunker, position: u64, message: &BorrowedMessage<'_>) -> bool {
    let value = message.payload().map(Bytes::copy_from_slice);
    let headers = message.headers();
    let headers = headers
        .iter()
        .flat_map(|headers| headers.iter())
        .map(|header| (header.key, header.value));
    chunker.add(position, headers, value)
}
