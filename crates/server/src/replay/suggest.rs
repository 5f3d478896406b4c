//! Suggests limits that rarely refuse a client, based on the requests in a log.
//!
//! For a token bucket with a given rate, the busiest period of a client determines the burst that the client needs.
//! Each request raises a level by one token, and the rate drains the level. The maximum level is the burst with which
//! the client is never refused. The first pass tracks the levels of all clients for a few rates. The suggested burst
//! suffices for all but one client in a thousand. If times are in whole seconds, the levels are tracked twice: with
//! requests spread over their second, and with all requests at the beginning of their second. The larger burst is
//! suggested.
//!
//! The second pass counts the requests that the suggested limits refuse. A limit refuses only clients that need a
//! larger burst, so only the requests of these clients are decided.

use rustc_hash::{FxHashMap, FxHashSet};
use tollgate_engine::Attribute;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use super::bounds::MAX_CLIENTS;
use super::keys::hash_key;
use super::merge::{Consumer, LineAttributes, LineBatch, LoggedRequest};
use super::report::{AtOnceReport, CandidateReport, PeakReport, SuggestionReport};
use super::simulation::Simulation;

/// The candidate rates. The second value is the time to refill one token, in units of 100 µs.
const CANDIDATE_RATES: [(&str, u64); 4] = [("10/m", 60_000), ("1/s", 10_000), ("10/s", 1_000), ("100/s", 100)];
/// The unit of levels, in nanoseconds. The unit divides the refill times of all rates, and a 32-bit level can
/// count almost five days in this unit.
const LEVEL_UNIT_NANOS: u64 = 100_000;
/// The intervals for which peaks are counted, with their lengths in units of [`LEVEL_UNIT_NANOS`].
const PEAK_INTERVALS: [(&str, u64); 3] = [("second", 10_000), ("minute", 600_000), ("hour", 36_000_000)];
/// The suggested burst may be too small for one client in this number of clients.
const CLIENTS_PER_EXCEPTION: usize = 1_000;

/// The levels of a client's buckets, one for each rate.
#[derive(Clone, Copy, Debug)]
struct BucketLevels {
    /// The time of the client's last request, in units of [`LEVEL_UNIT_NANOS`].
    last_request: u64,
    current: [u32; CANDIDATE_RATES.len()],
    highest: [u32; CANDIDATE_RATES.len()],
}

impl BucketLevels {
    fn new(now: u64) -> Self {
        Self { last_request: now, current: [0; CANDIDATE_RATES.len()], highest: [0; CANDIDATE_RATES.len()] }
    }

    /// Adds a request at the time `now`, in units of [`LEVEL_UNIT_NANOS`].
    fn add(&mut self, now: u64) {
        let passed = u32::try_from(now.saturating_sub(self.last_request)).unwrap_or(u32::MAX);
        for (index, (_, token)) in CANDIDATE_RATES.iter().enumerate() {
            let level = self.current[index].saturating_sub(passed).saturating_add(*token as u32);
            self.current[index] = level;
            self.highest[index] = self.highest[index].max(level);
        }
        self.last_request = now;
    }

    /// Returns the smallest burst with which the rate at `index` never refuses the client.
    fn required_burst(&self, index: usize) -> u64 {
        u64::from(self.highest[index]).div_ceil(CANDIDATE_RATES[index].1)
    }
}

/// The levels and the peaks of a client.
#[derive(Clone, Copy, Debug)]
struct ClientPeaks {
    levels: BucketLevels,
    counts: [u32; PEAK_INTERVALS.len()],
    peaks: [u32; PEAK_INTERVALS.len()],
}

/// The peaks of all clients.
#[derive(Debug)]
pub(super) struct Peaks<'a> {
    /// The indices of the attributes that identify a client.
    per: Vec<usize>,
    attributes: &'a LineAttributes,
    client_indices: FxHashMap<u64, u32>,
    clients: Vec<ClientPeaks>,
    /// The levels at the logged times. `None` if the logs have fractions of a second.
    at_once: Option<Vec<BucketLevels>>,
    /// Whether any time was rounded down to a whole number of units. The first flag is for spread times, the second for
    /// logged times.
    is_rounded: [bool; 2],
    has_untracked_clients: bool,
}

impl<'a> Peaks<'a> {
    pub(super) fn new(per: &[String], attributes: &'a LineAttributes, has_whole_seconds: bool) -> Self {
        Self {
            per: attribute_indices(per, attributes),
            attributes,
            client_indices: FxHashMap::default(),
            clients: Vec::new(),
            at_once: has_whole_seconds.then(Vec::new),
            is_rounded: [false; 2],
            has_untracked_clients: false,
        }
    }

    fn count_request(&mut self, client: u64, at: u64, logged_at: u64) {
        let (now, logged) = (at / LEVEL_UNIT_NANOS, logged_at / LEVEL_UNIT_NANOS);
        self.is_rounded[0] |= now * LEVEL_UNIT_NANOS != at;
        self.is_rounded[1] |= logged * LEVEL_UNIT_NANOS != logged_at;
        let number = match self.client_indices.get(&client) {
            Some(number) => *number as usize,
            None if self.clients.len() >= MAX_CLIENTS => {
                self.has_untracked_clients = true;
                return;
            }
            None => {
                self.client_indices.insert(client, self.clients.len() as u32);
                let none = [0; PEAK_INTERVALS.len()];
                self.clients.push(ClientPeaks { levels: BucketLevels::new(now), counts: none, peaks: none });
                self.at_once.iter_mut().for_each(|all| all.push(BucketLevels::new(logged)));
                self.clients.len() - 1
            }
        };
        let client = &mut self.clients[number];
        for (index, (_, interval)) in PEAK_INTERVALS.iter().enumerate() {
            if now / interval != client.levels.last_request / interval {
                client.counts[index] = 0;
            }
            client.counts[index] = client.counts[index].saturating_add(1);
            client.peaks[index] = client.peaks[index].max(client.counts[index]);
        }
        client.levels.add(now);
        if let Some(all) = &mut self.at_once {
            all[number].add(logged);
        }
    }

    /// Returns a candidate for each rate: the smallest burst that suffices for nearly all clients, and the clients that
    /// need a larger burst.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        (0..CANDIDATE_RATES.len()).map(|index| self.candidate_for_rate(index)).collect()
    }

    fn candidate_for_rate(&self, index: usize) -> Candidate {
        let (limit, token) = CANDIDATE_RATES[index];
        let needs_of = |levels: &mut dyn Iterator<Item = &BucketLevels>| {
            let mut needs: Vec<u64> = levels.map(|levels| levels.required_burst(index)).collect();
            needs.sort_unstable();
            needs
        };
        let mut needs = needs_of(&mut self.clients.iter().map(|client| &client.levels));
        let spread = sufficient_burst(&needs, CLIENTS_PER_EXCEPTION).max(1);
        let at_once =
            self.at_once.as_ref().map(|all| sufficient_burst(&needs_of(&mut all.iter()), CLIENTS_PER_EXCEPTION).max(1));
        let burst = at_once.map_or(spread, |at_once| at_once.max(spread));
        // If a level is a whole number of tokens, the exact level may be slightly higher. The client may then need one
        // more token.
        let exceeds = |levels: &BucketLevels, is_rounded: bool| {
            let may_be_rounded = is_rounded && u64::from(levels.highest[index]).is_multiple_of(token);
            levels.required_burst(index) + u64::from(may_be_rounded) > burst
        };
        let exceeds = |number: &u32| {
            let number = *number as usize;
            let at_once = self.at_once.as_ref().map(|all| &all[number]);
            exceeds(&self.clients[number].levels, self.is_rounded[0])
                || at_once.is_some_and(|levels| exceeds(levels, self.is_rounded[1]))
        };
        let exceeding =
            self.client_indices.iter().filter(|(_, number)| exceeds(number)).map(|(client, _)| *client).collect();
        if let Some(all) = &self.at_once {
            let both = self.clients.iter().zip(all);
            needs = both
                .map(|(client, at_once)| client.levels.required_burst(index).max(at_once.required_burst(index)))
                .collect();
            needs.sort_unstable();
        }
        let per_minute = burst + 600_000 / token;
        Candidate { limit, burst, spread, at_once, exceeding, per_minute, needs: burst_curve(&needs) }
    }

    fn peak_reports(&self) -> Vec<PeakReport> {
        let peak = |(index, (interval, _)): (usize, &(&'static str, u64))| {
            let mut peaks: Vec<u64> = self.clients.iter().map(|client| u64::from(client.peaks[index])).collect();
            peaks.sort_unstable();
            let at = |part: usize, of: usize| peaks.get((peaks.len() * part).div_ceil(of).saturating_sub(1)).copied();
            PeakReport {
                interval,
                half: at(1, 2).unwrap_or(0),
                most: at(99, 100).unwrap_or(0),
                nearly_all: at(999, 1_000).unwrap_or(0),
                max: peaks.last().copied().unwrap_or(0),
            }
        };
        PEAK_INTERVALS.iter().enumerate().map(peak).collect()
    }
}

impl Consumer for Peaks<'_> {
    fn consume(&mut self, batch: &LineBatch) {
        for request in &batch.slots {
            let client = client_hash(batch, request, &self.per, self.attributes);
            self.count_request(client, request.at, request.logged_at);
        }
    }
}

/// Returns the smallest burst that suffices for all but one in `one_in` clients. `needs` is sorted and contains the
/// burst that each client needs.
fn sufficient_burst(needs: &[u64], one_in: usize) -> u64 {
    let spared = needs.len() / one_in;
    needs.len().checked_sub(spared + 1).and_then(|index| needs.get(index)).copied().unwrap_or(1)
}

/// Returns pairs of a burst and the number of clients that need a larger burst, with about ten bursts per power of ten.
fn burst_curve(needs: &[u64]) -> Vec<(u64, u64)> {
    let most = needs.last().copied().unwrap_or(1);
    let mut curve = Vec::new();
    let mut burst = 1;
    while burst < most {
        curve.push((burst, (needs.len() - needs.partition_point(|required_burst| *required_burst <= burst)) as u64));
        burst += (burst / 4).max(1);
    }
    curve.push((most, 0));
    curve
}

fn attribute_indices(per: &[String], attributes: &LineAttributes) -> Vec<usize> {
    per.iter().filter_map(|name| attributes.names.iter().position(|known| **known == **name)).collect()
}

/// Returns a hash that identifies the client of a request. As in rules, all requests without the attributes count as
/// one client.
fn client_hash(batch: &LineBatch, request: &LoggedRequest, per: &[usize], attributes: &LineAttributes) -> u64 {
    let value = |index: usize| attributes.constants[index].as_deref().or_else(|| batch.value(request, index));
    match per {
        [index] => value(*index).map_or(0, hash_key),
        several => several.iter().fold(0, |sum: u64, index| {
            sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ value(*index).map_or(1, hash_key)
        }),
    }
}

/// A candidate limit: a rate and a burst.
#[derive(Debug)]
pub(super) struct Candidate {
    limit: &'static str,
    /// The larger of `spread` and `at_once`.
    burst: u64,
    spread: u64,
    at_once: Option<u64>,
    /// The hashes of the clients that may need a larger burst.
    exceeding: FxHashSet<u64>,
    per_minute: u64,
    needs: Vec<(u64, u64)>,
}

impl Candidate {
    fn rules_yaml(&self, per: &[String], domain: &str) -> String {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let quoted = |name: &String| if name.chars().all(is_plain) { name.clone() } else { format!("'{name}'") };
        let names: Vec<String> = per.iter().map(quoted).collect();
        let id = per.join("-").replace(|letter: char| !is_plain(letter), "-");
        let (limit, burst, names) = (self.limit, self.burst, names.join(", "));
        format!("domain: {domain}\nrules:\n- id: per-{id}\n  per: [{names}]\n  limit: {limit}\n  burst: {burst}\n")
    }
}

/// Decides the requests of all clients that may need a larger burst than a candidate has.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    per: Vec<usize>,
    attributes: &'a LineAttributes,
    candidates: Vec<TriedCandidate>,
}

#[derive(Debug)]
struct TriedCandidate {
    candidate: Candidate,
    spread: CandidateRefusals,
    /// The refusals if all requests of a second arrive at its beginning.
    at_once: Option<CandidateRefusals>,
}

/// The refusals of a candidate.
#[derive(Debug)]
struct CandidateRefusals {
    simulation: Simulation,
    requests: u64,
    clients: FxHashSet<u64>,
}

impl CandidateRefusals {
    fn new(rules: &Rules, keys: usize) -> Result<Self, TrialError> {
        let simulation = Simulation::new(keys).map_err(|error| TrialError::Capacity(error.to_string()))?;
        simulation.engine.put(rules).map_err(TrialError::Rules)?;
        Ok(Self { simulation, requests: 0, clients: FxHashSet::default() })
    }

    fn decide(&mut self, client: u64, attributes: &[Attribute<'_>], at: u64) {
        if self.simulation.check(TRIAL_DOMAIN.as_bytes(), attributes, at).is_ok_and(|decision| !decision.is_admitted())
        {
            self.requests += 1;
            self.clients.insert(client);
        }
    }
}

/// The domain of trials.
const TRIAL_DOMAIN: &str = "trial";

impl<'a> Trial<'a> {
    pub(super) fn new(
        per: &[String],
        attributes: &'a LineAttributes,
        candidates: Vec<Candidate>,
        keys: usize,
    ) -> Result<Self, TrialError> {
        let mut trials = Vec::new();
        for candidate in candidates {
            let text = candidate.rules_yaml(per, TRIAL_DOMAIN);
            let rules = Rules::read(&[Source { name: "suggested rules", text: text.as_bytes() }]);
            let rules = rules.map_err(TrialError::Rules)?;
            let at_once = candidate.at_once.map(|_| CandidateRefusals::new(&rules, keys)).transpose()?;
            trials.push(TriedCandidate { candidate, spread: CandidateRefusals::new(&rules, keys)?, at_once });
        }
        Ok(Self { per: attribute_indices(per, attributes), attributes, candidates: trials })
    }

    /// Returns the suggestion.
    pub(super) fn finish(self, per: &[String], domain: &str, peaks: &Peaks<'_>) -> SuggestionReport {
        let trials = self.candidates;
        let least = trials.iter().enumerate().min_by_key(|(_, tried)| tried.candidate.per_minute);
        let recommended = least.map_or(0, |(index, _)| index);
        SuggestionReport {
            per: per.to_vec(),
            clients: peaks.clients.len() as u64,
            untracked_clients: peaks.has_untracked_clients,
            peaks: peaks.peak_reports(),
            rules: trials.get(recommended).map(|tried| tried.candidate.rules_yaml(per, domain)).unwrap_or_default(),
            recommended,
            candidates: trials.iter().map(CandidateReport::from).collect(),
        }
    }
}

impl From<&TriedCandidate> for CandidateReport {
    fn from(TriedCandidate { candidate, spread, at_once }: &TriedCandidate) -> Self {
        Self {
            limit: candidate.limit.to_owned(),
            burst: candidate.burst,
            spread_burst: candidate.spread,
            refused: spread.requests,
            clients_refused: spread.clients.len() as u64,
            at_once: at_once.as_ref().map(|at_once| AtOnceReport {
                burst: candidate.at_once.unwrap_or(candidate.burst),
                refused: at_once.requests,
                clients_refused: at_once.clients.len() as u64,
            }),
            per_minute: candidate.per_minute,
            needs: candidate.needs.clone(),
        }
    }
}

impl Consumer for Trial<'_> {
    fn consume(&mut self, batch: &LineBatch) {
        for request in &batch.slots {
            let client = client_hash(batch, request, &self.per, self.attributes);
            for TriedCandidate { candidate, spread, at_once } in &mut self.candidates {
                if !candidate.exceeding.contains(&client) {
                    continue;
                }
                let mut attributes = smallvec::SmallVec::new();
                batch.push_attributes(request, self.attributes, &mut attributes);
                spread.decide(client, &attributes, request.at);
                if let Some(at_once) = at_once {
                    at_once.decide(client, &attributes, request.logged_at);
                }
            }
        }
    }
}

/// Why the suggested limits could not be simulated.
#[derive(Debug)]
pub(super) enum TrialError {
    Capacity(String),
    Rules(Mistakes),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_suffices_for_all_but_one_in_a_thousand() {
        let up_to = |most: u64| sufficient_burst(&(1..=most).collect::<Vec<_>>(), 1_000);
        assert_eq!(sufficient_burst(&[], 1_000), 1);
        assert_eq!([3, 1_000, 1_999, 2_000].map(up_to), [3, 999, 1_998, 1_998]);
    }

    #[test]
    fn highest_level_determines_the_burst() {
        let attributes = LineAttributes::default();
        let mut peaks = Peaks::new(&[], &attributes, false);
        // Three requests at once, then one request every 50 ms. At 10/s, 50 ms refill half a token.
        for at in [0, 0, 0, 50, 100, 150, 200] {
            let at = 1_700_000_000_000_000_000 + at * 1_000_000;
            peaks.count_request(1, at, at);
        }
        let bursts: Vec<u64> = peaks.candidates().iter().map(|candidate| candidate.burst).collect();
        assert_eq!(bursts, [7, 7, 5, 3]);
        assert_eq!(peaks.peak_reports().iter().map(|peak| peak.max).collect::<Vec<_>>(), [7, 7, 7]);
    }

    #[test]
    fn larger_burst_of_spread_and_at_once_is_suggested() {
        let attributes = LineAttributes::default();
        let mut peaks = Peaks::new(&[], &attributes, true);
        // Four requests in one second, and one in the next second. The fourth request is only 10 ms before the fifth.
        for (at, second) in [(0, 0), (250, 0), (500, 0), (990, 0), (1_000, 1)] {
            let start = 1_700_000_000_000_000_000;
            peaks.count_request(1, start + at * 1_000_000, start + second * 1_000_000_000);
        }
        let both: Vec<(u64, u64, Option<u64>)> =
            peaks.candidates().iter().map(|candidate| (candidate.burst, candidate.spread, candidate.at_once)).collect();
        assert_eq!(both, [(5, 5, Some(5)), (4, 4, Some(4)), (4, 2, Some(4)), (4, 1, Some(4))]);
    }
}
