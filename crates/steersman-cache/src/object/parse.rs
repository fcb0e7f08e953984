// SPDX-License-Identifier: Apache-2.0
//! Creates objects from bytes.

use std::{
    ops::Range,
    sync::{Arc, atomic::AtomicBool},
};

use arc_swap::ArcSwapOption;
use serde_json::Value;

use super::{BESIDE_TEXT, InvalidObject, Object, Place, Places, TAIL};
use crate::wire::{
    item_types::ItemTypes,
    scan::{Scanned, scan},
    skip::{Stop, skip_space, skip_value},
};

impl Object {
    /// Creates an object from its JSON.
    ///
    /// # Errors
    /// If the bytes are no object with a name.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, InvalidObject> {
        let object = Self::shared_from_slice(bytes)?;
        Ok(Arc::try_unwrap(object).unwrap_or_else(|shared| shared.copy()))
    }

    /// Like [`from_slice`](Self::from_slice), but returns an `Arc` with the header and the JSON in one allocation. Use it for
    /// objects put in a store.
    ///
    /// # Errors
    /// If the bytes are no object with a name.
    pub fn shared_from_slice(bytes: &[u8]) -> Result<Arc<Self>, InvalidObject> {
        let stopped = |stop| InvalidObject::stopped(stop, bytes.len());
        let (object, end) = Self::from_prefix(bytes, &ItemTypes::default()).map_err(stopped)?;
        match bytes[end..].iter().position(|byte| !byte.is_ascii_whitespace()) {
            None => object,
            Some(at) => Err(stopped(Stop::Malformed { at: end + at })),
        }
    }

    /// Creates the object at the beginning of `bytes`, and returns the position of its end.
    ///
    /// The outer error means that no end was found; the inner one, that the object is invalid.
    pub(crate) fn from_prefix(
        bytes: &[u8],
        types: &ItemTypes,
    ) -> Result<(Result<Arc<Self>, InvalidObject>, usize), Stop> {
        match scan(bytes) {
            Ok(found) if !found.escaped => Ok((Self::cut(bytes, &found, types), found.end)),
            Ok(_) | Err(Stop::Unusual) => {
                let start = skip_space(bytes, 0);
                let end = skip_value(bytes, start)?;
                Ok((Self::normalise(&bytes[start..end], types), end))
            }
            Err(stop) => Err(stop),
        }
    }

    /// Copies the kept parts, and adds the members of `types` that the object lacks.
    fn cut(input: &[u8], found: &Scanned, types: &ItemTypes) -> Result<Arc<Self>, InvalidObject> {
        if found.name.as_ref().is_none_or(|name| name.is_empty()) {
            return Err(InvalidObject::NoName);
        }
        u32::try_from(found.end).map_err(|_| InvalidObject::TooLong)?;
        // After the opening brace.
        let start = skip_space(input, 0) + 1;
        let added = types.missing_in(found);
        let added_length: usize = added.iter().map(|member| member.len()).sum();
        let cut = found.managed_fields.clone().unwrap_or(start..start);
        let place = |range: &Option<Range<usize>>, quotes: usize| match range {
            Some(range) => {
                let left_out = if range.start >= cut.end { cut.len() } else { 0 };
                let at = 1 + added_length + range.start - quotes - start - left_out;
                Place::new(at).ok_or(InvalidObject::TooLong)
            }
            None => Ok(Place::default()),
        };
        let mut places = Places {
            name: place(&found.name, 1)?,
            namespace: place(&found.namespace, 1)?,
            uid: place(&found.uid, 1)?,
            resource_version: place(&found.resource_version, 1)?,
            generation: place(&found.generation, 0)?,
            labels: place(&found.labels, 0)?,
            annotations: place(&found.annotations, 0)?,
            owners: place(&found.owners, 0)?,
        };
        let length = 1 + added_length + found.end - start - cut.len();
        let tail = if found.escaped {
            Self::tail(input, found, length, &mut places)?
        } else {
            Vec::new()
        };
        // Allocated before its bytes, which are then mostly next to it: a lookup by name touches one page of memory instead of
        // two.
        let mut object = Arc::new(Self {
            marks: if found.escaped { TAIL } else { 0 },
            ..Self::new(places, found.deleting)
        });
        let mut bytes = Vec::with_capacity(length + tail.len());
        bytes.push(b'{');
        added.iter().for_each(|member| bytes.extend_from_slice(member));
        bytes.extend_from_slice(&input[start..cut.start]);
        bytes.extend_from_slice(&input[cut.end..found.end]);
        bytes.extend_from_slice(&tail);
        Arc::get_mut(&mut object)
            .expect("the object is not shared yet")
            .bytes = bytes.into_boxed_slice();
        Ok(object)
    }

    /// Encodes the tail after JSON of this length: the header texts that JSON escapes.
    fn tail(
        input: &[u8],
        found: &Scanned,
        length: usize,
        places: &mut Places,
    ) -> Result<Vec<u8>, InvalidObject> {
        let mut tail = Vec::new();
        for (range, place) in [
            (&found.name, &mut places.name),
            (&found.namespace, &mut places.namespace),
            (&found.uid, &mut places.uid),
            (&found.resource_version, &mut places.resource_version),
        ] {
            let Some(range) = range
                .as_ref()
                .filter(|range| input[(*range).clone()].contains(&b'\\'))
            else {
                continue;
            };
            let text: Result<String, _> = serde_json::from_slice(&input[range.start - 1..range.end + 1]);
            let text = text.map_err(|error| InvalidObject::Json {
                reason: error.to_string(),
            })?;
            *place = Place::new(length + tail.len()).ok_or(InvalidObject::TooLong)?;
            tail.push(BESIDE_TEXT);
            tail.extend_from_slice(text.as_bytes());
            tail.push(BESIDE_TEXT);
        }
        let length = u32::try_from(length).map_err(|_| InvalidObject::TooLong)?;
        tail.extend_from_slice(&length.to_le_bytes());
        tail.push(BESIDE_TEXT);
        Ok(tail)
    }

    fn new(places: Places, deleting: bool) -> Self {
        Self {
            bytes: Box::default(),
            places,
            deleting,
            metadata_only: false,
            marks: 0,
            used: AtomicBool::new(false),
            kept: None,
            sharing: ArcSwapOption::empty(),
            source: 0,
        }
    }

    /// Returns a copy that belongs to no store.
    pub(super) fn copy(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            metadata_only: self.metadata_only,
            marks: self.marks,
            source: self.source,
            ..Self::new(self.places, self.deleting)
        }
    }

    /// The slow path for unusual JSON: parses it and writes it again in the usual form.
    fn normalise(bytes: &[u8], types: &ItemTypes) -> Result<Arc<Self>, InvalidObject> {
        let invalid = |error: serde_json::Error| InvalidObject::Json {
            reason: error.to_string(),
        };
        let value: Value = serde_json::from_slice(bytes).map_err(invalid)?;
        let bytes = serde_json::to_vec(&value).map_err(invalid)?;
        match scan(&bytes) {
            Ok(found) => Self::cut(&bytes, &found, types),
            // Still unusual: a header field has a wrong type, or kind or version cannot be written without escapes.
            Err(_) => Err(InvalidObject::Json {
                reason: "a field of metadata has the wrong type, or the kind contains quotes or backslashes"
                    .to_owned(),
            }),
        }
    }
}

impl InvalidObject {
    pub(crate) fn stopped(stop: Stop, length: usize) -> Self {
        let reason = match stop {
            Stop::Incomplete => format!("incomplete after {length} bytes"),
            Stop::Malformed { at } => format!("unexpected data at byte {at}"),
            Stop::Unusual => "unsupported encoding of a key or a metadata field".to_owned(),
        };
        Self::Json { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an object with this much data before the metadata, and an annotation of this size.
    fn large(data: usize, annotation: usize) -> Result<Object, InvalidObject> {
        let (data, annotation) = ("d".repeat(data), "a".repeat(annotation));
        let json = format!(
            r#"{{"data":"{data}","metadata":{{"annotations":{{"x":"{annotation}"}},"generation":7,"name":"n","uid":"u"}}}}"#
        );
        Object::from_slice(json.as_bytes())
    }

    #[test]
    fn parses_the_metadata_of_a_large_object() {
        for (data, annotation) in [(0, 300_000), (3 << 20, 0), (15 << 20, 300_000)] {
            let object = large(data, annotation).unwrap();
            assert_eq!((object.name(), object.uid()), ("n", "u"));
            assert_eq!(object.generation(), Some(7));
            assert_eq!(object.annotation("x").map(|value| value.len()), Some(annotation));
        }
    }

    // D4
    #[test]
    fn decodes_escapes_in_names() {
        let name = "CORP\\admins \"eu\"\n";
        let json = serde_json::json!({
            "kind": "Role",
            "metadata": {"name": name, "namespace": "n", "uid": "u\\", "resourceVersion": "7", "labels": {"a": "b"}},
            "rules": [],
        });
        let managed = json
            .to_string()
            .replace(r#""metadata":{"#, r#""metadata":{"managedFields":[{}],"#);
        for text in [json.to_string(), managed, format!("{json:#}")] {
            let object = Object::from_slice(text.as_bytes()).unwrap();
            assert_eq!((object.name(), object.namespace()), (name, "n"));
            assert_eq!((object.uid(), object.resource_version()), ("u\\", "7"));
            assert!(object.is_named("n", name));
            for other in ["CORP", "CORP\\admins", "CORP\\\\admins \\\"eu\\\"\\n", ""] {
                assert!(!object.is_named("n", other), "{other}");
            }
            assert_eq!(object.label("a").as_deref(), Some("b"));
            let kept: Value = serde_json::from_slice(object.bytes()).unwrap();
            assert_eq!(kept, json);
            assert_eq!(object.decode::<Value>().unwrap(), json);
            assert_eq!(object.copy().bytes(), object.bytes());
            let cut = crate::Transform::drop_fields(["rules"]).apply(object);
            assert_eq!(cut.name(), name);
        }
        let plain = Object::from_slice(br#"{"metadata":{"name":"\u0061","uid":"\u0062"}}"#).unwrap();
        assert_eq!((plain.name(), plain.uid()), ("a", "b"));
        assert_eq!(plain.bytes(), br#"{"metadata":{"name":"a","uid":"b"}}"#);
    }

    #[test]
    fn rejects_an_object_whose_metadata_begins_too_late() {
        assert_eq!(large(17 << 20, 0).unwrap_err(), InvalidObject::TooLong);
    }
}
