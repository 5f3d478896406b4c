//! Tests groups of limits against the exact model of each limit. A request is charged to all limits
//! or to none.

use proptest::prelude::*;
use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Phase, Stamp, Stamps};
use tollgate_testkit::model::laws::{EqualClocks, arbitrary_state_causes_no_panic};
use tollgate_testkit::model::lockstep::Lockstep;
use tollgate_testkit::model::script::{any_number_up_to, any_rate, any_script, any_start, any_word, config_with_cases};
use tollgate_testkit::model::{
    GroupLimitParams, GroupModel, LeakyParams, LeaseParams, LogParams, TokenParams, WindowParams,
};

/// Generates a limit of any kind in [`GroupLimitParams`], with a capacity below 15.
fn any_member() -> impl Strategy<Value = GroupLimitParams> {
    let lengths = || prop_oneof![1_u64..100, any_number_up_to(1 << 50).prop_map(|n| n.max(1))];
    let buckets = (any_rate(), 1_u64..15, 0_u64..5, any::<bool>()).prop_map(|(rate, burst, max_debt, leaky)| {
        if !leaky {
            return GroupLimitParams::TokenBucket(TokenParams { rate, burst, max_debt, initial: burst });
        }
        let (free, max_wait) = (max_debt.min(burst), Nanos::MAX);
        GroupLimitParams::LeakyBucket(LeakyParams { rate, burst, free, max_wait, max_debt, initial: burst })
    });
    let windows = (1_u64..15, lengths(), 0_u64..5, 0_u8..3).prop_map(|(limit, length, max_debt, kind)| {
        let phase = if kind == 0 { Phase::FirstRequest } else { Phase::Epoch };
        let params = WindowParams { limit, length, max_debt, initial: limit, phase };
        if kind == 1 { GroupLimitParams::SlidingWindow(params) } else { GroupLimitParams::FixedWindow(params) }
    });
    let logs =
        (1_u64..15, lengths(), 0_u64..5, prop::bool::weighted(0.3)).prop_map(|(limit, length, max_debt, all)| {
            GroupLimitParams::SlidingLog(LogParams {
                limit,
                length,
                max_debt,
                initial: limit,
                gap: 0,
                count_refused: all,
            })
        });
    let leases = (1_u64..15, lengths(), 0_u64..5).prop_map(|(limit, lease, max_debt)| {
        GroupLimitParams::Concurrency(LeaseParams { limit, lease: Nanos::from_nanos(lease), max_debt })
    });
    prop_oneof![2 => buckets, 2 => windows, 1 => logs, 1 => leases].prop_filter("valid", |member| {
        // Limits with slow rates support less debt.
        member.limit().is_ok()
    })
}

fn any_group() -> impl Strategy<Value = Vec<GroupLimitParams>> {
    prop::collection::vec(any_member(), 1..5)
}

proptest! {
    #![proptest_config(config_with_cases(800))]

    /// The group decides as its definition says, and a refusal changes no word unless a log counts refusals. After
    /// each step, each limit reports the same as a separate limit after the same charges.
    #[test]
    fn group_is_charged_all_or_none(members in any_group(), start in any_start(), script in any_script(30)) {
        let limits = GroupLimitParams::limits(&members).expect("valid params");
        let mut lockstep = Lockstep::new(&limits, GroupModel::new(&members, &Now::at(start)), &EqualClocks, start);
        for step in &script {
            lockstep.run_step(step);
            let (state, model, now) = lockstep.state_and_model();
            let reports: Vec<_> = limits.reports(state, &now, Cost::ONE).collect();
            prop_assert_eq!(reports, model.reports(&now, 1));
        }
    }

    #[test]
    fn arbitrary_state_neither_panics_nor_gives_inconsistent_results(
        (members, old) in (any_group(), any_group()),
        words in prop::collection::vec(any_word(), 0..40),
        (now, cost) in (any_word(), any_word()),
        stamps in prop::collection::vec(any_word().prop_map(Stamp::from_bits), 0..10),
    ) {
        let (limits, old) = (GroupLimitParams::limits(&members).expect("valid"), GroupLimitParams::limits(&old).expect("valid"));
        for ask in [Ask::Exactly, Ask::UpTo, Ask::Regardless] {
            let stamps = Stamps::from_stamps(stamps.iter().copied());
            arbitrary_state_causes_no_panic(&limits, &old, &words, &Now::at(now), ask(Cost::new(cost)), stamps);
        }
    }

    /// A limit keeps its spent amount when other limits are appended to the group and removed again, even if its words
    /// move.
    #[test]
    fn changed_group_keeps_the_amount_spent_at_each_position(
        members in any_group(), others in any_group(), start in any_start(), cost in 0_u64..10,
    ) {
        let mut new = members.clone();
        new.extend(others);
        let (old_limits, new_limits) = (GroupLimitParams::limits(&members).expect("valid"), GroupLimitParams::limits(&new).expect("valid"));
        let now = Now::at(start);
        let mut state = vec![0; new_limits.words()];
        old_limits.init(state.as_mut_slice(), &now);
        let _ = old_limits.decide(state.as_mut_slice(), &now, Ask::UpTo(Cost::new(cost)));
        let before: Vec<_> = old_limits.reports(state.as_slice(), &now, Cost::ONE).collect();
        new_limits.convert(&old_limits, state.as_mut_slice(), &now);
        let after: Vec<_> = new_limits.reports(state.as_slice(), &now, Cost::ONE).collect();
        prop_assert_eq!(&after[..before.len()], &before[..]);
        prop_assert!(after[before.len()..].iter().all(|report| report.remaining == report.limit));
        old_limits.convert(&new_limits, state.as_mut_slice(), &now);
        let back: Vec<_> = old_limits.reports(state.as_slice(), &now, Cost::ONE).collect();
        prop_assert_eq!(back, before);
    }
}
