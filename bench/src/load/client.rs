//! The loop of the load thread: sends what is due, reads what is there, keeps the tally.
//!
//! Invariants: at most one request per connection; a request is recorded once; in an open loop
//! every request due in the window is recorded, also one that could not be sent.
//! Runs on the calling thread, pinned when the plan says so; returns when the run is over.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::connection::{Connection, InFlight, Input, Where};
use super::ledger::{Entry, Ledger};
use super::plan::{LoadPlan, Pace, Stop};
use super::probe::{LoadError, Probe};
use super::request::RequestFactory;
use super::response::{json_text, json_true};
use super::schedule::Schedule;
use super::tally::LoadResult;
use crate::sys::{self, Epoll, Interest};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How long overdue requests of an open loop are still sent, and answers awaited, at the end.
const GRACE_MAX: Duration = Duration::from_secs(10);

/// Makes one run.
pub fn run(plan: &LoadPlan, probe: &mut dyn Probe) -> Result<LoadResult, LoadError> {
    plan.validate().map_err(LoadError::Plan)?;
    let pinned = plan.core.map(sys::Pinned::to_core).transpose();
    let _pinned = pinned.map_err(|source| LoadError::Io {
        what: "pinning the load thread",
        source,
    })?;
    sys::precise_timers();
    let mut client = Client::new(plan)?;
    client.connect_all()?;
    client.run(probe)?;
    Ok(client.tally)
}

struct Client<'p> {
    plan: &'p LoadPlan,
    factory: RequestFactory,
    epoll: Epoll,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    in_flight_count: usize,
    dead_count: usize,
    tally: LoadResult,
    ledger: Option<Ledger>,
    schedule: Option<Schedule>,
    start: Instant,
    window_from: Instant,
    /// End of the window; unknown until the count is reached when the plan counts.
    window_to: Option<Instant>,
    next_seq: u64,
    /// The moment the next request of an open loop is due.
    next_due: Instant,
    measured_sent: u64,
    stopped: bool,
}

impl<'p> Client<'p> {
    fn new(plan: &'p LoadPlan) -> Result<Client<'p>, LoadError> {
        let ledger = match &plan.ledger {
            Some(path) => Some(Ledger::create(path).map_err(|source| LoadError::Io {
                what: "creating the ledger",
                source,
            })?),
            None => None,
        };
        let now = Instant::now();
        Ok(Client {
            plan,
            factory: RequestFactory::new(plan, ledger.is_some()).map_err(LoadError::Plan)?,
            epoll: Epoll::new(512).map_err(|source| LoadError::Io {
                what: "creating the poller",
                source,
            })?,
            connections: (0..plan.connections).map(|_| Connection::new()).collect(),
            idle: VecDeque::with_capacity(plan.connections),
            in_flight_count: 0,
            dead_count: 0,
            tally: LoadResult::empty(),
            ledger,
            schedule: match plan.pace {
                Pace::Closed => None,
                Pace::Open { rate, ramp } => Some(Schedule::new(rate, ramp)),
            },
            start: now,
            window_from: now,
            window_to: None,
            next_seq: 0,
            next_due: now,
            measured_sent: 0,
            stopped: false,
        })
    }

    fn connect_all(&mut self) -> Result<(), LoadError> {
        for index in 0..self.connections.len() {
            self.open(index).map_err(|source| LoadError::Connect {
                target: self.plan.target,
                source,
            })?;
        }
        Ok(())
    }

    fn open(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        connection.open(self.plan.target, CONNECT_TIMEOUT)?;
        if let Some(stream) = &connection.stream {
            self.epoll.add(stream, index as u64, Interest::Read)?;
        }
        self.idle.push_back(index);
        Ok(())
    }

    fn run(&mut self, probe: &mut dyn Probe) -> Result<(), LoadError> {
        let mut scratch = vec![0u8; 64 << 10];
        self.start = Instant::now();
        self.next_due = self.start;
        self.window_from = self.start + self.plan.warmup;
        if let Stop::After(duration) = self.plan.stop {
            self.window_to = Some(self.window_from + duration);
        }
        let (mut opened, mut closed) = (false, false);
        let mut cpu_at_open = Duration::ZERO;
        let mut next_sweep = self.start + SWEEP_EVERY;
        loop {
            let now = Instant::now();
            if !opened && now >= self.window_from {
                opened = true;
                probe.window_opens();
                cpu_at_open = sys::thread_cpu();
            }
            if opened && !closed && self.window_to.is_some_and(|end| now >= end) {
                closed = true;
                self.close_window(cpu_at_open);
                probe.window_closes();
            }
            if now >= next_sweep {
                next_sweep = now + SWEEP_EVERY;
                self.sweep(now)?;
            }
            self.pump(now);
            if self.is_over(now) {
                if opened && !closed {
                    self.window_to = Some(self.window_to.map_or(now, |end| end.min(now)));
                    self.close_window(cpu_at_open);
                    probe.window_closes();
                }
                break;
            }
            let timeout = self
                .sleep_until(opened, closed, next_sweep)
                .saturating_duration_since(Instant::now());
            let count = self
                .epoll
                .wait(Some(timeout))
                .map_err(|source| LoadError::Io {
                    what: "waiting for input",
                    source,
                })?;
            for at in 0..count {
                let ready = self.epoll.ready(at);
                let index = ready.token as usize;
                if ready.writable && !ready.readable {
                    self.on_writable(index)?;
                }
                if ready.readable {
                    self.on_readable(index, &mut scratch)?;
                }
            }
        }
        self.finish()
    }

    /// The earliest moment something must be done without any input.
    fn sleep_until(&self, opened: bool, closed: bool, next_sweep: Instant) -> Instant {
        let mut until = next_sweep;
        if !opened {
            until = until.min(self.window_from);
        } else if !closed && let Some(end) = self.window_to {
            until = until.min(end);
        }
        if self.schedule.is_some() && !self.idle.is_empty() && !self.sending_is_over(self.next_due)
        {
            until = until.min(self.next_due);
        }
        until
    }

    fn close_window(&mut self, cpu_at_open: Duration) {
        let end = self.window_to.unwrap_or_else(Instant::now);
        let real = Instant::now().saturating_duration_since(self.window_from);
        self.tally.window = end.saturating_duration_since(self.window_from);
        let used = sys::thread_cpu().saturating_sub(cpu_at_open);
        self.tally.generator_busy = used.as_secs_f64() / real.as_secs_f64().max(1e-9);
    }

    /// Whether a request meant for `intended` is no longer to be sent.
    fn sending_is_over(&self, intended: Instant) -> bool {
        if self.stopped {
            return true;
        }
        match self.plan.stop {
            Stop::After(_) => self.window_to.is_some_and(|end| intended >= end),
            Stop::Count(count) => self.measured_sent >= count,
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        if self.dead_count == self.connections.len() {
            self.tally.cut_short = true;
            return true;
        }
        let next = if self.schedule.is_some() {
            self.next_due
        } else {
            now
        };
        if !self.sending_is_over(next) {
            return false;
        }
        let end = self.window_to.unwrap_or(now);
        self.in_flight_count == 0 && (now >= end || self.stopped)
            || now.saturating_duration_since(end) > self.plan.timeout.min(GRACE_MAX)
                && self.window_to.is_some()
    }

    /// Sends what is due, as far as there are idle connections.
    fn pump(&mut self, now: Instant) {
        while let Some(&index) = self.idle.front() {
            let intended = if self.schedule.is_some() {
                self.next_due
            } else {
                now
            };
            if intended > now || self.sending_is_over(intended) {
                return;
            }
            self.idle.pop_front();
            self.send(index, intended, now);
        }
    }

    fn send(&mut self, index: usize, intended: Instant, now: Instant) {
        let seq = self.next_seq;
        self.next_seq += 1;
        if let Some(schedule) = &self.schedule {
            self.next_due = self.start + schedule.due(self.next_seq);
        }
        let measured = intended >= self.window_from;
        if measured {
            self.measured_sent += 1;
            self.tally.sent += 1;
        }
        let sent_unix_us = if self.ledger.is_some() {
            sys::unix_us()
        } else {
            0
        };
        let request = self.factory.make(seq, || sys::unix_us() / 1_000_000);
        let connection = &mut self.connections[index];
        connection.in_flight = Some(InFlight {
            seq,
            intended,
            sent: now,
            sent_unix_us,
            sha256: request.sha256,
            measured,
        });
        self.in_flight_count += 1;
        let sent = connection.send(request.bytes);
        let failed = match sent {
            Ok(()) if connection.is_sending() => match &connection.stream {
                Some(stream) => self
                    .epoll
                    .modify(stream, index as u64, Interest::ReadWrite)
                    .is_err(),
                None => true,
            },
            Ok(()) => false,
            Err(_) => true,
        };
        if failed {
            // The end of the connection is dealt with in one place, with the next sweep: a reset
            // socket is readable, so epoll reports it at once.
            if let Some(stream) = &self.connections[index].stream {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn on_writable(&mut self, index: usize) -> Result<(), LoadError> {
        match self.connections[index].send_rest() {
            Ok(false) => Ok(()),
            Ok(true) => match &self.connections[index].stream {
                Some(stream) => self
                    .epoll
                    .modify(stream, index as u64, Interest::Read)
                    .map_err(|source| LoadError::Io {
                        what: "changing the poller",
                        source,
                    }),
                None => Ok(()),
            },
            Err(_) => self.lost(index, "reset"),
        }
    }

    fn on_readable(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), LoadError> {
        match self.connections[index].read(scratch) {
            Input::Waiting => {
                if self.connections[index].is_sending() {
                    self.on_writable(index)
                } else {
                    Ok(())
                }
            }
            Input::Lost(word) => self.lost(index, word),
            Input::Answer(answer, place) => {
                // An answer before the request was sent whole is a refusal: the rest is not sent,
                // so the connection cannot be used again.
                let reopen = answer.close || self.connections[index].is_sending();
                let own = self.connections[index].take_input();
                let bytes = if matches!(place, Where::Scratch) {
                    &scratch[..]
                } else {
                    &own[..]
                };
                let body = &bytes[answer.body.clone()];
                let now = Instant::now();
                let result = self.settle(index, now, answer.status, body);
                self.connections[index].give_input(own);
                result?;
                if reopen {
                    self.reopen(index, now);
                } else {
                    self.idle.push_back(index);
                }
                self.pump(now);
                Ok(())
            }
        }
    }

    /// Records the end of the request in flight.
    fn settle(
        &mut self,
        index: usize,
        now: Instant,
        status: u16,
        body: &[u8],
    ) -> Result<(), LoadError> {
        let is_ack = (200..300).contains(&status);
        let word = if status == 201 && !json_true(body, "duplicate") {
            ""
        } else if is_ack {
            if json_true(body, "duplicate") {
                "duplicate"
            } else {
                json_text(body, "status").unwrap_or("")
            }
        } else {
            json_text(body, "error").unwrap_or("")
        };
        let id = if self.ledger.is_some() {
            json_text(body, "id").unwrap_or("")
        } else {
            ""
        };
        self.end(index, now, status, word, id)
    }

    fn end(
        &mut self,
        index: usize,
        now: Instant,
        status: u16,
        word: &str,
        id: &str,
    ) -> Result<(), LoadError> {
        let Some(request) = self.connections[index].in_flight.take() else {
            return Ok(());
        };
        self.in_flight_count -= 1;
        let latency = now.saturating_duration_since(request.intended);
        if request.measured {
            self.tally.count(status, word);
            if status != 0 {
                self.tally.latency(status, latency);
            }
        }
        if (200..300).contains(&status)
            && now >= self.window_from
            && self.window_to.is_none_or(|end| now < end)
        {
            self.tally.acked_at(now - self.window_from);
        }
        if let Some(ledger) = &mut self.ledger {
            ledger
                .write(&Entry {
                    seq: request.seq,
                    id,
                    sha256: request.sha256,
                    status,
                    word,
                    sent_unix_us: request.sent_unix_us,
                    latency_us: latency.as_micros() as u64,
                })
                .map_err(|source| LoadError::Io {
                    what: "writing the ledger",
                    source,
                })?;
        }
        Ok(())
    }

    /// The connection is gone; so is the request on it, if there was one.
    fn lost(&mut self, index: usize, word: &'static str) -> Result<(), LoadError> {
        let now = Instant::now();
        if self.connections[index].in_flight.is_some() {
            self.end(index, now, 0, word, "")?;
        } else {
            self.idle.retain(|other| *other != index);
        }
        self.reopen(index, now);
        Ok(())
    }

    fn reopen(&mut self, index: usize, now: Instant) {
        self.tally.reopened += 1;
        self.connections[index].drop_socket();
        if self.open(index).is_ok() {
            return;
        }
        self.connections[index].drop_socket();
        match self.plan.reconnect_after {
            Some(wait) => self.connections[index].retry_at = Some(now + wait),
            None => self.dead_count += 1,
        }
    }

    /// Gives up requests past their timeout, opens lost connections, flushes the ledger.
    fn sweep(&mut self, now: Instant) -> Result<(), LoadError> {
        if self
            .plan
            .stop_flag
            .as_ref()
            .is_some_and(|flag| flag.load(std::sync::atomic::Ordering::Relaxed))
        {
            self.stopped = true;
        }
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let late = connection
                .in_flight
                .as_ref()
                .is_some_and(|r| now.saturating_duration_since(r.sent) > self.plan.timeout);
            if late {
                self.end(index, now, 0, "timeout", "")?;
                self.reopen(index, now);
            } else if connection.retry_at.is_some_and(|at| now >= at) {
                if self.open(index).is_err() {
                    self.connections[index].retry_at =
                        self.plan.reconnect_after.map(|wait| now + wait);
                } else {
                    self.tally.reopened += 1;
                }
            }
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.flush().map_err(|source| LoadError::Io {
                what: "writing the ledger",
                source,
            })?;
        }
        Ok(())
    }

    /// Records what never got an answer and what was due and never sent.
    fn finish(&mut self) -> Result<(), LoadError> {
        let now = Instant::now();
        for index in 0..self.connections.len() {
            self.end(index, now, 0, "no_answer", "")?;
        }
        if let (Some(schedule), Some(end), Stop::After(_)) =
            (&self.schedule, self.window_to, self.plan.stop)
        {
            let mut k = self.next_seq;
            while self.start + schedule.due(k) < end {
                let due = self.start + schedule.due(k);
                k += 1;
                if due >= self.window_from {
                    self.tally.unsent += 1;
                    self.tally.latency(200, now.saturating_duration_since(due));
                }
            }
        }
        if let Some(ledger) = &mut self.ledger {
            ledger.flush().map_err(|source| LoadError::Io {
                what: "writing the ledger",
                source,
            })?;
        }
        Ok(())
    }
}
