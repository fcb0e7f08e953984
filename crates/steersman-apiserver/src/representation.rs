// SPDX-License-Identifier: Apache-2.0
//! Serializes objects in the version and form that a client requested.

use std::{sync::Arc, time::SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    conversion,
    crd::conversion::{convert_all, has_webhook, version_of},
    handler::negotiate::Form,
    resource::{Resource, Version},
    schema::{fill, prune},
    server::Inner,
    status::Result,
    store::{Object, Stored, encode, metadata_of},
    table::{self, Include},
};

/// Describes how the objects of one resource are serialized.
#[derive(Clone, Debug)]
pub(crate) struct Representation {
    resource: Arc<Resource>,
    /// Index of the version.
    version: usize,
    form: Form,
    /// Current time, up to which ages count.
    now: SystemTime,
    /// `{"kind":"…","apiVersion":"…",`
    prefix: Bytes,
    /// True if a webhook converts the objects before they are serialized.
    by_webhook: bool,
}

impl Representation {
    pub(crate) fn new(resource: &Arc<Resource>, version: &Version, form: Form, now: SystemTime) -> Self {
        let index = resource
            .versions
            .iter()
            .position(|known| known.name == version.name)
            .unwrap_or_default();
        let (kind, api_version) = match form {
            Form::Full => (resource.kind.clone(), resource.api_version(&version.name)),
            Form::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            Form::Table(_) => ("Table".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let prefix = format!(
            "{{\"kind\":{},\"apiVersion\":{},",
            Value::from(kind),
            Value::from(api_version)
        );
        Self {
            resource: Arc::clone(resource),
            version: index,
            form,
            now,
            prefix: Bytes::from(prefix),
            by_webhook: has_webhook(resource),
        }
    }

    /// Returns true if objects have to be converted by [`Self::convert`] before they are serialized.
    pub(crate) fn is_by_webhook(&self) -> bool {
        self.by_webhook
    }

    /// Converts stored objects by the conversion webhook of their kind.
    ///
    /// # Errors
    /// Returns the failure of the webhook.
    pub(crate) async fn convert(
        &self,
        server: &Arc<Inner>,
        items: &[Arc<Stored>],
    ) -> Result<Vec<Arc<Stored>>> {
        // Boxed, so that lists and watches without a webhook do not carry the space that a call needs.
        Box::pin(convert_all(server, &self.resource, self.version, items)).await
    }

    /// Sets the time up to which ages count.
    pub(crate) fn at(&mut self, now: SystemTime) {
        self.now = now;
    }

    /// Serializes the object with `kind` and `apiVersion`.
    pub(crate) fn whole(&self, stored: &Stored) -> Bytes {
        match self.form {
            Form::Table(include) => self.splice(&encode(&self.table(include, &stored.object(), true))),
            _ => self.splice(&self.fields(stored)),
        }
    }

    /// Serializes as [`Self::whole`] does; for tables, only the first event contains the column definitions.
    pub(crate) fn event(&self, stored: &Stored, first: bool) -> Bytes {
        match self.form {
            Form::Table(include) if !first => {
                self.splice(&encode(&self.table(include, &stored.object(), false)))
            }
            _ => self.whole(stored),
        }
    }

    /// Builds a table of one row, without `kind` and `apiVersion`.
    fn table(&self, include: Include, object: &Object, headers: bool) -> Object {
        let mut metadata = Object::new();
        if let Some(version) = metadata_of(object).get("resourceVersion") {
            metadata.insert("resourceVersion".to_owned(), version.clone());
        }
        self.table_of(metadata, headers, vec![self.row(include, object)])
    }

    fn table_of(&self, metadata: Object, headers: bool, rows: Vec<Value>) -> Object {
        let columns = match headers {
            true => table::columns(&self.resource, &self.resource.versions[self.version]),
            false => Value::Null,
        };
        Object::from_iter([
            ("metadata".to_owned(), Value::Object(metadata)),
            ("columnDefinitions".to_owned(), columns),
            ("rows".to_owned(), Value::Array(rows)),
        ])
    }

    fn row(&self, include: Include, object: &Object) -> Value {
        let shown = self.converted(object.clone());
        let version = &self.resource.versions[self.version];
        table::row(&self.resource, version, object, &shown, include, self.now)
    }

    /// Serializes as [`Self::whole`] does, for an object that is not stored.
    pub(crate) fn whole_object(&self, object: &Object) -> Bytes {
        match self.form {
            Form::Full => self.splice(&encode(&self.converted(object.clone()))),
            Form::Metadata => self.splice(&metadata_only(object)),
            Form::Table(include) => self.splice(&encode(&self.table(include, object, true))),
        }
    }

    /// Serializes the object as a list item: built-in kinds omit `kind` and `apiVersion`.
    pub(crate) fn item(&self, stored: &Stored) -> Bytes {
        let bare = self.form == Form::Full && self.resource.custom.is_none();
        if bare {
            self.fields(stored)
        } else {
            self.whole(stored)
        }
    }

    /// Serializes a bookmark, which contains only a revision.
    pub(crate) fn bookmark(&self, revision: u64, initial_events_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = Object::new();
        object.insert("metadata".to_owned(), metadata);
        if let Form::Table(_) = self.form {
            object.insert("columnDefinitions".to_owned(), Value::Null);
            object.insert("rows".to_owned(), json!([]));
        }
        self.splice(&encode(&object))
    }

    /// Serializes a list of `items`.
    pub(crate) fn list<'a>(&self, metadata: &Object, items: impl Iterator<Item = &'a Stored>) -> Bytes {
        if let Form::Table(include) = self.form {
            let rows: Vec<Value> = items.map(|stored| self.row(include, &stored.object())).collect();
            let mut table = self.table_of(metadata.clone(), true, rows);
            if !table::is_printed(&self.resource) && table["rows"] == json!([]) {
                // The real server writes null for kinds without columns.
                table.insert("rows".to_owned(), Value::Null);
            }
            return self.splice(&encode(&table));
        }
        let version = &self.resource.versions[self.version];
        let (kind, api_version) = match self.form {
            Form::Full => (
                self.resource.list_kind.clone(),
                self.resource.api_version(&version.name),
            ),
            Form::Metadata | Form::Table(_) => (
                "PartialObjectMetadataList".to_owned(),
                "meta.k8s.io/v1".to_owned(),
            ),
        };
        let mut out = BytesMut::new();
        let head = format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":",
            Value::from(kind),
            Value::from(api_version)
        );
        out.put_slice(head.as_bytes());
        let mut metadata = metadata.clone();
        if self.resource.custom.is_some() && self.form == Form::Full {
            // Lists of custom resources always contain this field.
            metadata.entry("continue").or_insert_with(|| json!(""));
        }
        out.put_slice(&encode(&metadata));
        out.put_slice(b",\"items\":[");
        for (index, stored) in items.enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            out.put_slice(&self.item(stored));
        }
        out.put_slice(b"]}");
        out.freeze()
    }

    fn splice(&self, fields: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.prefix.len() + fields.len());
        out.put_slice(&self.prefix);
        // The opening brace is part of the prefix; an object without fields needs no comma before the closing brace.
        if fields == b"{}" {
            out.truncate(out.len() - 1);
        }
        out.put_slice(&fields[1..]);
        out.freeze()
    }

    fn fields(&self, stored: &Stored) -> Bytes {
        match self.form {
            Form::Metadata | Form::Table(_) => metadata_only(&stored.object()),
            Form::Full if self.is_stored_form(stored) => stored.encoded().clone(),
            Form::Full => {
                let written = version_of(&self.resource, stored);
                encode(&self.converted_from(written, Object::clone(&stored.object())))
            }
        }
    }

    fn is_stored_form(&self, stored: &Stored) -> bool {
        if self.by_webhook {
            return true;
        }
        match &self.resource.custom {
            Some(custom) => {
                stored.edition == custom.edition && self.version == self.resource.strategy.storage_version
            }
            None => !conversion::needed(&self.resource, self.version),
        }
    }

    /// Converts an object from the stored version to the requested one.
    pub(crate) fn converted(&self, object: Object) -> Object {
        self.converted_from(self.resource.strategy.storage_version, object)
    }

    fn converted_from(&self, written: usize, object: Object) -> Object {
        if self.by_webhook {
            return object;
        }
        convert_from_storage(&self.resource, written, self.version, object)
    }
}

/// Converts an object from the version at which it was stored to another version of its kind.
pub(crate) fn convert_from_storage(
    resource: &Resource,
    written: usize,
    version: usize,
    mut object: Object,
) -> Object {
    if resource.custom.is_none() {
        conversion::from_storage(resource, version, &mut object);
        return object;
    }
    let stored = &resource.versions[written].schema;
    let asked = &resource.versions[version].schema;
    let mut ignored = Vec::new();
    prune::prune(stored, &mut object, &mut ignored);
    fill::drop_nulls_of(stored, &mut object);
    fill::defaults_of(stored, &mut object);
    if version != written {
        // Only the stored version sets defaults.
        prune::prune(asked, &mut object, &mut ignored);
        fill::drop_nulls_of(asked, &mut object);
    }
    object
}

fn metadata_only(object: &Object) -> Bytes {
    let mut partial = Object::new();
    partial.insert("metadata".to_owned(), Value::Object(metadata_of(object).clone()));
    encode(&partial)
}
