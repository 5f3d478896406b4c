//! Startup warnings about configurations that are allowed but probably mistakes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::config::{Config, StoreConfig};
use crate::control::auth::TokenPolicy;

/// Returns the warnings about a configuration. `command_line` contains the arguments of the process, which other users
/// can read.
pub(super) fn config_warnings(config: &Config, command_line: &[String]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(tls) = &config.tls {
        warnings.extend(key_permissions_warning(&tls.key));
    }
    let beyond_loopback = |address: &std::net::SocketAddr| !address.ip().to_canonical().is_loopback();
    let addresses = [("--http", config.http), ("--resp", config.resp), ("--rls", config.rls)];
    let open = addresses.into_iter().find(|(_, address)| address.as_ref().is_some_and(beyond_loopback));
    if let (Some((flag, Some(address))), TokenPolicy::Required, None) = (open, config.tokens, &config.tls) {
        warnings.push(format!(
            "{flag} {address}: tokens are sent without encryption; add --tls-cert and --tls-key, or put a TLS proxy in \
             front of the server"
        ));
    }
    if let StoreConfig::Redis(url) = &config.store
        && has_password(url.reveal())
        && command_line.iter().any(|argument| argument.contains(url.reveal()))
    {
        warnings.push(
            "--store: other users of this machine can read the password on the command line; use --store-file or the \
             environment variable TOLLGATE_STORE"
                .to_owned(),
        );
    }
    warnings
}

fn key_permissions_warning(key: &Path) -> Option<String> {
    let mode = std::fs::metadata(key).ok()?.permissions().mode();
    (mode & 0o044 != 0).then(|| {
        format!(
            "--tls-key {}: other users can read the private key (mode {:o}); chmod 600",
            key.display(),
            mode & 0o777
        )
    })
}

fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?']).next().unwrap_or_default();
    authority.rsplit_once('@').is_some_and(|(user, _)| user.split_once(':').is_some_and(|(_, word)| !word.is_empty()))
        || url.contains("sentinel_password=")
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::parse_config;
    use super::*;

    fn warnings_for(line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        config_warnings(&parse_config(line).expect(line), &words).join("\n")
    }

    #[test]
    fn password_on_the_command_line_is_warned_about() {
        assert!(warnings_for("--store redis://:hunter2@127.0.0.1/").contains("--store-file"));
        assert!(!warnings_for("--store redis://:hunter2@127.0.0.1/").contains("hunter2"));
        assert_eq!(warnings_for("--store redis://127.0.0.1/"), "");
        let from_environment = parse_config("--store redis://:hunter2@127.0.0.1/").expect("a store");
        assert_eq!(config_warnings(&from_environment, &["serve".to_owned()]), Vec::<String>::new());
    }

    #[test]
    fn tokens_in_the_clear_beyond_loopback_are_warned_about() {
        assert!(warnings_for("--http 0.0.0.0:80").contains("--http 0.0.0.0:80: tokens are sent without encryption"));
        assert!(warnings_for("--resp [::]:80").contains("--resp [::]:80"));
        assert!(warnings_for("--rls 0.0.0.0:80").contains("--rls 0.0.0.0:80"));
        assert_eq!(warnings_for("--http 127.0.0.1:80"), "");
        assert_eq!(warnings_for("--http 0.0.0.0:80 --insecure"), "");
    }

    #[test]
    fn private_key_that_others_can_read_is_warned_about() {
        let folder = tempfile::tempdir().expect("a directory");
        let key = folder.path().join("key.pem");
        std::fs::write(&key, "").expect("a file");
        let line = format!("--tls-cert c --tls-key {}", key.display());
        for (mode, warns) in [(0o600, false), (0o640, true), (0o644, true)] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("permissions");
            assert_eq!(warnings_for(&line).contains("other users can read the private key"), warns, "{mode:o}");
        }
    }
}
