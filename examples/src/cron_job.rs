// SPDX-License-Identifier: Apache-2.0
//! kubebuilder's CronJob tutorial: a `CronJob` creates a Job whenever its schedule says so.
//!
//! The [page of the manual](steersman::manual::tutorials) compares it with the original.

mod types;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use croner::{Cron, errors::CronError};
use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{Timestamp, tz::TimeZone},
};
use kube::{ResourceExt, api::DeleteParams};
use steersman::{Program, kit::ConditionStatus, prelude::*, runtime::Builder};

pub use types::{ConcurrencyPolicy, CronJob, CronJobCondition, CronJobSpec, CronJobStatus};

/// Annotation of a Job: the time in the schedule that it was created for.
pub const SCHEDULED_AT: &str = "batch.tutorial.example.com/scheduled-at";

/// Reconciles CronJobs.
#[derive(Debug)]
pub struct CronJobs;

impl KindReconciler for CronJobs {
    type Kind = CronJob;
    type Status = CronJobStatus;
    type Children = (Job,);
    type Finalizer = NoCleanup;

    async fn reconcile(&self, cron_job: &CronJob, work: &mut Work<Self>) -> Result<Action, BoxError> {
        let spec = &cron_job.spec;
        let before = work.status().last_schedule_time.as_ref().map(|time| time.0);
        let jobs = Jobs::of(work.owned().await?, before);
        jobs.report(work);
        delete(work, oldest(&jobs.failed, spec.failed_jobs_history_limit)).await?;
        delete(work, oldest(&jobs.complete, spec.successful_jobs_history_limit)).await?;
        if spec.suspend {
            work.set_false(
                CronJobCondition::Available,
                "Suspended",
                "the CronJob is suspended",
            );
            return Ok(Action::await_change());
        }

        let now = Timestamp::try_from(work.context().clock().wall())?;
        let created = cron_job.creation_timestamp().map(|created| created.0);
        let (run, next) = match runs(&spec.schedule, now, jobs.last.max(created)) {
            Ok(runs) => runs,
            Err(error) => {
                // Only a change of the spec can help, and it triggers a reconcile.
                work.set_false(CronJobCondition::Available, "InvalidSchedule", error);
                return Ok(Action::await_change());
            }
        };
        work.set_true(CronJobCondition::Available);
        let until_next = Action::requeue_after(Duration::try_from(next - now)?);
        let Some(run) = run else { return Ok(until_next) };

        let deadline = spec.starting_deadline_seconds;
        if deadline.is_some_and(|seconds| run.as_second() + seconds < now.as_second()) {
            let message = format!("the run of {run} missed its deadline");
            work.set(
                CronJobCondition::Degraded,
                ConditionStatus::True,
                "MissedSchedule",
                message,
            );
            return Ok(until_next);
        }
        match spec.concurrency_policy {
            ConcurrencyPolicy::Forbid if !jobs.active.is_empty() => return Ok(until_next),
            ConcurrencyPolicy::Replace => delete(work, &jobs.active).await?,
            _ => {}
        }
        work.child(CronJobCondition::Progressing, job(cron_job, run))
            .await;
        Ok(until_next)
    }
}

/// The jobs of one CronJob, in the order of the schedule.
struct Jobs {
    active: Vec<Arc<Job>>,
    failed: Vec<Arc<Job>>,
    complete: Vec<Arc<Job>>,
    last: Option<Timestamp>,
}

impl Jobs {
    /// Sorts the jobs. `before` is the last run that the status knows: its job can be deleted.
    fn of(mut jobs: Vec<Arc<Job>>, before: Option<Timestamp>) -> Self {
        jobs.sort_by_key(|job| scheduled_at(job));
        let last = jobs.last().and_then(|job| scheduled_at(job)).max(before);
        let split = |jobs: Vec<Arc<Job>>, outcome| -> (Vec<Arc<Job>>, Vec<Arc<Job>>) {
            jobs.into_iter().partition(|job| has_ended(job, outcome))
        };
        let (failed, others) = split(jobs, "Failed");
        let (complete, active) = split(others, "Complete");
        Self {
            active,
            failed,
            complete,
            last,
        }
    }

    fn report(&self, work: &mut Work<CronJobs>) {
        work.status_mut().active = self.active.iter().map(|job| job.name_any()).collect();
        work.status_mut().last_schedule_time = self.last.map(Time);
        match self.active.len() {
            0 => work.set_false(CronJobCondition::Progressing, "NoJobsActive", ""),
            _ => work.set_true(CronJobCondition::Progressing),
        }
        match self.failed.len() {
            0 => work.set_false(CronJobCondition::Degraded, "NoJobsFailed", ""),
            count => {
                let message = format!("{count} jobs have failed");
                work.set(
                    CronJobCondition::Degraded,
                    ConditionStatus::True,
                    "JobsFailed",
                    message,
                );
            }
        }
    }
}

/// Returns the run that is due, if it is later than `earliest`, and the time of the next one.
fn runs(
    schedule: &str,
    now: Timestamp,
    earliest: Option<Timestamp>,
) -> Result<(Option<Timestamp>, Timestamp), CronError> {
    let (schedule, now) = (schedule.parse::<Cron>()?, now.to_zoned(TimeZone::UTC));
    let run = schedule.find_previous_occurrence(&now, true)?.timestamp();
    let next = schedule.find_next_occurrence(&now, false)?.timestamp();
    Ok(((Some(run) > earliest).then_some(run), next))
}

fn scheduled_at(job: &Job) -> Option<Timestamp> {
    job.annotations().get(SCHEDULED_AT)?.parse().ok()
}

fn has_ended(job: &Job, outcome: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == outcome && one.status == "True"))
}

/// Returns the jobs beyond the limit.
fn oldest(jobs: &[Arc<Job>], limit: Option<usize>) -> &[Arc<Job>] {
    let count = limit.map_or(0, |limit| jobs.len().saturating_sub(limit));
    &jobs[..count]
}

async fn delete(work: &Work<CronJobs>, jobs: &[Arc<Job>]) -> Result<(), steersman::cluster::Error> {
    let client = work.context().client();
    for job in jobs {
        let key = job.key();
        client
            .delete_if_exists::<Job>(&key, DeleteParams::background())
            .await?;
    }
    Ok(())
}

/// Returns the job of a run. Its name depends on the time alone, so that no run gets two jobs.
fn job(cron_job: &CronJob, run: Timestamp) -> Job {
    let template = cron_job.spec.job_template.clone();
    let mut job = Job {
        metadata: template.metadata.unwrap_or_default(),
        spec: template.spec,
        ..Job::default()
    };
    job.metadata.name = Some(format!("{}-{}", cron_job.name_any(), run.as_second()));
    let scheduled = BTreeMap::from([(SCHEDULED_AT.to_owned(), run.to_string())]);
    job.metadata.annotations.get_or_insert_default().extend(scheduled);
    job
}

/// Returns the controller.
pub fn controller() -> Builder<Request, CronJob> {
    Controller::of::<CronJob>("cron-job").when_installed()
}

/// Returns the program of the operator.
pub fn program() -> Program {
    steersman::program("cron-job-operator")
        .crd::<CronJob>()
        .controller(controller(), managed(CronJobs))
}
