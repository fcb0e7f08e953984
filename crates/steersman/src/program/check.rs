// SPDX-License-Identifier: Apache-2.0
//! Checks a cluster before the operator runs there.

use std::io::Write;

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::{Api, api::PostParams};
use serde_json::json;
use steersman_cluster::Cluster;
use steersman_core::{Permission, PermissionPlace};

use super::{
    Program,
    args::{ConnectArgs, named},
    connect,
    crds::{self, Served},
};
use crate::Error;

/// The cluster lacks something.
#[derive(Debug, thiserror::Error)]
#[error(
    "the operator cannot work on this cluster: {problems} of the checks failed; the lines above name the next steps"
)]
struct Failed {
    problems: usize,
}

/// Checks the connection, the CRDs and the permissions, and prints a line for each.
pub(super) async fn check(
    program: &Program,
    args: &ConnectArgs,
    output: &mut impl Write,
) -> Result<(), Error> {
    let cluster = connect::connect(program, args).await?;
    let version = connect::reach(&cluster).await?;
    writeln!(output, "ok       the API server answers: version {version}")?;
    let mut problems = 0;
    let client = cluster.live();
    for crd in &program.crds {
        let (name, command) = (
            crds::name(crd),
            format!("`{} crds | kubectl apply -f -`", program.name),
        );
        match crds::served(&client, crd).await {
            Ok(Served::Current) => writeln!(output, "ok       CRD {name} is installed")?,
            Ok(Served::Absent) => {
                problems += 1;
                writeln!(output, "missing  CRD {name} is not installed: run {command}")?;
            }
            Ok(Served::Outdated(outdated)) => {
                problems += 1;
                let fields = outdated.fields.join(", ");
                writeln!(output, "outdated CRD {name} lacks {fields}: run {command}")?;
            }
            Err(error) => {
                problems += 1;
                writeln!(output, "failed   CRD {name}: {error}")?;
            }
        }
    }
    for permission in program.permissions() {
        for namespace in namespaces(&permission, args) {
            let denied = denied(&cluster, &permission, &namespace).await?;
            if denied.is_empty() {
                continue;
            }
            problems += 1;
            let within = match &*namespace {
                "" => String::new(),
                namespace => format!(" in namespace {namespace}"),
            };
            writeln!(
                output,
                "denied   {} of {permission}{within}: apply the output of `{} rbac`",
                denied.join(", "),
                program.name
            )?;
        }
    }
    match problems {
        0 => Ok(writeln!(output, "ok       all permissions are granted")?),
        problems => Err(Failed { problems }.into()),
    }
}

/// Returns the namespaces in which a permission is needed; an empty name for all.
fn namespaces(permission: &Permission, args: &ConnectArgs) -> Vec<String> {
    let watched = named(&args.watch_namespace);
    match permission.needed_in() {
        PermissionPlace::Own => vec![args.namespace.clone().unwrap_or_default()],
        PermissionPlace::Watched if !watched.is_empty() => watched,
        _ => vec![String::new()],
    }
}

/// Returns the verbs that are not granted.
async fn denied(cluster: &Cluster, permission: &Permission, namespace: &str) -> Result<Vec<String>, Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.live().kube());
    let (resource, subresource) = match permission.resource().split_once('/') {
        Some((resource, subresource)) => (resource, subresource),
        None => (permission.resource(), ""),
    };
    let mut denied = Vec::new();
    for (verb, _) in permission.each_verb() {
        let name = permission.name().filter(|_| verb != "create");
        let review = serde_json::from_value(json!({"metadata": {}, "spec": {"resourceAttributes": {
            "group": permission.group(), "resource": resource, "subresource": subresource, "verb": verb,
            "namespace": namespace, "name": name.unwrap_or_default(),
        }}}))?;
        let answer = reviews.create(&PostParams::default(), &review).await?;
        if !answer.status.is_some_and(|status| status.allowed) {
            denied.push(verb.to_owned());
        }
    }
    Ok(denied)
}
