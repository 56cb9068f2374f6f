//! Quotas, faults and latency of the fakes are real.

use std::time::Duration;

use flyball_fakes::{
    Fake, FakeOptions, FakeProvider, Fault, Latency, Rule, RuleMatch, SecondTotals, WindowQuota,
};
use reqwest::Client;

use super::fixture::{LONG, SID, client, fake, http2, json_of, twilio};
use super::messages::push;

#[tokio::test]
async fn a_quota_lets_exactly_its_limit_through_each_second_and_can_change_silently() {
    let (fake, client) = (fake(FakeProvider::Twilio, SID, "right").await, client());
    fake.set_quota(SID, Some(WindowQuota::per_second(5.0)));
    for _ in 0..40 {
        twilio(&client, &fake, "right").send().await.unwrap();
    }
    fake.set_quota(SID, Some(WindowQuota::per_second(1.0)));
    for _ in 0..10 {
        twilio(&client, &fake, "right").send().await.unwrap();
    }
    let (seconds, totals) = (fake.per_second(SID), fake.totals(SID));
    assert!(
        seconds.iter().all(|second| second.accepted <= 5),
        "{seconds:?}"
    );
    let sum = |of: fn(&SecondTotals) -> u32| {
        seconds
            .iter()
            .map(|second| u64::from(of(second)))
            .sum::<u64>()
    };
    assert_eq!(
        (sum(|one| one.accepted), sum(|one| one.refused)),
        (totals.accepted, totals.refused)
    );
    assert_eq!(totals.requests, 50);
    assert!(
        totals.refused > 0 && totals.duplicates == totals.accepted - 1,
        "{totals:?}"
    );
}

#[tokio::test]
async fn faults_come_by_the_plan_and_a_reset_counts_as_accepted() {
    let rule = |nth, fault| Rule {
        account: None,
        when: RuleMatch::Nth(nth, nth),
        fault,
    };
    let plan = vec![
        rule(1, Fault::Status(503)),
        rule(2, Fault::ResetAfterWrite),
        rule(3, Fault::CloseBeforeRead),
        rule(4, Fault::Garbage),
        rule(5, Fault::Hang),
        rule(6, Fault::Suspend),
    ];
    let fake = Fake::start(
        FakeProvider::Twilio,
        FakeOptions {
            plan,
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    // A client that retries by itself on a closed kept-alive connection would hide a fault.
    let send = || async {
        let client = Client::builder()
            .no_proxy()
            .pool_max_idle_per_host(0)
            .timeout(LONG)
            .build()
            .unwrap();
        twilio(&client, &fake, "any").send().await
    };
    assert_eq!(send().await.unwrap().status(), 503);
    assert!(send().await.is_err());
    assert_eq!(fake.totals(SID).accepted, 1);
    assert!(send().await.is_err());
    assert_eq!(fake.totals(SID).accepted, 1);
    assert!(
        send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap()
            .starts_with("<html>")
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(300), send())
            .await
            .is_err(),
        "it hangs"
    );
    assert_eq!(json_of(send().await.unwrap()).await["code"], 20005);
    assert_eq!(send().await.unwrap().status(), 201);
    assert_eq!(fake.totals(SID).requests, 7);
}

#[tokio::test]
async fn latency_grows_with_what_is_under_way() {
    let latency = Latency {
        base: Duration::from_millis(20),
        at_once: 2,
    };
    let fake = Fake::start(
        FakeProvider::Apns,
        FakeOptions {
            latency: Some(latency),
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    let client = http2();
    let started = tokio::time::Instant::now();
    let all = (0..20).map(|_| push(&client, &fake, "00ff").send());
    for answer in futures_util::future::join_all(all).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert!(
        started.elapsed() >= latency.expected(20),
        "{:?}",
        started.elapsed()
    );
}
