//! Tokens, sessions, and the headers that protect browsers.

use super::*;

#[tokio::test]
async fn with_a_token_every_route_but_health_asks_for_it() {
    let fixture = fixture(Some("s3cret")).await;
    for path in [
        "/",
        "/metrics",
        "/openapi.json",
        "/api/v1/throttles",
        "/api/v1/stream",
        "/assets/app.js",
        "/nowhere",
    ] {
        let response = fixture.get(path).send().await.unwrap();
        assert_eq!(
            response.headers()["www-authenticate"],
            "Bearer realm=\"flyball\""
        );
        problem(response, 401, "unauthorized").await;
        problem(
            fixture.get(path).bearer_auth("s3cre").send().await.unwrap(),
            401,
            "unauthorized",
        )
        .await;
    }
    assert_eq!(
        fixture.get("/healthz").send().await.unwrap().status(),
        StatusCode::OK
    );
    let open = fixture
        .get("/api/v1/throttles")
        .bearer_auth("s3cret")
        .header("host", "flyball.example")
        .send()
        .await
        .unwrap();
    assert_eq!(open.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_browser_is_shown_the_login_page_and_stays_logged_in_by_a_cookie_that_pages_cannot_read()
{
    let fixture = fixture(Some("s3cret")).await;
    let page = fixture
        .get("/")
        .header("accept", "text/html,*/*")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            page.status(),
            page.headers()["cache-control"].to_str().unwrap()
        ),
        (StatusCode::UNAUTHORIZED, "no-store")
    );
    assert!(page.text().await.unwrap().contains("name=\"token\""));

    let login = |token: &str| {
        let form = fixture
            .ask(Method::POST, "/login")
            .header("content-type", "application/x-www-form-urlencoded");
        form.body(format!("token={token}")).send()
    };
    assert_eq!(
        login("wrong").await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
    let welcome = login("s3cret").await.unwrap();
    assert_eq!(
        (
            welcome.status(),
            welcome.headers()["location"].to_str().unwrap()
        ),
        (StatusCode::SEE_OTHER, "/")
    );
    let cookie = welcome.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("; HttpOnly; SameSite=Strict")
            && !cookie.contains("Secure")
            && !cookie.contains("s3cret"),
        "{cookie}"
    );

    let value = cookie.split(';').next().unwrap();
    assert_eq!(
        fixture
            .get("/api/v1/throttles")
            .header("cookie", value)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    let forged = value.replace('.', "0.");
    problem(
        fixture
            .get("/api/v1/throttles")
            .header("cookie", forged)
            .send()
            .await
            .unwrap(),
        401,
        "unauthorized",
    )
    .await;
    let edit = fixture
        .ask(Method::PATCH, "/api/v1/throttles/reindex")
        .header("cookie", value)
        .header("sec-fetch-site", "cross-site");
    problem(
        edit.json(&json!({"rps": 1})).send().await.unwrap(),
        403,
        "origin_not_allowed",
    )
    .await;
}

#[tokio::test]
async fn without_a_token_other_names_and_other_sites_are_refused() {
    let fixture = fixture(None).await;
    problem(
        fixture
            .get("/api/v1/throttles")
            .header("host", "evil.example")
            .send()
            .await
            .unwrap(),
        403,
        "host_not_allowed",
    )
    .await;
    let edit = fixture
        .ask(Method::PATCH, "/api/v1/throttles/reindex")
        .header("origin", "https://evil.example");
    problem(
        edit.json(&json!({"rps": 1})).send().await.unwrap(),
        403,
        "origin_not_allowed",
    )
    .await;
}

#[tokio::test]
async fn every_answer_carries_the_headers_that_keep_browsers_in_bounds() {
    let fixture = fixture(None).await;
    for path in ["/", "/healthz", "/nowhere", "/api/v1/throttles"] {
        let response = fixture.get(path).send().await.unwrap();
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        assert!(
            header("content-security-policy").starts_with("default-src 'none'; script-src 'self'"),
            "{path}"
        );
        assert_eq!(
            (header("x-content-type-options"), header("referrer-policy")),
            ("nosniff", "no-referrer")
        );
    }
}

#[tokio::test]
async fn the_dashboard_is_served_with_etags_and_nothing_beside_its_files() {
    let fixture = fixture(None).await;
    let page = fixture.get("/").send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let tag = page.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(
        fixture
            .get("/")
            .header("if-none-match", tag)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::NOT_MODIFIED
    );
    for path in [
        "/assets/none.js",
        "/assets/..%2fmod.rs",
        "/assets/login.html",
        "/assets/",
    ] {
        assert_eq!(
            fixture.get(path).send().await.unwrap().status(),
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}
