//! A custom kind: `cargo run --example greet`, then enqueue a job from psql:
//!
//! ```sql
//! select flyball.enqueue('greet', '{"name": "Ada"}', throttle => 'greetings');
//! ```

use flyball::app::{self, Roles};
use flyball::config::Settings;
use flyball::jobs::{Context, HandlerError, Kinds};

#[derive(serde::Deserialize)]
struct Greeting {
    name: String,
}

async fn greet(greeting: Greeting, _: Context) -> Result<(), HandlerError> {
    println!("hello, {}", greeting.name);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut kinds = Kinds::default();
    kinds.register_typed("greet", greet);
    app::serve(Settings::from_env(None)?, Roles::ALL, kinds).await
}
