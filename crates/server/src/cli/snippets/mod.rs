//! `tollgate snippets PROXY`: prints a configuration that puts Tollgate in front of an application.
//!
//! `tests/proxies.rs` and `tests/envoy.rs` run these configurations with the real proxies. Tests with a stalled server
//! use the configurations unchanged; tests of refusals use longer timeouts.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

#[derive(Clone, Debug, Args)]
pub(super) struct SnippetsArgs {
    /// The proxy
    proxy: ProxyKind,

    /// The address of Tollgate; by default 127.0.0.1:8080, or 127.0.0.1:8081 for envoy-rls
    #[arg(long, value_name = "ADDR")]
    server: Option<SocketAddr>,

    /// The domain whose rules decide
    #[arg(long, value_name = "NAME", default_value = "api")]
    domain: String,

    /// The address of the application
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9000")]
    app: SocketAddr,

    /// The address that the proxy listens on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProxyKind {
    /// nginx with `auth_request`.
    Nginx,
    /// HAProxy; needs the output of `haproxy-lua` as tollgate.lua.
    Haproxy,
    /// The Lua action for HAProxy.
    HaproxyLua,
    /// Caddy.
    Caddy,
    /// Traefik with `forwardAuth`.
    Traefik,
    /// Envoy with `ext_authz` over HTTP.
    Envoy,
    /// Envoy with its rate-limit filter, for `serve --rls`.
    EnvoyRls,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate snippets nginx > /etc/nginx/conf.d/tollgate.conf
  tollgate snippets haproxy > haproxy.cfg && tollgate snippets haproxy-lua > tollgate.lua
  tollgate snippets envoy-rls --domain edge --app 10.0.0.7:8000

docs/proxies.md lists the features of each proxy.";

impl ProxyKind {
    const fn template(self) -> &'static str {
        match self {
            Self::Nginx => include_str!("nginx.conf"),
            Self::Haproxy => include_str!("haproxy.cfg"),
            Self::HaproxyLua => include_str!("tollgate.lua"),
            Self::Caddy => include_str!("Caddyfile"),
            Self::Traefik => include_str!("traefik.yml"),
            Self::Envoy => include_str!("envoy.yaml"),
            Self::EnvoyRls => include_str!("envoy-rls.yaml"),
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::EnvoyRls => 8081,
            Self::Nginx | Self::Haproxy | Self::HaproxyLua | Self::Caddy | Self::Traefik | Self::Envoy => 8080,
        }
    }
}

/// Prints the configuration.
///
/// # Errors
/// Returns an error if the configuration cannot be printed.
pub(super) fn run(args: &SnippetsArgs) -> anyhow::Result<ExitCode> {
    std::io::stdout().write_all(fill_template(args).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn fill_template(args: &SnippetsArgs) -> String {
    let server = args.server.unwrap_or_else(|| ([127, 0, 0, 1], args.proxy.default_port()).into());
    let mut text = args.proxy.template().replace("{{domain}}", &args.domain);
    for (name, address) in [("server", server), ("app", args.app), ("listen", args.listen)] {
        text = text.replace(&format!("{{{{{name}}}}}"), &address.to_string());
        text = text.replace(&format!("{{{{{name}_host}}}}"), &address.ip().to_string());
        text = text.replace(&format!("{{{{{name}_port}}}}"), &address.port().to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_is_filled() {
        for proxy in ProxyKind::value_variants() {
            let args = SnippetsArgs {
                proxy: *proxy,
                server: None,
                domain: "edge".into(),
                app: ([192, 0, 2, 1], 1).into(),
                listen: ([192, 0, 2, 2], 2).into(),
            };
            let text = fill_template(&args);
            for name in ["server", "app", "listen", "domain"] {
                assert!(!text.contains(&format!("{{{{{name}")), "{proxy:?}: {name}");
            }
        }
    }
}
