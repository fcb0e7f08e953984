// SPDX-License-Identifier: Apache-2.0
//! Log lines as flat JSON objects.
//!
//! `tracing-subscriber` has a JSON format, but not this one: its field names differ from those of Kubernetes components and
//! controller-runtime, and its spans are nested lists, which log stores cannot search by field.

use std::{
    error::Error,
    fmt::{self, Write as _},
    io::Write as _,
};

use serde_json::Value;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    fmt::{
        MakeWriter,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    layer::Context,
    registry::LookupSpan,
};

use steersman_core::error_chain;

/// Writes each event as a line.
#[derive(Debug)]
pub(super) struct Json<W> {
    writer: W,
}

/// Fields in the order in which they were added; the first of a name is kept.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl<W> Json<W> {
    pub(super) fn new(writer: W) -> Self {
        Self { writer }
    }
}

impl<S, W> Layer<S> for Json<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            // A value that is recorded later replaces the earlier one.
            let mut newer = Fields::default();
            record.record(&mut newer);
            fields.0.retain(|(name, _)| !newer.has(name));
            fields.0.append(&mut newer.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, cx: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.take("message").unwrap_or_else(|| Value::from(""));
        // A line of the `log` crate has its origin in fields.
        let metadata = event.metadata();
        let target = fields
            .take("log.target")
            .unwrap_or_else(|| Value::from(metadata.target()));
        fields.0.retain(|(name, _)| !name.starts_with("log."));

        let mut line = Fields::default();
        line.add("ts", Value::from(timestamp()));
        line.add("level", Value::from(metadata.level().as_str().to_lowercase()));
        line.add("logger", target);
        line.add("msg", message);
        line.extend(&fields);
        for span in cx.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<Fields>() {
                line.extend(fields);
            }
        }
        // A failed write of the log cannot be reported.
        let _ = self
            .writer
            .make_writer_for(metadata)
            .write_all(line.to_string().as_bytes());
    }
}

impl Fields {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| *known == name)
    }

    fn add(&mut self, name: &'static str, value: Value) {
        if !self.has(name) {
            self.0.push((name, value));
        }
    }

    fn extend(&mut self, others: &Self) {
        for (name, value) in &others.0 {
            self.add(name, value.clone());
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.remove(index).1)
    }
}

/// Formats the fields as a JSON object.
impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = '{';
        for (name, value) in &self.0 {
            write!(f, "{before}{}:{value}", Value::from(*name))?;
            before = ',';
        }
        f.write_str("}\n")
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // If `Debug` fails, the text is what was written until then.
        let _ = write!(text, "{value:?}");
        self.add(field.name(), Value::from(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field.name(), Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinity.
        let is_number = value.is_finite();
        let value = if is_number {
            Value::from(value)
        } else {
            Value::from(value.to_string())
        };
        self.add(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.add(field.name(), Value::from(error_chain(value)));
    }
}

/// Returns the current time, such as `2026-01-31T12:00:00.000000Z`.
fn timestamp() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}
