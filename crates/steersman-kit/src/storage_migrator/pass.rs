// SPDX-License-Identifier: Apache-2.0
//! One pass over the objects of a kind, page by page, which rewrites each object.

use std::collections::VecDeque;

use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, Status},
};
use serde_json::json;
use steersman_core::{ObjectKey, error_chain};
use steersman_runtime::{BoxError, Context};

use super::{
    figures::Figures,
    plan::Plan,
    views::{View, lost_field},
};

/// Number of objects of one page. Only their metadata is listed.
const PAGE: u32 = 500;

/// Number of attempts to rewrite an object on which the server reports conflicts.
const TRIES: u32 = 5;

/// Number of objects of one pass that a warning is logged for.
const WARNINGS: u64 = 10;

/// State of a pass. It is in memory only: a new pass skips the objects that were written since the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pending: VecDeque<Listed>,
    next: Next,
    /// Objects that were rewritten, or that another client has written meanwhile.
    pub(super) migrated: u64,
    /// Objects that cannot be rewritten.
    pub(super) blocked: u64,
}

#[derive(Debug, Default)]
enum Next {
    #[default]
    FirstPage,
    Page(String),
    End,
}

/// An object of a page.
#[derive(Clone, Debug)]
struct Listed {
    key: ObjectKey,
    uid: String,
    resource_version: String,
}

/// Requests of one step of a pass.
pub(super) struct Step<'a> {
    pub(super) cx: &'a Context,
    pub(super) kube: &'a kube::Client,
    pub(super) plan: &'a Plan,
    /// Revision at the beginning of the migration: newer objects have the storage version.
    pub(super) since: Option<u64>,
    pub(super) figures: &'a Figures,
}

/// Result of rewriting an object.
enum Rewrite {
    Rewritten,
    /// Another client has written it since the migration began.
    Changed,
    Gone,
    Blocked(String),
}

impl Pass {
    /// Rewrites up to `limit` objects. Returns true at the end of the pass.
    ///
    /// An object leaves the pass only after its outcome is known: after an error, the next step begins with the same object.
    pub(super) async fn advance(&mut self, step: &Step<'_>, limit: usize) -> Result<bool, BoxError> {
        while self.pending.is_empty() {
            if matches!(self.next, Next::End) {
                return Ok(true);
            }
            self.turn_page(step).await?;
        }
        for _ in 0..limit {
            let Some(object) = self.pending.front() else {
                break;
            };
            let outcome = step.rewrite(object).await?;
            self.note(step, outcome);
        }
        Ok(self.pending.is_empty() && matches!(self.next, Next::End))
    }

    fn note(&mut self, step: &Step<'_>, outcome: Rewrite) {
        let Some(object) = self.pending.pop_front() else {
            return;
        };
        let result = match outcome {
            Rewrite::Rewritten => "rewritten",
            Rewrite::Changed => "changed",
            Rewrite::Gone => "gone",
            Rewrite::Blocked(reason) => {
                self.blocked += 1;
                if self.blocked <= WARNINGS {
                    let (crd, object) = (&*step.plan.crd, object.key.to_string());
                    tracing::warn!(
                        crd,
                        object,
                        error = reason,
                        "cannot rewrite object at the storage version"
                    );
                }
                "blocked"
            }
        };
        if matches!(result, "rewritten" | "changed") {
            self.migrated += 1;
        }
        step.figures
            .processed(step.cx.cluster().name(), &step.plan.crd, result);
    }

    /// Lists the next page, and keeps the objects that need a rewrite.
    async fn turn_page(&mut self, step: &Step<'_>) -> Result<(), BoxError> {
        let mut params = ListParams::default().limit(PAGE);
        if let Next::Page(token) = &self.next {
            params = params.continue_token(token);
        }
        let page = match step.objects()?.list_metadata(&params).await {
            Ok(page) => page,
            Err(error) if status(&error).is_some_and(|status| status.code == 410) => {
                // The server has compacted the revision of the first page. It offers a token for the rest in its newest state.
                let offered = status(&error).and_then(|status| status.metadata.as_ref()?.continue_.clone());
                self.next = offered
                    .filter(|token| !token.is_empty())
                    .map_or(Next::FirstPage, Next::Page);
                tracing::debug!(
                    crd = step.plan.crd,
                    "list expired during a storage migration; continuing"
                );
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let metadata = page.metadata;
        let token = metadata.continue_.filter(|token| !token.is_empty());
        self.next = token.map_or(Next::End, Next::Page);
        let listed = page.items.into_iter().map(|item| Listed {
            key: ObjectKey::new(&item.namespace().unwrap_or_default(), &item.name_any()),
            uid: item.uid().unwrap_or_default(),
            resource_version: item.resource_version().unwrap_or_default(),
        });
        self.pending = listed
            .filter(|object| !step.is_newer(&object.resource_version))
            .collect();
        let pending = i64::try_from(self.pending.len()).unwrap_or(i64::MAX);
        let remaining = metadata.remaining_item_count.unwrap_or(0).saturating_add(pending);
        step.figures
            .set_remaining(step.cx.cluster().name(), &step.plan.crd, remaining);
        let (crd, migrated) = (&*step.plan.crd, self.migrated);
        tracing::info!(crd, migrated, remaining, "storage migration in progress");
        Ok(())
    }
}

impl Step<'_> {
    /// Client of the first served version.
    pub(super) fn objects(&self) -> Result<Api<DynamicObject>, BoxError> {
        Ok(Api::all_with(self.kube.clone(), self.first()?))
    }

    /// The version at which objects are rewritten: the storage version, if it is served.
    fn first(&self) -> Result<&ApiResource, BoxError> {
        let version = self.plan.served.first().ok_or_else(|| {
            let crd = &self.plan.crd;
            format!("cannot migrate the objects of {crd}: the CRD serves no version; serve one until the migration has ended")
        })?;
        Ok(&version.resource)
    }

    /// Reports whether an object was written after the migration began.
    fn is_newer(&self, resource_version: &str) -> bool {
        let written = resource_version.parse::<u64>().ok();
        written
            .zip(self.since)
            .is_some_and(|(written, since)| written > since)
    }

    async fn rewrite(&self, listed: &Listed) -> Result<Rewrite, BoxError> {
        let mut object = listed.clone();
        for _ in 0..TRIES {
            if !self.plan.is_uniform
                && let Some(outcome) = self.inspect(&mut object).await?
            {
                return Ok(outcome);
            }
            // A patch without content: the server reads the object, and stores it at the storage version.
            let precondition = json!({"uid": object.uid, "resourceVersion": object.resource_version});
            let patch = Patch::Merge(json!({"metadata": precondition}));
            let params = PatchParams {
                field_manager: Some(self.cx.field_manager().to_owned()),
                ..PatchParams::default()
            };
            let at = self.at(self.first()?, &object.key);
            let Err(error) = at.patch_metadata(object.key.name(), &params, &patch).await else {
                return Ok(Rewrite::Rewritten);
            };
            let code = status(&error).map_or(0, |status| status.code);
            if !is_rejection(code) {
                return Err(error.into());
            }
            // Another client wrote or deleted the object, or the server rejects an object that has not changed.
            let Some(newest) = at.get_metadata_opt(object.key.name()).await? else {
                return Ok(Rewrite::Gone);
            };
            let version = newest.resource_version().unwrap_or_default();
            if self.is_newer(&version) || newest.uid().unwrap_or_default() != object.uid {
                return Ok(Rewrite::Changed);
            }
            if code != 409 && version == object.resource_version {
                return Ok(Rewrite::Blocked(error_chain(&error)));
            }
            object.resource_version = version;
        }
        Err(format!(
            "cannot rewrite {}: the server reports a conflict again and again",
            listed.key
        )
        .into())
    }

    /// Reads an object at all versions. Returns the outcome if it must not be rewritten, or does not need it.
    async fn inspect(&self, object: &mut Listed) -> Result<Option<Rewrite>, BoxError> {
        for _ in 0..TRIES {
            let (mut views, mut versions) = (Vec::new(), Vec::new());
            for version in &self.plan.served {
                let at = self.at(&version.resource, &object.key);
                let Some(found) = at.get_opt(object.key.name()).await? else {
                    return Ok(Some(Rewrite::Gone));
                };
                versions.push(found.resource_version().unwrap_or_default());
                views.push(View {
                    schema: &version.schema,
                    object: serde_json::to_value(found)?,
                });
            }
            let Some(version) = versions.pop().filter(|last| versions.iter().all(|it| it == last)) else {
                continue; // It changed between the reads.
            };
            if self.is_newer(&version) {
                return Ok(Some(Rewrite::Changed));
            }
            object.resource_version = version;
            return Ok(lost_field(&self.plan.storage_schema, &views).map(|field| {
                let storage = &self.plan.storage;
                Rewrite::Blocked(format!(
                    "a write would remove `{field}`, which {storage} does not have; add it to the schema of {storage}, or serve \
                     a conversion webhook"
                ))
            }));
        }
        Err(format!(
            "cannot read {} at all its versions: it changes all the time",
            object.key
        )
        .into())
    }

    fn at(&self, resource: &ApiResource, key: &ObjectKey) -> Api<DynamicObject> {
        match key.namespace() {
            "" => Api::all_with(self.kube.clone(), resource),
            namespace => Api::namespaced_with(self.kube.clone(), namespace, resource),
        }
    }
}

pub(super) fn status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Reports whether the server rejects the request, so that the same request is rejected again.
fn is_rejection(code: u16) -> bool {
    (400..500).contains(&code) && !matches!(code, 401 | 408 | 410 | 425 | 429)
}
