// SPDX-License-Identifier: Apache-2.0
//! Rewrites the tree of an admission expression, so that the evaluator of the crate `cel` gives the results of CEL and
//! counts its work.
//!
//! - A field of something that is not a map is `false` for that evaluator. Fields become index operations, which fail.
//! - `x.?y` fails if `y` is absent. It becomes `x[?'y']`, which is an empty optional.
//! - `variables.x` becomes one name, so that only the variables that are reached are evaluated.
//! - Each turn of a loop, and each result that can be larger than its operands, is charged to the [`Meter`].

use kube_cel::cel::common::{
    ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators},
    types::CelBool,
};

/// Charged for each turn of a loop; returns true.
pub(super) const TURN: &str = "@turn";
/// Charged for the size of its argument, which it returns.
pub(super) const SIZED: &str = "@sized";
/// Prefix of the names of composed variables.
pub(super) const VARIABLES: &str = "variables.";

/// Functions and operators whose result can be larger than their operands.
const GROWING: &[&str] = &[
    operators::ADD,
    "replace",
    "join",
    "format",
    "lists.range",
    "range",
    "flatten",
];

/// Rewrites a tree in place.
pub(super) fn lower(node: &mut IdedExpr) {
    lower_in(node, &mut Vec::new());
}

fn lower_in(node: &mut IdedExpr, locals: &mut Vec<String>) {
    match &mut node.expr {
        Expr::Select(select) => {
            let is_variable = matches!(&select.operand.expr, Expr::Ident(name) if name == "variables")
                && !locals.iter().any(|local| local == "variables");
            let field = std::mem::take(&mut select.field);
            if is_variable {
                node.expr = match select.test {
                    true => Expr::Literal(LiteralValue::Boolean(CelBool::from(true))),
                    false => Expr::Ident(format!("{VARIABLES}{field}")),
                };
                return;
            }
            lower_in(&mut select.operand, locals);
            let operand = std::mem::take(&mut *select.operand);
            let key = at(
                node.id,
                Expr::Literal(LiteralValue::String(field.as_str().into())),
            );
            node.expr = if select.test {
                let found = at(node.id, call(operators::OPT_INDEX, vec![operand, key]));
                Expr::Call(CallExpr {
                    func_name: "hasValue".to_owned(),
                    target: Some(Box::new(found)),
                    args: Vec::new(),
                })
            } else {
                call(operators::INDEX, vec![operand, key])
            };
        }
        Expr::Call(inner) => {
            if inner.func_name == operators::OPT_SELECT {
                inner.func_name = operators::OPT_INDEX.to_owned();
            }
            inner
                .target
                .iter_mut()
                .for_each(|target| lower_target(target, locals));
            inner
                .args
                .iter_mut()
                .for_each(|argument| lower_in(argument, locals));
            if GROWING.contains(&inner.func_name.as_str()) {
                let grown = at(node.id, std::mem::take(&mut node.expr));
                node.expr = call(SIZED, vec![grown]);
            }
        }
        Expr::List(list) => list
            .elements
            .iter_mut()
            .for_each(|element| lower_in(element, locals)),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    lower_in(&mut entry.key, locals);
                    lower_in(&mut entry.value, locals);
                }
            }
        }
        Expr::Comprehension(loops) => {
            lower_in(&mut loops.iter_range, locals);
            lower_in(&mut loops.accu_init, locals);
            locals.push(loops.iter_var.clone());
            lower_in(&mut loops.loop_step, locals);
            lower_in(&mut loops.result, locals);
            locals.pop();
            let condition = std::mem::take(&mut loops.loop_cond);
            let turn = at(condition.id, call(TURN, Vec::new()));
            loops.loop_cond = at(condition.id, call(operators::LOGICAL_AND, vec![condition, turn]));
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
    }
}

/// The target of `sets.contains(…)` and its like is the name of a library.
fn lower_target(target: &mut IdedExpr, locals: &mut Vec<String>) {
    if !matches!(target.expr, Expr::Ident(_)) {
        lower_in(target, locals);
    }
}

fn at(id: u64, expr: Expr) -> IdedExpr {
    IdedExpr { id, expr }
}

fn call(name: &str, args: Vec<IdedExpr>) -> Expr {
    Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: None,
        args,
    })
}
