//! Counts over time, in a limited number of columns. The columns become longer as the covered time grows.

use super::bounds::MAX_COLUMNS;

const SECOND: u64 = 1_000_000_000;

/// The lengths of columns, in seconds. Each is a multiple of the previous one, so that columns can be joined.
const LENGTHS: [u64; 19] = [
    1, 2, 10, 30, 60, 120, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800, 1_209_600, 2_419_200, 4_838_400,
    9_676_800, 96_768_000,
];

/// Counts of `N` kinds over time.
#[derive(Clone, Debug)]
pub(super) struct Timeline<const N: usize> {
    /// The number of the first column, counted from 1970.
    first: u64,
    length: usize,
    columns: Vec<[u64; N]>,
    /// The last used column: its `start` and its length `nanos` in nanoseconds (0 if there is none), and its index
    /// `index`.
    start: u64,
    nanos: u64,
    index: usize,
}

impl<const N: usize> Default for Timeline<N> {
    fn default() -> Self {
        Self { first: 0, length: 0, columns: Vec::new(), start: 0, nanos: 0, index: 0 }
    }
}

impl<const N: usize> Timeline<N> {
    fn column_nanos(length: usize) -> u64 {
        LENGTHS[length] * SECOND
    }

    /// Adds one to the count of `kind` at the time `at`, in nanoseconds since 1970.
    #[inline]
    pub(super) fn add(&mut self, at: u64, kind: usize) {
        // Nearly all times are in the last used column.
        if at.wrapping_sub(self.start) >= self.nanos {
            self.find_column(at);
        }
        self.columns[self.index][kind] += 1;
    }

    #[cold]
    fn find_column(&mut self, at: u64) {
        if self.columns.is_empty() {
            self.first = at / Self::column_nanos(self.length);
        }
        let mut index = (at / Self::column_nanos(self.length)).saturating_sub(self.first);
        while index >= MAX_COLUMNS as u64 && self.length + 1 < LENGTHS.len() {
            self.join_to(self.length + 1);
            index = (at / Self::column_nanos(self.length)).saturating_sub(self.first);
        }
        // The index is always in range, because the longest columns cover six centuries and times are before 2554.
        let index = index.min(MAX_COLUMNS as u64 - 1) as usize;
        if index >= self.columns.len() {
            self.columns.resize(index + 1, [0; N]);
        }
        self.nanos = Self::column_nanos(self.length);
        (self.start, self.index) = (at / self.nanos * self.nanos, index);
    }

    /// Joins columns so that each has the length `LENGTHS[length]`.
    fn join_to(&mut self, length: usize) {
        let ratio = LENGTHS[length] / LENGTHS[self.length];
        let first = self.first / ratio;
        let mut joined: Vec<[u64; N]> = Vec::new();
        for (index, column) in (self.first..).zip(&self.columns) {
            let index = (index / ratio - first) as usize;
            joined.resize(joined.len().max(index + 1), [0; N]);
            joined[index].iter_mut().zip(column).for_each(|(sum, count)| *sum += count);
        }
        (self.first, self.length, self.columns, self.nanos) = (first, length, joined, 0);
    }

    /// Returns the start of the first column (in nanoseconds since 1970), the length of a column (in nanoseconds), and
    /// the columns.
    pub(super) fn columns(&self) -> (u64, u64, &[[u64; N]]) {
        (self.first * Self::column_nanos(self.length), Self::column_nanos(self.length), &self.columns)
    }

    /// Returns the counts of `kind`, arranged in the columns of `other`. The timeline `other` must cover the time of
    /// this one.
    pub(super) fn counts_in_columns_of<const M: usize>(&self, other: &Timeline<M>, kind: usize) -> Vec<u64> {
        let mut own = self.clone();
        if own.length < other.length && !own.columns.is_empty() {
            own.join_to(other.length);
        }
        let mut counts = vec![0; other.columns.len()];
        for (index, column) in (own.first..).zip(&own.columns) {
            if let Some(count) = counts.get_mut(index.saturating_sub(other.first) as usize) {
                *count += column[kind];
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_multiples() {
        assert!(LENGTHS.windows(2).all(|pair| pair[1] > pair[0] && pair[1] % pair[0] == 0));
    }

    #[test]
    fn any_times_fit_and_nothing_is_lost() {
        let mut seed = 7_u64;
        for span in [1_u64, 1_000, 1_000_000, 1_000_000_000, u64::MAX / SECOND] {
            let (mut all, mut some) = (Timeline::<2>::default(), Timeline::<1>::default());
            let mut times: Vec<u64> = Vec::new();
            for _ in 0..1_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                times.push((seed >> 8) % span * SECOND);
            }
            times.sort_unstable();
            for (index, at) in times.iter().enumerate() {
                all.add(*at, index % 2);
                if index % 2 == 1 {
                    some.add(*at, 0);
                }
            }
            let (start, length, columns) = all.columns();
            assert!(start <= times[0] && times[0] < start + length, "{span}");
            assert!(columns.len() <= MAX_COLUMNS);
            assert_eq!(columns.iter().flatten().sum::<u64>(), 1_000);
            assert_eq!(
                some.counts_in_columns_of(&all, 0),
                columns.iter().map(|column| column[1]).collect::<Vec<_>>(),
                "{span}"
            );
        }
    }
}
