// SPDX-License-Identifier: Apache-2.0
//! The verdict of one policy on one write, with one set of parameters.

use serde_json::Value;

use super::compiled::{Compiled, Validation};
use crate::cel::expression::{Activation, BUDGET, EvaluationError, Expression, MATCH_BUDGET, Outcome};

/// Maximum length of a message that an expression gives.
const MESSAGE_MAX: usize = 5 * 1024;

/// The values that the expressions of a policy see.
#[derive(Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) object: Option<&'a Value>,
    pub(crate) old_object: Option<&'a Value>,
    pub(crate) request: &'a Value,
    pub(crate) params: Option<&'a Value>,
    pub(crate) namespace: Option<&'a Value>,
}

impl Inputs<'_> {
    fn activation(&self) -> Activation {
        Activation::default()
            .with("object", self.object)
            .with("oldObject", self.old_object)
            .with("request", Some(self.request))
            .with("params", self.params)
    }
}

/// Why a write does not pass.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) message: String,
    /// The reason of the status, such as `Forbidden`.
    pub(super) reason: String,
}

impl Denial {
    pub(super) fn invalid(message: String) -> Self {
        Self {
            message,
            reason: "Invalid".to_owned(),
        }
    }
}

/// The verdict of a policy.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// The validations that failed; the binding says what follows.
    pub(super) failed: Vec<Denial>,
    /// The audit annotations without a value; they always deny the write.
    pub(super) annotation_errors: Vec<Denial>,
}

/// Evaluates a policy. An expression that cannot be evaluated counts as failed if the policy fails closed.
pub(super) fn evaluate(compiled: &Compiled, inputs: &Inputs<'_>, fails_closed: bool) -> Verdict {
    let mut verdict = Verdict::default();
    match matches(&compiled.conditions, inputs) {
        Ok(true) => {}
        Err(why) if fails_closed => {
            verdict.failed.push(Denial::invalid(why));
            return verdict;
        }
        _ => return verdict,
    }
    let activation = inputs
        .activation()
        .with("namespaceObject", inputs.namespace)
        .with_variables(&compiled.variables);
    let mut budget = BUDGET;
    for validation in &compiled.validations {
        match activation.evaluate(&validation.expression, &mut budget) {
            Ok(Outcome::Bool(true)) => {}
            Ok(_) => verdict.failed.push(denial(validation, &activation, &mut budget)),
            Err(EvaluationError::OutOfBudget) => {
                verdict.failed.clear();
                if fails_closed {
                    let why = EvaluationError::OutOfBudget.message().to_owned();
                    verdict.failed.push(Denial::invalid(why));
                }
                return verdict;
            }
            Err(error) if fails_closed => verdict.failed.push(Denial::invalid(error.message().to_owned())),
            Err(_) => {}
        }
    }
    let mut budget = BUDGET;
    for annotation in &compiled.annotations {
        if let Err(error) = activation.evaluate(annotation, &mut budget)
            && fails_closed
        {
            let denial = Denial::invalid(error.message().to_owned());
            verdict.annotation_errors.push(denial);
        }
    }
    verdict
}

/// Returns true if all match conditions are true. One that is false decides, even if others cannot be evaluated.
pub(crate) fn matches(conditions: &[Expression], inputs: &Inputs<'_>) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let activation = inputs.activation().with("namespaceObject", None);
    let mut budget = MATCH_BUDGET;
    let mut errors = Vec::new();
    for condition in conditions {
        match activation.evaluate(condition, &mut budget) {
            Ok(Outcome::Bool(false)) => return Ok(false),
            Ok(_) => {}
            Err(error) => errors.push(error.message().to_owned()),
        }
    }
    match errors.as_slice() {
        [] => Ok(true),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Returns the denial of a validation that is false.
fn denial(validation: &Validation, activation: &Activation, budget: &mut u64) -> Denial {
    let expression = validation.message_expression.as_ref();
    let given = expression.and_then(|expression| match activation.evaluate(expression, budget) {
        Ok(Outcome::Text(text)) => Some(text.trim().to_owned()),
        _ => None,
    });
    let given = given.filter(|text| text.len() <= MESSAGE_MAX && !text.contains('\n') && !text.is_empty());
    let message = given.unwrap_or_else(|| match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.text().trim()),
        message => message.to_owned(),
    });
    let reason = match validation.reason.as_str() {
        "" => "Invalid",
        reason => reason,
    };
    Denial {
        message,
        reason: reason.to_owned(),
    }
}
