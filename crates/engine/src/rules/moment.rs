//! Points in time as people write them.

use tollgate::{Time, Wall};

use super::limit::read_zone;
use super::raw::shorten;
use crate::calendar;

/// What is wrong with a time, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMoment {
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub help: String,
}

/// Reads a time like `2030-01-31T18:00:00Z`, `2030-01-31T18:00:00+01:00`, or `2030-01-31T18:00[Europe/Paris]` in one of the zones that
/// are brought along.
///
/// ```
/// use tollgate_engine::rules::moment;
///
/// assert_eq!(moment("2030-01-31T18:00[Europe/Paris]"), moment("2030-01-31T17:00:00Z"));
/// assert_eq!(moment("2030-01-31T18:00[Europe/Pari]").unwrap_err().help, "did you mean `Europe/Paris`?");
/// ```
///
/// # Errors
/// When it is none.
pub fn moment(text: &str) -> Result<Time<Wall>, NoMoment> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(calendar::time(at));
    }
    let zoned = || {
        let (civil, zone) = text.strip_suffix(']')?.split_once('[')?;
        let zone = match read_zone(zone) {
            Ok(zone) => zone,
            Err((problem, help)) => return Some(Err(NoMoment { problem, help })),
        };
        let civil: jiff::civil::DateTime = civil.parse().ok()?;
        Some(Ok(calendar::time(zone.timestamp(civil)?)))
    };
    zoned().unwrap_or_else(|| {
        let help = "write it like 2030-01-31T18:00:00Z, 2030-01-31T18:00:00+01:00 or 2030-01-31T18:00[Europe/Paris]";
        Err(NoMoment { problem: format!("`{}` is not a time", shorten(text)), help: help.into() })
    })
}
