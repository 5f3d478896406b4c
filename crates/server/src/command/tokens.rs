//! `tollgate tokens`: who may do what, asked of a server or written into its database.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;
use serde_json::Value;

use super::remote::show::{self, Table, clean, time};
use super::remote::{Remote, Waiting};
use crate::config::remote::tokens::{RoleName, TokenCreateArgs, TokensArgs, TokensCommand};
use crate::control::model::{Change, Cut, MadeToken, NewToken, Page, Role, StoredToken};
use crate::control::{Control, sqlite_url};

/// Does what was asked.
///
/// # Errors
/// When the server or the database cannot be asked, or says no.
pub fn run(args: &TokensArgs) -> anyhow::Result<ExitCode> {
    match (&args.data, &args.database) {
        (Some(data), _) => in_database(&sqlite_url(&data.join("rules.db")), &args.command),
        (None, Some(url)) => in_database(url, &args.command),
        (None, None) => by_server(&Remote::new(&args.server)?, &args.command),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn by_server(remote: &Remote, command: &TokensCommand) -> anyhow::Result<()> {
    match command {
        TokensCommand::Create(args) => {
            let token = serde_json::to_string(&wanted(args)?)?;
            let request = remote.request(Method::POST, &["v1", "tokens"])?.header("content-type", "application/json");
            let answer = remote.send(request.body(token), "asking")?;
            match args.shown.json {
                true => show::json(&answer.parse::<Value>()?),
                false => tell_made(&answer.parse()?),
            }
        }
        TokensCommand::List(shown) => {
            let listed = remote.list(&["v1", "tokens"], &[], None, "tokens")?;
            match shown.json {
                true => show::json(&listed.to_json()),
                false => tell_list(listed.parse()?),
            }
        }
        TokensCommand::Revoke(args) => {
            let answer = remote.send(remote.request(Method::DELETE, &["v1", "tokens", &args.id])?, "asking")?;
            match args.shown.json {
                true => show::json(&answer.parse::<Value>()?),
                false => tell_revoked(&answer.parse()?),
            }
        }
    }
}

/// The same without a server: there is nobody to ask for a token yet.
fn in_database(url: &str, command: &TokensCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let change = Change { author: "local".to_owned(), comment: None };
    runtime.block_on(Waiting::new("asking the database").during(async {
        // Its own error says it all, once.
        let opened = Control::open(url).await.map_err(|error| anyhow!("{}: {error}", without_password(url)));
        let control = opened?;
        match command {
            TokensCommand::Create(args) => {
                let made = control.make_token(&change, &wanted(args)?).await?;
                if args.shown.json { show::json(&made) } else { tell_made(&made) }
            }
            TokensCommand::List(shown) => {
                let (mut items, mut after) = (Vec::new(), None);
                loop {
                    let page = control.tokens(&Cut { after, limit: None }).await?;
                    items.extend(page.items);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                if shown.json { show::json(&Page { items, next: None }) } else { tell_list(items) }
            }
            TokensCommand::Revoke(args) => {
                let revoked = control.revoke_token(&change, &args.id).await?;
                if args.shown.json { show::json(&revoked) } else { tell_revoked(&revoked) }
            }
        }
    }))
}

/// An address that may be shown.
fn without_password(url: &str) -> String {
    match reqwest::Url::parse(url) {
        Ok(url) => format!("{}://{}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path()),
        Err(_) => "the database".to_owned(),
    }
}

fn wanted(args: &TokenCreateArgs) -> anyhow::Result<NewToken> {
    let role = match args.role {
        RoleName::Reader => Role::Reader,
        RoleName::Operator => Role::Operator,
        RoleName::Editor => Role::Editor,
        RoleName::Admin => Role::Admin,
    };
    let name = args.name.clone().unwrap_or_else(|| role.as_str().to_owned());
    let expires_ms = args.expires.as_deref().map(|when| expiry(when, Timestamp::now())).transpose()?;
    Ok(NewToken { name, role, domains: args.domains.clone(), expires_ms })
}

/// A time, or a length of time from now.
fn expiry(text: &str, now: Timestamp) -> anyhow::Result<i64> {
    let wrong =
        || format!("--expires {text}: write a length of time like 90d or 12h, or a time like 2030-01-31T18:00:00Z");
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.as_millisecond());
    }
    let units = [('d', 86_400), ('h', 3_600), ('m', 60)];
    let scaled = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(*unit)?, *seconds)));
    let (digits, seconds) = scaled.with_context(wrong)?;
    let count: i64 = digits.trim().parse().ok().filter(|count| *count > 0).with_context(wrong)?;
    let length = SignedDuration::from_secs(count.checked_mul(seconds).with_context(wrong)?);
    Ok(now.checked_add(length).with_context(wrong)?.as_millisecond())
}

/// The token alone on the standard output, so that it can be put where it belongs; what is to be known about it beside it.
fn tell_made(made: &MadeToken) -> anyhow::Result<()> {
    let StoredToken { id, name, role, expires_ms, .. } = &made.stored;
    let expires = expires_ms.map(|at| format!(", until {}", time(at))).unwrap_or_default();
    writeln!(
        std::io::stderr(),
        "token {} of {}, {}{expires}; it is shown this once:",
        clean(id),
        clean(name),
        role.as_str()
    )?;
    Ok(writeln!(std::io::stdout(), "{}", made.token)?)
}

fn tell_list(tokens: Vec<StoredToken>) -> anyhow::Result<()> {
    let mut table = Table::new(&["ID", "NAME", "ROLE", "DOMAINS", "MADE", "STATE"]);
    let now = Timestamp::now().as_millisecond();
    for token in tokens {
        let state = match (token.revoked_ms, token.expires_ms) {
            (Some(at), _) => format!("revoked {}", time(at)),
            (None, Some(at)) if at <= now => format!("expired {}", time(at)),
            (None, Some(at)) => format!("good until {}", time(at)),
            (None, None) => "good".to_owned(),
        };
        let domains = if token.domains.is_empty() { "all".to_owned() } else { token.domains.join(", ") };
        table.row([token.id, token.name, token.role.as_str().to_owned(), domains, time(token.created_ms), state]);
    }
    let mut out = std::io::stdout().lock();
    match table.is_empty() {
        true => writeln!(out, "no tokens")?,
        false => table.write(&mut out)?,
    }
    Ok(())
}

fn tell_revoked(token: &StoredToken) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "token {} of {} is revoked", clean(&token.id), clean(&token.name))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("postgres://ann:hunter2@db:5432/rules?password=hunter2"), "postgres://db/rules");
        assert_eq!(without_password("sqlite:/x/rules.db?mode=rwc"), "sqlite:///x/rules.db");
        assert_eq!(without_password("hunter2"), "the database");
    }

    #[test]
    fn tokens_end_after_a_time_or_at_one() {
        let now = Timestamp::from_second(1_000).unwrap();
        assert_eq!(expiry("90d", now).unwrap(), (1_000 + 90 * 86_400) * 1_000);
        assert_eq!(expiry("12h", now).unwrap(), (1_000 + 12 * 3_600) * 1_000);
        assert_eq!(expiry("1970-01-01T00:00:05Z", now).unwrap(), 5_000);
        for wrong in ["", "d", "-1d", "0d", "5", "soon", "99999999999999999999d", "9999999999999d", "1.5h"] {
            assert!(expiry(wrong, now).unwrap_err().to_string().contains("write a length of time"), "{wrong}");
        }
    }
}
