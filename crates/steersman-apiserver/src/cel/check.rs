// SPDX-License-Identifier: Apache-2.0
//! Static checks of expressions: references, fields, functions, and the type of the result. Of rules of CRDs, only the
//! fields are checked.
//!
//! The crate `cel` has no type checker. This one finds the usual mistakes and reports them with the text of the real
//! server. It treats everything that it does not know as dynamic.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

use super::types::{self, Type};

/// The variables that an expression can use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope<'a> {
    /// The types of `self` and `oldSelf` in a rule of a CRD.
    pub(crate) own: Option<(Type<'a>, Type<'a>)>,
    /// The type of `object` and `oldObject`, if one is known.
    pub(crate) object: Option<Type<'a>>,
    /// The type of `params`, if one is known.
    pub(crate) params: Option<Type<'a>>,
    /// `params` is declared.
    pub(crate) has_params: bool,
    /// `authorizer` is declared.
    pub(crate) has_authorizer: bool,
    /// The types of `variables`; `None` if the policy has none.
    pub(crate) variables: Option<BTreeMap<String, Type<'a>>>,
}

impl<'a> Scope<'a> {
    fn declared(&self, name: &str) -> Option<Type<'a>> {
        match name {
            "self" => self.own.map(|(new, _)| new),
            "oldSelf" => self.own.map(|(_, old)| old),
            "object" | "oldObject" => Some(self.object.unwrap_or(Type::Dyn)),
            "request" => Some(Type::Object(&types::REQUEST)),
            "namespaceObject" => Some(Type::Object(&types::NAMESPACE)),
            "params" if self.has_params => Some(self.params.unwrap_or(Type::Dyn)),
            "variables" if self.variables.is_some() => Some(Type::Variables),
            _ => None,
        }
    }
}

/// An error in an expression, with its place if that can be told.
#[derive(Debug)]
struct Issue {
    message: String,
    place: Option<usize>,
    /// A field of a value that has no such field.
    is_field: bool,
}

/// Checks an expression and returns its type.
///
/// # Errors
/// Returns the issues with their places, as the compiler of the real server prints them.
pub(crate) fn check<'a>(text: &str, tree: &IdedExpr, scope: &Scope<'a>) -> Result<Type<'a>, String> {
    let mut checker = Checker::new(text, scope);
    let found = checker.visit(tree);
    match checker.rendered(|_| true) {
        None => Ok(found),
        Some(issues) => Err(issues),
    }
}

/// Checks the fields of an expression only. Returns the issues, if there are any.
pub(crate) fn check_fields(text: &str, tree: &IdedExpr, scope: &Scope<'_>) -> Option<String> {
    let mut checker = Checker::new(text, scope);
    checker.visit(tree);
    checker.rendered(|issue| issue.is_field)
}

fn render(text: &str, issue: &Issue) -> String {
    let place = issue.place.unwrap_or_default();
    let before = &text[..place];
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let source = text.lines().nth(line).unwrap_or_default();
    format!(
        "ERROR: <input>:{}:{}: {}\n | {source}\n | {}^",
        line + 1,
        column + 1,
        issue.message,
        ".".repeat(column)
    )
}

struct Checker<'a, 'b> {
    text: &'b str,
    scope: &'b Scope<'a>,
    /// Variables of the surrounding comprehensions.
    locals: Vec<(String, Type<'a>)>,
    issues: Vec<Issue>,
}

impl<'a, 'b> Checker<'a, 'b> {
    fn new(text: &'b str, scope: &'b Scope<'a>) -> Self {
        Self {
            text,
            scope,
            locals: Vec::new(),
            issues: Vec::new(),
        }
    }

    /// Returns the issues as the compiler of the real server prints them; `None` if there are none.
    fn rendered(&self, counts: impl Fn(&Issue) -> bool) -> Option<String> {
        let issues = self.issues.iter().filter(|issue| counts(issue));
        let issues: Vec<String> = issues.map(|issue| render(self.text, issue)).collect();
        (!issues.is_empty()).then(|| issues.join("\n"))
    }

    fn complain(&mut self, message: String, place: Option<usize>) -> Type<'a> {
        if !self.issues.iter().any(|issue| issue.message == message) {
            self.issues.push(Issue {
                message,
                place,
                is_field: false,
            });
        }
        Type::Dyn
    }

    /// Complains about a field.
    fn complain_of_field(&mut self, message: String, name: &str) -> Type<'a> {
        let before = self.issues.len();
        let place = find_field(self.text, name);
        let found = self.complain(message, place);
        let issues = self.issues[before..].iter_mut();
        issues.for_each(|issue| issue.is_field = true);
        found
    }

    fn visit(&mut self, node: &IdedExpr) -> Type<'a> {
        match &node.expr {
            Expr::Ident(name) => self.ident(name),
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::String,
                LiteralValue::UInt(_) => Type::Uint,
            },
            Expr::Select(select) => {
                let operand = self.visit(&select.operand);
                let before = self.issues.len();
                let field = self.field(operand, &select.field);
                if !select.test {
                    return field;
                }
                for issue in &mut self.issues[before..] {
                    // The place of `has(…)` is its bracket.
                    let macro_name = issue.place.and_then(|place| self.text[..place].rfind("has("));
                    issue.place = macro_name.map(|place| place + "has".len()).or(issue.place);
                }
                Type::Bool
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.visit(element);
                }
                Type::List
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key);
                        self.visit(&entry.value);
                    }
                }
                Type::Map
            }
            Expr::Call(call) => {
                let target = call.target.as_deref();
                if let Some(Expr::Ident(library)) = target.map(|target| &target.expr)
                    && let Some(found) = types::function(&format!("{library}.{}", call.func_name), true)
                {
                    for argument in &call.args {
                        self.visit(argument);
                    }
                    return found;
                }
                if let Some(Expr::Ident(name)) = target.map(|target| &target.expr)
                    && name == "authorizer"
                {
                    return self.authorizer();
                }
                let target = target.map(|target| self.visit(target));
                let arguments: Vec<Type<'a>> =
                    call.args.iter().map(|argument| self.visit(argument)).collect();
                self.call(&call.func_name, target, &arguments)
            }
            Expr::Comprehension(loops) => {
                let element = match self.visit(&loops.iter_range) {
                    Type::Schema(list) if list.is_list() => list.item(),
                    Type::Schema(_) => Type::String,
                    _ => Type::Dyn,
                };
                let accumulated = self.visit(&loops.accu_init);
                let depth = self.locals.len();
                self.locals.push((loops.accu_var.clone(), accumulated));
                self.locals.push((loops.iter_var.clone(), element));
                self.visit(&loops.loop_cond);
                self.visit(&loops.loop_step);
                let found = self.visit(&loops.result);
                self.locals.truncate(depth);
                found
            }
            Expr::Struct(_) | Expr::Unspecified => {
                self.complain("construction of objects is not supported here".to_owned(), None)
            }
        }
    }

    fn ident(&mut self, name: &str) -> Type<'a> {
        if let Some((_, known)) = self.locals.iter().rev().find(|(local, _)| local == name) {
            return *known;
        }
        if name.starts_with("authorizer") && self.scope.has_authorizer {
            return self.authorizer();
        }
        match self.scope.declared(name) {
            Some(known) => known,
            None => {
                let place = find_word(self.text, name);
                self.complain(
                    format!("undeclared reference to '{name}' (in container '')"),
                    place,
                )
            }
        }
    }

    fn authorizer(&mut self) -> Type<'a> {
        let place = find_word(self.text, "authorizer");
        if self.scope.has_authorizer {
            self.complain("`authorizer` is not supported by this server".to_owned(), place)
        } else {
            self.complain(
                "undeclared reference to 'authorizer' (in container '')".to_owned(),
                place,
            )
        }
    }

    fn field(&mut self, operand: Type<'a>, name: &str) -> Type<'a> {
        let known = match operand {
            Type::Object(object) => object.field(name),
            Type::Schema(object) if !object.is_list() => object.field(name),
            Type::Variables => {
                let variables = self.scope.variables.as_ref();
                variables.and_then(|variables| variables.get(name)).copied()
            }
            Type::Optional => return Type::Optional,
            Type::Dyn | Type::Map => return Type::Dyn,
            other => {
                let message = format!("type '{other}' does not support field selection");
                return self.complain_of_field(message, name);
            }
        };
        match known {
            Some(known) => known,
            None => self.complain_of_field(format!("undefined field '{name}'"), name),
        }
    }

    fn call(&mut self, name: &str, target: Option<Type<'a>>, arguments: &[Type<'a>]) -> Type<'a> {
        match (name, arguments) {
            (operators::EQUALS | operators::NOT_EQUALS, [left, right]) => {
                let differ = left != right && left.is_primitive() && right.is_primitive();
                self.operator(name, differ, arguments);
                Type::Bool
            }
            (
                operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS,
                [left, right],
            ) => {
                let are_numbers = left.is_number() && right.is_number();
                let differ = left != right && left.is_primitive() && right.is_primitive() && !are_numbers;
                self.operator(name, differ, arguments);
                Type::Bool
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [left, right]) => {
                let is_other = |given: &Type<'a>| given.is_primitive() && *given != Type::Bool;
                if is_other(left) || is_other(right) {
                    let given = if is_other(left) { left } else { right };
                    let message = format!("expected type 'bool' but found '{given}'");
                    self.complain(message, None);
                }
                Type::Bool
            }
            (operators::LOGICAL_NOT | operators::IN | operators::NOT_STRICTLY_FALSE, _) => Type::Bool,
            (operators::CONDITIONAL, [_, left, right]) => {
                if left == right {
                    *left
                } else {
                    Type::Dyn
                }
            }
            (
                operators::ADD
                | operators::SUBSTRACT
                | operators::MULTIPLY
                | operators::DIVIDE
                | operators::MODULO,
                [left, right],
            ) => self.arithmetic(name, *left, *right),
            (operators::NEGATE, [operand]) => *operand,
            (operators::INDEX, [Type::Schema(container), _]) => container.item(),
            (operators::INDEX, [operand, _]) if *operand != Type::Optional => Type::Dyn,
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, _) => Type::Optional,
            _ => match types::function(name, target.is_some()) {
                Some(found) => found,
                None => {
                    let place = find_word(self.text, name).map(|place| place + name.len());
                    self.complain(
                        format!("undeclared reference to '{name}' (in container '')"),
                        place,
                    )
                }
            },
        }
    }

    fn arithmetic(&mut self, name: &str, left: Type<'a>, right: Type<'a>) -> Type<'a> {
        let is_time = |given: Type<'a>| matches!(given, Type::Timestamp | Type::Duration);
        if is_time(left) || is_time(right) {
            return match (left, right) {
                (Type::Timestamp, Type::Timestamp) | (Type::Duration, Type::Duration) => Type::Duration,
                _ => Type::Timestamp,
            };
        }
        match (left, right) {
            (Type::Dyn, other) | (other, Type::Dyn) => match other {
                Type::Dyn | Type::List | Type::Schema(_) => Type::Dyn,
                known => known,
            },
            (left, right) => {
                let differ = left != right && left.is_primitive() && right.is_primitive();
                self.operator(name, differ, &[left, right]);
                left
            }
        }
    }

    /// Complains about an operator that is not defined for its operands.
    fn operator(&mut self, name: &str, is_wrong: bool, operands: &[Type<'a>]) {
        if is_wrong {
            let operands: Vec<String> = operands.iter().map(ToString::to_string).collect();
            let symbol = name.trim_matches('_');
            let place = self.text.find(symbol);
            let message = format!(
                "found no matching overload for '{name}' applied to '({})'",
                operands.join(", ")
            );
            self.complain(message, place);
        }
    }
}

/// Returns the first place of a word that is not a field.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut places = text.match_indices(word).map(|(place, _)| place);
    places.find(|&place| {
        let before = text[..place].chars().next_back();
        let after = text[place + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Returns the place of the dot before a field.
fn find_field(text: &str, field: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let pattern = format!(".{field}");
    let mut places = text.match_indices(&pattern).map(|(place, _)| place);
    places.find(|place| !text[place + pattern.len()..].starts_with(is_part))
}
