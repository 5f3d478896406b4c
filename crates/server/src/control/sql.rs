//! Statements that are put together: lists of rows, and conditions that may be left out. Values are always bound, never written.
//!
//! The builder that comes with the library writes `?` for every value, which PostgreSQL does not know; `$1` is known to both.

use std::fmt::Write as _;

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, Arguments, AssertSqlSafe, Encode, Type};

/// A statement, and the values in it.
pub(super) struct Sql {
    text: String,
    values: AnyArguments,
    wrong: Option<sqlx::error::BoxDynError>,
}

impl Sql {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text: text.into(), values: AnyArguments::default(), wrong: None }
    }

    /// Text of our own.
    pub(super) fn push(&mut self, text: &'static str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// A value from wherever.
    pub(super) fn bind<'t, T: Encode<'t, Any> + Type<Any>>(&mut self, value: T) -> &mut Self {
        match self.values.add(value) {
            Ok(()) => {}
            Err(error) => self.wrong = Some(error),
        }
        // Writing to a text does not fail.
        let _ = write!(self.text, "${}", self.values.len());
        self
    }

    /// Another value of a list.
    pub(super) fn and<'t, T: Encode<'t, Any> + Type<Any>>(&mut self, value: T) -> &mut Self {
        self.push(", ").bind(value)
    }

    /// Rows of values: `VALUES ($1, $2), ($3, $4)`.
    pub(super) fn rows<R>(
        &mut self,
        rows: impl IntoIterator<Item = R>,
        mut row: impl FnMut(&mut Self, R),
    ) -> &mut Self {
        for (place, item) in rows.into_iter().enumerate() {
            self.push(if place == 0 { "VALUES (" } else { "), (" });
            row(self, item);
        }
        self.push(")")
    }

    /// Ready to be run. Who runs it says whether it is always the same, and worth being kept.
    pub(super) fn query(self) -> Result<Query<'static, Any, AnyArguments>, sqlx::Error> {
        match self.wrong {
            // Everything in the text is ours; values are bound.
            None => Ok(sqlx::query_with(AssertSqlSafe(self.text), self.values)),
            Some(error) => Err(sqlx::Error::Encode(error)),
        }
    }
}
