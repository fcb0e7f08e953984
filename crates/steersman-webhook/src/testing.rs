// SPDX-License-Identifier: Apache-2.0
//! Property tests of conversions: objects are generated from the schemas of both versions, and converted there and back.
//!
//! ```
//! # mod v1alpha1 {
//! #   use kube::CustomResource;
//! #   use schemars::JsonSchema;
//! #   use serde::{Deserialize, Serialize};
//! #   #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #   #[kube(group = "example.com", version = "v1alpha1", kind = "Web", namespaced)]
//! #   pub struct WebSpec { pub size: i32 }
//! # }
//! # mod v1 {
//! #   use kube::CustomResource;
//! #   use schemars::JsonSchema;
//! #   use serde::{Deserialize, Serialize};
//! #   #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
//! #   #[kube(group = "example.com", version = "v1", kind = "Web", namespaced)]
//! #   pub struct WebSpec { pub replicas: i32 }
//! # }
//! # impl From<v1alpha1::Web> for v1::Web {
//! #   fn from(old: v1alpha1::Web) -> Self {
//! #       Self { metadata: old.metadata, spec: v1::WebSpec { replicas: old.spec.size } }
//! #   }
//! # }
//! # impl From<v1::Web> for v1alpha1::Web {
//! #   fn from(new: v1::Web) -> Self {
//! #       Self { metadata: new.metadata, spec: v1alpha1::WebSpec { size: new.spec.replicas } }
//! #   }
//! # }
//! // In a test:
//! steersman_webhook::testing::round_trips::<v1::Web, v1alpha1::Web>(256, 7).unwrap();
//! ```

mod generate;

use kube::CustomResourceExt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use steersman_cluster::Kind;
use steersman_core::Random;

/// A conversion loses or changes data, or does not accept an object that its schema permits.
#[derive(Debug, thiserror::Error)]
#[error(
    "{from} -> {to} -> {from} changes an object (seed {seed}, case {case})\nbefore: {before}\nafter:  {after}"
)]
pub struct RoundTripError {
    from: String,
    to: String,
    seed: u64,
    case: u32,
    before: Value,
    after: String,
}

/// Converts `cases` generated objects from the hub to the spoke and back, and as many from the spoke to the hub and back.
///
/// Objects are generated from the schemas, so they have all fields, some fields or none, and every variant of an enum. The same
/// seed generates the same objects.
///
/// # Errors
/// If an object is different afterwards, or cannot be decoded. The error has the object.
pub fn round_trips<H, S>(cases: u32, seed: u64) -> Result<(), RoundTripError>
where
    H: Kind + CustomResourceExt + Serialize + From<S>,
    S: Kind + CustomResourceExt + Serialize + From<H>,
{
    there_and_back::<H, S>(cases, seed)?;
    there_and_back::<S, H>(cases, seed)
}

fn there_and_back<A, B>(cases: u32, seed: u64) -> Result<(), RoundTripError>
where
    A: Kind + CustomResourceExt + Serialize + From<B>,
    B: Kind + Serialize + From<A>,
{
    let random = Random::from_seed(seed);
    let versions = A::crd().spec.versions;
    let schema = versions
        .into_iter()
        .find_map(|version| version.schema?.open_api_v3_schema);
    let schema = schema.unwrap_or_default();
    for case in 0..cases {
        let mut object = generate::value(&schema, &random);
        object["apiVersion"] = json!(A::api_version(&()));
        object["kind"] = json!(A::kind(&()));
        object["metadata"] = json!({"name": "generated", "namespace": "default"});
        let failed = |before: &Value, after: String| RoundTripError {
            from: A::api_version(&()).into_owned(),
            to: B::api_version(&()).into_owned(),
            seed,
            case,
            before: before.clone(),
            after,
        };
        // Decoded and encoded once: the type can normalise an object, and the conversion is not responsible for it.
        let first: A = decode(&object).map_err(|error| failed(&object, error))?;
        let before = json!(first);
        let first: A = decode(&before).map_err(|error| failed(&object, error))?;
        let after = json!(A::from(B::from(first)));
        if before["spec"] != after["spec"] || before["status"] != after["status"] {
            return Err(failed(&before, after.to_string()));
        }
    }
    Ok(())
}

fn decode<K: DeserializeOwned>(object: &Value) -> Result<K, String> {
    serde_path_to_error::deserialize(object).map_err(|error| format!("cannot be decoded: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kinds::{v1, v1alpha1};

    mod lossy {
        use kube::CustomResource;
        use schemars::JsonSchema;
        use serde::{Deserialize, Serialize};

        #[derive(CustomResource, Clone, Debug, Deserialize, Serialize, JsonSchema)]
        #[kube(group = "example.com", version = "v0", kind = "Web", namespaced)]
        pub(super) struct WebSpec {}
    }

    impl From<v1::Web> for lossy::Web {
        fn from(web: v1::Web) -> Self {
            Self {
                metadata: web.metadata,
                spec: lossy::WebSpec {},
            }
        }
    }

    impl From<lossy::Web> for v1::Web {
        fn from(web: lossy::Web) -> Self {
            let spec = v1::WebSpec {
                image: String::new(),
                replicas: None,
            };
            Self {
                metadata: web.metadata,
                spec,
            }
        }
    }

    // R107
    #[test]
    fn finds_a_lossy_conversion_and_accepts_a_lossless_one() {
        round_trips::<v1::Web, v1alpha1::Web>(100, 1).unwrap();
        let error = round_trips::<v1::Web, lossy::Web>(100, 1).unwrap_err();
        let message = error.to_string();
        let expected = "example.com/v1 -> example.com/v0 -> example.com/v1 changes an object (seed 1, case ";
        assert!(message.starts_with(expected), "{message}");
    }
}
