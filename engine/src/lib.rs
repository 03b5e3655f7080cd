//! The service: configuration, ingest, commit, dispatch, sinks, administration, and the ankusa binary.
