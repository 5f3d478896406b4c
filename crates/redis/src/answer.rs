//! What the script's reply means: the Rust functions say it, given what is kept.

use tollgate_core::{
    Algorithm, Ask, Cost, Kept, Limit, Nanos, Now, Outcome, Report, Retry, SlidingSlices, Stamp, Stamps, Terms, Time,
};
use tollgate_engine::store::{Answers, Charge, Group, StoreError, Verb};

use crate::numbers::{EXACT, HEAD, Unit, count_width, is_plain, micros_ceil, slices, told_len};
use crate::request::{says_taken, spread};

/// How far ahead of the clock an instant is believed; beyond it the clock was set back.
const BELIEVED_MICROS: u64 = 1_000_000;

/// The answers to the groups of one request, read from a reply.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// The store's time, in microseconds.
    now: u64,
}

/// The reply was shorter than it should be.
#[derive(Debug)]
pub(crate) struct TooShort;

impl<'a> Reader<'a> {
    /// Of a part of a reply that was decided at `now`.
    pub(crate) fn new(rest: &'a [u8], now: u64) -> Self {
        Self { rest, now }
    }

    /// Adds the answer to the next group, which is `group`.
    pub(crate) fn read(&mut self, group: &Group<'_>, answers: &mut Answers) -> Result<(), TooShort> {
        let status = self.take(1)?[0];
        let store_time = Time::from_nanos(nanos(self.now));
        let reject = |why: &str| {
            let rules: Vec<&str> = group.charges.iter().map(Charge::rule).collect();
            StoreError::Rejected { why: format!("{why} (rules: {})", rules.join(", ")) }
        };
        match status {
            0 | 1 => {
                for charge in group.charges {
                    let committed = status == 0 && group.verb == Verb::Check;
                    self.read_charge(group, charge, committed, answers)?;
                }
                answers.end_group(store_time);
            }
            2 => answers.fail_group(StoreError::Stale { store_time }),
            3 => answers.fail_group(reject("a key of another type is where the state of a limit should be")),
            _ => answers.fail_group(reject("the value where the state of a limit should be is not one of ours")),
        }
        Ok(())
    }

    fn read_charge(
        &mut self,
        group: &Group<'_>,
        charge: &Charge<'_>,
        committed: bool,
        answers: &mut Answers,
    ) -> Result<(), TooShort> {
        let refusing = self.take(1)?[0];
        let taken = match says_taken(group, charge).then(|| self.number(7)).transpose()? {
            // A cost beyond all limits is sent as this much, and only who has no limit passes it.
            Some(taken) if taken < EXACT => Cost::new(taken),
            Some(_) | None => charge.ask.cost(),
        };
        let asks = match group.verb {
            Verb::Check | Verb::Peek => true,
            Verb::Refund | Verb::Renew | Verb::Reset => false,
        };
        let now =
            Now::at(nanos(self.now)).with_spread(spread(charge.key).wrapping_mul(1_000)).with_windows(charge.windows);
        let told = Told { ask: charge.ask, taken, committed, now };

        if charge.limits.as_slice().iter().all(is_plain) {
            // The whole value is told, which is less work for the script than a part of it.
            self.take(HEAD - 2)?;
            let numbers = self.number(2)?;
            self.take(numbers as usize)?;
        }
        let mut outcome = Outcome::Allow;
        let mut stamps = [Stamp::NONE; tollgate_core::Limits::MAX];
        let mut reports = [None; tollgate_core::Limits::MAX];
        for (place, limit) in charge.limits.as_slice().iter().enumerate() {
            let mut bytes = Self::new(self.take(told_len(limit))?, self.now);
            let said = told.say(limit, &mut bytes, refusing >> place & 1 == 1)?;
            outcome = outcome.and(if asks { said.outcome } else { Outcome::Allow });
            stamps[place] = said.stamp;
            reports[place] = Some(said.report);
        }
        let taken = match group.verb {
            Verb::Check if refusing == 0 => taken,
            Verb::Check | Verb::Peek | Verb::Reset => Cost::ZERO,
            Verb::Refund | Verb::Renew => taken,
        };
        let stamps = if committed { Stamps::from_stamps(stamps) } else { Stamps::default() };
        answers.charge(outcome, taken, stamps, reports.into_iter().flatten());
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], TooShort> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(TooShort)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, TooShort> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(wide))
    }
}

/// What is said about one limit.
struct Said {
    outcome: Outcome,
    stamp: Stamp,
    report: Report,
}

/// What was asked, and what came of it.
struct Told<'a> {
    ask: Ask,
    taken: Cost,
    /// Whether what is told is the state after the taking.
    committed: bool,
    now: Now<'a>,
}

impl Told<'_> {
    fn say(&self, limit: &Limit, bytes: &mut Reader<'_>, refuses: bool) -> Result<Said, TooShort> {
        Ok(match limit.terms() {
            Terms::Unlimited | Terms::DenyAll => self.judge(limit, &[0; 0], &[0; 0], Stamp::NONE, refuses),
            Terms::TokenBucket(bucket) | Terms::LeakyBucket { bucket, .. } => {
                let unit = Unit::new(&bucket);
                let (whole, part) = (bytes.number(7)?, bytes.number(6)?);
                let to_the_micro = u128::from(unit.ticks) * u128::from(unit.coarser);
                let ticks = u128::from(whole) * to_the_micro + u128::from(part) * u128::from(unit.coarser);
                let taken = u128::from(self.taken.get()) * u128::from(bucket.rate.per().as_nanos());
                let words = |ticks| self.words(limit, Kept::Bucket { ticks });
                let before = if self.committed { ticks.saturating_sub(taken) } else { ticks };
                self.judge(limit, &words(ticks), &words(before), Stamp::NONE, refuses)
            }
            Terms::IntervalBucket { .. } => {
                let (mark, origin) = (bytes.number(7)?, nanos(bytes.number(7)?));
                let words = |mark| self.words(limit, Kept::Interval { mark, origin });
                let before = if self.committed { mark.saturating_sub(self.taken.get()) } else { mark };
                self.judge(limit, &words(mark), &words(before), Stamp::NONE, refuses)
            }
            Terms::FixedWindow { .. } => {
                let (end, used) = (nanos(bytes.number(7)?), bytes.number(7)?);
                let words = self.words(limit, Kept::Window { end, used });
                self.judge(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Terms::SlidingWindow(_) => {
                let (end, previous, used) = (nanos(bytes.number(7)?), bytes.number(7)?, bytes.number(7)?);
                let words = self.words(limit, Kept::Windows { end, previous, used });
                self.judge(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Terms::SlidingSlices { window, precision } => {
                let end = nanos(bytes.number(7)?);
                let (_, present) = (bytes.number(7)?, bytes.number(7)?);
                let (slices, width) = (slices(&window, precision), count_width(&window));
                let mut counts = [0; SlidingSlices::MAX_SLICES as usize];
                for count in counts.iter_mut().take(slices) {
                    *count = bytes.number(width)?;
                }
                let mut words = [0; SlidingSlices::MAX_WORDS];
                if let Limit::SlidingSlices(limit) = limit {
                    limit.restore(&mut words, end, present, &counts);
                }
                self.judge(limit, &words, &words, Stamp::from_bits(end), refuses)
            }
            Terms::SlidingLog { window, minimum_gap, .. } => {
                let (inside, asked, again, newest) =
                    (bytes.number(2)?, bytes.number(7)?, bytes.number(7)?, bytes.number(7)?);
                let memory = micros_ceil(window.length).max(micros_ceil(minimum_gap));
                let ceiling = match self.ask {
                    Ask::Exactly(_) => window.limit,
                    Ask::Regardless(_) => window.limit + window.max_debt,
                    Ask::UpTo(_) => u64::MAX,
                };
                let after = |fits: bool, wait| if fits { Retry::After(Nanos::from_micros(wait)) } else { Retry::Never };
                Said {
                    outcome: if refuses {
                        Outcome::Deny(after(self.ask.cost().get() <= ceiling, asked))
                    } else {
                        Outcome::Allow
                    },
                    stamp: Stamp::from_bits(nanos(newest).saturating_add(1)),
                    report: Report {
                        limit: window.limit,
                        remaining: window.limit.saturating_sub(inside),
                        retry: after(self.ask.cost().get() <= window.limit, again),
                        reset: Nanos::from_micros(if newest == 0 {
                            0
                        } else {
                            (newest + memory).saturating_sub(bytes.now)
                        }),
                    },
                }
            }
            Terms::Concurrency { limit, lease, max_debt } => {
                let (held, last_end, number) = (bytes.number(2)?, bytes.number(7)?, bytes.number(7)?);
                let (cost, lease) = (self.ask.cost().get(), micros_ceil(lease));
                let ceiling = match self.ask {
                    Ask::Exactly(_) => limit,
                    Ask::Regardless(_) => limit + max_debt,
                    Ask::UpTo(_) => u64::MAX,
                };
                let left = last_end.saturating_sub(bytes.now);
                Said {
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
                        reset: Nanos::from_micros(if left > lease + BELIEVED_MICROS { lease } else { left }),
                    },
                }
            }
        })
    }

    fn words(&self, limit: &Limit, kept: Kept) -> [u64; 3] {
        let mut words = [0; 3];
        limit.keep(&mut words, kept);
        words
    }

    /// What the Rust functions say of a state: of the outcome by what there was before the taking, otherwise by what is kept.
    fn judge(&self, limit: &Limit, words: &[u64], before: &[u64], stamp: Stamp, refuses: bool) -> Said {
        let outcome = if refuses {
            match limit.weigh(words, &self.now, self.ask).outcome() {
                Outcome::Deny(retry) => Outcome::Deny(to_the_tick(retry)),
                // The script decides; that it refused is certain, how long for is then at least a tick.
                Outcome::Allow | Outcome::Delay(_) => Outcome::Deny(Retry::After(TICK)),
            }
        } else {
            let ask = match self.ask {
                Ask::Regardless(cost) => Ask::Regardless(cost),
                Ask::Exactly(_) | Ask::UpTo(_) => Ask::Exactly(self.taken),
            };
            match limit.weigh(before, &self.now, ask).outcome() {
                Outcome::Delay(wait) => Outcome::Delay(ceil(wait)),
                Outcome::Allow | Outcome::Deny(_) => Outcome::Allow,
            }
        };
        let report = limit.report(words, &self.now, self.ask.cost());
        let report = Report { retry: to_the_tick(report.retry), reset: ceil(report.reset), ..report };
        Said { outcome, stamp, report }
    }
}

/// An instant of the store in our unit. What is kept may be damaged, so it need not fit.
const fn nanos(micros: u64) -> u64 {
    micros.saturating_mul(1_000)
}

/// The tick of the clock that decides.
const TICK: Nanos = Nanos::from_micros(1);

/// A wait that ends with a tick of the clock that decides: less would be too short.
fn to_the_tick(retry: Retry) -> Retry {
    match retry {
        Retry::After(wait) => Retry::After(ceil(wait)),
        Retry::OnRelease | Retry::Never => retry,
    }
}

const fn ceil(wait: Nanos) -> Nanos {
    Nanos::from_micros(micros_ceil(wait))
}
