//! Answers to requests of the matrix of tenants, and the traces of another tenant in them.

use reqwest::Method;
use serde_json::Value;

use super::tenants_aim::Aim;
use super::tenants_fixture::{TwoTenants, secret};

/// Every operation of the document.
pub async fn operations(world: &TwoTenants) -> Vec<(String, String)> {
    let root = secret("root");
    let document = world
        .ask(Method::GET, "/openapi.json", Some(&root), None)
        .await;
    let document: Value = document.json().await.unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            if item.get(method).is_some() {
                all.push((method.to_uppercase(), path.clone()));
            }
        }
    }
    all
}

/// The answer to a request: its status, and the text of its headers and its body. A stream is read
/// for two ticks, that of a channel for its first event.
pub async fn answer(
    world: &TwoTenants,
    method: &str,
    bearer: Option<&str>,
    aim: &Aim,
) -> (u16, String) {
    let method: Method = method.parse().unwrap();
    let mut response = world
        .ask(method, &aim.path, bearer, aim.body.as_ref())
        .await;
    let status = response.status().as_u16();
    let link = response
        .headers()
        .get("link")
        .map(|link| link.to_str().unwrap().to_owned());
    let location = response
        .headers()
        .get("location")
        .map(|at| at.to_str().unwrap().to_owned());
    let is_stream = response
        .headers()
        .get("content-type")
        .is_some_and(|kind| kind.to_str().unwrap().starts_with("text/event-stream"));
    let mut text = String::new();
    if is_stream {
        while text.matches("event: tick").count() < 2 && !text.contains("event: subscribed") {
            let chunk = response.chunk().await.unwrap().unwrap();
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
    } else {
        text = response.text().await.unwrap();
    }
    let headers = [link, location].into_iter().flatten().collect::<Vec<_>>();
    (status, format!("{}\n{text}", headers.join("\n")))
}

/// Returns the first trace of zeta in an answer, apart from what the request itself said.
pub fn trace_of_zeta(world: &TwoTenants, aim: &Aim, text: &str) -> Option<String> {
    let body = aim.body.as_ref().map(Value::to_string).unwrap_or_default();
    let said = format!("{} {body}", aim.path.replace("%2F", "/"));
    let mut text = text.to_owned();
    for echo in [
        "zeta-key",
        "notify:zeta",
        "tenant:zeta/out",
        "tenant:zeta%2Fout",
        "x@zeta.example",
    ] {
        if said.contains(echo) {
            text = text.replace(echo, "");
        }
    }
    let ids = world
        .zeta
        .ids()
        .into_iter()
        .filter(|id| *id > 1000)
        .map(|id| id.to_string());
    ids.filter(|id| !said.contains(id.as_str()))
        .chain(["zeta".to_owned()])
        .find(|mark| text.to_lowercase().contains(mark.as_str()))
        .map(|mark| format!("{mark} in {text}"))
}

/// Returns the code of the problem in an answer; empty if it has none.
pub fn code(text: &str) -> String {
    let body = text.split_once('\n').map_or("", |(_, body)| body).trim();
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    value["code"].as_str().unwrap_or_default().to_owned()
}
