//! Settings with which a process starts and that are probably not meant.

#[cfg(feature = "notifications")]
use super::kinds::webhook_secrets;
use crate::config::Settings;
#[cfg(feature = "notifications")]
use crate::outbound::signature::PREFIX;

/// The remedy for something that nothing reads.
const UNREAD: &str = "correct its name, or remove it";

/// Returns a message for each setting that is probably not meant, with the remedy. No message
/// contains a secret.
pub(crate) fn warnings(settings: &Settings) -> Vec<(String, &'static str)> {
    let unknown = settings.unknown_in_environment().into_iter();
    let unread = unknown.chain(settings.unknown_parameters());
    let all = unread.map(|message| (message, UNREAD));
    #[cfg(feature = "notifications")]
    let all = all.chain(
        alerts_without_secret(settings)
            .into_iter()
            .map(|message| (message, "set the variable, or remove alert_secret")),
    );
    all.collect()
}

/// Returns a message for each pool whose alerts are signed by a secret that no variable defines.
#[cfg(feature = "notifications")]
fn alerts_without_secret(settings: &Settings) -> Vec<String> {
    // Secrets that cannot be used stop the process.
    let Ok(secrets) = webhook_secrets() else {
        return Vec::new();
    };
    let pools = settings.pools_without_credentials().0;
    let missing = pools.values().filter_map(|pool| {
        let name = pool.alert_secret.as_ref()?;
        (pool.alert_url.is_some() && secrets.tenants(name).is_none()).then(|| {
            format!(
                "pools.{}.alert_secret: no variable defines the secret {name:?}; its alerts wait \
                 for a worker with {PREFIX}{}",
                pool.name,
                name.to_ascii_uppercase()
            )
        })
    });
    missing.collect()
}
