//! One request of a driver and its outcome.

use futures_util::future::BoxFuture;

use super::{Call, ExchangeError, Http, HttpAnswer, ProviderResponse, SendContext, Sent};

/// Sends a call and returns the verdict of `judge` on its answer; without an answer, the outcome
/// follows from the failure.
pub fn exchange<'a>(
    http: &'a Http,
    call: Call,
    context: &'a SendContext,
    judge: impl FnOnce(HttpAnswer) -> ProviderResponse + Send + 'a,
) -> BoxFuture<'a, ProviderResponse> {
    Box::pin(async move {
        match http.send(call, &context.stop).await {
            Ok(answer) => judge(answer),
            Err(unanswered) => ProviderResponse::new(unsaid(unanswered), ""),
        }
    })
}

/// Maps a missing answer to an outcome.
fn unsaid(unanswered: ExchangeError) -> Sent {
    match unanswered {
        ExchangeError::Unsent(reason) => Sent::Transient { reason },
        ExchangeError::Short(reason) => Sent::Unable { reason },
        ExchangeError::Ambiguous(reason) => Sent::Ambiguous { reason },
        ExchangeError::Refused(reason) => Sent::PermanentRequest { reason },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::super::examples::{self, NOW_S};
    use super::super::{Account, Channel, twilio};
    use super::*;

    #[test]
    fn without_an_answer_it_counts_whether_something_was_sent() {
        let words = [
            (ExchangeError::Unsent("a".into()), "transient"),
            (ExchangeError::Short("e".into()), "unable"),
            (ExchangeError::Ambiguous("b".into()), "ambiguous"),
            (ExchangeError::Refused("c".into()), "permanent_request"),
        ];
        for (unanswered, word) in words {
            assert_eq!(unsaid(unanswered).as_str(), word);
        }
    }

    /// Sends a text message to a server that reads it and answers `says`, with a pause at each `|`,
    /// or, for `None`, cancels the sender. Returns the outcome and the bytes that the server read.
    async fn send(says: Option<&'static str>) -> (ProviderResponse, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = Some(format!("http://{}", listener.local_addr().unwrap()));
        let stop = CancellationToken::new();
        let stopping = stop.clone();
        let serving = tokio::spawn(async move {
            let mut heard = Vec::new();
            let (mut stream, _) = listener.accept().await.unwrap();
            while !heard.ends_with(b"Body=Good+day")
                && stream.read_buf(&mut heard).await.unwrap() > 0
            {}
            match says {
                Some(says) => {
                    for (nth, part) in says.split('|').enumerate() {
                        if nth > 0 {
                            // Real time: longer than a body that does not matter may take.
                            tokio::time::sleep(Duration::from_millis(700)).await;
                        }
                        stream.write_all(part.as_bytes()).await.unwrap();
                    }
                }
                None => {
                    stopping.cancel();
                    // Keeps the connection open until the client gives up.
                    _ = stream.read_buf(&mut Vec::new()).await;
                }
            }
            String::from_utf8(heard).unwrap()
        });
        let options = [("account_sid", "AC1"), ("from", "+15550100")];
        let account = Account {
            base_url,
            ..examples::account(&options, &[("auth_token", "t")])
        };
        let driver = twilio::build(&account, &examples::tools()).unwrap();
        let context = SendContext {
            now_s: NOW_S,
            timeout: Duration::from_secs(60),
            stop,
        };
        let answer = driver
            .send(
                &examples::message(Channel::Sms, "+4915112345678", json!({})),
                &context,
            )
            .await;
        (answer, serving.await.unwrap())
    }

    #[tokio::test]
    async fn what_is_answered_is_judged_and_a_lost_answer_is_ambiguous() {
        let created = "HTTP/1.1 201 Created\r\ncontent-length: 13\r\n\r\n{\"sid\":\"SM1\"}";
        let (answer, heard) = send(Some(created)).await;
        assert_eq!(
            answer,
            ProviderResponse::new(
                Sent::Accepted {
                    provider_id: Some("SM1".into())
                },
                "201"
            )
        );
        assert!(
            heard.starts_with("POST /2010-04-01/Accounts/AC1/Messages.json HTTP/1.1\r\n"),
            "{heard}"
        );
        for says in [
            Some(""),
            Some("HTTP/1.1 2"),
            Some("not HTTP at all\r\n\r\n"),
            None,
        ] {
            let (answer, _) = send(says).await;
            assert_eq!(
                (answer.sent.as_str(), answer.status.as_str()),
                ("ambiguous", ""),
                "{says:?}"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_whose_body_comes_late_is_read_to_its_end() {
        let created = "HTTP/1.1 201 Created\r\ncontent-length: 13\r\n\r\n|{\"sid\":\"SM1\"}";
        let (answer, _) = send(Some(created)).await;
        assert_eq!(
            (answer.sent.as_str(), answer.status.as_str()),
            ("accepted", "201")
        );
    }

    #[tokio::test]
    async fn where_nobody_listens_nothing_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = Some(format!("http://{}", listener.local_addr().unwrap()));
        drop(listener);
        let options = [("account_sid", "AC1"), ("from", "+15550100")];
        let account = Account {
            base_url,
            ..examples::account(&options, &[("auth_token", "t")])
        };
        let driver = twilio::build(&account, &examples::tools()).unwrap();
        let context = SendContext {
            now_s: NOW_S,
            timeout: Duration::from_secs(60),
            stop: CancellationToken::new(),
        };
        let answer = driver
            .send(
                &examples::message(Channel::Sms, "+4915112345678", json!({})),
                &context,
            )
            .await;
        assert_eq!(answer.sent.as_str(), "transient");
    }
}
