// SPDX-License-Identifier: Apache-2.0
//! Watches one ConfigMap, for settings of the process.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;
use steersman_cache::{Event, Object, Resource, Scope};
use steersman_cluster::Cluster;
use steersman_core::ObjectKey;
use tokio::sync::watch;

use crate::RunContext;

/// The part of a ConfigMap that is read.
#[derive(Deserialize)]
struct Map {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

/// Returns an entry of a ConfigMap. An object that cannot be decoded counts as without an entry.
pub(crate) fn entry_of(object: &Arc<Object>, entry: &str) -> Option<String> {
    let map = object.decoded::<Map>().ok()?;
    map.data.get(entry).cloned()
}

/// Calls `changed` with each state of a ConfigMap, and `None` after its deletion, until the stop of the run. Only this object is
/// watched. If that is forbidden, or the server is unreachable, it waits.
pub(crate) async fn follow(
    cluster: &Cluster,
    map: &ObjectKey,
    name: &str,
    cx: &RunContext,
    mut changed: impl FnMut(Option<Arc<Object>>) + Send,
) {
    let maps = Resource::new("", "v1", "ConfigMap", "configmaps");
    let scope = Scope::all()
        .namespace(map.namespace())
        .fields(format!("metadata.name={}", map.name()));
    let (sender, mut newest) = watch::channel(None::<Arc<Object>>);
    loop {
        let informer = cluster.cache().informer_in(&maps, &scope);
        let sender = sender.clone();
        let _registration = informer.handle(name, move |event: &Event| {
            let is_there = !event.is_deletion();
            sender.send_replace(is_there.then(|| Arc::clone(event.object())));
        });
        loop {
            tokio::select! {
                biased;
                _ = cx.stop().requested() => return,
                // This function holds the sender, so the channel stays open.
                _ = newest.changed() => {
                    let object = newest.borrow_and_update().clone();
                    changed(object);
                }
                // The informer was removed from the cache: open the next one.
                () = informer.ended() => break,
            }
        }
        if cluster.is_closed() {
            cx.stop().requested().await;
            return;
        }
    }
}
