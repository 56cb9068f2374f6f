//! The history of a throttle, from a real Prometheus that scrapes a real process.

use std::time::Duration;

use reqwest::Client;
use serde_json::{Value, json};

use crate::support::process::ProcessFixture;
use crate::support::{eventually, skip, stack, unique};

const SOON: Duration = Duration::from_secs(60);

async fn get(url: &str) -> (u16, Value) {
    let answer = Client::new().get(url).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

fn peak(history: &Value, name: &str) -> f64 {
    let series = history["series"].as_array().unwrap();
    let one = series.iter().find(|one| one["name"] == name).unwrap();
    let points = one["points"].as_array().unwrap().iter();
    points
        .map(|point| point["value"].as_f64().unwrap())
        .fold(0.0, f64::max)
}

#[tokio::test]
async fn requests_a_minute_are_shown_for_a_throttle_and_for_a_key_where_the_settings_ask_for_it() {
    let Some(targets) = &stack().await.targets_dir else {
        return skip("the Prometheus from outside scrapes nothing of ours");
    };
    let name = format!("t{}", unique());
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.settings_file(&format!("key_metrics = [\"{name}\"]\n"));
    let process = fixture.serve();
    let url = process.url().await;
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let target = json!([{ "targets": [address] }]).to_string();
    std::fs::write(targets.join(format!("{name}.json")), target).unwrap();
    let acquire = format!("{url}/api/v1/throttles/{name}/acquire");
    let ask = |key: &'static str| {
        let wanted = json!({"key": key, "tokens": 1, "rps": 0.001, "key_rps": 0.001, "key_burst": 2, "window": 1000});
        Client::new().post(&acquire).json(&wanted).send()
    };

    let found = eventually("Prometheus has the requests", SOON, || async {
        for key in ["a\"b", "c"] {
            ask(key).await.unwrap();
        }
        let (status, history) =
            get(&format!("{url}/api/v1/throttles/{name}/history?range=1h")).await;
        assert_eq!(
            (status, &history["problem"]),
            (200, &Value::Null),
            "{history}"
        );
        (peak(&history, "refused") > 0.0).then_some(history)
    })
    .await;
    assert_eq!(
        (&found["range_s"], &found["step_s"]),
        (&json!(3600), &json!(15))
    );
    assert_eq!(peak(&found, "completed"), 0.0, "no job of it has run");

    let of_key = format!("{url}/api/v1/throttles/{name}/history?range=6h&key=a%22b");
    // A range of six hours is read in steps of a minute, and shows only what rises within one.
    eventually("the key has its own", 3 * SOON, || async {
        ask("a\"b").await.unwrap();
        let (_, history) = get(&of_key).await;
        (peak(&history, "refused") > 0.0).then_some(())
    })
    .await;
    let nobody = get(&format!("{url}/api/v1/throttles/{name}/history?key=nobody")).await;
    assert_eq!(peak(&nobody.1, "refused"), 0.0);
    let (status, never) = get(&format!("{url}/api/v1/throttles/never/history")).await;
    assert_eq!(
        (status, &never["code"]),
        (404, &json!("throttle_not_found"))
    );
    let (_, document) = get(&format!("{url}/openapi.json")).await;
    let declared = &document["paths"]["/api/v1/throttles/{name}/history"]["get"]["responses"];
    assert!(declared["404"].is_object(), "{declared}");

    let (status, refused) = get(&format!("{url}/api/v1/throttles/{name}/history?range=2h")).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused.to_string().contains("1h, 6h or 24h"), "{refused}");
}

#[tokio::test]
async fn without_a_prometheus_the_history_says_so() {
    let fixture = ProcessFixture::new("rps = 50").await;
    let process = fixture.serve_with(&[], &[("PROMETHEUS_URL", "http://127.0.0.1:9")]);
    let url = process.url().await;

    let (status, history) = get(&format!("{url}/api/v1/throttles/default/history")).await;

    assert_eq!(status, 200);
    let problem = history["problem"].as_str().unwrap();
    assert!(problem.contains("cannot be reached"), "{history}");

    let (status, unknown) = get(&format!("{url}/api/v1/throttles/never/history")).await;
    assert_eq!(status, 404, "{unknown}");
}

#[tokio::test]
async fn a_tenant_is_not_told_where_the_prometheus_is() {
    let fixture = ProcessFixture::new("rps = 50").await;
    fixture.settings_file(
        "[api_tokens.acme]\ntenant = \"acme\"\nsecret_env = \"ACME_TOKEN\"\nscopes = [\"ops:read\"]\n",
    );
    let (operator, tenant) = ("0123456789-operator", "0123456789-of-acme");
    let settings = [
        ("PROMETHEUS_URL", "http://127.0.0.1:9"),
        ("FLYBALL_API_TOKEN", operator),
        ("ACME_TOKEN", tenant),
    ];
    let process = fixture.serve_with(&[], &settings);
    let url = process.url().await;
    let throttle = format!("{url}/api/v1/throttles/tenant:acme%2Fmail");
    let created = Client::new()
        .patch(format!("{throttle}?create=true"))
        .bearer_auth(operator)
        .json(&json!({"rps": 1}))
        .send();
    assert_eq!(created.await.unwrap().status(), 200);

    let problem = async |token: &str| {
        let asked = Client::new()
            .get(format!("{throttle}/history"))
            .bearer_auth(token);
        let history: Value = asked.send().await.unwrap().json().await.unwrap();
        history["problem"].as_str().unwrap().to_owned()
    };

    assert_eq!(problem(tenant).await, "Prometheus cannot be read");
    assert!(problem(operator).await.contains("127.0.0.1:9"));
}
