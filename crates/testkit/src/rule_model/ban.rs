//! Bans: a key that is refused `after` times within any interval of length `within` is banned, so that all its
//! requests are refused for a time.

use super::rules::Ban;

/// A key's refusals and its ban.
#[derive(Clone, Debug, Default)]
pub struct BanState {
    /// Times of refusals by the rule's limits since the last ban, oldest first.
    refusals: Vec<u64>,
    /// End of the ban.
    until: u64,
}

impl BanState {
    /// Returns the remaining time of the ban, or 0.
    pub const fn time_left(&self, at: u64) -> u64 {
        self.until.saturating_sub(at)
    }

    /// Counts a refusal of a key that is not banned. Returns the length of the ban if the refusal starts a ban.
    pub fn count_refusal(&mut self, ban: &Ban, at: u64) -> Option<u64> {
        self.refusals.push(at);
        let inside = self.refusals.iter().filter(|refusal| at < **refusal + ban.within).count();
        if inside < ban.after {
            return None;
        }
        self.refusals.clear();
        self.until = at + ban.length;
        Some(ban.length)
    }
}
