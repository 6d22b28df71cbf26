//! How much memory the system still gives this process, before it is taken.

use super::groups::{Groups, MemoryGroup};
use std::path::Path;

/// Bytes that this process can take without anything being put out of memory: what the machine has, and
/// what the control groups of the process leave, whichever is less. `None` where the system does not say.
/// `root` is the root of the file system.
pub fn available_bytes(root: &Path) -> Option<usize> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let number = |path: &str| read(path)?.trim().parse().ok();
    let machine = read("proc/meminfo").and_then(|text| of_machine(&text));
    let groups = Groups::of(&read("proc/self/cgroup").unwrap_or_default());
    // Pages of files that nobody used lately are given up for others.
    let left = |MemoryGroup { dir, max, files: [_, used, idle] }: MemoryGroup<'_>| {
        let used = number(&format!("{dir}/{used}"))?;
        let stat = read(&format!("{dir}/memory.stat")).unwrap_or_default();
        let mut words = stat.lines().filter_map(|line| line.split_once(' '));
        let idle = words.find(|(name, _)| name == idle).and_then(|(_, n)| n.trim().parse().ok());
        let used = u64::saturating_sub(used, idle.unwrap_or(0));
        usize::try_from(max.saturating_sub(used)).ok()
    };
    let group = groups.memory(number).filter_map(left).min();
    [machine, group].into_iter().flatten().min()
}

/// From the text of `/proc/meminfo`.
fn of_machine(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests;
