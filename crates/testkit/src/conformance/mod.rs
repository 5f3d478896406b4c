//! What every store must do, whatever it is made of.
//!
//! A store passes when all cases do, unchanged. They ask through the [`Store`] contract alone; of time they only demand that
//! some can pass, on a clock that is moved by hand or by really waiting. With a real clock they assume that a few calls
//! take less than a [unit](Subject::unit), and check fewer things to the tick.
//!
//! ```ignore
//! tollgate_testkit::store_conformance!(run);
//!
//! fn run(case: impl AsyncFnOnce(&mut MySubject)) {
//!     block_on(async { case(&mut MySubject::new().await).await });
//! }
//! ```

#![allow(clippy::unwrap_used, reason = "what a store fails to do here ends the test")]

mod change;
mod desk;
mod groups;
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

/// A store under test, and its time.
pub trait Subject {
    /// The store.
    type Store: Store;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// A time in which a few calls are answered for certain, and that can be waited for a few times.
    fn unit(&self) -> Nanos;

    /// Whether time stands still between calls.
    fn stands_still(&self) -> bool;

    /// The shortest time that the store's clock can tell.
    fn tick(&self) -> Nanos;

    /// Lets time pass on the store's clock.
    fn wait(&mut self, length: Nanos) -> impl Future<Output = ()>;
}

/// A test for each case. `$run` takes an async function of the subject, makes a subject and runs it.
#[macro_export]
macro_rules! store_conformance {
    ($run:path) => {
        $crate::store_conformance! {
            $run:
            all_pass_or_none_is_charged
            a_refused_group_says_who_refused
            groups_of_a_batch_are_independent
            a_later_group_sees_what_an_earlier_one_took
            large_groups_and_odd_keys_are_no_exception
            callers_at_the_same_time_get_no_more_than_there_is
            every_algorithm_counts_to_its_limit
            costs_are_weighed
            several_limits_on_one_key_decide_as_one
            reports_come_in_the_order_of_the_limits
            as_much_as_fits_and_more_than_there_is_can_be_taken
            a_leaky_bucket_tells_each_how_long_to_wait
            a_log_keeps_its_minimum_gap_and_counts_refusals_if_told_to
            what_was_used_comes_back_with_time
            the_advertised_wait_is_true
            a_lost_lease_comes_back
            windows_handed_in_are_used_and_must_fit
            the_store_tells_its_time
            peeking_changes_nothing
            a_refund_gives_back_what_was_taken
            a_lease_is_given_back_once
            a_lease_is_renewed_as_long_as_it_is_held
            a_refund_reaches_only_the_window_it_was_taken_in
            what_one_does_not_accept_another_may
            reset_forgets_one_key_and_no_other
            changed_numbers_keep_what_was_spent
            another_algorithm_keeps_what_was_spent
            more_and_fewer_limits_keep_what_was_spent
            ordinary_numbers_are_accepted
        }
    };
    ($run:path: $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $run(async |subject| $crate::conformance::$case(subject).await);
            }
        )*
    };
}
