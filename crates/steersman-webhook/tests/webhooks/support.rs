// SPDX-License-Identifier: Apache-2.0
//! Replicas of an operator with webhooks, and the Service in front of them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use steersman_cluster::Cluster;
use steersman_core::{Mutex, Spawner, Task};
use steersman_endpoints::Exposition;
use steersman_runtime::{Election, Manager};
use steersman_testing::{Fixture, eventually};
use steersman_webhook::{
    AdmissionRequest, AdmissionResponse, AdmissionWebhook, Certificates, Rule, WebhookServer, Webhooks,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
};

/// An operator whose webhooks are for the namespace of the test.
pub(crate) struct Operator {
    pub(crate) fixture: Fixture,
    /// Name of the operator, and of its namespace.
    pub(crate) name: String,
    pub(crate) service: Service,
}

impl Operator {
    pub(crate) async fn new(fixture: Fixture) -> Self {
        let name = format!("{}-system", fixture.namespace());
        let namespaces: Api<Namespace> = Api::all(fixture.client());
        let namespace: Namespace = object(json!({"metadata": {"name": name}}));
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let service = Service::start().await;
        Self {
            fixture,
            name,
            service,
        }
    }

    /// Declares webhooks that this server reaches.
    pub(crate) fn webhooks(&self) -> Webhooks {
        Webhooks::new(&self.name, &self.name)
            .url(format!("https://{}", self.service.address))
            .address("127.0.0.1:0".parse().unwrap())
            .check_interval(Duration::from_millis(100))
            .drain_delay(Duration::from_millis(500))
            .certificates(Certificates::managed().propagation_delay(Duration::from_secs(1)))
    }

    /// Starts a replica, and waits until it is ready.
    pub(crate) async fn replica(&self, webhooks: Webhooks) -> Replica {
        let replica = self.starting(webhooks).await;
        let what = format!("a ready replica of {}", self.name);
        eventually(&what, async || replica.server.is_ready().then_some(())).await;
        self.service.add(&replica.server);
        replica
    }

    /// Starts a replica.
    pub(crate) async fn starting(&self, webhooks: Webhooks) -> Replica {
        let cluster = Cluster::builder("local")
            .config(self.fixture.endpoint().config(self.fixture.admin()).unwrap())
            .build()
            .await
            .unwrap();
        let election = Election::new("operator")
            .namespace(&self.name)
            .lease_duration(Duration::from_secs(3))
            .renew_deadline(Duration::from_secs(2))
            .retry_period(Duration::from_millis(100));
        let manager = Manager::builder()
            .cluster(cluster)
            .leader_election(election)
            .build()
            .await
            .unwrap();
        let server = webhooks.add_to(&manager).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let running = manager.clone();
        let task = Spawner::current().spawn("replica", async move {
            let result = running.run_until(async { _ = stopped.await }).await;
            let _ = done.send(result.map_err(|error| error.to_string()));
        });
        Replica {
            manager,
            server,
            stop: Some(stop),
            ended,
            _task: task,
        }
    }

    /// Selects the namespace of the test.
    pub(crate) fn here(&self) -> LabelSelector {
        let label = (
            "kubernetes.io/metadata.name".to_owned(),
            self.fixture.namespace().to_owned(),
        );
        LabelSelector {
            match_labels: Some([label].into()),
            ..LabelSelector::default()
        }
    }

    /// A webhook that adds `data.injected` to ConfigMaps.
    pub(crate) fn injects(&self) -> AdmissionWebhook {
        AdmissionWebhook::mutating(
            "inject.maps.example.com",
            async |request: AdmissionRequest<Value>| {
                let mut map = request.object.unwrap_or_default();
                map["data"]["injected"] = json!("yes");
                Ok(AdmissionResponse::allow().with_object(&map)?)
            },
        )
        .rule(Rule::of::<ConfigMap>())
        .namespace_selector(self.here())
    }

    pub(crate) fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.fixture.client(), self.fixture.namespace())
    }

    pub(crate) fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.fixture.client(), &self.name)
    }

    pub(crate) fn secret_name(&self) -> String {
        format!("{}-webhook-ca", self.name)
    }

    /// Sends a ConfigMap through admission, and returns whether the webhook has changed it.
    pub(crate) async fn is_injected(&self) -> Result<bool, kube::Error> {
        let map: ConfigMap = object(json!({"metadata": {"name": "probe"}, "data": {"a": "b"}}));
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let answer = self.maps().create(&dry_run, &map).await?;
        Ok(answer.data.unwrap_or_default().contains_key("injected"))
    }

    /// Waits until the server calls the webhook that [injects](Self::injects).
    pub(crate) async fn when_in_force(&self) {
        eventually("the webhook is called", async || {
            self.is_injected().await.unwrap_or_default().then_some(())
        })
        .await;
    }

    /// Removes the registration, so that other tests are not affected.
    pub(crate) async fn remove(&self) {
        use k8s_openapi::api::admissionregistration::v1::{
            MutatingWebhookConfiguration as Mutating, ValidatingWebhookConfiguration as Validating,
        };
        let (client, delete) = (self.fixture.client(), DeleteParams::default());
        let _ = Api::<Mutating>::all(client.clone())
            .delete(&self.name, &delete)
            .await;
        let _ = Api::<Validating>::all(client).delete(&self.name, &delete).await;
    }
}

/// One replica, in this process.
pub(crate) struct Replica {
    pub(crate) manager: Manager,
    pub(crate) server: WebhookServer,
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<Result<(), String>>,
    _task: Task,
}

impl Replica {
    /// Stops the replica as SIGTERM does, and waits for its end.
    pub(crate) async fn stop(mut self) {
        self.begin_stop();
        self.ended.await.unwrap().unwrap();
    }

    /// Begins to stop the replica.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    pub(crate) fn metric(&self, line: &str) -> bool {
        let metrics = self.manager.metrics().encode(Exposition::Text);
        metrics.lines().any(|one| one.starts_with(line))
    }
}

/// Forwards connections to ready replicas in turn, as a Service does.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    replicas: Arc<Mutex<Vec<WebhookServer>>>,
    _task: Task,
}

impl Service {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replicas: Arc<Mutex<Vec<WebhookServer>>> = Arc::default();
        let (known, turn, spawner) = (Arc::clone(&replicas), AtomicUsize::new(0), Spawner::current());
        let task = spawner.clone().spawn("service", async move {
            let mut connections = Vec::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let ready: Vec<SocketAddr> = known
                    .lock()
                    .iter()
                    .filter(|one| one.is_ready())
                    .map(WebhookServer::address)
                    .collect();
                let next = turn.fetch_add(1, Ordering::Relaxed).checked_rem(ready.len());
                let Some(server) = next.map(|next| ready[next]) else {
                    continue;
                };
                connections.push(spawner.spawn("connection", async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }));
            }
        });
        Self {
            address,
            replicas,
            _task: task,
        }
    }

    pub(crate) fn add(&self, server: &WebhookServer) {
        self.replicas.lock().push(server.clone());
    }
}

pub(crate) fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns the code and message of an error of the API server.
pub(crate) fn rejection<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}
