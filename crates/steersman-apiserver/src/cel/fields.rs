// SPDX-License-Identifier: Apache-2.0
//! Fields in rules of CRDs.
//!
//! A field of something that is not a map is `false` for the evaluator of the crate `cel`. The real server rejects the CRD
//! if the schema has no such field, and fails the rule if the type is not known. Here, [`issues`] finds the former,
//! and [`index_all`] turns fields into index operations, which fail.
//!
//! The crate `kube-cel` also escapes names with an underscore, unlike the real server, so that a rule finds no such field.
//! Its escaping is switched off, and the index operations have the names without escapes.

use kube_cel::{CompiledSchema, cel::Program};
use serde_json::Value;

use super::{
    check::{Scope, check_fields},
    expression::parse,
    types::{Type, unescaped},
    with_room,
};
use crate::schema::Schema;

/// Returns the fields of a rule that the schema does not have, as the compiler of the real server prints them.
pub(super) fn issues(schema: &Value, rule: &Value, text: &str, is_root: bool) -> Option<String> {
    let tree = with_room(|| parse(text)).ok()?;
    let schema = Schema::parse(schema);
    let own = if is_root {
        Type::of_objects(&schema)
    } else {
        Type::of(&schema)
    };
    let is_optional = rule.get("optionalOldSelf") == Some(&Value::Bool(true));
    let old = if is_optional { Type::Optional } else { own };
    let scope = Scope {
        own: Some((own, old)),
        ..Scope::default()
    };
    with_room(|| check_fields(text, &tree, &scope))
}

/// Turns the fields of all rules into index operations.
pub(super) fn index_all(schema: &mut CompiledSchema) {
    // The keys of maps are not escaped.
    schema.is_map = true;
    for result in schema.validations.iter_mut().flatten() {
        if let Ok(program) = Program::compile(&indexed(&result.rule.rule)) {
            result.program = program;
        }
        let message = result.rule.message_expression.as_deref().map(indexed);
        if let Some(Ok(program)) = message.map(|message| Program::compile(&message)) {
            result.message_program = Some(program);
        }
    }
    let properties = schema.properties.values_mut();
    let items = schema.items.as_deref_mut().into_iter();
    let values = schema.additional_properties.as_deref_mut().into_iter();
    properties.chain(items).chain(values).for_each(index_all);
}

/// Returns a rule with `x['y']` for `x.y`, and `('y' in x)` for `has(x.y)`. Names are those in JSON, without escapes.
fn indexed(rule: &str) -> String {
    let mut out = String::with_capacity(rule.len() + 16);
    let mut rest = rule;
    while let Some(token) = token(rest, &out) {
        if token == "has"
            && !out.trim_end().ends_with('.')
            && let Some((operand, name, after)) = tested(&rest[token.len()..])
        {
            out.push_str(&format!("('{}' in {})", unescaped(name), indexed(operand)));
            rest = after;
            continue;
        }
        rest = &rest[token.len()..];
        if token == "." && has_operand(&out) {
            let (name, after) = word(rest.trim_start());
            if !name.is_empty() && !after.trim_start().starts_with('(') {
                out.push_str(&format!("['{}']", unescaped(name)));
                rest = after;
                continue;
            }
        }
        out.push_str(token);
    }
    out
}

/// Splits the argument of `has`: the operand, the field, and the text after the bracket.
fn tested(text: &str) -> Option<(&str, &str, &str)> {
    let inner = text.trim_start().strip_prefix('(')?;
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(token) = token(&inner[at..], &inner[..at]) {
        match token {
            "(" | "[" | "{" => depth += 1,
            ")" if depth == 0 => {
                let argument = inner[..at].trim_end();
                let name = last_word(argument);
                let operand = argument.strip_suffix(name)?.trim_end().strip_suffix('.')?;
                return (!name.is_empty()).then_some((operand, name, &inner[at + 1..]));
            }
            ")" | "]" | "}" => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += token.len();
    }
    None
}

/// Splits a text after its first word, which can be empty.
fn word(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !is_part(c)).unwrap_or(text.len()))
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the first token of a text: a string, comment, word, number or other character.
fn token<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let first = text.chars().next()?;
    Some(match first {
        '\'' | '"' => quoted(text, is_raw(before)),
        '/' if text.starts_with("//") => text.split_inclusive('\n').next().unwrap_or(text),
        _ if is_part(first) => {
            let is_number = first.is_ascii_digit();
            let end = text.find(|c: char| !(is_part(c) || is_number && c == '.'));
            &text[..end.unwrap_or(text.len())]
        }
        _ => &text[..first.len_utf8()],
    })
}

/// Returns the string literal at the start of a text.
fn quoted(text: &str, is_raw: bool) -> &str {
    let quote = &text[..1];
    let triple = quote.repeat(3);
    let quote = if text.starts_with(&triple) {
        triple.as_str()
    } else {
        quote
    };
    let mut at = quote.len();
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(quote) {
            return &text[..at + quote.len()];
        }
        at += c.len_utf8();
        if c == '\\' && !is_raw {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    text
}

/// Returns true if the string literal after this text is raw.
fn is_raw(before: &str) -> bool {
    matches!(last_word(before).to_ascii_lowercase().as_str(), "r" | "br" | "rb")
}

fn last_word(text: &str) -> &str {
    &text[text.trim_end_matches(is_part).len()..]
}

/// Returns true if a text ends with a value, so that a dot after it selects a field.
fn has_operand(text: &str) -> bool {
    let last = text.trim_end().chars().next_back();
    last.is_some_and(|c| is_part(c) || matches!(c, ')' | ']' | '}' | '\'' | '"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_index_operations() {
        for (rule, expected) in [
            ("self.a.b == 1", "self['a']['b'] == 1"),
            ("self.a . b.size() > 1.5", "self['a'] ['b'].size() > 1.5"),
            (
                "has(self.a.b) && !has (self.c )",
                "('b' in self['a']) && !('c' in self)",
            ),
            ("has(self.a[self.f(1)].c)", "('c' in self['a'][self.f(1)])"),
            ("self.two__dash__words > 1", "self['two-words'] > 1"),
            (
                "self.two_words == self.__namespace__",
                "self['two_words'] == self['namespace']",
            ),
            ("self.l.all(x, x.n > 0)", "self['l'].all(x, x['n'] > 0)"),
            ("sets.contains([1], self.l)", "sets.contains([1], self['l'])"),
            (
                r#"self.a == 'x.y' + r'\' + "it's.z""#,
                r#"self['a'] == 'x.y' + r'\' + "it's.z""#,
            ),
            ("self.a == '''q'.x''' // a.b", "self['a'] == '''q'.x''' // a.b"),
            ("{'a': self}.a.b", "{'a': self}['a']['b']"),
        ] {
            assert_eq!(indexed(rule), expected);
        }
    }
}
