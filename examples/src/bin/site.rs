// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::site`] on the cluster of `KUBECONFIG`, or the one that it runs in.
//!
//! ```text
//! cargo run -p steersman-examples --bin site -- crds | kubectl apply -f -
//! cargo run -p steersman-examples --bin site -- --leader-elect --namespace default
//! ```

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    steersman_examples::site::program().run().await
}
