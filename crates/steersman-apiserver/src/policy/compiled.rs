// SPDX-License-Identifier: Apache-2.0
//! The compiled expressions of a policy.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::cel::expression::{Expression, Scope, Type};

/// The types of the result of each kind of expression.
pub(crate) const CONDITION: &[Type<'static>] = &[Type::Bool];
pub(crate) const MESSAGE: &[Type<'static>] = &[Type::String];
pub(crate) const ANNOTATION: &[Type<'static>] = &[Type::String, Type::Null];

/// The expressions of a valid policy.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    pub(crate) conditions: Vec<Expression>,
    pub(crate) variables: BTreeMap<String, Arc<Expression>>,
    pub(crate) validations: Vec<Validation>,
    pub(crate) annotations: Vec<Expression>,
}

/// One validation of a policy.
#[derive(Debug)]
pub(crate) struct Validation {
    pub(crate) expression: Expression,
    pub(crate) message: String,
    pub(crate) message_expression: Option<Expression>,
    pub(crate) reason: String,
}

/// The scopes of the expressions of a policy. Variables are added in the order in which they are declared.
#[derive(Clone, Debug)]
pub(crate) struct Scopes {
    /// Of match conditions.
    pub(crate) conditions: Scope<'static>,
    /// Of variables, validations and audit annotations.
    pub(crate) validations: Scope<'static>,
    /// Of message expressions.
    pub(crate) messages: Scope<'static>,
}

impl Scopes {
    pub(crate) fn of(spec: &Value) -> Self {
        let has_params = !spec["paramKind"].is_null();
        let has_variables = spec["variables"].as_array().is_some_and(|list| !list.is_empty());
        let conditions = Scope {
            has_params,
            has_authorizer: true,
            ..Scope::default()
        };
        let validations = Scope {
            variables: has_variables.then(BTreeMap::new),
            ..conditions.clone()
        };
        let messages = Scope {
            has_authorizer: false,
            ..validations.clone()
        };
        Self {
            conditions,
            validations,
            messages,
        }
    }

    /// Declares a variable for the expressions after it.
    pub(crate) fn declare(&mut self, name: &str, result: Type<'static>) {
        for scope in [&mut self.validations, &mut self.messages] {
            scope
                .variables
                .get_or_insert_default()
                .insert(name.to_owned(), result);
        }
    }
}

impl Compiled {
    /// Compiles the expressions of a valid policy.
    pub(crate) fn of(spec: &Value) -> Self {
        let mut scopes = Scopes::of(spec);
        let mut compiled = Self::default();
        let compile = |text: &Value, scope: &Scope<'static>, wanted: &[Type<'static>]| {
            let text = text.as_str().filter(|text| !text.trim().is_empty())?;
            Expression::compile(text, scope, wanted).ok()
        };
        compiled.conditions = conditions(spec);
        for variable in list(spec, "variables") {
            let name = variable["name"].as_str().unwrap_or_default();
            if let Some(expression) = compile(&variable["expression"], &scopes.validations, &[]) {
                scopes.declare(name, expression.result());
                compiled.variables.insert(name.to_owned(), Arc::new(expression));
            }
        }
        for validation in list(spec, "validations") {
            let text = |key: &str| validation[key].as_str().unwrap_or_default().to_owned();
            let Some(expression) = compile(&validation["expression"], &scopes.validations, CONDITION) else {
                continue;
            };
            compiled.validations.push(Validation {
                expression,
                message: text("message"),
                message_expression: compile(&validation["messageExpression"], &scopes.messages, MESSAGE),
                reason: text("reason"),
            });
        }
        for annotation in list(spec, "auditAnnotations") {
            let found = compile(&annotation["valueExpression"], &scopes.validations, ANNOTATION);
            compiled.annotations.extend(found);
        }
        compiled
    }
}

/// Compiles the match conditions of a valid policy or webhook.
pub(crate) fn conditions(spec: &Value) -> Vec<Expression> {
    let scope = Scopes::of(spec).conditions;
    let conditions = list(spec, "matchConditions").iter();
    let expressions = conditions.filter_map(|condition| condition["expression"].as_str());
    expressions
        .filter_map(|expression| Expression::compile(expression.trim(), &scope, CONDITION).ok())
        .collect()
}

/// Returns the items of a list; none if it is absent.
pub(crate) fn list<'a>(spec: &'a Value, key: &str) -> &'a [Value] {
    spec[key].as_array().map(Vec::as_slice).unwrap_or_default()
}
