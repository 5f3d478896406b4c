//! Decodes script replies. A reply contains states, from which the core functions compute the answers.

use tollgate_core::{
    Algorithm, Ask, Cost, DecodedState, Limit, Limits, Nanos, Now, Outcome, Params, Report, Retry, SlidingSlices,
    Stamp, Stamps, Time,
};
use tollgate_engine::store::{Answers, Charge, Group, StoreError, StoreVerb};

use crate::own_state::{OwnState, leases_left, read_bucket_ticks, restore_slices};
use crate::params::{EXACT_BOUND, VALUE_HEAD_BYTES, is_fixed_length, micros_ceil, state_len};
use crate::request::{OTHER_PARAMETERS_FLAG, ScriptKind, answer_contains_taken, spread_number};

/// A cursor over bytes.
#[derive(Debug)]
pub(crate) struct ByteCursor<'a>(&'a [u8]);

/// The bytes end early.
#[derive(Debug)]
pub(crate) struct TooShort;

impl<'a> ByteCursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], TooShort> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Returns the remaining bytes.
    pub(crate) fn remaining(&self) -> &'a [u8] {
        self.0
    }

    /// Reads a little-endian integer of `width` bytes, at most 8.
    pub(crate) fn take_number(&mut self, width: usize) -> Result<u64, TooShort> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(wide))
    }
}

/// Reads answers to groups from a reply.
#[derive(Debug)]
pub(crate) struct ReplyReader<'a> {
    bytes: ByteCursor<'a>,
    /// The store's time, in microseconds.
    now: u64,
    /// The script that decided the groups.
    script_kind: ScriptKind,
}

const WRONG_TYPE: &str = "the key of a limit holds another type";
const FOREIGN_VALUE: &str = "the key of a limit holds a value of another program";

impl<'a> ReplyReader<'a> {
    /// Returns a reader for part of a reply that was decided at store time `now`, in microseconds.
    pub(crate) fn new(bytes: &'a [u8], now: u64, script_kind: ScriptKind) -> Self {
        Self { bytes: ByteCursor::new(bytes), now, script_kind }
    }

    /// Reads the answer to `group`, the next group in the reply.
    pub(crate) fn read(&mut self, group: &Group<'_>, answers: &mut Answers) -> Result<(), TooShort> {
        let status = self.bytes.take(1)?[0];
        let store_time = Time::from_nanos(instant_nanos(self.now));
        let reject = |why: &str| {
            let rules: Vec<&str> = group.charges.iter().map(Charge::rule).collect();
            StoreError::Rejected { why: format!("{why} (rules: {})", rules.join(", ")) }
        };
        let has_foreign = status & OTHER_PARAMETERS_FLAG != 0;
        match status & !OTHER_PARAMETERS_FLAG {
            refused @ 0..=1 => {
                let mut is_valid = true;
                let decided = GroupDecision { verb: group.verb, admitted: refused == 0 };
                for charge in group.charges {
                    is_valid &= self.read_charge(&decided, charge, has_foreign, answers)?;
                }
                if is_valid {
                    answers.end_group(store_time);
                } else {
                    answers.fail_group(reject(FOREIGN_VALUE));
                }
            }
            2 => answers.fail_group(StoreError::Stale { store_time }),
            3 => answers.fail_group(reject(WRONG_TYPE)),
            _ => answers.fail_group(reject(FOREIGN_VALUE)),
        }
        Ok(())
    }

    /// Reads the answer to a charge. Returns whether the charge's state could be decoded.
    fn read_charge(
        &mut self,
        decided: &GroupDecision,
        charge: &Charge<'_>,
        has_foreign: bool,
        answers: &mut Answers,
    ) -> Result<bool, TooShort> {
        let refusing = self.bytes.take(1)?[0];
        let taken = match answer_contains_taken(decided.verb, charge).then(|| self.bytes.take_number(7)).transpose()? {
            // Costs are clamped to `EXACT_BOUND` when sent. Only `Unlimited` admits a clamped cost, and it takes the full
            // cost.
            Some(taken) if taken < EXACT_BOUND => Cost::new(taken),
            Some(_) | None => charge.ask.cost(),
        };
        let now = Now::at(instant_nanos(self.now))
            .with_spread(spread_number(charge.key).wrapping_mul(1_000))
            .with_windows(charge.windows);
        let foreign = if has_foreign { self.bytes.take_number(2)? as usize } else { 0 };
        let committed = decided.verb == StoreVerb::Check && decided.admitted;
        let is_recorded = decided.verb == StoreVerb::Check && (decided.admitted || refusing != 0);
        let asked = ChargeContext { ask: charge.ask, taken, committed, now };
        let answer = if foreign > 0 {
            let Ok(own) = OwnState::decode(self.bytes.take(foreign)?, charge.limits, &now) else { return Ok(false) };
            asked.answer_from_own_state(charge.limits, own, refusing, is_recorded)
        } else {
            let has_head =
                self.script_kind == ScriptKind::General && charge.limits.as_slice().iter().all(is_fixed_length);
            if has_head {
                // The reply contains the whole value, because extracting the state would be more work for the script.
                self.bytes.take(VALUE_HEAD_BYTES - 2)?;
                let length = self.bytes.take_number(2)?;
                self.bytes.take(length as usize)?;
            }
            asked.answer(charge.limits, &mut self.bytes, refusing)?
        };
        let takes = matches!(decided.verb, StoreVerb::Check | StoreVerb::Peek);
        let taken = match decided.verb {
            StoreVerb::Check if refusing == 0 => taken,
            StoreVerb::Check | StoreVerb::Peek | StoreVerb::Reset => Cost::ZERO,
            StoreVerb::Refund | StoreVerb::Renew => taken,
        };
        let outcome = if takes { answer.outcome } else { Outcome::Allow };
        let stamps = if committed {
            Stamps::from_stamps(answer.stamps).with_count(charge.limits.as_slice().len())
        } else {
            Stamps::default()
        };
        answers.push_answer(outcome, taken, stamps, answer.reports.into_iter().flatten());
        Ok(true)
    }
}

/// The decision about a group, which precedes its charges in a reply.
struct GroupDecision {
    verb: StoreVerb,
    admitted: bool,
}

/// The answer to one charge.
struct DecodedAnswer {
    outcome: Outcome,
    stamps: [Stamp; Limits::MAX],
    reports: [Option<Report>; Limits::MAX],
}

/// The result for one limit.
struct LimitAnswer {
    outcome: Outcome,
    stamp: Stamp,
    report: Report,
}

/// A decided charge.
struct ChargeContext<'a> {
    ask: Ask,
    taken: Cost,
    /// Whether the state includes this charge.
    committed: bool,
    now: Now<'a>,
}

impl ChargeContext<'_> {
    /// Computes the answer from a state with the charge's parameters.
    fn answer(&self, limits: &Limits, bytes: &mut ByteCursor<'_>, refusing: u8) -> Result<DecodedAnswer, TooShort> {
        let mut answer =
            DecodedAnswer { outcome: Outcome::Allow, stamps: Default::default(), reports: [None; Limits::MAX] };
        for (index, limit) in limits.as_slice().iter().enumerate() {
            let mut state = ByteCursor::new(bytes.take(state_len(limit))?);
            let one = self.answer_limit(limit, &mut state, refusing >> index & 1 == 1)?;
            answer.outcome = answer.outcome.stricter(one.outcome);
            answer.stamps[index] = one.stamp;
            answer.reports[index] = Some(one.report);
        }
        Ok(answer)
    }

    /// Computes the answer from a state that keeps its own parameters, which differ from the charge's parameters. For a
    /// verb that takes or peeks, `own` is the state before the charge.
    fn answer_from_own_state(
        &self,
        limits: &Limits,
        mut own: OwnState,
        refusing: u8,
        is_recorded: bool,
    ) -> DecodedAnswer {
        let verdict = limits.weigh_from(&own.limits, &*own.words, &self.now, self.ask);
        let outcome = match verdict.outcome() {
            Outcome::Delay(wait) if refusing == 0 => Outcome::Delay(ceil_to_tick(wait)),
            _ if refusing == 0 => Outcome::Allow,
            Outcome::Deny(retry) => Outcome::Deny(ceil_retry(retry)),
            // The script refused, so the wait is at least one tick.
            Outcome::Allow | Outcome::Delay(_) => Outcome::Deny(Retry::After(STORE_CLOCK_TICK)),
        };
        if is_recorded && verdict.is_admitted() == (refusing == 0) && verdict.taken() == Cost::ZERO {
            limits.commit_from(&own.limits, &mut *own.words, &self.now, &verdict);
        }
        let mut reports = [None; Limits::MAX];
        let computed = limits.reports_from(&own.limits, &*own.words, &self.now, self.ask.cost());
        for (((index, report), left), limit) in computed.enumerate().zip(own.leases_left).zip(limits.as_slice()) {
            let left = left.filter(|_| limit.words() > 0);
            reports[index] = Some(Report {
                retry: ceil_retry(report.retry),
                reset: left.unwrap_or(ceil_to_tick(report.reset)),
                ..report
            });
        }
        DecodedAnswer { outcome, stamps: Default::default(), reports }
    }

    fn answer_limit(&self, limit: &Limit, bytes: &mut ByteCursor<'_>, refuses: bool) -> Result<LimitAnswer, TooShort> {
        Ok(match limit.params() {
            Params::Unlimited | Params::DenyAll => {
                self.answer_from_states(limit, &[0; 0], &[0; 0], Stamp::NONE, refuses)
            }
            Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } => {
                let ticks = read_bucket_ticks(&bucket, bytes)?;
                let taken = u128::from(self.taken.get()) * u128::from(bucket.rate.per().as_nanos());
                let words = |ticks| self.encode_words(limit, DecodedState::Bucket { ticks });
                let before = if self.committed { ticks.saturating_sub(taken) } else { ticks };
                self.answer_from_states(limit, &words(ticks), &words(before), Stamp::NONE, refuses)
            }
            Params::IntervalBucket { .. } => {
                let (mark, origin) = (bytes.take_number(7)?, instant_nanos(bytes.take_number(7)?));
                let words = |mark| self.encode_words(limit, DecodedState::Interval { mark, origin });
                let before = if self.committed { mark.saturating_sub(self.taken.get()) } else { mark };
                self.answer_from_states(limit, &words(mark), &words(before), Stamp::NONE, refuses)
            }
            Params::FixedWindow { .. } => {
                let (end, used) = (instant_nanos(bytes.take_number(7)?), bytes.take_number(7)?);
                let words = self.encode_words(limit, DecodedState::Window { end, used });
                self.answer_from_states(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Params::SlidingWindow(_) => {
                let (end, previous, used) =
                    (instant_nanos(bytes.take_number(7)?), bytes.take_number(7)?, bytes.take_number(7)?);
                let words = self.encode_words(limit, DecodedState::Windows { end, previous, used });
                self.answer_from_states(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Params::SlidingSlices { window, precision } => {
                let mut words = [0; SlidingSlices::MAX_WORDS];
                let end = restore_slices(limit, &window, precision, &mut words, bytes)?;
                self.answer_from_states(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Params::SlidingLog { window, .. } => {
                let (inside, asked, again, newest, reset) = (
                    bytes.take_number(2)?,
                    bytes.take_number(7)?,
                    bytes.take_number(7)?,
                    bytes.take_number(7)?,
                    bytes.take_number(7)?,
                );
                let ceiling = match self.ask {
                    Ask::Exactly(_) => window.limit,
                    Ask::Regardless(_) => window.limit + window.max_debt,
                    Ask::UpTo(_) => u64::MAX,
                };
                let after = |fits: bool, wait| if fits { Retry::After(Nanos::from_micros(wait)) } else { Retry::Never };
                LimitAnswer {
                    outcome: if refuses {
                        Outcome::Deny(after(self.ask.cost().get() <= ceiling, asked))
                    } else {
                        Outcome::Allow
                    },
                    stamp: Stamp::from_bits(instant_nanos(newest).max(1)),
                    report: Report {
                        limit: window.limit,
                        remaining: window.limit.saturating_sub(inside),
                        retry: after(self.ask.cost().get() <= window.limit, again),
                        reset: Nanos::from_micros(reset),
                    },
                }
            }
            Params::Concurrency { limit, lease, max_debt } => {
                let (held, last_end, number) = (bytes.take_number(2)?, bytes.take_number(7)?, bytes.take_number(7)?);
                let cost = self.ask.cost().get();
                let ceiling = match self.ask {
                    Ask::Exactly(_) => limit,
                    Ask::Regardless(_) => limit + max_debt,
                    Ask::UpTo(_) => u64::MAX,
                };
                LimitAnswer {
                    outcome: match refuses {
                        true if cost > ceiling => Outcome::Deny(Retry::Never),
                        true => Outcome::Deny(Retry::OnRelease),
                        false => Outcome::Allow,
                    },
                    stamp: Stamp::from_bits(number),
                    report: Report {
                        limit,
                        remaining: limit.saturating_sub(held),
                        retry: match cost {
                            cost if cost > limit => Retry::Never,
                            cost if held + cost <= limit => Retry::NOW,
                            _ => Retry::OnRelease,
                        },
                        reset: leases_left(last_end, &self.now, lease),
                    },
                }
            }
        })
    }

    fn encode_words(&self, limit: &Limit, kept: DecodedState) -> [u64; 3] {
        let mut words = [0; 3];
        limit.encode(&mut words, kept);
        words
    }

    /// Computes the outcome from the state before the charge (`before`) and the report from the state after it
    /// (`words`).
    fn answer_from_states(
        &self,
        limit: &Limit,
        words: &[u64],
        before: &[u64],
        stamp: Stamp,
        refuses: bool,
    ) -> LimitAnswer {
        let outcome = if refuses {
            match limit.weigh(words, &self.now, self.ask).outcome() {
                Outcome::Deny(retry) => Outcome::Deny(ceil_retry(retry)),
                // The script refused, so the wait is at least one tick.
                Outcome::Allow | Outcome::Delay(_) => Outcome::Deny(Retry::After(STORE_CLOCK_TICK)),
            }
        } else {
            let ask = match self.ask {
                Ask::Regardless(cost) => Ask::Regardless(cost),
                Ask::Exactly(_) | Ask::UpTo(_) => Ask::Exactly(self.taken),
            };
            match limit.weigh(before, &self.now, ask).outcome() {
                Outcome::Delay(wait) => Outcome::Delay(ceil_to_tick(wait)),
                Outcome::Allow | Outcome::Deny(_) => Outcome::Allow,
            }
        };
        let report = limit.report(words, &self.now, self.ask.cost());
        let report = Report { retry: ceil_retry(report.retry), reset: ceil_to_tick(report.reset), ..report };
        LimitAnswer { outcome, stamp, report }
    }
}

/// Converts store microseconds to nanoseconds. Saturates, because a damaged value may be too large.
pub(crate) const fn instant_nanos(micros: u64) -> u64 {
    micros.saturating_mul(1_000)
}

/// Resolution of the store's clock.
const STORE_CLOCK_TICK: Nanos = Nanos::from_micros(1);

/// Rounds a wait up to the resolution of the store's clock, so that the wait is never too short.
fn ceil_retry(retry: Retry) -> Retry {
    match retry {
        Retry::After(wait) => Retry::After(ceil_to_tick(wait)),
        Retry::OnRelease | Retry::Never => retry,
    }
}

const fn ceil_to_tick(wait: Nanos) -> Nanos {
    Nanos::from_micros(micros_ceil(wait))
}
