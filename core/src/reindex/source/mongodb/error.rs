//! Classes of MongoDB's errors.

use mongodb::error::{Error as MongoError, ErrorKind};

use crate::reindex::source::Error;

/// Codes of errors that no retry mends: Unauthorized, TypeMismatch, BadValue, FailedToParse,
/// NamespaceNotFound, InvalidOptions, InvalidNamespace, CommandNotSupported, an unknown stage of a
/// pipeline, and fields of a projection that exclude each other.
const WRONG: [i32; 11] = [2, 9, 13, 14, 26, 72, 73, 115, 31249, 31254, 40324];

/// Codes of a position that the log of changes no longer has: InvalidResumeToken,
/// ChangeStreamFatalError, ChangeStreamHistoryLost, CappedPositionLost.
const CHANGES_LOST: [i32; 4] = [136, 260, 280, 286];

/// Classifies an error. Its text has neither addresses nor credentials that the URL holds.
pub(super) fn classify(error: &MongoError) -> Error {
    match &*error.kind {
        ErrorKind::Command(command) => {
            let text = format!("{} ({})", command.message, command.code_name);
            match command.code {
                code if CHANGES_LOST.contains(&code) => Error::ChangesLost(text),
                code if WRONG.contains(&code) => Error::Wrong(text),
                _ => Error::Lost(text),
            }
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
