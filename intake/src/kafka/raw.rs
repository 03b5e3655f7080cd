//! One Kafka client and its main queue, driven by events: hand over without a copy, drain reports
//! when woken. The only file that talks to the client library through pointers.
//!
//! Invariants: a payload's bytes are the caller's until the report of its opaque is drained; the
//! callback only wakes; everything handed out by the library is given back to it. Error codes are
//! read as integers, since a broker may send one that the bindings do not list.
//!
//! [`RawClient::produce`] and [`RawClient::drain`] never block (core). [`RawClient::leader`],
//! [`RawClient::purge`] and dropping do (side thread).
#![expect(
    unsafe_code,
    reason = "the library's queue and event calls have no safe wrapper"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use atomic_waker::AtomicWaker;
use rdkafka::bindings as sys;

use super::settings::KafkaSettings;
use super::token;
use crate::record::HEADERS;

/// One delivery report.
pub(super) struct Report {
    pub(super) opaque: u64,
    /// 0 for a success.
    pub(super) code: i32,
    /// None when the success names no offset.
    pub(super) position: Option<u64>,
}

/// What a client says that is no report.
pub(super) enum Says {
    /// An error of its own.
    Error(i32),
    /// It wants a token: [`RawClient::give_token`].
    WantsToken,
}

pub(super) struct RawClient {
    rk: *mut sys::rd_kafka_t,
    queue: *mut sys::rd_kafka_queue_t,
    topic: *mut sys::rd_kafka_topic_t,
    /// Kept alive until the client is destroyed: the callback points at it.
    _wake: Arc<AtomicWaker>,
}

// SAFETY: the library's handles may be used from any thread, several at a time.
unsafe impl Send for RawClient {}
// SAFETY: as above.
unsafe impl Sync for RawClient {}

/// Header names with their terminating zero, in the order of [`crate::record::NAMES`].
const C_NAMES: [&CStr; HEADERS] = [
    c"ankusa_intake_v",
    c"ankusa_intake_kind",
    c"ankusa_intake_node",
    c"ankusa_intake_shard",
    c"ankusa_intake_seq",
    c"ankusa_intake_id",
    c"ankusa_intake_incarnation",
    c"ankusa_intake_tenant",
    c"ankusa_intake_source",
];

/// Runs on a thread of the library, under the queue's lock: wakes and nothing else.
unsafe extern "C" fn on_event(_: *mut sys::rd_kafka_t, wake: *mut c_void) {
    // SAFETY: `wake` is the AtomicWaker that the client keeps alive while its queue exists.
    unsafe { &*wake.cast::<AtomicWaker>() }.wake();
}

impl RawClient {
    pub(super) fn new(
        settings: &KafkaSettings,
        core: u16,
        wake: Arc<AtomicWaker>,
    ) -> Result<RawClient, String> {
        let config = settings.producer(core);
        let topic = CString::new(settings.topic.as_str()).map_err(|e| e.to_string())?;
        let native = config.create_native_config().map_err(|e| e.to_string())?;
        let mut text = [0 as c_char; 512];
        // SAFETY: the configuration is valid; its duplicate is owned by us until `rd_kafka_new`
        // takes it, which it does only on success. All pointers outlive the calls.
        unsafe {
            let conf = sys::rd_kafka_conf_dup(native.ptr());
            let events = sys::RD_KAFKA_EVENT_DR
                | sys::RD_KAFKA_EVENT_ERROR
                | sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH;
            sys::rd_kafka_conf_set_events(conf, events);
            sys::rd_kafka_conf_set_log_cb(conf, None);
            let rk = sys::rd_kafka_new(
                sys::rd_kafka_type_t::RD_KAFKA_PRODUCER,
                conf,
                text.as_mut_ptr(),
                text.len(),
            );
            if rk.is_null() {
                sys::rd_kafka_conf_destroy(conf);
                let text = CStr::from_ptr(text.as_ptr());
                return Err(text.to_string_lossy().into_owned());
            }
            let handle = sys::rd_kafka_topic_new(rk, topic.as_ptr(), std::ptr::null_mut());
            if handle.is_null() {
                sys::rd_kafka_destroy(rk);
                return Err("the client refuses the topic's name".to_owned());
            }
            // A token that cannot be had is not the end: the client asks for it again.
            let _ = token::give(rk, settings);
            let queue = sys::rd_kafka_queue_get_main(rk);
            sys::rd_kafka_queue_cb_event_enable(
                queue,
                Some(on_event),
                Arc::as_ptr(&wake).cast_mut().cast(),
            );
            Ok(RawClient {
                rk,
                queue,
                topic: handle,
                _wake: wake,
            })
        }
    }

    /// Hands one record over. `payload` is not copied.
    ///
    /// # Safety
    /// `payload` stays valid and unchanged until the report of `opaque` is drained, when this
    /// answers `Ok`. On `Err` (the code) there will be no report.
    pub(super) unsafe fn produce(
        &self,
        partition: i32,
        key: &[u8],
        headers: [&[u8]; HEADERS],
        payload: &[u8],
        opaque: u64,
    ) -> Result<(), i32> {
        use sys::rd_kafka_vtype_t as V;
        let memory = |bytes: &[u8]| sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
            ptr: bytes.as_ptr().cast_mut().cast(),
            size: bytes.len(),
        };
        type Union = sys::rd_kafka_vu_s__bindgen_ty_1;
        let entry = |vtype, u| sys::rd_kafka_vu_t { vtype, u };
        let header = |at: usize| {
            let value: &[u8] = headers[at];
            let header = sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_2 {
                name: C_NAMES[at].as_ptr(),
                val: value.as_ptr().cast(),
                size: value.len() as isize,
            };
            entry(V::RD_KAFKA_VTYPE_HEADER, Union { header })
        };
        let args: [sys::rd_kafka_vu_t; 6 + HEADERS] = std::array::from_fn(|at| match at {
            0 => entry(V::RD_KAFKA_VTYPE_RKT, Union { rkt: self.topic }),
            1 => entry(V::RD_KAFKA_VTYPE_PARTITION, Union { i32_: partition }),
            2 => entry(
                V::RD_KAFKA_VTYPE_VALUE,
                Union {
                    mem: memory(payload),
                },
            ),
            3 => entry(V::RD_KAFKA_VTYPE_KEY, Union { mem: memory(key) }),
            4 => entry(
                V::RD_KAFKA_VTYPE_OPAQUE,
                Union {
                    ptr: std::ptr::without_provenance_mut(opaque as usize),
                },
            ),
            // Neither copy nor free: the bytes are ours until the report.
            5 => entry(V::RD_KAFKA_VTYPE_MSGFLAGS, Union { i: 0 }),
            _ => header(at - 6),
        });
        // SAFETY: the arguments are valid for the call, which copies all of them but the
        // payload, for which the caller answers.
        unsafe {
            let error = sys::rd_kafka_produceva(self.rk, args.as_ptr(), args.len());
            if error.is_null() {
                return Ok(());
            }
            let code = sys::rd_kafka_error_code(error) as i32;
            sys::rd_kafka_error_destroy(error);
            Err(code)
        }
    }

    /// Takes reports and what else the client says off the queue until it is empty or `most`
    /// reports were taken (the rest of an event included); true when more may be waiting.
    pub(super) fn drain(
        &self,
        most: usize,
        mut report: impl FnMut(Report),
        mut says: impl FnMut(Says),
    ) -> bool {
        let mut taken = 0;
        while taken < most {
            // SAFETY: the queue is ours; the event is destroyed below, after its last use.
            let event = unsafe { sys::rd_kafka_queue_poll(self.queue, 0) };
            if event.is_null() {
                return false;
            }
            // SAFETY: the event is valid.
            match unsafe { sys::rd_kafka_event_type(event) } {
                sys::RD_KAFKA_EVENT_DR => loop {
                    // SAFETY: the message belongs to the event and is read before it is destroyed.
                    // The code is read as an integer: it need not be in the bindings' list.
                    let one = unsafe {
                        let message = sys::rd_kafka_event_message_next(event);
                        if message.is_null() {
                            break;
                        }
                        Report {
                            opaque: (*message)._private as usize as u64,
                            code: (&raw const (*message).err).cast::<i32>().read(),
                            position: u64::try_from((*message).offset).ok(),
                        }
                    };
                    taken += 1;
                    report(one);
                },
                sys::RD_KAFKA_EVENT_ERROR => {
                    // SAFETY: the event is valid; the code is one of the library's own.
                    let code = unsafe { sys::rd_kafka_event_error(event) };
                    says(Says::Error(code as i32));
                }
                sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH => says(Says::WantsToken),
                _ => {}
            }
            // SAFETY: the event is ours and not used again.
            unsafe { sys::rd_kafka_event_destroy(event) };
        }
        true
    }

    /// Asks the brokers about the topic, which also makes the client learn of a new leader.
    /// Blocking. The code, when it is not answered.
    pub(super) fn refresh(&self, timeout: Duration) -> Result<(), i32> {
        let mut metadata: *const sys::rd_kafka_metadata = std::ptr::null();
        // SAFETY: handles are valid; the metadata is destroyed once, when there is one.
        let code = unsafe {
            let code = sys::rd_kafka_metadata(
                self.rk,
                0,
                self.topic,
                &mut metadata,
                timeout.as_millis() as i32,
            ) as i32;
            if !metadata.is_null() {
                sys::rd_kafka_metadata_destroy(metadata);
            }
            code
        };
        if code == 0 { Ok(()) } else { Err(code) }
    }

    /// Gives it a new token. Reads a file: side thread.
    pub(super) fn give_token(&self, settings: &KafkaSettings) -> Result<(), String> {
        // SAFETY: the handle is valid.
        unsafe { token::give(self.rk, settings) }
    }

    /// Makes the client report everything it still holds as failed. Does not wait.
    pub(super) fn purge(&self) {
        // SAFETY: the handle is valid.
        let _ = unsafe {
            sys::rd_kafka_purge(
                self.rk,
                sys::RD_KAFKA_PURGE_F_QUEUE
                    | sys::RD_KAFKA_PURGE_F_INFLIGHT
                    | sys::RD_KAFKA_PURGE_F_NON_BLOCKING,
            )
        };
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        // SAFETY: each handle is destroyed once, the client last. The callback is switched off
        // before what it points at goes.
        unsafe {
            sys::rd_kafka_queue_cb_event_enable(self.queue, None, std::ptr::null_mut());
            sys::rd_kafka_queue_destroy(self.queue);
            sys::rd_kafka_topic_destroy(self.topic);
            sys::rd_kafka_destroy(self.rk);
        }
    }
}

#[cfg(test)]
mod tests {
    //! The two lists of names are one.
    use super::C_NAMES;
    use crate::record::NAMES;

    #[test]
    fn the_names_are_those_of_the_record() {
        for (c, name) in C_NAMES.iter().zip(NAMES) {
            assert_eq!(c.to_bytes(), name.as_bytes());
        }
    }
}
