// SPDX-License-Identifier: Apache-2.0
//! Known resources of a server.

use std::{collections::HashMap, sync::Arc};

use steersman_cache::Resource;
use steersman_core::MonotonicTime;

use super::{Mapping, ResourceQuery, query::Name};

/// Known resources, and the time and source of each answer.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: HashMap<String, Vec<Version>>,
    asked: HashMap<Source, Asked>,
    /// Entries that a client found to be removed since the last answer.
    forgotten: Vec<Arc<Mapping>>,
    /// Set if the server has no aggregated discovery.
    is_legacy: bool,
}

/// A discovery request that a server supports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    /// The core group.
    Core,
    /// All other groups.
    Groups,
    /// One of the other groups.
    Group(String),
}

/// Time and result of the last answer from a source.
#[derive(Debug)]
struct Asked {
    at: MonotonicTime,
    failed: bool,
    tag: Option<String>,
}

/// A version of a group.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) name: String,
    pub(super) mappings: Vec<Arc<Mapping>>,
    /// The server currently does not know its resources.
    pub(super) is_stale: bool,
}

/// An answer of the server.
#[derive(Debug)]
pub(super) enum Answer {
    /// Not modified since the last answer.
    Same,
    /// The server has no aggregated discovery.
    NoList,
    /// All resources of the requested groups, the preferred version of each first.
    All {
        groups: Vec<(String, Vec<Version>)>,
        tag: Option<String>,
    },
}

/// Result of a lookup.
pub(super) enum Lookup {
    Found(Arc<Mapping>),
    Unknown {
        /// Time of the last request.
        asked: Option<MonotonicTime>,
        /// Set if the server might have it, because discovery is incomplete.
        is_stale: bool,
        /// Set if the server had it, and a client found it to be removed since.
        is_forgotten: bool,
    },
}

impl Table {
    /// Returns the source for a group.
    pub(super) fn source(&self, group: &str) -> Source {
        match group {
            "" => Source::Core,
            group if self.is_legacy => Source::Group(group.to_owned()),
            _ => Source::Groups,
        }
    }

    /// Returns the ETag of the last answer.
    pub(super) fn tag(&self, source: &Source) -> Option<String> {
        self.asked.get(source)?.tag.clone()
    }

    /// Returns the time of the last request for a group.
    pub(super) fn asked(&self, group: &str) -> Option<MonotonicTime> {
        Some(self.asked.get(&self.source(group))?.at)
    }

    pub(super) fn look(&self, ask: &ResourceQuery) -> Lookup {
        let versions = self.groups.get(&ask.group).map(Vec::as_slice).unwrap_or_default();
        let is_wanted =
            |version: &&Version| ask.version.as_ref().is_none_or(|wanted| *wanted == version.name);
        let wanted = versions.iter().filter(is_wanted);
        let is_named = |mapping: &&Arc<Mapping>| match &ask.name {
            Name::Kind(kind) => kind == mapping.resource.kind(),
            Name::Plural(plural) => plural == mapping.resource.plural(),
        };
        let mut mappings = wanted.clone().flat_map(|version| &version.mappings);
        if let Some(mapping) = mappings.find(is_named) {
            return Lookup::Found(Arc::clone(mapping));
        }
        let asked = self.asked.get(&self.source(&ask.group));
        Lookup::Unknown {
            asked: asked.map(|asked| asked.at),
            is_stale: asked.is_some_and(|asked| asked.failed)
                || wanted.clone().any(|version| version.is_stale),
            is_forgotten: self.forgotten.iter().filter(is_named).any(|mapping| {
                let (group, version) = (mapping.resource.group(), mapping.resource.version());
                group == ask.group && ask.version.as_deref().is_none_or(|wanted| wanted == version)
            }),
        }
    }

    /// Stores an answer. A failed request counts too, so that a failing server is not flooded with requests.
    pub(super) fn note<E>(
        &mut self,
        source: Source,
        at: MonotonicTime,
        answer: Result<Answer, E>,
    ) -> Result<(), E> {
        let (mut tag, failed) = (self.tag(&source), answer.is_err());
        let result = answer.map(|answer| match answer {
            Answer::Same => {}
            Answer::NoList => self.is_legacy = true,
            Answer::All { groups, tag: new } => {
                self.learn(&source, groups);
                tag = new;
            }
        });
        self.asked.insert(source, Asked { at, failed, tag });
        result
    }

    fn learn(&mut self, source: &Source, groups: Vec<(String, Vec<Version>)>) {
        let mut forgotten = std::mem::take(&mut self.forgotten);
        forgotten.retain(|mapping| self.source(mapping.resource.group()) != *source);
        self.forgotten = forgotten;
        let mut before: HashMap<_, _> = match source {
            Source::Core => self.groups.remove_entry("").into_iter().collect(),
            Source::Group(group) => self.groups.remove_entry(group).into_iter().collect(),
            Source::Groups => {
                let core = self.groups.remove_entry("");
                std::mem::replace(&mut self.groups, core.into_iter().collect())
            }
        };
        for (group, mut versions) in groups {
            let known = before.remove(&group).unwrap_or_default();
            for version in versions
                .iter_mut()
                .filter(|version| version.is_stale && version.mappings.is_empty())
            {
                if let Some(known) = known.iter().find(|known| known.name == version.name) {
                    version.mappings.clone_from(&known.mappings);
                }
            }
            self.groups.insert(group, versions);
        }
    }

    /// Forgets the matching resources of a group. The next answer has to be complete, even if the server has not
    /// changed; this does not change when the next request is sent.
    pub(super) fn forget(&mut self, group: &str, is_meant: impl Fn(&Resource) -> bool) {
        let versions = self.groups.get_mut(group).into_iter().flatten();
        let forgotten = versions.flat_map(|version| {
            let is_meant = |mapping: &mut Arc<Mapping>| is_meant(&mapping.resource);
            version.mappings.extract_if(.., is_meant).collect::<Vec<_>>()
        });
        self.forgotten.extend(forgotten);
        let source = self.source(group);
        if let Some(asked) = self.asked.get_mut(&source) {
            asked.tag = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use steersman_cache::Resource;

    use super::*;

    fn version(name: &str, kinds: &[&str], is_stale: bool) -> Version {
        let mapping = |kind: &&str| {
            let plural = format!("{}s", kind.to_lowercase());
            Arc::new(Mapping {
                resource: Resource::new("example.com", name, kind, &plural),
                namespaced: true,
                verbs: Vec::new(),
                subresources: Vec::new(),
            })
        };
        Version {
            name: name.to_owned(),
            mappings: kinds.iter().map(mapping).collect(),
            is_stale,
        }
    }

    fn note(table: &mut Table, versions: Vec<Version>) {
        let groups = vec![("example.com".to_owned(), versions)];
        let answer = Answer::All { groups, tag: None };
        table
            .note(Source::Groups, MonotonicTime::ORIGIN, Ok::<_, Infallible>(answer))
            .unwrap();
    }

    fn found(table: &Table, ask: &ResourceQuery) -> Result<String, bool> {
        match table.look(ask) {
            Lookup::Found(mapping) => Ok(mapping.resource.to_string()),
            Lookup::Unknown { is_stale, .. } => Err(is_stale),
        }
    }

    #[test]
    fn guarantee_4_the_preferred_version_is_first() {
        let mut table = Table::default();
        note(
            &mut table,
            vec![
                version("v2", &["Widget"], false),
                version("v1", &["Widget", "Gadget"], false),
            ],
        );
        let kind = |kind| ResourceQuery::kind("example.com", kind);
        assert_eq!(found(&table, &kind("Widget")).unwrap(), "widgets.example.com/v2");
        assert_eq!(found(&table, &kind("Gadget")).unwrap(), "gadgets.example.com/v1");
        assert_eq!(
            found(&table, &kind("Widget").version("v1")).unwrap(),
            "widgets.example.com/v1"
        );
        assert_eq!(
            found(&table, &ResourceQuery::plural("example.com", "gadgets")).unwrap(),
            "gadgets.example.com/v1"
        );
        assert_eq!(found(&table, &kind("Gadget").version("v2")), Err(false));
    }

    #[test]
    fn guarantee_5_a_failed_discovery_removes_nothing() {
        let mut table = Table::default();
        let (widget, gadget) = (
            ResourceQuery::kind("example.com", "Widget"),
            ResourceQuery::kind("example.com", "Gadget"),
        );
        note(&mut table, vec![version("v1", &["Widget"], false)]);
        assert_eq!(found(&table, &gadget), Err(false));
        note(&mut table, vec![version("v1", &[], true)]);
        assert!(found(&table, &widget).is_ok());
        assert_eq!(found(&table, &gadget), Err(true), "it may have one");
        note(&mut table, vec![version("v1", &[], false)]);
        assert_eq!(found(&table, &widget), Err(false));
        table
            .note(Source::Groups, MonotonicTime::ORIGIN, Err(()))
            .unwrap_err();
        assert_eq!(found(&table, &widget), Err(true));
    }

    #[test]
    fn guarantee_6_forgets_only_removed_kinds() {
        let mut table = Table::default();
        let versions = || {
            vec![
                version("v2", &["Widget"], false),
                version("v1", &["Widget", "Gadget"], false),
            ]
        };
        note(&mut table, versions());
        let widget = ResourceQuery::kind("example.com", "Widget");
        table.forget("example.com", |resource| resource.version() == "v2");
        assert_eq!(found(&table, &widget).unwrap(), "widgets.example.com/v1");
        table.forget("example.com", |resource| resource.plural() == "widgets");
        assert!(found(&table, &ResourceQuery::kind("example.com", "Gadget")).is_ok());
        for ask in [&widget, &widget.clone().version("v2")] {
            assert!(matches!(
                table.look(ask),
                Lookup::Unknown {
                    asked: Some(MonotonicTime::ORIGIN),
                    is_stale: false,
                    is_forgotten: true,
                }
            ));
        }
        note(&mut table, vec![version("v1", &["Gadget"], false)]);
        let known = table.look(&widget);
        assert!(matches!(
            known,
            Lookup::Unknown {
                is_forgotten: false,
                ..
            }
        ));
        note(&mut table, versions());
        assert_eq!(found(&table, &widget).unwrap(), "widgets.example.com/v2");
    }
}
