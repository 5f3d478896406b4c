//! Requests from one node to the home of a key, and the answers.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Now, Outcome, Report, Stamps};

use crate::NodeId;
use crate::homes::{Homes, Hop, Route, Unavailable};
use crate::table::{Charge, DecidedCharge, LimitsCache, SharedLimits, Table, Verb};
use crate::wire;
use crate::wire::limits::EncodedLimits;

/// A group of charges that all have the same home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Identifies the request in its answer.
    pub id: u64,
    /// How far the request has travelled when it reaches the receiver.
    pub hop: Hop,
    /// Operation to perform on the charges.
    pub verb: Verb,
    /// The charges, at most [`Ask::MAX_CHARGES`].
    pub charges: Vec<AskCharge>,
}

/// One charge in an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskCharge {
    /// Fingerprint of the key.
    pub key: Fingerprint,
    /// Limits of the key's rule.
    pub limits: EncodedLimits,
    /// Amount to charge.
    pub amount: Amount,
    /// Stamps of the charge to undo, for a refund.
    pub stamps: Option<Stamps>,
}

/// An [`Ask`] with one charge, borrowed from its frame or from the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleAsk<'a> {
    pub(crate) id: u64,
    pub(crate) hop: Hop,
    pub(crate) verb: Verb,
    pub(crate) key: Fingerprint,
    /// Encoded limits of the key's rule.
    pub(crate) limits: &'a [u8],
    pub(crate) amount: Amount,
    pub(crate) stamps: Option<Stamps>,
}

/// The answers to the charges of an [`Ask`]. Most asks have one charge, whose answer needs no allocation.
pub type ChargeAnswers = SmallVec<[ChargeAnswer; 1]>;

/// The home's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The `id` of the [`Ask`].
    pub id: u64,
    /// One answer per charge, in order.
    pub result: Result<ChargeAnswers, UndecidedReason>,
}

/// The answer to one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeAnswer {
    /// The outcome of this charge, regardless of the other charges in the group.
    pub outcome: Outcome,
    /// Amount taken, or amount accepted as a refund.
    pub taken: Cost,
    /// Stamps that undo the charge exactly.
    pub stamps: Stamps,
    /// One report per limit.
    pub reports: SmallVec<[Report; 2]>,
}

impl ChargeAnswer {
    /// Returns the answer to a decided charge of `cost`.
    pub(crate) fn new(decided: &DecidedCharge<'_>, cost: Cost) -> Self {
        let verdict = decided.verdict();
        let reports = decided.reports(cost);
        Self { outcome: verdict.outcome(), taken: verdict.taken(), stamps: verdict.stamp(), reports }
    }

    /// Clears the amount taken and the stamps. Used for peeks and refused groups, which take nothing.
    pub(crate) fn clear_taken(&mut self) {
        (self.taken, self.stamps) = (Cost::ZERO, Stamps::default());
    }
}

/// Reason why a group was not decided. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndecidedReason {
    /// The asked node does not see a majority of the nodes.
    Minority,
    /// The asked node has no link to a ready node.
    NoHome,
    /// The limits use an algorithm that nodes cannot share.
    BadLimits,
}

/// Result of [`receive_ask`].
#[derive(Debug)]
pub enum AskAction {
    /// Send this answer.
    Answer {
        /// Answer for the asking node.
        answer: Answer,
        /// Whether the mesh should send a delta immediately; see
        /// [`GroupOutcome::urgent`](crate::table::GroupOutcome::urgent).
        urgent: bool,
    },
    /// Forward the request to this node under a new id, and relay its answer.
    Forward(NodeId, Ask),
}

impl Ask {
    /// Maximum number of charges in a group.
    pub const MAX_CHARGES: usize = 256;
}

/// Decides a request from another node, or forwards it.
pub fn receive_ask(homes: &Homes, table: &Table, now: &Now<'_>, ask: Ask) -> AskAction {
    let refused = |refusal| AskAction::Answer { answer: Answer { id: ask.id, result: Err(refusal) }, urgent: false };
    let Some(first) = ask.charges.first() else {
        return AskAction::Answer { answer: Answer { id: ask.id, result: Ok(ChargeAnswers::new()) }, urgent: false };
    };
    match homes.route(first.key, ask.hop) {
        Route::Here => {}
        Route::To(node) => return AskAction::Forward(node, Ask { hop: Hop::Last, ..ask }),
        Route::Unavailable(Unavailable::Minority) => return refused(UndecidedReason::Minority),
        Route::Unavailable(Unavailable::NoHome) => return refused(UndecidedReason::NoHome),
    }
    let limits: Result<Vec<Arc<SharedLimits>>, String> =
        ask.charges.iter().map(|charge| table.intern_encoded_limits(&charge.limits)).collect();
    let Ok(limits) = limits else { return refused(UndecidedReason::BadLimits) };
    let charges: Vec<Charge<'_>> = ask
        .charges
        .iter()
        .zip(&limits)
        .map(|(charge, limits)| Charge { key: charge.key, limits, ask: charge.amount, stamps: charge.stamps })
        .collect();
    let mut answers = ChargeAnswers::with_capacity(charges.len());
    let decided = table.decide(now, ask.verb, &charges, |index, decided| {
        answers.push(ChargeAnswer::new(decided, charges[index].ask.cost()));
    });
    AskAction::Answer { answer: Answer { id: ask.id, result: Ok(answers) }, urgent: decided.urgent }
}

/// Fast path of [`receive_ask`]: decides an ask with one charge whose home is this node, and appends the frame of its
/// answer to `out`. Returns whether the mesh should send a delta immediately. `None`: the fast path does not apply and
/// nothing has changed; call [`receive_ask`].
///
/// Deciding the ask and encoding its answer takes 1,440 instructions, and 3,136 if [`Table::try_check_same_limits`] does
/// not apply. [`receive_ask`] takes 3,886, and encoding and queuing its answer takes another 754 (callgrind, without
/// link-time optimisation).
pub(crate) fn try_receive_single(
    homes: &Homes,
    table: &Table,
    cache: &mut LimitsCache,
    now: &Now<'_>,
    ask: &SingleAsk<'_>,
    out: &mut Vec<u8>,
) -> Option<bool> {
    if homes.route(ask.key, ask.hop) != Route::Here {
        return None;
    }
    let limits = cache.get(table, ask.limits)?;
    let charge = Charge { key: ask.key, limits, ask: ask.amount, stamps: ask.stamps };
    let mut encode = |decided: &DecidedCharge<'_>| {
        wire::encode_single_answer(ask.id, &ChargeAnswer::new(decided, ask.amount.cost()), out);
    };
    let fast = if ask.verb == Verb::Check { table.try_check_same_limits(now, &charge, &mut encode) } else { None };
    Some(fast.unwrap_or_else(|| table.decide(now, ask.verb, &[charge], |_, decided| encode(decided)).urgent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::Reach;
    use crate::table::DrainedCharges;
    use crate::wire::Frame;
    use crate::wire::limits::encode_limits;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tollgate::fingerprint::Secret;
    use tollgate_core::{FixedWindow, Limit, Limits, Nanos, SlidingSlices, SlidingWindow, TokenBucket};

    fn encoded_limits() -> [EncodedLimits; 7] {
        let bucket = TokenBucket::new("2/s".parse().unwrap(), 5).unwrap();
        let initial = Limit::from(bucket.initial(2).unwrap());
        let window = Limit::from(SlidingWindow::new(4, Nanos::SECOND).unwrap());
        let fixed = Limit::from(FixedWindow::new(4, Nanos::SECOND).unwrap());
        let slices = Limit::from(SlidingSlices::new(9, Nanos::SECOND, Nanos::from_millis(500)).unwrap());
        let both = encode_limits(&Limits::new([bucket.into(), window]).unwrap());
        let [bucket, initial, window, fixed, slices] =
            [bucket.into(), initial, window, fixed, slices].map(|limit: Limit| encode_limits(&limit.into()));
        [bucket, initial, window, fixed, slices, both, EncodedLimits::from_slice(&[9, 9])]
    }

    /// Handles the frame of an ask as a link does. Returns the frame to send, and whether a delta should be sent
    /// immediately. Tries the fast path first if `fast` is set.
    fn handle_ask_frame(
        fast: bool,
        homes: &Homes,
        table: &Table,
        cache: &mut LimitsCache,
        at: u64,
        frame: &[u8],
    ) -> Vec<u8> {
        let (now, mut out) = (Now::at(at), Vec::new());
        let single = if fast { wire::decode_single_ask(frame) } else { None };
        if let Some(ask) = single
            && let Some(urgent) = try_receive_single(homes, table, cache, &now, &ask, &mut out)
        {
            out.push(urgent.into());
            return out;
        }
        let Ok(Some((Frame::Ask(ask), _))) = wire::decode(frame) else { panic!("not an ask: {frame:?}") };
        match receive_ask(homes, table, &now, ask) {
            AskAction::Answer { answer, urgent } => {
                wire::encode(&Frame::Answer(answer), &mut out);
                out.push(urgent.into());
            }
            AskAction::Forward(node, ask) => {
                out.extend(node.0.to_le_bytes());
                wire::encode(&Frame::Ask(ask), &mut out);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn fast_path_answers_like_the_slow_path(
            asks in vec((0..5u64, 0..7usize, 0..6usize, 0..3u8, 0..7u64, any::<bool>(), 0..400_000_000u64), 1..60),
            // In some cases, each key keeps its limits, and most asks are checks.
            has_few_changes in any::<bool>(),
            has_majority in prop::bool::weighted(0.9),
            is_refunded in any::<bool>(),
        ) {
            let candidates = vec![(NodeId(1), Reach::Own), (NodeId(2), Reach::Linked)];
            let homes = Homes::new(NodeId(1), candidates, 2, has_majority);
            let tables = [(); 2].map(|()| Table::new(100, Secret::from_points([1, 2])));
            let (codes, mut caches, mut at) = (encoded_limits(), [(); 2].map(|()| LimitsCache::default()), 0);
            for (id, (number, code, verb, kind, cost, is_last, pause)) in asks.into_iter().enumerate() {
                at += pause;
                let (code, verb) = if has_few_changes { (number as usize, verb.saturating_sub(3)) } else { (code, verb) };
                let verbs = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Reset, Verb::Hold, Verb::Undo];
                let cost = Cost::new(cost);
                let amount = [Amount::Exactly(cost), Amount::UpTo(cost), Amount::Regardless(cost)][usize::from(kind)];
                let key = Fingerprint::from_parts(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number as u32);
                let (id, hop) = (id as u64, if is_last { Hop::Last } else { Hop::FromOrigin });
                let stamps = is_refunded.then(Stamps::default);
                let (verb, limits) = (verbs[verb], codes[code].clone());
                let mut single = Vec::new();
                let borrowed = SingleAsk { id, hop, verb, key, limits: &limits, amount, stamps };
                wire::encode_single_ask(&borrowed, &mut single);
                let (charges, mut frame) = (vec![AskCharge { key, limits, amount, stamps }], Vec::new());
                wire::encode(&Frame::Ask(Ask { id, hop, verb, charges }), &mut frame);
                prop_assert_eq!(&single, &frame);
                let [fast, slow] = [true, false].map(|fast| {
                    let index = usize::from(fast);
                    handle_ask_frame(fast, &homes, &tables[index], &mut caches[index], at, &frame)
                });
                prop_assert_eq!(fast, slow);
            }
            let [fast, slow] = tables.map(|table| {
                let mut drained = DrainedCharges::default();
                table.drain(usize::MAX, &mut drained);
                let mut charges: Vec<_> = drained.items.iter().map(|(limits, item)| (item.key, limits.encoded(), item.cost)).collect();
                charges.sort_unstable();
                format!("{:?} {:?} {charges:?}", drained.taken_at, drained.resets)
            });
            prop_assert_eq!(fast, slow, "both paths broadcast the same charges");
        }
    }
}
