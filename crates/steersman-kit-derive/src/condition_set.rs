// SPDX-License-Identifier: Apache-2.0
//! `#[derive(ConditionSet)]`.

use std::collections::HashSet;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{
    Data, DataEnum, DeriveInput, Error, Fields, LitStr, Result, Variant, ext::IdentExt, spanned::Spanned,
};

use crate::{condition_name::rejection, kit_path::kit_path};

/// Conditions that `#[conditions(kstatus)]` adds.
const KSTATUS: [&str; 2] = ["Reconciling", "Stalled"];

/// `#[conditions(…)]` of the enum.
struct SetAttributes {
    summary: String,
    summary_span: Span,
    has_summary: bool,
    kstatus: bool,
    kit: Option<syn::Path>,
}

/// One variant with its `#[condition(…)]`.
struct Condition<'a> {
    variant: &'a Variant,
    name: String,
    span: Span,
    informational: bool,
    negative: bool,
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Enum(data) = &input.data else {
        return Err(Error::new(
            input.ident.span(),
            "`ConditionSet` is derived for an enum with one variant for each condition",
        ));
    };
    let set = SetAttributes::of(input)?;
    let conditions = conditions(data)?;
    check(input, &set, &conditions)?;

    let SetAttributes {
        summary,
        kstatus,
        kit,
        ..
    } = set;
    let enumeration = &input.ident;
    let variants: Vec<_> = conditions.iter().map(|one| &one.variant.ident).collect();
    let names = conditions.iter().map(|one| &one.name);
    let informational = matching(&conditions, |one| one.informational);
    let negative = matching(&conditions, |one| one.negative);
    let kit = kit_path(kit);
    Ok(quote! {
        #[automatically_derived]
        impl #kit::ConditionSet for #enumeration {
            const SUMMARY: &'static str = #summary;
            const ALL: &'static [Self] = &[#(Self::#variants),*];
            const KSTATUS: bool = #kstatus;
            fn name(self) -> &'static str {
                match self { #(Self::#variants => #names),* }
            }
            fn informational(self) -> bool { #informational }
            fn negative(self) -> bool { #negative }
        }
    })
}

/// An expression that tells whether `self` is one of the chosen conditions.
fn matching(conditions: &[Condition<'_>], is_chosen: impl Fn(&Condition<'_>) -> bool) -> TokenStream {
    let chosen: Vec<_> = conditions
        .iter()
        .filter(|one| is_chosen(one))
        .map(|one| &one.variant.ident)
        .collect();
    if chosen.is_empty() {
        quote!(false)
    } else {
        quote!(::core::matches!(self, #(Self::#chosen)|*))
    }
}

impl SetAttributes {
    fn of(input: &DeriveInput) -> Result<Self> {
        let mut found = Self {
            summary: "Ready".to_owned(),
            summary_span: input.ident.span(),
            has_summary: true,
            kstatus: false,
            kit: None,
        };
        for attribute in input.attrs.iter().filter(|one| one.path().is_ident("conditions")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("summary") {
                    let name: LitStr = meta.value()?.parse()?;
                    (found.summary, found.summary_span) = (name.value(), name.span());
                } else if meta.path.is_ident("no_summary") {
                    found.has_summary = false;
                    found.summary = String::new();
                } else if meta.path.is_ident("kstatus") {
                    found.kstatus = true;
                } else if meta.path.is_ident("crate") {
                    found.kit = Some(meta.value()?.parse::<LitStr>()?.parse()?);
                } else {
                    return Err(meta.error(
                        "unknown attribute; `#[conditions(…)]` takes `summary = \"Ready\"`, `no_summary`, `kstatus` and \
                         `crate = \"…\"`",
                    ));
                }
                Ok(())
            })?;
        }
        Ok(found)
    }
}

fn conditions(data: &DataEnum) -> Result<Vec<Condition<'_>>> {
    data.variants
        .iter()
        .map(|variant| {
            if !matches!(variant.fields, Fields::Unit) {
                return Err(Error::new(
                    variant.fields.span(),
                    "a condition has no fields: give its reason and message when you set it, as in \
                     `set_false(condition, reason, message)`",
                ));
            }
            Condition::of(variant)
        })
        .collect()
}

impl<'a> Condition<'a> {
    fn of(variant: &'a Variant) -> Result<Self> {
        let mut found = Self {
            variant,
            name: variant.ident.unraw().to_string(),
            span: variant.ident.span(),
            informational: false,
            negative: false,
        };
        for attribute in variant
            .attrs
            .iter()
            .filter(|one| one.path().is_ident("condition"))
        {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("informational") {
                    found.informational = true;
                } else if meta.path.is_ident("negative") {
                    found.negative = true;
                } else if meta.path.is_ident("name") {
                    let name: LitStr = meta.value()?.parse()?;
                    (found.name, found.span) = (name.value(), name.span());
                } else {
                    return Err(meta.error(
                        "unknown attribute; `#[condition(…)]` takes `informational`, `negative` and `name = \"…\"`",
                    ));
                }
                Ok(())
            })?;
        }
        Ok(found)
    }
}

fn check(input: &DeriveInput, set: &SetAttributes, conditions: &[Condition<'_>]) -> Result<()> {
    if set.has_summary {
        if let Some(why) = rejection(&set.summary) {
            return Err(Error::new(set.summary_span, why));
        }
        if conditions.iter().all(|one| one.informational) {
            return Err(Error::new(
                input.ident.span(),
                format!(
                    "no condition counts for the summary `{}`, so it would always be True: add a variant without \
                     `#[condition(informational)]`, or write `#[conditions(no_summary)]`",
                    set.summary
                ),
            ));
        }
    } else if set.kstatus {
        return Err(Error::new(
            input.ident.span(),
            "`kstatus` needs a summary: remove `no_summary`",
        ));
    }
    let mut names = HashSet::new();
    for one in conditions {
        if let Some(why) = rejection(&one.name) {
            return Err(Error::new(one.span, why));
        }
        if set.has_summary && one.name == set.summary {
            return Err(Error::new(
                one.span,
                format!(
                    "`{}` is the summary, which is computed from the other conditions: remove this variant, or name another \
                     summary with `#[conditions(summary = \"…\")]`",
                    one.name
                ),
            ));
        }
        if set.kstatus && KSTATUS.contains(&&*one.name) {
            return Err(Error::new(
                one.span,
                format!(
                    "`kstatus` maintains the condition `{}`: remove this variant",
                    one.name
                ),
            ));
        }
        if !names.insert(&one.name) {
            return Err(Error::new(
                one.span,
                format!(
                    "two conditions are named `{}`: give one of them another name",
                    one.name
                ),
            ));
        }
    }
    Ok(())
}
