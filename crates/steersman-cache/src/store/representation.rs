// SPDX-License-Identifier: Apache-2.0
//! The form in which a store keeps objects.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{
    Object,
    object::{DecodeError, Shared, Sharing},
    transform::Transform,
};

/// The form in which a store keeps the objects of a kind. Default: [`bytes`](Self::bytes).
///
/// Reads of any type work with each form, except as the table says. The forms differ in cost.
///
/// | | memory per object | typed read |
/// |---|---|---|
/// | [`bytes`](Self::bytes) | its JSON + 170 B | decodes, unless a caller holds the value |
/// | [`decoded`](Self::decoded) | its JSON + 250 B + the value, some 10 times the JSON | a pointer |
/// | [`budget`](Self::budget) | its JSON + 170 B, and the budget in all | a pointer for recently used values |
/// | [`projection`](Self::projection) | its JSON + 250 B + the projection | a pointer for the projection, decodes others |
/// | [`projection_only`](Self::projection_only) | its metadata + 250 B + the projection | a pointer for the projection, an error for others |
///
/// An object that cannot be decoded is kept as bytes and counted; reading it returns the error.
#[derive(Clone)]
pub struct Representation {
    form: Form,
}

#[derive(Clone)]
enum Form {
    Bytes,
    Budget {
        bytes: usize,
    },
    Kept {
        decode: Decode,
        /// Reduces the bytes that are kept, if not all are.
        left: Option<Arc<Transform>>,
    },
}

type Decode = fn(&Object) -> Result<Shared, DecodeError>;

fn decode<K: DeserializeOwned + Send + Sync + 'static>(object: &Object) -> Result<Shared, DecodeError> {
    Ok(Arc::new(object.decode::<K>()?))
}

impl Representation {
    /// Keeps JSON. For large kinds that are read rarely.
    #[must_use]
    pub fn bytes() -> Self {
        Self { form: Form::Bytes }
    }

    /// Keeps JSON, and the value decoded once per change. For small kinds that are read often.
    #[must_use]
    pub fn decoded<K: DeserializeOwned + Send + Sync + 'static>() -> Self {
        Self {
            form: Form::Kept {
                decode: decode::<K>,
                left: None,
            },
        }
    }

    /// Keeps JSON, and recently used values, up to this many bytes of JSON.
    ///
    /// The order of eviction is approximate: a value used since the last check is spared once.
    #[must_use]
    pub fn budget(bytes: usize) -> Self {
        Self {
            form: Form::Budget { bytes },
        }
    }

    /// Keeps JSON, and a value of your own type with only the fields that you need, decoded once per change. For mappings,
    /// indexes and long lists.
    #[must_use]
    pub fn projection<P: DeserializeOwned + Send + Sync + 'static>() -> Self {
        Self::decoded::<P>()
    }

    /// Keeps a [`projection`](Self::projection) and `metadata`. All other fields are lost.
    #[must_use]
    pub fn projection_only<P: DeserializeOwned + Send + Sync + 'static>() -> Self {
        Self {
            form: Form::Kept {
                decode: decode::<P>,
                left: Some(Arc::new(Transform::keep_fields(["metadata"]))),
            },
        }
    }

    pub(super) fn sharing(&self) -> Arc<Sharing> {
        Arc::new(Sharing::new(match self.form {
            Form::Budget { bytes } => bytes,
            Form::Bytes | Form::Kept { .. } => 0,
        }))
    }

    /// Returns true if each object is decoded when it arrives.
    pub(super) fn keeps_values(&self) -> bool {
        matches!(self.form, Form::Kept { .. })
    }

    /// Brings an object into the form in which it is kept.
    pub(super) fn shape(&self, mut object: Arc<Object>, sharing: &Arc<Sharing>) -> Arc<Object> {
        let mut kept = None;
        if let Form::Kept { decode, left } = &self.form {
            match decode(&object) {
                Ok(value) => {
                    kept = Some(value);
                    if let Some(mut header) = left.as_ref().and_then(|left| left.cut(&object)) {
                        header.mark_partial();
                        object = Arc::new(header);
                    }
                }
                Err(_) => sharing.failed(),
            }
        }
        object.enter(sharing, kept)
    }
}

impl Default for Representation {
    fn default() -> Self {
        Self::bytes()
    }
}

impl fmt::Debug for Representation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            Form::Bytes => f.write_str("bytes"),
            Form::Budget { bytes } => write!(f, "bytes, with {bytes} decoded"),
            Form::Kept { left: None, .. } => f.write_str("bytes and decoded"),
            Form::Kept { left: Some(_), .. } => f.write_str("projection"),
        }
    }
}
