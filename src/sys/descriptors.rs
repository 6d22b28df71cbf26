//! How many file descriptors this process may have, and has.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the process may have from now on; `None` where there is no limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the limit as far as the system lets the process (from the soft to the hard one); the limit then.
///
/// For programs: a library leaves to its user what his process may have, and descriptors over 1023 are
/// trouble for code that calls `select`.
pub fn raise_limit() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        // A process may always do this; where it can't, the limit stays, and is told.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
    limit()
}

/// Descriptors that are open; `None` where the system does not say.
pub fn open_count() -> Option<u64> {
    // One of them is the one that lists them.
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(listed.saturating_sub(1))
}
