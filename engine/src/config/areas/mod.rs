//! The validated configuration: one small struct per area, each in its own file.
//!
//! Every field is in range and every rule between keys holds by the time one of these exists.
//! Runs at boot and offline.

pub mod dedupe;
pub mod dispatch;
pub mod http;
pub mod intake;
pub mod node;
pub mod sinks;
pub mod sources;
pub mod verify;
pub mod wal;

pub use dedupe::{DedupeConfig, DedupeScope};
pub use dispatch::{Cidr, DispatchConfig, EgressConfig, EgressRule, RetryConfig};
pub use http::{AdminConfig, HttpConfig, HttpLimits, Routing, TlsConfig};
pub use intake::{
    BackupConfig, IntakeConfig, IntakeType, JetstreamConfig, KafkaConfig, ObjectStoreConfig,
    SaslConfig, SaslMechanism, TlsClientConfig,
};
pub use node::{Cores, LogConfig, LogFormat, LogLevel, NodeConfig};
pub use sinks::{HttpSinkConfig, SinkConfig, SinkKind, SinkMethod, SinkUrl, UrlHost};
pub use sources::{DedupeKeyFrom, OnFleetDown, OnVerifyFailure, SourceConfig, SourceDedupeConfig};
pub use verify::{
    HmacHash, SignatureEncoding, SignatureParse, SignatureScheme, SignedPart, VerifyConfig,
};
pub use wal::{QueueConfig, WalConfig, WalSync, WalType};
