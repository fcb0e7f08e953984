// SPDX-License-Identifier: Apache-2.0
//! What a test has for itself on a server that it shares.

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

/// How often it is looked whether a kind is there.
const INSTALL_POLL: Duration = Duration::from_millis(10);

/// A namespace, an API group and users of one test.
///
/// Everything here ends the test with a message when it fails: a test has no use for the error.
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

    /// The kind of server that the test runs on.
    #[must_use]
    pub fn server_kind(&self) -> ServerKind {
        self.kind
    }

    /// The server itself, where the test runs on the embedded one.
    #[must_use]
    pub fn embedded_server(&self) -> Option<&EmbeddedServer> {
        self.embedded.as_ref()
    }

    /// Where the server answers.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The administrator, who may do everything.
    #[must_use]
    pub fn admin(&self) -> &Identity {
        &self.admin
    }

    /// A client that speaks as the administrator.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A namespace that no other test uses.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// An API group that no other test uses. Definitions in it are removed when the test has passed.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// A user who may do nothing yet. The name must be new within the test.
    ///
    /// # Panics
    /// When the server refuses, which ends the test.
    pub async fn user(&self, name: &str) -> User {
        User::create(name, &self.namespace, self.endpoint.clone(), self.client())
            .await
            .unwrap_or_else(|error| panic!("cannot make the user {name}: {error}"))
    }

    /// A fault proxy before the server, which knows the administrator.
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

    /// A server for this test alone, of the same kind.
    ///
    /// # Panics
    /// When it cannot be started, which ends the test.
    pub async fn own_server(&self, options: OwnServerOptions) -> OwnServer {
        OwnServer::start(self.kind, options)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Installs a CRD, or changes it, and waits until the server has its kind.
    ///
    /// On a server that tests share it is there for all of them, and stays; for one of the test alone take its
    /// [`group`](Self::group), or a [server of its own](Self::own_server).
    ///
    /// # Panics
    /// When the server refuses, which ends the test.
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
            // A moment after the definition says that it is established, the server still knows nothing of the kind.
            while let Err(error) = objects.list_metadata(&ListParams::default().limit(1)).await {
                let is_missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
                assert!(is_missing, "{name} is not served: {error}");
                time::sleep(INSTALL_POLL).await;
            }
        }
    }

    /// What removes the definitions of the test's group afterwards: hundreds of them would slow the shared server
    /// down. Namespaces stay, since they are only deleted where a controller manager runs.
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
                // Whatever stays goes with the server.
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
