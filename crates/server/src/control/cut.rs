//! Parts of lists. A page begins behind the last item of the one before, wherever that is by now, and is found by an index: it
//! costs the same at the end of a long list as at its beginning.

use sqlx::any::AnyRow;

use super::db::storable;
use super::hex::hex;
use super::model::{Cut, Page};
use super::{ControlError, Result};

const DEFAULT: usize = 100;
const MOST: usize = 1000;

/// The last item that was seen: a number, or a name, or both, by what the list is in order of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) number: i64,
    pub(super) name: String,
}

impl Cut {
    /// How many, and behind what.
    ///
    /// # Errors
    /// When it is none, too large, or begins nowhere.
    pub(super) fn read(&self) -> Result<(i64, Option<Cursor>)> {
        let limit = match self.limit.unwrap_or(DEFAULT) {
            limit @ 1..=MOST => limit as i64,
            limit => {
                return Err(ControlError::Invalid(format!("limit is {limit}, a page has 1 to {MOST} items")));
            }
        };
        let after = match &self.after {
            None => None,
            Some(text) => Some(Cursor::read(text).ok_or_else(|| {
                ControlError::Invalid("`after` is not what was given as `next`; leave it out to begin anew".into())
            })?),
        };
        Ok((limit, after))
    }
}

impl Cursor {
    /// Nothing that anybody should want to understand, and safe in addresses.
    fn write(&self) -> String {
        hex(format!("{}:{}", self.number, self.name).as_bytes())
    }

    fn read(text: &str) -> Option<Self> {
        let pairs = text.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> = pairs
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok())
            .collect();
        let text = String::from_utf8(bytes?).ok()?;
        let (number, name) = text.split_once(':')?;
        storable(name).then_some(Self { number: number.parse().ok()?, name: name.into() })
    }
}

/// A page of rows of which one more was asked for than belongs to it.
pub(super) fn page_of<T>(
    rows: &[AnyRow],
    limit: i64,
    read: impl Fn(&AnyRow) -> Result<T>,
    cursor: impl Fn(&T) -> Cursor,
) -> Result<Page<T>> {
    let limit = limit as usize;
    let items = rows.iter().take(limit).map(read).collect::<Result<Vec<T>>>()?;
    let next = if rows.len() > limit { items.last().map(|last| cursor(last).write()) } else { None };
    Ok(Page { items, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_back_and_others_refused() {
        for cursor in [Cursor { number: -5, name: "a:b/ü".into() }, Cursor::default()] {
            assert_eq!(Cursor::read(&cursor.write()), Some(cursor));
        }
        for text in ["", "zz", "3", "303a00", "+1+1", "🙂", "3a", "ff"] {
            assert_eq!(Cursor::read(text), None, "for {text}");
        }
    }
}
