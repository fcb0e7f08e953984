// SPDX-License-Identifier: Apache-2.0
//! Certificates of the webhook server: from files, or from a managed CA.
//!
//! The CA is in a Secret, which the leader creates and rotates behind its fence. Each replica reads the Secret and signs a leaf
//! for itself, in memory. A rotation has three phases:
//!
//! | phase | Secret | published bundle | leaves |
//! |---|---|---|---|
//! | stable | `tls.*` = A | A | of A |
//! | 1: publish | `next.*` = B | A, B | of A |
//! | 2: switch, once every registration object has had the bundle for the propagation delay | `tls.*` = B | A, B | of A or B |
//! | 3: drop, after the longest leaf of A has expired | `tls.*` = B | B | of B |
//!
//! # Guarantees
//! 1. No leaf in use fails to verify against the published bundle, as long as API servers see changes of their webhook
//!    configurations within the propagation delay.
//! 2. A Secret that is deleted, or that has no valid CA, is created again, in the same phases: CAs that are published stay
//!    trusted until their leaves have expired. Without a published CA the new one is used at once.
//! 3. Keys are never logged, and leave the process only into the Secret. The key of a leaf never leaves the process.

pub(crate) mod authority;
pub(crate) mod leaf;
pub(crate) mod rotation;
pub(crate) mod secret;

use std::{path::PathBuf, time::Duration};

/// Clocks of machines differ: certificates are valid this long before they are made, and trusted this long after they are needed.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(3600);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Selects the source of the serving certificate.
#[derive(Clone, Debug)]
#[must_use = "pass it to `Webhooks::certificates`"]
pub struct Certificates(pub(crate) Source);

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Files { certificate: PathBuf, key: PathBuf },
    Managed(Managed),
}

/// Settings of a managed CA.
#[derive(Clone, Debug)]
pub(crate) struct Managed {
    pub(crate) secret: Option<String>,
    pub(crate) ca_lifetime: Duration,
    pub(crate) leaf_lifetime: Duration,
    pub(crate) propagation_delay: Duration,
}

impl Certificates {
    /// Uses PEM files such as `tls.crt` and `tls.key`, and reloads them when they change. The `caBundle` of the registration
    /// objects belongs to the tool that makes the files, such as cert-manager. A replica is ready once it is set.
    pub fn files(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self(Source::Files {
            certificate: certificate.into(),
            key: key.into(),
        })
    }

    /// Uses a CA in a Secret, which is created and rotated without help. This is the default.
    pub fn managed() -> Self {
        Self(Source::Managed(Managed {
            secret: None,
            ca_lifetime: 365 * DAY,
            leaf_lifetime: 7 * DAY,
            propagation_delay: Duration::from_secs(30),
        }))
    }

    /// Name of the Secret, in the namespace of the operator. Default: the name of the webhooks with `-webhook-ca`. Ignored for
    /// files.
    pub fn secret(mut self, name: impl Into<String>) -> Self {
        self.change(|managed| managed.secret = Some(name.into()));
        self
    }

    /// Lifetime of a CA, which is rotated after two thirds of it. Default: 365 days; at least three leaf lifetimes. Ignored for
    /// files.
    pub fn ca_lifetime(mut self, lifetime: Duration) -> Self {
        self.change(|managed| managed.ca_lifetime = lifetime);
        self
    }

    /// Lifetime of a leaf, which is replaced after two thirds of it. Default: 7 days. Ignored for files.
    pub fn leaf_lifetime(mut self, lifetime: Duration) -> Self {
        self.change(|managed| managed.leaf_lifetime = lifetime);
        self
    }

    /// Time that API servers have to see a changed bundle. Default: 30 s. Ignored for files.
    pub fn propagation_delay(mut self, delay: Duration) -> Self {
        self.change(|managed| managed.propagation_delay = delay);
        self
    }

    fn change(&mut self, change: impl FnOnce(&mut Managed)) {
        if let Source::Managed(managed) = &mut self.0 {
            change(managed);
            managed.ca_lifetime = managed.ca_lifetime.max(managed.leaf_lifetime * 3);
        }
    }
}
