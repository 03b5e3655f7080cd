//! The Kafka adapter. So far: the class of every error code.

pub mod codes;
