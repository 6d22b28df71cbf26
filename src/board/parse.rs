//! From a board file to a [`Board`].

use super::{Board, Build, Cluster, CorePlan, CpuId, Measured, Memory, Reference, Uart};
use crate::limits::{BOARD_RECORDS_MAX, CORES_MAX};
use crate::toml_errors::{Document, Table, TomlError};
use crate::units::CoreId;

const ARCHITECTURES: [&str; 3] = ["aarch64", "armv7", "x86_64"];
/// Bounds of plain facts; a value outside them is a slip of the pen, not a board.
const MHZ_MAX: u64 = 10_000;
const CACHE_KIB_MAX: u64 = 1024 * 1024;
const MEMORY_MIB_MAX: u64 = 4 * 1024 * 1024;

impl Board {
    /// Reads `text` as the board `name`; errors call the file `file`.
    ///
    /// # Errors
    /// Not TOML, an unknown or missing key, a value of the wrong type or out of its bounds, or facts
    /// that contradict each other; each with the key and the line.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Board, TomlError> {
        let document = Document::parse(file, text)?;
        let root = document.root();
        let architecture = needed_text(&root, "architecture")?;
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            let message = format!("{architecture:?}; choose {}", ARCHITECTURES.join(", "));
            return Err(root.invalid("architecture", message));
        }
        let sources = root.texts("sources")?.unwrap_or_default();
        if sources.is_empty() {
            return Err(root.invalid("sources", "facts have sources; name at least one"));
        }
        let identify = needed_table(&root, "identify")?;
        let compatible = identify.texts("compatible")?.unwrap_or_default();
        let model_prefix = identify.texts("model_prefix")?.unwrap_or_default();
        let fallback = identify.boolean("fallback")?.unwrap_or(false);
        if compatible.is_empty() && model_prefix.is_empty() && !fallback {
            let message = "names nothing to know the board by";
            return Err(identify.invalid("compatible", message));
        }
        identify.finish()?;
        let clusters = list(&root, "cluster", cluster)?;
        one_cluster_a_core(&root, &clusters)?;
        let memory = memory(needed_table(&root, "memory")?)?;
        let cores = root.table("cores")?.map(|table| plan(&table, &clusters)).transpose()?;
        if cores.is_none() && !clusters.is_empty() {
            return Err(root.missing("cores"));
        }
        let build = build(needed_table(&root, "build")?, &architecture)?;
        let uarts = list(&root, "uart", |t| {
            Ok(Uart { device: path(t, "device")?, what: needed_text(t, "what")? })
        })?;
        let references = list(&root, "reference", |t| reference(t, &clusters))?;
        let mut board = Board {
            name: name.into(),
            title: needed_text(&root, "title")?,
            soc: needed_text(&root, "soc")?,
            architecture,
            sources,
            compatible,
            model_prefix,
            fallback,
            clusters,
            memory,
            cores,
            build,
            uarts,
            thermal_file: None,
            frequency_file: None,
            throttled_file: None,
            references,
            measured: list(&root, "measured", measured)?,
        };
        if let Some(files) = root.table("files")? {
            let file = |key: &str| -> Result<Option<String>, TomlError> {
                files.text(key)?.map(|_| path(&files, key)).transpose()
            };
            board.thermal_file = file("thermal")?;
            board.frequency_file = file("frequency")?;
            board.throttled_file = file("throttled")?;
            files.finish()?;
        }
        root.finish()?;
        Ok(board)
    }
}

fn needed_text(table: &Table<'_>, key: &str) -> Result<String, TomlError> {
    let text = table.text(key)?.ok_or_else(|| table.missing(key))?;
    if text.trim().is_empty() {
        return Err(table.invalid(key, "is empty"));
    }
    Ok(text)
}

fn needed_table<'d>(table: &Table<'d>, key: &str) -> Result<Table<'d>, TomlError> {
    table.table(key)?.ok_or_else(|| table.missing(key))
}

fn needed_number(table: &Table<'_>, key: &str, min: u64, max: u64) -> Result<u64, TomlError> {
    table.integer(key, min, max)?.ok_or_else(|| table.missing(key))
}

fn path(table: &Table<'_>, key: &str) -> Result<String, TomlError> {
    let text = needed_text(table, key)?;
    if !text.starts_with('/') {
        return Err(table.invalid(key, format!("{text:?} is no absolute path")));
    }
    Ok(text)
}

fn list<T>(
    root: &Table<'_>,
    key: &str,
    read: impl Fn(&Table<'_>) -> Result<T, TomlError>,
) -> Result<Vec<T>, TomlError> {
    let tables = root.tables(key)?.unwrap_or_default();
    if tables.len() > BOARD_RECORDS_MAX {
        let message = format!("{} entries; at most {BOARD_RECORDS_MAX}", tables.len());
        return Err(root.invalid(key, message));
    }
    tables
        .iter()
        .map(|table| {
            let value = read(table)?;
            table.finish()?;
            Ok(value)
        })
        .collect()
}

fn cores(table: &Table<'_>, key: &str) -> Result<Vec<CoreId>, TomlError> {
    let list = table.integers(key, 0, CORES_MAX as u64 - 1)?.ok_or_else(|| table.missing(key))?;
    let cores: Vec<CoreId> = list.into_iter().map(|n| CoreId(n as u16)).collect();
    if cores.is_empty() {
        return Err(table.invalid(key, "names no core"));
    }
    if !cores.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(table.invalid(key, "must be ascending, each core once"));
    }
    Ok(cores)
}

fn cluster(table: &Table<'_>) -> Result<Cluster, TomlError> {
    let kib = |key: &str| table.integer(key, 1, CACHE_KIB_MAX);
    Ok(Cluster {
        core_type: needed_text(table, "core_type")?,
        id: CpuId {
            implementer: needed_number(table, "implementer", 0, 0xff)? as u8,
            part: needed_number(table, "part", 0, 0xfff)? as u16,
        },
        cores: cores(table, "cores")?,
        frequency_max_mhz: table.integer("frequency_max_mhz", 1, MHZ_MAX)?,
        capacity_dmips_mhz: table.integer("capacity_dmips_mhz", 1, 1024)?,
        l1i_kib: kib("l1i_kib")?,
        l1d_kib: kib("l1d_kib")?,
        l2_kib: kib("l2_kib")?,
        l2_shared: table.boolean("l2_shared")?,
        features: table.texts("features")?.unwrap_or_default(),
    })
}

fn one_cluster_a_core(root: &Table<'_>, clusters: &[Cluster]) -> Result<(), TomlError> {
    let mut seen: Vec<CoreId> = Vec::new();
    for core in clusters.iter().flat_map(|c| &c.cores) {
        if seen.contains(core) {
            return Err(root.invalid("cluster", format!("core {core} is in two clusters")));
        }
        seen.push(*core);
    }
    Ok(())
}

fn memory(table: Table<'_>) -> Result<Memory, TomlError> {
    let sizes_mib = table.integers("sizes_mib", 1, MEMORY_MIB_MAX)?.unwrap_or_default();
    let budget_mib = needed_number(&table, "budget_mib", 1, MEMORY_MIB_MAX)?;
    if let Some(least) = sizes_mib.iter().min().filter(|least| **least < budget_mib) {
        let message = format!("{budget_mib}, but the board is sold with {least} MiB");
        return Err(table.invalid("budget_mib", message));
    }
    let memory = Memory {
        sizes_mib,
        kind: table.text("kind")?,
        l3_kib: table.integer("l3_kib", 1, CACHE_KIB_MAX)?,
        budget_mib,
    };
    table.finish()?;
    Ok(memory)
}

fn plan(table: &Table<'_>, clusters: &[Cluster]) -> Result<CorePlan, TomlError> {
    let plan = CorePlan {
        workers: cores(table, "workers")?,
        io: table.integer("io", 0, CORES_MAX as u64 - 1)?.map(|n| CoreId(n as u16)),
        housekeeping: cores(table, "housekeeping")?,
    };
    let known = |core: &CoreId| clusters.iter().any(|c| c.cores.contains(core));
    for (key, list) in [("workers", &plan.workers), ("housekeeping", &plan.housekeeping)] {
        if let Some(stranger) = list.iter().find(|core| !known(core)) {
            return Err(table.invalid(key, format!("core {stranger} is in no cluster")));
        }
    }
    if let Some(io) = plan.io.filter(|core| !known(core) || plan.workers.contains(core)) {
        return Err(table.invalid("io", format!("core {io} has a worker or is in no cluster")));
    }
    if let Some(both) = plan.housekeeping.iter().find(|core| plan.workers.contains(core)) {
        return Err(table.invalid("housekeeping", format!("core {both} has a worker")));
    }
    table.finish()?;
    Ok(plan)
}

fn build(table: Table<'_>, architecture: &str) -> Result<Build, TomlError> {
    let target = needed_text(&table, "target")?;
    if !target.starts_with(architecture) {
        let message = format!("{target:?} is not for {architecture}");
        return Err(table.invalid("target", message));
    }
    let glibc = table.text("glibc")?;
    if let Some(version) = glibc.as_deref().filter(|version| !is_glibc(version)) {
        let message = format!("{version:?} is no version of glibc such as \"2.31\"");
        return Err(table.invalid("glibc", message));
    }
    let build = Build {
        target,
        glibc,
        cpu: table.text("cpu")?,
        features: table.texts("features")?.unwrap_or_default(),
        emulator_cpu: table.text("emulator_cpu")?,
    };
    table.finish()?;
    Ok(build)
}

/// Whether `version` is `2.` and a number without leading zero.
fn is_glibc(version: &str) -> bool {
    let minor =
        version.strip_prefix("2.").and_then(|minor| Some((minor, minor.parse::<u8>().ok()?)));
    minor.is_some_and(|(text, number)| number.to_string() == text)
}

fn milliseconds(table: &Table<'_>) -> Result<f64, TomlError> {
    let ms = table.number("ms")?.ok_or_else(|| table.missing("ms"))?;
    if !ms.is_finite() || ms <= 0.0 {
        return Err(table.invalid("ms", "must be more than 0"));
    }
    Ok(ms)
}

fn reference(table: &Table<'_>, clusters: &[Cluster]) -> Result<Reference, TomlError> {
    let core_type = needed_text(table, "core_type")?;
    if !clusters.iter().any(|cluster| cluster.core_type == core_type) {
        return Err(table.invalid("core_type", format!("{core_type:?} is in no cluster")));
    }
    Ok(Reference {
        engine: needed_text(table, "engine")?,
        model: needed_text(table, "model")?,
        core_type,
        precision: needed_text(table, "precision")?,
        threads: needed_number(table, "threads", 1, CORES_MAX as u64)?,
        ms: milliseconds(table)?,
        source: needed_text(table, "source")?,
    })
}

fn measured(table: &Table<'_>) -> Result<Measured, TomlError> {
    Ok(Measured {
        model: needed_text(table, "model")?,
        ms: milliseconds(table)?,
        how: needed_text(table, "how")?,
    })
}
