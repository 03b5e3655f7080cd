//! Questions about the topic: settings, replicas, topic id, positions. Blocking: runs on the log's
//! asking thread.
//!
//! Invariant: a refused question is an error, never a setting taken for good.
#![expect(
    unsafe_code,
    reason = "the topic id is only told through the library's raw calls"
)]

use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, ResourceSpecifier};
use rdkafka::bindings as sys;
use rdkafka::types::RDKafkaErrorCode;

use super::admin::Admin;
use crate::ask::wait_for;
use crate::log::{AskError, Bounds};
use crate::verify::TopicFacts;

/// How long one question may take.
pub(super) const ASK_WAIT: Duration = Duration::from_secs(3);

/// How long a topic that is not there is asked for, and the pause between two questions.
const MISSING_WAIT: Duration = Duration::from_secs(2);
const MISSING_PAUSE: Duration = Duration::from_millis(100);

/// Leaders and replicas, as the brokers tell them.
pub(super) struct Layout {
    /// One entry per partition, by number: whether it has a leader.
    pub(super) has_leader: Vec<bool>,
    pub(super) replicas: u32,
}

/// The topic's partitions. A topic that is not there is asked for again for a while: after it was
/// created, or a broker came back, not every broker knows it at once.
pub(super) fn known_layout(admin: &Admin) -> Result<Layout, AskError> {
    let begun = Instant::now();
    loop {
        match layout(admin, ASK_WAIT) {
            Err(AskError::NotFound(_)) if begun.elapsed() < MISSING_WAIT => {
                std::thread::sleep(MISSING_PAUSE);
            }
            other => return other,
        }
    }
}

/// Asks for the topic's partitions, once.
pub(super) fn layout(admin: &Admin, wait: Duration) -> Result<Layout, AskError> {
    let topic = admin.topic();
    let client = admin.client.inner();
    let metadata = client
        .fetch_metadata(Some(topic), wait)
        .map_err(|error| admin.kafka_error(&error))?;
    admin.answered();
    let found = metadata.topics().iter().find(|t| t.name() == topic);
    let found = found.ok_or_else(|| AskError::NotFound(topic.to_owned()))?;
    if let Some(code) = found.error() {
        return Err(admin.error(code as i32));
    }
    if found.partitions().is_empty() {
        return Err(AskError::NotFound(topic.to_owned()));
    }
    let mut has_leader = vec![false; found.partitions().len()];
    for partition in found.partitions() {
        if let Some(slot) = has_leader.get_mut(partition.id() as usize) {
            *slot = partition.leader() >= 0;
        }
    }
    let replicas = found.partitions().iter().map(|p| p.replicas().len());
    Ok(Layout {
        has_leader,
        replicas: replicas.min().unwrap_or(0) as u32,
    })
}

/// Everything that the rules need.
pub(super) fn facts(admin: &Admin) -> Result<TopicFacts, AskError> {
    let topic = admin.topic();
    let layout = known_layout(admin)?;
    let identity = topic_id(admin, topic)?;
    let options = AdminOptions::new().request_timeout(Some(ASK_WAIT));
    let what = [ResourceSpecifier::Topic(topic)];
    let described = wait_for(admin.client.describe_configs(&what, &options))
        .map_err(|error| admin.kafka_error(&error))?;
    let described = described.into_iter().next().unwrap_or(Err(
        // Neither a result nor an error: as if it had not been answered.
        RDKafkaErrorCode::OperationTimedOut,
    ));
    let described = described.map_err(|code| admin.error(code as i32))?;
    let get = |name: &str| described.get(name).and_then(|entry| entry.value.clone());
    Ok(TopicFacts {
        topic: topic.to_owned(),
        identity,
        partitions: layout.has_leader.len() as u32,
        replicas: layout.replicas,
        min_insync: get("min.insync.replicas"),
        unclean: get("unclean.leader.election.enable"),
        retention_ms: get("retention.ms"),
        retention_bytes: get("retention.bytes"),
        max_message_bytes: get("max.message.bytes"),
        cleanup_policy: get("cleanup.policy"),
        timestamp_type: get("message.timestamp.type"),
    })
}

/// The positions that a partition still holds.
pub(super) fn bounds(admin: &Admin, partition: u32) -> Result<Bounds, AskError> {
    let topic = admin.topic();
    // A partition that is not there is looked for until the time is up: ask for the count first.
    if known_layout(admin)?.has_leader.len() <= partition as usize {
        return Err(AskError::NotFound(format!(
            "{topic}, partition {partition}"
        )));
    }
    let client = admin.client.inner();
    let (earliest, head) = client
        .fetch_watermarks(topic, partition as i32, ASK_WAIT)
        .map_err(|error| admin.kafka_error(&error))?;
    Ok(Bounds {
        earliest: u64::try_from(earliest).unwrap_or(0),
        head: u64::try_from(head).unwrap_or(0),
    })
}

/// The library's objects of one question, given back in the order that it wants.
struct Question {
    queue: *mut sys::rd_kafka_queue_t,
    options: *mut sys::rd_kafka_AdminOptions_t,
    names: *mut sys::rd_kafka_TopicCollection_t,
    event: *mut sys::rd_kafka_event_t,
}

impl Drop for Question {
    fn drop(&mut self) {
        // SAFETY: each object was made by the library and is given back once; null is skipped.
        unsafe {
            if !self.event.is_null() {
                sys::rd_kafka_event_destroy(self.event);
            }
            sys::rd_kafka_TopicCollection_destroy(self.names);
            sys::rd_kafka_AdminOptions_destroy(self.options);
            sys::rd_kafka_queue_destroy(self.queue);
        }
    }
}

fn topic_id(admin: &Admin, topic: &str) -> Result<String, AskError> {
    let name = CString::new(topic).map_err(|_| AskError::NotFound(topic.to_owned()))?;
    let rk = admin.native();
    let wait_ms = ASK_WAIT.as_millis() as i32;
    // SAFETY: `rk` lives as long as `admin`; every pointer below is checked before it is followed
    // and belongs to `question`, which outlives its uses. The names are copied by the library.
    unsafe {
        let mut names = [name.as_ptr()];
        let mut question = Question {
            queue: sys::rd_kafka_queue_new(rk),
            options: sys::rd_kafka_AdminOptions_new(
                rk,
                sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            names: sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            event: std::ptr::null_mut(),
        };
        sys::rd_kafka_AdminOptions_set_request_timeout(
            question.options,
            wait_ms,
            std::ptr::null_mut(),
            0,
        );
        sys::rd_kafka_DescribeTopics(rk, question.names, question.options, question.queue);
        question.event = sys::rd_kafka_queue_poll(question.queue, wait_ms + 1_000);
        if question.event.is_null() {
            return Err(AskError::Unreachable("DescribeTopics".to_owned()));
        }
        let code = sys::rd_kafka_event_error(question.event) as i32;
        if code != 0 {
            return Err(admin.error(code));
        }
        let result = sys::rd_kafka_event_DescribeTopics_result(question.event);
        let mut count = 0usize;
        let topics = match result.is_null() {
            true => std::ptr::null_mut(),
            false => sys::rd_kafka_DescribeTopics_result_topics(result, &mut count),
        };
        if topics.is_null() || count == 0 {
            return Err(AskError::Unreachable("DescribeTopics".to_owned()));
        }
        let error = sys::rd_kafka_TopicDescription_error(*topics);
        if !error.is_null() {
            let code = sys::rd_kafka_error_code(error) as i32;
            if code != 0 {
                return Err(admin.error(code));
            }
        }
        let id = sys::rd_kafka_TopicDescription_topic_id(*topics);
        let text = match id.is_null() {
            true => std::ptr::null(),
            false => sys::rd_kafka_Uuid_base64str(id),
        };
        if text.is_null() {
            return Err(AskError::Unreachable("the topic id is not told".to_owned()));
        }
        Ok(CStr::from_ptr(text).to_string_lossy().into_owned())
    }
}
