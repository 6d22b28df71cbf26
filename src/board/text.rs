//! Boards and machines for people.

use super::{Board, Check, Cluster, CorePlan, Found, Machine};
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
        if let Some(file) = file {
            let _ = writeln!(out, "  {what:<12} {file}");
        }
    }
    let build = &board.build;
    let cpu = build.cpu.as_ref().map_or(String::new(), |cpu| format!(", processor {cpu}"));
    let _ = writeln!(out, "  build        {}{cpu}", build.target);
    for r in &board.references {
        let threads =
            if r.threads == 1 { "1 thread".into() } else { format!("{} threads", r.threads) };
        let _ = writeln!(
            out,
            "  reference    {} {}: {} ms, {threads} ({})",
            r.engine, r.model, r.ms, r.source
        );
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
    let _ = writeln!(
        out,
        "  or, at run time: systemctl set-property --runtime system.slice AllowedCPUs={}",
        core_list(&check.wanted.housekeeping)
    );
    out
}

fn cluster_text(cluster: &Cluster) -> String {
    let mut parts = vec![cluster.core_type.clone()];
    if let Some(mhz) = cluster.frequency_max_mhz {
        parts.push(format!("up to {mhz} MHz"));
    }
    if let Some(capacity) = cluster.capacity_dmips_mhz {
        parts.push(format!("capacity {capacity} at the same clock"));
    }
    if let (Some(i), Some(d)) = (cluster.l1i_kib, cluster.l1d_kib) {
        parts.push(format!("L1 {i}+{d} KiB"));
    }
    if let Some(l2) = cluster.l2_kib {
        let shared = if cluster.l2_shared == Some(true) { " shared" } else { "" };
        parts.push(format!("L2 {l2} KiB{shared}"));
    }
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
