// SPDX-License-Identifier: Apache-2.0
//! Polls for conditions that have no notification.

use std::time::Duration;

use tokio::time;

/// Default timeout.
const LIMIT: Duration = Duration::from_secs(30);

/// Polling interval.
const AGAIN: Duration = Duration::from_millis(5);

/// Polls `look` until it returns a value, and returns that value.
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
/// After 30 s without a value; the message contains `what`.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(LIMIT, what, look).await
}

/// Polls `look` until it returns a value, like [`eventually`], with a custom timeout.
///
/// # Panics
/// After `limit` without a value; the message contains `what`.
pub async fn eventually_within<T>(
    limit: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            time::sleep(AGAIN).await;
        }
    };
    match time::timeout(limit, looking).await {
        Ok(seen) => seen,
        Err(_) => panic!("this was not seen within {limit:?}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // D27
    #[tokio::test(start_paused = true)]
    async fn looks_as_long_as_the_caller_allows() {
        let began = time::Instant::now();
        let long = Duration::from_secs(300);
        let late = async || (began.elapsed() >= Duration::from_secs(200)).then_some(());
        eventually_within(long, "something late", late).await;

        let short = Duration::from_secs(1);
        #[expect(clippy::disallowed_methods, reason = "the panic of a task is caught")]
        let never = tokio::spawn(eventually_within(short, "a unicorn", async || None::<()>));
        let panic = never.await.unwrap_err().into_panic();
        let said = panic.downcast_ref::<String>().unwrap();
        assert_eq!(said, "this was not seen within 1s: a unicorn");
    }
}
