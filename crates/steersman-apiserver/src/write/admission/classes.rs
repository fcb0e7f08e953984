// SPDX-License-Identifier: Apache-2.0
//! The admission plugins `DefaultStorageClass` and `DefaultIngressClass`.

use std::cmp::Reverse;

use serde_json::Value;

use crate::{
    state::Context,
    store::{Object, metadata_of},
};

/// Describes where a kind names its class and how a class is marked as the default.
struct Plugin {
    group: &'static str,
    classes: &'static str,
    field: &'static str,
    /// Annotation that named the class before the field existed.
    named_by: &'static str,
    defaults: &'static [&'static str],
}

const CLAIMS: Plugin = Plugin {
    group: "storage.k8s.io",
    classes: "storageclasses",
    field: "storageClassName",
    named_by: "volume.beta.kubernetes.io/storage-class",
    defaults: &[
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ],
};

const INGRESSES: Plugin = Plugin {
    group: "networking.k8s.io",
    classes: "ingressclasses",
    field: "ingressClassName",
    named_by: "kubernetes.io/ingress.class",
    defaults: &["ingressclass.kubernetes.io/is-default-class"],
};

/// Sets the default storage class of a new claim.
pub(super) fn of_claim(cx: &Context<'_>, claim: &mut Object) {
    CLAIMS.apply(cx, claim);
}

/// Sets the default class of a new Ingress.
pub(super) fn of_ingress(cx: &Context<'_>, ingress: &mut Object) {
    INGRESSES.apply(cx, ingress);
}

/// Warns if an annotation names the class.
pub(super) fn warn_of_annotation(cx: &mut Context<'_>, ingress: &Object) {
    let name = INGRESSES.named_by;
    let annotations = metadata_of(ingress).get("annotations");
    if annotations.is_some_and(|annotations| annotations.get(name).is_some()) {
        cx.warnings.push(format!(
            "annotation {name:?} is deprecated, please use 'spec.ingressClassName' instead"
        ));
    }
}

impl Plugin {
    fn apply(&self, cx: &Context<'_>, object: &mut Object) {
        let annotations = metadata_of(object).get("annotations");
        if annotations.is_some_and(|annotations| annotations.get(self.named_by).is_some()) {
            return;
        }
        let Some(Value::Object(spec)) = object.get_mut("spec") else {
            return;
        };
        if spec.get(self.field).is_none_or(Value::is_null)
            && let Some(name) = self.default_class(cx)
        {
            spec.insert(self.field.to_owned(), Value::from(name));
        }
    }

    /// Returns the default class; the newest if there are several.
    fn default_class(&self, cx: &Context<'_>) -> Option<String> {
        let classes = cx.all(self.group, self.classes).filter(|class| {
            let object = class.object();
            let annotations = metadata_of(&object).get("annotations");
            let is_true = |key: &&str| annotations.is_some_and(|annotations| annotations[*key] == "true");
            self.defaults.iter().any(is_true)
        });
        classes
            .map(|class| (Reverse(class.text("creationTimestamp")), class.text("name")))
            .min()
            .map(|(_, name)| name)
    }
}
