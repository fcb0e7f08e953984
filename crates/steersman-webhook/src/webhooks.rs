// SPDX-License-Identifier: Apache-2.0
//! The webhooks of an operator, and the server for them.

use std::{
    collections::BTreeSet,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use serde::Serialize;
use steersman_cluster::{Cluster, Kind};
use steersman_core::{Clock, Mutex, TokioClock};
use steersman_endpoints::{BindError, DuplicateCheck, RouteError, Routes, Server, Tls, TlsError};
use steersman_kit::{Defaults, Validate};
use steersman_runtime::{AddError, Manager};

use crate::{
    admission::AdmissionWebhook,
    certificates::{Certificates, Source, leaf::CurrentLeaf},
    conversion::{self, AnyConversion, Conversion},
    handler::{ADMISSION_BYTES_MAX, CONVERSION_BYTES_MAX, Endpoint},
    leader::Keep,
    metrics::Metrics,
    registration::{CONVERSION_PATH, Declarations, Registration, Target},
    replica::{Drain, Readiness, Serve, Shared},
};

/// The webhooks of an operator. [`add_to`](Self::add_to) adds them to a manager.
///
/// ```no_run
/// # use kube::CustomResource;
/// # use schemars::JsonSchema;
/// # use serde::{Deserialize, Serialize};
/// # use steersman_kit::{Defaults, Validate, ValidationReport};
/// # #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
/// # #[kube(group = "example.com", version = "v1", kind = "Web", namespaced)]
/// # pub struct WebSpec { replicas: Option<i32> }
/// # impl Defaults for Web { fn set_defaults(&mut self) { self.spec.replicas.get_or_insert(1); } }
/// # impl Validate for Web { fn validate(&self, _: Option<&Self>, _: &mut ValidationReport) {} }
/// # async fn example(manager: steersman_runtime::Manager) -> Result<(), Box<dyn std::error::Error>> {
/// use steersman_webhook::Webhooks;
///
/// Webhooks::new("web-operator", "web-system")
///     .defaults::<Web>()
///     .validates::<Web>()
///     .service("web-operator-webhooks", 443)
///     .add_to(&manager)?;
/// manager.run().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "call `add_to`"]
pub struct Webhooks {
    name: String,
    namespace: String,
    target: Target,
    registration: Registration,
    admission: Vec<AdmissionWebhook>,
    conversions: Vec<AnyConversion>,
    address: SocketAddr,
    certificates: Certificates,
    check_interval: Duration,
    drain_delay: Duration,
    cluster: Option<Cluster>,
    clock: Option<Arc<dyn Clock>>,
}

/// The webhooks of a manager. Clones refer to the same server.
#[derive(Clone)]
pub struct WebhookServer(Arc<Shared>);

/// Webhooks cannot be added to a manager.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// A webhook has no rule, so that the API server never calls it.
    #[error("webhook `{name}` has no rule; add one with `.rule()`")]
    NoRule {
        /// Name of the webhook.
        name: String,
    },
    /// Two webhooks have the same name.
    #[error("two webhooks have the name `{name}`; choose another name")]
    DuplicateName {
        /// Name of the webhook.
        name: String,
    },
    /// Two webhooks have the same path, or a path is invalid.
    #[error("cannot serve a webhook")]
    Route(#[from] RouteError),
    /// The address cannot be bound.
    #[error("cannot start the webhook server")]
    Bind(#[from] BindError),
    /// The certificate files cannot be used.
    #[error("cannot load the serving certificate")]
    Tls(#[from] TlsError),
    /// TLS cannot be configured.
    #[error("cannot configure TLS")]
    Setup(#[from] rustls::Error),
    /// The manager has a readiness check of the same name.
    #[error("cannot add the readiness check of the webhooks")]
    Check(#[from] DuplicateCheck),
    /// The manager has a runnable of the same name, has no default cluster, or is shutting down.
    #[error("cannot add the webhooks to the manager")]
    Add(#[from] AddError),
}

impl Webhooks {
    /// Declares the webhooks of the operator `name`, which runs in `namespace`. The webhook configurations have this name.
    pub fn new(name: impl Into<String>, namespace: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            target: Target::Service {
                name: format!("{name}-webhooks"),
                port: 443,
            },
            name,
            namespace: namespace.into(),
            registration: Registration::Apply,
            admission: Vec::new(),
            conversions: Vec::new(),
            address: (Ipv4Addr::UNSPECIFIED, 9443).into(),
            certificates: Certificates::managed(),
            check_interval: Duration::from_secs(10),
            drain_delay: Duration::from_secs(5),
            cluster: None,
            clock: None,
        }
    }

    /// Serves the [`Defaults`] of a kind as a mutating webhook.
    pub fn defaults<K: Kind + Defaults + Serialize>(self) -> Self {
        self.admission(AdmissionWebhook::defaults::<K>())
    }

    /// Serves the rules of a kind that has [`Validate`] as a validating webhook.
    pub fn validates<K: Kind + Validate>(self) -> Self {
        self.admission(AdmissionWebhook::validates::<K>())
    }

    /// Adds an admission webhook.
    pub fn admission(mut self, webhook: AdmissionWebhook) -> Self {
        self.admission.push(webhook);
        self
    }

    /// Converts between the versions of a CRD.
    pub fn converts<H: Kind + Serialize>(mut self, conversion: Conversion<H>) -> Self {
        self.conversions.push(AnyConversion::new(conversion));
        self
    }

    /// Service by which API servers reach the webhooks, in the namespace of the operator. Default: the name of the webhooks
    /// with `-webhooks`, port 443.
    pub fn service(mut self, name: impl Into<String>, port: u16) -> Self {
        self.target = Target::Service {
            name: name.into(),
            port,
        };
        self
    }

    /// URL by which API servers reach the webhooks, such as `https://10.0.0.7:9443`, instead of a Service. For an operator
    /// outside of the cluster.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.target = Target::Url(url.into());
        self
    }

    /// Address to listen on; port 0 selects a free port. Default: `0.0.0.0:9443`.
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Source of the serving certificate. Default: [`Certificates::managed`].
    pub fn certificates(mut self, certificates: Certificates) -> Self {
        self.certificates = certificates;
        self
    }

    /// Selects what the leader writes to registration objects. Default: [`Registration::Apply`].
    pub fn registration(mut self, registration: Registration) -> Self {
        self.registration = registration;
        self
    }

    /// Interval at which replicas read the CA, and the leader the registration objects. Default: 10 s.
    pub fn check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval;
        self
    }

    /// Time for which the server accepts calls after it has become unready at shutdown, so that API servers learn of it.
    /// The shutdown timeout of the manager limits it. Default: 5 s.
    pub fn drain_delay(mut self, delay: Duration) -> Self {
        self.drain_delay = delay;
        self
    }

    /// Cluster whose API servers call the webhooks. Default: the default cluster of the manager.
    pub fn cluster(mut self, cluster: Cluster) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Clock for time limits and certificates. Default: the system's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Binds the address and adds the webhooks to a manager: a server in every replica, and the registration by the leader.
    ///
    /// # Errors
    /// If a declaration is invalid, the address is in use, the certificate files cannot be used, or the manager has no default
    /// cluster or is shutting down.
    pub fn add_to(self, manager: &Manager) -> Result<WebhookServer, WebhookError> {
        let cluster = match &self.cluster {
            Some(cluster) => cluster.clone(),
            None => manager.cluster()?,
        };
        let shared = Arc::new(self.bind(cluster)?);
        let name = shared.declarations.name.clone();
        let checked = Arc::clone(&shared);
        let check = manager.readyz_check("webhooks", move || std::future::ready(checked.check()))?;
        manager.add(Keep {
            name: format!("{name}-webhook-registration"),
            shared: Arc::clone(&shared),
        })?;
        manager.add(Drain {
            name: format!("{name}-webhook-drain"),
            shared: Arc::clone(&shared),
        })?;
        manager.add(Serve {
            name: format!("{name}-webhooks"),
            shared: Arc::clone(&shared),
        })?;
        check.detach();
        manager
            .metrics()
            .register(|registry| shared.metrics.register(registry))
            .detach();
        Ok(WebhookServer(shared))
    }

    fn bind(self, cluster: Cluster) -> Result<Shared, WebhookError> {
        let clock = self.clock.clone().unwrap_or_else(|| Arc::new(TokioClock::new()));
        let metrics = Metrics::new();
        let is_draining = Arc::new(AtomicBool::new(false));
        let routes = self.routes(&metrics, &clock, &is_draining)?;
        let leaf = CurrentLeaf::default();
        let (tls, managed) = match self.certificates.0 {
            Source::Files { certificate, key } => (Tls::files(certificate, key)?, None),
            Source::Managed(managed) => (leaf.tls()?, Some(managed)),
        };
        let server = Server::bind(self.address, routes, Arc::clone(&clock))?.tls(tls);
        Ok(Shared {
            declarations: Declarations {
                name: self.name,
                namespace: self.namespace,
                target: self.target,
                mode: self.registration,
                admission: self.admission,
                conversions: self.conversions.into(),
            },
            managed,
            cluster,
            server,
            leaf,
            metrics,
            clock,
            check_interval: self.check_interval,
            drain_delay: self.drain_delay,
            readiness: Mutex::new(Readiness::Waiting("the manager does not run".to_owned())),
            is_draining,
        })
    }

    fn routes(
        &self,
        metrics: &Metrics,
        clock: &Arc<dyn Clock>,
        is_draining: &Arc<AtomicBool>,
    ) -> Result<Routes, WebhookError> {
        let mut routes = Routes::new();
        let mut names = BTreeSet::new();
        let endpoint = Endpoint {
            path: CONVERSION_PATH.to_owned(),
            is_conversion: true,
            bytes_max: CONVERSION_BYTES_MAX,
            metrics: metrics.clone(),
            clock: Arc::clone(clock),
            is_draining: Arc::clone(is_draining),
            answer: {
                let conversions = self.conversions.clone();
                Arc::new(move |body| conversion::answer(&conversions, &body))
            },
        };
        for webhook in &self.admission {
            let name = webhook.name.clone();
            if webhook.rules.is_empty() {
                return Err(WebhookError::NoRule { name });
            }
            if !names.insert(&webhook.name) {
                return Err(WebhookError::DuplicateName { name });
            }
            let answers = webhook.clone();
            let endpoint = Endpoint {
                path: webhook.path.clone(),
                is_conversion: false,
                bytes_max: ADMISSION_BYTES_MAX,
                answer: Arc::new(move |body| answers.answer(&body)),
                ..endpoint.clone()
            };
            routes.add(webhook.path.clone(), endpoint.into_handler())?;
        }
        if !self.conversions.is_empty() {
            routes.add(CONVERSION_PATH, endpoint.into_handler())?;
        }
        Ok(routes)
    }
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks")
            .field("name", &self.name)
            .field("admission", &self.admission)
            .field("conversions", &self.conversions)
            .finish_non_exhaustive()
    }
}

impl WebhookServer {
    /// Returns the address that the server is bound to, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns true if the replica has called itself successfully, and does not shut down.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.check().is_ok()
    }
}

impl fmt::Debug for WebhookServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookServer")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}
