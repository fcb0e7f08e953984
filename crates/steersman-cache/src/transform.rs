// SPDX-License-Identifier: Apache-2.0
//! Transforms reduce objects before a store keeps them.
//!
//! # Guarantees
//! 1. `apiVersion`, `kind` and of the metadata `name`, `namespace`, `uid`, `resourceVersion`, `generation` and
//!    `deletionTimestamp` are always kept: the store needs them.
//! 2. Kept parts keep their order and text.
//! 3. A store without a transform has no cost for it.
//! 4. Deeply nested objects are cut like any other and use no extra stack: the stack depth is that of the longest path.
//! 5. An object that cannot be scanned to its end, because it is no JSON after all, is kept whole.

mod cut;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use self::cut::Paths;
use crate::Object;

/// Drops fields or whole objects from a store.
///
/// A path names a field with dots between the names: `spec.template`. A path passes through lists: `spec.containers.env` is the
/// `env` of each container. Escape a dot within a name with a backslash.
///
/// ```
/// use steersman_cache::Transform;
///
/// let transform = Transform::drop_fields([
///     "status",
///     r"metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration",
/// ])
/// .only(|object| object.namespace() != "kube-system");
/// ```
#[derive(Clone)]
pub struct Transform {
    fields: Fields,
    only: Option<Arc<Holds>>,
}

type Holds = dyn Fn(&Object) -> bool + Send + Sync;

#[derive(Clone, Debug)]
enum Fields {
    All,
    Except { paths: Paths, always: Paths },
    Only(Paths),
}

/// Fields that are always kept.
const ALWAYS: [&str; 8] = [
    "apiVersion",
    "kind",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.deletionTimestamp",
];

impl Transform {
    /// Keeps everything.
    #[must_use]
    pub fn new() -> Self {
        Self {
            fields: Fields::All,
            only: None,
        }
    }

    /// Drops these fields.
    #[must_use]
    pub fn drop_fields<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            fields: Fields::Except {
                paths: Paths::new(paths),
                always: Paths::new(ALWAYS),
            },
            only: None,
        }
    }

    /// Keeps only these fields.
    #[must_use]
    pub fn keep_fields<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let paths = ALWAYS.into_iter().chain(paths);
        Self {
            fields: Fields::Only(Paths::new(paths)),
            only: None,
        }
    }

    /// Keeps only objects for which `holds` returns true. It sees whole objects and must depend on the object alone. An object
    /// that changes so that `holds` returns false is removed. If `holds` panics, the object is kept. Default: all objects.
    #[must_use]
    pub fn only(mut self, holds: impl Fn(&Object) -> bool + Send + Sync + 'static) -> Self {
        self.only = Some(Arc::new(holds));
        self
    }

    /// Returns true if an object is kept.
    #[must_use]
    pub fn admits(&self, object: &Object) -> bool {
        self.judge(object).unwrap_or(true)
    }

    /// Returns whether an object is kept, or `None` if the user's function panicked.
    pub(crate) fn judge(&self, object: &Object) -> Option<bool> {
        let Some(holds) = &self.only else {
            return Some(true);
        };
        let held = catch_unwind(AssertUnwindSafe(|| holds(object)));
        if held.is_err() {
            let key = object.key();
            tracing::error!(%key, "transform function panicked; keeping the object");
        }
        held.ok()
    }

    /// Returns the object without the dropped fields.
    #[must_use]
    pub fn apply(&self, object: Object) -> Object {
        self.cut(&object).unwrap_or(object)
    }

    /// Returns the object without the dropped fields, if it differs.
    pub(crate) fn cut(&self, object: &Object) -> Option<Object> {
        let cut = match &self.fields {
            Fields::All => return None,
            Fields::Except { paths, always } => cut::without(object.bytes(), paths, always),
            Fields::Only(paths) => cut::only(object.bytes(), paths),
        };
        // The result has all that an object needs, so this always succeeds.
        let mut cut = Object::from_slice(&cut?).ok()?;
        if object.is_metadata_only() {
            cut.mark_metadata_only();
        }
        cut.mark_cut_from(object);
        Some(cut)
    }
}

impl Default for Transform {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transform")
            .field("fields", &self.fields)
            .field("only", &self.only.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"y"},"annotations":{"a.b/c":"long","d":"e"}},"spec":{"node":"1","containers":[{"name":"c","env":[{"name":"E"}]},{"name":"d"}]},"status":{"phase":"Running"}}"#;

    fn kept(transform: &Transform) -> String {
        let object = Object::from_slice(OBJECT.as_bytes()).unwrap();
        String::from_utf8(transform.apply(object).bytes().to_vec()).unwrap()
    }

    #[test]
    fn guarantee_2_dropping_fields_keeps_the_others() {
        let transform = Transform::drop_fields([
            "status",
            r"metadata.annotations.a\.b/c",
            "spec.containers.env",
            "nothing",
        ]);
        assert_eq!(
            kept(&transform),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"y"},"annotations":{"d":"e"}},"spec":{"node":"1","containers":[{"name":"c"},{"name":"d"}]}}"#
        );
    }

    #[test]
    fn guarantee_1_metadata_survives_every_transform() {
        let header = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"}}"#;
        let drop = Transform::drop_fields(["metadata", "kind", "metadata.name", "spec", "status"]);
        assert_eq!(kept(&drop), header);
        assert_eq!(kept(&Transform::keep_fields([])), header);
    }

    #[test]
    fn keeps_only_the_listed_fields() {
        let transform = Transform::keep_fields(["metadata.labels", "spec.containers.name", "spec.nothing"]);
        assert_eq!(
            kept(&transform),
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"y"}},"spec":{"containers":[{"name":"c"},{"name":"d"}]}}"#
        );
    }

    #[test]
    fn marks_a_transformed_object_as_metadata_only() {
        let mut object = Object::from_slice(OBJECT.as_bytes()).unwrap();
        object.mark_metadata_only();
        let left = Transform::drop_fields(["metadata.labels"]).apply(object);
        assert!(left.is_metadata_only() && left.labels().next().is_none());
    }

    #[test]
    fn drops_keys_with_escapes() {
        let json = r#"{"metadata":{"name":"a"},"spec":{"se\u0063ret":1,"b":{}}}"#;
        let object = Object::from_slice(json.as_bytes()).unwrap();
        let left = Transform::drop_fields(["spec.secret"]).apply(object);
        assert_eq!(left.bytes(), br#"{"metadata":{"name":"a"},"spec":{"b":{}}}"#);
    }

    #[test]
    fn accepts_white_space_and_empty_lists() {
        let json = r#"{ "metadata" : { "name" : "a" } , "spec" : [ ] , "x" : [ { "y" : 1 , "z" : 2 } ] }"#;
        let object = Object::from_slice(json.as_bytes()).unwrap();
        let left = Transform::drop_fields(["spec.a", "x.y"]).apply(object);
        let left: serde_json::Value = left.decode().unwrap();
        assert_eq!(
            left,
            serde_json::json!({"metadata":{"name":"a"},"spec":[],"x":[{"z":2}]})
        );
    }
}
