//! Decodes states in a reply, for views.

use tollgate_core::{Limits, Now};

use crate::answer::{ByteCursor, TooShort, instant_nanos};
use crate::own_state::OwnState;
use crate::params::EncodedLimits;
use crate::request::OTHER_PARAMETERS_FLAG;

/// The parts of a request for one state that determine the format of the reply.
pub(super) struct StateQuery<'a> {
    pub(super) limits: &'a Limits,
    pub(super) encoded: &'a EncodedLimits,
    /// Whether the reply contains the amount taken.
    pub(super) contains_taken: bool,
}

/// Decodes the states in a reply to groups with one charge each. The result is `None` for a key without a valid state,
/// for example with another program's value.
pub(super) fn read_states(
    bytes: &[u8],
    asked: &[StateQuery<'_>],
    now_micros: u64,
) -> Result<Vec<Option<OwnState>>, TooShort> {
    let now = Now::at(instant_nanos(now_micros));
    let mut bytes = ByteCursor::new(bytes);
    asked.iter().map(|asked| read_state(&mut bytes, asked, &now)).collect()
}

fn read_state(bytes: &mut ByteCursor<'_>, asked: &StateQuery<'_>, now: &Now<'_>) -> Result<Option<OwnState>, TooShort> {
    let status = bytes.take(1)?[0];
    if status & !OTHER_PARAMETERS_FLAG > 1 {
        return Ok(None);
    }
    bytes.take(if asked.contains_taken { 8 } else { 1 })?;
    let foreign = if status & OTHER_PARAMETERS_FLAG == 0 { 0 } else { bytes.take_number(2)? as usize };
    // All algorithms that can be merged have states of fixed length, so the reply contains the whole stored value.
    let state = bytes.take(if foreign > 0 { foreign } else { asked.encoded.state_len_in_reply() })?;
    Ok(OwnState::decode(state, asked.limits, now).ok().map(|mut own| {
        own.words.truncate(tollgate_core::Algorithm::words(&own.limits));
        own
    }))
}
