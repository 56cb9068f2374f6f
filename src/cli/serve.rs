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
    let has = |role| args.roles.contains(&role);
    let roles = Roles {
        api: has(Role::Api),
        runner: has(Role::Runner),
        governor: has(Role::Governor),
    };
    app::serve(settings, roles, Kinds::default()).await?;
    Ok(ExitCode::SUCCESS)
}
