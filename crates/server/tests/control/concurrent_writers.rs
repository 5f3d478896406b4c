//! Concurrent writers, other processes, and databases that disappear.

use std::sync::Arc;

use tollgate_server::control::ControlError;
use tollgate_server::control::model::{AuditSearch, ExpectedVersion, PageRequest};

use crate::eventually::TEST_TIMEOUT;
use crate::test_database::{TestDatabase, change_by, put_rule};

on_both_databases!(
    exactly_one_concurrent_writer_wins,
    writes_of_other_processes_are_seen_soon,
    snapshot_is_built_once_per_revision,
    several_instances_may_start_concurrently,
);

async fn exactly_one_concurrent_writer_wins(database: Arc<TestDatabase>) {
    const WRITERS: usize = 16;
    const ROUNDS: i64 = 5;
    // Half of the writers use a second instance. To the database, the second instance looks like another process.
    let controls = [Arc::new(database.open().await), Arc::new(database.open().await)];
    put_rule(&controls[0], "api", "each", "{limit: 1/s}").await;
    for round in 1..=ROUNDS {
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let control = controls[writer % 2].clone();
                tokio::spawn(async move {
                    let text = format!("{{limit: {}/s}}", round * 100 + writer as i64);
                    let author = change_by(&format!("writer {writer}"));
                    control
                        .rules()
                        .put(
                            &author.clone().with_expected(ExpectedVersion::Version(round)),
                            "api",
                            "each",
                            text.as_bytes(),
                        )
                        .await
                })
            })
            .collect();
        let mut winners = Vec::new();
        let mut conflicts = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                Ok(written) => winners.push(written.value),
                Err(ControlError::Conflict(conflict)) => conflicts.push(conflict),
                Err(error) => panic!("{error}"),
            }
        }
        let [winner] = &winners[..] else { panic!("{} have won", winners.len()) };
        assert_eq!((winner.version, conflicts.len()), (round + 1, WRITERS - 1));
        for conflict in conflicts {
            assert_eq!((conflict.current, &conflict.by.unwrap().0), (Some(round + 1), &winner.author));
            let limit = winner.rule["limit"].as_str().unwrap();
            assert!(conflict.diff.unwrap().contains(&format!("+limit: {limit}\n")));
        }
    }
    let log = controls[0].audit().list(&AuditSearch::default(), &PageRequest::default()).await.unwrap().items;
    assert_eq!(log.len() as i64, ROUNDS + 1);
}

async fn writes_of_other_processes_are_seen_soon(database: Arc<TestDatabase>) {
    let (one, other) = (database.open().await, database.open().await);
    let (mut own, mut seen) = (one.watch_revision(), other.watch_revision());
    put_rule(&one, "api", "each", "{limit: 1/s}").await;
    assert!(own.has_changed().unwrap());
    assert_eq!(*own.borrow_and_update(), 1);
    tokio::time::timeout(TEST_TIMEOUT, seen.changed()).await.unwrap().unwrap();
    assert_eq!(other.snapshot().await.unwrap().revision, 1);
    drop(other);
    // The watch ends with its instance.
    assert!(tokio::time::timeout(TEST_TIMEOUT, seen.changed()).await.unwrap().is_err());
}

async fn snapshot_is_built_once_per_revision(database: Arc<TestDatabase>) {
    let control = database.open().await;
    let empty = control.snapshot().await.unwrap();
    assert_eq!((empty.revision, empty.checksum.len()), (0, 64));
    put_rule(&control, "api", "each", "{limit: 1/s}").await;
    let first = control.snapshot().await.unwrap();
    assert!(Arc::ptr_eq(&first, &control.snapshot().await.unwrap()));
    control.rules().set_enabled(&change_by("ann"), "api", "each", false).await.unwrap();
    control.rules().set_enabled(&change_by("ann"), "api", "each", true).await.unwrap();
    let second = control.snapshot().await.unwrap();
    assert_eq!((second.revision, &second.checksum), (3, &first.checksum));
}

async fn several_instances_may_start_concurrently(database: Arc<TestDatabase>) {
    let opened = tokio::join!(database.open(), database.open(), database.open());
    put_rule(&opened.0, "api", "each", "{limit: 1/s}").await;
    assert_eq!(opened.2.rules().get("api", "each").await.unwrap().version, 1);
}

mod sqlite_only {
    use std::os::unix::fs::PermissionsExt;
    use tollgate_server::control::{Control, sqlite_url};

    use crate::test_database::{put_rule, run_case, sqlite};

    #[test]
    fn database_file_is_private() {
        run_case(sqlite(), async |_| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("data").join("rules.db");
            let control = Control::open(&sqlite_url(&path)).await.unwrap();
            put_rule(&control, "api", "each", "{limit: 1/s}").await;
            for name in ["rules.db", "rules.db-wal", "rules.db-shm"] {
                let mode = path.with_file_name(name).metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{name}");
            }
        });
    }

    #[test]
    fn database_that_cannot_be_opened_is_reported() {
        run_case(sqlite(), async |_| {
            for url in ["sqlite:/proc/no/rules.db?mode=rwc", "mysql://x", "", "postgres://127.0.0.1:1/none"] {
                assert!(Control::open(url).await.is_err(), "{url}");
            }
        });
    }
}

mod postgres_only {
    use tollgate_server::control::{Control, ControlError};
    use tollgate_testkit::servers::Postgres;

    use crate::eventually::TEST_TIMEOUT;
    use crate::test_database::{put_rule, run_case, sqlite};

    #[test]
    fn lost_database_is_reported_and_recovers() {
        let mut server = Postgres::start();
        let url = server.create_database("rules");
        run_case(sqlite(), async |_| {
            let control = Control::open(&url).await.unwrap();
            put_rule(&control, "api", "each", "{limit: 1/s}").await;
            let before = control.snapshot().await.unwrap();
            server.kill();
            let lost = control.rules().get("api", "each").await.unwrap_err();
            assert!(matches!(lost, ControlError::Database(_)), "{lost}");
            // Nodes still get the last snapshot.
            assert_eq!(control.snapshot().await.unwrap().revision, before.revision);
            server.restart();
            let mut seen = control.watch_revision();
            let other = Control::open(&url).await.unwrap();
            assert_eq!(other.rules().get("api", "each").await.unwrap().version, 1);
            put_rule(&other, "api", "each", "{limit: 2/s}").await;
            tokio::time::timeout(TEST_TIMEOUT, seen.changed()).await.unwrap().unwrap();
            assert_eq!(control.rules().get("api", "each").await.unwrap().version, 2);
        });
    }
}
