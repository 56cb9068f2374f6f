//! `flyball serve`.

use std::process::ExitCode;

use crate::app::{self, Roles};
use crate::config::Settings;
use crate::jobs::Kinds;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Roles of this process: any of api, runner, governor, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "api,runner,governor",
        value_enum
    )]
    roles: Vec<Role>,
    /// Address and port of the API and the dashboard; overrides FLYBALL_LISTEN
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Throttles whose jobs this process runs, such as mail,notify:*; overrides
    /// FLYBALL_SERVE_THROTTLES
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    throttles: Vec<String>,
    /// Kinds that this process runs; overrides FLYBALL_SERVE_KINDS
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    kinds: Vec<String>,
    /// Pools whose messages this process sends; overrides FLYBALL_SERVE_POOLS
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pools: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Role {
    /// Serves HTTP and the dashboard
    Api,
    /// Runs jobs
    Runner,
    /// Runs the governor, or stands by to take over
    Governor,
}

pub(super) async fn run(args: Args, mut settings: Settings) -> anyhow::Result<ExitCode> {
    if let Some(listen) = args.listen {
        settings.listen = listen;
    }
    for (given, setting) in [
        (args.throttles, &mut settings.serve_throttles),
        (args.kinds, &mut settings.serve_kinds),
        (args.pools, &mut settings.serve_pools),
    ] {
        if !given.is_empty() {
            *setting = given;
        }
    }
    settings.validate()?;
    let has = |role| args.roles.contains(&role);
    let roles = Roles {
        api: has(Role::Api),
        runner: has(Role::Runner),
        governor: has(Role::Governor),
    };
    app::serve(settings, roles, Kinds::default()).await?;
    Ok(ExitCode::SUCCESS)
}
