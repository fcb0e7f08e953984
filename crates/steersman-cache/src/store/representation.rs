// SPDX-License-Identifier: Apache-2.0
//! In which form a kind is kept.

use std::{fmt, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{
    Object,
    object::{DecodeError, Shared, Sharing},
    transform::Transform,
};

/// In which form the objects of a kind are kept. Default: [`bytes`](Self::bytes).
///
/// Reads of any type work with all of them; they differ in what they cost.
///
/// | | memory per object | typed read |
/// |---|---|---|
/// | [`bytes`](Self::bytes) | its JSON + 170 B | decodes, unless somebody holds the value |
/// | [`decoded`](Self::decoded) | its JSON + 250 B + the value, some 10 times the JSON | a pointer |
/// | [`budget`](Self::budget) | its JSON + 170 B, and the budget in all | a pointer for those used last |
/// | [`projection`](Self::projection) | its JSON + 250 B + the projection | a pointer for the projection, decodes others |
/// | [`projection_only`](Self::projection_only) | its metadata + 250 B + the projection | a pointer for the projection, an error for others |
///
/// An object that cannot be decoded is kept as bytes and counted; reading it gives the error.
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
        /// What is left of the bytes, if not all.
        left: Option<Arc<Transform>>,
    },
}

type Decode = fn(&Object) -> Result<Shared, DecodeError>;

fn decode<K: DeserializeOwned + Send + Sync + 'static>(object: &Object) -> Result<Shared, DecodeError> {
    Ok(Arc::new(object.decode::<K>()?))
}

impl Representation {
    /// As JSON: for large kinds that are read now and then.
    #[must_use]
    pub fn bytes() -> Self {
        Self { form: Form::Bytes }
    }

    /// As JSON, and decoded once per change: for small kinds that are read all the time.
    #[must_use]
    pub fn decoded<K: DeserializeOwned + Send + Sync + 'static>() -> Self {
        Self {
            form: Form::Kept {
                decode: decode::<K>,
                left: None,
            },
        }
    }

    /// As JSON, and the values that were used last are held, as many as stand for that much JSON.
    ///
    /// Used last is meant roughly: a value that was used since it was last considered is spared once.
    #[must_use]
    pub fn budget(bytes: usize) -> Self {
        Self {
            form: Form::Budget { bytes },
        }
    }

    /// As JSON, and decoded once per change as a type of yours that has only the fields that you look at: for mappings,
    /// indexes and long lists.
    #[must_use]
    pub fn projection<P: DeserializeOwned + Send + Sync + 'static>() -> Self {
        Self::decoded::<P>()
    }

    /// As a [`projection`](Self::projection), of all else only `metadata`. What is not in either is not to be had.
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

    /// Whether there is a value for each object, made when it comes.
    pub(super) fn keeps_values(&self) -> bool {
        matches!(self.form, Form::Kept { .. })
    }

    /// Gives an object that is about to be stored the form in which it is kept.
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
