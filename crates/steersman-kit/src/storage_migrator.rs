// SPDX-License-Identifier: Apache-2.0
//! Rewrites stored objects after the storage version of a CRD was changed.
//!
//! An object keeps the version at which it was last written. `status.storedVersions` of the CRD names all versions that can
//! still be stored, and a version cannot be removed from the CRD while it is there. A [`StorageMigrator`] rewrites each object
//! without a change of its content, and then sets `storedVersions` to the storage version.
//!
//! # Guarantees
//! 1. `storedVersions` loses a version only after each object was rewritten, was written by another client since the migration
//!    began, or was deleted; and only if the spec of the CRD did not change meanwhile.
//! 2. A rewrite removes and changes no field; as with any write, the server adds the defaults of the storage version. It is a
//!    patch without fields, for exactly the uid and resourceVersion that were read. An object that changes meanwhile is read again.
//! 3. Without a conversion webhook, each write of an object removes the fields that the storage version does not have. An object
//!    with such a field is not rewritten, keeps `storedVersions` as it is, and is reported with the field: in the log, as an event
//!    of the CRD, and as `result="blocked"` in the metric. So is an object that the server rejects.
//! 4. After a crash or a failover, the migration continues: objects that were written since it began are skipped. Its beginning
//!    is in the annotation `steersman.dev/storage-migration` of the CRD.
//! 5. It rewrites at most [`rate`](StorageMigrator::rate) objects per second, one at a time, while this replica leads. Its writes
//!    pass the fence.
//! 6. Where the server migrates objects itself (`StorageVersionMigration`, on by default since Kubernetes 1.37), the server does
//!    it, if there is a conversion webhook or all versions have the same schema. A server without it, without its controller, or without the
//!    permission costs at most 30 s.
//!
//! # Not promised
//! Fields that no served version shows are removed by any write, and by this one.

mod figures;
mod pass;
mod plan;
mod server_side;
mod views;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    ResourceExt,
    api::{ListParams, Patch},
};
use serde_json::json;
use steersman_cluster::{ClusterName, EventType, ObjectExt};
use steersman_core::{Action, MonotonicTime, Mutex, ObjectKey, error_chain};
use steersman_endpoints::RegistrationGuard;
use steersman_runtime::{
    AddError, BoxError, Context, Controller, Declarations, KnownKind, Manager, ObjectReconciler,
};

use self::{
    figures::Figures,
    pass::{Pass, Step},
    plan::{CHECKPOINT, Plan},
    server_side::{ServerMigration, ServerSide},
};

/// Interval of the steps of a migration.
const STEP: Duration = Duration::from_secs(1);

/// Time until objects that could not be rewritten are tried again. A change of the CRD starts a migration at once.
const BLOCKED: Duration = Duration::from_secs(600);

/// Migrates the stored objects of one kind to the storage version of its CRD.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::ConfigMap as Widget;
/// use steersman_kit::StorageMigrator;
/// use steersman_runtime::{AddError, Manager};
///
/// fn add(manager: &Manager) -> Result<(), AddError> {
///     StorageMigrator::of::<Widget>().rate(100).add_to(manager)?;
///     Ok(())
/// }
/// ```
///
/// It needs the verbs `get`, `list`, `watch` and `patch` of the CRD, `patch` of `customresourcedefinitions/status`, and `get`, `list`
/// and `patch` of the kind; for migrations by the server also `get`, `create` and `delete` of
/// `storageversionmigrations.storagemigration.k8s.io`.
#[must_use = "a migrator runs once it is added to a manager"]
pub struct StorageMigrator {
    crd: String,
    rate: usize,
    settle: Duration,
    by_server: bool,
    on_every_cluster: bool,
    figures: Figures,
    progress: Arc<Mutex<BTreeMap<ClusterName, Progress>>>,
    registration: Option<RegistrationGuard>,
}

/// Progress of the migration on one cluster.
struct Progress {
    plan: Plan,
    first_seen: MonotonicTime,
    /// Set once the migration has begun.
    begun: Option<Begun>,
    by_server: bool,
    pass: Pass,
    /// Time of the last pass that could not rewrite all objects.
    blocked_at: Option<MonotonicTime>,
}

#[derive(Clone, Copy)]
struct Begun {
    at: MonotonicTime,
    /// Revision of the kind, if it is a number.
    revision: Option<u64>,
}

impl StorageMigrator {
    /// Creates a migrator for the CRD of a kind.
    pub fn of<K: KnownKind>() -> Self {
        Self::named(format!("{}.{}", K::plural(&()), K::group(&())))
    }

    /// Creates a migrator for the CRD of this name, such as `widgets.example.com`.
    pub fn named(crd: impl Into<String>) -> Self {
        Self {
            crd: crd.into(),
            rate: 50,
            settle: Duration::from_secs(10),
            by_server: true,
            on_every_cluster: false,
            figures: Figures::default(),
            progress: Arc::default(),
            registration: None,
        }
    }

    /// Maximum number of objects that are rewritten per second. Default: 50; at least 1.
    pub fn rate(mut self, per_second: usize) -> Self {
        self.rate = per_second.max(1);
        self
    }

    /// Delay between the change of the CRD and the first rewrite. A cluster can have several API servers, and each one has to see
    /// the new storage version first. Default: 10 s.
    pub fn settle(mut self, delay: Duration) -> Self {
        self.settle = delay;
        self
    }

    /// Never lets the server migrate the objects, whose rate is not limited by [`rate`](Self::rate). Default: the server does it if
    /// it can.
    pub fn without_server(mut self) -> Self {
        self.by_server = false;
        self
    }

    /// Migrates the kind on every cluster of the manager. Default: on the default cluster.
    pub fn on_every_cluster(mut self) -> Self {
        self.on_every_cluster = true;
        self
    }

    /// Adds the migrator to a manager, as a controller with the name `storage-migrator-` and the name of the CRD. It watches that
    /// one CRD, and acts when the storage version changes.
    ///
    /// # Errors
    /// As [`Builder::add_to`](steersman_runtime::Builder::add_to).
    pub fn add_to(mut self, manager: &Manager) -> Result<Controller, AddError> {
        let figures = self.figures.clone();
        self.registration = Some(manager.metrics().register(|registry| figures.register(registry)));
        let name = format!("storage-migrator-{}", self.crd);
        let builder = Controller::of::<CustomResourceDefinition>(name)
            .fields(format!("metadata.name={}", self.crd))
            .hot_loop_limit(0);
        match self.on_every_cluster {
            true => builder.on_every_cluster().add_to(manager, self),
            false => builder.add_to(manager, self),
        }
    }

    /// Takes the next step of a migration.
    async fn step(&self, progress: &mut Progress, cx: &Context) -> Result<Action, BoxError> {
        let rest = self.remaining_delay(progress, cx);
        if !rest.is_zero() {
            return Ok(Action::requeue_after(rest));
        }
        let plan = progress.plan.clone();
        let kube = cx.kube();
        let mut step = Step {
            cx,
            kube: &kube,
            plan: &plan,
            since: None,
            figures: &self.figures,
        };
        let begun = match progress.begun {
            Some(begun) => begun,
            None => *progress.begun.insert(begin(&step).await?),
        };
        step.since = begun.revision;
        if progress.by_server {
            let migration = ServerMigration::of(&plan, &kube);
            match migration.advance(begun.at, cx).await? {
                ServerSide::Running => return Ok(Action::requeue_after(STEP)),
                ServerSide::Succeeded => {
                    let action = finish(&plan, cx).await?;
                    migration.remove().await?;
                    return Ok(action);
                }
                ServerSide::Unavailable => progress.by_server = false,
            }
        }
        if !progress.pass.advance(&step, self.rate).await? {
            return Ok(Action::requeue_after(STEP));
        }
        let Pass {
            migrated, blocked, ..
        } = progress.pass;
        if blocked > 0 {
            progress.pass = Pass::default();
            progress.blocked_at = Some(cx.clock().now());
            report_blocked(&plan, blocked, cx);
            return Ok(Action::requeue_after(BLOCKED));
        }
        tracing::info!(crd = plan.crd, migrated, "all objects have the storage version");
        finish(&plan, cx).await
    }

    /// Time until the next step: until all API servers have seen the CRD, or objects that were blocked are tried again.
    fn remaining_delay(&self, progress: &Progress, cx: &Context) -> Duration {
        let rest_of = |delay: Duration, since| delay.saturating_sub(cx.clock().now().saturating_since(since));
        match progress.blocked_at {
            Some(at) => rest_of(BLOCKED, at),
            None if progress.begun.is_some() || progress.plan.checkpoint.is_some() => Duration::ZERO,
            None => rest_of(self.settle, progress.first_seen),
        }
    }

    /// Takes the progress of this migration, or begins anew if the CRD has changed.
    fn taken(&self, plan: Plan, cx: &Context) -> Progress {
        let known = self.progress.lock().remove(cx.cluster().name());
        match known.filter(|known| known.plan.is_same(&plan)) {
            Some(known) => Progress { plan, ..known },
            None => Progress {
                by_server: self.by_server && plan.is_uniform,
                plan,
                first_seen: cx.clock().now(),
                begun: None,
                pass: Pass::default(),
                blocked_at: None,
            },
        }
    }
}

impl ObjectReconciler<CustomResourceDefinition> for StorageMigrator {
    type Error = BoxError;

    fn declare(&self, declarations: &mut Declarations) {
        let (progress, figures, crd) = (Arc::clone(&self.progress), self.figures.clone(), self.crd.clone());
        declarations.on_cluster_removed(move |cluster| {
            progress.lock().remove(cluster);
            figures.forget(cluster, &crd);
        });
    }

    async fn on_deleted(&self, _: ObjectKey, cx: Context) -> Result<Action, BoxError> {
        let cluster = cx.cluster().name();
        self.progress.lock().remove(cluster);
        self.figures.forget(cluster, &self.crd);
        Ok(Action::await_change())
    }

    async fn reconcile(&self, crd: Arc<CustomResourceDefinition>, cx: Context) -> Result<Action, BoxError> {
        if crd.name_any() != self.crd {
            return Ok(Action::await_change());
        }
        let cluster = cx.cluster().name();
        let plan = Plan::of(&crd);
        let old_versions = plan.as_ref().map_or(0, |plan| plan.old.len());
        self.figures.set_old_versions(cluster, &self.crd, old_versions);
        let Some(plan) = plan else {
            self.progress.lock().remove(cluster);
            self.figures.set_remaining(cluster, &self.crd, 0);
            return Ok(Action::await_change());
        };
        // A reconcile that is cancelled drops its progress; the next one continues at the checkpoint.
        let mut progress = self.taken(plan, &cx);
        let action = self.step(&mut progress, &cx).await;
        self.progress.lock().insert(cluster.clone(), progress);
        action
    }
}

/// Begins a migration, or continues one at its checkpoint.
async fn begin(step: &Step<'_>) -> Result<Begun, BoxError> {
    let (plan, cx) = (step.plan, step.cx);
    let (crd, storage, old) = (&*plan.crd, &*plan.storage, &plan.old);
    let at = cx.clock().now();
    if let Some(revision) = plan.checkpoint {
        tracing::info!(crd, storage, ?old, revision, "continuing storage migration");
        let revision = Some(revision);
        return Ok(Begun { at, revision });
    }
    let first = step
        .objects()?
        .list_metadata(&ListParams::default().limit(1))
        .await?;
    let revision = first
        .metadata
        .resource_version
        .and_then(|version| version.parse().ok());
    tracing::info!(crd, storage, ?old, revision, "starting storage migration");
    if let Some(revision) = revision {
        let annotations = json!({CHECKPOINT: plan.checkpoint_at(revision)});
        let patch = Patch::Merge(json!({"metadata": {"uid": plan.uid, "annotations": annotations}}));
        let key = ObjectKey::new("", crd);
        match cx.client().patch::<CustomResourceDefinition>(&key, &patch).await {
            Ok(_) => {}
            Err(error) if error.is_forbidden() => {
                let error = error_chain(&error);
                let hint = "grant `patch` of the CRD, so that a restart does not begin anew";
                tracing::warn!(
                    crd,
                    error,
                    hint,
                    "cannot store the beginning of the storage migration"
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Begun { at, revision })
}

/// Sets `storedVersions` to the storage version, if the CRD has not changed since the migration began.
async fn finish(plan: &Plan, cx: &Context) -> Result<Action, BoxError> {
    let key = ObjectKey::new("", &plan.crd);
    let client = cx.client();
    let Some(newest) = client.live().get::<CustomResourceDefinition>(&key).await? else {
        return Ok(Action::await_change());
    };
    if !Plan::of(&newest).is_some_and(|newest| newest.is_same(plan)) || newest.is_being_deleted() {
        // The change of the CRD triggers a reconcile.
        return Ok(Action::await_change());
    }
    let patch = Patch::Merge(json!({
        "metadata": {"uid": plan.uid, "resourceVersion": newest.metadata.resource_version},
        "status": {"storedVersions": [plan.storage]},
    }));
    match client
        .patch_status::<CustomResourceDefinition>(&key, &patch)
        .await
    {
        Ok(_) => {
            let (crd, storage) = (&*plan.crd, &*plan.storage);
            tracing::info!(crd, storage, "storage migration completed");
            let note = format!("All objects are stored at {storage}");
            let recorder = cx.recorder();
            recorder.event(&*newest, EventType::Normal, "StorageMigrated", "Migrating", &note);
            Ok(Action::await_change())
        }
        // The CRD changed since it was read: check it again.
        Err(error) if error.is_conflict() => Ok(Action::requeue()),
        Err(error) if error.is_not_found() => Ok(Action::await_change()),
        Err(error) => Err(error.into()),
    }
}

fn report_blocked(plan: &Plan, blocked: u64, cx: &Context) {
    let (crd, old) = (&*plan.crd, plan.old.join(", "));
    tracing::warn!(
        crd,
        blocked,
        "storage migration is incomplete; retrying in 10 min"
    );
    let note =
        format!("{blocked} objects cannot be rewritten and might be stored at {old}; the log names them");
    let key = ObjectKey::new("", crd);
    let about = CustomResourceDefinition {
        metadata: kube::api::ObjectMeta {
            name: Some(key.name().to_owned()),
            uid: Some(plan.uid.clone()),
            ..Default::default()
        },
        ..Default::default()
    };
    let recorder = cx.recorder();
    recorder.event(
        &about,
        EventType::Warning,
        "StorageMigrationBlocked",
        "Migrating",
        &note,
    );
}

impl fmt::Debug for StorageMigrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageMigrator")
            .field("crd", &self.crd)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}
