//! One request of a driver and its answer, or why there is none.

use futures_util::future::BoxFuture;

use super::{Answer, Call, Http, HttpAnswer, Sent, Told, Unanswered};

/// Sends a call and lets `judge` say what the answer means.
pub fn exchange<'a>(
    http: &'a Http,
    call: Call,
    told: &'a Told,
    judge: impl FnOnce(HttpAnswer) -> Answer + Send + 'a,
) -> BoxFuture<'a, Answer> {
    Box::pin(async move {
        match http.send(call, &told.stop).await {
            Ok(answer) => judge(answer),
            Err(unanswered) => Answer::new(unsaid(unanswered), ""),
        }
    })
}

/// What no answer means.
fn unsaid(unanswered: Unanswered) -> Sent {
    match unanswered {
        Unanswered::Unsent(reason) => Sent::Transient { reason },
        Unanswered::Ambiguous(reason) => Sent::Ambiguous { reason },
        Unanswered::Refused(reason) => Sent::PermanentRequest { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_answer_it_counts_whether_something_was_sent() {
        let words = [
            (Unanswered::Unsent("a".into()), "transient"),
            (Unanswered::Ambiguous("b".into()), "ambiguous"),
            (Unanswered::Refused("c".into()), "permanent_request"),
        ];
        for (unanswered, word) in words {
            assert_eq!(unsaid(unanswered).word(), word);
        }
    }
}
