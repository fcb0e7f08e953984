// SPDX-License-Identifier: Apache-2.0
//! Expressions of admission: match conditions, validations, messages, audit annotations and variables of policies.
//!
//! # Limits
//! As in kube-apiserver, an expression costs at most a million units, and all expressions of a policy ten million. This
//! server counts less: four units for a turn of a loop, and one for each element of a list, or each ten bytes of a text,
//! that grows.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use kube_cel::{
    KubeCelExt,
    cel::{
        Context, ExecutionError, Value,
        common::ast::IdedExpr,
        context::VariableResolver,
        objects::{Key, Map},
        parser::Parser,
    },
};
use serde_json::Value as Json;

use super::{check, excess, lower, with_room};
pub(crate) use super::{check::Scope, types::Type};

/// The work that all expressions of a policy can do on one write.
pub(crate) const BUDGET: u64 = 10_000_000;
/// The work that the match conditions of one configuration can do on one write.
pub(crate) const MATCH_BUDGET: u64 = 2_500_000;

/// The work of one expression.
const CALL_LIMIT: u64 = 1_000_000;
/// The cost of a turn of a loop.
const TURN_COST: u64 = 4;

/// The message of the real server for one expression that does too much.
const OVER_LIMIT: &str = "operation cancelled: actual cost limit exceeded";
/// The message of the real server for expressions that together do too much.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

thread_local! {
    /// The work that the expression that is evaluated can still do. Evaluation never leaves its thread.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// All functions, without variables.
static FUNCTIONS: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut functions = Context::default().with_all();
    functions.add_function(lower::TURN, || charge(TURN_COST).map(|()| Value::Bool(true)));
    functions.add_function(lower::SIZED, |value: Value| charge(size(&value)).map(|()| value));
    functions.add_function("dyn", |value: Value| -> Result<Value, ExecutionError> {
        Ok(value)
    });
    functions
});

fn charge(units: u64) -> Result<(), ExecutionError> {
    let rest = LEFT.get().saturating_sub(units);
    LEFT.set(rest);
    match rest {
        0 => Err(ExecutionError::function_error("cost", OVER_LIMIT)),
        _ => Ok(()),
    }
}

fn size(value: &Value) -> u64 {
    let size = match value {
        Value::String(text) => text.len() / 10,
        Value::Bytes(bytes) => bytes.len() / 10,
        Value::List(items) => items.len(),
        _ => 0,
    };
    1 + size as u64
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    tree: IdedExpr,
    result: Type<'static>,
}

impl Expression {
    /// Compiles an expression whose result has one of the types in `wanted`; any type if it is empty.
    ///
    /// # Errors
    /// Returns the detail of the field error, in the words of the real server.
    pub(crate) fn compile(
        text: &str,
        scope: &Scope<'static>,
        wanted: &[Type<'static>],
    ) -> Result<Self, String> {
        let failed = |issues: String| format!("compilation failed: {issues}");
        if let Some(excess) = excess(text) {
            return Err(failed(excess));
        }
        let mut tree = with_room(|| parse(text)).map_err(failed)?;
        let result = with_room(|| check::check(text, &tree, scope)).map_err(failed)?;
        match wanted {
            [] => {}
            [one] if *one != result => return Err(format!("must evaluate to {one} but got {result}")),
            several if !several.contains(&result) => {
                let names: Vec<String> = several.iter().map(ToString::to_string).collect();
                return Err(format!(
                    "must evaluate to one of [{}] but got {result}",
                    names.join(" ")
                ));
            }
            _ => {}
        }
        with_room(|| lower::lower(&mut tree));
        Ok(Self {
            text: text.to_owned(),
            tree,
            result,
        })
    }

    /// Checks an expression that compiles with other types, and returns its type.
    ///
    /// # Errors
    /// Returns the issues as the compiler of the real server prints them.
    pub(crate) fn check<'a>(text: &str, scope: &Scope<'a>) -> Result<Type<'a>, String> {
        let tree = with_room(|| parse(text))?;
        with_room(|| check::check(text, &tree, scope))
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn result(&self) -> Type<'static> {
        self.result
    }
}

pub(super) fn parse(text: &str) -> Result<IdedExpr, String> {
    let parser = Parser::default().enable_optional_syntax(true);
    parser.parse(text).map_err(|errors| errors.to_string())
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Bool(bool),
    Text(String),
    Null,
    Other,
}

/// Why an expression has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EvaluationError {
    /// The expression failed on these values.
    Failed(String),
    /// The budget is used up.
    OutOfBudget,
}

impl EvaluationError {
    /// Returns the message of the real server.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Failed(message) => message,
            Self::OutOfBudget => OUT_OF_BUDGET,
        }
    }
}

/// The values that expressions see.
#[derive(Debug, Default)]
pub(crate) struct Activation {
    values: HashMap<&'static str, Value>,
    variables: BTreeMap<String, Arc<Expression>>,
    /// Results of variables, and why those without a result have none.
    found: Mutex<HashMap<String, Result<Value, String>>>,
}

impl Activation {
    /// Sets the value of `object`, `request` or another variable.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: Option<&Json>) -> Self {
        self.values.insert(name, value.map_or(Value::Null, value_of));
        self
    }

    /// Sets the expressions of `variables`.
    #[must_use]
    pub(crate) fn with_variables(mut self, variables: &BTreeMap<String, Arc<Expression>>) -> Self {
        self.variables = variables.clone();
        self
    }

    /// Evaluates an expression and takes its cost from the budget.
    pub(crate) fn evaluate(
        &self,
        expression: &Expression,
        budget: &mut u64,
    ) -> Result<Outcome, EvaluationError> {
        let limit = CALL_LIMIT.min(*budget);
        LEFT.set(limit);
        let result = with_room(|| self.resolve_tree(&expression.tree));
        let left = LEFT.get();
        *budget -= limit - left;
        match result {
            Ok(Value::Bool(value)) => Ok(Outcome::Bool(value)),
            Ok(Value::String(text)) => Ok(Outcome::Text(text.as_str().to_owned())),
            Ok(Value::Null) => Ok(Outcome::Null),
            Ok(_) => Ok(Outcome::Other),
            Err(_) if *budget == 0 => Err(EvaluationError::OutOfBudget),
            Err(error) => {
                let why = match left {
                    0 => OVER_LIMIT.to_owned(),
                    _ => self.worded(&error),
                };
                let text = &expression.text;
                Err(EvaluationError::Failed(format!(
                    "expression '{text}' resulted in error: {why}"
                )))
            }
        }
    }

    fn resolve_tree(&self, tree: &IdedExpr) -> Result<Value, ExecutionError> {
        let mut context = FUNCTIONS.new_inner_scope();
        context.set_variable_resolver(self);
        Value::resolve(tree, &context)
    }

    /// Returns the message of an evaluation error; that of a variable names the variable.
    fn worded(&self, error: &ExecutionError) -> String {
        match error {
            ExecutionError::UndeclaredReference(name) => {
                let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                match found.get(name.as_str()) {
                    Some(Err(why)) => {
                        let name = name.trim_start_matches(lower::VARIABLES);
                        format!("composited variable {name:?} fails to evaluate: {why}")
                    }
                    _ => error.to_string(),
                }
            }
            other => worded(other),
        }
    }
}

/// Returns the message of the real server for an evaluation error, as far as it is known.
pub(super) fn worded(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::IndexOutOfBounds(Value::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedIndex(..) => "no such overload".to_owned(),
        other => other.to_string(),
    }
}

impl VariableResolver for Activation {
    fn resolve(&self, name: &str) -> Option<Value> {
        if let Some(value) = self.values.get(name) {
            return Some(value.clone());
        }
        let expression = self.variables.get(name.strip_prefix(lower::VARIABLES)?)?;
        let lock = || self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(name).cloned();
        let found = known.unwrap_or_else(|| {
            // The lock is free while the variable is evaluated: it can use other variables.
            let found = self.resolve_tree(&expression.tree);
            let found = found.map_err(|error| self.worded(&error));
            lock().insert(name.to_owned(), found.clone());
            found
        });
        found.ok()
    }
}

/// Converts JSON. Unlike in rules of CRDs, names of fields are not escaped.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::UInt(number),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value_of).collect())),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (Key::String(Arc::new(key.clone())), value_of(value)));
            Value::Map(Map {
                map: Arc::new(fields.collect()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope() -> Scope<'static> {
        Scope {
            has_params: true,
            ..Scope::default()
        }
    }

    fn evaluate(text: &str, object: &Json) -> Result<Outcome, EvaluationError> {
        let expression =
            Expression::compile(text, &scope(), &[]).unwrap_or_else(|error| panic!("{text}: {error}"));
        let activation = Activation::default()
            .with("object", Some(object))
            .with("oldObject", None);
        activation.evaluate(&expression, &mut BUDGET.clone())
    }

    #[test]
    fn evaluates_objects_of_the_cluster() {
        let object = json!({
            "metadata": {"name": "web", "namespace": "prod", "labels": {"a-b/c": "x", "namespace": "y"}},
            "spec": {"replicas": 3, "paused": null, "list": [{"n": 1}, {"n": 2}], "kind": "text"},
        });
        for text in [
            "object.metadata.namespace == 'prod'",
            "object.metadata.labels['a-b/c'] == 'x'",
            "object.metadata.labels['namespace'] == 'y'",
            "'a-b/c' in object.metadata.labels",
            "oldObject == null",
            "has(object.spec.replicas) && !has(object.spec.other)",
            "object.?spec.?other.orValue(7) == 7",
            "object.?spec.replicas.orValue(7) == 3",
            "object.?none.replicas.orValue(7) == 7",
            "object.spec.list.all(x, x.n > 0) && object.spec.list.exists(x, x.n == 2)",
            "object.spec.list.map(x, x.n) == [1, 2]",
            "object.spec.list.filter(x, x.n > 1).size() == 1",
            "size(object.spec.list) == 2 && object.spec.list[1].n == 2",
            "object.spec.paused == null",
            "object.spec.kind.startsWith('te') ? true : false",
            "'%s has %d'.format([object.metadata.name, object.spec.replicas]) == 'web has 3'",
            "quantity('1Gi').isGreaterThan(quantity('500Mi'))",
            "object.metadata.name.matches('^w.b$')",
            "dyn(object.spec.replicas) == 3",
            "sets.contains([1, 2, 3], object.spec.list.map(x, x.n))",
        ] {
            assert_eq!(evaluate(text, &object), Ok(Outcome::Bool(true)), "{text}");
        }
    }

    #[test]
    fn fails_where_a_field_is_absent_or_no_map() {
        let object = json!({"spec": {"kind": "text", "none": null}});
        for (text, why) in [
            ("object.spec.other > 1", "no such key: other"),
            ("object.spec.kind.name == 'x'", "no such overload"),
            ("object.spec.none.name == 'x'", "no such overload"),
            ("has(object.spec.kind.name)", "no such overload"),
            ("1 / (object.spec.kind.size() - 4) == 0", "division by zero"),
            ("[1][object.spec.kind.size()] == 0", "index out of bounds: 4"),
        ] {
            let message = format!("expression '{text}' resulted in error: {why}");
            assert_eq!(evaluate(text, &object), Err(EvaluationError::Failed(message)));
        }
    }

    #[test]
    fn stops_an_expression_that_does_too_much() {
        let long: Vec<u32> = (0..1000).collect();
        let object = json!({"l": long, "s": "x".repeat(100_000)});
        let sum = vec!["object.s"; 150].join(" + ");
        for text in [
            "object.l.all(a, object.l.all(b, object.l.all(c, a + b + c >= 0)))",
            "object.l.map(a, object.l.map(b, a)).size() > 0",
            &format!("({sum}).size() > 0"),
        ] {
            let error = evaluate(text, &object).expect_err("it does too much");
            assert!(
                error.message().ends_with("actual cost limit exceeded"),
                "{}",
                error.message()
            );
        }
        let expression = Expression::compile("object.l.all(a, a >= 0)", &scope(), &[]).unwrap();
        let activation = Activation::default().with("object", Some(&object));
        let mut budget = 10_000;
        let mut evaluate = || activation.evaluate(&expression, &mut budget);
        assert_eq!([evaluate(), evaluate()], [const { Ok(Outcome::Bool(true)) }; 2]);
        assert_eq!(evaluate(), Err(EvaluationError::OutOfBudget));
    }

    #[test]
    fn evaluates_variables_only_where_they_are_used() {
        let mut scope = scope();
        let mut variables = BTreeMap::new();
        let mut types = BTreeMap::new();
        for (name, text) in [
            ("bad", "object.spec.none"),
            ("one", "object.spec.replicas"),
            ("two", "variables.one + 1"),
        ] {
            scope.variables = Some(types.clone());
            let expression = Expression::compile(text, &scope, &[]).unwrap();
            types.insert(name.to_owned(), expression.result());
            variables.insert(name.to_owned(), Arc::new(expression));
        }
        scope.variables = Some(types);
        let object = json!({"spec": {"replicas": 3}});
        let activation = Activation::default()
            .with("object", Some(&object))
            .with_variables(&variables);
        let result = |text: &str| {
            let expression = Expression::compile(text, &scope, &[Type::Bool]).unwrap();
            activation.evaluate(&expression, &mut BUDGET.clone())
        };
        assert_eq!(result("variables.two == 4"), Ok(Outcome::Bool(true)));
        assert_eq!(
            result("has(object.spec.none) ? variables.bad == 1 : true"),
            Ok(Outcome::Bool(true))
        );
        let message = "expression 'variables.bad == 1' resulted in error: composited variable \"bad\" fails to evaluate: no such key: none";
        assert_eq!(
            result("variables.bad == 1"),
            Err(EvaluationError::Failed(message.to_owned()))
        );
    }

    #[test]
    fn rejects_undeclared_and_unsupported_names() {
        for (text, issue) in [
            (
                "foo.bar == 1",
                "1:1: undeclared reference to 'foo' (in container '')\n | foo.bar == 1\n | ^",
            ),
            (
                "object.x == self.y",
                "1:13: undeclared reference to 'self' (in container '')",
            ),
            (
                "request.foo == 'x'",
                "1:8: undefined field 'foo'\n | request.foo == 'x'\n | .......^",
            ),
            ("variables.x == 1", "undeclared reference to 'variables'"),
            (
                "authorizer.group('').resource('pods').check('get').allowed()",
                "authorizer",
            ),
            ("cel.bind(x, 1, x == 1)", "undeclared reference to 'cel'"),
            ("object.x.sortBy(y, y)[0] == 1", "undeclared reference to"),
            ("math.greatest(1, 2) == 2", "undeclared reference to 'math'"),
            (
                "request.operation == 1",
                "found no matching overload for '_==_' applied to '(string, int)'",
            ),
            ("Object{a: 1}.a == 1", "object construction"),
            ("object.x ==", "ERROR"),
        ] {
            let error = Expression::compile(text, &scope(), &[Type::Bool]).expect_err(text);
            assert!(
                error.starts_with("compilation failed: ") && error.contains(issue),
                "{text}: {error}"
            );
        }
        let error = |text: &str, wanted: &[Type<'static>]| {
            Expression::compile(text, &scope(), wanted).expect_err(text)
        };
        assert_eq!(
            error("object.flag", &[Type::Bool]),
            "must evaluate to bool but got dyn"
        );
        assert_eq!(
            error("1", &[Type::String, Type::Null]),
            "must evaluate to one of [string null_type] but got int"
        );
    }
}
