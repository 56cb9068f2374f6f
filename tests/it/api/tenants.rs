//! No tenant reaches another: every route of the document, with every role, and with the ids of
//! another tenant.

use flyball::api::TokenScope;
use flyball::api::http::scopes::{self, RequiredAccess};
use serde_json::{Value, json};

use super::tenants_aim::{Aim, Expect, aim};
use super::tenants_answers::{answer, code, operations, trace_of_zeta};
use super::tenants_fixture::{TwoTenants, jwt_of_acme, secret, two_tenants};

/// The requests at zeta's things for a route; `None` for one that nobody has thought about.
fn row(world: &TwoTenants, method: &str, template: &str) -> Option<Vec<Aim>> {
    let zeta = &world.zeta;
    let operators = |path: &str, body: Option<Value>| vec![aim(path, body, Expect::Operators)];
    let open = |path: &str| vec![aim(path, None, Expect::Open)];
    let within = |paths: &[&str]| -> Vec<Aim> {
        paths
            .iter()
            .map(|path| aim(*path, None, Expect::Within))
            .collect()
    };
    let changes = |bodies: &[Value]| -> Vec<Aim> {
        bodies
            .iter()
            .map(|body| aim(template, Some(body.clone()), Expect::Within))
            .collect()
    };
    let writes = |body: Value| -> Vec<Aim> {
        vec![
            aim(template, Some(body.clone()), Expect::Within),
            aim(
                format!("{template}?tenant=zeta"),
                Some(body),
                Expect::Refused(403, "not_allowed"),
            ),
        ]
    };
    // Jobs: each of zeta's, beside a job that does not exist.
    let each_job = |body: Option<Value>| -> Vec<Aim> {
        let with = |id: i64| template.replace("{id}", &id.to_string());
        let ids = zeta.ids();
        ids.into_iter()
            .map(|id| aim(with(id), body.clone(), Expect::Missing(with(7))))
            .collect()
    };
    // A lease that does not hold a job is answered as one that no longer does, whoever has the job.
    let each_lease = |body: Value| -> Vec<Aim> {
        let with = |id: i64| template.replace("{id}", &id.to_string());
        let refused = || Expect::Refused(409, "lease_lost");
        let ids = zeta.ids().into_iter().chain([7]);
        ids.map(|id| aim(with(id), Some(body.clone()), refused()))
            .collect()
    };
    // Of throttles: zeta's two and the shared one, beside one that nobody has.
    let each_throttle = |body: Option<Value>| -> Vec<Aim> {
        let with = |name: &str| {
            template
                .replace("{name}", name)
                .replace("{key}", "zeta-key")
        };
        ["notify:zeta", "tenant:zeta%2Fout", "mail"]
            .iter()
            .map(|name| aim(with(name), body.clone(), Expect::Missing(with("nothing"))))
            .collect()
    };
    let own = Some(json!({}));
    let job = |more: Value| {
        let mut job = json!({"kind": "http", "args": {"url": "https://acme.example/"}});
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    let foreign = job(json!({"throttle": "notify:zeta"}));
    let same_key = job(json!({"throttle": "mail", "unique_key": "order-7", "replace": true}));
    let claims = job(json!({"tenant": "zeta"}));
    let message = json!({"channel": "email", "to": "a@acme.example", "body": "x"});
    let many = json!({"channel": "email", "recipients": ["a@acme.example"], "body": "x"});
    let schedule = job(json!({"expression": "@daily"}));
    let person = json!({"channel": "email", "recipient": "x@zeta.example"});
    Some(match (method, template) {
        ("GET", "/healthz" | "/readyz") => open(template),
        ("POST", "/api/v1/provider-events/{pool}/{account}") => {
            open("/api/v1/provider-events/mail/zeta")
        }
        ("GET", "/openapi.json" | "/asyncapi.json") => within(&[template]),
        ("GET", "/metrics") => operators(template, None),
        ("GET", "/api/v1/jobs") => within(&[
            template,
            "/api/v1/jobs?limit=1",
            "/api/v1/jobs?state=running",
            "/api/v1/jobs?state=dead&limit=1",
            "/api/v1/jobs?state=scheduled",
            "/api/v1/jobs?state=ended",
            "/api/v1/jobs?state=ready&throttle=mail&key=zeta-key",
            "/api/v1/jobs?throttle=notify:zeta",
            "/api/v1/jobs?kind=notification",
            "/api/v1/jobs?args_path=exists(%24)",
            "/api/v1/jobs?unique_key=order-7",
            "/api/v1/jobs?error_like=%25",
            "/api/v1/jobs?tags=zeta-tag",
            "/api/v1/jobs?group=1",
        ]),
        ("GET", "/api/v1/groups") => within(&[
            template,
            "/api/v1/groups?tenant=zeta",
            "/api/v1/groups?state=open",
            "/api/v1/groups?limit=1",
        ]),
        ("POST", "/api/v1/groups") => vec![
            aim(
                template,
                Some(json!({"callback": foreign})),
                Expect::Refused(403, "not_allowed"),
            ),
            aim(
                template,
                Some(json!({"jobs": [foreign]})),
                Expect::Refused(403, "not_allowed"),
            ),
            aim(
                template,
                Some(json!({"tenant": "zeta"})),
                Expect::Refused(422, "invalid_fields"),
            ),
            aim(
                template,
                Some(json!({"callback": same_key})),
                Expect::Within,
            ),
        ],
        (_, "/api/v1/groups/{id}" | "/api/v1/groups/{id}/seal" | "/api/v1/groups/{id}/cancel") => {
            let with = |id: i64| template.replace("{id}", &id.to_string());
            vec![aim(with(zeta.group), None, Expect::Missing(with(999)))]
        }
        ("POST", "/api/v1/jobs") => vec![
            aim(
                template,
                Some(job(json!({"throttle": "mail", "group": zeta.group}))),
                Expect::Refused(422, "invalid_fields"),
            ),
            aim(template, Some(foreign), Expect::Refused(403, "not_allowed")),
            aim(
                template,
                Some(claims),
                Expect::Refused(422, "invalid_fields"),
            ),
            aim(template, Some(same_key), Expect::Within),
        ],
        ("POST", "/api/v1/jobs/batch") => vec![
            aim(
                template,
                Some(json!([foreign])),
                Expect::Refused(403, "not_allowed"),
            ),
            aim(
                template,
                Some(json!([claims])),
                Expect::Refused(422, "invalid_fields"),
            ),
            aim(template, Some(json!([same_key])), Expect::Within),
        ],
        ("POST", "/api/v1/jobs/cancel") => changes(&[
            json!({"throttle": "mail", "key": "zeta-key"}),
            json!({"throttle": "notify:zeta", "dry_run": true}),
            json!({"kind": "notification"}),
        ]),
        ("POST", "/api/v1/dead/requeue" | "/api/v1/dead/discard") => changes(&[
            json!({"key": "zeta-key"}),
            json!({"error_like": "zeta%", "dry_run": true}),
        ]),
        ("GET" | "DELETE", "/api/v1/jobs/{id}") | ("GET", "/api/v1/jobs/{id}/attempts") => {
            each_job(None)
        }
        ("POST", "/api/v1/jobs/{id}/retry" | "/api/v1/jobs/{id}/discard") => each_job(own),
        ("POST", "/api/v1/jobs/{id}/reschedule") => {
            each_job(Some(json!({"run_at": "2026-12-31T00:00:00Z"})))
        }
        ("PATCH", "/api/v1/jobs/{id}") => each_job(Some(json!({"priority": 2}))),
        ("POST", "/api/v1/claim") => changes(&[json!({
            "worker": "w", "kinds": ["notification"], "throttles": ["tenant:zeta/out", "notify:zeta"], "wait_s": 0,
        })]),
        (
            "POST",
            "/api/v1/jobs/{id}/heartbeat"
            | "/api/v1/jobs/{id}/complete"
            | "/api/v1/jobs/{id}/throttled"
            | "/api/v1/jobs/{id}/release",
        ) => each_lease(json!({"lease": "0000000000000000"})),
        ("POST", "/api/v1/jobs/{id}/fail") => {
            each_lease(json!({"lease": "0000000000000000", "error": "x"}))
        }
        ("POST", "/api/v1/jobs/{id}/snooze") => {
            each_lease(json!({"lease": "0000000000000000", "for_s": 1}))
        }
        ("GET", "/api/v1/pause") => operators(template, None),
        ("POST", "/api/v1/pause" | "/api/v1/resume") => operators(template, own),
        ("GET", "/api/v1/throttles") => within(&[template]),
        (
            "GET",
            "/api/v1/throttles/{name}"
            | "/api/v1/throttles/{name}/why"
            | "/api/v1/throttles/{name}/history"
            | "/api/v1/throttles/{name}/lanes"
            | "/api/v1/throttles/{name}/keys/{key}",
        ) => each_throttle(None),
        ("PATCH", "/api/v1/throttles/{name}") => {
            let body = Some(json!({"rps": 1}));
            [
                operators("/api/v1/throttles/notify:zeta", body.clone()),
                operators("/api/v1/throttles/notify:acme", body),
            ]
            .concat()
        }
        ("DELETE", "/api/v1/throttles/{name}") => operators("/api/v1/throttles/notify:zeta", None),
        ("POST", "/api/v1/throttles/{name}/pause" | "/api/v1/throttles/{name}/resume") => {
            each_throttle(own)
        }
        ("POST", "/api/v1/throttles/{name}/acquire" | "/api/v1/throttles/{name}/peek") => {
            each_throttle(Some(json!({"key": "zeta-key"})))
        }
        ("POST", "/api/v1/throttles/{name}/settle") => {
            each_throttle(Some(json!({"key": "zeta-key", "charged": 1, "cost": 2})))
        }
        ("POST", "/api/v1/throttles/{name}/refused") => {
            each_throttle(Some(json!({"key": "zeta-key", "retry_after_s": 60})))
        }
        ("POST", "/api/v1/throttles/{name}/ended") => {
            each_throttle(Some(json!({"key": "zeta-key", "succeeded": 1})))
        }
        ("POST", "/api/v1/throttles/{name}/return") => {
            each_throttle(Some(json!({"key": "zeta-key", "tokens": 1})))
        }
        ("POST", "/api/v1/check") => operators(
            template,
            Some(json!({"method": "GET", "path": "/", "key": "zeta-key"})),
        ),
        ("PATCH", "/api/v1/throttles/{name}/keys/{key}") => {
            each_throttle(Some(json!({"weight": 2})))
        }
        ("DELETE", "/api/v1/throttles/{name}/keys/{key}/jobs") => each_throttle(None),
        ("POST", "/api/v1/throttles/{name}/keys/{key}/pause") => {
            each_throttle(Some(json!({"seconds": 5})))
        }
        ("POST", "/api/v1/throttles/{name}/keys/{key}/resume") => each_throttle(own),
        (
            "GET",
            "/api/v1/pools"
            | "/api/v1/crons"
            | "/api/v1/suppressions"
            | "/api/v1/decisions"
            | "/api/v1/kinds"
            | "/api/v1/workers",
        ) => operators(template, None),
        ("GET", "/api/v1/cron-next") => operators("/api/v1/cron-next?expression=@daily", None),
        ("PUT", "/api/v1/kinds/{name}") => operators("/api/v1/kinds/report", own),
        ("POST", "/api/v1/pools/{name}/requeue-unsent") => {
            operators("/api/v1/pools/mail/requeue-unsent", own)
        }
        ("GET", "/api/v1/pools/{name}") => operators("/api/v1/pools/mail", None),
        ("POST", "/api/v1/pools/{name}/accounts/{account}/resume") => {
            operators("/api/v1/pools/mail/accounts/a1/resume", own)
        }
        ("GET" | "DELETE", "/api/v1/crons/{name}") => operators("/api/v1/crons/zeta", None),
        ("PUT", "/api/v1/crons/{name}") => operators("/api/v1/crons/zeta", Some(schedule)),
        (
            "POST",
            "/api/v1/crons/{name}/run"
            | "/api/v1/crons/{name}/pause"
            | "/api/v1/crons/{name}/resume",
        ) => operators(&template.replace("{name}", "zeta"), own),
        ("POST", "/api/v1/suppressions") => operators(template, Some(person)),
        ("DELETE", "/api/v1/suppressions") => operators(
            "/api/v1/suppressions?channel=email&recipient=x@zeta.example",
            None,
        ),
        ("GET", "/api/v1/recipients" | "/api/v1/recipient-defaults") => {
            let of_zeta = format!("{template}?tenant=zeta");
            vec![
                aim(template, None, Expect::Within),
                aim(of_zeta, None, Expect::Refused(403, "not_allowed")),
            ]
        }
        ("POST", "/api/v1/recipients") => writes(json!({"recipients": [{"id": "imported"}]})),
        ("PUT", "/api/v1/recipient-defaults") => writes(json!({"time_zone": "UTC"})),
        ("GET", "/api/v1/recipients/{recipient}") => {
            let with = |id: &str| template.replace("{recipient}", id);
            vec![
                aim(with("person"), None, Expect::Missing(with("nobody"))),
                aim(
                    with("person?tenant=zeta"),
                    None,
                    Expect::Refused(403, "not_allowed"),
                ),
            ]
        }
        (
            _,
            "/api/v1/recipients/{recipient}/inbox"
            | "/api/v1/recipients/{recipient}/inbox/counts"
            | "/api/v1/recipients/{recipient}/inbox/mark",
        ) => {
            let own_path = template.replace("{recipient}", "person");
            let of_zeta = format!("{own_path}?tenant=zeta");
            let body = (method == "POST").then(|| json!({"all_up_to": "999999", "as": "read"}));
            vec![
                aim(own_path, body.clone(), Expect::Within),
                aim(of_zeta, body, Expect::Refused(403, "not_allowed")),
            ]
        }
        ("PUT" | "DELETE", "/api/v1/recipients/{recipient}") => {
            let with = |id: &str| template.replace("{recipient}", id);
            let body = (method == "PUT").then(|| json!({"time_zone": "UTC"}));
            vec![
                aim(with("person"), body.clone(), Expect::Within),
                aim(
                    with("person?tenant=zeta"),
                    body,
                    Expect::Refused(403, "not_allowed"),
                ),
            ]
        }
        ("GET", "/api/v1/notifications") => within(&[
            template,
            "/api/v1/notifications?limit=1",
            "/api/v1/notifications?pool=mail&state=failed",
            "/api/v1/notifications?tenant=zeta",
        ]),
        ("POST", "/api/v1/notifications") => vec![
            aim(template, Some(message), Expect::Within),
            aim(
                template,
                Some(json!({"tenant": "zeta"})),
                Expect::Refused(422, "invalid_fields"),
            ),
        ],
        ("POST", "/api/v1/notifications/batch") => vec![
            aim(template, Some(many), Expect::Within),
            aim(
                template,
                Some(json!({"tenant": "zeta"})),
                Expect::Refused(422, "invalid_fields"),
            ),
        ],
        ("GET", "/api/v1/tenants") => within(&[
            template,
            "/api/v1/tenants?tenant=zeta",
            "/api/v1/tenants?limit=1",
            "/api/v1/tenants?after=acme",
        ]),
        ("GET", "/api/v1/tenants/{tenant}/modules") => {
            let with = |tenant: &str| template.replace("{tenant}", tenant);
            vec![aim(with("zeta"), None, Expect::Missing(with("nothing")))]
        }
        ("GET", "/api/v1/notifications/batches") => within(&[
            template,
            "/api/v1/notifications/batches?tenant=zeta",
            "/api/v1/notifications/batches?module=zeta",
            "/api/v1/notifications/batches?limit=1",
        ]),
        (
            _,
            "/api/v1/notifications/batches/{id}"
            | "/api/v1/notifications/batches/{id}/pause"
            | "/api/v1/notifications/batches/{id}/resume"
            | "/api/v1/notifications/batches/{id}/cancel",
        ) => vec![aim(
            template.replace("{id}", "2"),
            None,
            Expect::Missing(template.replace("{id}", "999")),
        )],
        ("GET", "/api/v1/notifications/{id}" | "/api/v1/notifications/{id}/explain")
        | ("POST", "/api/v1/notifications/{id}/cancel")
        | ("DELETE", "/api/v1/digests/items/{id}") => each_job(None),
        ("GET", "/api/v1/recipients/check") => {
            let asked = "/api/v1/recipients/check?channel=email&recipient=ada";
            vec![
                aim(asked, None, Expect::Within),
                aim(
                    format!("{asked}&tenant=zeta"),
                    None,
                    Expect::Refused(403, "not_allowed"),
                ),
            ]
        }
        ("POST", "/api/v1/recipients/{id}/replan") => vec![
            aim("/api/v1/recipients/ada/replan", own, Expect::Within),
            aim(
                "/api/v1/recipients/ada/replan",
                Some(json!({"tenant": "zeta"})),
                Expect::Refused(403, "not_allowed"),
            ),
        ],
        ("GET", "/api/v1/digests") => within(&[template, "/api/v1/digests?tenant=zeta"]),
        ("GET", "/api/v1/gates") => operators(template, None),
        ("GET", "/api/v1/failures" | "/api/v1/audit") => within(&[template]),
        ("GET", "/api/v1/stream") => {
            let of_group = format!("{template}?group={}", zeta.group);
            let of_job = format!("{template}?job={}&throttle=mail", zeta.jobs["dead"]);
            vec![
                aim(template, None, Expect::Within),
                aim(of_group, None, Expect::Within),
                aim(of_job, None, Expect::Within),
                aim(
                    format!("{template}?tenant=zeta"),
                    None,
                    Expect::Refused(403, "not_allowed"),
                ),
            ]
        }
        ("GET", "/api/v1/channels") => {
            let of_zeta = format!("{template}?tenant=zeta");
            vec![
                aim(template, None, Expect::Within),
                aim(of_zeta, None, Expect::Refused(403, "not_allowed")),
            ]
        }
        ("GET", "/api/v1/ws") => vec![aim(template, None, Expect::Refused(400, "bad_request"))],
        ("POST", "/api/v1/ws/tickets") => vec![
            aim(template, Some(json!({"channels": ["*"]})), Expect::Within),
            aim(
                template,
                Some(json!({"tenant": "zeta"})),
                Expect::Refused(403, "not_allowed"),
            ),
        ],
        ("GET", "/api/v1/channels/{channel}/events") => vec![
            aim(
                "/api/v1/channels/news/events?tenant=zeta",
                None,
                Expect::Refused(403, "not_allowed"),
            ),
            aim(
                "/api/v1/channels/zeta:news/events",
                None,
                Expect::Refused(400, "invalid_path"),
            ),
            aim("/api/v1/channels/news/events", None, Expect::Within),
        ],
        ("POST", "/api/v1/channels/{channel}/messages") => vec![
            aim(
                "/api/v1/channels/news/messages",
                Some(json!({"data": 1})),
                Expect::Within,
            ),
            aim(
                "/api/v1/channels/news/messages?tenant=zeta",
                Some(json!({"data": 1})),
                Expect::Refused(403, "not_allowed"),
            ),
            aim(
                "/api/v1/channels/zeta:news/messages",
                Some(json!({"data": 1})),
                Expect::Refused(400, "invalid_path"),
            ),
        ],
        _ => return None,
    })
}

/// Judges the answer that a caller bound to acme got, whose scopes suffice.
async fn judge(world: &TwoTenants, method: &str, bearer: &str, aim: &Aim, who: &str) {
    let (status, text) = answer(world, method, Some(bearer), aim).await;
    let what = format!(
        "{who}: {method} {} {:?} -> {status} {text}",
        aim.path, aim.body
    );
    match &aim.expect {
        Expect::Open => {}
        Expect::Operators => assert_eq!(
            (status, code(&text).as_str()),
            (403, "not_allowed"),
            "{what}"
        ),
        Expect::Refused(wanted, slug) => {
            assert_eq!((status, code(&text).as_str()), (*wanted, *slug), "{what}")
        }
        Expect::Within => assert!((200..300).contains(&status), "{what}"),
        Expect::Missing(twin) => {
            assert_eq!(status, 404, "{what}");
            let unknown = Aim {
                path: twin.clone(),
                ..aim.clone()
            };
            let (as_unknown, other) = answer(world, method, Some(bearer), &unknown).await;
            let plain = |text: &str| {
                let mut text = text.to_owned();
                for id in world.zeta.ids().into_iter().rev().chain([7]) {
                    text = text
                        .replace(&format!("job {id};"), "job ?;")
                        .replace(&format!("notification {id};"), "notification ?;");
                }
                text = text
                    .replace(&format!("group {};", world.zeta.group), "group ?;")
                    .replace("group 999;", "group ?;")
                    .replace("batch 2", "batch ?")
                    .replace("batch 999", "batch ?");
                for name in ["notify:zeta", "tenant:zeta/out", "mail", "nothing"] {
                    text = text.replace(name, "?");
                }
                text
            };
            assert_eq!(
                (status, plain(&text)),
                (as_unknown, plain(&other)),
                "{what}"
            );
        }
    }
    if !matches!(aim.expect, Expect::Open) {
        assert_eq!(trace_of_zeta(world, aim, &text), None, "{what}");
    }
}

#[tokio::test]
async fn no_route_with_any_role_reaches_another_tenant() {
    let world = two_tenants().await;
    let operations = operations(&world).await;
    assert!(operations.len() > 50, "{}", operations.len());
    // A route that is added gets no row by chance.
    for method in ["GET", "POST", "PATCH"] {
        assert!(row(&world, method, "/api/v1/notifications/{id}/more").is_none());
    }
    let before = world.standing_of_zeta().await;
    // Every scope that a token of a tenant can have.
    let jwt = jwt_of_acme("admin");

    for (method, template) in &operations {
        let Some(aims) = row(&world, method, template) else {
            panic!(
                "{method} {template} has no row in this matrix: say what a tenant may reach there"
            );
        };
        let need = scopes::need(&method.parse().unwrap(), template);
        for aim in &aims {
            judge(&world, method, &jwt, aim, "jwt").await;
            if need != RequiredAccess::Open {
                let (status, text) = answer(&world, method, None, aim).await;
                assert_eq!(status, 401, "nobody: {method} {}: {text}", aim.path);
                assert_eq!(trace_of_zeta(&world, aim, &text), None);
            }
            for (word, scope) in TokenScope::WORDS {
                let may = match need {
                    RequiredAccess::Open | RequiredAccess::Token => true,
                    RequiredAccess::Scope(needed) => needed == scope || scope == TokenScope::Admin,
                };
                if may {
                    judge(&world, method, &secret(word), aim, word).await;
                } else {
                    let (status, text) = answer(&world, method, Some(&secret(word)), aim).await;
                    let answer = (status, code(&text));
                    assert_eq!(
                        answer,
                        (403, "scope_missing".to_owned()),
                        "{word}: {method} {}: {text}",
                        aim.path
                    );
                    assert_eq!(trace_of_zeta(&world, aim, &text), None);
                }
            }
        }
    }
    assert_eq!(world.standing_of_zeta().await, before);

    // The same requests show zeta to those who see all tenants, so that the matrix can fail.
    for who in ["operator", "root"] {
        for template in [
            "/api/v1/jobs",
            "/api/v1/notifications",
            "/api/v1/throttles",
            "/api/v1/failures",
            "/api/v1/audit",
            "/api/v1/stream",
        ] {
            let aims = row(&world, "GET", template).unwrap();
            let (status, text) = answer(&world, "GET", Some(&secret(who)), &aims[0]).await;
            assert_eq!(status, 200, "{who} {template}");
            assert!(
                trace_of_zeta(&world, &aims[0], &text).is_some(),
                "{who} {template}: {text}"
            );
        }
        for id in world.zeta.ids() {
            let path = if id == world.zeta.old_message {
                format!("/api/v1/notifications/{id}")
            } else {
                format!("/api/v1/jobs/{id}")
            };
            let (status, text) = answer(
                &world,
                "GET",
                Some(&secret(who)),
                &aim(path, None, Expect::Open),
            )
            .await;
            assert_eq!(status, 200, "{who} {id}: {text}");
        }
    }
}
