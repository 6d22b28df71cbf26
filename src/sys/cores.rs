//! Which cores run instructions in order, as far as loops are made for that.

use crate::units::CoreId;
use std::path::Path;

/// Arm's number as a maker of cores, and its cores that two instructions at most start on in a cycle, in order,
/// and that a load of 128 bits stops for two: Cortex-A53 and Cortex-A55.
const ARM: u64 = 0x41;
const IN_ORDER: [u64; 2] = [0xd03, 0xd05];

/// Whether all of `cores` are such, by the id registers that Linux shows of cores of aarch64 below `root` (`/`).
/// A core that it shows none of is not, and neither is no core.
pub fn in_order(root: &Path, cores: &[CoreId]) -> bool {
    let one = |core: &CoreId| {
        let file = format!("sys/devices/system/cpu/cpu{}/regs/identification/midr_el1", core.0);
        let text = std::fs::read_to_string(root.join(file)).ok()?;
        let midr = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
        Some(midr >> 24 & 0xff == ARM && IN_ORDER.contains(&(midr >> 4 & 0xfff)))
    };
    !cores.is_empty() && cores.iter().all(|core| one(core) == Some(true))
}

#[cfg(test)]
#[path = "cores_tests.rs"]
mod tests;
