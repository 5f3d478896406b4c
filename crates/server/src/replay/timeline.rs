//! Counts over time in a limited number of columns. Columns are merged into longer ones as the covered time grows.

use super::bounds::MAX_TIMELINE_COLUMNS;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The possible column lengths, in seconds. Each length is a multiple of the previous length, so that columns can be
/// merged.
const COLUMN_SECONDS: [u64; 19] = [
    1, 2, 10, 30, 60, 120, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800, 1_209_600, 2_419_200, 4_838_400,
    9_676_800, 96_768_000,
];

/// Counts over time of `N` kinds of events.
#[derive(Clone, Debug)]
pub(super) struct Timeline<const N: usize> {
    /// The number of the first column. Column 0 begins in 1970.
    first_column: u64,
    length_index: usize,
    columns: Vec<[u64; N]>,
    /// The most recently used column: its start and length in nanoseconds (length 0 if there is none), and its index.
    recent_start: u64,
    recent_nanos: u64,
    recent_index: usize,
}

impl<const N: usize> Default for Timeline<N> {
    fn default() -> Self {
        Self {
            first_column: 0,
            length_index: 0,
            columns: Vec::new(),
            recent_start: 0,
            recent_nanos: 0,
            recent_index: 0,
        }
    }
}

impl<const N: usize> Timeline<N> {
    fn column_nanos(length: usize) -> u64 {
        COLUMN_SECONDS[length] * NANOS_PER_SECOND
    }

    /// Adds one to the count of `kind` at the time `at`, in nanoseconds since 1970.
    #[inline]
    pub(super) fn add(&mut self, at: u64, kind: usize) {
        // Nearly all times are in the most recently used column.
        if at.wrapping_sub(self.recent_start) >= self.recent_nanos {
            self.find_column(at);
        }
        self.columns[self.recent_index][kind] += 1;
    }

    #[cold]
    fn find_column(&mut self, at: u64) {
        if self.columns.is_empty() {
            self.first_column = at / Self::column_nanos(self.length_index);
        }
        let mut index = (at / Self::column_nanos(self.length_index)).saturating_sub(self.first_column);
        while index >= MAX_TIMELINE_COLUMNS as u64 && self.length_index + 1 < COLUMN_SECONDS.len() {
            self.merge_columns(self.length_index + 1);
            index = (at / Self::column_nanos(self.length_index)).saturating_sub(self.first_column);
        }
        // The index is always in range: with the longest columns, the timeline covers seven centuries, and times are
        // between 1970 and 2554.
        let index = index.min(MAX_TIMELINE_COLUMNS as u64 - 1) as usize;
        if index >= self.columns.len() {
            self.columns.resize(index + 1, [0; N]);
        }
        self.recent_nanos = Self::column_nanos(self.length_index);
        (self.recent_start, self.recent_index) = (at / self.recent_nanos * self.recent_nanos, index);
    }

    /// Merges columns, so that each column has the length `COLUMN_SECONDS[length]`.
    fn merge_columns(&mut self, length: usize) {
        let ratio = COLUMN_SECONDS[length] / COLUMN_SECONDS[self.length_index];
        let first = self.first_column / ratio;
        let mut joined: Vec<[u64; N]> = Vec::new();
        for (index, column) in (self.first_column..).zip(&self.columns) {
            let index = (index / ratio - first) as usize;
            joined.resize(joined.len().max(index + 1), [0; N]);
            joined[index].iter_mut().zip(column).for_each(|(sum, count)| *sum += count);
        }
        (self.first_column, self.length_index, self.columns, self.recent_nanos) = (first, length, joined, 0);
    }

    /// Returns the start of the first column (in nanoseconds since 1970), the length of a column (in nanoseconds), and
    /// the columns.
    pub(super) fn columns(&self) -> (u64, u64, &[[u64; N]]) {
        (
            self.first_column * Self::column_nanos(self.length_index),
            Self::column_nanos(self.length_index),
            &self.columns,
        )
    }

    /// Returns the counts of `kind`, rearranged into the columns of `other`. The timeline `other` must cover all times
    /// of this timeline.
    pub(super) fn counts_in_columns_of<const M: usize>(&self, other: &Timeline<M>, kind: usize) -> Vec<u64> {
        let mut own = self.clone();
        if own.length_index < other.length_index && !own.columns.is_empty() {
            own.merge_columns(other.length_index);
        }
        let mut counts = vec![0; other.columns.len()];
        for (index, column) in (own.first_column..).zip(&own.columns) {
            if let Some(count) = counts.get_mut(index.saturating_sub(other.first_column) as usize) {
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
    fn each_column_length_is_a_multiple_of_the_previous_one() {
        assert!(COLUMN_SECONDS.windows(2).all(|pair| pair[1] > pair[0] && pair[1] % pair[0] == 0));
    }

    #[test]
    fn counts_are_preserved_for_any_time_span() {
        let mut seed = 7_u64;
        for span in [1_u64, 1_000, 1_000_000, 1_000_000_000, u64::MAX / NANOS_PER_SECOND] {
            let (mut all, mut some) = (Timeline::<2>::default(), Timeline::<1>::default());
            let mut times: Vec<u64> = Vec::new();
            for _ in 0..1_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                times.push((seed >> 8) % span * NANOS_PER_SECOND);
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
            assert!(columns.len() <= MAX_TIMELINE_COLUMNS);
            assert_eq!(columns.iter().flatten().sum::<u64>(), 1_000);
            assert_eq!(
                some.counts_in_columns_of(&all, 0),
                columns.iter().map(|column| column[1]).collect::<Vec<_>>(),
                "{span}"
            );
        }
    }
}
