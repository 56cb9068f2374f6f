//! Tenants of jobs by SQL: the tenant that each statement gives a job, and the roles that may
//! choose one.

use flyball::jobs::{NewJob, Queue};
use serde_json::json;

use super::permissions::{ENTRY_POINTS, RolesFixture};

/// The tenants of all jobs, sorted, without those of earlier steps.
async fn tenants_of(fixture: &RolesFixture) -> String {
    fixture
        .text("select coalesce(string_agg(distinct tenant, ',' order by tenant), 'none') from flyball.job")
        .await
}

async fn forget(fixture: &RolesFixture) {
    fixture.owner("truncate flyball.job; truncate flyball.ready; truncate flyball.scheduled; truncate flyball.unique_holder").await;
}

#[tokio::test]
async fn every_statement_that_makes_a_job_gives_it_the_callers_tenant() {
    let fixture = RolesFixture::new().await;
    let mapping = format!(
        "insert into flyball.producer (role, tenant, module) values ('{}', 'shop', null), ('{}', 'bank', 'loans')",
        fixture.role("web"),
        fixture.role("team")
    );
    fixture.owner(&mapping).await;
    let as_acme = "select flyball.as_tenant('acme', 'orders');";
    for (role, before, tenant) in [
        ("web", "", "shop"),
        ("member", "", "bank"),
        ("bank", "", ""),
        ("owner", "", ""),
        ("owner", as_acme, "acme"),
        (
            "owner",
            "select flyball.as_tenant('acme'); select flyball.as_tenant('');",
            "",
        ),
        // Every role may write a setting, and nothing follows from it.
        ("web", "set local flyball.tenant = 'bank';", "shop"),
        ("bank", "set local flyball.tenant = 'bank';", ""),
    ] {
        for (entry_point, sql) in ENTRY_POINTS
            .iter()
            .filter(|(_, sql)| !sql.contains("cron") && !sql.contains("schedule"))
        {
            let sql = sql.replace("KIND", "http");
            let refused = fixture.as_role(role, &format!("{before} {sql}")).await;
            assert_eq!(refused, None, "{role} {entry_point}");
            assert_eq!(
                tenants_of(&fixture).await,
                tenant,
                "{role} {before} {entry_point}"
            );
            forget(&fixture).await;
        }
    }
}

/// A module is the key of a lane, so one of any length or with control characters would stop the
/// lanes of all others.
#[tokio::test]
async fn settings_of_a_session_are_refused_where_as_tenant_refuses_them() {
    let fixture = RolesFixture::new().await;
    let mapping = format!(
        "insert into flyball.producer (role, tenant) values ('{}', 'shop')",
        fixture.role("web")
    );
    fixture.owner(&mapping).await;
    let sql = r#"select flyball.enqueue_many('[{"kind": "http"}]')"#;
    for (role, setting, value) in [
        ("web", "flyball.module", "repeat('m', 65)"),
        ("web", "flyball.module", "'a' || chr(10)"),
        ("owner", "flyball.module", "repeat('m', 65)"),
        ("owner", "flyball.tenant", "repeat('t', 65)"),
        ("owner", "flyball.tenant", "'bad tenant *'"),
    ] {
        let before = format!("select set_config('{setting}', {value}, true);");
        let refused = fixture.as_role(role, &format!("{before} {sql}")).await;
        let (code, text) = refused.unwrap_or_default();
        assert_eq!(code, "22023", "{role} {value}: {text}");
        assert!(
            text.contains(&format!("setting {setting}: must be")),
            "{role} {value}: {text}"
        );
    }
    assert_eq!(tenants_of(&fixture).await, "none");
}

#[tokio::test]
async fn a_role_acts_for_its_own_tenant_and_an_operator_for_each() {
    let fixture = RolesFixture::new().await;
    let (web, team) = (fixture.role("web"), fixture.role("team"));
    fixture
        .owner(&format!("insert into flyball.producer (role, tenant, module) values ('{web}', 'shop', null), ('{team}', 'bank', 'loans')"))
        .await;
    let whose = "do $$ begin raise exception '%/%', flyball.caller_tenant(), flyball.caller_module(); end $$";
    for (role, act, answer) in [
        ("owner", "'acme', 'orders'", "acme/orders".to_owned()),
        ("owner", "'acme'", "acme/".to_owned()),
        ("owner", "''", "/".to_owned()),
        ("web", "'shop', 'carts'", "shop/carts".to_owned()),
        ("web", "'shop'", format!("shop/{web}")),
        ("member", "'bank'", "bank/loans".to_owned()),
        ("web", "'bank'", format!("as_tenant: tenant: \"bank\" is not the tenant of role \"{web}\"; it acts for \"shop\"")),
        (
            "team",
            "'bank', 'cards'",
            format!("as_tenant: module: \"cards\" is not the module of role \"{team}\"; it acts for \"loans\""),
        ),
        (
            "bank",
            "'bank'",
            format!("as_tenant: tenant: role \"{}\" has no tenant; an operator gives it one in flyball.producer", fixture.role("bank")),
        ),
        (
            "owner",
            "'two words'",
            "as_tenant: tenant: \"two words\" is not a tenant; use 1 to 64 letters, digits or any of . _ - / : { }, or '' for none".to_owned(),
        ),
        (
            "owner",
            "'acme', E'a\\nb'",
            "as_tenant: module: must be a name of at most 64 bytes without control characters, or '' for none".to_owned(),
        ),
    ] {
        let (_, said) = fixture
            .as_role(role, &format!("select flyball.as_tenant({act}); {whose}"))
            .await
            .unwrap();
        assert_eq!(said, answer, "{role} {act}");
    }
    // It ends with the transaction, so nothing stays on a pooled connection.
    assert_eq!(
        fixture
            .as_role("owner", "select flyball.as_tenant('acme')")
            .await,
        None
    );
    assert_eq!(fixture.text("select flyball.caller_tenant()").await, "");
}

#[tokio::test]
async fn the_program_names_the_tenant_by_the_owner_of_its_keys() {
    let fixture = RolesFixture::new().await;
    let queue = Queue::new(fixture.pool().clone());
    let plain = NewJob::new("http", json!({}));
    let unique = NewJob {
        unique_key: Some("k".into()),
        ..plain.clone()
    };
    for (owner, tenant) in [("tenant:shop", "shop"), ("token:shop", ""), ("", "")] {
        for jobs in [
            vec![plain.clone()],
            vec![unique.clone()],
            vec![plain.clone(), unique.clone()],
        ] {
            queue.enqueue_for(owner, "", &jobs).await.unwrap();
            assert_eq!(tenants_of(&fixture).await, tenant, "{owner}");
            forget(&fixture).await;
        }
    }
}

#[tokio::test]
async fn a_role_with_a_tenant_changes_and_runs_no_schedule_whatever_it_was_granted() {
    let fixture = RolesFixture::new().await;
    let planner = fixture.role("planner");
    fixture
        .owner("select flyball.schedule('nightly', '@daily', 'http')")
        .await;
    let tenant =
        format!("insert into flyball.producer (role, tenant) values ('{planner}', 'shop')");
    fixture.owner(&tenant).await;

    let written = "select md5(string_agg(c::text, ',')) from flyball.cron c";
    let before = fixture.text(written).await;
    for statement in [
        "select flyball.schedule('x', '* * * * * *', 'notification', '{\"priority\": \"critical\"}', throttle => 'sms')",
        "insert into flyball.cron (name, expression, kind) values ('x', '@daily', 'http')",
        "update flyball.cron set priority = 0",
        "update flyball.cron set next_at = now()",
        "select flyball.pause_schedule('nightly')",
        "select flyball.unschedule('nightly')",
        "select flyball.run_schedule('nightly')",
        "select flyball.enqueue_occurrence('nightly', null)",
    ] {
        let (code, message) = fixture.as_role("planner", statement).await.unwrap();
        assert_eq!(code, "42501", "{statement}");
        let words = format!(
            "tenant: role \"{planner}\" belongs to tenant \"shop\", and the jobs of schedules are the operators' own"
        );
        assert!(message.contains(&words), "{statement}: {message}");
    }
    assert_eq!(fixture.text(written).await, before);
    assert_eq!(tenants_of(&fixture).await, "none");

    fixture.owner("delete from flyball.producer").await;
    let run = "select flyball.run_schedule('nightly')";
    assert_eq!(fixture.as_role("planner", run).await, None);
}

#[tokio::test]
async fn a_role_with_a_tenant_changes_jobs_of_its_tenant_alone_whatever_it_was_granted() {
    let fixture = RolesFixture::new().await;
    let web = fixture.role("web");
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{web}', 'shop')"
        ))
        .await;
    let job = |key: &str| {
        format!(
            "select flyball.enqueue('http', key => '{key}', run_at => now() + interval '1 day')"
        )
    };
    let group = |name: &str| format!("select flyball.create_group(name => '{name}')");
    let own = format!("{}; {}", job("own"), group("own"));
    assert_eq!(fixture.as_role("web", &own).await, None);
    let bank = format!(
        "select flyball.as_tenant('bank'); {}; {}",
        job("bank"),
        group("bank")
    );
    assert_eq!(fixture.as_role("owner", &bank).await, None);
    assert_eq!(fixture.as_role("owner", &job("operators")).await, None);
    let (own, bank, operators) = (
        fixture
            .text("select id::text from flyball.job where key = 'own'")
            .await,
        fixture
            .text("select id::text from flyball.job where key = 'bank'")
            .await,
        fixture
            .text("select id::text from flyball.job where key = 'operators'")
            .await,
    );
    let (own_group, bank_group) = (
        fixture
            .text("select id::text from flyball.job_group where name = 'own'")
            .await,
        fixture
            .text("select id::text from flyball.job_group where name = 'bank'")
            .await,
    );
    let all = "update, flyball.reschedule, flyball.retry, flyball.cancel, flyball.discard, flyball.cancel_group";
    fixture
        .owner(&format!("grant execute on function flyball.{all} to {web}"))
        .await;
    // A check that fails raises, with what was found.
    let check = async |expression: String, wanted: &str| {
        let block = format!(
            "do $$ declare found text := {expression}; begin
                if found is distinct from {wanted} then raise exception '%', found; end if; end $$"
        );
        assert_eq!(fixture.as_role("web", &block).await, None, "{expression}");
    };

    for (call, of_its_own) in [
        ("update(ID, priority => 0)", "'updated'"),
        ("reschedule(ID, now() + interval '1 hour')", "'scheduled'"),
        ("retry(ID)", "'ready'"),
        ("cancel(ID)", "'cancelled'"),
        ("discard(ID)", "'already cancelled'"),
    ] {
        for other in [&bank, &operators] {
            let call = call.replace("ID", other);
            check(format!("flyball.{call}"), "'not found'").await;
        }
        let named = call.replace(')', ", tenant => 'bank')");
        if !call.contains("now()") {
            let named = named.replace("ID", &bank);
            check(format!("flyball.{named}"), "'not found'").await;
        }
        let call = call.replace("ID", &own);
        check(format!("flyball.{call}"), of_its_own).await;
    }
    let cancel =
        |group: &str| format!("(select g.more::text from flyball.cancel_group({group}) g)");
    check(cancel(&bank_group), "null").await;
    check(cancel(&own_group), "'false'").await;

    let states =
        "select string_agg(flyball.job_state(id), ', ') from flyball.job where key <> 'own'";
    assert_eq!(fixture.text(states).await, "scheduled, scheduled");
    let sealed = "select string_agg(name, ', ') from flyball.job_group where sealed_at is not null";
    assert_eq!(fixture.text(sealed).await, "own");
}
