//! Checks the ports, open-file limit and certificate of this machine.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use jiff::Timestamp;
use reqwest::Method;
use rustix::process::{Resource, getrlimit};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::super::RESERVED_FILES;
use super::super::config::{Config, StoreConfig};
use super::running::CALL_TIMEOUT;
use super::{DoctorFinding, certificate};
use crate::cli::count_with_noun;
use crate::client::Client;
use crate::net::tls::{Tls, TlsFiles};

/// A certificate is reported if it expires within this number of days.
const EXPIRY_WARNING_DAYS: i64 = 14;

/// Checks that the server can listen on its ports, or already listens on them.
pub(super) async fn check_ports(config: &Config) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    let mut is_running = false;
    let peers = match &config.store {
        StoreConfig::Peers(peers) => Some(peers.listen_address()),
        StoreConfig::Memory | StoreConfig::Redis(_) => None,
    };
    let addresses =
        [("--http", config.http), ("--resp", config.resp), ("--rls", config.rls), ("--peers-listen", peers)];
    for (flag, address) in addresses {
        let Some(address) = address else { continue };
        findings.push(match TcpListener::bind(address) {
            Ok(_) => DoctorFinding::ok("port", format!("{flag} {address} is free")),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                is_running |= flag == "--http" && answers_health_check(address).await;
                let action = format!("stop it, or choose another address with {flag}");
                match (is_running, &config.tls) {
                    (true, _) => DoctorFinding::ok(
                        "port",
                        format!("{flag} {address} is in use, probably by the running tollgate server"),
                    ),
                    (false, None) => {
                        DoctorFinding::error("port", format!("{flag} {address} is in use by another program"), action)
                    }
                    // A server with TLS cannot be recognised, because this check does not know the name in its
                    // certificate.
                    (false, Some(_)) => {
                        let found = format!("{flag} {address} is in use");
                        DoctorFinding::warning("port", found, format!("unless that is the server itself, {action}"))
                    }
                }
            }
            Err(error) => DoctorFinding::error(
                "port",
                format!("{flag} {address}: {error}"),
                format!("choose an address of this machine with {flag}, and a port that this user may use"),
            ),
        });
    }
    findings.extend(config.rls_socket.as_deref().map(|path| check_socket(path, is_running)));
    findings
}

/// Checks that the server can listen on a Unix socket. If the socket does not exist, creates and removes it.
fn check_socket(path: &Path, is_running: bool) -> DoctorFinding {
    let shown = path.display();
    let action = "choose another path with --rls unix:PATH";
    match std::fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            DoctorFinding::error("socket", format!("{shown} is a file that is not a socket"), action)
        }
        Ok(_) if UnixStream::connect(path).is_err() => {
            DoctorFinding::ok("socket", format!("{shown} belongs to a stopped server; tollgate serve replaces it"))
        }
        Ok(_) if is_running => {
            DoctorFinding::ok("socket", format!("{shown} is in use, probably by the running tollgate server"))
        }
        Ok(_) => DoctorFinding::error("socket", format!("{shown} is in use by another program"), action),
        Err(_) => match UnixListener::bind(path).and_then(|_| std::fs::remove_file(path)) {
            Ok(()) => DoctorFinding::ok("socket", format!("--rls unix:{shown} can be created")),
            Err(error) => {
                let action = format!("create its directory and let this user write to it, or {action}");
                DoctorFinding::error("socket", format!("--rls unix:{shown}: {error}"), action)
            }
        },
    }
}

async fn answers_health_check(address: SocketAddr) -> bool {
    let Ok(client) = Client::new(&format!("http://{address}"), None, None) else { return false };
    let answer = client.request(Method::GET, &["healthz"]).timeout(CALL_TIMEOUT).send().await;
    answer.is_ok_and(|answer| answer.status().is_success())
}

/// Checks that the process may open enough files for the configured number of connections.
pub(super) fn check_open_files(config: &Config) -> DoctorFinding {
    let protocols = [config.http, config.resp, config.rls].iter().flatten().count() + config.rls_socket.iter().count();
    let needed = (config.connections.saturating_mul(protocols)).saturating_add(RESERVED_FILES) as u64;
    match getrlimit(Resource::Nofile).maximum {
        Some(files) if files < needed => DoctorFinding::warning(
            "file limit",
            format!(
                "{files} files may be open, and --connections {} for {} needs {needed}",
                config.connections,
                count_with_noun(protocols, "protocol")
            ),
            "raise the limit (LimitNOFILE= of systemd, ulimit -Hn of a shell); --connections is lowered until then",
        ),
        Some(files) => DoctorFinding::ok("file limit", format!("{files} files may be open, {needed} are needed")),
        None => DoctorFinding::ok("file limit", "none"),
    }
}

/// Checks that the certificate belongs to its key and has not expired. The configuration check covers the permissions
/// of the key file.
pub(super) fn check_certificate(config: &Config, now: i64) -> DoctorFinding {
    let Some(files) = &config.tls else { return DoctorFinding::ok("certificate", "TLS is off") };
    if let Err(error) = Tls::new(files.clone()) {
        return DoctorFinding::error("certificate", format!("{error:#}"), "name a certificate and its key, in PEM");
    }
    check_expiry(files, now)
}

fn check_expiry(files: &TlsFiles, now: i64) -> DoctorFinding {
    let path = files.certificate.display();
    let chain = std::fs::read(&files.certificate).unwrap_or_default();
    let ends = CertificateDer::pem_slice_iter(&chain).map_while(Result::ok).map(|der| certificate::not_after(&der));
    // A chain is valid until the first of its certificates expires.
    let Some(end) = ends.collect::<Option<Vec<Timestamp>>>().and_then(|ends| ends.into_iter().min()) else {
        return DoctorFinding::warning(
            "certificate",
            format!("the expiry of {path} cannot be read"),
            "check it with openssl x509",
        );
    };
    let days = (end.as_second() - now).div_euclid(86_400);
    match days {
        i64::MIN..0 => {
            DoctorFinding::error("certificate", format!("{path} expired at {end}"), "renew it: clients refuse it")
        }
        0..EXPIRY_WARNING_DAYS => {
            DoctorFinding::warning("certificate", format!("{path} expires in {days} days, at {end}"), "renew it")
        }
        _ => DoctorFinding::ok("certificate", format!("{path} is valid until {end}")),
    }
}
