//! SQL statements that are built from parts, such as rows of values and optional conditions. Values are always bound.
//!
//! sqlx's query builder writes `?` for each value, which PostgreSQL does not accept; both databases accept `$1`.

use std::fmt::Write as _;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Arguments, AssertSqlSafe, Encode, Executor, Type};

use super::Result;

/// A statement and the values bound to it.
pub(super) struct Sql {
    text: String,
    values: AnyArguments,
    error: Option<sqlx::error::BoxDynError>,
    /// Whether the connection caches the prepared statement.
    persistent: bool,
}

impl Sql {
    pub(super) fn new(text: &'static str) -> Self {
        Self { text: text.into(), values: AnyArguments::default(), error: None, persistent: true }
    }

    /// Appends SQL text, which must not contain input.
    pub(super) fn push(&mut self, text: &'static str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Appends a bound value.
    pub(super) fn bind<'t, T: Encode<'t, Any> + Type<Any>>(&mut self, value: T) -> &mut Self {
        if let Err(error) = self.values.add(value) {
            self.error = Some(error);
        }
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "${}", self.values.len());
        self
    }

    /// Appends a comma and a bound value.
    pub(super) fn bind_next<'t, T: Encode<'t, Any> + Type<Any>>(&mut self, value: T) -> &mut Self {
        self.push(", ").bind(value)
    }

    /// Appends rows of values: `VALUES ($1, $2), ($3, $4)`.
    pub(super) fn push_rows<R>(&mut self, rows: &[R], mut row: impl FnMut(&mut Self, &R)) -> &mut Self {
        for (index, item) in rows.iter().enumerate() {
            self.push(if index == 0 { "VALUES (" } else { "), (" });
            row(self, item);
        }
        // Caches only statements with one row or the maximum number of rows. Other row counts are too rare to be worth
        // caching.
        self.persistent = rows.len() == 1 || rows.len() == MAX_ROWS_PER_STATEMENT;
        self.push(")")
    }

    /// Runs the statement and returns the number of changed rows.
    pub(super) async fn execute<'e>(&mut self, executor: impl Executor<'e, Database = Any>) -> Result<u64> {
        Ok(self.take_query()?.execute(executor).await?.rows_affected())
    }

    /// Runs the query and returns all rows.
    pub(super) async fn fetch_all<'e>(&mut self, executor: impl Executor<'e, Database = Any>) -> Result<Vec<AnyRow>> {
        Ok(self.take_query()?.fetch_all(executor).await?)
    }

    /// Runs the query and returns the first row, if any.
    pub(super) async fn fetch_optional<'e>(
        &mut self,
        executor: impl Executor<'e, Database = Any>,
    ) -> Result<Option<AnyRow>> {
        Ok(self.take_query()?.fetch_optional(executor).await?)
    }

    fn take_query(&mut self) -> Result<Query<'static, Any, AnyArguments>, sqlx::Error> {
        match self.error.take() {
            Some(error) => Err(sqlx::Error::Encode(error)),
            // Safe: the text contains no input, because all values are bound.
            None => {
                let (text, values) = (std::mem::take(&mut self.text), std::mem::take(&mut self.values));
                Ok(sqlx::query_with(AssertSqlSafe(text), values).persistent(self.persistent))
            }
        }
    }
}

/// Maximum number of rows per statement. SQLite searches all parameter names for each bound value, so the cost of a
/// statement grows with the square of its row count.
pub(super) const MAX_ROWS_PER_STATEMENT: usize = 32;
