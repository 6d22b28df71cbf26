//! What the system's files say of the machine: frequency governors, throttling, undervoltage, load on
//! single cores, energy. Every path is below a root, so that tests can lay out a machine of their own.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the files are.
#[derive(Debug, Clone)]
pub struct SystemFiles {
    root: PathBuf,
}

/// One core at an instant. What a machine does not tell is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CoreState {
    /// Ticks spent working, since boot.
    pub busy_ticks: u64,
    /// Ticks in all, since boot.
    pub all_ticks: u64,
    /// Frequency now.
    pub frequency_khz: Option<u64>,
    /// Times that the core was slowed by heat, since boot.
    pub throttled_count: Option<u64>,
}

/// The machine at an instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// By core number.
    pub cores: BTreeMap<u16, CoreState>,
    /// Flags of the Raspberry Pi's firmware: bits 0 to 3 now, 16 to 19 since boot (undervoltage,
    /// frequency capped, throttled, soft temperature limit).
    pub pi_throttled: Option<u32>,
    /// Whether a supply voltage sensor raises its low alarm now.
    pub undervoltage_alarm: Option<bool>,
    /// Energy counters by name, in microjoules; each wraps at its range.
    pub energy_uj: BTreeMap<String, (u64, u64)>,
}

/// The machine, as a run's folder names it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Board or processor, as the machine names itself.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// Cores that are online.
    pub cores: usize,
    /// Frequency governors, by core; empty where there is none to choose.
    pub governors: BTreeMap<u16, String>,
}

impl Default for SystemFiles {
    fn default() -> Self {
        SystemFiles { root: PathBuf::from("/") }
    }
}

impl SystemFiles {
    /// The files of a machine laid out below `root`.
    pub fn below(root: impl Into<PathBuf>) -> SystemFiles {
        SystemFiles { root: root.into() }
    }

    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_string())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// What the machine is.
    pub fn machine(&self) -> Machine {
        let stat = self.read("proc/stat").unwrap_or_default();
        let cores: Vec<u16> = core_lines(&stat).map(|(core, _)| core).collect();
        let board = self.read("proc/device-tree/model").map(|m| m.trim_matches('\0').to_string());
        let cpu = || {
            let info = self.read("proc/cpuinfo").unwrap_or_default();
            let line = info.lines().find(|l| l.starts_with("model name"))?.to_string();
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let governors = cores.iter().filter_map(|core| {
            let path = format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
            Some((*core, self.read(&path)?))
        });
        Machine {
            name: board.or_else(cpu).unwrap_or_else(|| "unknown".into()),
            kernel: self.read("proc/sys/kernel/osrelease").unwrap_or_default(),
            cores: cores.len(),
            governors: governors.collect(),
        }
    }

    /// What the machine does now.
    pub fn state(&self) -> State {
        let stat = self.read("proc/stat").unwrap_or_default();
        let mut state = State::default();
        for (core, (busy_ticks, all_ticks)) in core_lines(&stat) {
            let cpu = format!("sys/devices/system/cpu/cpu{core}");
            let here = CoreState {
                busy_ticks,
                all_ticks,
                frequency_khz: self.number(&format!("{cpu}/cpufreq/scaling_cur_freq")),
                throttled_count: self
                    .number(&format!("{cpu}/thermal_throttle/core_throttle_count")),
            };
            state.cores.insert(core, here);
        }
        state.pi_throttled = self
            .read("sys/devices/platform/soc/soc:firmware/get_throttled")
            .and_then(|text| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        for sensor in self.list("sys/class/hwmon") {
            let dir = format!("sys/class/hwmon/{sensor}");
            let name = self.read(&format!("{dir}/name")).unwrap_or_default();
            if name == "rpi_volt" {
                let alarm = self.number(&format!("{dir}/in0_lcrit_alarm"));
                state.undervoltage_alarm = alarm.map(|a| a != 0);
            }
            if let Some(energy) = self.number(&format!("{dir}/energy1_input")) {
                state.energy_uj.insert(format!("hwmon {name}"), (energy, u64::MAX));
            }
        }
        for zone in self.list("sys/class/powercap") {
            let dir = format!("sys/class/powercap/{zone}");
            // Whole packages only: the others are parts of them.
            let package = self.read(&format!("{dir}/name")).filter(|n| n.starts_with("package"));
            if let (Some(name), Some(energy)) = (package, self.number(&format!("{dir}/energy_uj")))
            {
                let range = self.number(&format!("{dir}/max_energy_range_uj")).unwrap_or(u64::MAX);
                state.energy_uj.insert(format!("powercap {name}"), (energy, range));
            }
        }
        state
    }

    /// CPU time of a process's threads, by the core that each is bound to alone, in ticks. Empty if
    /// there is no such process here.
    pub fn bound_thread_ticks(&self, pid: u32) -> BTreeMap<u16, u64> {
        let mut ticks = BTreeMap::new();
        for thread in self.list(&format!("proc/{pid}/task")) {
            let dir = format!("proc/{pid}/task/{thread}");
            let status = self.read(&format!("{dir}/status")).unwrap_or_default();
            let core = status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
                .and_then(|list| list.trim().parse::<u16>().ok());
            let stat = self.read(&format!("{dir}/stat")).unwrap_or_default();
            // The name may hold spaces; what follows its bracket does not.
            let fields: Vec<&str> =
                stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
            let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            if let Some(core) = core {
                *ticks.entry(core).or_default() += field(11) + field(12);
            }
        }
        ticks
    }

    /// The root, for messages.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

/// Busy and all ticks of each core, from `/proc/stat`.
fn core_lines(stat: &str) -> impl Iterator<Item = (u16, (u64, u64))> {
    stat.lines().filter_map(|line| {
        let (core, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
        let ticks: Vec<u64> = rest.split_whitespace().filter_map(|t| t.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; guest times are in user's already.
        let all: u64 = ticks.iter().take(8).sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Some((core.parse().ok()?, (all - idle, all)))
    })
}

impl State {
    /// Energy since `before`, in microjoules; `None` where the machine counts none.
    pub fn energy_since(&self, before: &State) -> Option<u64> {
        let mut sum = None;
        for (name, (now, range)) in &self.energy_uj {
            if let Some((then, _)) = before.energy_uj.get(name) {
                let spent = if now >= then { now - then } else { now + (range - then) };
                *sum.get_or_insert(0) += spent;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests;
