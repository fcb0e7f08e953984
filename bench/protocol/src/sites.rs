// SPDX-License-Identifier: Apache-2.0
//! The children of a Site in the benchmark `kit`, the same for all participants in Rust.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, PodSpec, PodTemplateSpec, Secret,
            Service, ServiceAccount, ServicePort, ServiceSpec, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

/// Metadata of a child: name and labels.
#[must_use]
pub fn metadata(site: &str) -> ObjectMeta {
    let labels = [
        ("app.kubernetes.io/name", "site"),
        ("app.kubernetes.io/instance", site),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    ObjectMeta {
        name: Some(site.to_owned()),
        labels: Some(BTreeMap::from(labels)),
        ..ObjectMeta::default()
    }
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

/// The page, as a ConfigMap.
#[must_use]
pub fn config_map(page: &str, metadata: ObjectMeta) -> ConfigMap {
    ConfigMap {
        metadata,
        data: Some([("index.html".to_owned(), page.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// The token, as a Secret.
#[must_use]
pub fn secret(metadata: ObjectMeta) -> Secret {
    let name = name(&metadata);
    Secret {
        metadata,
        data: Some([("site".to_owned(), ByteString(name.into_bytes()))].into()),
        ..Secret::default()
    }
}

/// The ServiceAccount.
#[must_use]
pub fn service_account(metadata: ObjectMeta) -> ServiceAccount {
    ServiceAccount {
        metadata,
        ..ServiceAccount::default()
    }
}

/// The Service, which selects the Pods by the labels of the Site. Headless: the server has fewer addresses than there are Sites.
#[must_use]
pub fn service(metadata: ObjectMeta) -> Service {
    let labels = metadata.labels.clone();
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: 80,
        target_port: Some(IntOrString::Int(8080)),
        ..ServicePort::default()
    };
    Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: labels,
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// The Deployment.
#[must_use]
pub fn deployment(image: &str, replicas: i32, metadata: ObjectMeta) -> Deployment {
    let (name, labels) = (name(&metadata), metadata.labels.clone());
    let port = ContainerPort {
        name: Some("http".to_owned()),
        container_port: 8080,
        ..ContainerPort::default()
    };
    let mount = VolumeMount {
        name: "page".to_owned(),
        mount_path: "/srv".to_owned(),
        ..VolumeMount::default()
    };
    let container = Container {
        name: "web".to_owned(),
        image: Some(image.to_owned()),
        ports: Some(vec![port]),
        volume_mounts: Some(vec![mount]),
        ..Container::default()
    };
    let volume = Volume {
        name: "page".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: name.clone(),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    };
    let pod = PodSpec {
        service_account_name: Some(name),
        containers: vec![container],
        volumes: Some(vec![volume]),
        ..PodSpec::default()
    };
    Deployment {
        metadata,
        spec: DeploymentSpec {
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: labels.clone(),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels,
                    ..ObjectMeta::default()
                }),
                spec: Some(pod),
            },
            ..DeploymentSpec::default()
        },
        ..Deployment::default()
    }
}
