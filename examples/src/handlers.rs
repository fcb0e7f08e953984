// SPDX-License-Identifier: Apache-2.0
//! Several independent handlers for one kind, each with its own condition.
//!
//! The handlers share one watch, one queue and one write of the status, and no two of them work on one object at the same time.
//! A handler that fails sets its condition to `False`, and the other one runs all the same.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use steersman::{
    cluster::DeleteOptions,
    k8s_openapi::{self, api::core::v1::Service},
    kit::StatusHandler,
    kube::{ResourceExt, api::Patch},
    prelude::*,
    runtime::AddError,
};

/// Label of the Services that are handled.
pub const HANDLED: &str = "examples.steersman.dev/handled";

/// Annotation with the lifetime of a Service, in seconds since its creation.
pub const TTL: &str = "examples.steersman.dev/ttl-seconds";

/// Label that every handled Service gets: the number of its ports.
pub const PORTS: &str = "examples.steersman.dev/ports";

/// Conditions of the two handlers, beside those of other controllers.
#[derive(Clone, ConditionSet, Copy, Debug)]
#[conditions(no_summary)]
pub enum Cond {
    /// The Service has its label.
    #[condition(name = "examples.steersman.dev/Labelled")]
    Labelled,
    /// The lifetime of the Service is known.
    #[condition(name = "examples.steersman.dev/Expiring")]
    Expiring,
}

/// The part of the status of a Service that these handlers set.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize, Status)]
#[status(of(Service))]
#[serde(default)]
pub struct ServiceStatus {
    conditions: Conditions<Cond>,
}

/// Runs the handlers.
#[derive(Debug)]
struct Services;

impl KindReconciler for Services {
    type Kind = Service;
    type Status = ServiceStatus;
    type Children = ();
    type Finalizer = NoCleanup;

    async fn reconcile(&self, service: &Service, work: &mut Work<Self>) -> Result<Action, BoxError> {
        work.handle(&Labels, service).await;
        work.handle(&Expiry, service).await;
        Ok(Action::await_change())
    }
}

/// Adds a controller with two handlers.
///
/// # Errors
/// When it cannot be added to the manager.
pub fn add(manager: &Manager) -> Result<Controller, AddError> {
    Controller::of::<Service>("services")
        .labels(HANDLED)
        .workers(2)
        .add_to(manager, managed(Services))
}

/// Labels each Service with the number of its ports.
struct Labels;

impl StatusHandler<Services> for Labels {
    const CONDITION: Cond = Cond::Labelled;

    async fn handle(&self, service: &Service, work: &mut Work<Services>) -> Result<Action, BoxError> {
        let spec = service.spec.as_ref();
        let ports = spec
            .and_then(|spec| spec.ports.as_ref())
            .map_or(0, Vec::len)
            .to_string();
        if service.labels().get(PORTS) != Some(&ports) {
            let label = Patch::Merge(json!({"metadata": {"labels": {PORTS: ports}}}));
            let client = work.context().client();
            client.patch::<Service>(&service.key(), &label).await?;
        }
        Ok(Action::await_change())
    }
}

/// Deletes Services whose lifetime is over, and requeues the others for that time.
struct Expiry;

impl StatusHandler<Services> for Expiry {
    const CONDITION: Cond = Cond::Expiring;

    async fn handle(&self, service: &Service, work: &mut Work<Services>) -> Result<Action, BoxError> {
        let Some(ttl) = service.annotations().get(TTL) else {
            return Ok(Action::await_change());
        };
        let ttl = Duration::from_secs(ttl.parse().map_err(terminal)?);
        let age = service
            .creation_timestamp()
            .map_or(Duration::ZERO, |time| age(&time));
        if age < ttl {
            return Ok(Action::requeue_after(ttl - age));
        }
        let client = work.context().client();
        match client
            .delete::<Service>(&service.key(), DeleteOptions::default())
            .await
        {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(Action::await_change()),
        }
    }
}

/// Returns the age, as far as the clocks of the server and of this machine agree.
fn age(time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time) -> Duration {
    let since = k8s_openapi::jiff::Timestamp::now().duration_since(time.0);
    Duration::try_from(since).unwrap_or_default()
}
