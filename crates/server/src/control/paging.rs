//! Pagination of lists. A page starts after the last item of the previous page. A database index finds that item, so
//! earlier items are not read again.

use sqlx::any::AnyRow;

use super::db::are_storable;
use super::model::{Page, PageRequest};
use super::{ControlError, Result};

const DEFAULT_ITEMS: usize = 100;
const MAX_ITEMS: usize = 1000;

/// The sort key of the last item of a page: a number, a name, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) number: i64,
    pub(super) name: String,
}

impl PageRequest {
    /// Returns the maximum number of items and the cursor to start after.
    ///
    /// # Errors
    /// Returns an error if `limit` is out of range or `after` is not a cursor from this service.
    pub(super) fn parse(&self) -> Result<(i64, Option<Cursor>)> {
        let limit = self.limit.unwrap_or(DEFAULT_ITEMS);
        if !(1..=MAX_ITEMS).contains(&limit) {
            return Err(ControlError::Invalid(format!("limit out of range: {limit} (1 to {MAX_ITEMS})")));
        }
        let invalid =
            || ControlError::Invalid("invalid `after`: send the `next` of the previous page, or omit it".into());
        let after = self.after.as_deref().map(|text| Cursor::decode(text).ok_or_else(invalid)).transpose()?;
        Ok((limit as i64, after))
    }
}

impl Cursor {
    pub(super) fn from_number(number: i64) -> Self {
        Self { number, name: String::new() }
    }

    pub(super) fn from_name(name: impl Into<String>) -> Self {
        Self { number: 0, name: name.into() }
    }

    /// Encodes the cursor as opaque text that needs no escaping in URLs.
    fn encode(&self) -> String {
        hex::encode(format!("{}:{}", self.number, self.name))
    }

    fn decode(text: &str) -> Option<Self> {
        let text = String::from_utf8(hex::decode(text).ok()?).ok()?;
        let (number, name) = text.split_once(':')?;
        are_storable([name]).then_some(Self { number: number.parse().ok()?, name: name.into() })
    }
}

/// Builds a page from at most `limit + 1` rows. The extra row only shows that another page follows.
pub(super) fn build_page<T>(
    rows: &[AnyRow],
    limit: i64,
    read: impl Fn(&AnyRow) -> Result<T>,
    cursor: impl Fn(&T) -> Cursor,
) -> Result<Page<T>> {
    let limit = limit as usize;
    let items = rows.iter().take(limit).map(read).collect::<Result<Vec<T>>>()?;
    let next = items.last().filter(|_| rows.len() > limit).map(|last| cursor(last).encode());
    Ok(Page { items, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_invalid_ones_are_refused() {
        for cursor in [Cursor { number: -5, name: "a:b/ü".into() }, Cursor::default()] {
            assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        }
        for text in ["", "zz", "3", "303a00", "+1+1", "🙂", "3a", "ff"] {
            assert_eq!(Cursor::decode(text), None, "for {text}");
        }
    }
}
