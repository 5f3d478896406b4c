//! Encodes charges for the scripts. A call can contain groups of several callers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tollgate_core::{Ask, Cost, Limits, Stamps};
use tollgate_engine::store::{Charge, StoreVerb, UnsentFlag};
use tollgate_share::lease::{Exchange, Need};

use crate::params::{EXACT_BOUND, EncodedLimits};

/// Maximum number of charges in a group. This maximum bounds the time for which a call blocks the store.
pub(crate) const MAX_GROUP_CHARGES: usize = 255;

const VERB_EXACTLY: u8 = 1;
const VERB_UP_TO: u8 = 2;
const VERB_REGARDLESS: u8 = 3;
const VERB_REFUND: u8 = 4;
const VERB_RESET: u8 = 5;
const VERB_RENEW: u8 = 6;
const VERB_PEEK: u8 = 8;

/// Fields that follow a refund or a renewal: none, stamps, or stamps and the instant after which the store ignores the
/// refund.
const UNSTAMPED: u8 = 0;
const STAMPED: u8 = 1;
const STAMPED_UNTIL: u8 = 2;

/// Added to the status of a group if one of its states keeps parameters that differ from the charge's parameters.
pub(crate) const OTHER_PARAMETERS_FLAG: u8 = 16;

/// Status of a group that the special script leaves to the general script.
const STATUS_LEFT_TO_GENERAL: u8 = 255;
/// Length of a bucket state. A reply of the special script contains the state without the parameters.
const BUCKET_STATE_BYTES: usize = 13;

/// An encoded charge. The charge owns its data, so it can be sent even after its caller has given up.
#[derive(Clone, Debug)]
pub(crate) struct QueuedCharge {
    key: Vec<u8>,
    encoded: Arc<EncodedLimits>,
    /// Number of charges that follow this charge in its group.
    rest: u16,
    verb: u8,
    cost: u64,
    /// Optional fields: spread, windows and stamps.
    more: Vec<u8>,
    /// Position of the stamps in `more`.
    stamps_at: usize,
}

impl QueuedCharge {
    /// Encodes a charge that is followed by `rest` charges of its group. `key` is the name of the key in the store.
    pub(crate) fn new(
        verb: StoreVerb,
        charge: &Charge<'_>,
        rest: usize,
        key: Vec<u8>,
        encoded: Arc<EncodedLimits>,
    ) -> Self {
        let asked = match charge.ask {
            Ask::Exactly(_) => VERB_EXACTLY,
            Ask::UpTo(_) => VERB_UP_TO,
            Ask::Regardless(_) => VERB_REGARDLESS,
        };
        let verb = match verb {
            StoreVerb::Check => asked,
            StoreVerb::Peek => asked + VERB_PEEK,
            StoreVerb::Refund => VERB_REFUND,
            StoreVerb::Reset => VERB_RESET,
            StoreVerb::Renew => VERB_RENEW,
        };
        let mut more = Vec::new();
        if encoded.uses_spread() {
            push_number(&mut more, spread_number(charge.key));
        }
        if encoded.uses_windows() {
            let windows = &charge.windows[..charge.windows.len().min(Limits::MAX)];
            more.push(windows.len() as u8);
            for edge in windows.iter().flat_map(|window| [window.start(), window.end()]) {
                push_number(&mut more, edge.as_nanos().div_ceil(1_000));
            }
        }
        let stamps_at = more.len();
        if verb == VERB_REFUND || verb == VERB_RENEW {
            more.push(if charge.stamps.is_some() { STAMPED } else { UNSTAMPED });
            if let Some(stamps) = charge.stamps {
                push_stamps(&mut more, stamps);
            }
        }
        Self { key, encoded, rest: rest as u16, verb, cost: clamp_cost(charge.ask.cost()), more, stamps_at }
    }

    /// Makes the store ignore a stamped refund that it receives after this store time, in microseconds.
    pub(crate) fn ignore_after(&mut self, micros: u64) {
        if let Some(given) = self.more.get_mut(self.stamps_at).filter(|given| **given == STAMPED) {
            *given = STAMPED_UNTIL;
            push_number(&mut self.more, micros);
        }
    }

    /// Returns the end of this charge's answer, given its start `at`, or `None` if the reply is too short.
    fn answer_end(&self, reply: &[u8], at: usize, has_foreign: bool) -> Option<usize> {
        let taken = if matches!(self.verb & !VERB_PEEK, VERB_UP_TO | VERB_REFUND | VERB_RENEW) { 7 } else { 0 };
        let state = at + 1 + taken;
        if !has_foreign {
            return Some(state + self.encoded.state_len_in_reply());
        }
        let length = reply.get(state..state + 2)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        Some(state + 2 + if length == 0 { self.encoded.state_len_in_reply() } else { length })
    }
}

/// Clamps a cost to `EXACT_BOUND`. No finite limit has that much capacity, so larger costs make no difference.
pub(crate) fn clamp_cost(cost: Cost) -> u64 {
    cost.get().min(EXACT_BOUND)
}

/// Returns whether the answer to a charge contains the amount taken.
pub(crate) fn answer_contains_taken(verb: StoreVerb, charge: &Charge<'_>) -> bool {
    match verb {
        StoreVerb::Check | StoreVerb::Peek => matches!(charge.ask, Ask::UpTo(_)),
        StoreVerb::Refund | StoreVerb::Renew => true,
        StoreVerb::Reset => false,
    }
}

/// Returns the spread number of a key. The number modulo the window length is the start of the key's spread windows, in
/// microseconds. The result is below 2⁵⁰ and the same on every node.
pub fn spread_number(key: &[u8]) -> u64 {
    // FNV-1a with a final mix, because the upper bits of FNV-1a hardly depend on the last bytes. The hash must be
    // uniform but need not be secret: choosing when a window starts gives a caller no advantage.
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29) & ((1 << 50) - 1)
}

/// Encodes each stamp as its quotient and remainder by 1000, so that the script can decode any kind of stamp. Only the
/// script knows the kind, because the parameters of the state may have changed. A lease stamp is a number, which needs
/// quotient and remainder. Any other stamp is an instant in nanoseconds, and its quotient is the instant in
/// microseconds.
fn push_stamps(bytes: &mut Vec<u8>, stamps: &Stamps) {
    bytes.push(stamps.count() as u8);
    for bits in (0..stamps.count()).map(|index| stamps.get(index).to_bits()) {
        push_number(bytes, bits / 1_000);
        bytes.extend(((bits % 1_000) as u16).to_le_bytes());
    }
}

/// Writes a number as seven bytes. Every valid number is below 2⁵⁶.
fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(&number.min((1 << 56) - 1).to_le_bytes()[..7]);
}

/// An encoded group.
#[derive(Clone, Debug)]
pub(crate) struct QueuedGroup {
    pub(crate) charges: Vec<QueuedCharge>,
    pub(crate) route: Route,
    pub(crate) kind: GroupKind,
    /// Set if the caller gives up before the group is sent.
    pub(crate) unsent: Option<UnsentFlag>,
}

/// The operation of a group.
#[derive(Clone, Debug)]
pub(crate) enum GroupKind {
    /// Decides the charges, all or none.
    Charges,
    /// Merges each charge independently, exactly once, in a separate call.
    Merge(MergeHead),
    /// Exchanges leases. The group has no charges.
    Exchange(QueuedExchange),
}

/// The identity and age of a merge.
#[derive(Clone, Debug)]
pub(crate) struct MergeHead {
    /// The key of the node's counter.
    pub(crate) counter: Vec<u8>,
    pub(crate) sequence: u64,
    /// Age of the charges, in microseconds.
    pub(crate) age: u64,
}

/// An encoded exchange of leases.
#[derive(Clone, Debug)]
pub(crate) struct QueuedExchange {
    key: Vec<u8>,
    encoded: Arc<EncodedLimits>,
    /// The encoded fields after the key and the parameters.
    rest: Vec<u8>,
}

impl QueuedExchange {
    /// Encodes an exchange. `name` is the name of the key in the store. Amounts are clamped and instants are converted
    /// to microseconds.
    pub(crate) fn new(key: &[u8], name: Vec<u8>, encoded: Arc<EncodedLimits>, exchange: &Exchange) -> Self {
        let (holds, need) = match exchange.need {
            Need::Hold(amount) => (1, amount),
            Need::Spend(amount) => (0, amount),
            // Never exchanged: callers send these needs as charges.
            Need::UpTo(_) | Need::Regardless(_) | Need::Refund(_) | Need::Reset => (0, 0),
        };
        let mut rest = vec![holds];
        for number in [need.min(EXACT_BOUND), exchange.wants.min(EXACT_BOUND), spread_number(key)] {
            push_number(&mut rest, number);
        }
        let settle = &exchange.settle[..exchange.settle.len().min(usize::from(u8::MAX))];
        rest.push(settle.len() as u8);
        for lease in settle {
            for number in [lease.epoch, lease.slice_expiry / 1_000, lease.spent, lease.back, lease.held] {
                push_number(&mut rest, number);
            }
        }
        Self { key: name, encoded, rest }
    }

    /// Returns the end of this exchange's answer, given its start `at`, or `None` if the reply is too short.
    fn answer_end(&self, reply: &[u8], at: usize) -> Option<usize> {
        let end = match reply.get(at)? {
            0 | 1 => {
                let slices = usize::from(*reply.get(at + EXCHANGE_HEAD_BYTES - 1)?);
                at + EXCHANGE_HEAD_BYTES + 14 * slices + self.encoded.state_len_in_reply()
            }
            2 => at + 8,
            _ => at + 1,
        };
        (end <= reply.len()).then_some(end)
    }
}

/// Length of an exchange answer up to its slices and state: status, epoch, leased amount, expiry, hungry flag, and
/// number of slices.
const EXCHANGE_HEAD_BYTES: usize = 1 + 7 + 7 + 7 + 1 + 1;

/// The route of a group. All groups in a call have the same route. Without a cluster, all groups have the same lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) lane: u8,
    /// Whether the lane is being moved to this server, which requires `ASKING`.
    pub(crate) asking: bool,
    /// Whether the group needs a separate call, because the keys of its lane are split between two servers.
    pub(crate) alone: bool,
}

impl QueuedGroup {
    /// Returns the number of charges by which the group fills a call. A group without charges counts as one.
    pub(crate) fn weight(&self) -> usize {
        self.charges.len().max(1)
    }

    /// Returns the key and the parameters for the special script if that script can decide this group.
    fn special(&self) -> Option<(&[u8], &[u8])> {
        match (&*self.charges, &self.kind) {
            ([charge], GroupKind::Charges) if charge.verb == VERB_EXACTLY && charge.cost > 0 => {
                Some((&charge.key, charge.encoded.special()?))
            }
            _ => None,
        }
    }

    /// Returns the end of this group's answer, given its start `at`, or `None` if the reply is too short.
    pub(crate) fn answer_end(&self, reply: &[u8], mut at: usize, script_kind: ScriptKind) -> Option<usize> {
        match &self.kind {
            GroupKind::Merge(_) => return Some(reply.len()),
            GroupKind::Exchange(exchange) => return exchange.answer_end(reply, at),
            GroupKind::Charges => {}
        }
        let status = *reply.get(at)?;
        at += 1;
        if script_kind == ScriptKind::Special {
            at += if status == STATUS_LEFT_TO_GENERAL { 0 } else { 1 + BUCKET_STATE_BYTES };
        } else if status & !OTHER_PARAMETERS_FLAG <= 1 {
            for charge in &self.charges {
                at = charge.answer_end(reply, at, status & OTHER_PARAMETERS_FLAG != 0)?;
            }
        }
        (at <= reply.len()).then_some(at)
    }
}

/// Returns whether the special script left the group to the general script.
pub(crate) fn is_left_to_general(answer: &[u8]) -> bool {
    answer == [STATUS_LEFT_TO_GENERAL]
}

/// Returns whether the answer is a refusal in which every state has the parameters of its charge.
pub(crate) fn is_plain_refusal(answer: &[u8]) -> bool {
    answer.first() == Some(&1)
}

/// The script of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptKind {
    General,
    Special,
    Merge,
    Exchange,
}

/// One script call with several groups. Each key and each set of parameters is sent once.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script_kind: ScriptKind,
    pub(crate) route: Route,
    /// Indexes of the groups, in order.
    pub(crate) groups: Vec<usize>,
    keys: StringTable<'a>,
    parameters: StringTable<'a>,
    charges: Vec<u8>,
    /// The open run of charges for the special script.
    run: Option<KeyRun>,
    merge: Option<&'a MergeHead>,
}

/// Charges for keys with consecutive indexes in `KEYS`, all with the same parameters and cost.
#[derive(Clone, Copy, Debug)]
struct KeyRun {
    first: u16,
    count: u16,
    parameters: u8,
    cost: u64,
}

/// Builds the calls for indexed groups. No key is sent to both the general and the special script, so charges of a key
/// are decided in order.
pub(crate) fn build_calls<'a>(
    groups: impl Iterator<Item = (usize, &'a QueuedGroup)> + Clone,
    with_special: bool,
) -> Vec<Call<'a>> {
    let is_special = |group: &QueuedGroup| with_special && group.special().is_some();
    let mut general_keys = HashSet::new();
    if groups.clone().any(|(_, group)| is_special(group)) {
        let general = groups.clone().filter(|(_, group)| !is_special(group));
        general_keys.extend(general.flat_map(|(_, group)| &group.charges).map(|charge| &*charge.key));
    }
    let mut calls: Vec<Call<'a>> = Vec::with_capacity(2);
    for (index, group) in groups {
        let special = group.special().filter(|(key, _)| with_special && !general_keys.contains(key));
        let script_kind = match (&group.kind, special) {
            (GroupKind::Merge(_), _) => ScriptKind::Merge,
            (GroupKind::Exchange(_), _) => ScriptKind::Exchange,
            (GroupKind::Charges, Some(_)) => ScriptKind::Special,
            (GroupKind::Charges, None) => ScriptKind::General,
        };
        let is_alone = group.route.alone || script_kind == ScriptKind::Merge;
        let fits = |call: &Call<'_>| call.script_kind == script_kind && call.route == group.route && !is_alone;
        let at = calls.iter().position(fits).unwrap_or_else(|| {
            calls.push(Call::new(script_kind, group.route));
            calls.len() - 1
        });
        let call = &mut calls[at];
        call.groups.push(index);
        match (&group.kind, special) {
            (GroupKind::Exchange(exchange), _) => call.push_exchange(exchange),
            (_, Some((key, parameters))) => call.push_special(key, parameters, group.charges[0].cost),
            (kind, None) => {
                call.merge = if let GroupKind::Merge(merge) = kind { Some(merge) } else { None };
                group.charges.iter().for_each(|charge| call.push(charge));
            }
        }
    }
    calls.iter_mut().for_each(Call::end_run);
    calls
}

impl<'a> Call<'a> {
    fn new(script_kind: ScriptKind, route: Route) -> Self {
        Self {
            script_kind,
            route,
            groups: Vec::new(),
            keys: StringTable::default(),
            parameters: StringTable::default(),
            charges: Vec::new(),
            run: None,
            merge: None,
        }
    }

    fn push(&mut self, entry: &'a QueuedCharge) {
        self.charges.extend(entry.rest.to_le_bytes());
        self.charges.extend(self.keys.index_of(&entry.key).to_le_bytes());
        self.charges.extend([self.parameters.index_of(entry.encoded.bytes()) as u8, entry.verb]);
        push_number(&mut self.charges, entry.cost);
        self.charges.extend(&entry.more);
    }

    fn push_exchange(&mut self, exchange: &'a QueuedExchange) {
        self.charges.extend(self.keys.index_of(&exchange.key).to_le_bytes());
        self.charges.push(self.parameters.index_of(exchange.encoded.bytes()) as u8);
        self.charges.extend(&exchange.rest);
    }

    fn push_special(&mut self, key: &'a [u8], parameters: &'a [u8], cost: u64) {
        let (first, parameters) = (self.keys.index_of(key), self.parameters.index_of(parameters) as u8);
        if let Some(run) = &mut self.run
            && run.first + run.count == first
            && (run.parameters, run.cost) == (parameters, cost)
        {
            run.count += 1;
            return;
        }
        self.end_run();
        self.run = Some(KeyRun { first, count: 1, parameters, cost });
    }

    fn end_run(&mut self) {
        if let Some(run) = self.run.take() {
            self.charges.extend([run.first, run.count].map(u16::to_le_bytes).as_flattened());
            self.charges.push(run.parameters);
            push_number(&mut self.charges, run.cost);
        }
    }

    /// Returns the Redis command. `how` is `EVALSHA` and the script's hash, or `EVAL` and the script's source.
    pub(crate) fn to_command(&self, how: [&str; 2]) -> redis::Cmd {
        let mut command = redis::cmd(how[0]);
        let counter = self.merge.map(|merge| &*merge.counter);
        command.arg(how[1]).arg(self.keys.known.len() + usize::from(counter.is_some())).arg(&self.keys.known);
        command.arg(counter).arg(&*self.charges).arg(&self.parameters.known);
        if let Some(merge) = self.merge {
            let mut head = Vec::with_capacity(14);
            push_number(&mut head, merge.sequence);
            push_number(&mut head, merge.age);
            command.arg(head);
        }
        command
    }
}

/// Byte strings that are sent once and then referenced by a one-based index.
#[derive(Debug, Default)]
struct StringTable<'a> {
    known: Vec<&'a [u8]>,
    indexes: HashMap<&'a [u8], u16>,
}

impl<'a> StringTable<'a> {
    fn index_of(&mut self, bytes: &'a [u8]) -> u16 {
        // Most calls repeat one set of parameters.
        if self.known.last() == Some(&bytes) {
            return self.known.len() as u16;
        }
        let next = self.known.len() as u16 + 1;
        let index = *self.indexes.entry(bytes).or_insert(next);
        if index == next {
            self.known.push(bytes);
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::{Limit, TokenBucket};
    use tollgate_engine::store::Consistency;

    fn queued_group(key: &str, cost: u64, verb: StoreVerb) -> QueuedGroup {
        let bucket = TokenBucket::new("10/s".parse().unwrap(), 10).unwrap();
        let limits = Limit::from(bucket).into();
        let charge = Charge {
            key: key.as_bytes(),
            limits_id: 0,
            limits: &limits,
            earlier: &[],
            ask: Ask::Exactly(Cost::new(cost)),
            stamps: None,
            windows: &[],
            consistency: Consistency::Strict,
        };
        let encoded = Arc::new(EncodedLimits::new(&limits).unwrap());
        let charges = vec![QueuedCharge::new(verb, &charge, 0, key.as_bytes().to_vec(), encoded)];
        QueuedGroup { charges, route: Route::default(), kind: GroupKind::Charges, unsent: None }
    }

    /// Checks which groups are sent to the special script and which groups to the general script.
    #[track_caller]
    fn assert_scripts(groups: &[QueuedGroup], special: &[usize], general: &[usize]) {
        let calls = build_calls(groups.iter().enumerate(), true);
        for (script_kind, expected) in [(ScriptKind::Special, special), (ScriptKind::General, general)] {
            let found: Vec<usize> = calls
                .iter()
                .filter(|call| call.script_kind == script_kind)
                .flat_map(|call| call.groups.clone())
                .collect();
            assert_eq!(found, expected, "{script_kind:?}");
        }
    }

    #[test]
    fn no_key_is_in_two_calls() {
        let take = |key| queued_group(key, 1, StoreVerb::Check);
        assert_scripts(&[take("a"), take("b"), take("a")], &[0, 1, 2], &[]);
        assert_scripts(&[take("a"), queued_group("a", 1, StoreVerb::Refund), take("b")], &[2], &[0, 1]);
        assert_scripts(&[queued_group("a", 0, StoreVerb::Check), queued_group("b", 1, StoreVerb::Peek)], &[], &[0, 1]);
    }

    #[test]
    fn equal_charges_of_consecutive_keys_form_a_run() {
        let groups =
            [("a", 1), ("b", 1), ("c", 2), ("a", 2)].map(|(key, cost)| queued_group(key, cost, StoreVerb::Check));
        let calls = build_calls(groups.iter().enumerate(), true);
        let runs = [
            [1_u8, 0, 2, 0, 1, 1, 0, 0, 0, 0, 0, 0],
            [3, 0, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0],
            [1, 0, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(calls[0].charges, runs.concat());
    }

    #[test]
    fn keys_are_spread_evenly_and_reproducibly() {
        assert_eq!(
            [spread_number(b""), spread_number(b"a"), spread_number(b"b")],
            [248_837_491_663_987, 454_752_641_356_578, 255_435_840_419_717]
        );
        let minute = 60_000_000;
        let early = (0..1_000_u32).filter(|key| spread_number(&key.to_le_bytes()) % minute < minute / 4).count();
        assert!((200..300).contains(&early), "{early} of 1000 windows begin in the first quarter");
    }
}
