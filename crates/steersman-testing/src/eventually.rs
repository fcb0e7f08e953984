// SPDX-License-Identifier: Apache-2.0
//! Waiting for what nobody tells of.

use std::time::Duration;

use tokio::time;

/// So long something may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How often it is looked for.
const AGAIN: Duration = Duration::from_millis(5);

/// Looks until there is something to see, and gives it.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use steersman_testing::eventually;
///
/// let mut looks = 0;
/// let third = eventually("a third look", async || {
///     looks += 1;
///     (looks == 3).then_some(looks)
/// });
/// assert_eq!(third.await, 3);
/// # });
/// ```
///
/// # Panics
/// When nothing is there after 30 s; `what` says what was looked for.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            time::sleep(AGAIN).await;
        }
    };
    match time::timeout(LIMIT, looking).await {
        Ok(seen) => seen,
        Err(_) => panic!("this was not seen within {LIMIT:?}: {what}"),
    }
}
