// SPDX-License-Identifier: Apache-2.0
//! The kind that is installed and removed.

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::json;
use steersman_cache::Resource;

use crate::words;

const GROUP: &str = "bench.example";
const NAMESPACE: &str = "default";

/// The kind, whether it is installed or not.
pub(crate) fn resource() -> Resource {
    Resource::new(GROUP, "v1", "Widget", "widgets")
}

/// Installs the kind and creates objects.
pub(crate) struct Widgets {
    definitions: Api<CustomResourceDefinition>,
    objects: Api<DynamicObject>,
}

/// A watch of its definition.
pub(crate) struct Watched(stream::BoxStream<'static, kube::Result<WatchEvent<CustomResourceDefinition>>>);

impl Widgets {
    pub(crate) fn new(client: Client) -> Self {
        let resource = resource();
        let described = ApiResource {
            group: resource.group().to_owned(),
            version: resource.version().to_owned(),
            api_version: resource.api_version(),
            kind: resource.kind().to_owned(),
            plural: resource.plural().to_owned(),
        };
        Self {
            definitions: Api::all(client.clone()),
            objects: Api::namespaced_with(client, NAMESPACE, &described),
        }
    }

    /// Installs it, and gives a watch that is open from before.
    pub(crate) async fn install(&self) -> Result<Watched, String> {
        let definition = json!({
            "metadata": {"name": name()},
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        });
        let definition = serde_json::from_value(definition).map_err(words)?;
        let created = self.definitions.create(&PostParams::default(), &definition).await;
        let version = created
            .map_err(words)?
            .metadata
            .resource_version
            .unwrap_or_default();
        let only = WatchParams::default().fields(&format!("metadata.name={}", name()));
        let watch = self.definitions.watch(&only, &version).await.map_err(words)?;
        Ok(Watched(watch.boxed()))
    }

    pub(crate) async fn uninstall(&self) -> Result<(), String> {
        let deleted = self.definitions.delete(&name(), &DeleteParams::default()).await;
        deleted.map(|_| ()).map_err(words)
    }

    /// Applies an object, and retries while the server does not serve the CRD yet or still serves the former one.
    pub(crate) async fn apply(&self, object: &str) -> Result<(), String> {
        let body = json!({
            "apiVersion": resource().api_version(), "kind": "Widget", "metadata": {"name": object},
        });
        let (how, patch) = (PatchParams::apply("bench"), Patch::Apply(body));
        loop {
            match self.objects.patch(object, &how, &patch).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status))
                    if status.code == 404
                        || (status.code == 403 && status.message.contains("is terminating")) =>
                {
                    tokio::task::yield_now().await;
                }
                Err(error) => return Err(words(error)),
            }
        }
    }

    /// Applies so many of them.
    pub(crate) async fn apply_many(&self, count: usize) -> Result<(), String> {
        self.apply("widget-0").await?;
        let names = (1..count).map(|number| format!("widget-{number}"));
        let applied = stream::iter(names).map(async |name| self.apply(&name).await);
        applied.buffer_unordered(16).try_collect().await
    }
}

impl Watched {
    /// Waits until it is established.
    pub(crate) async fn established(&mut self) -> Result<(), String> {
        let is_established = |definition: &CustomResourceDefinition| {
            let conditions = definition
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|conditions| {
                let mut each = conditions.iter();
                each.any(|one| one.type_ == "Established" && one.status == "True")
            })
        };
        self.until(|event| match event {
            WatchEvent::Added(definition) | WatchEvent::Modified(definition) => is_established(definition),
            _ => false,
        })
        .await
    }

    /// Waits until it is deleted.
    pub(crate) async fn gone(&mut self) -> Result<(), String> {
        self.until(|event| matches!(event, WatchEvent::Deleted(_))).await
    }

    async fn until(
        &mut self,
        condition: impl Fn(&WatchEvent<CustomResourceDefinition>) -> bool,
    ) -> Result<(), String> {
        while let Some(event) = self.0.next().await {
            if condition(&event.map_err(words)?) {
                return Ok(());
            }
        }
        Err("the watch of the definition ended".to_owned())
    }
}

fn name() -> String {
    format!("widgets.{GROUP}")
}
