//! A server with two tenants, `acme` and `zeta`, each with jobs in every state, messages,
//! throttles, failures and changes of its own. Everything of zeta's has its name in it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use flyball::api::{
    ALL_TENANTS, AuthToken, JwksSource, JwtAuth, Permissions, SigningAlgorithm, TokenScope,
    TokenSecret,
};
use flyball::jobs::{Job, NewGroup, NewJob, Outcome};
use flyball::notify::NotificationHandler;
use flyball::providers::{Pools, Provider};
use flyball::throttle::{Change, Name};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::issuer::{Signer, claims, rules};
use super::notifications::fixture::pool;
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;

/// The jobs of one tenant, by state, and its messages.
pub struct Owned {
    pub jobs: BTreeMap<&'static str, i64>,
    pub message: i64,
    /// A message whose job is gone.
    pub old_message: i64,
    /// An open group of jobs.
    pub group: i64,
}

impl Owned {
    pub fn ids(&self) -> Vec<i64> {
        let jobs = self.jobs.values().copied();
        jobs.chain([self.message, self.old_message]).collect()
    }
}

pub struct TwoTenants {
    server: ApiServer,
    pub acme: Owned,
    pub zeta: Owned,
}

impl Deref for TwoTenants {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

/// Names and secrets of tokens: each scope of acme's, an operator, an administrator, zeta's own.
pub fn secret(name: &str) -> String {
    format!("0123456789-{}", name.replace(':', "-"))
}

/// A JSON Web Token of acme with these scopes.
pub fn jwt_of_acme(scope: &str) -> String {
    Signer::new("any", jsonwebtoken::Algorithm::HS256).sign(&claims("acme", scope))
}

fn tokens() -> Vec<AuthToken> {
    let leave = |scopes: &[TokenScope]| Permissions {
        scopes: scopes.iter().copied().collect(),
        ..Permissions::default()
    };
    let token = |name: &str, tenant: Option<&str>, leave: Permissions| {
        AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
    };
    let of_acme = TokenScope::WORDS
        .iter()
        .map(|(word, scope)| token(word, Some("acme"), leave(&[*scope])));
    let all: Vec<TokenScope> = TokenScope::WORDS.iter().map(|(_, scope)| *scope).collect();
    of_acme
        .chain([
            token("operator", Some(ALL_TENANTS), leave(&all[..all.len() - 1])),
            token("root", None, Permissions::admin()),
            token("zeta", Some("zeta"), Permissions::admin()),
        ])
        .collect()
}

pub async fn two_tenants() -> TwoTenants {
    let fixture = Fixture::new().await;
    for name in [
        "mail",
        "notify:acme",
        "notify:zeta",
        "tenant:acme/out",
        "tenant:zeta/out",
    ] {
        let rps = if name.starts_with("notify:") {
            "-1"
        } else {
            "100"
        };
        fixture.turn(name, &[("rps", rps)]).await;
    }
    fixture.register("notification").await;
    let pools = Arc::new(Pools(BTreeMap::from([pool(
        "mail",
        Provider::Mailgun,
        &["a1"],
    )])));
    let server = ApiServer::start(fixture, |deps| {
        deps.kinds
            .register_fn("http", |_: Job, _| async { Outcome::Done });
        let handler = NotificationHandler::new(pools.clone(), None);
        deps.kinds.register("notification", handler);
        deps.pools = pools;
        deps.tokens = tokens().into();
        let rules = rules(&[SigningAlgorithm::Hs256]);
        deps.jwt = Some(Arc::new(JwtAuth::new(rules, JwksSource::None)));
    })
    .await;
    let acme = owned(&server, "acme").await;
    let zeta = owned(&server, "zeta").await;
    let world = TwoTenants { server, acme, zeta };
    world.shared_traces().await;
    world
}

/// Makes jobs of a tenant in every state, its messages, a failure and a change.
async fn owned(server: &ApiServer, tenant: &str) -> Owned {
    let job = |key: &str, throttle: &str| NewJob {
        key: key.to_owned(),
        throttle: throttle.to_owned(),
        ..NewJob::new(
            "http",
            json!({"url": format!("https://{tenant}.example/secret")}),
        )
    };
    let key = format!("{tenant}-key");
    let owner = format!("tenant:{tenant}");
    let own = format!("tenant:{tenant}/out");
    let states = [
        "ready",
        "owned",
        "scheduled",
        "retryable",
        "running",
        "dead",
        "completed",
    ];
    let mut all: Vec<NewJob> = states
        .iter()
        .map(|state| job(&key, if *state == "owned" { &own } else { "mail" }))
        .collect();
    all[0].unique_key = Some("order-7".to_owned());
    let mut message = NewJob::new(
        "notification",
        json!({"channel": "email", "to": format!("x@{tenant}.example"), "body": tenant}),
    );
    message.throttle = "mail".to_owned();
    all.push(message);
    let made = server.queue.enqueue_for(&owner, "", &all).await.unwrap();
    let ids: Vec<i64> = made.iter().map(|one| one.id).collect();
    let jobs: BTreeMap<&'static str, i64> = states.into_iter().zip(ids.iter().copied()).collect();
    let moves = [
        (
            "scheduled",
            "insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry) select job_id, now() + interval '1 day', lane_id, priority, cost, false from gone",
        ),
        (
            "retryable",
            "insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry) select job_id, now() + interval '1 day', lane_id, priority, 1, cost, true from gone",
        ),
        (
            "running",
            "insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost) select job_id, 1, 1, lane_id, priority, 1, cost from gone",
        ),
        (
            "dead",
            "insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error) select job_id, lane_id, priority, 1, cost, 'TENANT-error' from gone",
        ),
        (
            "completed",
            "insert into flyball.attempt (job_id, attempt, outcome) select job_id, 1, 'completed' from gone",
        ),
    ];
    // Any claim records the lanes that it finds, so they are known before.
    run(
        server,
        "insert into flyball.lane (lane_id, throttle, key)
         select lane_id, throttle, key from flyball.job
         union select admission_lane, 'notify:' || tenant, module from flyball.job where admission_lane is not null
         on conflict do nothing",
    )
    .await;
    // The first worker of all holds what runs: a broker with this number would give it back when
    // nobody claims any more.
    run(
        server,
        "insert into flyball.worker (name, host, pid, ttl, role, serves) values ('holder', 'h', 1, '1 hour', 'remote', false)
         on conflict do nothing",
    )
    .await;
    for (state, insert) in moves {
        run(
            server,
            &format!(
                "with gone as (delete from flyball.ready where job_id = {} returning *) {}",
                jobs[state],
                insert.replace("TENANT", tenant)
            ),
        )
        .await;
    }
    let (dead, message) = (jobs["dead"], ids[states.len()]);
    let old_message = if tenant == "acme" { 11 } else { 12 };
    run(server, &format!("insert into flyball.attempt (job_id, attempt, outcome, error) values ({dead}, 1, 'dead', '{tenant}-error')")).await;
    run(server, &format!("insert into flyball.failure (job_id, attempt, outcome, error) values ({dead}, 1, 'dead', '{tenant}-error')")).await;
    for id in [message, old_message] {
        run(server, &format!("insert into flyball.delivery (job_id, channel, pool, tenant, state, recipient, reason) values ({id}, 'email', 'mail', '{tenant}', 'failed', 'x***@{tenant}', '{tenant}-reason')")).await;
    }
    run(server, &format!("insert into flyball.audit (actor, action, subject, token, tenant) values ('{tenant}-person', 'job.cancel', '1', '{tenant}', '{tenant}')")).await;
    // Acme has no recipient of this id.
    if tenant == "zeta" {
        run(server, r#"insert into flyball.recipient (tenant, id, profile) values ('zeta', 'person', '{"addresses": {"email": "x@zeta.example"}}')"#).await;
        run(server, "insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data) values ('zeta', 'person', 1, 'product', 'zeta-body', '{}')").await;
        run(
            server,
            "insert into flyball.inbox_count values ('zeta', 'person', 1, 1)",
        )
        .await;
        run(server, r#"insert into flyball.recipient_defaults (tenant, profile) values ('zeta', '{"time_zone": "Africa/Zeta"}')"#).await;
    }
    // The first batch is acme's, the second zeta's.
    run(server, &format!("insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages) values ('{tenant}', '{tenant}', 'running', 'mail', 2, 1, '[]')")).await;
    let mut callback = job(&key, &own);
    callback.args = json!({"url": format!("https://{tenant}.example/ended")});
    let group = NewGroup::then(callback).name(tenant);
    let group = server.queue.create_group_for(&owner, "", &group).await;
    Owned {
        jobs,
        message,
        old_message,
        group: group.unwrap().id,
    }
}

async fn run(server: &ApiServer, sql: &str) {
    sqlx::query(AssertSqlSafe(sql.to_owned()))
        .execute(server.database.pool())
        .await
        .unwrap();
}

impl TwoTenants {
    /// Leaves traces of zeta where both tenants work: a pause of the shared throttle and of zeta's
    /// key, and a pause of everything would hide them, so there is none.
    async fn shared_traces(&self) {
        let change = Change {
            fields: BTreeMap::from([("paused".to_owned(), Some("1".to_owned()))]),
            by: "operator".to_owned(),
            why: "zeta asked for it".to_owned(),
            ..Change::default()
        };
        let mail = Name::new("mail").unwrap();
        self.store.set(&mail, &change).await.unwrap();
    }

    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        bearer: Option<&str>,
        body: Option<&Value>,
    ) -> Response {
        // No header tells the tenant.
        let mut request = self.request(method, path);
        for header in ["tenant", "x-tenant", "x-tenant-id", "x-flyball-tenant"] {
            request = request.header(header, "zeta");
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer);
        }
        request.send().await.unwrap()
    }

    /// Everything that the stores hold of zeta.
    pub async fn standing_of_zeta(&self) -> Vec<String> {
        let ids: Vec<String> = self.zeta.ids().iter().map(i64::to_string).collect();
        let ids = ids.join(",");
        let mut standing = Vec::new();
        for (table, of) in [
            ("job", "x.tenant = 'zeta'"),
            ("ready", "x.job_id in (IDS)"),
            ("scheduled", "x.job_id in (IDS)"),
            ("lease", "x.job_id in (IDS)"),
            ("dead", "x.job_id in (IDS)"),
            ("cancel", "x.job_id in (IDS)"),
            ("attempt", "x.job_id in (IDS)"),
            ("delivery", "x.tenant = 'zeta'"),
            ("batch", "x.tenant = 'zeta'"),
            ("job_group", "x.tenant = 'zeta'"),
            ("group_member", "x.job_id in (IDS)"),
            ("unique_holder", "x.job_id in (IDS)"),
            ("lane", "x.key like '%zeta%' or x.throttle like '%zeta%'"),
            ("cron", "true"),
            ("pause", "true"),
            ("suppression", "true"),
            ("recipient", "x.tenant = 'zeta'"),
            ("recipient_defaults", "x.tenant = 'zeta'"),
            ("inbox_message", "x.tenant = 'zeta'"),
            ("inbox_count", "x.tenant = 'zeta'"),
        ] {
            let sql = format!(
                "select coalesce(jsonb_agg(row order by row::text), '[]')::text
                 from flyball.{table} x cross join lateral (select to_jsonb(x) - 'depth' - 'depth_at') r(row) where {}",
                of.replace("IDS", &ids)
            );
            let rows: String = sqlx::query_scalar(AssertSqlSafe(sql))
                .fetch_one(self.database.pool())
                .await
                .unwrap();
            standing.push(format!("{table} {rows}"));
        }
        for name in ["mail", "notify:zeta", "tenant:zeta/out"] {
            let name = Name::new(name).unwrap();
            let status = self.store.status(&name).await.unwrap().unwrap();
            standing.push(format!("{name} {:?}", status.raw));
            let keys = ["zeta-key".to_owned(), String::new()];
            standing.push(format!(
                "{name} {:?}",
                self.store.look(&name, &keys).await.unwrap()
            ));
        }
        standing
    }
}
