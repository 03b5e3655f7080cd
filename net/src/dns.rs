//! Names to addresses, without ever blocking a core.
//!
//! A few threads of their own call the system's resolver; each core has a [`Resolver`] with a small
//! cache in front. Bounds: lookups waiting for a thread, cached names, waiters. A wake-up reaches
//! the core through one atomic waker: have the calling task in a latency-critical queue, or it may
//! come as late as the executor's preemption interval.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

/// Threads that look names up: a dead name server holds one for many seconds.
const THREADS: usize = 4;
/// The system's resolver may load modules of any appetite.
const STACK_BYTES: usize = 1024 * 1024;
/// Lookups waiting for a thread.
const QUEUE_MAX: usize = 256;
/// Names cached per core.
const NAMES_MAX: usize = 1024;
/// Calls of one core waiting for one name.
const WAITERS_MAX: usize = 4096;
/// Addresses kept of one name.
const ADDRESSES_MAX: usize = 16;
/// How long an answer is used; the system's resolver does not tell how long it holds.
const GOOD_FOR: Duration = Duration::from_secs(30);
/// How long a failure is believed.
const FAILED_FOR: Duration = Duration::from_secs(3);

/// A name could not be resolved now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The system's resolver says no.
    #[error("{host}: {detail}")]
    Failed {
        /// The name.
        host: Rc<str>,
        /// What it said.
        detail: Arc<str>,
    },
    /// Too many lookups are waiting.
    #[error("too many name lookups are waiting")]
    Busy,
}

/// One question to the threads, and its answer.
struct Lookup {
    host: String,
    answer: OnceLock<Result<Vec<IpAddr>, Arc<str>>>,
    waker: AtomicWaker,
}

/// The threads. Shared by all cores; they end when the last handle is gone.
#[derive(Clone)]
pub struct ResolverThreads {
    queue: SyncSender<Arc<Lookup>>,
}

/// How a name is looked up; blocking.
pub type LookupFn = fn(&str) -> std::io::Result<Vec<IpAddr>>;

impl ResolverThreads {
    /// Starts them.
    pub fn start() -> std::io::Result<ResolverThreads> {
        ResolverThreads::start_with(|host| {
            Ok((host, 0).to_socket_addrs()?.map(|a| a.ip()).collect())
        })
    }

    /// Starts them with another way to look names up, for tests.
    pub fn start_with(look_up: LookupFn) -> std::io::Result<ResolverThreads> {
        let (queue, lookups) = sync_channel(QUEUE_MAX);
        let lookups = Arc::new(Mutex::new(lookups));
        for n in 0..THREADS {
            let lookups = Arc::clone(&lookups);
            let thread = std::thread::Builder::new()
                .name(format!("dns-{n}"))
                .stack_size(STACK_BYTES);
            thread.spawn(move || answer_lookups(&lookups, look_up))?;
        }
        Ok(ResolverThreads { queue })
    }
}

fn answer_lookups(lookups: &Mutex<Receiver<Arc<Lookup>>>, look_up: LookupFn) {
    loop {
        let next = lookups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        let Ok(lookup) = next else { return };
        let answer = look_up(&lookup.host).map_err(|e| Arc::from(e.to_string()));
        // Set once: this thread alone has taken the lookup.
        let _ = lookup.answer.set(answer);
        lookup.waker.wake();
    }
}

type Answer = Result<Rc<[IpAddr]>, ResolveError>;

enum Cached {
    /// A task of this core waits for the threads.
    Pending(Vec<Waker>),
    Known(Answer, Instant),
}

/// Resolves names for one core. A clone shares the cache.
#[derive(Clone)]
pub struct Resolver {
    threads: ResolverThreads,
    cache: Rc<RefCell<HashMap<Rc<str>, Cached>>>,
}

impl Resolver {
    /// A resolver of the current core.
    pub fn new(threads: ResolverThreads) -> Resolver {
        Resolver {
            threads,
            cache: Rc::default(),
        }
    }

    /// The addresses of `host`, in the system's order of preference; never an empty list. An
    /// address in text (also in brackets) is itself. Has no deadline of its own: a dead name server
    /// can take half a minute.
    ///
    /// # Cancel safety
    /// Dropping it leaves the lookup running for others.
    pub async fn resolve(&self, host: &str) -> Answer {
        let bare = host
            .strip_prefix('[')
            .and_then(|h| h.strip_suffix(']'))
            .unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Rc::from([ip]));
        }
        let host: Rc<str> = Rc::from(host);
        poll_fn(|cx| {
            match self.cache.borrow_mut().get_mut(&host) {
                Some(Cached::Known(answer, until)) if *until > Instant::now() => {
                    return Poll::Ready(answer.clone());
                }
                Some(Cached::Pending(waiters)) => {
                    if waiters.len() >= WAITERS_MAX {
                        return Poll::Ready(Err(ResolveError::Busy));
                    }
                    waiters.push(cx.waker().clone());
                    return Poll::Pending;
                }
                _ => {}
            }
            match self.begin(&host, cx.waker()) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await
    }

    fn begin(&self, host: &Rc<str>, waker: &Waker) -> Result<(), ResolveError> {
        let lookup = Arc::new(Lookup {
            host: host.to_string(),
            answer: OnceLock::new(),
            waker: AtomicWaker::new(),
        });
        match self.threads.queue.try_send(Arc::clone(&lookup)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(ResolveError::Busy);
            }
        }
        self.make_room();
        self.cache
            .borrow_mut()
            .insert(Rc::clone(host), Cached::Pending(vec![waker.clone()]));
        glommio::spawn_local(finish(Rc::clone(&self.cache), Rc::clone(host), lookup)).detach();
        Ok(())
    }

    /// Forgets answers when the cache is full: the stale ones, else any.
    fn make_room(&self) {
        let mut cache = self.cache.borrow_mut();
        if cache.len() < NAMES_MAX {
            return;
        }
        let now = Instant::now();
        cache.retain(|_, cached| !matches!(cached, Cached::Known(_, until) if *until <= now));
        if cache.len() >= NAMES_MAX {
            cache.retain(|_, cached| matches!(cached, Cached::Pending(_)));
        }
    }
}

async fn finish(cache: Rc<RefCell<HashMap<Rc<str>, Cached>>>, host: Rc<str>, lookup: Arc<Lookup>) {
    let answer = poll_fn(|cx| {
        lookup.waker.register(cx.waker());
        match lookup.answer.get() {
            Some(answer) => Poll::Ready(answer.clone()),
            None => Poll::Pending,
        }
    })
    .await;
    let failed = |detail| ResolveError::Failed {
        host: Rc::clone(&host),
        detail,
    };
    let answer: Answer = match answer {
        Ok(mut addresses) => {
            let mut seen = std::collections::HashSet::new();
            addresses.retain(|ip| seen.insert(*ip));
            addresses.truncate(ADDRESSES_MAX);
            if addresses.is_empty() {
                Err(failed(Arc::from("no address")))
            } else {
                Ok(Rc::from(addresses))
            }
        }
        Err(detail) => Err(failed(detail)),
    };
    let until = Instant::now() + if answer.is_ok() { GOOD_FOR } else { FAILED_FOR };
    let before = cache
        .borrow_mut()
        .insert(host, Cached::Known(answer, until));
    if let Some(Cached::Pending(waiters)) = before {
        waiters.into_iter().for_each(Waker::wake);
    }
}
