//! Limits the control frames that a client may send: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, DATA that does not
//! complete a request and, most importantly, resets.
//!
//! Control frames are cheap to process, but a client that sends few other frames is probably trying to overload the
//! server. Every control frame costs credit. Time and answered calls restore credit, so an idle connection with
//! keepalives does not run out of credit, nor does a busy connection with many window updates.

use std::time::Duration;

use super::super::bounds::{CREDIT_PER_CALL, CREDIT_PER_SECOND, MAX_CREDIT};

/// The credit of a connection for control frames.
#[derive(Debug)]
pub(super) struct Credit {
    remaining: u32,
    /// The time at which credit was last restored.
    restored_at: Duration,
}

impl Default for Credit {
    fn default() -> Self {
        Self { remaining: MAX_CREDIT, restored_at: Duration::ZERO }
    }
}

impl Credit {
    /// Spends `cost` credit. Returns false if the credit is insufficient.
    #[must_use]
    pub(super) fn spend(&mut self, cost: u32, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.restored_at).as_millis();
        let earned = elapsed.saturating_mul(CREDIT_PER_SECOND.into()) / 1_000;
        if earned > 0 {
            self.restored_at = now;
            self.restore(u32::try_from(earned).unwrap_or(u32::MAX));
        }
        let remaining = self.remaining.checked_sub(cost);
        self.remaining = remaining.unwrap_or(0);
        remaining.is_some()
    }

    /// Restores the credit that an answered call earns.
    pub(super) fn restore_for_call(&mut self) {
        self.restore(CREDIT_PER_CALL);
    }

    fn restore(&mut self, credit: u32) {
        self.remaining = self.remaining.saturating_add(credit).min(MAX_CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_restored_by_time_and_by_calls() {
        let mut credit = Credit::default();
        assert!(credit.spend(MAX_CREDIT, Duration::ZERO) && !credit.spend(1, Duration::ZERO));
        credit.restore_for_call();
        assert!(credit.spend(CREDIT_PER_CALL, Duration::ZERO) && !credit.spend(1, Duration::ZERO));
        let second = Duration::from_secs(1);
        assert!(credit.spend(CREDIT_PER_SECOND, second) && !credit.spend(1, second));
        assert!(credit.spend(MAX_CREDIT, Duration::MAX) && !credit.spend(1, Duration::MAX), "never above the maximum");
    }
}
