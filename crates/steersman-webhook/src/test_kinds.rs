// SPDX-License-Identifier: Apache-2.0
//! A kind with two versions, for unit tests.

use steersman_kit::{Defaults, Validate, ValidationReport};

pub(crate) mod v1 {
    use kube::CustomResource;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    #[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1", kind = "Web", namespaced)]
    pub(crate) struct WebSpec {
        #[serde(default)]
        pub(crate) image: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(crate) replicas: Option<i32>,
    }
}

pub(crate) mod v1alpha1 {
    use kube::CustomResource;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    #[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1alpha1", kind = "Web", namespaced)]
    pub(crate) struct WebSpec {
        pub(crate) image: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(crate) size: Option<i32>,
    }
}

impl Defaults for v1::Web {
    fn set_defaults(&mut self) {
        self.spec.replicas.get_or_insert(1);
    }
}

impl Validate for v1::Web {
    fn validate(&self, _: Option<&Self>, report: &mut ValidationReport) {
        if self.spec.replicas == Some(0) {
            report.invalid("spec.replicas", "must be at least 1");
        }
        if self.spec.image.ends_with(":latest") {
            report.warn("spec.image: `latest` is not stable");
        }
    }
}

impl From<v1alpha1::Web> for v1::Web {
    fn from(old: v1alpha1::Web) -> Self {
        let spec = v1::WebSpec {
            image: old.spec.image,
            replicas: old.spec.size,
        };
        Self {
            metadata: old.metadata,
            spec,
        }
    }
}

impl From<v1::Web> for v1alpha1::Web {
    fn from(new: v1::Web) -> Self {
        let spec = v1alpha1::WebSpec {
            image: new.spec.image,
            size: new.spec.replicas,
        };
        // Without metadata, which stays as it is.
        Self::new("", spec)
    }
}
