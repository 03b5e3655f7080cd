//! Whom a client trusts. Loading reads files: not on a reactor core.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Trust for TLS calls, loaded once and shared by all cores.
#[derive(Clone)]
pub struct TlsClient {
    pub(super) config: Arc<ClientConfig>,
    roots_count: usize,
}

/// Trust could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// An extra authority is not a PEM certificate.
    #[error("extra certificate authority {at}: {detail}")]
    ExtraAuthority {
        /// Which of them, from 0.
        at: usize,
        /// What is wrong with it.
        detail: String,
    },
    /// The crypto provider does not offer the protocol versions.
    #[error("TLS versions: {0}")]
    Versions(#[from] rustls::Error),
}

impl TlsClient {
    /// Trusts the system's certificate authorities and those in `extra_pem`.
    ///
    /// Blocks. A system without any authority is no error (see [`TlsClient::roots_count`]): calls
    /// over TLS will then fail, others work.
    pub fn load(extra_pem: Option<&[u8]>) -> Result<TlsClient, TlsError> {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "loading the system's certificate authorities");
        }
        let (_, unusable) = roots.add_parsable_certificates(native.certs);
        if unusable > 0 {
            tracing::warn!(
                unusable,
                "certificate authorities of the system that cannot be used"
            );
        }
        TlsClient::with_roots(roots, extra_pem)
    }

    /// Trusts the authorities in `pem` alone.
    pub fn only(pem: &[u8]) -> Result<TlsClient, TlsError> {
        TlsClient::with_roots(RootCertStore::empty(), Some(pem))
    }

    fn with_roots(
        mut roots: RootCertStore,
        extra_pem: Option<&[u8]>,
    ) -> Result<TlsClient, TlsError> {
        for (at, certificate) in
            CertificateDer::pem_slice_iter(extra_pem.unwrap_or_default()).enumerate()
        {
            let certificate = certificate.map_err(|e| TlsError::ExtraAuthority {
                at,
                detail: e.to_string(),
            })?;
            roots
                .add(certificate)
                .map_err(|e| TlsError::ExtraAuthority {
                    at,
                    detail: e.to_string(),
                })?;
        }
        let roots_count = roots.len();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsClient {
            config: Arc::new(config),
            roots_count,
        })
    }

    #[cfg(test)]
    pub(crate) fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// How many authorities are trusted.
    pub fn roots_count(&self) -> usize {
        self.roots_count
    }
}
