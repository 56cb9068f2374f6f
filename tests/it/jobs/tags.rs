//! Tags: short texts that a job keeps from every entry point.

use flyball::cron::{NewSchedule, Schedules};
use flyball::jobs::{Client, JobFilter, NewGroup};
use sqlx::Executor;

use super::enqueue::{count, one};
use super::fixture::{http, queue};

#[tokio::test]
async fn members_callbacks_and_jobs_of_schedules_have_their_tags() {
    let (database, queue) = queue().await;
    let group = NewGroup::then(http().key("callback").tag("end"))
        .jobs(vec![http().key("member").tag("part"), http()]);
    let group = Client.create_group(database.pool(), &group).await.unwrap();
    let cancelled = "select flyball.cancel_group(id) from flyball.job_group";
    database.pool().execute(cancelled).await.unwrap();
    queue.settle_groups().await.unwrap();
    let schedules = Schedules::new(queue.pool.clone());
    let nightly = NewSchedule::new("nightly", "30 2 * * *", http().key("schedule").tag("night"));
    schedules.set(&nightly).await.unwrap();
    schedules.run_now("nightly").await.unwrap();

    let filter = JobFilter {
        limit: 10,
        ..JobFilter::default()
    };
    let jobs = queue.list(&filter).await.unwrap();
    let tags_of = |key: &str| {
        let job = jobs.iter().find(|job| job.key == key);
        job.unwrap().tags.clone()
    };
    assert_eq!(group.jobs.len(), 2);
    assert_eq!(tags_of("member"), ["part"]);
    assert_eq!(tags_of(""), [""; 0]);
    assert_eq!(tags_of("callback"), ["end"]);
    assert_eq!(tags_of("schedule"), ["night"]);
    assert_eq!(schedules.list().await.unwrap()[0].tags, ["night"]);
    // Declared again without tags, its next jobs have none.
    let plain = NewSchedule::new("nightly", "30 2 * * *", http());
    schedules.set(&plain).await.unwrap();
    assert!(schedules.list().await.unwrap()[0].tags.is_empty());
    let tagged = "select count(*) from flyball.job where tags is not null";
    assert_eq!(count(database.pool(), tagged).await, 3);
}

#[tokio::test]
async fn a_job_that_takes_the_place_of_another_brings_its_own_tags() {
    let (_database, queue) = queue().await;
    let first = one(&queue, http().unique("u").tag("first")).await;
    let second = one(&queue, http().unique("u").replace().tag("second")).await;
    assert_eq!(first.id, second.id);
    let tags = queue.get(first.id).await.unwrap().unwrap().summary.tags;
    assert_eq!(tags, ["second"]);
    one(&queue, http().unique("u").replace()).await;
    let tags = queue.get(first.id).await.unwrap().unwrap().summary.tags;
    assert!(tags.is_empty());
}

#[tokio::test]
async fn jobs_without_tags_are_in_no_index_of_tags() {
    let (database, queue) = queue().await;
    let jobs: Vec<_> = (0..1000).map(|n| http().key(n.to_string())).collect();
    let blocks = "select sum(pg_relation_size(indexrelid))::bigint from pg_index i
        join pg_class c on c.oid = i.indexrelid where c.relname like 'job%tags%'";
    let before = count(database.pool(), blocks).await;
    assert!(before > 0);
    queue.enqueue(&jobs).await.unwrap();
    assert_eq!(count(database.pool(), blocks).await, before);
    let found = "select count(*) from flyball.job where tags @> array['import']";
    assert_eq!(count(database.pool(), found).await, 0);
    queue
        .enqueue(&[http(), http().tag("import")])
        .await
        .unwrap();
    assert_eq!(count(database.pool(), found).await, 1);
}
