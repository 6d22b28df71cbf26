//! Which workers run on which kind of core.

use crate::limits::CORE_KINDS_COUNT_MAX;

/// The kinds of the workers' cores, in the order of the first worker of each.
#[derive(Debug)]
pub(crate) struct Kinds {
    /// What tells each apart; `None` where nothing is known.
    pub names: Vec<Option<String>>,
    /// Its workers, as bits.
    pub workers: Vec<u64>,
    /// The kind of each worker.
    pub of_worker: Vec<usize>,
}

impl Kinds {
    /// From the kind of each worker's core. Of more kinds than are told apart, the last takes the rest.
    pub fn new(each: Vec<Option<String>>) -> Kinds {
        let mut kinds = Kinds { names: Vec::new(), workers: Vec::new(), of_worker: Vec::new() };
        for (worker, name) in each.into_iter().enumerate() {
            let known = kinds.names.iter().position(|n| *n == name);
            let kind = known.unwrap_or_else(|| {
                if kinds.names.len() < CORE_KINDS_COUNT_MAX {
                    kinds.names.push(name);
                    kinds.workers.push(0);
                }
                kinds.names.len() - 1
            });
            kinds.workers[kind] |= 1 << worker;
            kinds.of_worker.push(kind);
        }
        kinds
    }
}
