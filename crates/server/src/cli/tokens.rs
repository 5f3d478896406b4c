//! `tollgate tokens`: manages tokens, through a server or directly in its database.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;

use super::remote::output::{self, OutputArgs, TextTable, format_time, replace_control_characters};
use super::remote::{Progress, Remote, ServerArgs};
use crate::control::model::{Change, CreatedToken, Page, PageRequest, Role, StoredToken, TokenGrant};
use crate::control::{Control, sqlite_url};

#[derive(Clone, Debug, Args)]
pub(super) struct TokensArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// The data directory of a server, to use its database without the server
    ///
    /// Needed to create the first token. The server may be running or stopped.
    #[arg(long, value_name = "DIR", global = true, help_heading = "Database", conflicts_with = "database")]
    data: Option<PathBuf>,

    /// The URL of the database, like postgres://user@host/db, to use it without a server
    #[arg(long, value_name = "URL", global = true, help_heading = "Database")]
    database: Option<String>,

    #[command(subcommand)]
    command: TokensCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum TokensCommand {
    /// Create a token; it is shown only once.
    Create(CreateTokenArgs),
    /// List tokens, without their secrets.
    List(OutputArgs),
    /// Revoke a token permanently; connected nodes refuse it within a second.
    Revoke(RevokeArgs),
}

#[derive(Clone, Debug, Args)]
struct CreateTokenArgs {
    /// The role of the token
    #[arg(long, value_name = "ROLE")]
    role: Role,

    /// The name of the token (by default the role), which is recorded as the author of changes made with it
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Limit the token to this domain; may be repeated
    #[arg(long = "domain", value_name = "NAME")]
    domains: Vec<String>,

    /// When the token expires: after a duration like 90d or 12h, or at a time like 2030-01-31T18:00:00Z
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Debug, Args)]
struct RevokeArgs {
    /// The id of the token, as listed by `tokens list`
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    output: OutputArgs,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate tokens create --role admin --data tollgate-data       the first one, before the server listens
  tollgate tokens create --role editor --name ci --domain api --expires 90d
  tollgate tokens list
  tollgate tokens revoke 3f9a0c21";

/// Runs the command.
///
/// # Errors
/// Returns an error if the server or the database cannot be reached, or refuses the request.
pub(super) fn run(args: &TokensArgs) -> anyhow::Result<ExitCode> {
    match (&args.data, &args.database) {
        (Some(data), _) => run_on_database(&sqlite_url(&data.join("rules.db")), &args.command),
        (None, Some(url)) => run_on_database(url, &args.command),
        (None, None) => run_on_server(&Remote::new(&args.server)?, &args.command),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn run_on_server(remote: &Remote, command: &TokensCommand) -> anyhow::Result<()> {
    match command {
        TokensCommand::Create(args) => {
            let token = serde_json::to_string(&args.to_grant()?)?;
            let answer = remote.post(&["v1", "tokens"], token)?;
            answer.print(args.output, |created| print_created(&created))
        }
        TokensCommand::List(output) => {
            remote.get_list(&["v1", "tokens"], &[], None, "tokens")?.print(*output, print_tokens)
        }
        TokensCommand::Revoke(args) => {
            let answer = remote.send(remote.request(Method::DELETE, &["v1", "tokens", &args.id])?, "revoking")?;
            answer.print(args.output, |revoked| print_revoked(&revoked))
        }
    }
}

/// Runs the command directly on the database, because there may be no token yet for a call to the server.
fn run_on_database(url: &str, command: &TokensCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let change = Change::by_author("local");
    runtime.block_on(Progress::new("waiting for the database").show_during(async {
        let opened = Control::open(url).await.map_err(|error| anyhow!("{}: {error}", without_password(url)));
        let control = opened?;
        match command {
            TokensCommand::Create(args) => {
                let created = control.tokens().create(&change, &args.to_grant()?).await?;
                if args.output.json { output::print_json(&created) } else { print_created(&created) }
            }
            TokensCommand::List(output) => {
                let (mut items, mut page) = (Vec::new(), PageRequest::default());
                loop {
                    let part = control.tokens().list(&page).await?;
                    items.extend(part.items);
                    page.after = part.next;
                    if page.after.is_none() {
                        break;
                    }
                }
                if output.json { output::print_json(&Page { items, next: None }) } else { print_tokens(items) }
            }
            TokensCommand::Revoke(args) => {
                let revoked = control.tokens().revoke(&change, &args.id).await?;
                if args.output.json { output::print_json(&revoked) } else { print_revoked(&revoked) }
            }
        }
    }))
}

/// Returns a URL for messages, without user, password and options.
fn without_password(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path()),
        Err(_) => "the database".to_owned(),
    }
}

impl CreateTokenArgs {
    fn to_grant(&self) -> anyhow::Result<TokenGrant> {
        let name = self.name.clone().unwrap_or_else(|| self.role.as_str().to_owned());
        let expires_ms = self.expires.as_deref().map(|when| parse_expiry(when, Timestamp::now())).transpose()?;
        Ok(TokenGrant { name, role: self.role, domains: self.domains.clone(), expires_ms })
    }
}

/// Parses an expiry: a time, or a duration counted from `now`. Returns milliseconds since 1970.
fn parse_expiry(text: &str, now: Timestamp) -> anyhow::Result<i64> {
    let invalid = || format!("--expires {text}: write a duration like 90d or 12h, or a time like 2030-01-31T18:00:00Z");
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.as_millisecond());
    }
    let units = [('d', 86_400), ('h', 3_600), ('m', 60)];
    let scaled = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, *seconds)));
    let (digits, seconds) = scaled.with_context(invalid)?;
    let count: i64 = digits.trim().parse().ok().filter(|count| *count > 0).with_context(invalid)?;
    let duration = SignedDuration::from_secs(count.checked_mul(seconds).with_context(invalid)?);
    Ok(now.checked_add(duration).with_context(invalid)?.as_millisecond())
}

/// Prints only the token to the standard output, for scripts, and its description to the standard error stream.
fn print_created(created: &CreatedToken) -> anyhow::Result<()> {
    let StoredToken { id, grant: TokenGrant { name, role, expires_ms, .. }, .. } = &created.stored;
    let expires = expires_ms.map(|at| format!(", until {}", format_time(at))).unwrap_or_default();
    let (id, name, role) = (replace_control_characters(id), replace_control_characters(name), role.as_str());
    writeln!(std::io::stderr(), "token {id} of {name}, {role}{expires}; it is shown only once:")?;
    Ok(writeln!(std::io::stdout(), "{}", created.token)?)
}

fn print_tokens(tokens: Vec<StoredToken>) -> anyhow::Result<()> {
    let mut table = TextTable::new(&["ID", "NAME", "ROLE", "DOMAINS", "CREATED", "STATE"]);
    let now = Timestamp::now().as_millisecond();
    for StoredToken { id, grant, created_ms, revoked_ms } in tokens {
        let state = match (revoked_ms, grant.expires_ms) {
            (Some(at), _) => format!("revoked {}", format_time(at)),
            (None, Some(at)) if at <= now => format!("expired {}", format_time(at)),
            (None, Some(at)) => format!("valid until {}", format_time(at)),
            (None, None) => "valid".to_owned(),
        };
        let domains = if grant.domains.is_empty() { "all".to_owned() } else { grant.domains.join(", ") };
        table.add_row([id, grant.name, grant.role.as_str().to_owned(), domains, format_time(created_ms), state]);
    }
    table.print("no tokens")
}

fn print_revoked(token: &StoredToken) -> anyhow::Result<()> {
    Ok(writeln!(
        std::io::stdout(),
        "token {} of {} is revoked",
        replace_control_characters(&token.id),
        replace_control_characters(&token.grant.name)
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_not_shown() {
        assert_eq!(without_password("postgres://ann:hunter2@db:5432/rules?password=hunter2"), "postgres://db/rules");
        assert_eq!(without_password("sqlite:/x/rules.db?mode=rwc"), "sqlite:///x/rules.db");
        assert_eq!(without_password("hunter2"), "the database");
    }

    #[test]
    fn expiry_is_a_duration_or_a_time() {
        let now = Timestamp::from_second(1_000).unwrap();
        assert_eq!(parse_expiry("90d", now).unwrap(), (1_000 + 90 * 86_400) * 1_000);
        assert_eq!(parse_expiry("12h", now).unwrap(), (1_000 + 12 * 3_600) * 1_000);
        assert_eq!(parse_expiry("1970-01-01T00:00:05Z", now).unwrap(), 5_000);
        for invalid in ["", "d", "-1d", "0d", "5", "soon", "99999999999999999999d", "9999999999999d", "1.5h"] {
            assert!(parse_expiry(invalid, now).unwrap_err().to_string().contains("write a duration"), "{invalid}");
        }
    }
}
