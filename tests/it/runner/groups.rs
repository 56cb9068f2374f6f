//! Groups whose jobs run in several processes, of which one is killed.

use flyball::jobs::{Client, GroupState, NewGroup, NewJob};

use super::process::SOON;
use crate::support::eventually;
use crate::support::process::{Gate, ProcessFixture};

#[tokio::test]
async fn a_group_ends_once_although_a_process_that_ran_its_jobs_is_killed() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = fixture.serve();
    doomed.worker_started().await;
    let jobs: Vec<NewJob> = (0..8).map(|n| fixture.call(&format!("job-{n}"))).collect();
    let group = NewGroup::then(fixture.call("ended")).jobs(jobs);
    let group = Client.create_group(&fixture.queue.pool, &group).await;
    let group = group.unwrap();
    fixture.target.called(8, SOON).await;
    let _others = [fixture.serve(), fixture.serve()];

    doomed.kill();
    fixture.target.gate(Gate::Open);

    let ended = eventually("the group ends", SOON, || async {
        let found = fixture.queue.group(group.id, None).await.unwrap().unwrap();
        (found.state == GroupState::Ended).then_some(found)
    })
    .await;
    assert_eq!((ended.jobs, ended.completed), (8, 8));
    fixture
        .until_completed(&[ended.callback_job_id.unwrap()], SOON)
        .await;
    fixture.markers().await;
    let counts = fixture.target.counts();
    let calls = counts.iter().find(|(path, _)| path.ends_with("ended"));
    assert_eq!(calls.map(|(_, calls)| *calls), Some(1), "{counts:?}");
    assert_eq!(
        fixture
            .count("select count(*) from flyball.job where group_id is null and args ->> 'url' like '%ended'")
            .await,
        1
    );
}
