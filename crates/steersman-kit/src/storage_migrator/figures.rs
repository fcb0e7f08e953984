// SPDX-License-Identifier: Apache-2.0
//! Metrics of storage migrations.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use steersman_cluster::ClusterName;

/// Metrics of one migrator. Clones share the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    objects: Family<ResultLabels, Counter>,
    remaining: Family<Labels, Gauge>,
    old_versions: Family<Labels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    cluster: String,
    crd: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    cluster: String,
    crd: String,
    result: &'static str,
}

impl Figures {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("steersman_storage_migration");
        registry.register(
            "objects",
            "Objects that a storage migration has processed, by result",
            self.objects.clone(),
        );
        registry.register(
            "remaining",
            "Objects that a storage migration has not processed yet; an estimate",
            self.remaining.clone(),
        );
        registry.register(
            "old_versions",
            "Versions in storedVersions of the CRD other than the storage version",
            self.old_versions.clone(),
        );
    }

    pub(super) fn processed(&self, cluster: &ClusterName, crd: &str, result: &'static str) {
        let labels = ResultLabels {
            cluster: cluster.to_string(),
            crd: crd.to_owned(),
            result,
        };
        self.objects.get_or_create_owned(&labels).inc();
    }

    pub(super) fn set_remaining(&self, cluster: &ClusterName, crd: &str, objects: i64) {
        self.remaining
            .get_or_create_owned(&Labels::of(cluster, crd))
            .set(objects);
    }

    pub(super) fn set_old_versions(&self, cluster: &ClusterName, crd: &str, versions: usize) {
        let versions = i64::try_from(versions).unwrap_or(i64::MAX);
        self.old_versions
            .get_or_create_owned(&Labels::of(cluster, crd))
            .set(versions);
    }

    /// Removes the gauges of a CRD that does not exist any more.
    pub(super) fn forget(&self, cluster: &ClusterName, crd: &str) {
        let labels = Labels::of(cluster, crd);
        self.remaining.remove(&labels);
        self.old_versions.remove(&labels);
    }
}

impl Labels {
    fn of(cluster: &ClusterName, crd: &str) -> Self {
        Self {
            cluster: cluster.to_string(),
            crd: crd.to_owned(),
        }
    }
}
