// SPDX-License-Identifier: Apache-2.0
//! Removes the objects of the operator's CRDs, and then the CRDs.

use std::{
    future::{Future, poll_fn},
    io::Write,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use kube::api::DeleteParams;
use serde_json::Value;
use steersman_cache::{Query, Resource};
use steersman_cluster::{Client, Cluster};
use steersman_core::ObjectKey;

use super::{
    Program,
    args::{UninstallArgs, named},
    connect, crds,
};
use crate::Error;

/// Interval of looking for objects that remain.
const POLL: Duration = Duration::from_millis(200);

/// Objects were not deleted in time.
#[derive(Debug, thiserror::Error)]
#[error(
    "{remaining} of {crd} remain after {seconds} s, such as {example}, and the CRD was not deleted: see why its finalizers stay \
     in the log of the operator, or wait longer with --timeout"
)]
struct Remaining {
    remaining: usize,
    crd: String,
    example: String,
    seconds: u64,
}

/// The CRDs are of all namespaces, and so are the objects that are deleted with them.
#[derive(Debug, thiserror::Error)]
#[error(
    "uninstall deletes the objects of all namespaces with their CRDs: unset --watch-namespace and WATCH_NAMESPACE"
)]
struct Limited;

#[derive(Debug, thiserror::Error)]
#[error("interrupted before everything was deleted: run the command again")]
struct Interrupted;

pub(super) async fn uninstall(
    mut program: Program,
    args: UninstallArgs,
    output: &mut (impl Write + Send),
    stop: Pin<&mut (impl Future<Output = ()> + Send)>,
) -> Result<(), Error> {
    if !named(&args.connect.watch_namespace).is_empty() {
        return Err(Limited.into());
    }
    let cluster = connect::connect(&program, &args.connect).await?;
    connect::reach(&cluster).await?;
    let client = cluster.live();
    let mut kinds = Vec::new();
    for crd in &program.crds {
        if let Some(found) = client
            .of(&crds::definitions())
            .get(&ObjectKey::new("", crds::name(crd)))
            .await?
        {
            kinds.push((crds::name(crd).to_owned(), resource(&found.data)));
        }
    }
    if !args.yes {
        for (name, resource) in &kinds {
            let count = client.of(resource).list(&Query::new()).await?.len();
            writeln!(output, "would delete {count} objects of {name}, and the CRD")?;
        }
        return Ok(writeln!(output, "nothing was deleted: pass --yes to delete")?);
    }
    // The controllers run here too, in case that none runs in the cluster: they remove the finalizers.
    let manager = steersman_runtime::Manager::builder()
        .cluster(cluster.clone())
        .field_manager(program.name);
    let configured = program
        .manager
        .drain(..)
        .fold(manager, |manager, set| set(manager));
    let manager = configured.build().await?;
    for setup in program.setups {
        setup(&manager)?;
    }
    let mut result = Err(Interrupted.into());
    let removed = remove(&cluster, &kinds, args.timeout, output);
    let until = first(async { result = removed.await }, stop);
    Box::pin(manager.run_until(until)).await?;
    result
}

/// Deletes the objects of each kind, waits until they are gone, and deletes the CRD.
async fn remove(
    cluster: &Cluster,
    kinds: &[(String, Resource)],
    seconds: u64,
    output: &mut (impl Write + Send),
) -> Result<(), Error> {
    let (client, clock) = (cluster.live(), cluster.clock());
    let deadline = clock.now() + Duration::from_secs(seconds);
    for (_, resource) in kinds {
        delete_all(&client, resource).await?;
    }
    for (name, resource) in kinds {
        loop {
            let remaining = client.of(resource).list(&Query::new()).await?;
            let Some(example) = remaining.first() else { break };
            if clock.now() >= deadline {
                let key = steersman_cluster::ObjectExt::key(&**example);
                let error = Remaining {
                    remaining: remaining.len(),
                    crd: name.clone(),
                    example: key.to_string(),
                    seconds,
                };
                return Err(error.into());
            }
            clock.sleep_until(clock.now() + POLL).await;
        }
        let key = ObjectKey::new("", name);
        let definitions = client.of(&crds::definitions());
        definitions
            .delete_if_exists(&key, DeleteParams::default())
            .await?;
        writeln!(output, "deleted all objects of {name}, and the CRD")?;
    }
    Ok(())
}

async fn delete_all(client: &Client, resource: &Resource) -> Result<(), Error> {
    let objects = client.of(resource);
    for object in objects.list(&Query::new()).await? {
        let key = steersman_cluster::ObjectExt::key(&*object);
        objects.delete_if_exists(&key, DeleteParams::default()).await?;
    }
    Ok(())
}

/// Returns the resource of a CRD in the version that the server stores.
fn resource(crd: &Value) -> Resource {
    let (spec, none) = (&crd["spec"], Vec::new());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().unwrap_or(&none);
    let stored = versions.iter().find(|version| version["storage"] == true);
    let version = stored.map(|version| text(&version["name"])).unwrap_or_default();
    let (kind, plural) = (text(&spec["names"]["kind"]), text(&spec["names"]["plural"]));
    Resource::new(&text(&spec["group"]), &version, &kind, &plural).namespaced(spec["scope"] != "Cluster")
}

/// Waits for one of two futures.
async fn first(one: impl Future<Output = ()>, mut other: Pin<&mut impl Future<Output = ()>>) {
    let mut one = pin!(one);
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => other.as_mut().poll(cx),
    })
    .await;
}
