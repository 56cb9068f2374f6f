//! Detects failures for lack of a file descriptor, in this process or on its machine.
//!
//! Such a failure says nothing about the server, and must count against neither the server nor the
//! job.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Returns true if the error, or one of its causes, is that no file or socket could be opened.
///
/// A failed name lookup needs [`are_gone`] as well: the resolver opens files and sockets too, and
/// reports another error if it cannot.
pub fn are_short(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| {
        (*error).source()
    });
    causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_shortage))
}

/// Returns true if no descriptor is available now, for connection failures with only the
/// message is known.
pub fn are_gone() -> bool {
    std::fs::File::open("/dev/null").is_err_and(|error| is_shortage(&error))
}

fn is_shortage(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|code| matches!(code, Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn only_a_shortage_of_our_own_is_one() {
        let of = |code: Errno| Outer(io::Error::from(code));
        assert!(are_short(&of(Errno::MFILE)) && are_short(&of(Errno::NFILE)));
        assert!(!are_short(&of(Errno::CONNREFUSED)) && !are_short(&of(Errno::TIMEDOUT)));
        assert!(!are_gone());
    }
}
