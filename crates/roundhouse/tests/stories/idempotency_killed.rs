//! Whenever the orchestrator is killed, a call that is sent again with its key is executed once.

use std::collections::BTreeMap;
use std::time::Instant;

use reqwest::Method;
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::idempotency::Caller::{Operator, Product as OfProduct};
use crate::idempotency::{Mutation, is_replayed, product_id};
use crate::support::http::send;
use crate::support::{Deployment, Engine, HttpResponse, Orchestrator, Product, env_number, eventually};

/// A kind of call that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Register,
    CreateKey,
    Policy,
    Provision,
    Stop,
    Start,
    Rotate,
    Delete,
    CreateWebhook,
    RotateSecret,
    MintToken,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Register,
        Self::CreateKey,
        Self::Policy,
        Self::Provision,
        Self::Stop,
        Self::Start,
        Self::Rotate,
        Self::Delete,
        Self::CreateWebhook,
        Self::RotateSecret,
        Self::MintToken,
    ];

    /// The audit log's event of its change.
    const fn event(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::CreateKey => "create_key",
            Self::Policy => "policy_update",
            Self::Provision => "provision",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Rotate => "rotate_key",
            Self::Delete => "destroy",
            Self::CreateWebhook => "create_webhook",
            Self::RotateSecret => "rotate_webhook_secret",
            Self::MintToken => "mint_token",
        }
    }
}

/// A deployment with a product that has an engine and a webhook.
struct World {
    deployment: Deployment,
    product: Product,
    product_id: String,
    webhook: String,
}

impl World {
    async fn new() -> (Self, Orchestrator) {
        let deployment = Deployment::new();
        let (orchestrator, product) = deployment.start_with_product().await;
        product.engine("ada").await;
        let url = json!({"url": "https://product.invalid/rows"});
        let webhook = product.call(Method::POST, "/webhooks", Some(url)).await.body;
        let (product_id, webhook) =
            (product_id(&product).await, webhook["webhook_id"].as_str().unwrap().to_owned());
        (Self { deployment, product, product_id, webhook }, orchestrator)
    }

    /// The call of this kind in a round, once what it needs is there.
    async fn prepare(&self, kind: Kind, round: usize) -> Mutation {
        let product = &self.product;
        match kind {
            Kind::Stop | Kind::Rotate | Kind::MintToken if product.status("ada").await != "running" => {
                assert_eq!(product.start("ada").await.status, 200);
            }
            Kind::Start if product.status("ada").await == "running" => {
                assert_eq!(product.stop("ada").await.status, 200);
            }
            Kind::Delete => {
                product.engine(&format!("deleted-{round}")).await;
            }
            _ => {}
        }
        let id = &self.product_id;
        let new = |caller, method, path: String, body| Mutation::new(caller, method, path, body);
        let of_engine =
            |path: &str| new(OfProduct, Method::POST, format!("/engines/ada/{path}"), Value::Null);
        match kind {
            Kind::Register => {
                let body = json!({"slug": format!("shop-{round}"), "display_name": "Shop"});
                new(Operator, Method::POST, "/products/register".to_owned(), body)
            }
            Kind::CreateKey => new(Operator, Method::POST, format!("/products/{id}/keys"), json!({})),
            Kind::Policy => {
                let body = json!({"policy": {"max_engines": 1_000 + round}});
                new(Operator, Method::PUT, format!("/products/{id}/policy"), body)
            }
            Kind::Provision => {
                let body = json!({"user_id": format!("provisioned-{round}")});
                new(OfProduct, Method::POST, "/engines/provision".to_owned(), body)
            }
            Kind::Stop => of_engine("stop"),
            Kind::Start => of_engine("start"),
            Kind::Rotate => of_engine("rotate-key"),
            Kind::MintToken => Mutation { body: json!({"scopes": ["chat"]}), ..of_engine("tokens") },
            Kind::Delete => new(OfProduct, Method::DELETE, format!("/engines/deleted-{round}"), Value::Null),
            Kind::CreateWebhook => {
                let body = json!({"url": "https://product.invalid/more"});
                new(OfProduct, Method::POST, "/webhooks".to_owned(), body)
            }
            Kind::RotateSecret => {
                new(OfProduct, Method::POST, format!("/webhooks/{}/secret", self.webhook), Value::Null)
            }
        }
    }

    /// How often the change of this kind has been made.
    async fn changes(&self, orchestrator: &Orchestrator, kind: Kind) -> usize {
        if kind == Kind::Register {
            let products = orchestrator.operate(Method::GET, "/products?limit=1000").await.body;
            return usize::try_from(products["total"].as_u64().unwrap()).unwrap();
        }
        self.product.audit_rows(kind.event()).await.len()
    }

    /// Checks that what was answered is what there is, and removes what would be in the way of later rounds.
    async fn check(&self, orchestrator: &Orchestrator, kind: Kind, round: usize, answer: &Value) {
        let (product, text) = (&self.product, |name: &str| answer[name].as_str().unwrap().to_owned());
        match kind {
            Kind::Register => {
                assert_eq!(Product::new(&product.base, &text("platform_api_key")).list("").await.1, 0);
            }
            Kind::CreateKey => {
                let path = format!("/products/{}/keys", self.product_id);
                let keys = orchestrator.operate(Method::GET, &path).await.body["keys"].clone();
                assert_eq!(keys.as_array().unwrap().len(), 2, "{keys}");
                assert!(Product::new(&product.base, &text("platform_api_key")).list("").await.1 > 0);
                let path = format!("{path}/{}", text("key_id"));
                assert_eq!(orchestrator.operate(Method::DELETE, &path).await.status, 200);
            }
            Kind::Policy => assert_eq!(answer["policy"]["max_engines"], 1_000 + round),
            Kind::Provision => {
                let user = format!("provisioned-{round}");
                let engine = product.get(&user).await.body;
                assert_eq!(
                    (&engine["engine_id"], &engine["api_key"]),
                    (&answer["engine_id"], &answer["api_key"])
                );
                Engine::new(answer).health().await;
                assert_eq!(product.delete(&user).await.status, 200);
            }
            Kind::Stop => assert_eq!(product.status("ada").await, "stopped"),
            Kind::Start => {
                product.engine("ada").await.health().await;
            }
            Kind::Rotate => {
                let record = product.get("ada").await.body;
                assert_eq!(record["api_key"], answer["new_api_key"]);
                Engine::new(&record).health().await;
            }
            Kind::Delete => {
                product.get(&format!("deleted-{round}")).await.assert_error(404, "ENGINE_NOT_FOUND");
            }
            Kind::CreateWebhook => {
                let webhooks = product.call(Method::GET, "/webhooks", None).await.body["webhooks"].clone();
                assert_eq!(webhooks.as_array().unwrap().len(), 2, "{webhooks}");
                let path = format!("/webhooks/{}", text("webhook_id"));
                assert_eq!(product.call(Method::DELETE, &path, None).await.status, 200);
            }
            Kind::RotateSecret => assert!(text("secret").starts_with("whsec_")),
            Kind::MintToken => {
                let path = format!("/engines/ada/tokens/{}", text("token_id"));
                assert_eq!(product.call(Method::DELETE, &path, None).await.status, 200);
            }
        }
    }

    /// How far the last call has come, as the registry has it; `None` if it is not in a file.
    fn last_call(&self) -> Option<&'static str> {
        let file = self.deployment.fleet.folder().join("registry.sqlite");
        let registry = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        let query = "SELECT applied_at IS NOT NULL, answered_at IS NOT NULL, engine_id IS NOT NULL \
                     FROM idempotent_calls ORDER BY rowid DESC LIMIT 1";
        let state = registry
            .query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .ok()
            .map(|(applied, answered, claimed): (bool, bool, bool)| match (applied, answered, claimed) {
                (_, true, _) => "answered",
                (true, ..) => "applied",
                (.., true) => "claimed",
                _ => "open",
            });
        Some(state.unwrap_or("none"))
    }
}

/// Sends a call again until it is no longer refused for now.
async fn repeat(
    mutation: &Mutation,
    orchestrator: &Orchestrator,
    product: &Product,
    key: &str,
) -> HttpResponse {
    eventually("the call is answered", async || {
        let answer = send(mutation.request(orchestrator, product, key)).await;
        (answer.status < 500).then_some(answer)
    })
    .await
}

/// Each kind of call is made once to see how long it takes, and then cut off by a kill at moments that are spread over
/// that time. `ROUNDHOUSE_TEST_IDEMPOTENCY_KILLS` sets how many kills there are.
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the counts are printed for runs with --nocapture")]
async fn whenever_the_orchestrator_is_killed_a_repeated_call_is_executed_once() {
    let kills = env_number("ROUNDHOUSE_TEST_IDEMPOTENCY_KILLS", 22);
    let (world, mut orchestrator) = World::new().await;
    let mut durations = BTreeMap::new();
    let mut found = BTreeMap::<_, usize>::new();
    let rounds = kills.div_ceil(Kind::ALL.len());
    for round in 0..=rounds {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            if round > 0 && (round - 1) * Kind::ALL.len() + number >= kills {
                break;
            }
            let mutation = world.prepare(kind, round).await;
            let (key, before) = (format!("{kind:?}-{round}"), world.changes(&orchestrator, kind).await);
            let started = Instant::now();
            let first = tokio::spawn(mutation.request(&orchestrator, &world.product, &key).send());
            if round == 0 {
                assert_eq!(first.await.unwrap().unwrap().status(), 200, "{kind:?}");
                durations.insert(kind, started.elapsed());
            } else {
                // Not a wait for something: the kills come at different moments of the call.
                let (at, of) = (u32::try_from(2 * round - 1).unwrap(), u32::try_from(2 * rounds).unwrap());
                tokio::time::sleep(durations[&kind] * at / of).await;
                assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
                // Answered or not: whoever made it does not know.
                let _ = first.await.unwrap();
                if let Some(state) = world.last_call() {
                    *found.entry(state).or_default() += 1;
                }
                orchestrator = world.deployment.start().await;
            }
            let answer = repeat(&mutation, &orchestrator, &world.product, &key).await;
            assert_eq!(answer.status, 200, "{kind:?}, round {round}: {answer:?}");
            let again = send(mutation.request(&orchestrator, &world.product, &key)).await;
            assert!(is_replayed(&again), "{kind:?}, round {round}: {again:?}");
            assert_eq!(again.body, answer.body, "{kind:?}, round {round}");
            let changes = world.changes(&orchestrator, kind).await - before;
            assert_eq!(changes, 1, "{kind:?}, round {round}: made {changes} times");
            world.check(&orchestrator, kind, round, &answer.body).await;
        }
    }
    println!("{kills} kills found the calls {found:?}");
    let unfinished =
        ["open", "claimed", "applied"].iter().filter_map(|state| found.get(state)).sum::<usize>();
    if !found.is_empty() {
        assert!(unfinished * 5 >= kills, "only {unfinished} of {kills} kills cut a call off: {found:?}");
    }
}

#[tokio::test]
async fn a_standby_answers_what_its_predecessor_was_asked() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let mut standby = deployment.launch_second();
    let provision =
        |user: &str| Mutation::new(OfProduct, Method::POST, "/engines/provision", json!({"user_id": user}));
    let ada = send(provision("ada").request(&orchestrator, &product, "ada")).await;
    assert_eq!(ada.status, 200, "{ada:?}");
    let cut_off = tokio::spawn(provision("eve").request(&orchestrator, &product, "eve").send());
    eventually("the engine is being provisioned", async || {
        (product.get("eve").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let _ = cut_off.await.unwrap();
    standby.wait_ready().await;

    let product = Product::new(&standby.base, &product.key);
    let again = send(provision("ada").request(&standby, &product, "ada")).await;
    assert_eq!((is_replayed(&again), again.body), (true, ada.body));
    let eve = repeat(&provision("eve"), &standby, &product, "eve").await;
    assert_eq!(eve.status, 200, "{eve:?}");
    Engine::new(&eve.body).health().await;
    assert_eq!(product.list("").await.1, 2);
    let provisioned = product.audit_rows("provision").await;
    assert_eq!(provisioned.iter().filter(|(user, _)| user == "eve").count(), 1, "{provisioned:?}");
}
