//! How many files this process may have open, and so how many connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::SOCKETS;
use super::connection_quota::QuotaLimits;

/// For pools, the node API and the store.
const OTHERS: u64 = 512;

/// Lets this process have as many files open as the system allows, and says how many that are. The
/// usual limit is lower, for the sake of programs that do not expect so many.
pub(super) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!(%error, "the limit of open files stays as it is");
        return current.unwrap_or(u64::MAX);
    }
    maximum.unwrap_or(u64::MAX)
}

/// As many places on each core as there may be files for, and for connections to replicas.
pub(super) fn places(wanted: QuotaLimits, cores: usize, files: u64) -> QuotaLimits {
    let cores = u64::try_from(cores.max(1)).unwrap_or(u64::MAX);
    let sockets = files.saturating_sub(OTHERS) / cores;
    let total = u64::from(wanted.total());
    let most = sockets.min(u64::from(SOCKETS)).saturating_mul(total) / u64::from(SOCKETS);
    if sockets >= u64::from(SOCKETS) {
        return wanted;
    }
    let places = wanted.within(u32::try_from(most).unwrap_or(u32::MAX));
    tracing::warn!(
        files,
        ?places,
        "few files may be open, so fewer connections are taken; raise the limit (nofile)"
    );
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_fewer_where_files_are_few() {
        let wanted = QuotaLimits::default();
        assert_eq!(places(wanted, 4, 1 << 20), wanted);
        let few = places(wanted, 2, 4096);
        assert!(few.total() < 1100 && few.hosts > 300 && few.replication > 300, "{few:?}");
        assert!(places(wanted, 1, 0).total() >= 4);
    }
}
