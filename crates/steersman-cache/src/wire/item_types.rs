// SPDX-License-Identifier: Apache-2.0
//! The type of the items of a list.
//!
//! A server omits `kind` and `apiVersion` in the items of a list of a built-in kind, but writes them into every object of a
//! watch. Listed objects get them from the list, so that their bytes are the same either way.

use super::scan::Scanned;

/// The members that an item lacks, each as JSON including the comma; empty if unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemTypes {
    kind: Box<[u8]>,
    api_version: Box<[u8]>,
}

impl ItemTypes {
    /// Sets the kind of the list, as JSON. The kind of its items is this without the suffix `List`.
    pub(crate) fn set_list_kind(&mut self, json: &[u8]) {
        let kind = json.strip_suffix(b"List\"").filter(|kind| kind.len() > 1);
        self.kind = kind.map_or_else(Box::default, |kind| {
            [&b"\"kind\":"[..], kind, b"\","].concat().into()
        });
    }

    /// Sets the version of the list, as JSON.
    pub(crate) fn set_api_version(&mut self, json: &[u8]) {
        let is_text = json.starts_with(b"\"");
        self.api_version = if is_text {
            [&b"\"apiVersion\":"[..], json, b","].concat().into()
        } else {
            Box::default()
        };
    }

    /// Returns the members to add to an item, in the order in which servers write them.
    pub(crate) fn missing_in(&self, item: &Scanned) -> [&[u8]; 2] {
        let unless = |is_there: bool, member| if is_there { &[][..] } else { member };
        [
            unless(item.kind.is_some(), &*self.kind),
            unless(item.api_version.is_some(), &self.api_version),
        ]
    }
}
