//! One line in the log for each stall of the store that made rules decide by `on_fault`.

/// Detects stalls by the number of requests decided without the store, which is read once a second.
#[derive(Debug, Default)]
pub struct StallLog {
    /// How many requests had been decided without the store at the last reading.
    total: u64,
    stall: Option<Stall>,
}

/// A time in which requests were decided without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// How many requests were decided.
    pub decisions: u64,
    /// How many readings it lasted; they are a second apart.
    pub seconds: u64,
}

impl StallLog {
    /// Takes the number of requests that were decided without the store so far, and whether the store is reachable.
    /// Returns a stall when it has ended: the store is reachable and decided everything since the last reading.
    pub fn check_for_stall(&mut self, total: u64, up: bool) -> Option<Stall> {
        let decisions = total.saturating_sub(self.total);
        self.total = total;
        if decisions == 0 && up {
            return self.stall.take();
        }
        if decisions > 0 || self.stall.is_some() {
            let stall = self.stall.get_or_insert_default();
            stall.decisions += decisions;
            stall.seconds += 1;
        }
        None
    }

    /// Takes what [`check_for_stall`](Self::check_for_stall) takes, and logs a stall that has ended.
    pub fn log(&mut self, total: u64, up: bool) {
        if let Some(Stall { decisions, seconds }) = self.check_for_stall(total, up) {
            tracing::warn!(decisions, seconds, "store stall ended; on_fault decided meanwhile");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_reported_once_when_it_has_ended() {
        let mut log = StallLog::default();
        let looks =
            [(0, true), (3, true), (9, false), (9, false), (10, true), (10, true), (10, true), (11, true), (11, true)];
        let reported = looks.map(|(total, up)| log.check_for_stall(total, up));
        let mut expected = [None; 9];
        expected[5] = Some(Stall { decisions: 10, seconds: 4 });
        expected[8] = Some(Stall { decisions: 1, seconds: 1 });
        assert_eq!(reported, expected);
    }

    #[test]
    fn store_that_is_down_without_requests_is_not_a_stall() {
        let mut log = StallLog::default();
        assert_eq!([(0, true), (0, false), (0, true)].map(|(total, up)| log.check_for_stall(total, up)), [None; 3]);
    }
}
