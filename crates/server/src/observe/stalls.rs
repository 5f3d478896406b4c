//! Logs one line for each store stall during which `on_fault` decided requests.

/// Detects stalls from the number of requests decided without the store, sampled once a second.
#[derive(Debug, Default)]
pub struct StallLog {
    /// Number of requests decided without the store, at the last sample.
    last_total: u64,
    stall: Option<StoreStall>,
}

/// A period in which requests were decided without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStall {
    /// Number of requests decided without the store.
    pub decisions: u64,
    /// Number of samples that the stall lasted, one per second.
    pub seconds: u64,
}

impl StallLog {
    /// Takes a sample: `total` is the number of requests decided without the store since startup, and `up` is whether
    /// the store is reachable. A stall ends when the store is reachable and has decided every request since the last
    /// sample. Returns the stall that has ended, if any.
    pub fn add_sample(&mut self, total: u64, up: bool) -> Option<StoreStall> {
        let decisions = total.saturating_sub(self.last_total);
        self.last_total = total;
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

    /// Calls [`add_sample`](Self::add_sample) and logs a stall that has ended.
    pub fn log_ended_stall(&mut self, total: u64, up: bool) {
        if let Some(StoreStall { decisions, seconds }) = self.add_sample(total, up) {
            tracing::warn!(decisions, seconds, "store stall ended; on_fault decided during the stall");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_is_reported_once_when_it_has_ended() {
        let mut log = StallLog::default();
        let samples =
            [(0, true), (3, true), (9, false), (9, false), (10, true), (10, true), (10, true), (11, true), (11, true)];
        let reported = samples.map(|(total, up)| log.add_sample(total, up));
        let mut expected = [None; 9];
        expected[5] = Some(StoreStall { decisions: 10, seconds: 4 });
        expected[8] = Some(StoreStall { decisions: 1, seconds: 1 });
        assert_eq!(reported, expected);
    }

    #[test]
    fn store_that_is_down_without_requests_is_not_a_stall() {
        let mut log = StallLog::default();
        assert_eq!([(0, true), (0, false), (0, true)].map(|(total, up)| log.add_sample(total, up)), [None; 3]);
    }
}
