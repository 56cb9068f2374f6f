//! Jobs that wait for others, which run in several processes, of which one is killed.

use flyball::jobs::NewJob;

use super::process::SOON;
use crate::support::process::{Gate, ProcessFixture};

#[tokio::test]
async fn jobs_run_once_after_the_others_although_a_process_that_ran_those_is_killed() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = fixture.serve();
    doomed.worker_started().await;
    let jobs: Vec<NewJob> = (0..8).map(|n| fixture.call(&format!("job-{n}"))).collect();
    let jobs = fixture.queue.enqueue(&jobs).await.unwrap();
    let jobs: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    let then: Vec<NewJob> = (0..8)
        .map(|n| fixture.call(&format!("then-{n}")).after(jobs.clone()))
        .collect();
    let then = fixture.queue.enqueue(&then).await.unwrap();
    let then: Vec<i64> = then.iter().map(|job| job.id).collect();
    let last = fixture.call("last").after(then.clone());
    let last = fixture.queue.enqueue(&[last]).await.unwrap()[0].id;
    fixture.target.called(8, SOON).await;
    let _others = [fixture.serve(), fixture.serve()];

    doomed.kill();
    fixture.target.gate(Gate::Open);

    fixture.until_completed(&[last], SOON).await;
    fixture.until_completed(&then, SOON).await;
    fixture.markers().await;
    let counts = fixture.target.counts();
    let later = counts
        .iter()
        .filter(|(path, _)| path.contains("then-") || path.ends_with("last"));
    let later: Vec<usize> = later.map(|(_, calls)| *calls).collect();
    assert_eq!(later, [1; 9], "{counts:?}");
    assert_eq!(
        fixture
            .count("select count(*) from flyball.job_after")
            .await,
        0
    );
    let last = fixture.queue.get(last).await.unwrap().unwrap();
    let begun = last.attempts[0].started_at.unwrap();
    for job in then {
        let job = fixture.queue.get(job).await.unwrap().unwrap();
        let ended = job.attempts.last().unwrap().finished_at;
        assert!(ended <= begun, "{ended} {begun}");
    }
}
