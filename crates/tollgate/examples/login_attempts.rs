//! Five failed logins per minute and account; successful logins cost nothing.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::{Keyed, SlidingLog};

#[derive(Debug, PartialEq, Eq)]
enum Login {
    Welcome,
    WrongPassword,
    /// Returned before the password is checked, so a refused client learns nothing about the password.
    TooMany,
}

type FailureLimiter = Arc<Keyed<SlidingLog, Arc<ManualClock>>>;

fn login(failures: &FailureLimiter, account: &str, password: &str) -> Login {
    // Charged before the password is checked, so that a hundred concurrent attempts do not get a hundred guesses.
    let Ok(attempt) = failures.acquire(account, 1).at_once().wait_held() else { return Login::TooMany };
    if password == "correct horse" {
        // Dropping the attempt refunds it.
        return Login::Welcome;
    }
    attempt.forget();
    Login::WrongPassword
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(ManualClock::at(1_000_000_000));
    let limit = SlidingLog::new(5, Duration::from_secs(60))?;
    let failures = Arc::new(Keyed::with_clock(limit, 100_000, Arc::clone(&clock))?);

    assert!((0..100).all(|_| login(&failures, "alice", "correct horse") == Login::Welcome));
    assert!((0..5).all(|_| login(&failures, "alice", "guess") == Login::WrongPassword));
    assert_eq!(login(&failures, "alice", "correct horse"), Login::TooMany);
    assert_eq!(login(&failures, "bob", "correct horse"), Login::Welcome);
    clock.advance(Duration::from_secs(60));
    assert_eq!(login(&failures, "alice", "correct horse"), Login::Welcome);
    Ok(())
}
