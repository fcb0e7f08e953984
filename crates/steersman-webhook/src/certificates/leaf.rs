// SPDX-License-Identifier: Apache-2.0
//! The leaf of this replica.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use steersman_core::RwLock;
use steersman_endpoints::Tls;

use super::{
    authority::{CertificateError, Leaf},
    secret::CaState,
};

/// The leaf that new connections get. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct CurrentLeaf(Arc<RwLock<Option<Leaf>>>);

impl CurrentLeaf {
    /// Signs a new leaf if the signing CA has changed, or the leaf is old. Returns whether it did.
    pub(crate) fn renew(
        &self,
        state: &CaState,
        names: &[String],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<bool, CertificateError> {
        // Without a signer the present leaf stays: its CA is still trusted.
        let Some(signer) = state
            .signer
            .as_ref()
            .filter(|signer| !signer.cert().is_expired(now))
        else {
            return Ok(false);
        };
        let is_current = |leaf: &Leaf| leaf.issuer == *signer.cert() && now < leaf.renew_at;
        if self.0.read().as_ref().is_some_and(is_current) {
            return Ok(false);
        }
        let leaf = signer.sign(names, now, lifetime)?;
        *self.0.write() = Some(leaf);
        Ok(true)
    }

    pub(crate) fn get(&self) -> Option<Leaf> {
        self.0.read().clone()
    }

    /// Returns a TLS configuration that uses the leaf. Connections fail while there is none.
    pub(crate) fn tls(&self) -> Result<Tls, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would outlive the certificate that the client verified.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Tls::config(Arc::new(config)))
    }
}

impl ResolvesServerCert for CurrentLeaf {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let leaf = self.0.read();
        leaf.as_ref().map(|leaf| Arc::clone(&leaf.key))
    }
}

impl fmt::Debug for CurrentLeaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaf = self.get();
        let not_after = leaf.as_ref().map(|leaf| leaf.not_after);
        f.debug_struct("CurrentLeaf")
            .field("not_after", &not_after)
            .finish_non_exhaustive()
    }
}
