//! Limits the control frames that a client may send: PING, SETTINGS, PRIORITY, empty DATA, and above all resets.
//!
//! Such frames are cheap and store nothing, but a client that sends little else probably tries to keep the server busy.
//! Every control frame costs credit. Time and answered calls restore credit, so neither an idle connection with
//! keepalives nor a busy one with many window updates runs out.

use std::time::Duration;

use super::super::bounds::{CREDIT, CREDIT_PER_CALL, CREDIT_PER_SECOND};

/// The credit of a connection for control frames.
#[derive(Debug)]
pub(super) struct Credit {
    left: u32,
    /// When credit was last restored.
    counted: Duration,
}

impl Default for Credit {
    fn default() -> Self {
        Self { left: CREDIT, counted: Duration::ZERO }
    }
}

impl Credit {
    /// Takes `cost` from the credit. Returns false if the credit is insufficient.
    #[must_use]
    pub(super) fn spend(&mut self, cost: u32, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.counted).as_millis();
        let earned = elapsed.saturating_mul(CREDIT_PER_SECOND.into()) / 1_000;
        if earned > 0 {
            self.counted = now;
            self.add(u32::try_from(earned).unwrap_or(u32::MAX));
        }
        let left = self.left.checked_sub(cost);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// Restores the credit for an answered call.
    pub(super) fn answered(&mut self) {
        self.add(CREDIT_PER_CALL);
    }

    fn add(&mut self, credit: u32) {
        self.left = self.left.saturating_add(credit).min(CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_restored_by_time_and_by_calls() {
        let mut credit = Credit::default();
        assert!(credit.spend(CREDIT, Duration::ZERO) && !credit.spend(1, Duration::ZERO));
        credit.answered();
        assert!(credit.spend(CREDIT_PER_CALL, Duration::ZERO) && !credit.spend(1, Duration::ZERO));
        let second = Duration::from_secs(1);
        assert!(credit.spend(CREDIT_PER_SECOND, second) && !credit.spend(1, second));
        assert!(credit.spend(CREDIT, Duration::MAX) && !credit.spend(1, Duration::MAX), "never above the maximum");
    }
}
