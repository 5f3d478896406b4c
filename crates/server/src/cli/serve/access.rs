//! Decides whether tokens are required: with `--tokens required`, or if other machines can reach the server and
//! `--insecure` is not given.

use std::net::SocketAddr;

use anyhow::bail;

use super::args::{ServeArgs, TokensArg};
use super::source::RulesConfig;
use crate::control::auth::TokenPolicy;

/// Returns the token policy for the flags, the listeners and the source of rules.
///
/// # Errors
/// Returns an error if other machines could connect without tokens and `--insecure` is not given, or if tokens are
/// required and the source of rules has no tokens.
pub(super) fn token_policy(
    raw: &ServeArgs,
    listeners: &[(&str, Option<SocketAddr>)],
    rules: &RulesConfig,
) -> anyhow::Result<TokenPolicy> {
    let beyond = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    let open = listeners.iter().find_map(|(flag, address)| Some((flag, address.filter(beyond)?)));
    let without = match rules {
        RulesConfig::File(_) => Some("--rules FILE"),
        RulesConfig::Xds(_) => Some("--rules xds://…"),
        RulesConfig::Inline => Some("--data off"),
        RulesConfig::Database(_) | RulesConfig::Service(_) => None,
    };
    match (raw.tokens, raw.insecure, open, without) {
        (Some(TokensArg::Required), true, ..) => {
            bail!("--tokens required and --insecure contradict each other: leave one of them out")
        }
        (Some(TokensArg::Required), false, _, Some(without)) => {
            bail!(
                "--tokens required: with {without} there are no tokens; keep rules in the database, or follow a service"
            )
        }
        (_, true, ..) | (None | Some(TokensArg::None), false, None, _) => Ok(TokenPolicy::NotRequired),
        (Some(TokensArg::None), false, Some((flag, address)), _) => bail!(
            "{flag} {address} can be reached from other machines, and --tokens none lets them do everything: remove it, or \
             add --insecure if something else restricts access"
        ),
        (None, false, Some((flag, address)), Some(without)) => bail!(
            "{flag} {address} can be reached from other machines, and with {without} there are no tokens: add --insecure if \
             something else restricts access, or keep rules in the database"
        ),
        (Some(TokensArg::Required) | None, false, _, None) => Ok(TokenPolicy::Required),
    }
}
