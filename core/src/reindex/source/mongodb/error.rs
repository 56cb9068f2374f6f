//! Classes of MongoDB's errors.

use mongodb::error::{Error as MongoError, ErrorKind};

use crate::reindex::source::Error;

/// Codes of errors that no retry mends: Unauthorized, TypeMismatch, BadValue, FailedToParse,
/// NamespaceNotFound, InvalidOptions, InvalidNamespace, CommandNotSupported, an unknown stage of a
/// pipeline, and fields of a projection that exclude or contain each other.
const WRONG: [i32; 12] = [2, 9, 13, 14, 26, 72, 73, 115, 31249, 31250, 31254, 40324];

/// Code of a change stream on a server that is no member of a replica set: it keeps no log of
/// changes.
const NO_CHANGES: i32 = 40573;

/// Codes of a position that the log of changes no longer has: InvalidResumeToken,
/// ChangeStreamFatalError, ChangeStreamHistoryLost, CappedPositionLost.
const CHANGES_LOST: [i32; 4] = [136, 260, 280, 286];

/// Classifies an error. Its text has neither addresses nor credentials that the URL holds.
pub(super) fn classify(error: &MongoError) -> Error {
    match &*error.kind {
        ErrorKind::Command(command) => {
            let text = format!("{} ({})", command.message, command.code_name);
            of_code(command.code, text)
        }
        ErrorKind::InvalidArgument { message, .. } => Error::Wrong(message.clone()),
        ErrorKind::BsonDeserialization(_) | ErrorKind::Bson(_) => {
            Error::Wrong("it sent a document that is not BSON".to_owned())
        }
        ErrorKind::ServerSelection { .. } => {
            Error::Lost("no server of the deployment can be reached".to_owned())
        }
        ErrorKind::Authentication { .. } => Error::Lost("it refused the credentials".to_owned()),
        ErrorKind::Io(io) => Error::Lost(format!("the connection failed: {}", io.kind())),
        ErrorKind::DnsResolve { .. } => Error::Lost("its name cannot be resolved".to_owned()),
        _ => Error::Lost("the driver reported an error without a code".to_owned()),
    }
}

/// Returns the error of a command by its code.
fn of_code(code: i32, text: String) -> Error {
    match code {
        code if CHANGES_LOST.contains(&code) => Error::ChangesLost(text),
        NO_CHANGES => Error::Wrong(format!(
            "following the changes needs a replica set, and this server is no member of one: {text}"
        )),
        code if WRONG.contains(&code) => Error::Wrong(text),
        _ => Error::Lost(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_log_of_changes_is_not_asked_again() {
        let of = |code| of_code(code, "no (Location)".to_owned());
        let alone = of(40573);
        assert!(
            matches!(&alone, Error::Wrong(why) if why.contains("needs a replica set")),
            "{alone:?}"
        );
        assert!(matches!(of(13), Error::Wrong(why) if why == "no (Location)"));
        // A field and a field within it, in either order.
        assert!(matches!(of(31249), Error::Wrong(_)));
        assert!(matches!(of(31250), Error::Wrong(_)));
        assert!(matches!(of(286), Error::ChangesLost(_)));
        assert!(matches!(of(10107), Error::Lost(_)));
    }
}
