//! Conformance suite for stores.
//!
//! A store conforms if all cases pass unchanged. The cases use only the [`Store`] contract. To let time pass, a case
//! advances a manual clock or sleeps. With a real clock, the cases assume that a few calls take less than a
//! [unit](Subject::unit), and they make fewer exact comparisons.
//!
//! ```ignore
//! tollgate_testkit::store_conformance!(run);
//!
//! fn run(case: impl AsyncFnOnce(&mut MySubject)) {
//!     block_on(async { case(&mut MySubject::new().await).await });
//! }
//! ```

#![allow(clippy::unwrap_used, reason = "a store failure here ends the test")]

mod change;
mod groups;
mod harness;
mod limits;
mod time;
mod undo;

use tollgate_core::Nanos;
use tollgate_engine::Store;

pub use change::*;
pub use groups::*;
pub use limits::*;
pub use time::*;
pub use undo::*;

/// A store under test with its clock.
pub trait Subject {
    /// Type of the store.
    type Store: Store;

    /// Returns the store.
    fn store(&self) -> &Self::Store;

    /// Returns a duration that is longer than a few calls take, and short enough that a test can wait for it several
    /// times.
    fn unit(&self) -> Nanos;

    /// Returns whether the store's clock stands still between calls.
    fn is_time_frozen(&self) -> bool;

    /// Returns the resolution of the store's clock.
    fn tick(&self) -> Nanos;

    /// Returns the algorithms that the store refuses: `sliding log`, `concurrency`, `leaky bucket`, `interval bucket`
    /// or `calendar window`. A case skips these algorithms or uses others instead. A case that is only about refused
    /// algorithms does nothing.
    fn refused_algorithms(&self) -> &'static [&'static str] {
        &[]
    }

    /// Advances the store's clock, or sleeps if the clock is real.
    fn wait(&mut self, length: Nanos) -> impl Future<Output = ()>;
}

/// Defines a test for each case. A case is an async function. `$run` receives the case, creates a subject and runs
/// the case on the subject.
///
/// With `in_threads`, runs all cases concurrently in the calling test, for stores that are expensive to start. `$run`
/// then also takes the value of the variable `$of` and the name of the case.
#[macro_export]
macro_rules! store_conformance {
    (in_threads $of:ident, $run:path) => {
        $crate::store_conformance! { cases (in_threads $of) $run }
    };
    (cases $how:tt $run:path) => {
        $crate::store_conformance! {
            $how $run:
            group_is_charged_all_or_none
            refused_group_answers_each_charge
            groups_of_a_batch_are_independent
            later_group_sees_earlier_group
            charges_up_to_an_amount_all_take_the_least
            large_groups_and_unusual_keys_are_decided
            concurrent_callers_get_no_more_than_the_limit
            every_algorithm_counts_to_its_limit
            costs_are_counted
            several_limits_on_one_key_decide_as_one
            reports_come_in_the_order_of_the_limits
            up_to_and_regardless_take_less_and_more
            leaky_bucket_returns_delays
            log_keeps_minimum_gap_and_counts_refusals_if_configured
            used_amount_is_restored_over_time
            advertised_wait_is_true
            lost_lease_expires
            given_windows_must_contain_the_store_time
            answers_carry_the_store_time
            peek_changes_nothing
            refund_returns_the_charge
            lease_is_released_once
            lease_is_renewed_while_held
            refund_applies_only_to_its_window
            refunds_of_a_group_are_independent
            reset_affects_one_key
            changed_parameters_keep_the_amount_spent
            another_algorithm_keeps_the_amount_spent
            more_and_fewer_limits_keep_the_amount_spent
            ordinary_parameters_are_accepted
        }
    };
    ((in_threads $of:ident) $run:path: $($case:ident)*) => {
        std::thread::scope(|scope| {
            $(scope.spawn(|| $run(&$of, stringify!($case), async |subject| $crate::conformance::$case(subject).await));)*
        })
    };
    ((each) $run:path: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $run(async |subject| $crate::conformance::$case(subject).await);
            }
        )*
    };
    // This arm must be last. Before the other arms, it would parse their opening parenthesis as a path, which is a
    // compile error.
    ($run:path) => {
        $crate::store_conformance! { cases (each) $run }
    };
}
