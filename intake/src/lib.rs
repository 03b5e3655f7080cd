//! The intake log: record format, adapter interface, adapters.
