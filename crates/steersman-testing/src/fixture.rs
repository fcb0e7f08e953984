// SPDX-License-Identifier: Apache-2.0
//! Isolated resources of one test on a shared server.

use std::{fmt, future::Future, time::Duration};

use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta},
};
use steersman_assets::describe;
use tokio::time;

use crate::{
    EmbeddedServer, Endpoint, FaultProxy, Identity, ServerKind, User,
    own_server::{OwnServer, OwnServerOptions},
    token,
};

/// Polling interval while waiting for a kind.
const INSTALL_POLL: Duration = Duration::from_millis(10);

/// A namespace, an API group and users of one test.
///
/// All methods panic on failure, which ends the test: a test cannot handle these errors.
pub struct Fixture {
    kind: ServerKind,
    endpoint: Endpoint,
    admin: Identity,
    client: Client,
    namespace: String,
    group: String,
    embedded: Option<EmbeddedServer>,
}

impl Fixture {
    pub(crate) async fn real(endpoint: Endpoint, admin: Identity) -> Self {
        Self::create(ServerKind::Real, endpoint, admin, None).await
    }

    pub(crate) async fn embedded(server: EmbeddedServer) -> Self {
        let (endpoint, admin) = (server.endpoint().clone(), server.admin().clone());
        Self::create(ServerKind::Embedded, endpoint, admin, Some(server)).await
    }

    async fn create(
        kind: ServerKind,
        endpoint: Endpoint,
        admin: Identity,
        embedded: Option<EmbeddedServer>,
    ) -> Self {
        let client = endpoint
            .client(&admin)
            .unwrap_or_else(|error| panic!("{}", describe(&error)));
        let id = token::random();
        let namespace = format!("test-{id}");
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await;
        created.unwrap_or_else(|error| panic!("cannot create namespace {namespace}: {error}"));
        Self {
            kind,
            endpoint,
            admin,
            client,
            namespace,
            group: format!("test-{id}.steersman.example"),
            embedded,
        }
    }

    /// Returns the kind of server that the test runs on.
    #[must_use]
    pub fn server_kind(&self) -> ServerKind {
        self.kind
    }

    /// Returns the embedded server, if the test runs on it.
    #[must_use]
    pub fn embedded_server(&self) -> Option<&EmbeddedServer> {
        self.embedded.as_ref()
    }

    /// Returns the endpoint of the server.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the administrator, who has all permissions.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// Returns a client for the administrator.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a namespace that no other test uses.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns an API group that no other test uses. Its CRDs are deleted after the test has passed.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Creates a user without permissions. The name must be unique within the test.
    ///
    /// # Panics
    /// When the server rejects it, which ends the test.
    pub async fn user(&self, name: &str) -> User {
        User::create(name, &self.namespace, self.endpoint.clone(), self.client())
            .await
            .unwrap_or_else(|error| panic!("cannot create user {name}: {error}"))
    }

    /// Starts a fault proxy in front of the server. The administrator is announced to it.
    ///
    /// # Panics
    /// When it cannot be started, which ends the test.
    pub async fn proxy(&self) -> FaultProxy {
        let proxy = FaultProxy::start(&self.endpoint)
            .await
            .unwrap_or_else(|error| panic!("{}", describe(&error)));
        proxy.announce(&self.admin);
        proxy
    }

    /// Starts a server for this test only, of the same kind.
    ///
    /// # Panics
    /// When it cannot be started, which ends the test.
    pub async fn own_server(&self, options: OwnServerOptions) -> OwnServer {
        OwnServer::start(self.kind, options)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Installs or updates a CRD, and waits until the server serves its kind.
    ///
    /// On a shared server, all tests see the CRD, and it stays installed. For a CRD of one test, use its
    /// [`group`](Self::group) or its [own server](Self::own_server).
    ///
    /// # Panics
    /// When the server rejects it, which ends the test.
    pub async fn install(&self, definition: &CustomResourceDefinition) {
        let (name, spec) = (definition.name_any(), &definition.spec);
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        let ours = PatchParams::apply("steersman-testing").force();
        let installed = definitions.patch(&name, &ours, &Patch::Apply(definition)).await;
        installed.unwrap_or_else(|error| panic!("cannot install {name}: {error}"));
        for version in spec.versions.iter().filter(|version| version.served) {
            let gvk = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, &spec.names.plural);
            let objects: Api<DynamicObject> = Api::all_with(self.client(), &resource);
            // The server starts to serve the kind shortly after the CRD is established.
            while let Err(error) = objects.list_metadata(&ListParams::default().limit(1)).await {
                let is_missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
                assert!(is_missing, "{name} is not served: {error}");
                time::sleep(INSTALL_POLL).await;
            }
        }
    }

    /// Applies objects as the administrator, such as the RBAC rules of an operator. Their kinds have to be installed.
    ///
    /// # Panics
    /// When the server rejects one, which ends the test.
    pub async fn apply(&self, objects: &[serde_json::Value]) {
        for object in objects {
            self.apply_with(object, &PatchParams::apply("steersman-testing").force())
                .await;
        }
    }

    /// As [`apply`](Self::apply), as a dry run: the server validates the objects and stores nothing.
    ///
    /// # Panics
    /// When the server rejects one, which ends the test.
    pub async fn apply_dry_run(&self, objects: &[serde_json::Value]) {
        for object in objects {
            let params = PatchParams::apply("steersman-testing").force().dry_run();
            self.apply_with(object, &params).await;
        }
    }

    async fn apply_with(&self, object: &serde_json::Value, params: &PatchParams) {
        let object: DynamicObject = serde_json::from_value(object.clone())
            .unwrap_or_else(|error| panic!("{object} is not an object: {error}"));
        let (name, types) = (object.name_any(), object.types.clone().unwrap_or_default());
        let gvk = GroupVersionKind::try_from(&types)
            .unwrap_or_else(|error| panic!("cannot read the apiVersion of {name}: {error}"));
        let (resource, capabilities) = kube::discovery::pinned_kind(&self.client, &gvk)
            .await
            .unwrap_or_else(|error| panic!("{} of {name} is not installed: {error}", types.kind));
        let namespace = object.namespace().unwrap_or_else(|| self.namespace.clone());
        let objects: Api<DynamicObject> = match capabilities.scope {
            kube::discovery::Scope::Cluster => Api::all_with(self.client(), &resource),
            kube::discovery::Scope::Namespaced => Api::namespaced_with(self.client(), &namespace, &resource),
        };
        let applied = objects.patch(&name, params, &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|error| panic!("cannot apply {} {name}: {error}", types.kind));
    }

    /// Returns a future that deletes the CRDs of the test's group: hundreds of them would slow the shared server down.
    /// Namespaces stay, because deleting them requires a controller manager.
    pub(crate) fn cleaner(&self) -> impl Future<Output = ()> + use<> {
        let is_shared = self.embedded.is_none();
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        let group = self.group.clone();
        async move {
            if !is_shared {
                return;
            }
            let Ok(list) = definitions.list(&ListParams::default()).await else {
                return;
            };
            for definition in list
                .items
                .into_iter()
                .filter(|definition| definition.spec.group == group)
            {
                let name = definition.metadata.name.unwrap_or_default();
                // A CRD that cannot be deleted stays until the server stops.
                let _ = definitions.delete(&name, &DeleteParams::default()).await;
            }
        }
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture")
            .field("kind", &self.kind)
            .field("endpoint", &self.endpoint)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}
