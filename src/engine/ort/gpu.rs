//! The GPUs, as NVIDIA's tool shows them, and what ONNX Runtime says where memory is short.
//!
//! Not run on a machine with a GPU yet; what the tool and the library say is parsed as they write it.

use super::library;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// NVIDIA's tool, which comes with the driver.
const TOOL: &str = "nvidia-smi";
/// What is asked of it; [`parse`] reads the answer.
const QUERY: &str = "--query-gpu=name,uuid,driver_version,memory.free,memory.total";
/// How long it may take. It answers within a second where the driver is not being loaded.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// What it is.
    pub name: String,
    /// Which one it is.
    pub uuid: String,
    /// The driver's version.
    pub driver: String,
    /// Memory that nothing uses, in bytes.
    pub free_bytes: u64,
    /// All of its memory, in bytes.
    pub total_bytes: u64,
}

/// The GPUs of this machine, in the driver's order.
///
/// # Errors
/// A sentence: the tool is not there, takes too long, or says something else.
pub fn all() -> Result<Vec<Gpu>, String> {
    let mut child = Command::new(TOOL)
        .args([QUERY, "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{TOOL} (of NVIDIA's driver) can't be run: {e}"))?;
    let status = library::wait(&mut child, PATIENCE)
        .ok_or_else(|| format!("{TOOL} did not answer within {} s", PATIENCE.as_secs()))?;
    let said = child.stdout.take().map(|pipe| library::said(pipe, ANSWER_BYTES_MAX));
    let said = said.unwrap_or_default();
    if !status.success() {
        return Err(format!("{TOOL} failed ({status}): {said}"));
    }
    parse(&said)
}

/// Reads one GPU a line: name, UUID, driver, free and total memory in MiB.
///
/// # Errors
/// A sentence with the line that is something else.
pub fn parse(text: &str) -> Result<Vec<Gpu>, String> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [name, uuid, driver, free, total] = fields[..] else { return None };
        let bytes = |mib: &str| mib.parse::<u64>().ok()?.checked_mul(1 << 20);
        let (free_bytes, total_bytes) = (bytes(free)?, bytes(total)?);
        let text = |text: &str| (!text.is_empty()).then(|| text.to_string());
        let (name, uuid, driver) = (text(name)?, text(uuid)?, text(driver)?);
        Some(Gpu { name, uuid, driver, free_bytes, total_bytes })
    };
    let gpus = text.lines().filter(|l| !l.trim().is_empty());
    gpus.map(|l| line(l).ok_or_else(|| format!("{TOOL} says {:?}", l.trim()))).collect()
}

/// Memory that was asked for and not had, as far as a message of ONNX Runtime says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes of the one allocation that failed.
    pub asked_bytes: Option<u64>,
    /// Bytes that the library's own limit leaves.
    pub left_bytes: Option<u64>,
}

impl Shortage {
    /// Reads a message; `None` where it is not about memory.
    pub fn read(said: &str) -> Option<Shortage> {
        let number = |before: &str| {
            let (_, rest) = said.split_once(before)?;
            let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u64>().ok()
        };
        let left_bytes = number("Available memory of ");
        let asked_bytes = number("smaller than requested bytes of ")
            .or_else(|| number("allocate memory for requested buffer of size "));
        const SIGNS: [&str; 6] = [
            "out of memory",
            "Failed to allocate memory",
            "cudaErrorMemoryAllocation",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "STATUS_ALLOC_FAILED",
            "OutOfMemory",
        ];
        let short = asked_bytes.is_some() || SIGNS.iter().any(|sign| said.contains(sign));
        short.then_some(Shortage { asked_bytes, left_bytes })
    }
}

/// Bytes, exactly and for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes ({:.1} MiB)", self.0, self.0 as f64 / 1_048_576.0)
    }
}

/// The sentence for a model that did not get its memory on GPU `device`: what was asked for, what is free,
/// what can be done.
pub fn explain(
    shortage: Shortage,
    device: u32,
    limit_bytes: Option<u64>,
    gpus: &Result<Vec<Gpu>, String>,
) -> String {
    let mut text = match shortage.asked_bytes {
        Some(bytes) => format!("GPU {device}: {} were asked for at once", Bytes(bytes)),
        None => format!("GPU {device}: more was asked for than there is"),
    };
    if let Some(left) = shortage.left_bytes {
        text += &format!(", the limit leaves {}", Bytes(left));
    }
    if let Some(limit) = limit_bytes {
        text += &format!(", gpu_memory_bytes_max is {limit}");
    }
    match gpus {
        Ok(gpus) => match gpus.get(device as usize) {
            Some(gpu) => {
                let (free, total) = (Bytes(gpu.free_bytes), Bytes(gpu.total_bytes));
                text += &format!(", {free} of {total} are free on {}", gpu.name);
            }
            None => text += &format!(", and the driver shows {} GPUs", gpus.len()),
        },
        Err(why) => text += &format!(", and what is free is not known: {why}"),
    }
    text + "; serve smaller batches or fewer workers, or raise the limit where there is one"
}

#[cfg(test)]
mod tests;
