// SPDX-License-Identifier: Apache-2.0
//! State of both watches, and the presence that follows from it.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use serde::Deserialize;
use steersman_cache::Resource;
use steersman_core::{Presence, PresenceStatus};

use super::{pending, unknown};

/// Fields of a CustomResourceDefinition that determine presence.
#[derive(Deserialize)]
pub(super) struct Definition {
    spec: DefinitionSpec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    group: String,
    names: Names,
    scope: Option<String>,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Names {
    plural: String,
}

#[derive(Deserialize)]
struct Version {
    name: String,
    #[serde(default)]
    served: bool,
}

#[derive(Default, Deserialize)]
struct Status {
    /// Servers send `null` for a new CRD.
    conditions: Option<Vec<Condition>>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

/// Fields of an APIService that determine presence.
#[derive(Deserialize)]
pub(super) struct Service {
    #[serde(default)]
    metadata: ServiceMetadata,
    spec: ServiceSpec,
}

#[derive(Default, Deserialize)]
struct ServiceMetadata {
    #[serde(default)]
    labels: HashMap<String, String>,
}

impl Service {
    /// Reports whether the server created it for the CRDs of its group. The server deletes it some time after the last
    /// of them, so only the CRDs decide.
    fn is_of_definitions(&self) -> bool {
        let managed = self
            .metadata
            .labels
            .get("kube-aggregator.kubernetes.io/automanaged");
        managed.is_some_and(|managed| managed == "true")
    }
}

#[derive(Deserialize)]
struct ServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
}

/// Reliability of one of the two watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Trust {
    /// The watch is not in sync yet.
    #[default]
    NotYet,
    /// The state is current, or was until a moment ago.
    Watched,
    /// The account is not allowed to watch it, or the server does not have it.
    Closed,
    /// The watch fails, and its state is unknown.
    Lost(Arc<str>),
}

#[derive(Debug)]
struct Defined {
    uid: Arc<str>,
    established: bool,
    served: Vec<String>,
    /// Set to whether the kind is namespaced, if known.
    namespaced: Option<bool>,
}

/// State that both watches delivered.
#[derive(Debug, Default)]
pub(super) struct PresenceIndex {
    definitions: HashMap<(String, String), Defined>,
    /// By object name, because a deletion reliably has only that.
    definition_names: HashMap<String, (String, String)>,
    /// Names of CRDs that could never be decoded.
    undecodable: HashSet<String>,
    services: HashMap<String, (String, String)>,
    pub(super) trust_definitions: Trust,
    pub(super) trust_services: Trust,
}

/// Result for a kind.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Known(PresenceStatus),
    /// Only discovery can decide.
    Ask,
}

impl PresenceIndex {
    pub(super) fn define(&mut self, name: &str, uid: &str, definition: &Definition) {
        let spec = &definition.spec;
        let key = (spec.group.clone(), spec.names.plural.clone());
        let established = definition
            .status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.r#type == "Established" && condition.status == "True");
        let served = spec.versions.iter().filter(|version| version.served);
        let defined = Defined {
            uid: uid.into(),
            established,
            served: served.map(|version| version.name.clone()).collect(),
            namespaced: spec.scope.as_ref().map(|scope| scope == "Namespaced"),
        };
        self.undecodable.remove(name);
        self.definition_names.insert(name.to_owned(), key.clone());
        self.definitions.insert(key, defined);
    }

    /// Records a CRD that cannot be decoded. The last decoded state stays. Without one, discovery decides: the kind exists,
    /// but whether it is served is unknown.
    pub(super) fn define_undecodable(&mut self, name: &str) {
        if !self.definition_names.contains_key(name) {
            self.undecodable.insert(name.to_owned());
        }
    }

    pub(super) fn undefine(&mut self, name: &str) {
        self.undecodable.remove(name);
        if let Some(key) = self.definition_names.remove(name) {
            self.definitions.remove(&key);
        }
    }

    pub(super) fn serve(&mut self, name: &str, service: &Service) {
        if service.is_of_definitions() {
            return self.unserve(name);
        }
        let spec = &service.spec;
        self.services
            .insert(name.to_owned(), (spec.group.clone(), spec.version.clone()));
    }

    /// Records an APIService that cannot be decoded. Its name is that of its version and group: `v1.example.com`.
    pub(super) fn serve_undecodable(&mut self, name: &str) {
        let (version, group) = name.split_once('.').unwrap_or((name, ""));
        let served = || (group.to_owned(), version.to_owned());
        self.services.entry(name.to_owned()).or_insert_with(served);
    }

    pub(super) fn unserve(&mut self, name: &str) {
        self.services.remove(name);
    }

    /// Returns the presence of a kind, as far as the watches decide it.
    pub(super) fn judge(&self, resource: &Resource) -> Verdict {
        match &self.trust_definitions {
            Trust::NotYet => {
                return Verdict::Known(pending(resource));
            }
            Trust::Lost(reason) => {
                return Verdict::Known(unknown(format!(
                    "cannot determine whether {resource} is installed: {reason}"
                )));
            }
            Trust::Closed => return Verdict::Ask,
            Trust::Watched => {}
        }
        let published = match self.defined(resource) {
            Some(defined) => defined.presence_status(resource),
            None if self.undecodable.contains(&definition_name(resource)) => return Verdict::Ask,
            None => PresenceStatus::new(Presence::Absent, format!("{resource} is not installed")),
        };
        // An aggregated API server can have kinds without a CRD in any group. It can also take precedence over a CRD.
        // That is detected if APIServices are watched; otherwise, requests for the kind fail.
        let may_be_elsewhere = match self.trust_services {
            Trust::Watched => self.has_service(resource),
            // The watch will be in sync soon.
            Trust::NotYet if !published.is_present() => return Verdict::Known(pending(resource)),
            Trust::NotYet => false,
            Trust::Closed | Trust::Lost(_) => !published.is_present(),
        };
        match may_be_elsewhere {
            true => Verdict::Ask,
            false => Verdict::Known(published),
        }
    }

    fn has_service(&self, resource: &Resource) -> bool {
        let wanted = (resource.group(), resource.version());
        let mut services = self.services.values();
        services.any(|(group, version)| (group.as_str(), version.as_str()) == wanted)
    }

    /// Returns whether a kind is namespaced, according to its CRD.
    pub(super) fn is_namespaced(&self, resource: &Resource) -> Option<bool> {
        self.defined(resource)?.namespaced
    }

    fn defined(&self, resource: &Resource) -> Option<&Defined> {
        let key = (resource.group().to_owned(), resource.plural().to_owned());
        self.definitions.get(&key)
    }
}

/// Returns the name of the CRD of a kind.
fn definition_name(resource: &Resource) -> String {
    format!("{}.{}", resource.plural(), resource.group())
}

impl Defined {
    fn presence_status(&self, resource: &Resource) -> PresenceStatus {
        let absent = |why: &str| PresenceStatus::new(Presence::Absent, format!("{resource} {why}"));
        if !self.established {
            absent("is defined, but not established yet")
        } else if !self.served.iter().any(|version| version == resource.version()) {
            absent("is defined, but this version is not served")
        } else {
            PresenceStatus::new(Presence::Present, format!("{resource} is installed"))
                .incarnation(Arc::clone(&self.uid))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn widgets(version: &str) -> Resource {
        Resource::new("example.com", version, "Widget", "widgets")
    }

    fn definition(served: bool, established: &str) -> Definition {
        definition_of("widgets", served, established)
    }

    fn gadgets() -> Definition {
        definition_of("gadgets", true, "True")
    }

    fn definition_of(plural: &str, served: bool, established: &str) -> Definition {
        let definition = json!({
            "spec": {
                "group": "example.com",
                "names": {"plural": plural},
                "versions": [{"name": "v1", "served": served, "schema": {}}],
            },
            "status": {"conditions": [{"type": "Established", "status": established}]},
        });
        serde_json::from_value(definition).unwrap()
    }

    fn watched() -> PresenceIndex {
        PresenceIndex {
            trust_definitions: Trust::Watched,
            trust_services: Trust::Watched,
            ..PresenceIndex::default()
        }
    }

    fn presence(index: &PresenceIndex, resource: &Resource) -> Presence {
        match index.judge(resource) {
            Verdict::Known(presence_status) => presence_status.presence,
            Verdict::Ask => panic!("{resource} is left to discovery"),
        }
    }

    // R170
    #[test]
    fn presence_is_that_of_the_served_version() {
        let mut index = watched();
        index.define("widgets.example.com", "1", &definition(true, "True"));
        assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        assert_eq!(presence(&index, &widgets("v2")), Presence::Absent);
        index.define("widgets.example.com", "1", &definition(false, "True"));
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
        index.define("widgets.example.com", "1", &definition(true, "False"));
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
    }

    #[test]
    fn a_definition_that_is_new_has_no_conditions_yet() {
        let new = json!({
            "spec": {"group": "example.com", "names": {"plural": "widgets"}, "scope": "Cluster", "versions": []},
            "status": {"conditions": null, "storedVersions": null},
        });
        let mut index = watched();
        index.define("widgets.example.com", "1", &serde_json::from_value(new).unwrap());
        let Verdict::Known(presence_status) = index.judge(&widgets("v1")) else {
            panic!()
        };
        assert!(
            presence_status.reason.ends_with("not established yet"),
            "{presence_status}"
        );
        assert_eq!(index.is_namespaced(&widgets("v1")), Some(false));
    }

    // R171
    #[test]
    fn guarantee_5_a_definition_made_anew_is_another_incarnation() {
        let mut index = watched();
        index.define("widgets.example.com", "1", &definition(true, "True"));
        let Verdict::Known(first) = index.judge(&widgets("v1")) else {
            panic!()
        };
        index.define("widgets.example.com", "2", &definition(true, "True"));
        let Verdict::Known(second) = index.judge(&widgets("v1")) else {
            panic!()
        };
        assert_ne!(first, second);
    }

    #[test]
    fn guarantee_2_an_unserved_group_is_absent_without_a_request() {
        let mut index = watched();
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
        index.trust_services = Trust::Closed;
        assert_eq!(index.judge(&widgets("v1")), Verdict::Ask);
    }

    #[test]
    fn an_aggregated_group_is_left_to_discovery() {
        let mut index = watched();
        let service = json!({"spec": {"group": "example.com", "version": "v1", "service": {"name": "x"}}});
        index.serve("v1.example.com", &serde_json::from_value(service).unwrap());
        assert_eq!(index.judge(&widgets("v1")), Verdict::Ask);
        index.unserve("v1.example.com");
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
    }

    #[test]
    fn a_version_that_a_service_has_is_left_to_discovery_also_beside_definitions() {
        let mut index = watched();
        index.define("gadgets.example.com", "1", &gadgets());
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
        let service = json!({"spec": {"group": "example.com", "version": "v1", "service": {"name": "x"}}});
        index.serve("v1.example.com", &serde_json::from_value(service).unwrap());
        assert_eq!(index.judge(&widgets("v1")), Verdict::Ask);
        assert_eq!(presence(&index, &widgets("v2")), Presence::Absent);
    }

    /// For example authorization.openshift.io: one kind has a CRD, and an aggregated API server has the others.
    #[test]
    fn guarantee_3_undefined_kinds_are_left_to_discovery_while_services_are_unknown() {
        let mut index = watched();
        index.define("gadgets.example.com", "1", &gadgets());
        index.define("widgets.example.com", "1", &definition(true, "True"));
        let other = Resource::new("example.com", "v1", "Other", "others");
        for trust in [Trust::Closed, Trust::Lost("unreachable".into())] {
            index.trust_services = trust;
            assert_eq!(index.judge(&other), Verdict::Ask);
            assert_eq!(index.judge(&widgets("v2")), Verdict::Ask);
            assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        }
        // They will be in sync soon: kinds with a CRD are decided at once, and the others wait.
        index.trust_services = Trust::NotYet;
        assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        assert_eq!(presence(&index, &other), Presence::Unknown);
        assert_eq!(presence(&index, &widgets("v2")), Presence::Unknown);
    }

    #[test]
    fn guarantee_3_a_version_of_a_service_is_left_to_discovery_despite_its_definition() {
        let mut index = watched();
        index.define("widgets.example.com", "1", &definition(true, "True"));
        for version in ["v1", "v2"] {
            let service =
                json!({"spec": {"group": "example.com", "version": version, "service": {"name": "x"}}});
            let name = format!("{version}.example.com");
            index.serve(&name, &serde_json::from_value(service).unwrap());
            assert_eq!(index.judge(&widgets(version)), Verdict::Ask);
            index.unserve(&name);
        }
        assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        assert_eq!(presence(&index, &widgets("v2")), Presence::Absent);
    }

    #[test]
    fn a_service_that_was_made_for_definitions_does_not_outlive_them() {
        let mut index = watched();
        let labels = json!({"kube-aggregator.kubernetes.io/automanaged": "true"});
        let service =
            json!({"metadata": {"labels": labels}, "spec": {"group": "example.com", "version": "v1"}});
        index.serve("v1.example.com", &serde_json::from_value(service).unwrap());
        index.define("widgets.example.com", "1", &definition(true, "True"));
        assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        index.undefine("widgets.example.com");
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
    }

    #[test]
    fn guarantee_3_a_kind_whose_definition_cannot_be_decoded_is_left_to_discovery() {
        let (mut index, name) = (watched(), "widgets.example.com");
        index.define_undecodable(name);
        assert_eq!(index.judge(&widgets("v1")), Verdict::Ask);
        index.define(name, "1", &definition(true, "True"));
        index.define_undecodable(name);
        assert_eq!(presence(&index, &widgets("v1")), Presence::Present);
        index.undefine(name);
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
        index.define_undecodable(name);
        index.undefine(name);
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);

        index.serve_undecodable("v1.example.com");
        assert_eq!(index.judge(&widgets("v1")), Verdict::Ask);
        assert_eq!(presence(&index, &widgets("v2")), Presence::Absent);
        index.unserve("v1.example.com");
        assert_eq!(presence(&index, &widgets("v1")), Presence::Absent);
    }

    #[test]
    fn guarantee_3_before_anything_is_known_nothing_is() {
        assert_eq!(
            presence(&PresenceIndex::default(), &widgets("v1")),
            Presence::Unknown
        );
        let lost = PresenceIndex {
            trust_definitions: Trust::Lost("unreachable".into()),
            ..PresenceIndex::default()
        };
        assert_eq!(presence(&lost, &widgets("v1")), Presence::Unknown);
    }
}
