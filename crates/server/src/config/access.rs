//! Who may call: a server that other machines can reach asks for tokens, unless it is told that they are kept out in another way.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;

use super::RulesConfig;
use super::raw::{ServeArgs, TokensWhen};

/// Whether callers have to show who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever can connect may do everything.
    Open,
    /// Every call but those about health needs a token.
    Tokens,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// In PEM, with those that lead to it.
    pub certificate: PathBuf,
    /// In PEM.
    pub key: PathBuf,
}

/// Decides it by the flags, the addresses to listen on, and whether there is a place tokens can come from.
///
/// # Errors
/// When other machines could connect and nothing would be asked of them, or tokens that cannot be had.
pub(super) fn read(
    raw: &ServeArgs,
    listeners: &[(&str, Option<SocketAddr>)],
    rules: &RulesConfig,
) -> anyhow::Result<Access> {
    let beyond = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
    let open = listeners.iter().find_map(|(flag, address)| Some((flag, address.filter(beyond)?)));
    let without = match rules {
        RulesConfig::File(_) => Some("--rules FILE"),
        RulesConfig::Nowhere => Some("--data off"),
        RulesConfig::Database(_) | RulesConfig::Service(_) => None,
    };
    match (raw.tokens, raw.insecure, open, without) {
        (Some(TokensWhen::Required), true, ..) => {
            bail!("--tokens required asks for tokens and --insecure says that none are: leave one of them out")
        }
        (Some(TokensWhen::Required), false, _, Some(without)) => {
            bail!(
                "--tokens required: with {without} there are no tokens to ask for; keep rules in the database, or follow a service"
            )
        }
        (_, true, ..) | (None | Some(TokensWhen::None), false, None, _) => Ok(Access::Open),
        (Some(TokensWhen::None), false, Some((flag, address)), _) => bail!(
            "{flag} {address} can be reached from other machines, and with --tokens none they may do everything: leave it out, or \
             add --insecure if something else keeps strangers out"
        ),
        (None, false, Some((flag, address)), Some(without)) => bail!(
            "{flag} {address} can be reached from other machines, and with {without} there are no tokens to ask them for: add \
             --insecure if something else keeps strangers out, or keep rules in the database"
        ),
        (Some(TokensWhen::Required) | None, false, _, None) => Ok(Access::Tokens),
    }
}
