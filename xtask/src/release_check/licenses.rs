// SPDX-License-Identifier: Apache-2.0
//! Licence expressions of crates: SPDX with `AND`, `OR` and parentheses, and the old form with `/`.

/// Reports whether a licence expression can be met with the allowed licences. An invalid expression cannot.
pub(super) fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let text = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = Words {
        words: text.split_whitespace().collect(),
        at: 0,
    };
    let result = any_of(&mut words, allowed);
    result == Some(true) && words.next().is_none()
}

struct Words<'a> {
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.words.get(self.at) == Some(&expected);
        self.at += usize::from(found);
        found
    }
}

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut result = all_of(words, allowed)?;
    while words.take("OR") {
        result |= all_of(words, allowed)?;
    }
    Some(result)
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut result = one(words, allowed)?;
    while words.take("AND") {
        result &= one(words, allowed)?;
    }
    Some(result)
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    if words.take("(") {
        let result = any_of(words, allowed)?;
        return words.take(")").then_some(result);
    }
    let mut name = words.next()?.to_owned();
    if words.take("WITH") {
        name = format!("{name} WITH {}", words.next()?);
    }
    Some(allowed.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluates_expressions() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("Apache-2.0 / MIT", true),
            ("MIT/Apache-2.0", true),
            ("(GPL-3.0-only OR MIT) AND ISC", true),
            ("GPL-3.0-only OR MIT AND ISC", true),
            ("(GPL-3.0-only OR MIT) AND BSD-3-Clause", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("MIT MIT", false),
            ("(MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
