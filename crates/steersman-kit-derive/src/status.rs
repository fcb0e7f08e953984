// SPDX-License-Identifier: Apache-2.0
//! `#[derive(Status)]`.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{
    Data, DeriveInput, Error, Field, Fields, GenericArgument, LitStr, Path, PathArguments, Result, Type,
    spanned::Spanned,
};

use crate::{kit_path::kit_path, serde_attributes::SerdeAttributes};

/// `#[status(…)]` of the struct.
#[derive(Default)]
struct StatusAttributes {
    of: Vec<Path>,
    kit: Option<Path>,
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let attributes = StatusAttributes::of(input)?;
    let fields = named_fields(input)?;
    let conditions = conditions(input, fields)?;
    let serde = SerdeAttributes::of(&input.attrs)?;
    check_struct(input, &serde)?;
    let observed = find(fields, "observed_generation");
    if let Some(observed) = observed {
        check_wire_name(observed, &serde, "observedGeneration")?;
        check_option(
            observed,
            "i64",
            "write `Option<i64>`: it is `None` until a generation was reconciled",
        )?;
    }
    let handled = find(fields, "last_handled_reconcile_at");
    if let Some(handled) = handled {
        check_wire_name(handled, &serde, "lastHandledReconcileAt")?;
        check_option(
            handled,
            "String",
            "write `Option<String>`: it is `None` until a request was handled",
        )?;
    }

    let kit = kit_path(attributes.kit);
    let status = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    // The set is a projection of the field's type, so that an alias works, and a wrong type is an error at the field.
    let field_type = &conditions.ty;
    let set = quote_spanned!(field_type.span()=> <#field_type as #kit::ConditionList>::Set);
    let observe = match observed {
        Some(_) => quote!(self.observed_generation = generation;),
        None => quote!(let _ = generation;),
    };
    let handle = handled.map(|_| {
        quote! {
            fn last_handled_reconcile_at(&self) -> ::core::option::Option<&str> {
                self.last_handled_reconcile_at.as_deref()
            }
            fn set_last_handled_reconcile_at(&mut self, token: &str) {
                self.last_handled_reconcile_at = ::core::option::Option::Some(token.into());
            }
        }
    });
    let kinds = if attributes.of.is_empty() {
        let mut generics = input.generics.clone();
        generics
            .params
            .push(syn::parse_quote!(__K: #kit::__private::HasStatus));
        let (impl_generics, _, _) = generics.split_for_impl();
        quote! {
            #[automatically_derived]
            #[diagnostic::do_not_recommend]
            impl #impl_generics #kit::StatusFor<__K> for #status #type_generics #where_clause {}
        }
    } else {
        let of = &attributes.of;
        quote! {#(
            #[automatically_derived]
            impl #impl_generics #kit::StatusFor<#of> for #status #type_generics #where_clause {}
        )*}
    };
    Ok(quote! {
        #[automatically_derived]
        impl #impl_generics #kit::StatusParts for #status #type_generics #where_clause {
            type Set = #set;
            fn conditions(&self) -> &#kit::Conditions<Self::Set> { &self.conditions }
            fn conditions_mut(&mut self) -> &mut #kit::Conditions<Self::Set> { &mut self.conditions }
            fn set_observed_generation(&mut self, generation: ::core::option::Option<i64>) { #observe }
            #handle
        }
        #kinds
    })
}

impl StatusAttributes {
    fn of(input: &DeriveInput) -> Result<Self> {
        let mut found = Self::default();
        for attribute in input.attrs.iter().filter(|one| one.path().is_ident("status")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("of") {
                    meta.parse_nested_meta(|kind| {
                        found.of.push(kind.path);
                        Ok(())
                    })
                } else if meta.path.is_ident("crate") {
                    found.kit = Some(meta.value()?.parse::<LitStr>()?.parse()?);
                    Ok(())
                } else {
                    Err(meta
                        .error("unknown attribute; `#[status(…)]` takes `of(Kind, …)` and `crate = \"…\"`"))
                }
            })?;
        }
        Ok(found)
    }
}

fn named_fields(input: &DeriveInput) -> Result<&Fields> {
    match &input.data {
        Data::Struct(data) if !matches!(data.fields, Fields::Unnamed(_)) => Ok(&data.fields),
        _ => Err(Error::new(
            input.ident.span(),
            "`Status` is derived for a struct with named fields",
        )),
    }
}

fn find<'a>(fields: &'a Fields, name: &str) -> Option<&'a Field> {
    fields
        .iter()
        .find(|field| field.ident.as_ref().is_some_and(|ident| ident == name))
}

fn conditions<'a>(input: &DeriveInput, fields: &'a Fields) -> Result<&'a Field> {
    let Some(field) = find(fields, "conditions") else {
        return Err(Error::new(
            input.ident.span(),
            "a status needs conditions: add the field `pub conditions: Conditions<C>`, where `C` is an enum with \
             `#[derive(ConditionSet)]`",
        ));
    };
    let serde = SerdeAttributes::of(&field.attrs)?;
    if serde.is_skipped || serde.rename.is_some_and(|name| name != "conditions") {
        return Err(Error::new(
            field.span(),
            "`kubectl wait` and other clients read `status.conditions`: remove the serde attribute that skips or renames it",
        ));
    }
    let message = match wrapper(&field.ty) {
        Some("Vec") => {
            "write `Conditions<C>` instead of `Vec<…>`, where `C` is an enum with `#[derive(ConditionSet)]`: it has the \
             list-map schema, and keeps transition times and the summary"
        }
        Some("Option") => "write `Conditions<C>` without `Option`: it is an empty list by default",
        _ => return Ok(field),
    };
    Err(Error::new(field.ty.span(), message))
}

fn check_struct(input: &DeriveInput, serde: &SerdeAttributes) -> Result<()> {
    if !serde.has_default {
        return Err(Error::new(
            input.ident.span(),
            "a status needs defaults: add `#[serde(rename_all = \"camelCase\", default)]`, or objects whose status was written \
             before you added a field cannot be decoded",
        ));
    }
    if serde.denies_unknown_fields {
        return Err(Error::new(
            input.ident.span(),
            "remove `deny_unknown_fields`: a status that another version or another controller wrote could not be decoded",
        ));
    }
    Ok(())
}

fn check_option(field: &Field, of: &str, message: &str) -> Result<()> {
    match is_option_of(&field.ty, of) {
        true => Ok(()),
        false => Err(Error::new(field.ty.span(), message)),
    }
}

fn check_wire_name(field: &Field, serde: &SerdeAttributes, name: &str) -> Result<()> {
    let own = SerdeAttributes::of(&field.attrs)?;
    let is_camel_case = match &own.rename {
        Some(own) => own == name,
        None => serde.rename_all.as_deref() == Some("camelCase"),
    };
    if own.is_skipped || !is_camel_case {
        return Err(Error::new(
            field.span(),
            format!(
                "clients read `status.{name}`: add `#[serde(rename_all = \"camelCase\", default)]` to the struct, and no serde \
                 attribute that renames or skips this field"
            ),
        ));
    }
    Ok(())
}

/// Returns `Vec` or `Option` if the type is written as one of these.
fn wrapper(written: &Type) -> Option<&'static str> {
    let Type::Path(path) = written else { return None };
    let last = path.path.segments.last()?;
    ["Vec", "Option"].into_iter().find(|name| last.ident == *name)
}

fn is_option_of(written: &Type, name: &str) -> bool {
    let Type::Path(path) = written else { return false };
    let Some(last) = path.path.segments.last() else {
        return false;
    };
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return false;
    };
    let is_meant = |argument: &GenericArgument| matches!(argument, GenericArgument::Type(Type::Path(inner)) if inner.path.is_ident(name));
    last.ident == "Option" && arguments.args.len() == 1 && arguments.args.iter().all(is_meant)
}
