//! Load generator and benches: how every figure in `docs/benchmarks.md` is got.
//!
//! Owns the HTTP client that offers load (`load`), the little servers to measure it against
//! (`responder`, `sink`), the started processes (`child`), the facts of the machine that go
//! beside every result (`hostfacts`), and the output (`report`, `plot`). Each bench is a module
//! named after its command.
//!
//! Invariants: load and server never share a core unless the result says so; ratios come from
//! interleaved rounds of one run; nothing is reported that was not measured in that run.
//! Does not judge correctness: that is the drills' job, which read the ledger written here.
//!
//! Runs offline, as processes of its own; never inside the node.

pub mod bare;
pub mod boot;
pub mod ceiling;
pub mod child;
pub mod cli;
pub mod deliver;
pub mod device;
pub mod gate;
pub mod hostfacts;
pub mod http;
pub mod ingest;
pub mod intake;
pub mod load;
pub mod lone;
pub mod measure;
pub mod memory;
pub mod peers;
pub mod plot;
pub mod report;
pub mod responder;
pub mod sink;
pub mod sys;
pub mod wal;
