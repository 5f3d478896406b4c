//! A budget of language-model tokens: each call reserves tokens for the longest possible answer, and is afterwards
//! charged for the actual number.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::{AcquireError, Keyed, TokenBucket};

type Budget = Arc<Keyed<TokenBucket, Arc<ManualClock>>>;

/// Calls the model and returns the number of charged tokens.
fn call_model(
    budget: &Budget,
    customer: &str,
    prompt: u64,
    longest: u64,
    answer: u64,
) -> Result<Option<u64>, AcquireError> {
    // Waits up to two seconds for the tokens. Fails immediately if the tokens cannot be available in that time.
    let patience = Duration::from_secs(2);
    let held = budget.acquire(customer, prompt + longest).within(patience).wait_held()?;
    // If the call panics or takes longer than half a minute, all reserved tokens count as used.
    let reserved = held.expires_after(Duration::from_secs(30));
    Ok(reserved.commit(prompt + answer))
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(ManualClock::default());
    let per_customer = TokenBucket::new("60k/m".parse()?, 10_000)?;
    let budget = Arc::new(Keyed::with_clock(per_customer, 1_000, Arc::clone(&clock))?);
    let left = || budget.report("acme", 1).remaining;

    // Reserves 500 prompt tokens and up to 4,000 answer tokens. The answer has 300 tokens, so 800 are charged.
    assert_eq!((call_model(&budget, "acme", 500, 4_000, 300)?, left()), (Some(800), 9_200));
    // A call that uses more than its reservation is charged in full, if necessary as debt.
    assert_eq!((call_model(&budget, "acme", 500, 1_000, 2_500)?, left()), (Some(3_000), 6_200));

    // A call that cannot start in time reserves nothing.
    let refused = call_model(&budget, "acme", 1_000, 8_000, 0);
    assert!(matches!(refused, Err(AcquireError::TooLate { .. })) && left() == 6_200);
    assert_eq!(call_model(&budget, "acme", 8_000, 8_000, 0), Err(AcquireError::NeverFits));

    // A reservation that is not settled counts as used after it expires.
    let lost = budget.acquire("acme", 1_000).wait_held()?.expires_after(Duration::from_secs(30));
    clock.advance(Duration::from_secs(30));
    assert_eq!(lost.commit(10), None);
    Ok(())
}
