//! Replays a log against a rule file that is not applied yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Extension;
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use jiff::tz::TimeZone;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tollgate_engine::rules::{Rules, Source};
use utoipa::{IntoParams, ToSchema};

use super::bounds::{MAX_LOG_BYTES, MAX_LOG_KEYS, REPLAY_TIMEOUT};
use super::call::{ApiCall, QueryParams};
use super::form;
use super::reply::{self, ApiResult};
use crate::control::auth::{Access, Scope};
use crate::control::model::{OtherRulesPolicy, Role};
use crate::control::{ControlError, Preview};
use crate::http::problem::Problem;
use crate::replay::{Log, Mapping, ReadBounds, ReplayError, ReplayOptions, Report, replay};

/// The path of the call.
pub(super) const REPLAY_PATH: &str = "/v1/replay";

/// The permit of a replay. The permit is held from the first byte of the log until the result is ready.
#[derive(Clone, Debug)]
pub(crate) struct ReplayPermit(#[expect(dead_code, reason = "held until the replay ends")] Arc<OwnedSemaphorePermit>);

impl ReplayPermit {
    pub(super) fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(permit))
    }
}

/// Checks that the caller may replay in at least one domain. The domain itself is known only after the body is read.
///
/// # Errors
/// Returns an error if the caller is not an editor in any domain.
pub(crate) fn check_may_replay(access: &Access) -> Result<(), Problem> {
    if !access.has_role_in_some_domain(Role::Editor) {
        access.require_role(Role::Editor, Scope::AllDomains)?;
    }
    Ok(())
}

/// Options of a replay.
#[derive(Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ReplayQuery {
    /// The domain whose rules decide; may be omitted if the rule file has only one domain.
    domain: Option<String>,
    /// Whether to keep or delete stored rules that are missing from the file. Only the domains in the file are
    /// affected.
    #[param(inline, required = false, default = "keep")]
    others: OtherRulesPolicy,
    /// The format of the log, if it is not detected: a name (combined, common, vhost_combined, envoy, haproxy, json or
    /// csv) or a format as in the configuration of nginx, Apache or Envoy.
    format: Option<String>,
    /// The time zone of timestamps without a zone; UTC by default.
    #[param(example = "Europe/Paris")]
    zone: Option<String>,
    /// An attribute and the log field that contains its value; may be repeated.
    #[param(required = false, example = json!(["api_key=http_x_api_key"]))]
    map: Vec<String>,
    /// An attribute and its fixed value in all requests; may be repeated.
    #[param(required = false, example = json!(["plan=free"]))]
    set: Vec<String>,
    /// The attributes that identify a client, separated by commas. If given, the report suggests limits that never
    /// refuse 99.9 % of the clients.
    #[param(example = "client_ip")]
    suggest: Option<String>,
    /// Whether keys are reported as hashes.
    #[param(required = false, default = false)]
    hash_keys: bool,
}

impl ReplayQuery {
    fn new(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        let mut query = Self::default();
        for (name, value) in pairs {
            match &*name {
                "domain" => query.domain = Some(value),
                "others" => query.others = parse_others(&value)?,
                "format" => query.format = Some(value),
                "zone" => query.zone = Some(value),
                "map" => query.map.push(value),
                "set" => query.set.push(value),
                "suggest" => query.suggest = Some(value),
                "hash_keys" => query.hash_keys = parse_flag("hash_keys", &value)?,
                _ => {
                    let known = "`domain`, `others`, `format`, `zone`, `map`, `set`, `suggest`, `hash_keys`";
                    return Err(Problem::bad_request(format!("unknown field `{name}`, expected one of {known}")));
                }
            }
        }
        Ok(query)
    }

    /// Returns the options of the replay. The rules are added later.
    fn replay_options(&self) -> Result<ReplayOptions, Problem> {
        let zone = self.zone.as_deref().map_or(Ok(TimeZone::UTC), |zone| {
            TimeZone::get(zone).map_err(|_| Problem::bad_request(format!("zone {zone}: write it like Europe/Paris")))
        })?;
        let bounds = ReadBounds { max_bytes: MAX_LOG_BYTES, ..ReadBounds::default() };
        let mapping = Mapping { map: parse_pairs("map", &self.map)?, set: parse_pairs("set", &self.set)? };
        let suggest = self.suggest.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
        let (format, capacity, hash_keys) = (self.format.clone(), MAX_LOG_KEYS, self.hash_keys);
        Ok(ReplayOptions { format, zone, mapping, suggest, hash_keys, bounds, capacity, ..ReplayOptions::default() })
    }
}

fn parse_others(text: &str) -> Result<OtherRulesPolicy, Problem> {
    match text {
        "keep" => Ok(OtherRulesPolicy::Keep),
        "delete" => Ok(OtherRulesPolicy::Delete),
        _ => Err(Problem::bad_request(format!("unknown value `{text}` of `others`, expected `keep` or `delete`"))),
    }
}

fn parse_flag(name: &str, text: &str) -> Result<bool, Problem> {
    let wrong = |_| Problem::bad_request(format!("unknown value `{text}` of `{name}`, expected `true` or `false`"));
    text.parse().map_err(wrong)
}

fn parse_pairs(name: &str, texts: &[String]) -> Result<Vec<(String, String)>, Problem> {
    let wrong = |text: &str| Problem::bad_request(format!("{name} {text}: write it like attribute=value"));
    texts.iter().map(|text| Mapping::parse_pair(text).ok_or_else(|| wrong(text))).collect()
}

/// A form with a rule file and a log.
#[derive(Debug, ToSchema)]
#[schema(as = ReplayForm)]
#[expect(dead_code, reason = "describes the body for the API description")]
pub(super) struct ReplayFormSchema {
    /// A Tollgate rule file, or a rule file of the reference Envoy service.
    #[schema(value_type = String, format = Binary)]
    rules: Bytes,
    /// An access log, plain or compressed with gzip. Several logs are merged by time.
    #[schema(value_type = Vec<String>, format = Binary)]
    log: Bytes,
}

/// Replays a log against the current rules and against the rules after a rule file is applied, and compares the
/// decisions. Changes nothing. If a log is too long, only its beginning is replayed, and `errors` reports that.
#[utoipa::path(post, path = "/v1/replay", tag = "files", operation_id = "replay",
    params(ReplayQuery),
    request_body(description = "A rule file and a log", content = inline(ReplayFormSchema), content_type = "multipart/form-data"),
    responses((status = 200, description = "The decisions that the rules would have made", body = Report)),
)]
pub(super) async fn replay_logs(
    call: ApiCall,
    QueryParams(query): QueryParams<Vec<(String, String)>>,
    Extension(turn): Extension<ReplayPermit>,
    body: Bytes,
) -> ApiResult {
    let query = ReplayQuery::new(query)?;
    let mut options = query.replay_options()?;
    let (rules, logs) = read_form(&call.headers, &body)?;
    options.bounds.max_bytes /= logs.len() as u64;
    let preview = call.control().rule_files().preview(&rules, query.others, query.domain.as_deref()).await?;
    call.access.require_role(Role::Editor, Scope::Domain(&preview.domain))?;
    let stop = StopOnDrop(options.bounds.stop.clone());
    let mut work = spawn_blocking(move || {
        options.set_rules(preview)?;
        let report = replay(&logs, &options, &mut |_| {});
        drop(turn);
        report
    });
    let finished = tokio::select! {
        finished = &mut work => Some(finished),
        () = tokio::time::sleep(REPLAY_TIMEOUT) => None,
        () = call.state.connections.wait_for_shutdown() => None,
    };
    let report = match finished {
        Some(report) => report,
        // Timeout or shutdown: the replay stops soon and reports on the part of the log that it has read.
        None => {
            drop(stop);
            work.await
        }
    };
    let report = report.map_err(|error| Problem::internal_error("replay failed", &error))?;
    reply::reply_uncached(StatusCode::OK, &report?)
}

/// Stops a replay when dropped: after a timeout, on shutdown, or when the caller disconnects.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the rule file and the logs of a form. Fails if a part is missing or unknown.
fn read_form(headers: &HeaderMap, body: &Bytes) -> Result<(Bytes, Vec<Log>), Problem> {
    let (mut rules, mut logs) = (None, Vec::new());
    for part in form::parse(headers, body)? {
        match &*part.name {
            "rules" if rules.is_some() => return Err(Problem::bad_request("more than one part `rules`; send one")),
            "rules" => rules = Some(part.content),
            "log" => {
                let name = log_name(part.file.as_deref().unwrap_or_default());
                logs.push(Log::Bytes { name, bytes: part.content });
            }
            other => {
                return Err(Problem::bad_request(format!("unknown part `{other}`, expected `rules` and `log`")));
            }
        }
    }
    let missing = |name: &str| Problem::bad_request(format!("the form has no part `{name}`"));
    let rules = rules.ok_or_else(|| missing("rules"))?;
    if logs.is_empty() { Err(missing("log")) } else { Ok((rules, logs)) }
}

/// Returns a short name for reports: the file name without directories and control characters.
fn log_name(file: &str) -> String {
    let name = file.rsplit(['/', '\\']).next().unwrap_or_default();
    let name: String = name.chars().filter(|char| !char.is_control()).take(100).collect();
    if name.is_empty() { "log".into() } else { name }
}

impl ReplayOptions {
    /// Sets the new rules. If the domain has rules in force, also sets them as the rules to compare with.
    fn set_rules(&mut self, preview: Preview) -> Result<(), ReplayError> {
        let read = |text: &str| Rules::read(&[Source { name: "rules", text: text.as_bytes() }]);
        let decides = |rules: &Rules| rules.domains().iter().any(|domain| domain.name() == preview.domain);
        let before = read(&preview.before).map_err(ReplayError::Rules)?;
        let after = read(&preview.after).map_err(ReplayError::Rules)?;
        if !decides(&after) {
            let why = format!("no rule of the domain `{}` would be in force; enable one first", preview.domain);
            return Err(ReplayError::Invalid(why));
        }
        (self.against, self.rules) = (decides(&before).then_some(before), Some(after));
        self.domain = Some(preview.domain);
        Ok(())
    }
}

impl From<ReplayError> for Problem {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Rules(mistakes) => ControlError::Mistakes(mistakes).into(),
            // The error names command-line options; the query parameters have the same names without dashes.
            ReplayError::Invalid(why) => Self::bad_request(
                ["format", "map", "set", "zone", "domain"]
                    .iter()
                    .fold(why, |why, name| why.replace(&format!("--{name}"), &format!("`{name}`"))),
            ),
        }
    }
}

const _: () = assert!(
    REPLAY_TIMEOUT.as_secs() + 30 <= super::bounds::CALL_TIMEOUT.as_secs(),
    "a replay that is stopped reports its result before the timeout of its call"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_has_the_name_of_its_file() {
        for (file, name) in [
            ("access.log", "access.log"),
            ("/var/log/nginx/access.log.1.gz", "access.log.1.gz"),
            ("C:\\logs\\u_ex.log", "u_ex.log"),
            ("", "log"),
            ("a\nb\u{1b}[31m", "ab[31m"),
        ] {
            assert_eq!(log_name(file), name);
        }
        assert_eq!(log_name(&"x".repeat(300)).len(), 100);
    }
}
