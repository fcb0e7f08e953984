// SPDX-License-Identifier: Apache-2.0
//! The operators as programs: their manifests, and their permissions.

use std::{fs, future::pending, path::Path, process::Command};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use steersman::{
    Program,
    manifests::{File, Image, Values, write_files},
    prelude::*,
};
use steersman_testing::{FaultProxy, Identity, OwnServerOptions, compare_permissions};
use tokio::sync::oneshot;

use super::*;

/// Runs a program with these arguments, and returns its output.
async fn output(program: Program, arguments: &[&str]) -> Result<String, steersman::Error> {
    let mut output = Vec::new();
    let arguments = ["operator"].iter().chain(arguments);
    program.run_with(arguments, &mut output, pending()).await?;
    Ok(String::from_utf8(output).unwrap())
}

fn values(fixture: &Fixture) -> Values {
    let mut values = Values::default();
    values.image = Image::parse("registry.example/operator:1.0");
    values.watch_namespaces = vec![fixture.namespace().to_owned()];
    values
}

/// A program as a Pod would run it: with a service account that has the computed permissions and no others.
struct Confined {
    user: Identity,
    proxy: FaultProxy,
}

impl Confined {
    /// Grants the permissions, and waits until `check` finds them.
    async fn new(fixture: &Fixture, account: &str, program: fn() -> Program) -> Self {
        let user = fixture.user(account).await.identity().clone();
        let roles = program()
            .manifests()
            .rbac_objects(fixture.namespace(), &Values::default());
        fixture.apply(&roles).await;
        let namespace = fixture.namespace();
        let check = ["check", "--namespace", namespace];
        eventually(async || {
            let cluster = cluster(fixture.endpoint(), &user, "default", namespace);
            let cluster = cluster.build().await.unwrap();
            output(program().cluster(cluster), &check).await.is_ok()
        })
        .await;
        let proxy = fixture.proxy().await;
        proxy.announce(&user);
        Self { user, proxy }
    }

    /// Runs the program during `work`, and compares its requests with its permissions.
    async fn run(
        &self,
        fixture: &Fixture,
        program: Program,
        clock: Arc<AheadClock>,
        work: impl AsyncFnOnce(),
    ) {
        let declared = program.permissions();
        let cluster = cluster(self.proxy.endpoint(), &self.user, "default", fixture.namespace());
        let program = program.cluster(cluster.clock(clock).build().await.unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let arguments = [
            "operator",
            "run",
            "--leader-elect",
            "--namespace",
            fixture.namespace(),
        ];
        let mut nothing = Vec::new();
        let running = program.run_with(arguments, &mut nothing, async { _ = stopped.await });
        let working = async {
            work().await;
            drop(stop);
        };
        let (ended, ()) = tokio::join!(running, working);
        ended.unwrap();
        let mut exchanges = self.proxy.exchanges();
        exchanges.retain(|exchange| exchange.identity.as_deref() == Some(self.user.name()));
        let forbidden: Vec<_> = exchanges.iter().filter(|one| one.status == Some(403)).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
        let differences = compare_permissions(&exchanges, &declared);
        assert!(differences.is_empty(), "{differences:#?}");
    }
}

// R96
#[steersman_testing::test]
async fn a_memcached_operator_needs_exactly_its_computed_permissions(fixture: Fixture) {
    fixture.install(&Memcached::crd()).await;
    let confined = Confined::new(&fixture, "memcached-operator", memcached::program).await;
    let client = super::manager(&fixture, Arc::default())
        .await
        .client()
        .unwrap()
        .live();
    let work = async || {
        let mut memcached = Memcached::new("proved", memcached::MemcachedSpec { size: 1 });
        memcached.metadata.namespace = Some(fixture.namespace().to_owned());
        client.create(&memcached).await.unwrap();
        let key = ObjectKey::new(fixture.namespace(), "proved");
        eventually(async || {
            let found = client.get_required::<Memcached>(&key).await.unwrap();
            condition(&*found, "Ready").is_some()
        })
        .await;
    };
    confined
        .run(&fixture, memcached::program(), Arc::default(), work)
        .await;
}

// R96
#[steersman_testing::test]
async fn a_cron_job_operator_needs_exactly_its_computed_permissions(fixture: Fixture) {
    fixture.install(&CronJob::crd()).await;
    let confined = Confined::new(&fixture, "cron-job-operator", cron_job::program).await;
    let client = super::manager(&fixture, Arc::default())
        .await
        .client()
        .unwrap()
        .live();
    let clock = Arc::new(AheadClock::default());
    clock.advance(366 * 24 * 3600);
    let work = async || {
        client
            .create(&cron_job(&fixture, "proved", &json!({})))
            .await
            .unwrap();
        eventually(async || {
            let query = Query::new().namespace(fixture.namespace());
            !client.list::<Job>(&query).await.unwrap().is_empty()
        })
        .await;
        let key = ObjectKey::new(fixture.namespace(), "proved");
        eventually(async || {
            let found = client.get_required::<CronJob>(&key).await.unwrap();
            condition(&*found, "Available").is_some()
        })
        .await;
    };
    confined.run(&fixture, cron_job::program(), clock, work).await;
}

// R116
#[steersman_testing::test]
async fn the_server_accepts_all_manifests_in_a_restricted_namespace(fixture: Fixture) {
    let namespace = fixture.namespace();
    let restricted = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
    }});
    fixture.apply(&[restricted]).await;
    let operator = memcached::program().manifests();
    let mut values = values(&fixture);
    fixture.apply_dry_run(&operator.objects(namespace, &values)).await;
    values.watch_namespaces.clear();
    let objects = operator.objects(namespace, &values);
    fixture.apply_dry_run(&objects).await;
    // The server checks Pods, and not the Deployment that makes them.
    let account = objects.iter().find(|object| object["kind"] == "ServiceAccount");
    fixture.apply(&[account.unwrap().clone()]).await;
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let template = &deployment.unwrap()["spec"]["template"];
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": namespace},
        "spec": template["spec"]});
    fixture.apply_dry_run(&[pod]).await;
}

#[steersman_testing::test]
async fn check_names_what_is_missing_and_the_next_step(fixture: Fixture) {
    let user = fixture.user("nobody").await;
    let cluster = cluster(
        fixture.endpoint(),
        user.identity(),
        "default",
        fixture.namespace(),
    );
    let program = memcached::program().cluster(cluster.build().await.unwrap());
    let mut said = Vec::new();
    let error = program
        .run_with(["operator", "check"], &mut said, pending())
        .await
        .unwrap_err();
    let said = String::from_utf8(said).unwrap();
    assert!(
        error.to_string().contains("cannot work on this cluster"),
        "{error}"
    );
    let denied = "denied   create, delete, patch of create, delete, patch deployments.apps, for controller `memcached`: apply \
                  the output of `memcached-operator rbac`";
    assert!(said.contains(denied), "{said}");
}

// R119
#[tokio::test]
async fn errors_of_the_command_line_name_the_next_step() {
    let error = async |arguments: &[&str]| {
        output(memcached::program(), arguments)
            .await
            .unwrap_err()
            .to_string()
    };
    let unknown = error(&["--disable-controllers=memcache"]).await;
    assert!(
        unknown.contains("unknown controller `memcache`") && unknown.contains("are memcached"),
        "{unknown}"
    );
    let nowhere = error(&["--kubeconfig=/nowhere"]).await;
    assert!(
        nowhere.contains("/nowhere cannot be read") && nowhere.contains("--kubeconfig"),
        "{nowhere}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {}}],
    });
    fs::write(file.path(), config.to_string()).unwrap();
    let kubeconfig = format!("--kubeconfig={}", file.path().display());
    let context = error(&[&kubeconfig, "--context=b"]).await;
    assert!(
        context.contains("--context") && context.contains('b'),
        "{context}"
    );
    let unreachable = error(&[&kubeconfig]).await;
    assert!(
        unreachable.contains("http://127.0.0.1:1/ does not answer"),
        "{unreachable}"
    );
}

/// Compares files with those of the repository, or writes them if `UPDATE_GOLDEN` is set.
fn assert_golden(directory: &str, files: &[File]) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(directory);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write_files(&directory, files).unwrap();
    }
    for file in files {
        let path = directory.join(&file.path);
        let text = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            text,
            file.text,
            "{}: set UPDATE_GOLDEN=1 to accept it",
            path.display()
        );
    }
}

// R116
#[tokio::test]
async fn manifests_are_as_they_were() {
    let mut values = Values::default();
    values.image = Image::parse("registry.example/memcached-operator:1.0");
    let operator = memcached::program().manifests();
    assert_golden("kustomize", &operator.kustomize("memcached-system", &values));
    assert_golden("helm", &operator.helm(&values));
    values.watch_namespaces = vec!["caches".to_owned()];
    assert_golden("limited", &operator.kustomize("memcached-system", &values));
    let arguments = ["rbac", "--namespace=memcached-system", "--watch-namespace=caches"];
    let rbac = output(memcached::program(), &arguments).await.unwrap();
    let file = operator.kustomize("memcached-system", &values);
    let file = file.iter().find(|file| file.path.ends_with("rbac.yaml")).unwrap();
    assert!(file.text.ends_with(&rbac), "{rbac}");
}

#[tokio::test]
async fn regeneration_keeps_the_overlay() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let arguments = ["manifests", "--output", &path, "--image=a:1"];
    let said = output(memcached::program(), &arguments).await.unwrap();
    assert!(said.contains("overlay/kustomization.yaml"), "{said}");
    let overlay = directory.path().join("overlay/kustomization.yaml");
    let base = directory.path().join("base/deployment.yaml");
    fs::write(&overlay, "mine").unwrap();
    fs::write(&base, "mine").unwrap();
    let said = output(memcached::program(), &arguments).await.unwrap();
    assert!(
        said.contains("base/deployment.yaml") && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(fs::read_to_string(&overlay).unwrap(), "mine");
    assert_ne!(fs::read_to_string(&base).unwrap(), "mine");
}

#[test]
fn kubectl_accepts_the_kustomize_base_and_overlay() {
    let kubectl = steersman_assets::find().ok().and_then(|assets| assets.kubectl());
    let Some(kubectl) = kubectl else {
        return steersman_testing::skip_without_tool("kubectl", "it was not built with the API server");
    };
    let directory = tempfile::tempdir().unwrap();
    let mut values = Values::default();
    values.image = Image::parse("registry.example/operator:1.0");
    let operator = memcached::program().manifests();
    write_files(directory.path(), &operator.kustomize("memcached-system", &values)).unwrap();
    let overlay = directory.path().join("overlay");
    let built = Command::new(kubectl)
        .arg("kustomize")
        .arg(overlay)
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let text = String::from_utf8(built.stdout).unwrap();
    let documents = text.split("\n---\n").count();
    assert_eq!(documents, operator.objects("memcached-system", &values).len());
}

#[steersman_testing::test]
async fn a_program_names_the_fields_that_an_old_crd_would_drop(fixture: Fixture) {
    let server = fixture.own_server(OwnServerOptions::default()).await;
    let cluster = async || {
        let cluster = cluster(server.endpoint(), server.admin(), "default", "default");
        cluster.build().await.unwrap()
    };
    let run = async |policy: &str| {
        let program = memcached::program().cluster(cluster().await);
        let mut nothing = Vec::new();
        let arguments = ["operator", "--crd-policy", policy];
        program.run_with(arguments, &mut nothing, async {}).await
    };
    run("check").await.unwrap(); // It is not installed, and the controller waits for it.
    let client = cluster().await.live();
    let mut old = serde_json::to_value(Memcached::crd()).unwrap();
    let schema = &mut old["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"] = json!({"type": "object"});
    let old: CustomResourceDefinition = serde_json::from_value(old).unwrap();
    client.create(&old).await.unwrap();
    let error = run("check").await.unwrap_err().to_string();
    assert!(
        error.contains("would drop v1alpha1.spec.size: apply the output"),
        "{error}"
    );
    run("warn").await.unwrap();
    run("external").await.unwrap();
    run("install").await.unwrap();
    run("check").await.unwrap();
}

/// A kind whose objects are cleaned up before they are deleted.
#[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "programs.steersman.example",
    version = "v1",
    kind = "Guarded",
    namespaced
)]
struct GuardedSpec {}

struct Guards;

impl KindReconciler for Guards {
    type Kind = Guarded;
    type Status = NoStatus;
    type Children = ();
    type Finalizer = RunsCleanup;

    async fn reconcile(&self, _: &Guarded, _: &mut Work<Self>) -> Result<Action, BoxError> {
        Ok(Action::await_change())
    }
}

impl Cleanup for Guards {
    const FINALIZER: &'static str = "programs.steersman.example/guard";

    async fn cleanup(&self, _: &Guarded, _: &mut Work<Self>) -> Result<Cleaned, BoxError> {
        Ok(Cleaned::Done)
    }
}

#[steersman_testing::test]
async fn uninstall_drains_finalizers_before_it_deletes_the_crd(fixture: Fixture) {
    let server = fixture.own_server(OwnServerOptions::default()).await;
    let cluster = cluster(server.endpoint(), server.admin(), "default", "default");
    let cluster = cluster.build().await.unwrap();
    let program = || {
        steersman::program("guards")
            .crd::<Guarded>()
            .controller(
                Controller::of::<Guarded>("guards").when_installed(),
                managed(Guards),
            )
            .cluster(cluster.clone())
    };
    let mut nothing = Vec::new();
    let install = ["guards", "--crd-policy=install"];
    program().run_with(install, &mut nothing, async {}).await.unwrap();
    let client = cluster.live();
    let mut guarded = Guarded::new("a", GuardedSpec {});
    guarded.metadata.namespace = Some("default".to_owned());
    guarded.metadata.finalizers = Some(vec![Guards::FINALIZER.to_owned()]);
    // The server serves a new kind a moment after it has accepted its CRD.
    eventually(async || client.create(&guarded).await.is_ok()).await;
    let said = output(program(), &["uninstall"]).await.unwrap();
    assert!(
        said.contains("would delete 1 objects of guardeds.programs.steersman.example"),
        "{said}"
    );
    let said = output(program(), &["uninstall", "--yes"]).await.unwrap();
    assert!(
        said.contains("deleted all objects of guardeds.programs.steersman.example, and the CRD"),
        "{said}"
    );
    let definition = ObjectKey::new("", "guardeds.programs.steersman.example");
    eventually(async || {
        let found = client.get::<CustomResourceDefinition>(&definition).await.unwrap();
        found.is_none()
    })
    .await;
}
