//! The listener: the addresses on which the server listens, and those that it refuses.

use std::net::SocketAddr;

use tokio::net::{TcpListener, lookup_host};

/// The reason for which the server does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The setting is not an address.
    #[error(
        "{variable} {listen:?} is not an address ({reason}); allowed: host:port, for instance 127.0.0.1:8080 or [::1]:8080"
    )]
    NotAnAddress {
        /// The variable of the setting.
        variable: &'static str,
        /// The address as it was set.
        listen: String,
        /// The message of the resolver.
        reason: String,
    },
    /// The address is not loopback and no token is set, so that every client that can reach it
    /// could edit the knobs.
    #[error(
        "refusing to listen on {address}, which is not loopback, without a token; set FLYBALL_API_TOKEN, or {variable}=127.0.0.1:8080"
    )]
    Open {
        /// The variable of the setting.
        variable: &'static str,
        /// The address that is not loopback.
        address: SocketAddr,
    },
    /// The system refused the address.
    #[error(
        "failed to listen on {listen}: {source}; another process may have the port, choose one with {variable}"
    )]
    Taken {
        /// The variable of the setting.
        variable: &'static str,
        /// The address as it was set.
        listen: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Returns the addresses of `listen`, the value of the setting of a variable; without a token every
/// one of them must be loopback.
pub async fn addresses_of(
    variable: &'static str,
    listen: &str,
    has_token: bool,
) -> Result<Vec<SocketAddr>, ListenError> {
    let not_an_address = |reason: String| ListenError::NotAnAddress {
        variable,
        listen: listen.to_owned(),
        reason,
    };
    let addresses: Vec<SocketAddr> = lookup_host(listen)
        .await
        .map_err(|error| not_an_address(error.to_string()))?
        .collect();
    if addresses.is_empty() {
        return Err(not_an_address("the name resolves to no address".to_owned()));
    }
    let mut all = addresses.iter().copied();
    let open = all.find(|address| !has_token && !address.ip().to_canonical().is_loopback());
    match open {
        Some(address) => Err(ListenError::Open { variable, address }),
        None => Ok(addresses),
    }
}

/// Listens on the addresses of `listen`.
pub async fn bind(
    variable: &'static str,
    listen: &str,
    has_token: bool,
) -> Result<TcpListener, ListenError> {
    let addresses = addresses_of(variable, listen, has_token).await?;
    TcpListener::bind(addresses.as_slice())
        .await
        .map_err(|source| ListenError::Taken {
            variable,
            listen: listen.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binds as the setting of a listener for metrics does.
    async fn bind(listen: &str, has_token: bool) -> Result<TcpListener, ListenError> {
        super::bind("FLYBALL_METRICS_LISTEN", listen, has_token).await
    }

    #[tokio::test]
    async fn without_a_token_only_loopback_is_served() {
        for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:10.0.0.1]:0"] {
            let error = bind(listen, false).await.unwrap_err();
            assert!(
                matches!(error, ListenError::Open { .. }),
                "{listen}: {error}"
            );
            let message = error.to_string();
            assert!(message.contains("set FLYBALL_API_TOKEN, or FLYBALL_METRICS_LISTEN="));
        }
        assert!(
            bind("127.0.0.1:0", false)
                .await
                .unwrap()
                .local_addr()
                .unwrap()
                .ip()
                .is_loopback()
        );
    }

    #[tokio::test]
    async fn with_a_token_every_address_is_served() {
        assert!(bind("0.0.0.0:0", true).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_not_an_address_and_what_is_taken_are_distinguished() {
        for listen in ["", "8080", "localhost", "127.0.0.1:99999"] {
            let error = bind(listen, true).await.unwrap_err();
            assert!(
                matches!(error, ListenError::NotAnAddress { .. })
                    && error.to_string().starts_with("FLYBALL_METRICS_LISTEN "),
                "{listen}: {error}"
            );
        }
        let first = bind("127.0.0.1:0", false).await.unwrap();
        let again = first.local_addr().unwrap().to_string();
        assert!(matches!(
            bind(&again, false).await,
            Err(ListenError::Taken { .. })
        ));
    }
}
