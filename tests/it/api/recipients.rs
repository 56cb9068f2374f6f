//! Recipients over HTTP: profiles, lists, imports and erasure, each within its tenant.

use flyball::api::{ALL_TENANTS, TokenScope};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::tokens_fixture::{TokenServer, leave, secret, token_server};

async fn server() -> TokenServer {
    let both = [TokenScope::NotifySend, TokenScope::NotifyRead];
    let read = [TokenScope::NotifyRead];
    token_server(
        vec![
            ("crm", Some("acme"), leave(&both)),
            ("reports", Some("acme"), leave(&read)),
            ("zeta", Some("zeta"), leave(&both)),
            ("staff", Some(ALL_TENANTS), leave(&both)),
        ],
        "",
    )
    .await
}

async fn ask(
    server: &TokenServer,
    who: &str,
    method: Method,
    path: &str,
    body: Value,
) -> (StatusCode, Value) {
    let (status, value) = server.call(method, path, &secret(who), body).await;
    (StatusCode::from_u16(status).unwrap(), value)
}

async fn get(server: &TokenServer, who: &str, path: &str) -> (StatusCode, Value) {
    ask(server, who, Method::GET, path, json!({})).await
}

fn ada() -> Value {
    json!({
        "addresses": {"email": "Ada <ada@example.com>", "sms": "+1 (555) 010-0000"},
        "time_zone": "Europe/Berlin", "device_time_zone": null,
        "quiet_hours": {"sms": {"start": "22:00", "end": "08:00"}},
        "preferences": {"all": true, "categories": {"marketing": {"sms": false}}},
    })
}

const ADA: &str = "/api/v1/recipients/ada";

#[tokio::test]
async fn a_profile_is_shown_in_full_to_those_who_may_send_and_masked_to_the_others() {
    let server = server().await;
    let (status, made) = ask(&server, "crm", Method::PUT, ADA, ada()).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (status, same) = ask(&server, "crm", Method::PUT, ADA, ada()).await;
    assert_eq!((status, &same), (StatusCode::OK, &made));
    let (_, full) = get(&server, "crm", ADA).await;
    assert_eq!(full, made);
    assert_eq!(
        (&full["id"], &full["masked"], &full["addresses"]),
        (&json!("ada"), &json!(false), &ada()["addresses"])
    );
    for field in [
        "time_zone",
        "quiet_hours",
        "preferences",
        "device_time_zone",
    ] {
        assert_eq!(full[field], ada()[field], "{field}");
    }
    let (_, masked) = get(&server, "reports", ADA).await;
    assert_eq!(
        (&masked["masked"], &masked["addresses"]),
        (
            &json!(true),
            &json!({"email": "a***@e***.com", "sms": "+1555***00"})
        )
    );
    assert_eq!(masked["time_zone"], "Europe/Berlin");

    // A profile is replaced as a whole.
    let (_, other) = ask(&server, "crm", Method::PUT, ADA, json!({"by": "ann"})).await;
    assert_eq!(
        (&other["addresses"], &other["time_zone"]),
        (&json!({}), &json!(null))
    );
    for (who, method, wanted) in [
        ("reports", Method::PUT, StatusCode::FORBIDDEN),
        ("reports", Method::DELETE, StatusCode::FORBIDDEN),
        ("zeta", Method::GET, StatusCode::NOT_FOUND),
    ] {
        let (status, answer) = ask(&server, who, method.clone(), ADA, json!({})).await;
        assert_eq!(status, wanted, "{who} {method}: {answer}");
    }
}

#[tokio::test]
async fn everything_wrong_is_listed_and_no_address_is_shown() {
    let server = server().await;
    let wrong = json!({
        "addresses": {"email": "ada at example.org", "sms": "ada@example.org", "fax": "1"},
        "time_zone": "Mars/Base", "quiet_hours": {"sms": {"start": "22:00"}}, "nonsense": 1,
    });
    let (status, problem) = ask(&server, "crm", Method::PUT, ADA, wrong.clone()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let pointers = |problem: &Value| -> Vec<String> {
        let errors = problem["errors"].as_array().unwrap();
        let mut all: Vec<String> = errors
            .iter()
            .map(|error| error["pointer"].as_str().unwrap().to_owned())
            .collect();
        all.sort();
        all
    };
    let below = [
        "/addresses/email",
        "/addresses/fax",
        "/addresses/sms",
        "/nonsense",
        "/quiet_hours/sms/end",
        "/time_zone",
    ];
    assert_eq!(pointers(&problem), below);
    assert!(!problem.to_string().contains("example.org"), "{problem}");

    let mut item = wrong;
    item["id"] = json!("x");
    let import = json!({"recipients": [{"id": "good"}, item, {"id": "good"}]});
    let path = "/api/v1/recipients";
    let (status, problem) = ask(&server, "crm", Method::POST, path, import).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let mut wanted: Vec<String> = below
        .iter()
        .map(|pointer| format!("/recipients/1{pointer}"))
        .collect();
    wanted.push("/recipients/2/id".to_owned());
    assert_eq!(pointers(&problem), wanted);
    assert!(!problem.to_string().contains("example.org"), "{problem}");
    let (_, list) = get(&server, "crm", path).await;
    assert_eq!(list["recipients"], json!([]), "all or none");

    for (path, code) in [
        ("/api/v1/recipients/a%00b", "invalid_path"),
        ("/api/v1/recipients/check", "invalid_query"),
        ("/api/v1/recipients/ada?tenant=a%20b", "invalid_query"),
        ("/api/v1/recipients?limit=0", "invalid_query"),
    ] {
        let (status, problem) = get(&server, "staff", path).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!(code)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn recipients_are_imported_at_once_and_listed_by_pages() {
    let server = server().await;
    let path = "/api/v1/recipients";
    let many: Vec<Value> = (0..1000)
        .map(|n| json!({"id": format!("user/{n:03}"), "addresses": {"push": format!("token-of-device-{n}")}}))
        .collect();
    let import = json!({"recipients": many, "by": "ann", "why": "moved"});
    let (status, made) = ask(&server, "crm", Method::POST, path, import).await;
    assert_eq!(
        (status, made),
        (StatusCode::OK, json!({"created": 1000, "changed": 0}))
    );
    let mut more = many.clone();
    more.push(json!({"id": "one-more"}));
    let import = json!({ "recipients": more });
    let (status, problem) = ask(&server, "crm", Method::POST, path, import).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"][0]["pointer"], "/recipients");

    let mut next = Some(format!("{path}?limit=400"));
    let mut ids = Vec::new();
    while let Some(path) = next {
        let (_, page) = get(&server, "reports", &path).await;
        for one in page["recipients"].as_array().unwrap() {
            let address = one["addresses"]["push"].as_str().unwrap();
            assert!(address.contains("***"), "{one}");
            ids.push(one["id"].clone());
        }
        next = page["next"].as_str().map(str::to_owned);
    }
    let wanted: Vec<Value> = many.iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, wanted);
    // An id with a slash is one part of the path.
    let (status, _) = get(&server, "crm", "/api/v1/recipients/user%2F007").await;
    assert_eq!(status, StatusCode::OK);
    let (_, audit) = server
        .call(
            Method::GET,
            "/api/v1/audit",
            super::tokens_fixture::ADMIN,
            json!({}),
        )
        .await;
    let entry = &audit["entries"][0];
    assert_eq!(
        (
            &entry["action"],
            &entry["actor"],
            &entry["token"],
            &entry["tenant"]
        ),
        (
            &json!("recipient.import"),
            &json!("ann"),
            &json!("crm"),
            &json!("acme")
        )
    );
}

#[tokio::test]
async fn operators_name_the_tenant_and_nobody_else_may() {
    let server = server().await;
    let of_acme = "/api/v1/recipients/ada?tenant=acme";
    for (who, status) in [
        ("staff", StatusCode::CREATED),
        ("crm", StatusCode::OK),
        ("zeta", StatusCode::FORBIDDEN),
    ] {
        let (answered, value) = ask(&server, who, Method::PUT, of_acme, ada()).await;
        assert_eq!(answered, status, "{who}: {value}");
    }
    let (status, _) = get(&server, "staff", ADA).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "operators have their own");
    let (_, list) = get(&server, "staff", "/api/v1/recipients?tenant=acme&limit=1").await;
    assert_eq!(
        list["next"],
        "/api/v1/recipients?limit=1&after=ada&tenant=acme"
    );
    let erase = "/api/v1/recipients/ada?by=ann&why=asked&tenant=acme";
    let (status, erased) = ask(&server, "staff", Method::DELETE, erase, json!({})).await;
    assert_eq!((status, &erased["profile"]), (StatusCode::OK, &json!(true)));
    let (_, erased) = ask(&server, "crm", Method::DELETE, ADA, json!({})).await;
    assert_eq!(erased["profile"], false);
    let (status, _) = get(&server, "crm", ADA).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, audit) = server
        .call(
            Method::GET,
            "/api/v1/audit",
            super::tokens_fixture::ADMIN,
            json!({}),
        )
        .await;
    let log = audit["entries"].as_array().unwrap();
    let actions: Vec<&str> = log
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions, ["recipient.delete", "recipient.set"]);
    assert!(!audit.to_string().contains("ada@"), "{audit}");
}

#[tokio::test]
async fn defaults_belong_to_a_tenant_and_have_no_address() {
    let server = server().await;
    let path = "/api/v1/recipient-defaults";
    let (_, none) = get(&server, "reports", path).await;
    assert_eq!(
        none,
        json!({"time_zone": null, "quiet_hours": {}, "preferences": {}, "updated_at": null})
    );
    let wanted = json!({"time_zone": "Asia/Tokyo", "why": "most are there"});
    let (status, set) = ask(&server, "crm", Method::PUT, path, wanted).await;
    assert_eq!(
        (status, &set["time_zone"]),
        (StatusCode::OK, &json!("Asia/Tokyo"))
    );
    assert_eq!(get(&server, "reports", path).await.1, set);
    let (_, of_zeta) = get(&server, "zeta", path).await;
    assert_eq!(of_zeta, none);
    let (status, problem) = ask(
        &server,
        "crm",
        Method::PUT,
        path,
        json!({"addresses": {"email": "ada@example.com"}}),
    )
    .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(problem["errors"][0]["pointer"], "/addresses");
    assert!(!problem.to_string().contains("ada@"), "{problem}");
}
