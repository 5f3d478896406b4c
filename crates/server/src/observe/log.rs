//! The log on standard error: one line per event, as text or as JSON.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, message and fields.
    #[default]
    Text,
    /// One JSON object: `time`, `level`, `message` and the fields.
    Json,
}

/// Parses a log filter: a level, or a list like `warn,tollgate_server=debug`.
///
/// # Errors
/// Returns an error if `text` is neither a level nor such a list.
pub fn parse_filter(text: &str) -> anyhow::Result<Targets> {
    let form =
        || format!("log level `{text}`: write error, warn, info, debug or trace, or a list like info,hyper=debug");
    // Refuse other single words, because `Targets` would treat them as module names and disable all other modules.
    let is_level = |word: &str| word.contains('=') || LevelFilter::from_str(word).is_ok();
    ensure!(text.split(',').all(|word| is_level(word.trim())), form());
    Targets::from_str(text).with_context(form)
}

/// Starts logging to standard error.
pub fn init(format: LogFormat, filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(lines).with(filter).init(),
        LogFormat::Json => registry.with(lines.event_format(JsonFormat)).with(filter).init(),
    }
}

/// Formats events as JSON objects.
struct JsonFormat;

impl<S: Subscriber + for<'a> LookupSpan<'a>, N: for<'a> FormatFields<'a> + 'static> FormatEvent<S, N> for JsonFormat {
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writeln!(writer, "{}", event_to_json(event, &jiff::Timestamp::now().to_string()))
    }
}

fn event_to_json(event: &Event<'_>, time: &str) -> Value {
    let mut fields = LogFields(Map::new());
    fields.0.insert("time".into(), time.into());
    fields.0.insert("level".into(), level_name(*event.metadata().level()).into());
    event.record(&mut fields);
    Value::Object(fields.0)
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

struct LogFields(Map<String, Value>);

impl LogFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_or_lists() {
        for text in ["error", "WARN", "info,hyper=debug", "off"] {
            assert!(parse_filter(text).is_ok(), "{text}");
        }
        for text in ["loud=very", "loud", "info,loud"] {
            let error = parse_filter(text).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| error.contains("write error, warn, info")), "{text}");
        }
    }
}
