// SPDX-License-Identifier: Apache-2.0
//! The types of a `CronJob`.

use k8s_openapi::{api::batch::v1::JobTemplateSpec, apimachinery::pkg::apis::meta::v1::Time};
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use steersman::prelude::*;

/// Desired state of a CronJob.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "batch.tutorial.example.com",
    version = "v1",
    kind = "CronJob",
    namespaced,
    status = "CronJobStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct CronJobSpec {
    /// Schedule in cron format, in UTC.
    pub schedule: String,
    /// Deadline in seconds for starting a job that missed its time. Default: none.
    #[schemars(range(min = 0))]
    pub starting_deadline_seconds: Option<i64>,
    /// Treatment of a run while another one is active. Default: `Allow`.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Stops further runs. Default: false.
    #[serde(default)]
    pub suspend: bool,
    /// Job of a run.
    #[schemars(schema_with = "any_object")]
    pub job_template: JobTemplateSpec,
    /// Number of successful jobs to keep. Default: all.
    #[schemars(range(min = 0))]
    pub successful_jobs_history_limit: Option<usize>,
    /// Number of failed jobs to keep. Default: all.
    #[schemars(range(min = 0))]
    pub failed_jobs_history_limit: Option<usize>,
}

/// Treatment of a run while another one is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ConcurrencyPolicy {
    /// Runs at the same time are allowed.
    #[default]
    Allow,
    /// The new run is skipped.
    Forbid,
    /// The new run replaces the active one.
    Replace,
}

/// Observed state of a CronJob.
#[derive(Status, Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// Names of the jobs that run.
    pub active: Vec<String>,
    /// Time of the last run.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    pub last_schedule_time: Option<Time>,
    /// Generation of the spec that this status is about.
    pub observed_generation: Option<i64>,
    /// Conditions of the CronJob.
    pub conditions: Conditions<CronJobCondition>,
}

/// Conditions of a CronJob. Their summary is `Ready`.
#[derive(ConditionSet, Clone, Copy, Debug)]
pub enum CronJobCondition {
    /// The schedule is valid and not suspended.
    Available,
    /// A job runs.
    #[condition(informational)]
    Progressing,
    /// Jobs have failed, or missed their time.
    #[condition(negative)]
    Degraded,
}

/// The schema of a job template: the API server validates the template when it creates a job.
fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
