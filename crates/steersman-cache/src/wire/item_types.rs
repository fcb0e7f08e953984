// SPDX-License-Identifier: Apache-2.0
//! What a list says about the type of its items.
//!
//! A server leaves `kind` and `apiVersion` out of the items of a list of a built-in kind, and writes them into every
//! object of a watch. Objects that come by a list get them from the list, so that they are the same bytes either way.

use super::scan::Scanned;

/// The members that an item lacks, each as it is written, comma included; empty where nothing is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemTypes {
    kind: Box<[u8]>,
    api_version: Box<[u8]>,
}

impl ItemTypes {
    /// Takes the kind of the list, as JSON: that of its items has no `List` at the end.
    pub(crate) fn set_list_kind(&mut self, json: &[u8]) {
        let kind = json.strip_suffix(b"List\"").filter(|kind| kind.len() > 1);
        self.kind = kind.map_or_else(Box::default, |kind| {
            [&b"\"kind\":"[..], kind, b"\","].concat().into()
        });
    }

    /// Takes the version of the list, as JSON.
    pub(crate) fn set_api_version(&mut self, json: &[u8]) {
        let is_text = json.starts_with(b"\"");
        self.api_version = if is_text {
            [&b"\"apiVersion\":"[..], json, b","].concat().into()
        } else {
            Box::default()
        };
    }

    /// What is to be added to an item, in the order in which servers write it.
    pub(crate) fn missing_in(&self, item: &Scanned) -> [&[u8]; 2] {
        let unless = |is_there: bool, member| if is_there { &[][..] } else { member };
        [
            unless(item.kind.is_some(), &*self.kind),
            unless(item.api_version.is_some(), &self.api_version),
        ]
    }
}
