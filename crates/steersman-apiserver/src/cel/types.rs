// SPDX-License-Identifier: Apache-2.0
//! Types of CEL expressions, as far as the checks of admission expressions need them.

use std::fmt;

use crate::schema::{self, Additional, Schema, definitions};

/// The type of an expression. Types that no check needs are [`Type::Dyn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type<'a> {
    Dyn,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Null,
    Timestamp,
    Duration,
    List,
    Map,
    Optional,
    /// A value with known fields.
    Object(&'static ObjectType),
    /// An object, list or map with a schema.
    Schema(SchemaType<'a>),
    /// The type of `variables`.
    Variables,
}

/// A type that a schema describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaType<'a> {
    schema: &'a Schema,
    /// True for whole objects, whose metadata the schema of a CRD leaves out.
    is_object: bool,
}

impl PartialEq for SchemaType<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.schema, other.schema)
    }
}

impl Eq for SchemaType<'_> {}

impl<'a> SchemaType<'a> {
    /// Returns the type of a field; `None` if the schema has no such field.
    pub(crate) fn field(self, name: &str) -> Option<Type<'a>> {
        let unescaped = unescaped(name);
        let known = self.schema.field(name).or_else(|| self.schema.field(&unescaped));
        if let Some((field, _)) = known {
            return Some(Type::of(field));
        }
        match name {
            "apiVersion" | "kind" if self.is_object => return Some(Type::String),
            "metadata" if self.is_object => return Some(Type::of(definitions::object_meta())),
            _ => {}
        }
        let is_open = self.schema.preserve_unknown || matches!(self.schema.additional, Additional::Any);
        is_open.then_some(Type::Dyn)
    }

    /// Returns the type of the items of a list, or of the values of a map.
    pub(crate) fn item(self) -> Type<'a> {
        match (&self.schema.items, &self.schema.additional) {
            (Some(items), _) => Type::of(items),
            (None, Additional::Schema(values)) => Type::of(values),
            _ => Type::Dyn,
        }
    }

    pub(crate) fn is_list(self) -> bool {
        self.schema.r#type == schema::Type::Array
    }
}

/// A type with known fields.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectType {
    name: &'static str,
    fields: &'static [(&'static str, Type<'static>)],
}

impl ObjectType {
    pub(crate) fn field(&self, name: &str) -> Option<Type<'static>> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, field)| *field)
    }
}

impl<'a> Type<'a> {
    /// Returns the type of whole objects that a schema describes.
    pub(crate) fn of_objects(schema: &'a Schema) -> Self {
        match Self::of(schema) {
            Self::Schema(found) => Self::Schema(SchemaType {
                is_object: true,
                ..found
            }),
            other => other,
        }
    }

    /// Returns the type that a schema describes.
    pub(crate) fn of(schema: &'a Schema) -> Self {
        let schema = schema.resolved();
        if schema.int_or_string {
            return Self::Dyn;
        }
        let of_schema = Self::Schema(SchemaType {
            schema,
            is_object: schema.embedded,
        });
        match (schema.r#type, schema.format.as_deref()) {
            (schema::Type::String, Some("date-time")) => Self::Timestamp,
            (schema::Type::String, Some("duration")) => Self::Duration,
            (schema::Type::String, Some("byte")) => Self::Bytes,
            (schema::Type::String, _) => Self::String,
            (schema::Type::Integer, _) => Self::Int,
            (schema::Type::Number, _) => Self::Double,
            (schema::Type::Boolean, _) => Self::Bool,
            (schema::Type::Array, _) => of_schema,
            (schema::Type::Object, _) if has_fields(schema) => of_schema,
            _ => Self::Dyn,
        }
    }

    /// Returns true if values of this type never equal values of another type.
    pub(crate) fn is_primitive(self) -> bool {
        matches!(
            self,
            Self::Bool | Self::String | Self::Bytes | Self::Timestamp | Self::Duration
        ) || self.is_number()
    }

    pub(crate) fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }
}

/// Returns the name of a field as it is in JSON. CEL has no names with these characters, nor its own keywords.
pub(crate) fn unescaped(name: &str) -> String {
    let plain = name
        .replace("__underscores__", "\u{0}")
        .replace("__dot__", ".")
        .replace("__dash__", "-")
        .replace("__slash__", "/");
    let keyword = plain.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    keyword.unwrap_or(&plain).replace('\u{0}', "__")
}

fn has_fields(schema: &Schema) -> bool {
    !schema.properties.is_empty() || matches!(schema.additional, Additional::Schema(_))
}

impl fmt::Display for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dyn => "dyn",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Null => "null_type",
            Self::Timestamp => "timestamp",
            Self::Duration => "duration",
            Self::List => "list(dyn)",
            Self::Map => "map(dyn, dyn)",
            Self::Optional => "optional_type(dyn)",
            Self::Object(object) => object.name,
            Self::Schema(schema) if schema.is_list() => "list(dyn)",
            Self::Schema(_) => "object",
            Self::Variables => "kubernetes.variables",
        })
    }
}

const KIND: ObjectType = ObjectType {
    name: "kubernetes.GroupVersionKind",
    fields: &[
        ("group", Type::String),
        ("version", Type::String),
        ("kind", Type::String),
    ],
};
const RESOURCE: ObjectType = ObjectType {
    name: "kubernetes.GroupVersionResource",
    fields: &[
        ("group", Type::String),
        ("version", Type::String),
        ("resource", Type::String),
    ],
};
const USER: ObjectType = ObjectType {
    name: "kubernetes.UserInfo",
    fields: &[
        ("username", Type::String),
        ("uid", Type::String),
        ("groups", Type::List),
        ("extra", Type::Map),
    ],
};
/// The type of `request`.
pub(crate) const REQUEST: ObjectType = ObjectType {
    name: "kubernetes.AdmissionRequest",
    fields: &[
        ("kind", Type::Object(&KIND)),
        ("resource", Type::Object(&RESOURCE)),
        ("subResource", Type::String),
        ("requestKind", Type::Object(&KIND)),
        ("requestResource", Type::Object(&RESOURCE)),
        ("requestSubResource", Type::String),
        ("name", Type::String),
        ("namespace", Type::String),
        ("operation", Type::String),
        ("userInfo", Type::Object(&USER)),
        ("dryRun", Type::Bool),
        ("options", Type::Dyn),
    ],
};
const NAMESPACE_METADATA: ObjectType = ObjectType {
    name: "kubernetes.NamespaceMetadata",
    fields: &[
        ("name", Type::String),
        ("generateName", Type::String),
        ("namespace", Type::String),
        ("labels", Type::Map),
        ("annotations", Type::Map),
        ("UID", Type::String),
        ("creationTimestamp", Type::Timestamp),
        ("deletionGracePeriodSeconds", Type::Int),
        ("deletionTimestamp", Type::Timestamp),
        ("generation", Type::Int),
        ("resourceVersion", Type::String),
        ("finalizers", Type::List),
    ],
};
const NAMESPACE_SPEC: ObjectType = ObjectType {
    name: "kubernetes.NamespaceSpec",
    fields: &[("finalizers", Type::List)],
};
const NAMESPACE_STATUS: ObjectType = ObjectType {
    name: "kubernetes.NamespaceStatus",
    fields: &[("conditions", Type::List), ("phase", Type::String)],
};
/// The type of `namespaceObject`.
pub(crate) const NAMESPACE: ObjectType = ObjectType {
    name: "kubernetes.Namespace",
    fields: &[
        ("metadata", Type::Object(&NAMESPACE_METADATA)),
        ("spec", Type::Object(&NAMESPACE_SPEC)),
        ("status", Type::Object(&NAMESPACE_STATUS)),
    ],
};

/// Functions that kube-apiserver v1.37 declares and kube-cel evaluates, by result. A name with a dot has no target.
const FUNCTIONS: &[(Type<'static>, &[&str])] = &[
    (
        Type::Bool,
        &[
            "contains",
            "startsWith",
            "endsWith",
            "matches",
            "isIP",
            "isCIDR",
            "isURL",
            "isQuantity",
            "isSemver",
            "isSorted",
            "isInteger",
            "isLessThan",
            "isGreaterThan",
            "hasValue",
            "ip.isCanonical",
            "isUnspecified",
            "isLoopback",
            "isLinkLocalMulticast",
            "isLinkLocalUnicast",
            "isGlobalUnicast",
            "containsIP",
            "containsCIDR",
            "sets.contains",
            "sets.equivalent",
            "sets.intersects",
        ],
    ),
    (
        Type::Int,
        &[
            "int",
            "size",
            "indexOf",
            "lastIndexOf",
            "compareTo",
            "sign",
            "asInteger",
            "major",
            "minor",
            "patch",
            "family",
            "prefixLength",
            "getFullYear",
            "getMonth",
            "getDayOfYear",
            "getDayOfMonth",
            "getDate",
            "getDayOfWeek",
            "getHours",
            "getMinutes",
            "getSeconds",
            "getMilliseconds",
        ],
    ),
    (Type::Uint, &["uint"]),
    (Type::Double, &["double", "asApproximateFloat"]),
    (
        Type::String,
        &[
            "string",
            "charAt",
            "lowerAscii",
            "upperAscii",
            "replace",
            "substring",
            "trim",
            "join",
            "format",
            "strings.quote",
            "getScheme",
            "getHost",
            "getHostname",
            "getPort",
            "getEscapedPath",
            "find",
        ],
    ),
    (Type::Bytes, &["bytes"]),
    (Type::Timestamp, &["timestamp"]),
    (Type::Duration, &["duration"]),
    (
        Type::List,
        &[
            "split",
            "findAll",
            "slice",
            "sort",
            "flatten",
            "distinct",
            "reverse",
            "lists.range",
        ],
    ),
    (Type::Map, &["getQuery"]),
    (
        Type::Optional,
        &[
            "optional.none",
            "optional.of",
            "optional.ofNonZeroValue",
            "or",
            "validate",
            "format.named",
            "first",
            "last",
        ],
    ),
    (
        Type::Dyn,
        &[
            "dyn",
            "value",
            "orValue",
            "min",
            "max",
            "sum",
            "ip",
            "cidr",
            "masked",
            "url",
            "quantity",
            "add",
            "sub",
            "semver",
            "format.dns1123Label",
            "format.dns1123Subdomain",
            "format.dns1035Label",
            "format.dns1035LabelPrefix",
            "format.dns1123LabelPrefix",
            "format.dns1123SubdomainPrefix",
            "format.qualifiedName",
            "format.labelValue",
            "format.uri",
            "format.uuid",
            "format.byte",
            "format.date",
            "format.datetime",
        ],
    ),
];

/// Methods of the authorizer, which is refused as a whole.
const AUTHORIZER: &[(Type<'static>, &[&str])] = &[
    (Type::Bool, &["allowed", "errored"]),
    (Type::String, &["reason", "error"]),
    (
        Type::Dyn,
        &[
            "path",
            "check",
            "group",
            "resource",
            "serviceAccount",
            "subresource",
            "namespace",
            "name",
            "fieldSelector",
            "labelSelector",
        ],
    ),
];

/// Functions that kube-cel also accepts without a target, unlike kube-apiserver.
const METHODS: &[&str] = &[
    "contains",
    "startsWith",
    "endsWith",
    "min",
    "max",
    "sum",
    "indexOf",
    "lastIndexOf",
    "replace",
    "split",
    "join",
    "trim",
    "lowerAscii",
    "upperAscii",
    "substring",
    "charAt",
    "format",
    "isSorted",
    "find",
    "findAll",
];

/// Returns the result type of a function; `None` if it is unknown.
pub(crate) fn function(name: &str, has_target: bool) -> Option<Type<'static>> {
    if !has_target && METHODS.contains(&name) {
        return None;
    }
    let methods = AUTHORIZER.iter().filter(|_| has_target);
    let mut all = FUNCTIONS.iter().chain(methods);
    let found = all.find(|(_, names)| names.contains(&name));
    found.map(|(result, _)| *result)
}
