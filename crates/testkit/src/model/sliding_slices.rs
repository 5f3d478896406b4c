//! Definition of sliding slices: a list of amounts per slice, added up again for every request.

use tollgate_core::{Ask, LimitError, Nanos, Now, Outcome, Report, Retry, SlidingSlices};

use super::{Model, ModelAnswer, WindowParams, time_until};

/// Counts per slice.
#[derive(Clone, Debug)]
pub struct SlidingSlicesModel {
    params: WindowParams,
    precision: u64,
    /// For each charge: its slice's index, and the amount that was not refunded.
    slice_counts: Vec<(u64, u64)>,
    /// Slice end of each charge, by receipt.
    receipts: Vec<u128>,
}

impl WindowParams {
    /// Returns the sliding slices with these parameters.
    ///
    /// # Errors
    /// Returns the errors of the limit's constructor.
    pub fn sliding_slices(&self, precision: u64) -> Result<SlidingSlices, LimitError> {
        let limit = SlidingSlices::new(self.limit, Nanos::from_nanos(self.length), Nanos::from_nanos(precision))?;
        limit.max_debt(self.max_debt)?.initial(self.initial)
    }
}

/// Returns the length of a slice: `length` divided by the smallest slice count that divides `length` evenly and gives
/// slices no longer than `precision`. If there is no such count up to the maximum, divides by the smallest count that
/// the precision requires, and rounds up.
fn slice_length(length: u64, precision: u64) -> u64 {
    let fewest = length.div_ceil(precision.min(length));
    let slices = (fewest..=SlidingSlices::MAX_SLICES).find(|slices| length.is_multiple_of(*slices)).unwrap_or(fewest);
    length.div_ceil(slices)
}

impl SlidingSlicesModel {
    /// Returns a model of a new key, with all but `initial` used.
    pub fn new(params: WindowParams, precision: u64, now: &Now<'_>) -> Self {
        let precision = slice_length(params.length, precision);
        let mut new = Self { params, precision, slice_counts: Vec::new(), receipts: Vec::new() };
        new.restart(now);
        new
    }

    /// Changes the parameters. Counts stay in their slices if the slice length is the same and the
    /// window is not shorter. Otherwise the whole amount counts in the current slice.
    pub fn change_params(&mut self, params: WindowParams, precision: u64, now: &Now<'_>) {
        let (at, precision) = (now.wall().as_nanos(), slice_length(params.length, precision));
        let inside: Vec<_> =
            self.slice_counts.iter().copied().filter(|&(slice, _)| self.is_inside(slice, at)).collect();
        let shorter = params.length.div_ceil(precision) < self.params.length.div_ceil(self.precision);
        self.slice_counts = if precision != self.precision || shorter {
            vec![(at / precision, inside.iter().map(|(_, count)| *count).sum())]
        } else {
            inside
        };
        (self.params, self.precision) = (params, precision);
    }

    /// Returns whether a slice still counts. A slice counts until a whole window has passed since its end.
    fn is_inside(&self, slice: u64, at: u64) -> bool {
        let slices = u128::from(self.params.length.div_ceil(self.precision));
        u128::from(at) < (u128::from(slice) + 1 + slices) * u128::from(self.precision)
    }

    fn used_at(&self, at: u64) -> u128 {
        let inside = self.slice_counts.iter().filter(|(slice, _)| self.is_inside(*slice, at));
        inside.map(|&(_, count)| u128::from(count)).sum()
    }

    fn retry(&self, at: u64, cost: u64, ceiling: u128) -> Retry {
        if u128::from(cost) > ceiling {
            return Retry::Never;
        }
        Retry::After(time_until(at, |later| self.used_at(later) + u128::from(cost) <= ceiling))
    }
}

impl Model for SlidingSlicesModel {
    fn ask(&mut self, now: &Now<'_>, ask: Ask) -> ModelAnswer {
        let at = now.wall().as_nanos();
        let (limit, used) = (u128::from(self.params.limit), self.used_at(at));
        let receipt = self.receipts.len();
        let cost = ask.cost().get();
        let available = limit.saturating_sub(used) as u64;
        let (cost, ceiling) = match ask {
            Ask::Exactly(_) => (cost, limit),
            Ask::Regardless(_) => (cost, limit + u128::from(self.params.max_debt)),
            // An `UpTo` ask of cost 0 is never refused, even in debt.
            Ask::UpTo(_) if cost == 0 => (0, u128::MAX),
            Ask::UpTo(_) => (cost.min(available.max(1)), limit),
        };
        if used + u128::from(cost) <= ceiling {
            self.slice_counts.push((at / self.precision, cost));
            self.receipts.push((u128::from(at / self.precision) + 1) * u128::from(self.precision));
            return ModelAnswer { outcome: Outcome::Allow, taken: cost, receipt };
        }
        ModelAnswer { outcome: Outcome::Deny(self.retry(at, cost, ceiling)), taken: 0, receipt }
    }

    /// Refunds at most the amount counted in the slice of the charge. Without a receipt, refunds in the current
    /// slice. After a change of alignment, the slice of the charge may no longer exist.
    fn refund(&mut self, now: &Now<'_>, mut cost: u64, receipt: Option<usize>) -> u64 {
        let at = now.wall().as_nanos();
        let slice = match receipt.map(|receipt| self.receipts[receipt]) {
            None => at / self.precision,
            Some(end) if end % u128::from(self.precision) == 0 => (end / u128::from(self.precision) - 1) as u64,
            Some(_) => return 0,
        };
        if !self.is_inside(slice, at) || slice > at / self.precision {
            return 0;
        }
        let asked = cost;
        for (_, count) in self.slice_counts.iter_mut().filter(|(taken_in, _)| *taken_in == slice) {
            let accepted = cost.min(*count);
            *count -= accepted;
            cost -= accepted;
        }
        asked - cost
    }

    fn report(&self, now: &Now<'_>, cost: u64) -> Report {
        let at = now.wall().as_nanos();
        let limit = u128::from(self.params.limit);
        Report {
            limit: self.params.limit,
            remaining: limit.saturating_sub(self.used_at(at)) as u64,
            retry: self.retry(at, cost, limit),
            reset: time_until(at, |later| self.used_at(later) == 0),
        }
    }

    fn restart(&mut self, now: &Now<'_>) {
        self.receipts.clear();
        self.slice_counts = vec![(now.wall().as_nanos() / self.precision, self.params.limit - self.params.initial)];
    }
}
