// SPDX-License-Identifier: Apache-2.0
//! The tutorials of kubebuilder do what the originals do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "tutorials/programs.rs"]
mod programs;
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job};
use kube::{CustomResourceExt, ResourceExt, api::Patch};
use serde_json::{Value, json};
use steersman::cache::Query;
use steersman::cluster::Client;
use steersman::core::{Clock, MonotonicTime, ObjectKey, Sleep, TokioClock};
use steersman::kit::{lint_status, managed};
use steersman::runtime::Manager;
use steersman_examples::{
    cron_job::{self, CronJob, CronJobs},
    memcached::{self, Memcached, Memcacheds},
};
use steersman_testing::Fixture;
use support::{cluster, eventually, run};

/// Real time, with a wall clock that a test can put forward.
#[derive(Debug, Default)]
struct AheadClock {
    real: TokioClock,
    ahead_seconds: AtomicU64,
}

impl AheadClock {
    fn advance(&self, seconds: u64) {
        self.ahead_seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for AheadClock {
    fn now(&self) -> MonotonicTime {
        self.real.now()
    }

    fn wall(&self) -> SystemTime {
        self.real.wall() + Duration::from_secs(self.ahead_seconds.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, deadline: MonotonicTime) -> Sleep {
        self.real.sleep_until(deadline)
    }
}

async fn manager(fixture: &Fixture, clock: Arc<AheadClock>) -> Manager {
    let cluster = cluster(
        fixture.endpoint(),
        fixture.admin(),
        "default",
        fixture.namespace(),
    );
    Manager::builder()
        .cluster(cluster.clock(clock).build().await.unwrap())
        .build()
        .await
        .unwrap()
}

/// Returns status and reason of a condition.
fn condition(object: &impl serde::Serialize, name: &str) -> Option<(String, String)> {
    let object = serde_json::to_value(object).unwrap();
    assert_eq!(lint_status(&object), []);
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == name)?;
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    Some((text("status"), text("reason")))
}

fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

// R99, R110, R112
#[steersman_testing::test]
async fn a_memcached_has_a_deployment_of_its_size(fixture: Fixture) {
    fixture.install(&Memcached::crd()).await;
    let manager = manager(&fixture, Arc::default()).await;
    let client = manager.client().unwrap().live();
    let controller = memcached::controller();
    controller.add_to(&manager, managed(Memcacheds)).unwrap();
    let running = run(&manager);
    let key = ObjectKey::new(fixture.namespace(), "cache");
    let mut memcached = Memcached::new("cache", memcached::MemcachedSpec { size: 1 });
    memcached.metadata.namespace = Some(fixture.namespace().to_owned());
    client.create(&memcached).await.unwrap();
    let replicas = async || {
        let deployment = client.get::<Deployment>(&key).await.unwrap()?;
        deployment.spec.replicas
    };
    let ready = async || condition(&*client.get_required::<Memcached>(&key).await.unwrap(), "Ready");
    eventually(async || replicas().await == Some(1)).await;
    eventually(async || ready().await == is("Unknown", "LessReplicas")).await;

    // The size follows the spec only.
    let size = Patch::Merge(json!({"spec": {"size": 3}}));
    client.patch::<Memcached>(&key, &size).await.unwrap();
    eventually(async || replicas().await == Some(3)).await;
    let other = Patch::Merge(json!({"spec": {"replicas": 7}}));
    client.patch::<Deployment>(&key, &other).await.unwrap();
    eventually(async || replicas().await == Some(3)).await;

    serve(&client, &key).await;
    eventually(async || ready().await == is("True", "AllConditionsMet")).await;
    // The schema has the limits of the tutorial.
    let size = Patch::Merge(json!({"spec": {"size": 4}}));
    assert!(client.patch::<Memcached>(&key, &size).await.is_err());
    running.stop().await;
}

/// Sets the status that the controllers of Kubernetes set when three Pods of a Deployment serve.
async fn serve(client: &Client, key: &ObjectKey) {
    let deployment = client.get_required::<Deployment>(key).await.unwrap();
    let condition = |name: &str, reason: &str| json!({"type": name, "status": "True", "reason": reason});
    let ready = Patch::Merge(json!({"status": {
        "observedGeneration": deployment.metadata.generation,
        "replicas": 3, "updatedReplicas": 3, "availableReplicas": 3, "readyReplicas": 3,
        "conditions": [
            condition("Progressing", "NewReplicaSetAvailable"), condition("Available", "MinimumReplicasAvailable"),
        ],
    }}));
    client.patch_status::<Deployment>(key, &ready).await.unwrap();
}

fn cron_job(fixture: &Fixture, name: &str, changes: &Value) -> CronJob {
    let container = json!({"name": "task", "image": "busybox"});
    let mut spec = json!({
        "schedule": "0 0 1 1 *",
        "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}},
    });
    for (field, value) in changes.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let mut cron_job = CronJob::new(name, serde_json::from_value(spec).unwrap());
    cron_job.metadata.namespace = Some(fixture.namespace().to_owned());
    cron_job
}

/// Returns the jobs of a CronJob, in the order of their times.
async fn jobs(client: &Client, fixture: &Fixture, name: &str) -> Vec<Arc<Job>> {
    let all = client
        .list::<Job>(&Query::new().namespace(fixture.namespace()))
        .await
        .unwrap();
    let of = |job: &Arc<Job>| job.owner_references().iter().any(|owner| owner.name == name);
    let mut jobs: Vec<_> = all.into_iter().filter(of).collect();
    jobs.sort_by_key(|job| job.annotations().get(cron_job::SCHEDULED_AT).cloned());
    jobs
}

/// Ends a job, as the Job controller of Kubernetes does.
async fn end(client: &Client, job: &Job, outcome: &str) {
    let now = "2026-01-01T00:00:00Z";
    let condition =
        |name: &str| json!({"type": name, "status": "True", "reason": "", "lastTransitionTime": now});
    let (counter, before, mut status) = match outcome {
        "Complete" => ("succeeded", "SuccessCriteriaMet", json!({"completionTime": now})),
        _ => ("failed", "FailureTarget", json!({})),
    };
    status["startTime"] = json!(now);
    status[counter] = json!(1);
    status["conditions"] = json!([condition(before), condition(outcome)]);
    let key = ObjectKey::new(&job.namespace().unwrap(), &job.name_any());
    client
        .patch_status::<Job>(&key, &Patch::Merge(json!({"status": status})))
        .await
        .unwrap();
}

/// Puts the clock forward by more than a year, and waits until the CronJob was reconciled at that time.
async fn a_year_later(client: &Client, clock: &AheadClock, cron_job: &CronJob) {
    clock.advance(366 * 24 * 3600);
    let year = clock.ahead_seconds.load(Ordering::SeqCst).to_string();
    reconciled(
        client,
        cron_job,
        &json!({"jobTemplate": {"metadata": {"labels": {"year": year}}}}),
    )
    .await;
}

/// Changes the spec of a CronJob, and waits until it was reconciled.
async fn reconciled(client: &Client, cron_job: &CronJob, change: &Value) {
    let key = ObjectKey::new(&cron_job.namespace().unwrap(), &cron_job.name_any());
    let change = Patch::Merge(json!({"spec": change}));
    let changed = client.patch::<CronJob>(&key, &change).await.unwrap();
    eventually(async || {
        let found = client.get_required::<CronJob>(&key).await.unwrap();
        let observed = found
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        observed >= changed.metadata.generation
    })
    .await;
}

/// A CronJob that runs on the first of January, and its operator at a time that the test chooses.
struct Yearly {
    client: Client,
    clock: Arc<AheadClock>,
    cron_job: CronJob,
    running: support::Running,
}

impl Yearly {
    async fn new(fixture: &Fixture, changes: &Value) -> Self {
        fixture.install(&CronJob::crd()).await;
        let clock = Arc::new(AheadClock::default());
        let manager = manager(fixture, Arc::clone(&clock)).await;
        let client = manager.client().unwrap().live();
        let controller = cron_job::controller();
        controller.add_to(&manager, managed(CronJobs)).unwrap();
        let running = run(&manager);
        let cron_job = cron_job(fixture, "yearly", changes);
        let cron_job = client.create(&cron_job).await.unwrap();
        Self {
            client,
            clock,
            cron_job,
            running,
        }
    }

    async fn next(&self) {
        a_year_later(&self.client, &self.clock, &self.cron_job).await;
    }

    async fn now(&self) -> Arc<CronJob> {
        let key = ObjectKey::new(&self.cron_job.namespace().unwrap(), "yearly");
        self.client.get_required::<CronJob>(&key).await.unwrap()
    }

    /// Waits until a condition has this status and reason.
    async fn has(&self, name: &str, status: &str, reason: &str) {
        eventually(async || condition(&*self.now().await, name) == is(status, reason)).await;
    }

    async fn jobs(&self, fixture: &Fixture) -> Vec<Arc<Job>> {
        jobs(&self.client, fixture, "yearly").await
    }
}

#[steersman_testing::test]
async fn a_cron_job_runs_on_schedule_and_keeps_its_history(fixture: Fixture) {
    let yearly = Yearly::new(&fixture, &json!({"successfulJobsHistoryLimit": 1})).await;
    yearly.has("Ready", "True", "AllConditionsMet").await;
    assert_eq!(yearly.jobs(&fixture).await.len(), 0, "its time has not come");

    yearly.next().await;
    let first = yearly.jobs(&fixture).await;
    assert_eq!(first.len(), 1);
    eventually(async || yearly.now().await.status.as_ref().unwrap().active == [first[0].name_any()]).await;
    assert!(
        yearly
            .now()
            .await
            .status
            .as_ref()
            .unwrap()
            .last_schedule_time
            .is_some()
    );
    end(&yearly.client, &first[0], "Complete").await;
    yearly.has("Progressing", "False", "NoJobsActive").await;

    yearly.next().await;
    let both = yearly.jobs(&fixture).await;
    assert_eq!(both.len(), 2);
    end(&yearly.client, &both[1], "Complete").await;
    eventually(async || yearly.jobs(&fixture).await.len() == 1).await;
    assert_eq!(
        yearly.jobs(&fixture).await[0].name_any(),
        both[1].name_any(),
        "the oldest is deleted"
    );
    yearly.running.stop().await;
}

#[steersman_testing::test]
async fn a_cron_job_follows_its_concurrency_policy(fixture: Fixture) {
    let yearly = Yearly::new(&fixture, &json!({"concurrencyPolicy": "Forbid"})).await;
    yearly.next().await;
    let first = yearly.jobs(&fixture).await[0].name_any();
    yearly.next().await;
    let names = async || -> Vec<String> {
        yearly
            .jobs(&fixture)
            .await
            .iter()
            .map(|job| job.name_any())
            .collect()
    };
    assert_eq!(
        names().await,
        std::slice::from_ref(&first),
        "the first one still runs"
    );

    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"concurrencyPolicy": "Replace"}),
    )
    .await;
    eventually(async || names().await.len() == 1 && names().await[0] != first).await;

    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"concurrencyPolicy": "Allow"}),
    )
    .await;
    yearly.next().await;
    assert_eq!(names().await.len(), 2);
    yearly.running.stop().await;
}

#[steersman_testing::test]
async fn a_cron_job_reports_why_it_does_not_run(fixture: Fixture) {
    let yearly = Yearly::new(&fixture, &json!({"schedule": "whenever"})).await;
    yearly.has("Available", "False", "InvalidSchedule").await;
    yearly.has("Ready", "False", "InvalidSchedule").await;
    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"schedule": "0 0 1 1 *", "suspend": true}),
    )
    .await;
    yearly.has("Ready", "False", "Suspended").await;
    yearly.next().await;
    assert_eq!(yearly.jobs(&fixture).await.len(), 0, "it is suspended");

    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"suspend": false, "startingDeadlineSeconds": 1}),
    )
    .await;
    yearly.has("Degraded", "True", "MissedSchedule").await;
    assert_eq!(yearly.jobs(&fixture).await.len(), 0, "it is too late");

    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"startingDeadlineSeconds": null}),
    )
    .await;
    let jobs = yearly.jobs(&fixture).await;
    end(&yearly.client, &jobs[0], "Failed").await;
    yearly.has("Ready", "False", "JobsFailed").await;
    reconciled(
        &yearly.client,
        &yearly.cron_job,
        &json!({"failedJobsHistoryLimit": 0}),
    )
    .await;
    yearly.has("Ready", "True", "AllConditionsMet").await;
    assert_eq!(yearly.jobs(&fixture).await.len(), 0);
    yearly.running.stop().await;
}

/// Counts lines of code: without blank lines and comments.
fn lines(code: &str) -> usize {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    code.lines().filter(is_code).count()
}

#[test]
fn the_manual_counts_the_lines_of_the_ports_as_they_are() {
    let page = include_str!("../../crates/steersman/src/manual/tutorials.md");
    let memcached = include_str!("../src/memcached.rs");
    let (imports, rest) = memcached.split_once("/// Desired state of a Memcached.").unwrap();
    let (types, controller) = rest
        .split_once("/// Reconciles the Deployment of a Memcached.")
        .unwrap();
    let rows = [
        format!("| types | 43, and 86 generated | {} |", lines(types)),
        format!("| controller | 172 | {} |", lines(imports) + lines(controller)),
        format!(
            "| main | 128 | {} |",
            lines(include_str!("../src/bin/memcached.rs"))
        ),
        format!(
            "| types | 59, and 112 generated | {} |",
            lines(include_str!("../src/cron_job/types.rs"))
        ),
        format!(
            "| controller | 430 | {} |",
            lines(include_str!("../src/cron_job.rs"))
        ),
        format!(
            "| main | 135 | {} |",
            lines(include_str!("../src/bin/cron_job.rs"))
        ),
    ];
    for row in rows {
        assert!(page.contains(&row), "the page does not have the row {row}");
    }
    assert!(lines(memcached) - lines(types) <= 80);
}
