//! How much memory the system still gives this process, before it is taken.

use std::path::Path;

/// Bytes that this process can take without anything being put out of memory: what the machine has, and
/// what the control groups of the process leave, whichever is less. `None` where the system does not say.
/// `root` is the root of the file system.
pub fn available_bytes(root: &Path) -> Option<usize> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let machine = read(&root.join("proc/meminfo")).and_then(|text| of_machine(&text));
    let group = read(&root.join("proc/self/cgroup")).and_then(|text| {
        let mount = root.join("sys/fs/cgroup");
        let inner = group_of(&text)?.trim_start_matches('/');
        let own = mount.join(inner);
        // Every group above has a limit of its own.
        own.ancestors().take_while(|dir| dir.starts_with(&mount)).filter_map(of_group).min()
    });
    [machine, group].into_iter().flatten().min()
}

/// From the text of `/proc/meminfo`.
fn of_machine(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The path of the unified control group, from the text of `/proc/self/cgroup`.
fn group_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// What one control group leaves; `None` if it has no limit. Pages of files that nobody used lately are
/// given up for others.
fn of_group(dir: &Path) -> Option<usize> {
    let number = |name: &str| -> Option<usize> {
        std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
    };
    let max = number("memory.max")?;
    let used = number("memory.current")?;
    let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let idle: usize = idle.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(max.saturating_sub(used.saturating_sub(idle)))
}

#[cfg(test)]
mod tests;
