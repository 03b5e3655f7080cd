//! Who a server is over TLS: certificate and key, and which are current on a core.
//!
//! [`Identity::from_pem`] is pure and costs milliseconds: not on a busy reactor core. Replacing the
//! current identity affects connections that come later. No client certificates.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use futures_rustls::TlsAcceptor;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The name of HTTP/2 in a TLS greeting.
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

/// A certificate chain with its key. Cheap to clone; may go to other cores.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
}

/// Certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate file.
    #[error("certificate: {0}")]
    Certificate(String),
    /// The key file.
    #[error("private key: {0}")]
    Key(String),
    /// They do not belong together, or their kind is not supported.
    #[error("certificate and key: {0}")]
    Pair(rustls::Error),
}

impl Identity {
    /// Reads a PEM chain (leaf first) and its PEM key.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Identity, IdentityError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|e| IdentityError::Certificate(e.to_string()))?;
        if chain.is_empty() {
            return Err(IdentityError::Certificate("none in the file".to_owned()));
        }
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|e| IdentityError::Key(e.to_string()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(IdentityError::Pair)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(IdentityError::Pair)?;
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), b"http/1.1".to_vec()];
        Ok(Identity {
            config: Arc::new(config),
        })
    }
}

/// The identity that new connections of this core are shown.
pub struct CurrentIdentity(RefCell<TlsAcceptor>);

impl CurrentIdentity {
    /// Begins with `identity`.
    pub fn new(identity: Identity) -> Rc<CurrentIdentity> {
        Rc::new(CurrentIdentity(RefCell::new(TlsAcceptor::from(
            identity.config,
        ))))
    }

    /// Shows `identity` from the next connection on.
    pub fn replace(&self, identity: Identity) {
        self.0.replace(TlsAcceptor::from(identity.config));
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.borrow().clone()
    }
}
