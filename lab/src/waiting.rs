//! The one place of the lab that waits: for programs of others, which say nothing when they are ready.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const BETWEEN: Duration = Duration::from_millis(10);

/// Looks again and again until there is something.
///
/// # Errors
/// A look fails, or nothing is there in time; `what` is what was waited for.
pub(crate) fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = now() + within;
    loop {
        if let Some(found) = look().with_context(|| format!("waiting for {what}"))? {
            return Ok(found);
        }
        if now() > end {
            bail!("waited {} s for {what}", within.as_secs());
        }
        pause(BETWEEN);
    }
}

/// The place's clock.
#[expect(clippy::disallowed_methods, reason = "what others do is bounded and measured")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Until the next look.
#[expect(clippy::disallowed_methods, reason = "there is no descriptor to wait for")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_given_and_what_does_not_is_named() {
        let mut looks = 0;
        let found = until("three", Duration::from_secs(5), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.ok(), Some(3));
        let none: Result<()> = until("nothing", Duration::ZERO, || Ok(None));
        assert!(none.is_err_and(|error| error.to_string().contains("nothing")));
    }
}
