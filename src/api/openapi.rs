//! `/openapi.json`: OpenAPI 3.1, generated from the declarations that make the routes.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::PartialSchema as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Info, License, OpenApi, Ref, RefOr, ResponseBuilder};

use super::problem::{self, ProblemBody};
use super::state::App;

/// Shows this document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "show_openapi", tag = "meta",
    responses((status = 200, body = Object, description = "OpenAPI 3.1.")))]
pub async fn show(State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.openapi.clone()).into_response()
}

/// Completes what the routes have declared: who we are, the token, and the problem that every operation may answer.
pub fn document(mut api: OpenApi) -> OpenApi {
    let mut info = Info::new("Flyball", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "Background jobs that go as fast as the things they touch can bear, and no faster. Errors are RFC 9457 problems that list every wrong field."
            .to_owned(),
    );
    let mut license = License::new("MIT OR Apache-2.0");
    license.identifier = Some("MIT OR Apache-2.0".to_owned());
    info.license = Some(license);
    api.info = info;
    api.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>("token", [])]);
    let components = api.components.get_or_insert_default();
    components.add_security_scheme("token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    for (name, schema) in [
        ("Problem", ProblemBody::schema()),
        ("FieldError", super::fields::FieldError::schema()),
        ("Place", super::fields::Place::schema()),
        ("Tick", super::live::Tick::schema()),
        ("TickThrottle", super::live::TickThrottle::schema()),
        ("TickSignal", super::live::TickSignal::schema()),
    ] {
        components.schemas.insert(name.to_owned(), schema);
    }
    for item in api.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.patch, &mut item.put, &mut item.delete];
        operations.into_iter().flatten().for_each(may_answer_a_problem);
    }
    api
}

fn may_answer_a_problem(operation: &mut Operation) {
    // Every answer must be described; where a route says nothing more, what it does says enough.
    for response in operation.responses.responses.values_mut() {
        if let (RefOr::T(response), Some(summary)) = (response, &operation.summary)
            && response.description.is_empty()
        {
            response.description.clone_from(summary);
        }
    }
    let content = ContentBuilder::new().schema(Some(RefOr::Ref(Ref::from_schema_name("Problem")))).build();
    let response = ResponseBuilder::new()
        .description("Why not; docs/reference/errors.md lists the codes.")
        .content(problem::MEDIA_TYPE, content)
        .build();
    operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
}
