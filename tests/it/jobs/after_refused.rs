//! Jobs after which none may run, refused by name at every entry point.

use flyball::jobs::{AfterFailure, Client, NewGroup};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor};

use super::enqueue::{count, one};
use super::fixture::{http, queue, refused};
use super::permissions::RolesFixture;

#[tokio::test]
async fn numbers_that_are_no_jobs_and_fields_that_do_not_fit_are_refused_and_nothing_is_enqueued() {
    let (database, queue) = queue().await;
    let first = one(&queue, http()).await.id;
    let absent = "4712 is not the number of a job of yours whose history is kept";
    let place = "cannot be used together with replace or debounce";
    let cases = [
        (http().after([first, 4712]), "after", absent),
        (http().after([first]).unique("u").replace(), "after", place),
        (
            http()
                .after([first])
                .unique("u")
                .debounce(std::time::Duration::from_secs(1)),
            "after",
            place,
        ),
        (
            http().after(vec![first; 101]),
            "after",
            "has 101 elements; at most 100 are allowed",
        ),
        (
            http().after([0]),
            "after",
            "has the element 0; allowed are the numbers of jobs",
        ),
        (
            http().after_failure(AfterFailure::Run),
            "after_failure",
            "needs an after",
        ),
    ];
    for (job, at, output) in cases {
        refused(&queue, &job, at, output).await;
    }
    for (jobs, output) in [
        (
            json!([{"kind": "http", "after": 7}]),
            "jobs[0].after: must be a list of job numbers, not number",
        ),
        (
            json!([{"kind": "http", "after": ["7"]}]),
            "jobs[0].after: has the element \"7\"; allowed are the numbers of jobs",
        ),
        (
            json!([{"kind": "http", "after": [1.5]}]),
            "jobs[0].after: has the element 1.5; allowed are the numbers of jobs",
        ),
        (
            json!([{"kind": "http"}, {"kind": "http", "after": [first], "after_failure": "wait"}]),
            "jobs[1].after_failure: is \"wait\"; allowed are \"cancel\" and \"run\"",
        ),
    ] {
        let refused = sqlx::query("select flyball.enqueue_many($1)")
            .bind(&jobs)
            .execute(database.pool())
            .await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(output), "{jobs}: {refused}");
    }
    let group = NewGroup::then(http().after([first]));
    let refused = Client.create_group(database.pool(), &group).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("callback.after: must be left out"),
        "{refused}"
    );
    let by_sql = "select flyball.create_group('{\"kind\": \"http\", \"after\": [1]}')";
    let refused = database.pool().execute(by_sql).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("callback.after: must be left out"),
        "{refused}"
    );
    for table in ["job", "ready"] {
        let sql = format!("select count(*) from flyball.{table}");
        assert_eq!(count(database.pool(), &sql).await, 1, "{table}");
    }
    let gone = format!("delete from flyball.ready; delete from flyball.job where id = {first}");
    database.pool().execute(AssertSqlSafe(gone)).await.unwrap();
    let refused = queue.enqueue(&[http().after([first])]).await.unwrap_err();
    assert!(
        refused.to_string().contains("whose history is kept"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_role_names_jobs_of_its_own_tenant_alone() {
    let fixture = RolesFixture::new().await;
    let mapping = format!(
        "insert into flyball.producer (role, tenant) values ('{}', 'shop'), ('{}', 'bank')",
        fixture.role("web"),
        fixture.role("bank")
    );
    fixture.owner(&mapping).await;
    for role in ["web", "bank", "owner"] {
        let job = format!("select flyball.enqueue('http', key => '{role}')");
        assert_eq!(fixture.as_role(role, &job).await, None, "{role}");
    }
    let of = async |key: &str| -> i64 {
        let sql = format!("select id::text from flyball.job where key = '{key}'");
        fixture.text(&sql).await.parse().unwrap()
    };
    for role in ["web", "bank", "owner"] {
        for other in ["web", "bank", "owner"] {
            let id = of(other).await;
            for call in [
                format!("select flyball.enqueue('http', after => array[{id}])"),
                format!(
                    "select flyball.enqueue_many('[{{\"kind\": \"http\", \"after\": [{id}], \"after_failure\": \"run\"}}]')"
                ),
                format!(
                    "select flyball.create_group(jobs => '[{{\"kind\": \"http\", \"after\": [{id}]}}]')"
                ),
            ] {
                let refused = fixture.as_role(role, &call).await;
                assert_eq!(
                    refused.is_none(),
                    role == other,
                    "{role} {call} {refused:?}"
                );
                if let Some((code, message)) = refused {
                    assert_eq!(code, "22023");
                    assert!(
                        message.contains("not the number of a job of yours"),
                        "{message}"
                    );
                }
            }
        }
    }
    let look = fixture
        .as_role("web", "select flyball.release_waiting()")
        .await;
    assert_eq!(look.unwrap().0, "42501");
}
