// SPDX-License-Identifier: Apache-2.0
//! A resource outside of the cluster: a `DnsRecord` has an entry at a DNS service with an HTTP API.
//!
//! The service takes a token with each create call, so that a repeated call does not create a second entry. The [page of the
//! manual](steersman::manual::external_resources) explains what happens when the operator dies in between.

mod service;

use std::time::Duration;

use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman::{
    kit::{External, ExternalId, ExternalResource, ExternalState, Observation},
    prelude::*,
    runtime::AddError,
};

pub use self::service::DnsService;

/// Desired state of a DNS record.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "dns.example.com",
    version = "v1",
    kind = "DnsRecord",
    namespaced,
    status = "DnsRecordStatus"
)]
pub struct DnsRecordSpec {
    /// Name of the host.
    pub host: String,
    /// Address of the host.
    pub address: String,
}

/// Observed state of a DNS record.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DnsRecordStatus {
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the record.
    pub conditions: Conditions<DnsCondition>,
}

/// Conditions of a DNS record. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum DnsCondition {
    /// The service has the entry.
    Published,
}

/// An entry as the service shows it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Entry {
    /// Identifier at the service.
    pub id: String,
    /// Token of its create call.
    pub token: String,
    /// Content of the entry.
    pub spec: DnsRecordSpec,
}

/// Client of the DNS service.
#[derive(Clone, Debug)]
pub struct DnsApi {
    client: Client<HttpConnector, String>,
    /// Address of the service, such as `127.0.0.1:8053`.
    authority: String,
}

impl DnsApi {
    /// Creates a client for the service at this address.
    #[must_use]
    pub fn new(authority: impl Into<String>) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            authority: authority.into(),
        }
    }

    /// Sends a request, and returns the entry in the answer. `None` means that there is no such entry.
    async fn send(&self, method: &str, query: &str, body: String) -> Result<Option<Entry>, BoxError> {
        let uri: Uri = format!("http://{}/entries?{query}", self.authority).parse()?;
        let request = Request::builder().method(method).uri(uri).body(body)?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        match status.as_u16() {
            200 => Ok(Some(serde_json::from_slice(&body)?)),
            404 => Ok(None),
            _ => Err(format!("the DNS service answered {status}").into()),
        }
    }
}

impl External for DnsApi {
    type Desired = DnsRecordSpec;
    type Observed = DnsRecordSpec;
    const TAKES_TOKEN: bool = true;

    async fn observe(&self, known: &ExternalId) -> Result<Option<Observation<DnsRecordSpec>>, BoxError> {
        let query = match &known.id {
            Some(id) => format!("id={id}"),
            None => format!("token={}", known.token),
        };
        let found = self.send("GET", &query, String::new()).await?;
        Ok(found.map(|Entry { id, spec, .. }| Observation { id, state: spec }))
    }

    async fn create(&self, token: &str, desired: &DnsRecordSpec) -> Result<String, BoxError> {
        let body = serde_json::to_string(desired)?;
        let created = self.send("POST", &format!("token={token}"), body).await?;
        Ok(created.ok_or("the DNS service created nothing")?.id)
    }

    fn differs(&self, observed: &DnsRecordSpec, desired: &DnsRecordSpec) -> bool {
        observed != desired
    }

    async fn update(&self, id: &str, desired: &DnsRecordSpec) -> Result<(), BoxError> {
        let body = serde_json::to_string(desired)?;
        self.send("PUT", &format!("id={id}"), body).await?;
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), BoxError> {
        self.send("DELETE", &format!("id={id}"), String::new()).await?;
        Ok(())
    }
}

/// Reconciles the entry of a DNS record.
#[derive(Debug)]
pub struct DnsRecords {
    api: DnsApi,
}

/// Interval at which the service is asked for changes that others make.
const RESYNC: Duration = Duration::from_secs(300);

impl KindReconciler for DnsRecords {
    type Kind = DnsRecord;
    type Status = DnsRecordStatus;
    type Children = ();
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, record: &DnsRecord, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let entry = ExternalResource::new("entry", &self.api);
        let state = entry.ensure(record, &record.spec, work.context()).await;
        match work.report(DnsCondition::Published, state)? {
            ExternalState::Waiting(delay) => {
                work.set_unknown(
                    DnsCondition::Published,
                    "Pending",
                    "the service has no such entry yet",
                );
                Ok(Action::requeue_after(delay))
            }
            _ => Ok(Action::requeue_after(RESYNC)),
        }
    }
}

impl Cleanup for DnsRecords {
    const FINALIZER: &'static str = "dns.example.com/entry";

    async fn cleanup(&self, record: &DnsRecord, work: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        let entry = ExternalResource::new("entry", &self.api);
        entry.remove(record, work.context()).await
    }
}

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager, api: DnsApi) -> Result<Controller, AddError> {
    Controller::of::<DnsRecord>("dns")
        .when_installed()
        .add_to(manager, managed(DnsRecords { api }))
}
