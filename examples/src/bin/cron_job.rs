// SPDX-License-Identifier: Apache-2.0
//! Runs the operator of [`steersman_examples::cron_job`] on the cluster of `KUBECONFIG`, or the one that it runs in.

#[tokio::main]
async fn main() -> Result<(), steersman::Error> {
    steersman_examples::cron_job::program().run().await
}
