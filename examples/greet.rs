//! A kind of your own: `cargo run --example greet`, then enqueue one from psql:
//!
//! ```sql
//! select flyball.enqueue('greet', '{"name": "Ada"}', throttle => 'greetings');
//! ```

use flyball::app::{self, Roles};
use flyball::config::Settings;
use flyball::jobs::{Context, Job, Kinds, Outcome};

async fn greet(job: Job, _: Context) -> Outcome {
    match job.args["name"].as_str() {
        Some(name) => {
            println!("hello, {name}");
            Outcome::Done
        }
        None => Outcome::Dead { error: "args must hold a name".to_owned() },
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut kinds = Kinds::default();
    kinds.register_fn("greet", greet);
    app::serve(Settings::from_env(None)?, Roles::ALL, kinds).await
}
