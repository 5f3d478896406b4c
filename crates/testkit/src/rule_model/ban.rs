//! Bans: a key that is refused `after` times in any time of `within` is refused altogether.

use super::rules::Ban;

/// The refusals of one key, and its ban.
#[derive(Clone, Debug, Default)]
pub struct BanState {
    /// When the rule's limits refused the key, oldest first. None of the time before the last ban.
    refusals: Vec<u64>,
    /// The first instant at which the key is not banned.
    until: u64,
}

impl BanState {
    /// How long the key is still banned; 0 if it is not.
    pub const fn left(&self, at: u64) -> u64 {
        self.until.saturating_sub(at)
    }

    /// Counts a refusal of a key that is not banned, and returns how long the ban is that it starts, if it does.
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
