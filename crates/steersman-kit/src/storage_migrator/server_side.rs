// SPDX-License-Identifier: Apache-2.0
//! Migrations by the API server's own controller: a StorageVersionMigration of `storagemigration.k8s.io`.

use std::time::Duration;

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use steersman_core::{MonotonicTime, error_chain};
use steersman_runtime::{BoxError, Context};

use super::{pass::status, plan::Plan};

/// Time in which the controller of the server has to accept a migration. It is a part of kube-controller-manager, which can
/// run without it while the API is served.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(30);

/// State of a migration by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerSide {
    Running,
    Succeeded,
    /// The server has no such API, forbids it, does not act on it, or failed.
    Unavailable,
}

/// A migration by the server, by the name of its object.
pub(super) struct ServerMigration<'a> {
    migrations: Api<DynamicObject>,
    plan: &'a Plan,
    name: String,
}

impl<'a> ServerMigration<'a> {
    pub(super) fn of(plan: &'a Plan, kube: &kube::Client) -> Self {
        let gvk = GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "storageversionmigrations");
        let Plan {
            crd,
            storage,
            generation,
            uid,
            ..
        } = plan;
        Self {
            migrations: Api::all_with(kube.clone(), &resource),
            name: format!("{crd}-{storage}-{generation}-{}", uid.get(..8).unwrap_or(uid)),
            plan,
        }
    }

    /// Creates the migration if it does not exist, and returns its state. `since` is the time of the first call.
    pub(super) async fn advance(&self, since: MonotonicTime, cx: &Context) -> Result<ServerSide, BoxError> {
        let found = match self.migrations.get_opt(&self.name).await {
            Ok(Some(found)) => found,
            // The API is absent too if this is `None`; the creation shows it.
            Ok(None) => match self.create(cx).await {
                Ok(created) => created,
                Err(error) => return unless_transient(error),
            },
            Err(error) => return unless_transient(error),
        };
        let status = found.data.get("status");
        let is_true = |name: &str| condition(status, name).is_some_and(|it| it["status"] == "True");
        if is_true("Succeeded") {
            return Ok(ServerSide::Succeeded);
        }
        if is_true("Failed") {
            let message = condition(status, "Failed").and_then(|it| it["message"].as_str());
            let (crd, error) = (&*self.plan.crd, message.unwrap_or_default());
            tracing::warn!(
                crd,
                error,
                "the server failed to migrate objects; rewriting them one by one"
            );
            self.remove().await?;
            return Ok(ServerSide::Unavailable);
        }
        let is_accepted = status.is_some_and(|status| !status["resourceVersion"].is_null());
        if !is_accepted && cx.clock().now().saturating_since(since) >= ACCEPTED_WITHIN {
            let crd = &*self.plan.crd;
            tracing::info!(
                crd,
                "no controller of the server accepts storage migrations; rewriting the objects one by one"
            );
            self.remove().await?;
            return Ok(ServerSide::Unavailable);
        }
        Ok(ServerSide::Running)
    }

    /// Deletes the migration, if it exists.
    pub(super) async fn remove(&self) -> Result<(), BoxError> {
        match self.migrations.delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            // It stays, and has no effect any more.
            Err(error) => unless_transient(error).map(drop),
        }
    }

    async fn create(&self, cx: &Context) -> Result<DynamicObject, kube::Error> {
        let (plural, group) = self.plan.crd.split_once('.').unwrap_or((&self.plan.crd, ""));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "storagemigration.k8s.io",
            "v1",
            "StorageVersionMigration",
        ));
        let mut migration = DynamicObject::new(&self.name, &resource);
        migration.data = json!({"spec": {"resource": {"group": group, "resource": plural}}});
        let params = PostParams {
            field_manager: Some(cx.field_manager().to_owned()),
            ..PostParams::default()
        };
        match self.migrations.create(&params, &migration).await {
            Err(error) if status(&error).is_some_and(|status| status.code == 409) => {
                self.migrations.get(&self.name).await
            }
            created => created,
        }
    }
}

/// A server that rejects the request has no such API or forbids it; other errors are retried.
fn unless_transient(error: kube::Error) -> Result<ServerSide, BoxError> {
    match status(&error).map_or(0, |status| status.code) {
        400 | 403..=405 | 422 => {
            tracing::debug!(error = error_chain(&error), "cannot use StorageVersionMigration");
            Ok(ServerSide::Unavailable)
        }
        _ => Err(error.into()),
    }
}

fn condition<'s>(status: Option<&'s Value>, name: &str) -> Option<&'s Value> {
    let conditions = status?.get("conditions")?.as_array()?;
    conditions.iter().find(|condition| condition["type"] == name)
}
