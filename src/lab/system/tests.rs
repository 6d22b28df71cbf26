use super::*;

/// A machine of files.
pub(crate) struct Fake(PathBuf);

impl Fake {
    pub(crate) fn new(name: &str) -> Fake {
        let dir = std::env::temp_dir().join(format!("corelane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Fake(dir)
    }
    pub(crate) fn write(&self, path: &str, text: &str) -> &Fake {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }
    pub(crate) fn files(&self) -> SystemFiles {
        SystemFiles::below(&self.0)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_board_is_read_from_its_files() {
    let fake = Fake::new("system-board");
    fake.write(
        "proc/stat",
        "cpu  9 0 9 99 0 0 0 0\ncpu0 10 0 5 80 5 0 0 0 7 0\ncpu1 1 2 3 4 5 6 7 8\n",
    )
    .write("proc/device-tree/model", "Raspberry Pi 4 Model B\0")
    .write("proc/sys/kernel/osrelease", "6.6.1\n")
    .write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "ondemand\n")
    .write("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1500000\n")
    .write("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n")
    .write("sys/devices/platform/soc/soc:firmware/get_throttled", "50005\n")
    .write("sys/class/hwmon/hwmon1/name", "rpi_volt\n")
    .write("sys/class/hwmon/hwmon1/in0_lcrit_alarm", "1\n")
    .write("sys/class/powercap/intel-rapl:0/name", "package-0\n")
    .write("sys/class/powercap/intel-rapl:0/energy_uj", "900\n")
    .write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "1000\n")
    .write("sys/class/powercap/intel-rapl:0:0/name", "core\n")
    .write("sys/class/powercap/intel-rapl:0:0/energy_uj", "5\n");
    let machine = fake.files().machine();
    assert_eq!(machine.name, "Raspberry Pi 4 Model B");
    assert_eq!((machine.kernel.as_str(), machine.cores), ("6.6.1", 2));
    assert_eq!(machine.governors, BTreeMap::from([(0, "ondemand".to_string())]));
    let before = fake.files().state();
    assert_eq!((before.cores[&0].busy_ticks, before.cores[&0].all_ticks), (15, 100));
    assert_eq!((before.cores[&1].busy_ticks, before.cores[&1].all_ticks), (27, 36));
    assert_eq!(before.cores[&0].frequency_khz, Some(1_500_000));
    assert_eq!(before.cores[&1].throttled_count, Some(4));
    assert_eq!(before.pi_throttled, Some(0x50005));
    assert_eq!(before.undervoltage_alarm, Some(true));
    // The counter wraps at its range.
    fake.write("sys/class/powercap/intel-rapl:0/energy_uj", "150\n");
    assert_eq!(fake.files().state().energy_since(&before), Some(250));
}

#[test]
fn what_a_machine_does_not_tell_is_absent() {
    let fake = Fake::new("system-bare");
    let state = fake.files().state();
    assert_eq!(state, State::default());
    assert_eq!(state.energy_since(&state), None);
    assert_eq!(fake.files().machine().name, "unknown");
    assert!(fake.files().bound_thread_ticks(1).is_empty());
}

#[test]
fn threads_count_on_the_core_that_they_are_bound_to() {
    let fake = Fake::new("system-threads");
    for (thread, cores, ticks) in [(7, "0-3", 50), (8, "2", 10), (9, "2", 5), (10, "3", 1)] {
        let dir = format!("proc/7/task/{thread}");
        fake.write(&format!("{dir}/status"), &format!("Name:\tx\nCpus_allowed_list:\t{cores}\n"));
        let stat = format!("{thread} (cl worker) 0) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 2 0 0 20 0 1");
        fake.write(&format!("{dir}/stat"), &stat);
    }
    assert_eq!(fake.files().bound_thread_ticks(7), BTreeMap::from([(2, 19), (3, 3)]));
}

#[test]
fn this_machine_has_cores_that_tick() {
    let state = SystemFiles::default().state();
    assert!(!state.cores.is_empty());
    assert!(state.cores.values().all(|c| c.all_ticks >= c.busy_ticks && c.all_ticks > 0));
}
