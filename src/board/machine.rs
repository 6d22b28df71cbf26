//! What `/proc` and `/sys` say of the machine.

use crate::limits::{CORES_MAX, SYSTEM_FILE_BYTES_MAX};
use crate::sys::affinity::{core_list, parse_core_list};
use crate::sys::cores;
use crate::sys::groups::Groups;
use crate::units::CoreId;
use std::fmt;
use std::io::Read;
use std::path::Path;

/// Which processor a core is: two fields of its id register (MIDR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuId {
    /// Who made it; 0x41 is Arm.
    pub implementer: u8,
    /// Which one.
    pub part: u16,
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}/{:#05x}", self.implementer, self.part)
    }
}

/// One core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpu {
    /// As the kernel numbers it.
    pub core: CoreId,
    /// Which processor it is; ARM only.
    pub id: Option<CpuId>,
    /// Capacity against the fastest core, which has 1024.
    pub capacity: Option<u64>,
    /// Highest frequency.
    pub frequency_max_khz: Option<u64>,
    /// Instruction sets.
    pub features: Vec<String>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// `aarch64`, `armv7` or `x86_64`.
    pub architecture: String,
    /// The device tree's `model`.
    pub model: Option<String>,
    /// The device tree's `compatible`, most specific first.
    pub compatible: Vec<String>,
    /// What `/proc/cpuinfo` calls the processor; x86 and 32-bit ARM.
    pub cpu_name: Option<String>,
    /// Cores that are there.
    pub present: Vec<CoreId>,
    /// Cores that run.
    pub online: Vec<CoreId>,
    /// Cores that the kernel keeps free of everything not pinned to them (`isolcpus`).
    pub isolated: Vec<CoreId>,
    /// Cores that the thread may run on, as its own list says.
    pub allowed: Vec<CoreId>,
    /// Cores of the control group's `cpuset`, where there is one.
    pub cpuset: Option<Vec<CoreId>>,
    /// CPU time that the control group may use, in thousandths of a core.
    pub quota_millicores: Option<u64>,
    /// Details of the cores that run.
    pub cpus: Vec<Cpu>,
    /// Memory, or the control group's limit if that is less.
    pub memory_mib: Option<u64>,
}

/// A file's bytes, if they are at most `max`.
pub(super) fn read_bounded(path: &Path, max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max {
        let text = format!("more than {max} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
    }
    Ok(bytes)
}

struct Tree<'r>(&'r Path);

impl Tree<'_> {
    fn text(&self, path: &str) -> Option<String> {
        let path = self.0.join(path.trim_start_matches('/'));
        let bytes = read_bounded(&path, SYSTEM_FILE_BYTES_MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Texts that each end in a zero byte, as the device tree has them.
    fn strings(&self, path: &str) -> Vec<String> {
        let text = self.text(path).unwrap_or_default();
        text.split('\0').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    fn cores(&self, path: &str) -> Option<Vec<CoreId>> {
        parse_core_list(self.text(path)?.trim())
    }
}

/// The value of `key` in lines of `key : value`.
fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// Name of the architecture that this program was built for, as board files spell it.
fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "arm" => "armv7",
        other => other,
    }
}

impl Machine {
    /// The machine that this runs on.
    pub fn here() -> Machine {
        Machine::read(Path::new("/"), own_architecture())
    }

    /// The machine whose `proc` and `sys` lie under `root`. What can't be read is absent: there is no
    /// file that every kernel has.
    pub fn read(root: &Path, architecture: &str) -> Machine {
        let tree = Tree(root);
        let cpuinfo = tree.text("proc/cpuinfo").unwrap_or_default();
        let cpu_dir = "sys/devices/system/cpu";
        let online = tree.cores(&format!("{cpu_dir}/online")).unwrap_or_default();
        let groups = Groups::of(&tree.text("proc/self/cgroup").unwrap_or_default());
        let status = ["proc/thread-self/status", "proc/self/status"];
        let status = status.into_iter().find_map(|path| tree.text(path)).unwrap_or_default();
        let allowed = field(&status, "Cpus_allowed_list").and_then(parse_core_list);
        let limit = groups.memory(|file| tree.number(file)).map(|group| group.max >> 20).min();
        let memory = tree.text("proc/meminfo").and_then(|text| {
            let kib: u64 = field(&text, "MemTotal")?.trim_end_matches("kB").trim().parse().ok()?;
            Some(kib / 1024)
        });
        Machine {
            architecture: architecture.into(),
            model: tree.strings("proc/device-tree/model").into_iter().next(),
            compatible: tree.strings("proc/device-tree/compatible"),
            cpu_name: field(&cpuinfo, "model name").map(str::to_owned),
            present: tree.cores(&format!("{cpu_dir}/present")).unwrap_or_else(|| online.clone()),
            isolated: tree.cores(&format!("{cpu_dir}/isolated")).unwrap_or_default(),
            allowed: allowed.unwrap_or_else(|| online.clone()),
            cpuset: cpuset(&groups, &tree),
            quota_millicores: quota_millicores(&groups, &tree),
            cpus: online.iter().take(CORES_MAX).map(|&c| cpu(&tree, &cpuinfo, c)).collect(),
            memory_mib: [memory, limit].into_iter().flatten().min(),
            online,
        }
    }

    /// Why a core can't have a pinned thread; `None` if it can.
    ///
    /// A thread's list of allowed cores never has those that the kernel isolates, though it may be
    /// pinned to them: for these the control group decides alone.
    pub fn obstacle(&self, core: CoreId) -> Option<&'static str> {
        if !self.present.contains(&core) {
            return Some("there is no such core");
        }
        if !self.online.contains(&core) {
            return Some("it is offline");
        }
        if self.cpuset.as_ref().is_some_and(|set| !set.contains(&core)) {
            return Some("the control group's cpuset does not have it");
        }
        if !self.allowed.contains(&core) && !self.isolated.contains(&core) {
            return Some("the scheduler does not allow it to this process");
        }
        None
    }

    /// Cores that can have a pinned thread, ascending.
    pub fn usable(&self) -> Vec<CoreId> {
        self.online.iter().copied().filter(|&core| self.obstacle(core).is_none()).collect()
    }

    /// What the machine says of itself, in one line.
    pub fn summary(&self) -> String {
        let name = self.model.as_deref().or(self.cpu_name.as_deref()).unwrap_or("no name");
        let compatible = match self.compatible.as_slice() {
            [] => String::new(),
            list => format!(", compatible {}", list.join(" ")),
        };
        format!(
            "{}, {name}{compatible}, cores {} of {}",
            self.architecture,
            core_list(&self.usable()),
            core_list(&self.present)
        )
    }

    /// Details of a core that runs.
    pub fn cpu(&self, core: CoreId) -> Option<&Cpu> {
        self.cpus.iter().find(|cpu| cpu.core == core)
    }
}

fn cpu(tree: &Tree<'_>, cpuinfo: &str, core: CoreId) -> Cpu {
    let dir = format!("sys/devices/system/cpu/cpu{core}");
    let block = cpuinfo
        .split("\n\n")
        .find(|block| field(block, "processor") == Some(core.to_string().as_str()))
        .unwrap_or_default();
    let from_register =
        cores::id(tree.0, core).map(|(implementer, part)| CpuId { implementer, part });
    let from_block = || {
        let implementer = hexadecimal(field(block, "CPU implementer")?)? as u8;
        Some(CpuId { implementer, part: hexadecimal(field(block, "CPU part")?)? as u16 })
    };
    let features = field(block, "Features").or_else(|| field(block, "flags")).unwrap_or_default();
    Cpu {
        core,
        id: from_register.or_else(from_block),
        capacity: tree.number(&format!("{dir}/cpu_capacity")),
        frequency_max_khz: tree.number(&format!("{dir}/cpufreq/cpuinfo_max_freq")),
        features: features.split_whitespace().map(str::to_owned).collect(),
    }
}

/// What tells kinds of cores apart, of those in `cores`: the id register, the capacity and the highest
/// frequency, as far as the kernel shows them. `None` for a core that it shows nothing of.
///
/// Only small files are read: this runs whenever workers start.
pub fn core_kinds(root: &Path, cores: &[CoreId]) -> Vec<Option<String>> {
    let tree = Tree(root);
    let kind = |core: &CoreId| {
        let dir = format!("sys/devices/system/cpu/cpu{core}");
        let files = ["regs/identification/midr_el1", "cpu_capacity", "cpufreq/cpuinfo_max_freq"];
        let facts = files.map(|file| tree.text(&format!("{dir}/{file}")));
        if facts.iter().all(Option::is_none) {
            return None;
        }
        let [id, capacity, khz] = facts.map(|fact| fact.map(|text| text.trim().to_owned()));
        let parts = [("id", id), ("capacity", capacity), ("kHz", khz)];
        let known = parts.into_iter().filter_map(|(what, fact)| Some(format!("{what} {}", fact?)));
        Some(known.collect::<Vec<_>>().join(", "))
    };
    cores.iter().map(kind).collect()
}

/// The nearest list; what is empty says nothing.
fn cpuset(groups: &Groups, tree: &Tree<'_>) -> Option<Vec<CoreId>> {
    let names = |dirs: &[String], names: &[&str]| -> Vec<String> {
        dirs.iter().flat_map(|d| names.iter().map(move |n| format!("{d}/{n}"))).collect()
    };
    let mut files = names(&groups.unified, &["cpuset.cpus.effective"]);
    files.extend(names(&groups.cpuset, &["cpuset.effective_cpus", "cpuset.cpus"]));
    files.iter().find_map(|file| tree.cores(file).filter(|cores| !cores.is_empty()))
}

/// The least over all levels: each of them limits.
fn quota_millicores(groups: &Groups, tree: &Tree<'_>) -> Option<u64> {
    let unified = groups.unified.iter().filter_map(|dir| {
        let text = tree.text(&format!("{dir}/cpu.max"))?;
        let mut words = text.split_whitespace();
        let (quota, period) = (words.next()?, words.next()?);
        Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?))
    });
    let first = groups.cpu.iter().filter_map(|dir| {
        let quota = tree.number(&format!("{dir}/cpu.cfs_quota_us"))?;
        Some((quota, tree.number(&format!("{dir}/cpu.cfs_period_us"))?))
    });
    let millicores = |(quota, period): (u64, u64)| quota.checked_mul(1000)?.checked_div(period);
    unified.chain(first).filter_map(millicores).min()
}
