// SPDX-License-Identifier: Apache-2.0
//! The spans of a reconcile. A binary of its own: tests without a subscriber would switch the spans off for all.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "engine/support.rs"]
mod support;

use std::sync::{Arc, Mutex};

use steersman_kit::managed;
use steersman_testing::Fixture;
use tracing::{Subscriber, instrument::WithSubscriber, span::Attributes};
use tracing_subscriber::{Layer, layer::Context as LayerContext, prelude::*, registry::LookupSpan};

use support::*;

/// Collects the names of spans, in the order in which they begin.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<&'static str>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &tracing::Id, _: LayerContext<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target().starts_with("steersman_") {
            self.0.lock().unwrap().push(metadata.name());
        }
    }
}

// R113
#[steersman_testing::test]
async fn the_stages_are_spans_in_the_order_of_the_pipeline(fixture: Fixture) {
    let stand = stand(&fixture).await;
    stand
        .cluster()
        .live()
        .create(&widget(&fixture, "one", "1"))
        .await
        .unwrap();
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let reconciler = managed(deployed());
    let calling = call(&stand, key(&fixture, "one"), &reconciler);
    calling.with_subscriber(subscriber).await;
    let stages = [
        "get",
        "defaults",
        "conditions",
        "convert",
        "user_code",
        "child",
        "child",
        "status",
    ];
    let found: Vec<_> = spans
        .0
        .lock()
        .unwrap()
        .iter()
        .copied()
        .filter(|name| stages.contains(name))
        .collect();
    assert_eq!(found, stages);
}
