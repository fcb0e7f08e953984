// SPDX-License-Identifier: Apache-2.0
//! The custom resources of the benchmarks, as an operator's author would write them down.

#![allow(
    clippy::exhaustive_structs,
    reason = "this is how an operator's author writes them"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Spec of a Widget.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Widget",
    namespaced,
    status = "Status"
)]
#[serde(rename_all = "camelCase")]
pub struct WidgetSpec {
    /// Its color.
    pub color: String,
    /// Container image.
    pub image: String,
    /// Number of replicas.
    pub replicas: i32,
    /// Its size.
    pub size: String,
    /// Endpoints.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
}

/// Spec of a Gadget.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "bench.example",
    version = "v1",
    kind = "Gadget",
    namespaced,
    status = "Status"
)]
#[serde(rename_all = "camelCase")]
pub struct GadgetSpec {
    /// Its color.
    pub color: String,
    /// Container image.
    pub image: String,
    /// Number of replicas.
    pub replicas: i32,
    /// Its size.
    pub size: String,
    /// Endpoints.
    #[serde(default)]
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Endpoint {
    /// The host.
    pub host: String,
    /// The port.
    pub port: i32,
}

/// Status.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Number of ready replicas.
    pub ready_replicas: i32,
    /// Conditions.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// One aspect of how it stands.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect.
    #[serde(rename = "type")]
    pub type_: String,
    /// Status of the condition.
    pub status: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub last_transition_time: String,
}
