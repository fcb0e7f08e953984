// SPDX-License-Identifier: Apache-2.0
//! A controller for a kind that is known only at run time: it labels each object that does not have the label.
//!
//! It looks up the resource name and the scope on the server; objects are JSON.

use serde_json::json;
use steersman::{
    cache::Resource,
    cluster::{MapError, ResourceQuery},
    kube::{ResourceExt, api::Patch},
    prelude::*,
    runtime::AddError,
};

/// Label that every object gets.
pub const LABEL: &str = "examples.steersman.dev/team";

/// Adds the label of a team to objects.
#[derive(Debug)]
pub struct Tags {
    resource: Resource,
    team: String,
}

/// Looks up a kind such as `Deployment` of a group such as `apps`, in the version that the server prefers.
///
/// # Errors
/// When the server does not have it, or does not answer.
pub async fn find(cluster: &Cluster, group: &str, kind: &str) -> Result<Resource, MapError> {
    let mapping = cluster
        .mapper()
        .resolve(&ResourceQuery::kind(group, kind))
        .await?;
    Ok(mapping.resource().clone())
}

/// Adds the controller.
///
/// # Errors
/// When the manager rejects it.
pub fn add(manager: &Manager, resource: &Resource, team: &str) -> Result<Controller, AddError> {
    let reconciler = Tags {
        resource: resource.clone(),
        team: team.to_owned(),
    };
    Controller::of_kind(format!("tags-{}", resource.plural()), dynamic(resource.clone()))
        .add_to(manager, reconciler)
}

impl Reconciler for Tags {
    type Error = ClientError;

    async fn reconcile(&self, request: Request, cx: Context) -> Result<Action, ClientError> {
        let objects = cx.client().of(&self.resource);
        let Some(object) = objects.get(request.key()).await? else {
            return Ok(Action::await_change());
        };
        if !object.labels().contains_key(LABEL) {
            let label = Patch::Merge(json!({"metadata": {"labels": {LABEL: self.team}}}));
            objects.patch(request.key(), &label).await?;
        }
        Ok(Action::await_change())
    }
}
