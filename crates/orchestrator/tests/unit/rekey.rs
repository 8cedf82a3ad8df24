//! Rekeying re-encrypts all secrets, or none.

use api::{EngineId, EngineKey, ProductId, Timestamp};
use http_service::clock::SystemClock;
use sqlx::{AnyPool, Row as _};

use super::*;
use crate::testing::{TestDatabase, on_postgres};

const OLD: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const NEW: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA";
const OTHER: &str = "CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCA";

/// Webhooks with their secrets: the present one, and the one before.
const WEBHOOKS: [(&str, &str, Option<&str>); 2] =
    [("whk_1", "whsec_one", None), ("whk_2", "whsec_two", Some("whsec_of old"))];

/// Warm engines with their keys and the keys of their secrets.
const WARM_ENGINES: [(&str, &str, &str); 2] =
    [("eng_warm_1", "sk-svc-one", "one"), ("eng_warm_2", "sk-svc-two", "two")];

/// Calls with an `Idempotency-Key`, with their answers.
const CALLS: [(&str, Option<&str>); 2] =
    [("call_1", Some("{\"platform_api_key\": \"…\"}")), ("call_2", None)];

fn vault(key: &str) -> Vault {
    Vault::new(&MasterKey::parse(key).unwrap()).unwrap()
}

/// A registry whose secrets are encrypted under `OLD`. Every third engine is in a key rotation.
struct Fixture {
    folder: tempfile::TempDir,
    database: TestDatabase,
    /// Each engine with its plaintext secrets: key, secrets key, pending key.
    engines: Vec<(EngineId, [String; 3])>,
}

impl Fixture {
    async fn new(engines: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::from_unix_ms(0);
        let database = TestDatabase::new(folder.path()).await;
        let registry = Registry::open(database.url(), now).await.unwrap();
        let old = vault(OLD);
        let key_check = old.seal(DEPLOYMENT_ID, Purpose::KeyCheck, KEY_CHECK_TEXT).unwrap();
        registry.get_or_insert_meta(crate::registry::KEY_CHECK, &key_check).await.unwrap();
        registry.close().await;
        drop(registry);
        let mut fixture = Self { folder, database, engines: Vec::new() };
        let pool = fixture.pool().await;
        let product_id = ProductId::new().to_string();
        sqlx::query(
            "INSERT INTO products VALUES ($1, 'demo', 'Demo', '{}', 'x', 0, 0, '', NULL, 0, 0, NULL, NULL, NULL, NULL, NULL)",
        )
        .bind(product_id.clone())
        .execute(&pool)
        .await
        .unwrap();
        for (id, secret, previous) in WEBHOOKS {
            let seal = |secret: &str| old.seal(id, Purpose::WebhookSecret, secret).unwrap();
            sqlx::query(
                "INSERT INTO audit_webhooks (webhook_id, product_id, url, events, state, sealed_secret, \
                 old_sealed_secret, created_at, updated_at, revision, position, lagging) \
                 VALUES ($1, $2, '', '[]', 'active', $3, $4, 0, 0, 1, 0, '[]')",
            )
            .bind(id)
            .bind(product_id.clone())
            .bind(seal(secret))
            .bind(previous.map(seal))
            .execute(&pool)
            .await
            .unwrap();
        }
        for (id, answer) in CALLS {
            let statement = "INSERT INTO idempotent_calls (call_id, caller, fingerprint, created_at, attempts, answer) \
                             VALUES ($1, 'admin', '', 0, 1, $2)";
            let answer = answer.map(|answer| old.seal(id, Purpose::IdempotentAnswer, answer).unwrap());
            sqlx::query(statement).bind(id).bind(answer).execute(&pool).await.unwrap();
        }
        for (id, key, secrets_key) in WARM_ENGINES {
            sqlx::query(
                "INSERT INTO warm_engines (engine_id, product_id, state, since, key_hash, sealed_key, \
                 sealed_secrets_key, engine_version, settings) \
                 VALUES ($1, $2, 'ready', 0, 'x', $3, $4, 'svc-engine:0.1.0', '{}')",
            )
            .bind(id)
            .bind(product_id.clone())
            .bind(old.seal(id, Purpose::EngineKey, key).unwrap())
            .bind(old.seal(id, Purpose::EngineSecrets, secrets_key).unwrap())
            .execute(&pool)
            .await
            .unwrap();
        }
        let mut transaction = pool.begin().await.unwrap();
        for number in 0..engines {
            let engine_id = EngineId::new();
            let secrets = [(); 3].map(|()| EngineKey::generate().unwrap().expose().to_owned());
            let owner = engine_id.to_string();
            let pending =
                (number % 3 == 0).then(|| old.seal(&owner, Purpose::EngineKey, &secrets[2]).unwrap());
            sqlx::query(
                "INSERT INTO engines (engine_id, product_id, user_id, status, key_hash, sealed_key, \
                 sealed_secrets_key, engine_version, pinned, created_at, generation, pending_key) \
                 VALUES ($1, $2, $1, 'stopped', 'x', $3, $4, 'svc-engine:0.1.0', 0, 0, 1, $5)",
            )
            .bind(owner.clone())
            .bind(product_id.clone())
            .bind(old.seal(&owner, Purpose::EngineKey, &secrets[0]).unwrap())
            .bind(old.seal(&owner, Purpose::EngineSecrets, &secrets[1]).unwrap())
            .bind(pending)
            .execute(&mut *transaction)
            .await
            .unwrap();
            fixture.engines.push((engine_id, secrets));
        }
        transaction.commit().await.unwrap();
        pool.close().await;
        fixture
    }

    async fn pool(&self) -> AnyPool {
        self.database.pool().await
    }

    async fn rekey(&self, old: &str, new: &str) -> Result<RekeyOutcome, RekeyError> {
        rekey(self.database.url(), old, new).await
    }

    /// Asserts that every secret opens under `key` and is unchanged.
    async fn assert_sealed_under(&self, key: &str) {
        let (vault, pool) = (vault(key), self.pool().await);
        let key_check =
            sqlx::query("SELECT value FROM meta WHERE name = 'canary'").fetch_one(&pool).await.unwrap();
        assert!(verifies(&vault, &key_check.get::<String, _>(0)));
        let rows =
            sqlx::query("SELECT sealed_key, sealed_secrets_key, pending_key FROM engines ORDER BY engine_id")
                .fetch_all(&pool)
                .await
                .unwrap();
        assert_eq!(rows.len(), self.engines.len());
        for (number, ((engine_id, secrets), row)) in self.engines.iter().zip(rows).enumerate() {
            let owner = engine_id.to_string();
            let open = |purpose, sealed: &str| vault.open(&owner, purpose, sealed).unwrap().to_string();
            assert_eq!(open(Purpose::EngineKey, &row.get::<String, _>(0)), secrets[0]);
            assert_eq!(open(Purpose::EngineSecrets, &row.get::<String, _>(1)), secrets[1]);
            let pending: Option<String> = row.get(2);
            assert_eq!(pending.is_some(), number % 3 == 0);
            if let Some(pending) = pending {
                assert_eq!(open(Purpose::EngineKey, &pending), secrets[2]);
            }
        }
        let rows = sqlx::query("SELECT sealed_key, sealed_secrets_key FROM warm_engines ORDER BY engine_id");
        let rows = rows.fetch_all(&pool).await.unwrap();
        assert_eq!(rows.len(), WARM_ENGINES.len());
        for ((id, key, secrets_key), row) in WARM_ENGINES.into_iter().zip(rows) {
            let open =
                |purpose, at: usize| vault.open(id, purpose, &row.get::<String, _>(at)).unwrap().to_string();
            assert_eq!(open(Purpose::EngineKey, 0), key);
            assert_eq!(open(Purpose::EngineSecrets, 1), secrets_key);
        }
        let rows =
            sqlx::query("SELECT sealed_secret, old_sealed_secret FROM audit_webhooks ORDER BY webhook_id");
        let rows = rows.fetch_all(&pool).await.unwrap();
        for ((id, secret, previous), row) in WEBHOOKS.into_iter().zip(rows) {
            let open = |sealed: String| vault.open(id, Purpose::WebhookSecret, &sealed).unwrap().to_string();
            assert_eq!(open(row.get(0)), secret);
            assert_eq!(row.get::<Option<String>, _>(1).map(open).as_deref(), previous);
        }
        let rows = sqlx::query("SELECT answer FROM idempotent_calls ORDER BY call_id");
        let rows = rows.fetch_all(&pool).await.unwrap();
        for ((id, answer), row) in CALLS.into_iter().zip(rows) {
            let open =
                |sealed: String| vault.open(id, Purpose::IdempotentAnswer, &sealed).unwrap().to_string();
            assert_eq!(row.get::<Option<String>, _>(0).map(open).as_deref(), answer);
        }
        pool.close().await;
    }

    /// Returns all secrets in their sealed form.
    async fn sealed(&self) -> Vec<String> {
        let pool = self.pool().await;
        let rows = sqlx::query(
            "SELECT sealed_key || sealed_secrets_key || COALESCE(pending_key, '') FROM engines \
             UNION ALL SELECT sealed_key || sealed_secrets_key FROM warm_engines \
             UNION ALL SELECT sealed_secret || COALESCE(old_sealed_secret, '') FROM audit_webhooks \
             UNION ALL SELECT COALESCE(answer, '') FROM idempotent_calls \
             UNION ALL SELECT value FROM meta WHERE name <> 'epoch' ORDER BY 1",
        )
        .fetch_all(&pool)
        .await
        .unwrap();
        pool.close().await;
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn rekey(database: &DatabaseUrl, old: &str, new: &str) -> Result<RekeyOutcome, RekeyError> {
    let rekey = Rekey {
        database: database.clone(),
        new: MasterKey::parse(new).unwrap(),
        old: MasterKey::parse(old).unwrap(),
        backups: RekeyedBackups::Unnamed,
    };
    rekey.run(&SystemClock::new()).await
}

#[tokio::test]
async fn every_secret_is_sealed_anew_and_stays_what_it_was() {
    // More engines than are read in one batch.
    let fixture = Fixture::new(1_007).await;
    fixture.assert_sealed_under(OLD).await;
    let old = fixture.sealed().await;
    assert_eq!(fixture.rekey(OLD, NEW).await.unwrap(), RekeyOutcome::Done { engines: 1_007, wiped: true });
    fixture.assert_sealed_under(NEW).await;
    // Nothing that the old key opens remains in the file.
    if !on_postgres() {
        let bytes = std::fs::read(fixture.folder.path().join("registry.db")).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let remaining = old.iter().filter(|sealed| sealed.len() > 40 && text.contains(&sealed[..40])).count();
        assert_eq!(remaining, 0);
    }
    // A second run finds that it is already done, whatever old key is given.
    let done = fixture.sealed().await;
    for old in [OLD, NEW, OTHER] {
        assert_eq!(fixture.rekey(old, NEW).await.unwrap(), RekeyOutcome::AlreadyDone);
    }
    assert_eq!(fixture.sealed().await, done);
}

#[tokio::test]
async fn a_wrong_old_key_changes_nothing() {
    let fixture = Fixture::new(3).await;
    let before = fixture.sealed().await;
    let refused = fixture.rekey(OTHER, NEW).await.unwrap_err();
    assert!(matches!(refused, RekeyError::WrongKey { .. }), "{refused}");
    assert!(refused.to_string().contains("ORCH_MASTER_KEY_OLD"));
    assert_eq!(fixture.sealed().await, before);
    fixture.assert_sealed_under(OLD).await;
}

#[tokio::test]
async fn what_fails_in_the_middle_changes_nothing() {
    let fixture = Fixture::new(700).await;
    let (victim, _) = fixture.engines[650];
    let pool = fixture.pool().await;
    let statement = "UPDATE engines SET sealed_secrets_key = sealed_key WHERE engine_id = $1";
    sqlx::query(statement).bind(victim.to_string()).execute(&pool).await.unwrap();
    pool.close().await;
    let before = fixture.sealed().await;
    let failed = fixture.rekey(OLD, NEW).await.unwrap_err();
    let RekeyError::Failed(cause) = &failed else { panic!("{failed}") };
    assert!(cause.to_string().contains(&victim.to_string()), "{cause}");
    assert!(failed.to_string().contains("nothing was changed"));
    assert_eq!(fixture.sealed().await, before);
}

#[tokio::test]
async fn an_orchestrator_that_holds_the_registry_is_named() {
    let fixture = Fixture::new(1).await;
    let held = Registry::open(fixture.database.url(), Timestamp::from_unix_ms(0)).await.unwrap();
    let refused = fixture.rekey(OLD, NEW).await.unwrap_err();
    assert!(matches!(refused, RekeyError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    held.close().await;
    drop(held);
    fixture.assert_sealed_under(OLD).await;
    assert_eq!(fixture.rekey(OLD, NEW).await.unwrap(), RekeyOutcome::Done { engines: 1, wiped: true });
}

#[tokio::test]
async fn where_there_is_no_registry_none_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let database = DatabaseUrl::Sqlite(folder.path().join("nowhere.db"));
    assert!(matches!(rekey(&database, OLD, NEW).await.unwrap_err(), RekeyError::Missing { .. }));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    if let Some(empty) = TestDatabase::create_on_test_server().await {
        assert!(matches!(rekey(empty.url(), OLD, NEW).await.unwrap_err(), RekeyError::Missing { .. }));
        let tables = "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'";
        let tables = sqlx::query(tables).fetch_one(&empty.pool().await).await.unwrap();
        assert_eq!(tables.get::<i64, _>(0), 0);
    }
    let registry = Registry::open(&database, Timestamp::from_unix_ms(0)).await.unwrap();
    registry.close().await;
    drop(registry);
    assert!(matches!(rekey(&database, OLD, NEW).await.unwrap_err(), RekeyError::Unused { .. }));
}

#[test]
fn all_faults_are_named_at_once_and_no_key_is_shown() {
    let env: std::collections::BTreeMap<String, String> =
        [("ORCH_MASTER_KEY", "too short"), ("ORCH_MASTER_KEY_OLD", "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    let faults = Rekey::from_env(&env).unwrap_err().to_string();
    for name in ["ORCH_DATABASE_URL", "ORCH_MASTER_KEY ", "ORCH_MASTER_KEY_OLD"] {
        assert!(faults.contains(name), "{faults}");
    }
    assert!(!faults.contains("too short"), "{faults}");
}

#[tokio::test]
async fn backups_get_the_new_key_too_or_nothing_changes() {
    let fixture = Fixture::new(3).await;
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/backups", folder.path().display());
    let target = Target::parse(&url, &std::collections::BTreeMap::<String, String>::new()).unwrap();
    let opens = async |key: &str| {
        let opened = Store::open(&target, &MasterKey::parse(key).unwrap(), false).await.unwrap();
        opened.is_ok()
    };
    let registry = Registry::open(fixture.database.url(), Timestamp::from_unix_ms(0)).await.unwrap();
    registry.note_backups().await.unwrap();
    registry.close().await;
    drop(registry);
    // They are made, and nobody says where they are.
    let before = fixture.sealed().await;
    assert!(matches!(fixture.rekey(OLD, NEW).await, Err(RekeyError::BackupsUnnamed)));
    assert_eq!(fixture.sealed().await, before);
    let rekey = async |backups: RekeyedBackups| {
        let rekey = Rekey {
            database: fixture.database.url().clone(),
            new: MasterKey::parse(NEW).unwrap(),
            old: MasterKey::parse(OLD).unwrap(),
            backups,
        };
        rekey.run(&SystemClock::new()).await
    };
    drop(Store::open(&target, &MasterKey::parse(OLD).unwrap(), true).await.unwrap().unwrap());
    assert!(opens(OLD).await && !opens(NEW).await);
    // A first run that was told to leave them; a second one makes up for it.
    assert!(matches!(rekey(RekeyedBackups::Left).await, Ok(RekeyOutcome::Done { .. })));
    assert!(opens(OLD).await && !opens(NEW).await);
    for _ in 0..2 {
        assert!(matches!(rekey(RekeyedBackups::In(target.clone())).await, Ok(RekeyOutcome::AlreadyDone)));
        assert!(!opens(OLD).await && opens(NEW).await);
    }
    fixture.assert_sealed_under(NEW).await;
}
