//! Tests that the protocols hold on every seed, and that the simulators find deliberate defects.

use super::{lease, parts, peers, run_seeds, shares, tally};

#[test]
fn leases_admit_nothing_beyond_the_limit() {
    run_seeds(200, |seed| lease::LeaseSimulation::draw(seed, lease::LeaseDefect::None).run().map(drop));
}

#[test]
fn eventual_tally_counts_once_and_stays_within_its_excess() {
    run_seeds(200, |seed| tally::TallySimulation::draw(seed, tally::TallyDefect::None).run().map(drop));
}

#[test]
fn groups_over_places_are_all_or_none() {
    run_seeds(200, |seed| parts::PartsSimulation::draw(seed, parts::PartsDefect::None).run());
}

#[test]
fn shares_of_nodes_without_the_store_stay_within_their_excess() {
    run_seeds(500, |seed| shares::SharesSimulation::draw(seed, shares::SharesDefect::None).run().map(drop));
}

#[test]
fn peers_apply_every_delta_once_and_stay_within_their_excess() {
    run_seeds(300, |seed| peers::PeersSimulation::draw(seed, peers::PeersDefect::None).run().map(drop));
}

#[test]
fn planted_defects_of_peers_are_found() {
    let defects = [
        peers::PeersDefect::VectorAfterWalk,
        peers::PeersDefect::MinorityStrikes,
        peers::PeersDefect::OldDeltaMakesDebt,
        peers::PeersDefect::GroupNotUndone,
    ];
    for defect in defects {
        let found = (0..150).filter(|seed| peers::PeersSimulation::draw(*seed, defect).run().is_err()).count();
        println!("{defect:?}: found by {found} of 150 seeds");
        assert!(found > 0, "{defect:?} is not found");
    }
}

/// Prints the table of simulated traffic in ARCHITECTURE.md: `cargo test -p tollgate-testkit --lib -- --ignored
/// --nocapture traffic_of_peers`.
#[test]
#[ignore = "slow: prints a table for the documents"]
fn traffic_of_peers() {
    use peers::traffic::{REQUESTS_PER_SECOND, TRAFFIC_SECONDS, measure_traffic_and_excess};
    println!(
        "| nodes | messages per second and node | KiB per second and node | bytes per request and other node | largest excess | its bound |"
    );
    println!("|---|---|---|---|---|---|");
    for nodes in [3, 10, 30, 100] {
        let (traffic, burst) = measure_traffic_and_excess(nodes).unwrap();
        let per_node = TRAFFIC_SECONDS * nodes as u64;
        let peers = REQUESTS_PER_SECOND * per_node * (nodes as u64 - 1);
        println!(
            "| {nodes} | {} | {} | {:.1} | {} | {} |",
            traffic.frames / per_node,
            traffic.bytes / per_node / 1_024,
            traffic.bytes as f64 / peers as f64,
            burst.excess,
            burst.bound
        );
    }
}

/// A simulator that misses these deliberate defects would prove nothing.
#[test]
fn planted_defects_are_found() {
    let found = |runs: &dyn Fn(u64) -> bool| (0..100).filter(|seed| runs(*seed)).count();
    let lease = |defect| found(&|seed| lease::LeaseSimulation::draw(seed, defect).run().is_err());
    let tally = |defect| found(&|seed| tally::TallySimulation::draw(seed, defect).run().is_err());
    let parts = |defect| found(&|seed| parts::PartsSimulation::draw(seed, defect).run().is_err());
    let shares = |defect| found(&|seed| shares::SharesSimulation::draw(seed, defect).run().is_err());
    let counts = [
        ("a pool that refills leased tokens", lease(lease::LeaseDefect::RefillsLeasedTokens)),
        ("a merge applied twice", tally(tally::TallyDefect::MergedTwice)),
        ("a payload that is not resent", tally(tally::TallyDefect::NotResent)),
        ("a refund applied twice", parts(parts::PartsDefect::RefundedTwice)),
        ("a new share at every fault", shares(shares::SharesDefect::ShareAtEveryFault)),
        ("arrears that are not charged", shares(shares::SharesDefect::NoArrears)),
    ];
    for (defect, count) in counts {
        println!("{defect}: found by {count} of 100 seeds");
        assert!(count > 0, "{defect} is not found");
    }
}

/// Shows that, with demand above the limit, nodes use nearly the whole limit with few calls to the store.
#[test]
fn leases_need_few_calls_and_use_nearly_the_whole_limit() {
    for (nodes, demand) in [(3, 200), (3, 105), (10, 200), (10, 105)] {
        let outcome = lease::LeaseSimulation::with_steady_demand(1, 1_000, 1_000, nodes, demand).run().unwrap();
        let possible = outcome.requested.min(1_000 + 60 * 1_000);
        println!(
            "{nodes} nodes, demand {demand} %: {}/1000 calls per admitted request, {}/1000 of the possible amount",
            outcome.calls * 1_000 / outcome.requests.max(1),
            outcome.admitted * 1_000 / possible
        );
        assert!(outcome.admitted * 100 >= possible * 97, "{nodes} nodes at {demand} %: {outcome:?}");
        let most = if nodes == 3 { 25 } else { 60 };
        assert!(outcome.calls * 100 <= outcome.requests * most, "{nodes} nodes at {demand} %: {outcome:?}");
    }
}
