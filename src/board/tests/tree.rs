//! Machines made of files: the `proc` and `sys` that a board's kernel would show.

use super::super::{Board, CpuId, Machine};
use super::recorded::Recorded;
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

/// One core, and what the kernel shows of it.
struct Core {
    core: CoreId,
    /// `None` for a core that is no ARM.
    id: Option<CpuId>,
    features: String,
    mhz: Option<u64>,
    capacity: Option<u64>,
}

impl Tree {
    /// The machine that `board` describes; for one without clusters, four nameless cores.
    pub fn of(board: &Board) -> Tree {
        let nameless = |core| Core {
            core: CoreId(core),
            id: None,
            features: "fpu avx2 fma".into(),
            mhz: None,
            capacity: None,
        };
        let mut cores: Vec<Core> = (0..4).map(nameless).collect();
        if !board.clusters.is_empty() {
            // As the kernel does it: times the clock, of the largest, in parts of 1024.
            let speed = |c: &super::Cluster| Some(c.capacity_dmips_mhz? * c.frequency_max_mhz?);
            let most = board.clusters.iter().filter_map(speed).max();
            let described = |core: &CoreId| {
                let cluster = board.cluster_of(*core).unwrap();
                Core {
                    core: *core,
                    id: Some(cluster.id),
                    features: cluster.features.join(" "),
                    mhz: cluster.frequency_max_mhz,
                    capacity: Some(speed(cluster).map_or(1024, |s| s * 1024 / most.unwrap())),
                }
            };
            cores = board.clusters.iter().flat_map(|c| &c.cores).map(described).collect();
        }
        let mib = board.memory.sizes_mib.iter().max().copied().unwrap_or(4096);
        let tree = Tree::new(&board.architecture, &cores, mib);
        if let Some(first) = board.compatible.first() {
            tree.write("proc/device-tree/compatible", &format!("{first}\0some,soc\0"));
            tree.write("proc/device-tree/model", &format!("{}\0", board.title));
        }
        tree
    }

    /// A machine as it was recorded; nothing of it is from a board's file.
    pub fn recorded(recorded: &Recorded) -> Tree {
        let kinds = recorded.cores.iter().flat_map(|(kind, count)| vec![kind; *count]);
        let cores: Vec<Core> = (kinds.enumerate())
            .map(|(core, kind)| Core {
                core: CoreId(core as u16),
                id: Some(CpuId { implementer: 0x41, part: kind.part }),
                features: kind.features.into(),
                mhz: None,
                capacity: None,
            })
            .collect();
        let tree = Tree::new(recorded.architecture, &cores, recorded.memory_mib);
        tree.write("proc/device-tree/model", &format!("{}\0", recorded.model));
        tree.compatible(&(recorded.compatible.join("\0") + "\0"))
    }

    fn new(architecture: &str, cores: &[Core], mib: u64) -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("corelane-tree-{}-{number}", std::process::id());
        let all: Vec<CoreId> = cores.iter().map(|core| core.core).collect();
        let root = std::env::temp_dir().join(name);
        let tree = Tree { root, architecture: architecture.into(), all };
        let list = core_list(&tree.all);
        for file in ["present", "online"] {
            tree.write(&format!("{CPU_DIR}/{file}"), &format!("{list}\n"));
        }
        tree.write(&format!("{CPU_DIR}/isolated"), "\n");
        tree.allowed(&tree.all);
        let blocks: Vec<String> = cores.iter().map(|core| tree.core(core)).collect();
        // The 32-bit kernel ends with a block of the machine's.
        let end = if architecture == "armv7" {
            "Hardware\t: STM32 (Device Tree Support)\nRevision\t: 0000\nSerial\t\t: 00\n"
        } else {
            ""
        };
        tree.write("proc/cpuinfo", &(blocks.concat() + end));
        tree.write("proc/meminfo", &format!("MemTotal:  {} kB\nMemFree: 1 kB\n", mib * 1024));
        tree.write("proc/self/cgroup", "");
        tree
    }

    /// Writes what `sys` shows of a core; its block of `cpuinfo`.
    fn core(&self, core: &Core) -> String {
        let Core { core, id, features, mhz, capacity } = core;
        let dir = format!("{CPU_DIR}/cpu{core}");
        if let Some(mhz) = mhz {
            let file = format!("{dir}/cpufreq/cpuinfo_max_freq");
            self.write(&file, &format!("{}\n", mhz * 1000));
        }
        if let Some(capacity) = capacity {
            self.write(&format!("{dir}/cpu_capacity"), &format!("{capacity}\n"));
        }
        let Some(id) = id else {
            return format!(
                "processor\t: {core}\nmodel name\t: Some CPU\nflags\t\t: {features}\n\n"
            );
        };
        // Both kernels write the last lines; only the 64-bit one shows the register.
        let (name, version) = if self.architecture == "armv7" {
            ("model name\t: ARMv7 Processor rev 5 (v7l)\n", 7)
        } else {
            let midr = u64::from(id.implementer) << 24 | u64::from(id.part) << 4 | 0xf_0001;
            let file = format!("{dir}/regs/identification/midr_el1");
            self.write(&file, &format!("0x{midr:016x}\n"));
            ("", 8)
        };
        format!(
            "processor\t: {core}\n{name}BogoMIPS\t: 48.00\nFeatures\t: {features} \n\
             CPU implementer\t: {:#04x}\nCPU architecture: {version}\nCPU variant\t: 0x0\n\
             CPU part\t: {:#05x}\nCPU revision\t: 5\n\n",
            id.implementer, id.part
        )
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

    /// In a container on a kernel with controllers of the first version, beside whose hierarchies systemd has
    /// one of the second version, without controllers.
    pub fn hybrid(self, cores: &str, millicores: u64, mib: u64) -> Tree {
        let path = "/docker/0123456789ab";
        let controllers = [(12, "cpuset"), (4, "cpu,cpuacct"), (5, "memory"), (1, "name=systemd")];
        let lines = controllers.map(|(number, name)| format!("{number}:{name}:{path}\n"));
        let second = "0::/system.slice/containerd.service\n";
        self.write("proc/self/cgroup", &(lines.concat() + second));
        self.write("sys/fs/cgroup/unified/system.slice/containerd.service/cgroup.procs", "1\n");
        let file = |of: &str, file: &str, text: String| {
            self.write(&format!("sys/fs/cgroup/{of}{path}/{file}"), &text);
        };
        file("cpuset", "cpuset.effective_cpus", format!("{cores}\n"));
        file("cpu", "cpu.cfs_quota_us", format!("{}\n", millicores * 100));
        file("cpu", "cpu.cfs_period_us", "100000\n".into());
        file("memory", "memory.limit_in_bytes", format!("{}\n", mib << 20));
        self.allowed(&super::cores(cores));
        self
    }

    /// Where the device tree is out of sight, as in a container that masks `/sys/firmware`.
    pub fn without_device_tree(self) -> Tree {
        std::fs::remove_dir_all(self.root.join("proc/device-tree")).unwrap();
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
