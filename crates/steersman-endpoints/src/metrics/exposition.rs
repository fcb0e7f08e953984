// SPDX-License-Identifier: Apache-2.0
//! Merges the output of several `prometheus-client` registries and writes it in either text format.
//!
//! `prometheus-client` writes OpenMetrics only, one registry at a time, in the order of its hash maps, and cannot remove a
//! metric from a registry. One shared registry would therefore lose the removal by guards, the Prometheus text format, the
//! stable order and Go's format of `le`. Its structured form is protobuf, which would make every user build a protobuf
//! compiler. So this module parses the text of each registry, merges the families by name, and writes them sorted.

mod number;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt::Write as _,
};

use http::{HeaderMap, HeaderValue, header::ACCEPT};

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exposition {
    /// Prometheus text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// Returns the format that the `Accept` headers of a scraper prefer. Default: [`Text`](Self::Text).
    #[must_use]
    pub fn preferred(headers: &HeaderMap) -> Self {
        let all = headers.get_all(ACCEPT).into_iter();
        let ranges = all
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        let mut best = (Self::Text, 0.0);
        for range in ranges {
            let mut words = range.split(';').map(str::trim);
            let exposition = match words.next().unwrap_or_default().to_ascii_lowercase().as_str() {
                "application/openmetrics-text" => Self::OpenMetrics,
                "text/plain" | "text/*" | "*/*" => Self::Text,
                _ => continue,
            };
            let quality = words
                .find_map(|word| word.strip_prefix("q=")?.parse().ok())
                .unwrap_or(1.0);
            if quality > best.1 {
                best = (exposition, quality);
            }
        }
        best.0
    }

    /// Returns the `Content-Type` of the format.
    #[must_use]
    pub fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        })
    }
}

/// Metric families by name.
#[derive(Debug, Default)]
pub(super) struct Families {
    by_name: BTreeMap<String, Family>,
    conflicts: BTreeSet<String>,
    /// Number of texts that were read.
    texts: usize,
}

#[derive(Debug, Default)]
struct Family {
    help: String,
    kind: String,
    unit: Option<String>,
    /// Samples by label set.
    series: BTreeMap<String, Series>,
}

#[derive(Debug)]
struct Series {
    /// Number of the text that the samples are from.
    text: usize,
    samples: Vec<Sample>,
}

/// One line.
#[derive(Debug)]
struct Sample {
    /// Suffix of the family's name, such as `_bucket`.
    suffix: String,
    /// Upper bound of a bucket.
    le: Option<String>,
    value: String,
    exemplar: Option<String>,
}

impl Families {
    /// Parses the text of one registry and merges it.
    pub(super) fn read(&mut self, text: &str) {
        self.texts += 1;
        // The family's name in the text, and its key here, which is `None` if its samples are skipped.
        let mut current: (&str, Option<String>) = ("", None);
        let mut help = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest.split_once(' ').map_or("", |(_, help)| help);
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "unknown"));
                current = (name, self.begin(name, kind, help));
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                let family = current.1.as_ref().and_then(|name| self.by_name.get_mut(name));
                if let (Some(family), Some((_, unit))) = (family, rest.split_once(' ')) {
                    family.unit = Some(unit.to_owned());
                }
            } else if let (given, Some(name)) = &current
                && let Some(rest) = line.strip_prefix(given)
                && let Some((labels, sample)) = sample(rest)
            {
                self.add(name, labels, sample);
            }
        }
    }

    /// Returns the key of a family, or `None` if a family of this name and another type exists.
    fn begin(&mut self, given: &str, kind: &str, help: &str) -> Option<String> {
        let name = match kind {
            // Its samples end in `_total` in any case.
            "counter" => given.strip_suffix("_total").unwrap_or(given),
            _ => given,
        };
        match self.by_name.entry(name.to_owned()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Family {
                    help: help.to_owned(),
                    kind: kind.to_owned(),
                    ..Family::default()
                });
            }
            Entry::Occupied(known) if known.get().kind != kind => {
                self.conflicts.insert(name.to_owned());
                return None;
            }
            Entry::Occupied(_) => {}
        }
        Some(name.to_owned())
    }

    fn add(&mut self, name: &str, labels: String, sample: Sample) {
        let Some(family) = self.by_name.get_mut(name) else {
            return;
        };
        let series = family.series.entry(labels).or_insert_with(|| Series {
            text: self.texts,
            samples: Vec::new(),
        });
        if series.text == self.texts {
            series.samples.push(sample);
        } else {
            self.conflicts.insert(name.to_owned());
        }
    }

    /// Returns the names of families of which samples were skipped.
    pub(super) fn conflicts(&self) -> impl Iterator<Item = &str> {
        self.conflicts.iter().map(String::as_str)
    }

    pub(super) fn write(&self, exposition: Exposition) -> String {
        let mut out = String::new();
        for (name, family) in &self.by_name {
            family.write(name, exposition, &mut out);
        }
        if exposition == Exposition::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }
}

impl Family {
    fn write(&self, name: &str, exposition: Exposition, out: &mut String) {
        let (suffix, kind) = match (exposition, self.kind.as_str()) {
            (Exposition::OpenMetrics, kind) => ("", kind),
            (Exposition::Text, "counter") => ("_total", "counter"),
            (Exposition::Text, "info") => ("_info", "gauge"),
            (Exposition::Text, "unknown") => ("", "untyped"),
            (Exposition::Text, kind) => ("", kind),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name}{suffix} {}", self.help);
        let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        if let (Exposition::OpenMetrics, Some(unit)) = (exposition, &self.unit) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        for (labels, series) in &self.series {
            for sample in &series.samples {
                out.push_str(name);
                sample.write(labels, exposition, out);
            }
        }
    }
}

impl Sample {
    fn write(&self, labels: &str, exposition: Exposition, out: &mut String) {
        out.push_str(&self.suffix);
        let le = self
            .le
            .as_ref()
            .map(|bound| format!("le=\"{}\"", number::bound(bound, exposition)));
        match (labels, &le) {
            ("", None) => {}
            ("", Some(le)) => out.extend(["{", le, "}"]),
            (labels, None) => out.extend(["{", labels, "}"]),
            (labels, Some(le)) => out.extend(["{", labels, ",", le, "}"]),
        }
        out.extend([" ", &self.value]);
        if let (Exposition::OpenMetrics, Some(exemplar)) = (exposition, &self.exemplar) {
            out.extend([" # ", exemplar]);
        }
        out.push('\n');
    }
}

/// Parses a line after the family's name. Returns the labels, sorted by name and without `le`, and the sample.
fn sample(line: &str) -> Option<(String, Sample)> {
    let end = line.find(['{', ' '])?;
    let (suffix, rest) = line.split_at(end);
    if !(suffix.is_empty() || suffix.starts_with('_')) {
        return None;
    }
    let (mut labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let le = match suffix {
        "_bucket" => labels.iter().position(|label| label.starts_with("le=\"")),
        _ => None,
    };
    let le = le.map(|index| labels.remove(index));
    labels.sort_unstable();
    let (value, exemplar) = match rest.trim_start().split_once(" # ") {
        Some((value, exemplar)) => (value, Some(exemplar.to_owned())),
        None => (rest.trim_start(), None),
    };
    let sample = Sample {
        suffix: suffix.to_owned(),
        le: le.map(|le| le["le=\"".len()..].trim_end_matches('"').to_owned()),
        value: value.to_owned(),
        exemplar,
    };
    Some((labels.join(","), sample))
}

/// Returns the labels up to the closing brace, and the rest of the line. Quoted values can contain commas and braces.
fn labels(text: &str) -> Option<(Vec<&str>, &str)> {
    let mut labels = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b'}' if !quoted => {
                if index > start {
                    labels.push(&text[start..index]);
                }
                start = index + 1;
                if byte == b'}' {
                    return Some((labels, &text[start..]));
                }
            }
            _ => {}
        }
    }
    None
}
