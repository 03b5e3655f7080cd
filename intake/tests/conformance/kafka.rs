//! The Kafka adapter under the cases.
