//! Workers in other programs that contend: for the brokers of a process, and for the end of a job.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use serde_json::json;

use super::work::{WorkFixture, id_of, secret, token};

#[tokio::test]
async fn a_tenant_that_asks_for_ever_different_jobs_leaves_brokers_to_the_others() {
    let world = WorkFixture::with(vec![
        token("acme", Some("acme"), &["render"], &["a*"]),
        token("zeta", Some("zeta"), &["render"], &["pages"]),
    ])
    .await;
    let (acme, zeta) = (secret("acme"), secret("zeta"));

    let claims = (0..64).map(|n| {
        let body = json!({
            "worker": "w", "kinds": ["render"], "throttles": [format!("a{n}")], "wait_s": 0, "lease_s": 3600,
        });
        let (world, acme) = (&world, &acme);
        async move { world.post_as(acme, "/api/v1/claim", &body).await }
    });
    let answers = join_all(claims).await;

    let served = answers.iter().filter(|(status, _)| *status == 200).count();
    // On a slow machine the first of them may be unused for so long that they make room.
    assert!((16..32).contains(&served), "{served}: {answers:?}");
    for (status, answer) in answers.iter().filter(|(status, _)| *status != 200) {
        assert_eq!((*status, &answer["code"]), (503, &json!("not_ready")));
        let detail = answer["detail"].as_str().unwrap();
        assert!(detail.contains("of this tenant"), "{detail}");
    }
    let job = json!({"kind": "render", "throttle": "pages"});
    let (_, made) = world.post_as(&zeta, "/api/v1/jobs", &job).await;
    let wanted = json!({"worker": "z", "kinds": ["render"], "wait_s": 20});
    let (status, claimed) = world.post_as(&zeta, "/api/v1/claim", &wanted).await;
    assert_eq!(status, 200, "{claimed}");
    assert_eq!(id_of(&claimed["jobs"][0]), id_of(&made));
    world.stop().await;
}

#[tokio::test]
async fn equal_refusals_that_come_at_once_are_reported_to_the_throttle_once() {
    let world = WorkFixture::new().await;
    world.enqueue(1, |job| job.key("acme")).await;
    let job = world.claim("w1", 1, json!({})).await.remove(0);

    let more = json!({"retry_after_s": 60});
    let equal = (0..8).map(|_| world.call(&job, "throttled", more.clone()));
    let answers = join_all(equal).await;

    let with = |status: u16| answers.iter().filter(|answer| answer.0 == status).count();
    assert_eq!(with(200), 1, "{answers:?}");
    assert_eq!(with(409) + with(503), 7, "{answers:?}");
    let reported = world.server.refusals.upstream.load(Ordering::SeqCst);
    assert_eq!(reported, 1);
    let (status, again) = world.call(&job, "throttled", more).await;
    assert_eq!((status, &again["code"]), (409, &json!("lease_lost")));
    world.stop().await;
}
