// SPDX-License-Identifier: Apache-2.0
//! Objects as values of Rust types.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use arc_swap::ArcSwapOption;
use serde::de::DeserializeOwned;
use steersman_core::ObjectKey;

use super::{Object, PARTIAL, Sharing, without_content};

/// A decoded value of some type.
pub(crate) type Shared = Arc<dyn Any + Send + Sync>;

/// The object cannot be decoded as the requested type.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode {key} as {type_name}")]
pub struct DecodeError {
    key: ObjectKey,
    type_name: &'static str,
    /// Position and cause.
    #[source]
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error("at {path}: {message}")]
    Shape {
        path: String,
        /// Without the offending value, which can be a secret.
        message: String,
    },
    #[error(
        "the store keeps only a projection of the object; read the projection, or keep the bytes as well"
    )]
    Partial,
    #[error("decoding panicked")]
    Panicked,
}

impl DecodeError {
    fn new<K>(key: ObjectKey, reason: Reason) -> Self {
        Self {
            key,
            type_name: short_type_name::<K>(),
            reason,
        }
    }

    /// Returns the key of the object.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns the field that does not match the type, such as `spec.replicas`. `None` if the object is not kept whole, or the
    /// type panicked.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match &self.reason {
            Reason::Shape { path, .. } => Some(path),
            Reason::Partial | Reason::Panicked => None,
        }
    }
}

impl Object {
    /// Decodes the object, without sharing the value.
    ///
    /// # Errors
    /// If the object does not match `K` or is not kept whole, or if decoding panics.
    pub fn decode<K: DeserializeOwned>(&self) -> Result<K, DecodeError> {
        if self.is_partial() {
            return Err(DecodeError::new::<K>(self.key(), Reason::Partial));
        }
        catch_unwind(AssertUnwindSafe(|| {
            serde_json::from_slice(self.bytes()).map_err(|error| self.explain::<K>(&error))
        }))
        .unwrap_or_else(|_| Err(DecodeError::new::<K>(self.key(), Reason::Panicked)))
    }

    /// Returns the object as a `K`: the value that the store keeps or another caller holds; otherwise decodes it.
    ///
    /// The object is not decoded again while the first value lives. Two concurrent calls can both decode it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use steersman_cache::Object;
    ///
    /// let object = Arc::new(Object::from_slice(br#"{"metadata":{"name":"a"},"data":{"x":"y"}}"#)?);
    /// let first = object.decoded::<ConfigMap>()?;
    /// assert!(Arc::ptr_eq(&first, &object.decoded()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the object does not match `K` or is not kept whole.
    pub fn decoded<K>(self: &Arc<Self>) -> Result<Arc<K>, DecodeError>
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        if let Some(kept) = self.at_hand() {
            return Ok(kept);
        }
        let decoded = self.decode::<K>().map(Arc::new);
        match &decoded {
            Ok(value) => self.remember(Arc::clone(value) as Shared),
            Err(_) => self.failed(),
        }
        decoded
    }

    /// Counts a failure to process the object.
    pub(crate) fn failed(&self) {
        if let Some(sharing) = &*self.sharing.load() {
            sharing.failed();
        }
    }

    /// Returns the value if it needs no decoding.
    pub(crate) fn at_hand<K: Send + Sync + 'static>(&self) -> Option<Arc<K>> {
        if let Some(kept) = &self.kept
            && kept.is::<K>()
        {
            return Arc::clone(kept).downcast().ok();
        }
        let value = self.remembered()?.downcast().ok()?;
        self.used.store(true, Ordering::Relaxed);
        Some(value)
    }

    /// Returns the value that the representation of the kind keeps, if it is a `P`.
    #[must_use]
    pub fn projection<P: Send + Sync + 'static>(&self) -> Option<&P> {
        self.kept.as_ref()?.downcast_ref()
    }

    /// Attaches the object to a store. Copies it if it is shared.
    pub(crate) fn enter(mut self: Arc<Self>, sharing: &Arc<Sharing>, kept: Option<Shared>) -> Arc<Self> {
        if Arc::get_mut(&mut self).is_none() {
            self = Arc::new(self.copy());
        }
        if let Some(object) = Arc::get_mut(&mut self) {
            object.sharing = ArcSwapOption::new(Some(Arc::clone(sharing)));
            object.kept = kept;
        }
        self
    }

    /// Returns true if some fields were dropped.
    pub(crate) fn is_partial(&self) -> bool {
        self.marks & PARTIAL != 0
    }

    pub(crate) fn mark_partial(&mut self) {
        self.marks |= PARTIAL;
    }

    /// Returns the value that the representation of the kind keeps.
    pub(crate) fn kept(&self) -> Option<&Shared> {
        self.kept.as_ref()
    }

    /// Finds the field of a decode error. Only failures pay for tracking the path, since they are decoded a second time.
    fn explain<K: DeserializeOwned>(&self, error: &serde_json::Error) -> DecodeError {
        let mut deserializer = serde_json::Deserializer::from_slice(self.bytes());
        let (path, message) = match serde_path_to_error::deserialize::<_, K>(&mut deserializer) {
            Err(error) => (error.path().to_string(), without_content(error.inner())),
            // The value is valid, but other text follows it.
            Ok(_) => (".".to_owned(), without_content(error)),
        };
        DecodeError::new::<K>(self.key(), Reason::Shape { path, message })
    }
}

fn short_type_name<K>() -> &'static str {
    let name = std::any::type_name::<K>();
    // Drops the path, but keeps generic arguments.
    let end = name.find('<').unwrap_or(name.len());
    name[..end].rfind("::").map_or(name, |at| &name[at + 2..])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::Value;

    use super::*;

    fn object(json: &str) -> Arc<Object> {
        Arc::new(Object::from_slice(json.as_bytes()).unwrap())
    }

    #[test]
    fn guarantee_5_shares_a_value_while_it_is_in_use() {
        let object = object(r#"{"metadata":{"name":"a"}}"#);
        let first = object.decoded::<Value>().unwrap();
        assert!(Arc::ptr_eq(&first, &object.decoded().unwrap()));
        drop(first);
        assert!(object.at_hand::<Value>().is_none());
        assert!(object.decoded::<Value>().is_ok());
    }

    #[test]
    fn decodes_another_type_separately() {
        let object = object(r#"{"metadata":{"name":"a"},"spec":{"replicas":2,"selector":{},"template":{}}}"#);
        let value = object.decoded::<Value>().unwrap();
        let deployment = object.decoded::<Deployment>().unwrap();
        assert_eq!(value["spec"]["replicas"], 2);
        assert_eq!(deployment.spec.replicas, Some(2));
    }

    // R165
    #[test]
    fn an_error_names_key_type_and_field() {
        let object = object(
            r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"replicas":"two","selector":{},"template":{}}}"#,
        );
        let error = object.decoded::<Deployment>().unwrap_err();
        assert_eq!(error.to_string(), "cannot decode n/a as Deployment");
        assert_eq!(error.path(), Some("spec.replicas"));
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(
            source.starts_with("at spec.replicas: expected i32") && !source.contains("two"),
            "{source}"
        );
    }
}
