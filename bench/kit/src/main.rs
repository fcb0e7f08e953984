// SPDX-License-Identifier: Apache-2.0
//! `bench-kit [--quick] who=PATH…`: reconciles of unchanged Sites with five children each, on a real API server.
//!
//! Each participant runs once, through a proxy that counts its requests. `bench/README.md` has the protocol.

#![allow(clippy::print_stderr, reason = "a driver reports its progress")]

use std::{error::Error, fs, path::PathBuf, process::ExitCode, time::Duration};

use bench_protocol::{
    driver::{Participant, Plan, Running},
    rounds::Rounds,
};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Client,
    api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::json;
use steersman_testing::{FaultProxy, RealServer};
use tokio::{runtime::Runtime, task::JoinSet, time};

type Failure = Box<dyn Error + Send + Sync>;

const GROUP: &str = "bench.example";

const SITES: usize = 500;
const SITES_QUICK: usize = 50;
const ROUNDS: usize = 10;
const ROUNDS_QUICK: usize = 3;

/// A participant has settled when it has sent no request for this long.
const SETTLED: Duration = Duration::from_secs(2);

/// Writes of the driver at once.
const WRITERS: usize = 8;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let plan = Plan::from_arguments()?;
    let runtime = Runtime::new()?;
    eprintln!("starting a real API server");
    let stage = runtime.block_on(Stage::start(plan.quick))?;
    for (index, participant) in plan.participants.iter().enumerate() {
        eprintln!("{}: {} Sites", participant.who, stage.sites);
        stage.measure(participant, &format!("run-{index}"), &runtime)?;
    }
    Ok(())
}

/// The server with the CRD of Sites.
struct Stage {
    server: RealServer,
    client: Client,
    dir: tempfile::TempDir,
    sites: usize,
    rounds: usize,
}

impl Stage {
    async fn start(quick: bool) -> Result<Self, Failure> {
        let server = RealServer::builder().start().await?;
        let client = server.endpoint().client(server.admin())?;
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let crd = serde_json::from_value(crd())?;
        crds.create(&PostParams::default(), &crd).await?;
        let sites = site_api(&client, "default");
        // A CRD is served a moment after it is created.
        while sites.list(&Default::default()).await.is_err() {
            time::sleep(Duration::from_millis(100)).await;
        }
        let (sites, rounds) = if quick {
            (SITES_QUICK, ROUNDS_QUICK)
        } else {
            (SITES, ROUNDS)
        };
        Ok(Self {
            server,
            client,
            dir: tempfile::tempdir()?,
            sites,
            rounds,
        })
    }

    fn measure(&self, participant: &Participant, namespace: &str, runtime: &Runtime) -> Result<(), Failure> {
        runtime.block_on(self.create_sites(namespace))?;
        let proxy = runtime.block_on(FaultProxy::start(self.server.endpoint()))?;
        let kubeconfig = self.kubeconfig(&proxy)?;
        let sites = self.sites.to_string();
        let told = [
            ("KUBECONFIG", kubeconfig.as_os_str()),
            ("BENCH_N", sites.as_ref()),
        ];
        let mut running = participant.start("kit", &told)?;
        self.round(&mut running, 0)?;
        let first = runtime.block_on(settled(&proxy));
        running.say(&format!("row created {first}"))?;
        running.say("measure")?;
        running.hears("armed")?;
        for round in 1..=self.rounds {
            runtime.block_on(self.touch(namespace, round))?;
            self.round(&mut running, round)?;
        }
        let all = runtime.block_on(settled(&proxy));
        running.say(&format!("row unchanged {}", all - first))?;
        running.say("end")?;
        running.finish()?;
        runtime.block_on(self.delete_sites(namespace))
    }

    fn kubeconfig(&self, proxy: &FaultProxy) -> Result<PathBuf, Failure> {
        let path = self.dir.path().join("kubeconfig");
        fs::write(&path, proxy.endpoint().kubeconfig(self.server.admin()))?;
        Ok(path)
    }

    /// Returns when the participant has reconciled each Site in this round.
    fn round(&self, running: &mut Running, round: usize) -> Result<(), Failure> {
        running.say(&round.to_string())?;
        Ok(running.hears("reconciled")?)
    }

    async fn create_sites(&self, namespace: &str) -> Result<(), Failure> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        namespaces.create(&PostParams::default(), &object).await?;
        self.each(namespace, |sites, name| async move {
            let spec = json!({"image": "registry.example/web:1", "page": "<p>hello</p>", "replicas": 2});
            let site = json!({
                "apiVersion": format!("{GROUP}/v1"), "kind": "Site", "spec": spec,
                "metadata": {"name": name, "annotations": {(Rounds::ANNOTATION): "0"}},
            });
            let site = serde_json::from_value(site)?;
            sites.create(&PostParams::default(), &site).await?;
            Ok(())
        })
        .await
    }

    /// Changes an annotation of each Site, and nothing that matters to the children.
    async fn touch(&self, namespace: &str, round: usize) -> Result<(), Failure> {
        self.each(namespace, move |sites, name| async move {
            let patch = json!({"metadata": {"annotations": {(Rounds::ANNOTATION): round.to_string()}}});
            sites
                .patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
            Ok(())
        })
        .await
    }

    /// The next participant watches all namespaces too, and must not find these.
    async fn delete_sites(&self, namespace: &str) -> Result<(), Failure> {
        self.each(namespace, |sites, name| async move {
            sites.delete(&name, &DeleteParams::default()).await?;
            Ok(())
        })
        .await
    }

    async fn each<F>(
        &self,
        namespace: &str,
        work: impl Fn(Api<DynamicObject>, String) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let sites = site_api(&self.client, namespace);
        let mut running = JoinSet::new();
        for index in 0..self.sites {
            if running.len() == WRITERS {
                running.join_next().await.transpose()?.transpose()?;
            }
            running.spawn(work(sites.clone(), format!("site-{index:04}")));
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        Ok(())
    }
}

/// The number of requests other than watches, once the participant sends no more.
async fn settled(proxy: &FaultProxy) -> usize {
    let count = || {
        let exchanges = proxy.exchanges();
        exchanges.iter().filter(|exchange| !exchange.is_watch()).count()
    };
    loop {
        let before = count();
        time::sleep(SETTLED).await;
        if count() == before {
            return before;
        }
    }
}

fn site_api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(GROUP, "v1", "Site");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
}

/// The CRD for all participants.
fn crd() -> serde_json::Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let condition = json!({
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": text,
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    });
    json!({
        "metadata": {"name": format!("sites.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"kind": "Site", "plural": "sites", "singular": "site", "listKind": "SiteList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"image": text, "page": text, "replicas": number}},
                    "status": {"type": "object", "properties": {
                        "observedGeneration": {"type": "integer", "format": "int64"},
                        "readyReplicas": number,
                        "conditions": {
                            "type": "array", "items": condition,
                            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                        },
                    }},
                }}},
            }],
        },
    })
}
