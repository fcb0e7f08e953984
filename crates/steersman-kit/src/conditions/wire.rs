// SPDX-License-Identifier: Apache-2.0
//! Conditions on the wire: a list of `metav1.Condition`, and its schema.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    Conditions,
    limits::{MESSAGE_LENGTH_MAX, REASON_LENGTH_MAX, REASON_PATTERN},
};

/// Pattern of metav1 for the type of a condition.
const TYPE_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$";
/// Length of the type of a condition.
const TYPE_LENGTH_MAX: usize = 316;

impl<S> Serialize for Conditions<S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        self.list.serialize(serializer)
    }
}

impl<'de, S> Deserialize<'de> for Conditions<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Go writes a nil slice as null.
        let list = Option::<Vec<Condition>>::deserialize(deserializer)?.unwrap_or_default();
        Ok(Self::with(list))
    }
}

/// The schema that controller-gen generates for `[]metav1.Condition`, as a list map: by its key, conditions of several
/// controllers merge.
impl<S> JsonSchema for Conditions<S> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Conditions".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "description": "Conditions of the object.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status", "reason", "message", "lastTransitionTime"],
                "properties": {
                    "type": {
                        "type": "string",
                        "description": "Type of the condition.",
                        "maxLength": TYPE_LENGTH_MAX,
                        "pattern": TYPE_PATTERN,
                    },
                    "status": {
                        "type": "string",
                        "description": "Status of the condition.",
                        "enum": ["True", "False", "Unknown"],
                    },
                    "reason": {
                        "type": "string",
                        "description": "Reason of the last change, as a word for programs.",
                        "minLength": 1,
                        "maxLength": REASON_LENGTH_MAX,
                        "pattern": REASON_PATTERN,
                    },
                    "message": {
                        "type": "string",
                        "description": "Reason of the last change, for people.",
                        "maxLength": MESSAGE_LENGTH_MAX,
                    },
                    "lastTransitionTime": {
                        "type": "string",
                        "description": "Time of the last change of the status.",
                        "format": "date-time",
                    },
                    "observedGeneration": {
                        "type": "integer",
                        "description": "Generation of the object that the condition is about.",
                        "format": "int64",
                        "minimum": 0,
                    },
                },
            },
        })
    }
}
