//! Bans: a key that is refused `after` times within any interval of `within` is refused entirely.

use super::rules::Ban;

/// The refusals of one key, and its ban.
#[derive(Clone, Debug, Default)]
pub struct BanState {
    /// The instants of refusals by the rule's limits, oldest first, since the last ban.
    refusals: Vec<u64>,
    /// The first instant at which the key is not banned.
    until: u64,
}

impl BanState {
    /// Returns the rest of the ban; 0 if there is none.
    pub const fn time_left(&self, at: u64) -> u64 {
        self.until.saturating_sub(at)
    }

    /// Counts a refusal of a key that is not banned, and returns the length of the ban if it starts
    /// one.
    pub fn note(&mut self, ban: &Ban, at: u64) -> Option<u64> {
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
