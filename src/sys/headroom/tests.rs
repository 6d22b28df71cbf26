use super::*;
use std::path::PathBuf;

/// A root directory with these files, removed when dropped.
struct Root(PathBuf);

impl Root {
    fn new(files: &[(&str, &str)]) -> Root {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("corelane-room-{}-{n}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Root(root)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MEMINFO: (&str, &str) =
    ("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\nCached: 5 kB\n");

#[test]
fn a_machine_without_groups_has_what_it_says() {
    assert_eq!(available_bytes(&Root::new(&[MEMINFO]).0), Some(1_024_000));
    assert_eq!(available_bytes(&Root::new(&[("proc/meminfo", "MemTotal: 1 kB\n")]).0), None);
    assert_eq!(available_bytes(&Root::new(&[("x", "")]).0), None);
}

#[test]
fn the_tightest_group_on_the_way_up_counts() {
    let group = |inner: &'static str, service_max: &'static str| {
        Root::new(&[
            MEMINFO,
            ("proc/self/cgroup", inner),
            ("sys/fs/cgroup/system.slice/memory.max", "900000\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "500000\n"),
            ("sys/fs/cgroup/system.slice/memory.stat", "anon 9\ninactive_file 100000\nfile 5\n"),
            ("sys/fs/cgroup/system.slice/a.service/memory.max", service_max),
            ("sys/fs/cgroup/system.slice/a.service/memory.current", "300000\n"),
        ])
    };
    let service = "0::/system.slice/a.service\n";
    // 900,000 less what is used and not given up for others.
    assert_eq!(available_bytes(&group(service, "max\n").0), Some(500_000));
    assert_eq!(available_bytes(&group(service, "400000\n").0), Some(100_000));
    assert_eq!(available_bytes(&group(service, "200000\n").0), Some(0));
    // The root group has no limit.
    assert_eq!(available_bytes(&group("0::/\n", "1\n").0), Some(1_024_000));
    // The first version's groups have a hierarchy of their own; here it is not mounted.
    assert_eq!(available_bytes(&group("4:memory:/system.slice\n", "1\n").0), Some(1_024_000));
}

#[test]
fn groups_of_the_first_version_count_too() {
    let root = |limit: &'static str| {
        Root::new(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/a\n"),
            // In a container only the root of its own hierarchy is there.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
        ])
    };
    assert_eq!(available_bytes(&root("500000\n").0), Some(300_000));
    // Its way to say that there is no limit.
    assert_eq!(available_bytes(&root("9223372036854771712\n").0), Some(1_024_000));
}
