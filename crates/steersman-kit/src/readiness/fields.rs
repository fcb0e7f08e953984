// SPDX-License-Identifier: Apache-2.0
//! Reads fields of an object by JSON pointer. A field of another type counts as missing.

use serde_json::Value;

/// The fields of one object.
pub(super) struct Fields<'a>(&'a Value);

/// A condition, with empty strings for missing fields.
pub(super) struct FoundCondition<'a> {
    pub(super) type_: &'a str,
    pub(super) status: &'a str,
    pub(super) reason: &'a str,
    pub(super) message: &'a str,
}

impl<'a> Fields<'a> {
    pub(super) fn of(object: &'a Value) -> Self {
        Self(object)
    }

    pub(super) fn number(&self, pointer: &str) -> Option<i64> {
        self.0.pointer(pointer)?.as_i64()
    }

    /// Returns a number of a status, which the server leaves out if it is zero.
    pub(super) fn count(&self, pointer: &str) -> i64 {
        self.number(pointer).unwrap_or(0)
    }

    pub(super) fn text(&self, pointer: &str) -> Option<&'a str> {
        self.0.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
    }

    pub(super) fn flag(&self, pointer: &str) -> bool {
        self.0.pointer(pointer).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(super) fn list(&self, pointer: &str) -> Option<&'a [Value]> {
        self.0.pointer(pointer)?.as_array().map(Vec::as_slice)
    }

    pub(super) fn conditions(&self) -> impl Iterator<Item = FoundCondition<'a>> {
        let list = self.list("/status/conditions").unwrap_or_default();
        list.iter().map(|condition| {
            let field = |name: &str| condition.get(name).and_then(Value::as_str).unwrap_or_default();
            FoundCondition {
                type_: field("type"),
                status: field("status"),
                reason: field("reason"),
                message: field("message"),
            }
        })
    }

    pub(super) fn condition(&self, name: &str) -> Option<FoundCondition<'a>> {
        self.conditions().find(|condition| condition.type_ == name)
    }

    pub(super) fn has_true(&self, name: &str) -> bool {
        self.condition(name)
            .is_some_and(|condition| condition.status == "True")
    }
}
