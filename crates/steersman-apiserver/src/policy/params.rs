// SPDX-License-Identifier: Apache-2.0
//! The parameters of a policy that a binding names.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    handler::{Target, patch::whole},
    resource::{Registry, Resource},
    selector::Selector,
    state::Context,
};

/// The kind of a policy's parameters.
#[derive(Clone, Debug)]
pub(crate) struct ParamKind {
    resource: Arc<Resource>,
    version: usize,
}

impl ParamKind {
    /// Finds the kind that a policy names.
    ///
    /// # Errors
    /// Returns the message of the real server if the kind is not served.
    pub(crate) fn find(registry: &Registry, kind: &Value) -> Result<Self, String> {
        let text = |key: &str| kind[key].as_str().unwrap_or_default();
        let (group, version) = text("apiVersion")
            .split_once('/')
            .unwrap_or(("", text("apiVersion")));
        let found = registry.find_kind(group, text("kind")).and_then(|resource| {
            let mut versions = resource.versions.iter();
            let version = versions.position(|known| known.name == version && known.served)?;
            Some(Self {
                resource: Arc::clone(resource),
                version,
            })
        });
        found.ok_or_else(|| {
            let kind = text("kind");
            format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'")
        })
    }

    pub(super) fn plural(&self) -> String {
        self.resource.plural.clone()
    }

    /// Returns the parameters that a binding refers to; none if they are absent and that is allowed.
    ///
    /// # Errors
    /// Returns the message of the real server if the reference does not fit, or absent parameters deny the request.
    pub(crate) fn collect(
        &self,
        cx: &Context<'_>,
        reference: &Value,
        request_namespace: &str,
    ) -> Result<Vec<Value>, String> {
        let text = |key: &str| reference[key].as_str().unwrap_or_default();
        let namespace = match (self.resource.namespaced, text("namespace")) {
            (false, "") => "",
            (false, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned(),
                );
            }
            (true, "") if request_namespace.is_empty() => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .to_owned(),
                );
            }
            (true, "") => request_namespace,
            (true, named) => named,
        };
        let storage = self.resource.storage;
        let store = &cx.state.store;
        let found: Vec<_> = if text("name").is_empty() {
            let selector = Selector::structured(&reference["selector"]);
            let prefix = self.resource.prefix(namespace);
            let all = store.all(storage).filter(|(key, _)| key.starts_with(&prefix));
            all.map(|(_, stored)| stored)
                .filter(|stored| selector.sees(stored))
                .collect()
        } else {
            let key = self.resource.key(namespace, text("name"));
            store.get(storage, &key).into_iter().collect()
        };
        if found.is_empty() && text("parameterNotFoundAction") == "Deny" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        let shown = found.iter().map(|stored| {
            let target = Target {
                version: self.version,
                ..Target::of(&self.resource, stored)
            };
            whole(&target, &stored.object())
        });
        Ok(shown.collect())
    }
}
