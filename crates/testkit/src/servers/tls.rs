//! Certificates for a TLS server, created for each test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate authority and a `localhost` server certificate signed by it, as PEM files.
#[derive(Debug)]
pub struct Certificates {
    directory: PathBuf,
    of_clients: bool,
}

impl Certificates {
    /// Creates the certificates in a directory with the `openssl` program.
    ///
    /// # Panics
    /// Panics if `openssl` is missing or fails.
    pub fn create(directory: &Path) -> Self {
        let new = Self { directory: directory.to_owned(), of_clients: false };
        let run = |arguments: &str| {
            let output = Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output();
            let output = output.expect("this test needs `openssl`: `apt-get install openssl`, or run `scripts/test`");
            assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        };
        std::fs::write(directory.join("names.ext"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a file");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        run(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=tollgate-test"));
        run(&format!("req {key} -keyout server.key -out server.csr -subj /CN=localhost"));
        run(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names.ext -out server.pem",
        );
        new
    }

    /// Makes servers require a client certificate. Clients present the server's own certificate.
    #[must_use]
    pub fn requiring_client_certificates(self) -> Self {
        Self { of_clients: true, ..self }
    }

    /// Returns the certificate authority's certificate, for clients.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Returns the server certificate.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("server.pem")
    }

    /// Returns the server's private key.
    pub fn key(&self) -> PathBuf {
        self.directory.join("server.key")
    }

    /// Returns the options of `redis-cli`.
    pub(super) fn client_options(&self) -> Vec<String> {
        let options = [("--cacert", self.authority()), ("--cert", self.certificate()), ("--key", self.key())];
        let options = options.into_iter().flat_map(|(name, path)| [name.to_owned(), path.display().to_string()]);
        std::iter::once("--tls".to_owned()).chain(options).collect()
    }

    /// Returns the options that make a server listen for TLS on this port.
    pub fn server_options(&self, port: u16) -> Vec<String> {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let options = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("ca.pem")),
            ("--tls-auth-clients", if self.of_clients { "yes" } else { "no" }.to_owned()),
        ];
        options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }
}
