// SPDX-License-Identifier: Apache-2.0
//! Copies JSON without some of its members, in one scan and without parsing the kept parts.

use crate::wire::{
    scan::Members,
    skip::{Stop, skip_space, skip_value},
};

/// Paths of fields, as a tree of their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    below: Vec<(Box<str>, Self)>,
    /// True if a path ends here.
    ends: bool,
}

impl Paths {
    pub(super) fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut root = Self::default();
        for path in paths {
            let mut node = &mut root;
            for name in names(path) {
                let at = node.below.iter().position(|(found, _)| **found == *name);
                let at = at.unwrap_or_else(|| {
                    node.below.push((name.into(), Self::default()));
                    node.below.len() - 1
                });
                node = &mut node.below[at].1;
            }
            node.ends = true;
        }
        root
    }

    fn below(&self, name: &[u8]) -> Option<&Self> {
        let found = self.below.iter().find(|(found, _)| found.as_bytes() == name)?;
        Some(&found.1)
    }
}

/// Splits a path into names; a dot after a backslash is part of a name.
fn names(path: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut escaped = false;
    for letter in path.chars() {
        match letter {
            '\\' if !escaped => escaped = true,
            '.' if !escaped => names.push(String::new()),
            _ => {
                names.last_mut().expect("`names` is never empty").push(letter);
                escaped = false;
            }
        }
    }
    names
}

/// The treatment of a value.
#[derive(Clone, Copy)]
enum Rule<'a> {
    Copy,
    Omit,
    /// Keeps only the parts at the paths.
    Only(&'a Paths),
    /// Drops the parts at the first paths, unless they are at the second.
    Without(&'a Paths, Option<&'a Paths>),
}

impl<'a> Rule<'a> {
    fn of_member(self, name: &[u8]) -> Self {
        match self {
            Self::Copy | Self::Omit => self,
            Self::Only(paths) => paths.below(name).map_or(Self::Omit, Self::only),
            Self::Without(paths, always) => {
                let always = always.and_then(|always| always.below(name));
                match paths.below(name) {
                    None => Self::Copy,
                    Some(paths) if paths.ends => always.map_or(Self::Omit, Self::only),
                    Some(paths) => Self::Without(paths, always),
                }
            }
        }
    }

    fn only(paths: &'a Paths) -> Self {
        if paths.ends { Self::Copy } else { Self::Only(paths) }
    }
}

/// Returns the JSON without the parts at `paths`, but with the parts at `always`. `None` if it is no JSON.
pub(super) fn without(json: &[u8], paths: &Paths, always: &Paths) -> Option<Vec<u8>> {
    run(json, Rule::Without(paths, Some(always)))
}

/// Returns the JSON of the parts at `paths`. `None` if it is no JSON.
pub(super) fn only(json: &[u8], paths: &Paths) -> Option<Vec<u8>> {
    run(json, Rule::Only(paths))
}

fn run(json: &[u8], rule: Rule<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len());
    value(json, 0, rule, &mut out).ok()?;
    Some(out)
}

/// Writes the value at `at` according to the rule, and returns the position after it.
///
/// Recurses for each name of a path, not for each level of the JSON: values outside all paths are copied.
fn value(json: &[u8], at: usize, rule: Rule<'_>, out: &mut Vec<u8>) -> Result<usize, Stop> {
    match (rule, json.get(at)) {
        (Rule::Only(_) | Rule::Without(..), Some(b'{')) => object(json, at, rule, out),
        (Rule::Only(_) | Rule::Without(..), Some(b'[')) => list(json, at, rule, out),
        _ => {
            let end = skip_value(json, at)?;
            out.extend_from_slice(&json[at..end]);
            Ok(end)
        }
    }
}

fn object(json: &[u8], at: usize, rule: Rule<'_>, out: &mut Vec<u8>) -> Result<usize, Stop> {
    let mut members = Members::enter(json, at)?;
    let mut separator = b'{';
    while let Some(member) = members.next()? {
        members.at = match rule.of_member(&member.name(json)?) {
            Rule::Omit => skip_value(json, member.value)?,
            rule => {
                out.push(separator);
                separator = b',';
                out.extend_from_slice(&json[member.start..member.value]);
                value(json, member.value, rule, out)?
            }
        };
    }
    if separator == b'{' {
        out.push(separator);
    }
    out.push(b'}');
    Ok(members.at)
}

/// Writes a list and lists directly within it. A path passes through all of them, so they are counted instead of recursed.
fn list(json: &[u8], mut at: usize, rule: Rule<'_>, out: &mut Vec<u8>) -> Result<usize, Stop> {
    let mut depth = 0_usize;
    loop {
        // A value, or the end of an empty list.
        match json.get(at).ok_or(Stop::Incomplete)? {
            b'[' => {
                out.push(b'[');
                depth += 1;
                at = skip_space(json, at + 1);
                if json.get(at) != Some(&b']') {
                    continue;
                }
            }
            _ => at = skip_space(json, value(json, at, rule, out)?),
        }
        while json.get(at) == Some(&b']') {
            out.push(b']');
            depth -= 1;
            at += 1;
            if depth == 0 {
                return Ok(at);
            }
            at = skip_space(json, at);
        }
        match json.get(at).ok_or(Stop::Incomplete)? {
            b',' => {
                out.push(b',');
                at = skip_space(json, at + 1);
            }
            _ => return Err(Stop::Malformed { at }),
        }
    }
}
