//! `tollgate replay`: applies the given rules to the requests in access logs, without affecting a server.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use jiff::tz::TimeZone;
use tollgate_engine::rules::Rules;

use super::remote::output;
use super::serve::parse_count;
use super::{exit_code, files, print_mistakes};
use crate::replay::{Log, Mapping, ReadBounds, ReplayError, ReplayOptions, ReplayProgress, Report, replay};
use crate::rules_source::file::parse_all;

#[derive(Clone, Debug, Args)]
pub(super) struct ReplayArgs {
    /// The access logs, compressed or not, merged by time; the standard input by default
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,

    /// The rules; without rules, limits are suggested
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// The rules to compare with: reports keys that are newly refused or no longer refused
    #[arg(long, value_name = "FILE", requires = "rules")]
    against: Option<PathBuf>,

    /// The domain whose rules decide, if there are several domains
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// The format, if it is not detected: a name (combined, common, vhost_combined, envoy, haproxy, json or csv), a
    /// log_format of nginx, a LogFormat of Apache or an access log format of Envoy
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// The time zone of timestamps without a zone
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    zone: String,

    /// Takes an attribute, or `time`, from a field of the log, such as api_key=http_x_api_key
    #[arg(long, value_name = "ATTRIBUTE=FIELD")]
    map: Vec<String>,

    /// Sets an attribute of all requests, such as plan=free
    #[arg(long, value_name = "ATTRIBUTE=VALUE")]
    set: Vec<String>,

    /// Suggests limits that never refuse 99.9 % of the clients; the value names a client's attribute, like per=client_ip
    #[arg(long, value_name = "per=ATTRIBUTE")]
    suggest: Option<String>,

    /// Writes the suggested rules to a file
    #[arg(long, value_name = "FILE")]
    write_rules: Option<PathBuf>,

    /// Prints the result as JSON
    #[arg(long)]
    json: bool,

    /// Writes the result as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Exits with status 1 if more than this percentage of the requests are refused, such as 0.1%
    #[arg(long, value_name = "PERCENT", requires = "rules")]
    fail_above: Option<String>,

    /// Shows hashes instead of keys
    #[arg(long)]
    hash_keys: bool,

    /// Writes the requests as JSON lines for `tollgate decide`, which prints each decision
    #[arg(long, value_name = "FILE", requires = "rules")]
    requests: Option<PathBuf>,

    /// Writes the decisions as JSON lines, as `tollgate decide` prints them
    #[arg(long, value_name = "FILE", requires = "rules")]
    decisions: Option<PathBuf>,

    /// The maximum number of keys, such as 500k or 10M
    #[arg(long, value_name = "KEYS", default_value = "1M")]
    capacity: String,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate replay access.log
  tollgate replay --rules new.yaml --against old.yaml --html report.html access.log access.log.1.gz
  zcat access.log.*.gz | tollgate replay --rules rules.yaml --fail-above 0.1%
  tollgate replay --rules rules.yaml --format '$remote_addr [$time_local] \"$request\" $http_x_api_key' \\
      --map api_key=http_x_api_key --set plan=free access.log

The format is detected from the first lines: nginx, Apache, Envoy, HAProxy, Caddy, JSON lines, or CSV with a header line. \
Requests have the same attributes as with forward-auth (client_ip, method, path, host, header.x, cookie.x, query.x); any other \
attribute is read from the field of the same name. If timestamps are in whole seconds, the result is reported twice: with the \
requests of each second spread evenly, and with all of them at its beginning.";

/// Replays the logs and prints the result.
///
/// # Errors
/// Returns an error if a log or the rules cannot be read, or an output file cannot be written.
pub(super) fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let fail_above = args.fail_above.as_deref().map(parse_percent).transpose()?;
    let (Some(rules), Some(against)) = (load_rules(args.rules.as_deref())?, load_rules(args.against.as_deref())?)
    else {
        return Ok(ExitCode::FAILURE);
    };
    let options = replay_options(args, rules, against)?;
    let logs: Vec<Log> = match &*args.logs {
        [] => vec![Log::StandardInput],
        paths => paths.iter().map(|path| log_at_path(path)).collect(),
    };
    let stdin_count = logs.iter().filter(|log| matches!(log, Log::StandardInput)).count();
    ensure!(stdin_count <= 1, "the standard input can be read only once, but it is named {stdin_count} times");
    let report = match with_progress(|show| replay(&logs, &options, show)) {
        Ok(report) => report,
        Err(ReplayError::Rules(mistakes)) => {
            print_mistakes(&mistakes)?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error @ ReplayError::Invalid(_)) => bail!("{error}"),
    };
    write_report(args, &report)?;
    let refused = report.refused_millionths();
    let is_above = fail_above.is_some_and(|most| refused > most);
    if is_above {
        let percent = args.fail_above.as_deref().unwrap_or_default();
        let share = format!("{}.{:04} %", refused / 10_000, refused % 10_000);
        writeln!(std::io::stderr(), "tollgate: {share} of the requests are refused (--fail-above {percent})")?;
    }
    Ok(exit_code(!is_above))
}

fn replay_options(args: &ReplayArgs, rules: Option<Rules>, against: Option<Rules>) -> anyhow::Result<ReplayOptions> {
    let suggest = match (&args.suggest, &rules) {
        (Some(text), _) => {
            let names = text.strip_prefix("per=").filter(|names| !names.is_empty());
            let names = names.with_context(|| format!("--suggest {text}: write it like per=client_ip"))?;
            names.split(',').map(str::to_owned).collect()
        }
        (None, None) => vec!["client_ip".to_owned()],
        (None, Some(_)) => Vec::new(),
    };
    ensure!(
        args.write_rules.is_none() || !suggest.is_empty(),
        "--write-rules writes suggested rules; add --suggest per=client_ip"
    );
    let zone =
        TimeZone::get(&args.zone).with_context(|| format!("--zone {}: write it like Europe/Paris", args.zone))?;
    Ok(ReplayOptions {
        rules,
        against,
        domain: args.domain.clone(),
        format: args.format.clone(),
        zone,
        mapping: Mapping { map: parse_pairs("--map", &args.map)?, set: parse_pairs("--set", &args.set)? },
        suggest,
        capacity: parse_count("--capacity", &args.capacity)?,
        hash_keys: args.hash_keys,
        requests: args.requests.clone(),
        decisions: args.decisions.clone(),
        bounds: ReadBounds::default(),
    })
}

fn log_at_path(path: &Path) -> Log {
    if path.as_os_str() == "-" { Log::StandardInput } else { Log::File(path.to_owned()) }
}

/// Loads the rules at `path`. Returns `Some(None)` if there is no path. If the rules have mistakes, prints them and
/// returns `None`.
fn load_rules(path: Option<&Path>) -> anyhow::Result<Option<Option<Rules>>> {
    let Some(path) = path else { return Ok(Some(None)) };
    let files = files::read_paths(&[path.to_owned()])?;
    let sources: Vec<_> = files.iter().map(files::RuleFile::as_source).collect();
    match parse_all(&sources) {
        Ok(rules) => {
            rules.left_out().map_or(Ok(()), print_mistakes)?;
            Ok(Some(Some(rules)))
        }
        Err(mistakes) => {
            print_mistakes(&mistakes)?;
            Ok(None)
        }
    }
}

fn parse_pairs(flag: &str, texts: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let parsed = |text: &String| {
        Mapping::parse_pair(text).with_context(|| format!("{flag} {text}: write it like attribute=value"))
    };
    texts.iter().map(parsed).collect()
}

/// Parses a percentage like `0.1%` and returns it in millionths (1000 for `0.1%`).
fn parse_percent(text: &str) -> anyhow::Result<u64> {
    let parse = || {
        let digits = text.strip_suffix('%').unwrap_or(text).trim();
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if digits.is_empty() || fraction.len() > 4 || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let fraction: u64 = format!("{fraction:0<4}").parse().ok()?;
        whole.checked_mul(10_000)?.checked_add(fraction).filter(|millionths| *millionths <= 1_000_000)
    };
    parse().with_context(|| format!("--fail-above {text}: write a percentage like 0.1%, with at most four decimals"))
}

/// Prints the result and writes the requested files.
fn write_report(args: &ReplayArgs, report: &Report) -> anyhow::Result<()> {
    let save = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &args.html {
        save(path, &report.to_html())?;
    }
    if let (Some(path), Some(suggestion)) = (&args.write_rules, &report.suggestion) {
        save(path, &suggestion.rules)?;
    }
    if args.json {
        return output::print_json(report);
    }
    Ok(std::io::stdout().lock().write_all(report.to_text().as_bytes())?)
}

/// Runs `work` and shows its progress five times a second, if the standard error stream is a terminal.
fn with_progress<T>(work: impl FnOnce(&mut dyn FnMut(ReplayProgress)) -> T) -> T {
    const UPDATE_INTERVAL_NANOS: u64 = 200_000_000;
    let is_terminal = std::io::stderr().is_terminal();
    let mut shown = 0;
    let result = work(&mut |progress| {
        if is_terminal && progress.elapsed / UPDATE_INTERVAL_NANOS != shown {
            shown = progress.elapsed / UPDATE_INTERVAL_NANOS;
            // A failure to show progress is ignored.
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", progress_line(&progress));
        }
    });
    if shown > 0 {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    result
}

fn progress_line(progress: &ReplayProgress) -> String {
    let ReplayProgress { lines, bytes, total, elapsed, pass } = *progress;
    let millis = (elapsed / 1_000_000).max(1);
    let rate = lines * 1_000 / millis;
    let left = total.filter(|_| bytes > 0).map(|total| {
        let seconds = u128::from(total.saturating_sub(bytes)) * u128::from(millis) / u128::from(bytes) / 1_000;
        let percent = u128::from(bytes) * 100 / u128::from(total.max(1));
        format!(", {percent} %, {seconds} s left")
    });
    let pass = if pass.1 > 1 { format!("pass {} of {}: ", pass.0, pass.1) } else { String::new() };
    format!("{pass}{lines} lines, {rate} lines/s{}", left.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_parsed_exactly() {
        for (text, millionths) in
            [("0.1%", 1_000), ("0", 0), ("100 %", 1_000_000), (".5", 5_000), ("12.3456%", 123_456)]
        {
            assert_eq!(parse_percent(text).ok(), Some(millionths), "{text}");
        }
        for text in ["", "%", "-1", "1e3", "101%", "0.00001", "0.1.2", "99999999999999999999"] {
            assert!(parse_percent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn progress_line_shows_speed_and_time_left() {
        let progress =
            ReplayProgress { lines: 3_000, bytes: 250, total: Some(1_000), elapsed: 2_000_000_000, pass: (1, 1) };
        assert_eq!(progress_line(&progress), "3000 lines, 1500 lines/s, 25 %, 6 s left");
        assert_eq!(progress_line(&ReplayProgress { total: None, ..progress }), "3000 lines, 1500 lines/s");
        let second = ReplayProgress { total: None, pass: (2, 2), ..progress };
        assert_eq!(progress_line(&second), "pass 2 of 2: 3000 lines, 1500 lines/s");
    }
}
