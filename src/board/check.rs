//! A board's plan against the machine that it is to run on.

use super::{Board, CpuId, Machine};
use crate::sys::affinity::core_list;
use crate::units::CoreId;
use std::fmt;

/// What cores are for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CorePlan {
    /// One pinned worker on each.
    pub workers: Vec<CoreId>,
    /// The I/O thread's; `None`: the first of `housekeeping`.
    pub io: Option<CoreId>,
    /// For everything else: the rest of the process, other programs, interrupts.
    pub housekeeping: Vec<CoreId>,
}

impl fmt::Display for CorePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workers on {}", core_list(&self.workers))?;
        if let Some(io) = self.io {
            write!(f, ", I/O on {io}")?;
        }
        write!(f, ", the rest on {}", core_list(&self.housekeeping))
    }
}

/// One thing in which the machine is not as the board says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Another kind of processor altogether.
    Architecture {
        /// The board's.
        wanted: String,
        /// The machine's.
        got: String,
    },
    /// A core of the plan can't be used.
    Core {
        /// What it is for: `worker`, `I/O` or `housekeeping`.
        role: &'static str,
        /// The core.
        core: CoreId,
        /// Why not.
        why: &'static str,
    },
    /// A core is another processor.
    CoreType {
        /// The core.
        core: CoreId,
        /// The board's name for it.
        wanted: String,
        /// Its id on the board.
        wanted_id: CpuId,
        /// Its id on the machine.
        got: CpuId,
    },
    /// A core lacks instruction sets.
    Features {
        /// The core.
        core: CoreId,
        /// Those that the board has and the machine does not.
        missing: Vec<String>,
    },
    /// The control group gives less time than the workers can use; they would be stopped in the
    /// middle of a batch.
    Quota {
        /// Thousandths of a core that the workers use.
        wanted_millicores: u64,
        /// What there is.
        got_millicores: u64,
    },
    /// There is less memory than the budget.
    Memory {
        /// The budget.
        wanted_mib: u64,
        /// What there is.
        got_mib: u64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Architecture { wanted, got } => {
                write!(f, "the board is {wanted}, this program runs on {got}")
            }
            Difference::Core { role, core, why } => write!(f, "{role} core {core}: {why}"),
            Difference::CoreType { core, wanted, wanted_id, got } => {
                write!(f, "core {core} is {got}, not {wanted} ({wanted_id})")
            }
            Difference::Features { core, missing } => {
                write!(f, "core {core} lacks {}", missing.join(", "))
            }
            Difference::Quota { wanted_millicores, got_millicores } => write!(
                f,
                "the control group gives {got_millicores} thousandths of a core, the workers use \
                 {wanted_millicores}"
            ),
            Difference::Memory { wanted_mib, got_mib } => {
                write!(f, "there are {got_mib} MiB of memory, the budget is {wanted_mib} MiB")
            }
        }
    }
}

/// A plan and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What the board asks for.
    pub wanted: CorePlan,
    /// What this machine can give: the same, if there is no difference that touches it.
    pub got: CorePlan,
    /// Every difference.
    pub differences: Vec<Difference>,
}

impl Check {
    /// The differences in one line; `none` if there are none.
    pub fn differences_text(&self) -> String {
        let all: Vec<String> = self.differences.iter().map(Difference::to_string).collect();
        if all.is_empty() { "none".into() } else { all.join("; ") }
    }
}

/// Compares a board's plan with a machine.
pub fn check(board: &Board, machine: &Machine) -> Check {
    let usable = machine.usable();
    let wanted = board.cores.clone().unwrap_or_else(|| all_but_first(&usable));
    let mut differences = Vec::new();
    if board.architecture != machine.architecture {
        differences.push(Difference::Architecture {
            wanted: board.architecture.clone(),
            got: machine.architecture.clone(),
        });
    }
    let roles = (wanted.workers.iter().map(|c| ("worker", *c)))
        .chain(wanted.io.iter().map(|c| ("I/O", *c)))
        // A core that is named for I/O already is not told of twice.
        .chain(wanted.housekeeping.iter().map(|c| ("housekeeping", *c)));
    let mut told: Vec<CoreId> = Vec::new();
    for (role, core) in roles {
        if told.contains(&core) {
            continue;
        }
        told.push(core);
        if let Some(why) = machine.obstacle(core) {
            differences.push(Difference::Core { role, core, why });
        }
    }
    // Another architecture has no core of any kind that the board has; to say so once is enough.
    let same = board.architecture == machine.architecture;
    for cluster in board.clusters.iter().filter(|_| same) {
        for cpu in machine.cpus.iter().filter(|cpu| cluster.cores.contains(&cpu.core)) {
            if let Some(got) = cpu.id.filter(|id| *id != cluster.id) {
                differences.push(Difference::CoreType {
                    core: cpu.core,
                    wanted: cluster.core_type.clone(),
                    wanted_id: cluster.id,
                    got,
                });
            }
            let has = |feature: &&String| cpu.features.contains(feature);
            let missing: Vec<String> =
                cluster.features.iter().filter(|f| !has(f)).cloned().collect();
            // A kernel that lists nothing at all does not tell.
            if !missing.is_empty() && !cpu.features.is_empty() {
                differences.push(Difference::Features { core: cpu.core, missing });
            }
        }
    }
    let mut got = adapted(&wanted, &usable);
    if let Some(quota) = machine.quota_millicores {
        let wanted_millicores = 1000 * got.workers.len() as u64;
        if quota < wanted_millicores {
            differences.push(Difference::Quota { wanted_millicores, got_millicores: quota });
            got.workers.truncate((quota / 1000).max(1) as usize);
        }
    }
    if let Some(got_mib) = machine.memory_mib.filter(|mib| *mib < board.memory.budget_mib) {
        differences.push(Difference::Memory { wanted_mib: board.memory.budget_mib, got_mib });
    }
    Check { wanted, got, differences }
}

fn all_but_first(usable: &[CoreId]) -> CorePlan {
    match usable {
        [] => CorePlan::default(),
        [only] => CorePlan { workers: vec![*only], io: None, housekeeping: vec![*only] },
        [first, rest @ ..] => {
            CorePlan { workers: rest.to_vec(), io: Some(*first), housekeeping: vec![*first] }
        }
    }
}

/// The part of the plan that the usable cores allow; if they allow no worker, all but the first.
fn adapted(wanted: &CorePlan, usable: &[CoreId]) -> CorePlan {
    let can = |core: &CoreId| usable.contains(core);
    let workers: Vec<CoreId> = wanted.workers.iter().copied().filter(can).collect();
    if workers.is_empty() {
        return all_but_first(usable);
    }
    let free: Vec<CoreId> = usable.iter().copied().filter(|c| !workers.contains(c)).collect();
    let kept: Vec<CoreId> = wanted.housekeeping.iter().copied().filter(can).collect();
    CorePlan {
        io: wanted.io.filter(can).or(free.first().copied()),
        housekeeping: if kept.is_empty() { free } else { kept },
        workers,
    }
}
