//! The command line: one file per command, with the vocabulary of the other rooms.
//!
//! Commands talk to Postgres and Redis directly, so they work while no server runs.

mod audit;
mod batch;
mod bulk;
mod calibrate;
mod choice;
mod connect;
mod cron;
mod dead;
mod doctor;
mod encrypt;
mod enqueue;
pub mod exit;
mod given_text;
mod governor;
mod group;
mod index;
mod job;
mod job_answer;
mod job_update;
mod kind;
mod lane;
mod migrate;
mod missing_throttles;
mod notification;
mod notify;
mod notify_check;
mod output;
mod pause;
mod pool;
mod recipient;
mod replay;
mod retry_args;
mod rules_file;
mod search_args;
mod serve;
mod services;
mod signed;
mod simulate;
mod status;
mod suppression;
mod throttle;
mod when;
mod why;
mod worker;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::Settings;

/// Background jobs that go as fast as the systems they touch can bear, and no faster.
#[derive(Parser)]
#[command(name = "flyball", version, about, after_help = exit::HELP, propagate_version = true)]
struct Cli {
    /// Settings file; by default flyball.toml, if it exists
    #[arg(long, global = true, env = "FLYBALL_CONFIG", value_name = "FILE")]
    config: Option<OsString>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the server: HTTP API and dashboard, runner, governor
    Serve(serve::Args),
    /// Migrate the database schema; safe to repeat, and to run while workers are running
    Migrate(migrate::Args),
    /// Enqueue one job, or many from a file
    Enqueue(enqueue::Args),
    /// Print a new key for secret arguments, for FLYBALL_SECRET_KEYS
    SecretKey(encrypt::SecretKeyArgs),
    /// Encrypt a secret value for jobs of a kind, to put it into their arguments by SQL
    Encrypt(encrypt::Args),
    /// Send one message, in the name of a tenant if given, or check what its recipient may get
    Notify(notify::Args),
    /// Show, pause, resume and cancel batches of messages
    #[command(subcommand)]
    Batch(batch::Command),
    /// List, show and cancel messages
    #[command(subcommand)]
    Notification(notification::Command),
    /// Suppress recipients, allow messages to them again, look them up
    #[command(subcommand)]
    Suppression(suppression::Command),
    /// Show pools of accounts, resume their accounts, requeue messages that found none
    #[command(subcommand)]
    Pool(pool::Command),
    /// Set, show, erase and import the profiles of recipients
    #[command(subcommand)]
    Recipient(recipient::Command),
    /// List, show, cancel, retry, reschedule, update and discard jobs
    #[command(subcommand)]
    Job(job::Command),
    /// List and register the kinds that can be enqueued
    #[command(subcommand)]
    Kind(kind::Command),
    /// List and show the live workers
    #[command(subcommand)]
    Worker(worker::Command),
    /// List the last attempts that failed
    Failures(audit::Args),
    /// List the last changes: who changed what, and why
    Audit(audit::Args),
    /// Create, seal, show, list and cancel groups of jobs
    #[command(subcommand)]
    Group(group::Command),
    /// Add, list and drop indexes that make searches of jobs fast
    #[command(subcommand)]
    Index(index::Command),
    /// Requeue or discard dead jobs
    #[command(subcommand)]
    Dead(dead::Command),
    /// Show, weight and empty the lanes of a throttle
    #[command(subcommand)]
    Lane(lane::Command),
    /// Show throttles, set their knobs, pause and resume them
    #[command(subcommand)]
    Throttle(throttle::Command),
    /// Pause everything: no worker claims a job until resumed; running jobs continue
    Pause(pause::Args),
    /// Resume everything
    Resume(pause::Args),
    Doctor(doctor::Args),
    /// Show the overall state: pause, workers, throttles with their jobs
    Status(status::Args),
    /// Show, create, pause, resume and run schedules
    #[command(subcommand)]
    Cron(cron::Command),
    /// Explain in one sentence the rate of a throttle, or the wait of a job or a message
    Why(why::Args),
    /// Run the governor on simulated plants, compared with a bare PID, AIMD and a fixed rate
    Simulate(simulate::Args),
    /// Run the governor without a server
    #[command(subcommand)]
    Governor(governor::Command),
    /// Replay a recording: show what Flyball would have done, with its uncertainty
    Replay(replay::Args),
    /// Vary a throttle's rate for half an hour, within bounds, and measure the response of the
    /// load; asks first
    Calibrate(calibrate::Args),
    Services(services::ServicesArgs),
}

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    // A program that asked for JSON reads its errors as JSON as well.
    let is_json = std::env::args_os()
        .skip(1)
        .take_while(|word| word != "--")
        .any(|word| word == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if is_json && error.use_stderr() => {
            let text = exit::text_of_usage(&error).unwrap_or_else(|| error.to_string());
            let message = exit::message_of_usage(&text);
            print_json_error(&message, exit::WRONG_USAGE);
            return ExitCode::from(exit::WRONG_USAGE);
        }
        Err(error) => {
            let Some(text) = exit::text_of_usage(&error) else {
                error.exit()
            };
            output::note(&text);
            return ExitCode::from(exit::WRONG_USAGE);
        }
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            let message = exit::message(&error);
            if is_json {
                print_json_error(&message, exit::number_of(&error));
            } else {
                output::aside(format_args!("flyball: {message}"));
            }
            exit::code(&error)
        }
    }
}

/// Prints an error for a program.
fn print_json_error(message: &str, exit_code: u8) {
    let body = serde_json::json!({ "error": { "message": message, "exit_code": exit_code } });
    output::aside(body);
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    // The supervisor of private services must stay on its main thread, and has no settings.
    if let Command::Services(args) = cli.command {
        return services::run(args);
    }
    // A simulation needs every processor, but no settings and no services.
    if let Command::Simulate(args) = &cli.command {
        return simulate::run(args);
    }
    // The filter needs no settings either.
    if let Command::Governor(command) = cli.command {
        return governor::run(command);
    }
    // Neither do keys, which must not depend on a server.
    if let Command::SecretKey(args) = &cli.command {
        return encrypt::print_key(args);
    }
    if let Command::Encrypt(args) = cli.command {
        return encrypt::run(args);
    }
    // As with every variable, an empty FLYBALL_CONFIG counts as not set.
    let config = cli.config.as_deref().filter(|file| !file.is_empty());
    let settings = Settings::from_env(config.map(Path::new));
    // Settings that cannot be used are what the doctor looks for.
    if let Command::Doctor(args) = &cli.command {
        return doctor::run(args, settings);
    }
    let mut settings = settings?;
    // A command reports its errors itself; log lines are for commands that run on.
    let runs_on = matches!(cli.command, Command::Serve(_) | Command::Calibrate(_));
    if !runs_on && settings.log == Settings::defaults().log {
        "error,sqlx=error".clone_into(&mut settings.log);
    }
    crate::app::start_logging(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args, settings).await,
            Command::Migrate(args) => migrate::run(args, settings).await,
            Command::Enqueue(args) => enqueue::run(args, settings).await,
            Command::Notify(args) => notify::run(args, settings).await,
            Command::Batch(command) => batch::run(command, settings).await,
            Command::Notification(command) => notification::run(command, settings).await,
            Command::Suppression(command) => suppression::run(command, settings).await,
            Command::Pool(command) => pool::run(command, settings).await,
            Command::Kind(command) => kind::run(command, settings).await,
            Command::Worker(command) => worker::run(command, settings).await,
            Command::Failures(args) => audit::failures(args, settings).await,
            Command::Audit(args) => audit::audit(args, settings).await,
            Command::Recipient(command) => recipient::run(command, settings).await,
            Command::Job(command) => job::run(command, settings).await,
            Command::Group(command) => group::run(command, settings).await,
            Command::Index(command) => index::run(command, settings).await,
            Command::Dead(command) => dead::run(command, settings).await,
            Command::Lane(command) => lane::run(command, settings).await,
            Command::Throttle(command) => throttle::run(command, settings).await,
            Command::Pause(args) => pause::pause(args, settings).await,
            Command::Resume(args) => pause::resume(args, settings).await,
            Command::Status(args) => status::run(args, settings).await,
            Command::Cron(command) => cron::run(command, settings).await,
            Command::Why(args) => why::run(args, settings).await,
            Command::Calibrate(args) => calibrate::run(args, settings).await,
            Command::Replay(args) => replay::run(args, settings).await,
            Command::Services(_)
            | Command::Simulate(_)
            | Command::Governor(_)
            | Command::SecretKey(_)
            | Command::Encrypt(_)
            | Command::Doctor(_) => unreachable!("handled above"),
        }
    });
    // A handler that does not stop must not keep the process alive.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}
