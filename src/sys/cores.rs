//! What a core is, and whether it runs instructions in order, as far as loops are made for that.

use crate::units::CoreId;
use std::path::Path;

/// Implementer and part of a core, by the id register (MIDR) that Linux shows of cores of aarch64 below
/// `root` (`/`); `None` if it shows none.
pub fn id(root: &Path, core: CoreId) -> Option<(u8, u16)> {
    let file = format!("sys/devices/system/cpu/cpu{core}/regs/identification/midr_el1");
    let text = std::fs::read_to_string(root.join(file)).ok()?;
    let midr = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()?;
    Some(((midr >> 24) as u8, (midr >> 4 & 0xfff) as u16))
}

/// Arm's number as a maker of cores, and its cores that two instructions at most start on in a cycle, in order,
/// and that a load of 128 bits stops for two: Cortex-A53 and Cortex-A55.
const ARM: u8 = 0x41;
const IN_ORDER: [u16; 2] = [0xd03, 0xd05];

/// Whether all of `cores` are such, by their [`id`]. A core without one is not, and neither is no core.
pub fn in_order(root: &Path, cores: &[CoreId]) -> bool {
    let one = |&core: &CoreId| {
        id(root, core).is_some_and(|(maker, part)| maker == ARM && IN_ORDER.contains(&part))
    };
    !cores.is_empty() && cores.iter().all(one)
}

#[cfg(test)]
#[path = "cores_tests.rs"]
mod tests;
