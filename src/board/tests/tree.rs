//! Machines made of files: the `proc` and `sys` that a board's kernel would show.

use super::super::{Board, Machine};
use crate::sys::affinity::core_list;
use crate::units::CoreId;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Tree {
    root: PathBuf,
    architecture: String,
    all: Vec<CoreId>,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

const CPU_DIR: &str = "sys/devices/system/cpu";

impl Tree {
    /// The machine that `board` describes; for one without clusters, four nameless cores.
    pub fn of(board: &Board) -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("corelane-tree-{}-{number}", std::process::id());
        let mut all: Vec<CoreId> = board.clusters.iter().flat_map(|c| c.cores.clone()).collect();
        if all.is_empty() {
            all = (0..4).map(CoreId).collect();
        }
        let root = std::env::temp_dir().join(name);
        let tree = Tree { root, architecture: board.architecture.clone(), all };
        let list = core_list(&tree.all);
        for file in ["present", "online"] {
            tree.write(&format!("{CPU_DIR}/{file}"), &format!("{list}\n"));
        }
        tree.write(&format!("{CPU_DIR}/isolated"), "\n");
        tree.allowed(&tree.all);
        let mut cpuinfo = String::new();
        for core in &tree.all {
            let dir = format!("{CPU_DIR}/cpu{core}");
            cpuinfo.push_str(&format!("processor\t: {core}\n"));
            match board.cluster_of(*core) {
                Some(cluster) => {
                    let (id, features) = (cluster.id, cluster.features.join(" "));
                    cpuinfo.push_str(&format!(
                        "BogoMIPS\t: 108.00\nFeatures\t: {features} evtstrm cpuid\n\
                         CPU implementer\t: {:#04x}\nCPU architecture: 8\nCPU part\t: {:#05x}\n",
                        id.implementer, id.part
                    ));
                    let midr = u64::from(id.implementer) << 24 | u64::from(id.part) << 4 | 0xf_0001;
                    let file = format!("{dir}/regs/identification/midr_el1");
                    tree.write(&file, &format!("0x{midr:016x}\n"));
                    let khz = cluster.frequency_max_mhz.unwrap_or(1000) * 1000;
                    tree.write(&format!("{dir}/cpufreq/cpuinfo_max_freq"), &format!("{khz}\n"));
                }
                None => cpuinfo.push_str("model name\t: Some CPU\nflags\t\t: fpu avx2 fma\n"),
            }
            cpuinfo.push('\n');
        }
        tree.write("proc/cpuinfo", &cpuinfo);
        let mib = board.memory.sizes_mib.iter().max().copied().unwrap_or(4096);
        tree.write("proc/meminfo", &format!("MemTotal:  {} kB\nMemFree: 1 kB\n", mib * 1024));
        tree.write("proc/self/cgroup", "");
        if let Some(first) = board.compatible.first() {
            tree.write("proc/device-tree/compatible", &format!("{first}\0some,soc\0"));
            tree.write("proc/device-tree/model", &format!("{}\0", board.title));
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn allowed(&self, cores: &[CoreId]) {
        let text = format!("Name:\tcorelane\nCpus_allowed_list:\t{}\n", core_list(cores));
        self.write("proc/self/status", &text);
    }

    fn without(&self, cores: &[CoreId]) -> Vec<CoreId> {
        self.all.iter().copied().filter(|core| !cores.contains(core)).collect()
    }

    /// Booted with `isolcpus`.
    pub fn isolated(self, cores: &[CoreId]) -> Tree {
        self.write(&format!("{CPU_DIR}/isolated"), &format!("{}\n", core_list(cores)));
        self.allowed(&self.without(cores));
        self
    }

    /// With a core switched off; a thread's own list keeps it.
    pub fn offline(self, core: CoreId) -> Tree {
        let online = core_list(&self.without(&[core]));
        self.write(&format!("{CPU_DIR}/online"), &format!("{online}\n"));
        self
    }

    /// In a container with some cores. Seen from `inside` a namespace the group is `/`; without one
    /// its path is the host's, and only what is mounted as the root is there.
    pub fn container(self, version: u8, inside: bool, cores: &str) -> Tree {
        let path = if inside { "/" } else { "/docker/0123456789ab" };
        let (line, file) = match version {
            1 => (format!("3:cpuset:{path}\n"), "cpuset/cpuset.effective_cpus"),
            _ => (format!("0::{path}\n"), "cpuset.cpus.effective"),
        };
        self.write("proc/self/cgroup", &line);
        self.write(&format!("sys/fs/cgroup/{file}"), &format!("{cores}\n"));
        self.allowed(&super::cores(cores));
        self
    }

    /// In a group with limits.
    pub fn limits(self, version: u8, millicores: u64, mib: u64) -> Tree {
        let (quota, bytes) = (millicores * 100, mib * 1024 * 1024);
        if version == 1 {
            self.write("proc/self/cgroup", "4:cpu,cpuacct:/a/b\n5:memory:/a/b\n");
            self.write("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", &format!("{quota}\n"));
            self.write("sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
            self.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", &format!("{bytes}\n"));
        } else {
            // One limit is the group's own, the other its parent's.
            self.write("proc/self/cgroup", "0::/a/b\n");
            self.write("sys/fs/cgroup/a/b/cpu.max", &format!("{quota} 100000\n"));
            self.write("sys/fs/cgroup/a/memory.max", &format!("{bytes}\n"));
        }
        self
    }

    /// In a group whose files are there and limit nothing.
    pub fn unlimited(self, version: u8) -> Tree {
        if version == 1 {
            self.write("proc/self/cgroup", "3:cpuset:/a\n4:cpu,cpuacct:/a\n5:memory:/a\n");
            self.write("sys/fs/cgroup/cpuset/a/cpuset.cpus", "\n");
            self.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
            self.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
            let file = "sys/fs/cgroup/memory/a/memory.limit_in_bytes";
            self.write(file, "9223372036854771712\n");
        } else {
            self.write("proc/self/cgroup", "0::/a\n");
            self.write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
            self.write("sys/fs/cgroup/a/memory.max", "max\n");
            self.write("sys/fs/cgroup/a/cpuset.cpus.effective", "\n");
        }
        self
    }

    /// On a kernel that does not show the id register in `sys`.
    pub fn without_id_registers(self) -> Tree {
        for core in &self.all {
            let file = format!("{CPU_DIR}/cpu{core}/regs/identification/midr_el1");
            std::fs::remove_file(self.root.join(file)).unwrap();
        }
        self
    }

    pub fn compatible(self, text: &str) -> Tree {
        self.write("proc/device-tree/compatible", text);
        self
    }

    pub fn model(self, text: &str) -> Tree {
        self.write("proc/device-tree/model", text);
        self
    }

    pub fn root(&self) -> &std::path::Path {
        &self.root
    }

    pub fn machine(&self) -> Machine {
        Machine::read(&self.root, &self.architecture)
    }
}
