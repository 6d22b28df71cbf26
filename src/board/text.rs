//! Boards and machines for people.

use super::{Board, Build, Check, Cluster, CorePlan, Found, Machine, Reference};
use crate::sys::affinity::core_list;
use std::fmt::Write;

/// Arguments for the kernel's command line that keep the workers' cores free of everything else.
pub fn kernel_arguments(plan: &CorePlan) -> String {
    let workers = core_list(&plan.workers);
    let rest = core_list(&plan.housekeeping);
    format!(
        "isolcpus=managed_irq,domain,{workers} nohz_full={workers} rcu_nocbs={workers} \
         irqaffinity={rest}"
    )
}

/// The units of systemd that hold all that runs, but for services with a slice of their own, as the packaged
/// one has: a service can't have a core that its slice does not have.
const EVERYTHING_ELSE: &str = "system.slice user.slice init.scope";

/// The shell's command that keeps the workers' cores free of everything else from now on until the next
/// start, by systemd and the second version of control groups.
pub fn slices_command(plan: &CorePlan) -> String {
    format!(
        "for unit in {EVERYTHING_ELSE}; do systemctl set-property --runtime $unit AllowedCPUs={}; done",
        core_list(&plan.housekeeping)
    )
}

/// What is said of a fact that the board's sources don't give.
const UNKNOWN: &str = "not published";

/// What becomes of a board on a machine: the board's facts, and its plan `wanted` and `got`.
pub fn describe(found: &Found, check: &Check) -> String {
    let Found { board, how } = found;
    let mut out = String::new();
    let _ = writeln!(out, "{} ({}), {how}", board.title, board.name);
    let _ = writeln!(out, "  soc          {}, {}", board.soc, board.architecture);
    for cluster in &board.clusters {
        let _ = writeln!(out, "  cores {:<6} {}", core_list(&cluster.cores), cluster_text(cluster));
    }
    let _ = writeln!(out, "  memory       {}", memory_text(board));
    for uart in &board.uarts {
        let _ = writeln!(out, "  uart         {}: {}", uart.device, uart.what);
    }
    let files = [
        ("temperature", &board.thermal_file),
        ("frequency", &board.frequency_file),
        ("throttled", &board.throttled_file),
    ];
    for (what, file) in files {
        let _ = writeln!(out, "  {what:<12} {}", file.as_deref().unwrap_or(UNKNOWN));
    }
    let _ = writeln!(out, "  build        {}", build_text(&board.build));
    if board.references.is_empty() {
        let _ = writeln!(out, "  reference    none found");
    }
    for reference in &board.references {
        let _ = writeln!(out, "  reference    {}", reference_text(reference));
    }
    if board.measured.is_empty() {
        let _ = writeln!(out, "  corelane     not measured on this board");
    }
    for m in &board.measured {
        let _ = writeln!(out, "  corelane     {}: {} ms ({})", m.model, m.ms, m.how);
    }
    for source in &board.sources {
        let _ = writeln!(out, "  source       {source}");
    }
    let _ = writeln!(out, "plan");
    let _ = writeln!(out, "  wanted       {}", check.wanted);
    let _ = writeln!(out, "  got          {}", check.got);
    for difference in &check.differences {
        let _ = writeln!(out, "  difference   {difference}");
    }
    let _ = writeln!(out, "  kernel       {}", kernel_arguments(&check.wanted));
    let _ = writeln!(out, "  or, at run time: {}", slices_command(&check.wanted));
    out
}

fn build_text(build: &Build) -> String {
    let mut parts = vec![build.target.clone()];
    parts.extend(build.glibc.as_ref().map(|version| format!("glibc {version} and later")));
    parts.extend(build.cpu.as_ref().map(|cpu| format!("processor {cpu}")));
    if !build.features.is_empty() {
        parts.push(format!("features {}", build.features.join(" ")));
    }
    parts.extend(build.emulator_cpu.as_ref().map(|cpu| format!("emulated as {cpu}")));
    parts.join(", ")
}

fn reference_text(r: &Reference) -> String {
    let threads = if r.threads == 1 { "1 thread".into() } else { format!("{} threads", r.threads) };
    format!(
        "{} {}: {} ms, {threads} on {}, {} ({})",
        r.engine, r.model, r.ms, r.core_type, r.precision, r.source
    )
}

fn cluster_text(cluster: &Cluster) -> String {
    let fact = |what: &str, fact: Option<String>| match fact {
        Some(fact) => fact,
        None => format!("{what} {UNKNOWN}"),
    };
    let shared = if cluster.l2_shared == Some(true) { " shared" } else { "" };
    let l1 = cluster.l1i_kib.zip(cluster.l1d_kib);
    let mut parts = vec![
        cluster.core_type.clone(),
        fact("frequency", cluster.frequency_max_mhz.map(|mhz| format!("up to {mhz} MHz"))),
        fact(
            "capacity",
            cluster.capacity_dmips_mhz.map(|c| format!("capacity {c} at the same clock")),
        ),
        fact("L1", l1.map(|(i, d)| format!("L1 {i}+{d} KiB"))),
        fact("L2", cluster.l2_kib.map(|l2| format!("L2 {l2} KiB{shared}"))),
    ];
    if !cluster.features.is_empty() {
        parts.push(cluster.features.join(" "));
    }
    parts.join(", ")
}

fn memory_text(board: &Board) -> String {
    let memory = &board.memory;
    let mut parts = Vec::new();
    if !memory.sizes_mib.is_empty() {
        let sizes: Vec<String> = memory.sizes_mib.iter().map(u64::to_string).collect();
        parts.push(format!("{} MiB", sizes.join(" or ")));
    } else if !board.clusters.is_empty() {
        parts.push(format!("size {UNKNOWN}"));
    }
    parts.extend(memory.kind.clone());
    parts.extend(memory.l3_kib.map(|kib| format!("last cache {kib} KiB")));
    parts.push(format!("budget {} MiB", memory.budget_mib));
    parts.join(", ")
}

/// What a machine says of itself.
pub fn describe_machine(machine: &Machine) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "machine: {}", machine.summary());
    let _ = writeln!(
        out,
        "  cores        present {}, online {}, isolated {}, allowed {}",
        core_list(&machine.present),
        core_list(&machine.online),
        core_list(&machine.isolated),
        core_list(&machine.allowed)
    );
    if let Some(cpuset) = &machine.cpuset {
        let _ = writeln!(out, "  cpuset       {}", core_list(cpuset));
    }
    if let Some(quota) = machine.quota_millicores {
        let _ = writeln!(out, "  quota        {quota} thousandths of a core");
    }
    if let Some(mib) = machine.memory_mib {
        let _ = writeln!(out, "  memory       {mib} MiB");
    }
    out
}
