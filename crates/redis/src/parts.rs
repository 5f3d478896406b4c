//! Splits a group whose keys are on several cluster servers into parts, merges the replies, and refunds parts.

use std::time::Duration;

use tollgate_core::{Ask, Cost, Limit, Outcome, Report, Stamps, Time, Wall};
use tollgate_engine::store::{Answer, Answers, Charge, Group, StoreError, StoreVerb};

use crate::answer::ReplyReader;
use crate::batcher::ReplyPart;

/// The answer to one charge.
#[derive(Clone, Debug)]
pub(crate) struct ChargeAnswer {
    pub(crate) outcome: Outcome,
    pub(crate) taken: Cost,
    pub(crate) stamps: Stamps,
    pub(crate) reports: Vec<Report>,
}

/// The answer to one part of a group.
#[derive(Debug)]
pub(crate) struct PartAnswer {
    pub(crate) charges: Vec<ChargeAnswer>,
    pub(crate) at: Time<Wall>,
}

impl PartAnswer {
    /// Decodes the reply to a part.
    pub(crate) fn read(group: &Group<'_>, reply: Result<ReplyPart, StoreError>) -> Result<Self, StoreError> {
        let part = reply?;
        let mut answers = Answers::default();
        if ReplyReader::new(part.bytes(), part.now, part.script_kind).read(group, &mut answers).is_err() {
            return Err(StoreError::Unknown { why: "the reply of the script is too short".to_owned() });
        }
        let group = answers.group(0)?;
        let charge = |answer: &Answer| ChargeAnswer {
            outcome: answer.outcome,
            taken: answer.taken,
            stamps: group.stamps(answer),
            reports: group.reports(answer).to_vec(),
        };
        Ok(Self { charges: group.charges().iter().map(charge).collect(), at: group.decided_at() })
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.charges.iter().all(|charge| charge.outcome.is_admitted())
    }

    /// Returns an answer in which the part took nothing. Used for a part without a reply if another part refuses the
    /// group.
    pub(crate) fn without_charge(part: &Part<'_>) -> Self {
        let nothing =
            ChargeAnswer { outcome: Outcome::Allow, taken: Cost::ZERO, stamps: Stamps::default(), reports: Vec::new() };
        Self { charges: vec![nothing; part.charges.len()], at: Time::ZERO }
    }
}

/// The answer to a group that spans several lanes.
#[derive(Debug)]
pub(crate) struct MergedAnswer {
    pub(crate) charges: Vec<ChargeAnswer>,
    pub(crate) at: Time<Wall>,
}

impl MergedAnswer {
    /// Adds this answer to `answers`.
    pub(crate) fn add_to(self, answers: &mut Answers) {
        for charge in self.charges {
            answers.push_answer(charge.outcome, charge.taken, charge.stamps, charge.reports);
        }
        answers.end_group(self.at);
    }
}

/// The charges of a group that are in one lane.
#[derive(Clone)]
pub(crate) struct Part<'a> {
    pub(crate) lane: u8,
    /// The verb in the first round.
    pub(crate) verb: StoreVerb,
    /// Positions of the charges in the group.
    pub(crate) indexes: Vec<usize>,
    pub(crate) charges: Vec<Charge<'a>>,
}

impl<'a> Part<'a> {
    pub(crate) fn to_group(&self, verb: StoreVerb) -> Group<'_> {
        Group { verb, charges: &self.charges }
    }

    /// Returns refunds for everything that this part took.
    pub(crate) fn refunds_of<'b>(&'b self, answer: &'b PartAnswer) -> impl Iterator<Item = Refund<'b>> {
        let charges = self.charges.iter().zip(&answer.charges).filter(|_| answer.is_admitted());
        let took = charges.filter(|(_, answer)| answer.taken > Cost::ZERO);
        took.map(|(charge, one)| Refund {
            lane: self.lane,
            taken_at: answer.at,
            charge: Charge { ask: Ask::Exactly(one.taken), stamps: Some(&one.stamps), ..*charge },
        })
    }

    /// Splits the part into one part per charge, with this verb.
    pub(crate) fn split_by_charge(&self, verb: StoreVerb) -> impl Iterator<Item = Part<'a>> {
        let each = self.indexes.iter().zip(&self.charges);
        each.map(move |(index, charge)| Part { lane: self.lane, verb, indexes: vec![*index], charges: vec![*charge] })
    }
}

/// A refund of one charge of a part.
pub(crate) struct Refund<'a> {
    pub(crate) lane: u8,
    /// Store time of the original charge.
    pub(crate) taken_at: Time<Wall>,
    pub(crate) charge: Charge<'a>,
}

impl Refund<'_> {
    pub(crate) fn to_group(&self) -> Group<'_> {
        Group { verb: StoreVerb::Refund, charges: std::slice::from_ref(&self.charge) }
    }

    /// Returns the store time in microseconds after which the store ignores the refund. Only buckets need such a time:
    /// windows and logs already ignore expired amounts, and a lease is held until it is released.
    pub(crate) fn ignored_after(&self, deadline: Duration) -> Option<u64> {
        let limits = self.charge.limits;
        let is_bucket =
            |limit: &Limit| matches!(limit, Limit::TokenBucket(_) | Limit::LeakyBucket(_) | Limit::IntervalBucket(_));
        let refills = !limits.has_concurrency_limit() && limits.as_slice().iter().any(is_bucket);
        refills.then(|| self.taken_at.saturating_add((2 * deadline).into()).as_nanos() / 1_000)
    }
}

/// Splits a group into parts, in ascending order of lanes. `lane_of` returns the lane of a partition key.
///
/// If a check spans several lanes and some of its keys are suspects (`is_suspect`), only the parts with suspects take
/// in the first round. The other parts only peek.
pub(crate) fn split_into_parts<'a>(
    group: &Group<'a>,
    lane_of: impl Fn(&[u8]) -> u8,
    is_suspect: impl Fn(&[u8]) -> bool,
) -> Vec<Part<'a>> {
    let (verb, charges) = (group.verb, group.charges);
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(1);
    for (index, charge) in charges.iter().enumerate() {
        let lane = lane_of(charge.partition_key());
        match parts.iter_mut().find(|part| part.lane == lane) {
            Some(part) => {
                part.indexes.push(index);
                part.charges.push(*charge);
            }
            None => parts.push(Part { lane, verb, indexes: vec![index], charges: vec![*charge] }),
        }
    }
    parts.sort_by_key(|part| part.lane);
    if verb == StoreVerb::Check && parts.len() > 1 {
        let suspects: Vec<bool> =
            parts.iter().map(|part| part.charges.iter().any(|charge| is_suspect(charge.key))).collect();
        if suspects.contains(&true) {
            let others = parts.iter_mut().zip(&suspects).filter(|(_, is_suspect)| !**is_suspect);
            others.for_each(|(part, _)| part.verb = StoreVerb::Peek);
        }
    }
    parts
}

/// Merges the answers of all parts, in the order of the group.
pub(crate) fn merge_answers(parts: &[Part<'_>], answers: Vec<PartAnswer>) -> MergedAnswer {
    let at = answers.iter().map(|answer| answer.at).max().unwrap_or(Time::ZERO);
    let placed = parts.iter().zip(answers).flat_map(|(part, answer)| part.indexes.iter().copied().zip(answer.charges));
    let mut placed: Vec<(usize, ChargeAnswer)> = placed.collect();
    placed.sort_by_key(|(index, _)| *index);
    MergedAnswer { charges: placed.into_iter().map(|(_, charge)| charge).collect(), at }
}
