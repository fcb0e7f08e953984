// SPDX-License-Identifier: Apache-2.0
//! The parts of `#[serde(…)]` that decide how a status looks on the wire.

use proc_macro2::TokenTree;
use syn::{Attribute, LitStr, Token, meta::ParseNestedMeta, token};

/// The `#[serde(…)]` attributes of a struct or field that matter here.
#[derive(Default)]
pub(crate) struct SerdeAttributes {
    /// `default`.
    pub(crate) has_default: bool,
    /// `deny_unknown_fields`.
    pub(crate) denies_unknown_fields: bool,
    /// `skip`, `skip_serializing` or `skip_deserializing`.
    pub(crate) is_skipped: bool,
    /// `rename = "…"`.
    pub(crate) rename: Option<String>,
    /// `rename_all = "…"`.
    pub(crate) rename_all: Option<String>,
}

impl SerdeAttributes {
    /// Reads the attributes. Serde itself complains about those that it does not know.
    pub(crate) fn of(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut found = Self::default();
        for attribute in attributes.iter().filter(|one| one.path().is_ident("serde")) {
            attribute.parse_nested_meta(|meta| found.read(&meta))?;
        }
        Ok(found)
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("rename") && meta.input.peek(Token![=]) {
            self.rename = Some(meta.value()?.parse::<LitStr>()?.value());
            return Ok(());
        }
        if meta.path.is_ident("rename_all") && meta.input.peek(Token![=]) {
            self.rename_all = Some(meta.value()?.parse::<LitStr>()?.value());
            return Ok(());
        }
        self.has_default |= meta.path.is_ident("default");
        self.denies_unknown_fields |= meta.path.is_ident("deny_unknown_fields");
        let skips = ["skip", "skip_serializing", "skip_deserializing"];
        self.is_skipped |= skips.iter().any(|name| meta.path.is_ident(name));
        skip_value(meta)
    }
}

/// Passes over the value of an attribute that is of no interest here.
fn skip_value(meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
    if meta.input.peek(Token![=]) {
        meta.value()?.parse::<TokenTree>()?;
    } else if meta.input.peek(token::Paren) {
        meta.input.parse::<TokenTree>()?;
    }
    Ok(())
}
