// SPDX-License-Identifier: Apache-2.0
//! Metrics of webhooks, with the names of controller-runtime.

use std::{
    sync::atomic::{AtomicI64, AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Buckets of controller-runtime: from 10 ns, each ten times the last, multiplied as in Go.
const LATENCY_SECONDS: [f64; 12] = {
    let mut buckets = [10e-9; 12];
    let mut index = 1;
    while index < buckets.len() {
        buckets[index] = buckets[index - 1] * 10.0;
        index += 1;
    }
    buckets
};

/// Metrics of one webhook server. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    requests: Family<RequestLabels, Counter>,
    latency: Family<WebhookLabels, Histogram, fn() -> Histogram>,
    in_flight: Family<WebhookLabels, Gauge<i64, AtomicI64>>,
    panics: Counter,
    conversion_panics: Counter,
    expiry: Family<CertificateLabels, Gauge<f64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    webhook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: u16,
    webhook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    certificate: &'static str,
}

/// Counts a request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Gauge<i64, AtomicI64>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            requests: Family::default(),
            latency: Family::new_with_constructor(|| Histogram::new(LATENCY_SECONDS)),
            in_flight: Family::default(),
            panics: Counter::default(),
            conversion_panics: Counter::default(),
            expiry: Family::default(),
        }
    }

    /// Creates the series of a webhook, so that rates start at zero.
    pub(crate) fn add_webhook(&self, webhook: &str) {
        for code in [200, 500] {
            drop(self.requests.get_or_create(&request_labels(webhook, code)));
        }
        drop(self.latency.get_or_create(&webhook_labels(webhook)));
        drop(self.in_flight.get_or_create(&webhook_labels(webhook)));
    }

    pub(crate) fn begin(&self, webhook: &str) -> InFlight {
        let gauge = self.in_flight.get_or_create_owned(&webhook_labels(webhook));
        gauge.inc();
        InFlight(gauge)
    }

    pub(crate) fn answered(&self, webhook: &str, code: u16, took: Duration) {
        self.requests.get_or_create(&request_labels(webhook, code)).inc();
        let latency = self.latency.get_or_create(&webhook_labels(webhook));
        latency.observe(took.as_secs_f64());
    }

    pub(crate) fn panicked(&self, is_conversion: bool) {
        if is_conversion {
            self.conversion_panics.inc();
        } else {
            self.panics.inc();
        }
    }

    /// Sets the expiry of a certificate, in seconds of Unix time.
    pub(crate) fn expires(&self, certificate: &'static str, at: std::time::SystemTime) {
        let seconds = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let labels = CertificateLabels { certificate };
        self.expiry.get_or_create(&labels).set(seconds.as_secs_f64());
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "controller_runtime_webhook_requests_total",
            "Total number of admission requests by HTTP status code",
            self.requests.clone(),
        );
        registry.register(
            "controller_runtime_webhook_latency_seconds",
            "Histogram of the latency of processing admission requests",
            self.latency.clone(),
        );
        registry.register(
            "controller_runtime_webhook_requests_in_flight",
            "Current number of admission requests being served",
            self.in_flight.clone(),
        );
        registry.register(
            "controller_runtime_webhook_panics_total",
            "Total number of webhook panics",
            self.panics.clone(),
        );
        registry.register(
            "controller_runtime_conversion_webhook_panics_total",
            "Total number of conversion webhook panics",
            self.conversion_panics.clone(),
        );
        registry.register(
            "steersman_webhook_certificate_expiration_timestamp_seconds",
            "Expiry of the serving certificate (leaf) and of the CA that signs it, in seconds of Unix time",
            self.expiry.clone(),
        );
    }
}

fn webhook_labels(webhook: &str) -> WebhookLabels {
    let webhook = webhook.to_owned();
    WebhookLabels { webhook }
}

fn request_labels(webhook: &str, code: u16) -> RequestLabels {
    let webhook = webhook.to_owned();
    RequestLabels { code, webhook }
}
