//! Reads the load of a MongoDB server from `serverStatus`.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::ClientOptions;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::figure::ServerFigure;
use super::increase::Increase;
use super::{Error, Missing, Reading};

/// Timeout of a reading, which runs twice a second.
const READING_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of a new connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The name of the connections in the server's list of operations.
const APPLICATION: &str = "flyball signal";

/// The status of one server, read for one figure.
#[derive(Debug)]
pub struct ServerStatus {
    name: String,
    url: String,
    figure: ServerFigure,
    client: OnceCell<Client>,
    operations: Mutex<Increase>,
}

impl ServerStatus {
    /// Creates a reader of the server at `url`, called `name` in errors, which never show the URL.
    /// Connections are made when they are needed.
    pub fn new(name: &str, url: &str, figure: ServerFigure) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            figure,
            client: OnceCell::new(),
            operations: Mutex::default(),
        }
    }

    /// Reads the figure at `now`.
    pub async fn read(&self, now: f64) -> Result<Reading, Error> {
        let within = tokio::time::timeout(READING_TIMEOUT, self.status()).await;
        let status = within.map_err(|_| Error::TimedOut {
            url: self.name.clone(),
            within_ms: READING_TIMEOUT.as_millis(),
        })??;
        let found = self
            .figure
            .of(&Bson::Document(status).into_relaxed_extjson());
        let value = match (self.figure, found) {
            (_, None) => return Err(Missing::Absent.into()),
            (ServerFigure::Operations, Some(total)) => {
                let totals = BTreeMap::from([(String::new(), total)]);
                self.operations.lock().rate(now, totals)
            }
            (_, found) => found,
        };
        Ok(Reading::judge(value, now, now, f64::INFINITY)?)
    }

    /// Asks the server for its status.
    async fn status(&self) -> Result<Document, Error> {
        // A URL with `+srv` is looked up first, which takes long while no name server answers.
        let client = self.client.get_or_try_init(|| self.open()).await?;
        let requested = doc! {"serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0};
        let answer = client.database("admin").run_command(requested).await;
        answer.map_err(|error| Error::Unreachable {
            url: self.name.clone(),
            reason: reason(&error),
        })
    }

    async fn open(&self) -> Result<Client, Error> {
        let refuse = || Error::Source {
            what: "mongodb",
            name: self.name.clone(),
            reason: "its URL is not a MongoDB URL".to_owned(),
        };
        let mut options = ClientOptions::parse(self.url.trim())
            .await
            .map_err(|_| refuse())?;
        options.app_name = Some(APPLICATION.to_owned());
        options.server_selection_timeout = Some(CONNECT_WITHIN);
        options.connect_timeout = Some(CONNECT_WITHIN);
        Client::with_options(options).map_err(|_| refuse())
    }
}

/// Returns a reason without the driver's message, which may name users and hosts.
fn reason(error: &mongodb::error::Error) -> String {
    use mongodb::error::ErrorKind;
    match &*error.kind {
        ErrorKind::Command(command) => format!("the server said {}", command.code_name),
        ErrorKind::Authentication { .. } => "it refused the credentials".to_owned(),
        ErrorKind::ServerSelection { .. } => "no server of it answers".to_owned(),
        _ => "the connection failed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_name_that_no_server_knows_takes_no_longer_than_a_reading() {
        let url = "mongodb+srv://catalog.flyball.test";
        let status = ServerStatus::new("catalog", url, ServerFigure::Queue);
        // Real time: the driver's look for the name has no other clock.
        let begun = Instant::now();
        assert!(status.read(100.0).await.is_err());
        assert!(begun.elapsed() < 4 * READING_TIMEOUT, "{begun:?}");
    }
}
