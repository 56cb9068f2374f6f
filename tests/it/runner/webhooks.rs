//! Webhooks of jobs that run in several processes, of which one is killed.

use flyball::jobs::NewJob;

use super::process::SOON;
use crate::support::eventually;
use crate::support::process::{Gate, ProcessFixture};

#[tokio::test]
async fn each_end_is_called_although_a_process_that_ran_the_jobs_is_killed() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = fixture.serve();
    doomed.worker_started().await;
    let jobs: Vec<NewJob> = (0..8)
        .map(|n| {
            let hook = fixture.call(&format!("hook-{n}"));
            let url = hook.args["url"].as_str().unwrap().to_owned();
            fixture.call(&format!("job-{n}")).on_complete(url)
        })
        .collect();
    fixture.queue.enqueue(&jobs).await.unwrap();
    fixture.target.called(8, SOON).await;
    let _others = [fixture.serve(), fixture.serve()];

    doomed.kill();
    fixture.target.gate(Gate::Open);

    let called = "select count(*) from flyball.job j join flyball.attempt a on a.job_id = j.id
        where j.throttle = 'webhooks' and a.outcome = 'completed'";
    eventually("each end is called", SOON, || async {
        (fixture.count(called).await == 8).then_some(())
    })
    .await;
    fixture.markers().await;
    let counts = fixture.target.counts();
    let hooks = counts.iter().filter(|(path, _)| path.contains("hook-"));
    let hooks: Vec<usize> = hooks.map(|(_, calls)| *calls).collect();
    assert_eq!(hooks, [1; 8], "{counts:?}");
    let made = "select count(*) from flyball.job where throttle = 'webhooks'";
    assert_eq!(fixture.count(made).await, 8);
}
