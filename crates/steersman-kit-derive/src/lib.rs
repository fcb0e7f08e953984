// SPDX-License-Identifier: Apache-2.0
//! The derive macros behind `ConditionSet` and `Status` of the crate `steersman-kit`; use them from there.
//!
//! Each macro rejects a mistake at the place where it was made, with a message that says what to write instead. The compile-fail
//! tests of `steersman-kit` pin these messages.

mod condition_name;
mod condition_set;
mod kit_path;
mod serde_attributes;
mod status;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `ConditionSet` for an enum with one unit variant for each condition.
///
/// On the enum:
/// * `#[conditions(summary = "Ready")]`: the name of the summary condition. Default: `Ready`. Use a name such as `Succeeded` for
///   a kind whose work ends.
/// * `#[conditions(no_summary)]`: no summary, for a controller that adds conditions to the kind of another controller.
/// * `#[conditions(kstatus)]`: also maintains the conditions `Reconciling` and `Stalled` of kstatus.
/// * `#[conditions(crate = "path::to::kit")]`: the path of the crate, if it was renamed.
///
/// On a variant:
/// * `#[condition(name = "…")]`: the type of the condition. Default: the name of the variant.
/// * `#[condition(informational)]`: does not count for the summary.
/// * `#[condition(negative)]`: `True` is the bad state, as in `Degraded`.
#[proc_macro_derive(ConditionSet, attributes(conditions, condition))]
pub fn condition_set(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    condition_set::expand(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

/// Implements `StatusParts` and `StatusFor` for a struct with a field `conditions: Conditions<C>`, and optionally
/// `observed_generation: Option<i64>` and `last_handled_reconcile_at: Option<String>`.
///
/// The struct needs `#[serde(rename_all = "camelCase", default)]`. On the struct:
/// * `#[status(of(Deployment))]`: the kinds that have this status. Default: every kind with `status = "…"` in `#[kube(…)]`.
/// * `#[status(crate = "path::to::kit")]`: the path of the crate, if it was renamed.
#[proc_macro_derive(Status, attributes(status))]
pub fn status(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    status::expand(&input)
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
