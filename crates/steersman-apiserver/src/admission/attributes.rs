// SPDX-License-Identifier: Apache-2.0
//! A write as admission sees it.

use serde_json::{Value, json};

use crate::{
    auth::Identity,
    handler::{Call, Target, patch::whole},
    resource::api_version,
    store::Object,
};

/// The operation that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    pub(crate) fn of(target: &Target) -> Self {
        Self {
            group: target.resource.group.clone(),
            version: target.version().name.clone(),
            kind: target.resource.kind.clone(),
        }
    }

    /// Returns an object of this kind as clients see it. Objects of the resource's kind are in the stored form.
    pub(super) fn shown(&self, target: &Target, object: &Object) -> Value {
        if *self == Self::of(target) {
            return whole(target, object);
        }
        let mut object = object.clone();
        let api_version = api_version(&self.group, &self.version);
        object.insert("apiVersion".to_owned(), Value::from(api_version));
        object.insert("kind".to_owned(), Value::from(self.kind.clone()));
        Value::Object(object)
    }
}

/// The write that is admitted, as hooks see it.
#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub(crate) operation: Operation,
    /// The requested resource, subresource, namespace and name. The name is empty before it is generated.
    pub(crate) target: Target,
    /// The kind of the object; for subresources such as `scale` it differs from the kind of the resource.
    pub(crate) kind: GroupVersionKind,
    /// The new object in the requested version, with `apiVersion` and `kind`. Empty for deletions.
    pub(crate) object: Option<Value>,
    /// The stored object in the requested version, with `apiVersion` and `kind`. Empty for creates.
    pub(crate) old_object: Option<Value>,
    /// The options of the request, such as `CreateOptions`.
    pub(crate) options: Value,
    pub(crate) dry_run: bool,
    pub(crate) user: Identity,
}

impl Attributes {
    /// Returns the namespace of the request; for a Namespace, its name.
    pub(crate) fn namespace(&self) -> &str {
        if self.target.resource.is("", "namespaces") {
            &self.target.name
        } else {
            &self.target.namespace
        }
    }

    /// Returns true if both are the same write of the same objects.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.operation == other.operation
            && self.target.name == other.target.name
            && self.kind == other.kind
            && self.object == other.object
            && self.old_object == other.old_object
    }
}

/// A write before its [`Attributes`] are needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) operation: Operation,
    pub(crate) target: &'a Target,
    /// In the stored form.
    pub(crate) object: Option<&'a Object>,
    /// In the stored form.
    pub(crate) old: Option<&'a Object>,
    /// The kind of the objects, if it is not that of the resource. They are then not stored in this form.
    pub(crate) kind: Option<&'a GroupVersionKind>,
    pub(crate) dry_run: bool,
}

impl<'a> Write<'a> {
    pub(crate) fn create(target: &'a Target, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Create,
            target,
            object: Some(object),
            old: None,
            kind: None,
            dry_run,
        }
    }

    pub(crate) fn update(target: &'a Target, old: &'a Object, object: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Update,
            target,
            object: Some(object),
            old: Some(old),
            kind: None,
            dry_run,
        }
    }

    pub(crate) fn delete(target: &'a Target, old: &'a Object, dry_run: bool) -> Self {
        Self {
            operation: Operation::Delete,
            target,
            object: None,
            old: Some(old),
            kind: None,
            dry_run,
        }
    }

    pub(super) fn attributes(self, call: &Call) -> Attributes {
        let options = match self.operation {
            Operation::Create => options(call, "CreateOptions"),
            Operation::Update => options(call, "UpdateOptions"),
            Operation::Delete => crate::handler::delete::shown_options(call),
            Operation::Connect => Value::Null,
        };
        let kind = match self.kind {
            Some(kind) => kind.clone(),
            None => GroupVersionKind::of(self.target),
        };
        let shown = |object: &Object| kind.shown(self.target, object);
        Attributes {
            operation: self.operation,
            target: self.target.clone(),
            object: self.object.map(shown),
            old_object: self.old.map(shown),
            kind,
            options,
            dry_run: self.dry_run,
            user: call.identity.clone(),
        }
    }
}

/// Returns the options of a create or update.
fn options(call: &Call, kind: &str) -> Value {
    let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
    let dry_run: Vec<&str> = call.query.all("dryRun").collect();
    if !dry_run.is_empty() {
        options["dryRun"] = json!(dry_run);
    }
    for key in ["fieldManager", "fieldValidation"] {
        if let Some(value) = call.query.filled(key) {
            options[key] = json!(value);
        }
    }
    options
}
