//! Tests that a store uses every part of its address: user, password, database, namespace, and TLS with its certificate
//! authority.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use crate::support;

use support::{LONG_DEADLINE, bucket, check, on_redis_and_valkey, wait_until_down, wait_until_up};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::servers::Reply;

async fn store(url: &str) -> RedisStore {
    RedisStore::connect(Config::from_url(url).unwrap().deadline(LONG_DEADLINE)).await
}

#[test]
fn user_password_database_and_namespace_are_used() {
    on_redis_and_valkey(async |server| {
        server.command(&["ACL", "SETUSER", "limits", "on", ">pa:ss", "~a:b:*", "+@all"]);
        let store = store(&format!("redis://limits:pa%3Ass@127.0.0.1:{}/3?namespace=a:b", server.port())).await;
        assert_eq!(check(&store, "k", bucket(1)).await, Ok(true), "{:?}", store.health());
        let mut link = server.connect();
        assert_eq!(link.command(&["KEYS", "*"]), Reply::List(Vec::new()), "nothing is in the first database");
        link.command(&["SELECT", "3"]);
        assert_eq!(link.command(&["KEYS", "*{*"]), Reply::List(vec![Reply::Bytes(b"a:b:{k}".to_vec())]));
    });
}

#[test]
fn namespaces_on_one_server_are_separate() {
    on_redis_and_valkey(async |server| {
        for namespace in ["one", "two"] {
            let store = store(&format!("{}?namespace={namespace}", server.url())).await;
            assert_eq!(check(&store, "k", bucket(1)).await, Ok(true));
            assert_eq!(check(&store, "k", bucket(1)).await, Ok(false));
        }
    });
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;
    use tollgate_redis::Health;
    use tollgate_testkit::servers::{Certificates, Cluster, Kind, PRIMARY_NAME, Sentinels, Server, free_port};

    #[test]
    fn store_is_reached_by_tls_and_must_authenticate() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let (certificates, port) = (Certificates::create(directory.path()), free_port());
            let options = certificates.server_options(port);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let server = Server::start_with(Kind::Redis, &options);

            let address = format!("rediss://localhost:{port}");
            let trusting = store(&format!("{address}?ca={}", certificates.authority().display())).await;
            assert_eq!(check(&trusting, "k", bucket(1)).await, Ok(true), "{:?}", trusting.health());

            let wary = store(&address).await;
            let Health::Down { why } = wary.health() else { panic!("no CA has signed this certificate") };
            assert!(why.contains("certificate"), "{why}");

            let plain = store(&format!("redis://localhost:{port}")).await;
            let Health::Down { why } = plain.health() else { panic!("the port expects TLS") };
            assert!(why.contains("if the port expects TLS, write rediss://"), "{why}");
            let secure = store(&format!("rediss://localhost:{}", server.port())).await;
            let Health::Down { why } = secure.health() else { panic!("the port expects no TLS") };
            assert!(why.contains("does the port speak TLS?"), "{why}");
        });
    }

    #[test]
    fn server_that_asks_for_a_client_certificate_gets_one() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let (certificates, port) =
                (Certificates::create(directory.path()).requiring_client_certificates(), free_port());
            let options = certificates.server_options(port);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let server = Server::start_with(Kind::Redis, &options);

            let address = format!("rediss://localhost:{port}?ca={}", certificates.authority().display());
            let (certificate, key) = (certificates.certificate(), certificates.key());
            let known = store(&format!("{address}&cert={}&key={}", certificate.display(), key.display())).await;
            assert_eq!(check(&known, "k", bucket(1)).await, Ok(true), "{:?}", known.health());
            let anonymous = store(&address).await;
            assert!(matches!(anonymous.health(), Health::Down { .. }), "{:?}", anonymous.health());
            drop(server);
        });
    }

    /// Connects with and without a client certificate. Every server requires a client certificate.
    async fn check_client_certificate(url: &str, certificates: &Certificates) -> RedisStore {
        let url = format!("{url}?ca={}", certificates.authority().display());
        let (certificate, key) = (certificates.certificate(), certificates.key());
        let known = store(&format!("{url}&cert={}&key={}", certificate.display(), key.display())).await;
        wait_until_up(&known).await;
        for number in 0..20 {
            assert_eq!(check(&known, &format!("k{number}"), bucket(1)).await, Ok(true), "{:?}", known.health());
        }
        let anonymous = store(&url).await;
        let why = wait_until_down(&anonymous).await;
        assert!(why.to_lowercase().contains("certificate"), "{why}");
        known
    }

    #[test]
    fn cluster_that_requires_a_client_certificate_receives_one() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let certificates = Certificates::create(directory.path()).requiring_client_certificates();
            let cluster = Cluster::start_with_tls(&certificates);
            let url = format!("rediss+cluster://localhost:{}", cluster.port(0));
            check_client_certificate(&url, &certificates).await;
            // Each primary has some of the keys, so every primary received the certificate.
            for primary in &cluster.servers[..3] {
                assert_ne!(primary.command(&["DBSIZE"]), Reply::Number(0));
            }
        });
    }

    #[test]
    fn sentinels_that_require_a_client_certificate_receive_one() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let certificates = Certificates::create(directory.path()).requiring_client_certificates();
            let mut sentinels = Sentinels::start_with_tls(&certificates);
            let url = format!("rediss+sentinel://{}/{PRIMARY_NAME}", sentinels.addresses());
            let known = check_client_certificate(&url, &certificates).await;
            // The server that takes over also receives the certificate.
            sentinels.servers[0].kill();
            let followed = async {
                while check(&known, "after", bucket(9)).await != Ok(true) {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            };
            let followed = tokio::time::timeout(std::time::Duration::from_secs(60), followed).await;
            assert!(followed.is_ok(), "{:?}", known.health());
        });
    }
}
