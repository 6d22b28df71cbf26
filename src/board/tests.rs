//! Every board file, and every board on machines made of files.

mod recorded;
mod tree;

use super::*;
use crate::toml_errors::TomlErrorKind;
use recorded::{MACHINES, Recorded};
use tree::Tree;

fn boards() -> Vec<Board> {
    EMBEDDED.iter().map(|(name, _)| Board::read(name).unwrap()).collect()
}

fn cores(text: &str) -> Vec<CoreId> {
    crate::sys::affinity::parse_core_list(text).unwrap()
}

#[test]
fn every_file_in_the_directory_is_part_of_the_program() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/boards");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    files.sort();
    assert_eq!(files, names());
}

#[test]
fn every_board_has_sources_and_a_plan_that_its_cores_allow() {
    for board in boards() {
        assert!(board.sources.iter().all(|s| s.starts_with("https://")), "{}", board.name);
        assert!(board.references.iter().all(|r| r.source.starts_with("https://")));
        assert_eq!(board.fallback, board.clusters.is_empty(), "{}", board.name);
        let Some(plan) = &board.cores else { continue };
        let mut all: Vec<CoreId> = plan.workers.iter().chain(&plan.housekeeping).copied().collect();
        all.extend(plan.io);
        all.sort_unstable();
        all.dedup();
        let mut there: Vec<CoreId> = board.clusters.iter().flat_map(|c| c.cores.clone()).collect();
        there.sort_unstable();
        assert_eq!(all, there, "{}: a core has no use", board.name);
        // Workers sit on the fastest kind of core only.
        let kinds: Vec<&str> = (plan.workers.iter())
            .map(|core| board.cluster_of(*core).unwrap().core_type.as_str())
            .collect();
        assert!(kinds.windows(2).all(|pair| pair[0] == pair[1]), "{}: {kinds:?}", board.name);
    }
}

#[test]
fn programs_for_every_board_start_on_debian_11() {
    for board in boards() {
        assert_eq!(board.build.glibc.as_deref(), Some("2.31"), "{}", board.name);
    }
}

#[test]
fn no_two_boards_share_a_name() {
    let boards = boards();
    for (n, a) in boards.iter().enumerate() {
        for b in &boards[n + 1..] {
            let shared = a.compatible.iter().find(|entry| b.compatible.contains(entry));
            assert_eq!(shared, None, "{} and {}", a.name, b.name);
        }
    }
}

/// The matrix: every board as its own machine, whole and restricted in every way that there is.
#[test]
fn each_board_is_found_and_its_plan_holds_on_its_own_machine() {
    for board in boards() {
        let machine = Tree::of(&board).machine();
        let found = identify(&machine).unwrap();
        assert_eq!(found.board.name, board.name);
        let check = check(&board, &machine);
        assert_eq!(check.differences, vec![], "{}", board.name);
        assert_eq!(check.got, check.wanted, "{}", board.name);
        assert!(!check.got.workers.is_empty(), "{}", board.name);
        let text = describe(&found, &check) + &describe_machine(&machine);
        assert!(text.contains(&board.title) && text.contains("isolcpus="), "{text}");
    }
}

#[test]
fn recorded_machines_are_the_boards_that_they_are() {
    for recorded in MACHINES {
        let machine = Tree::recorded(recorded).machine();
        let found = identify(&machine).unwrap();
        assert_eq!(found.board.name, recorded.board, "{}", recorded.model);
        assert!(matches!(found.how, HowFound::Compatible(_)), "{}: {}", recorded.model, found.how);
        let check = check(&found.board, &machine);
        assert_eq!(check.differences, vec![], "{}", recorded.model);
        assert_eq!(check.got, check.wanted, "{}", recorded.model);
    }
    for board in boards().iter().filter(|board| !board.fallback) {
        assert!(MACHINES.iter().any(|m| m.board == board.name), "{} is not recorded", board.name);
    }
}

#[test]
fn each_beginning_of_a_model_names_a_recorded_machine() {
    let boards = boards();
    for board in &boards {
        for prefix in &board.model_prefix {
            let begins = |m: &&Recorded| m.model.starts_with(prefix.as_str());
            let recorded: Vec<_> = MACHINES.iter().filter(begins).collect();
            assert!(
                !recorded.is_empty(),
                "{}: no machine's model begins with {prefix:?}",
                board.name
            );
            for recorded in recorded {
                let machine = Tree::recorded(recorded).compatible("acme,carrier\0").machine();
                let found = identify(&machine).unwrap();
                assert_eq!(found.board.name, recorded.board);
                assert_eq!(found.how, HowFound::Model(recorded.model.into()));
                assert_eq!(board.name, recorded.board, "{prefix:?} is another board's");
            }
        }
    }
}

#[test]
fn without_a_device_tree_boards_with_the_same_cores_are_named() {
    let of = |name: &str| MACHINES.iter().find(|m| m.board == name).unwrap();
    let alike = |tree: Tree| match identify(&tree.without_device_tree().machine()) {
        Err(error @ BoardError::Unidentified { .. }) => {
            let text = error.to_string();
            let BoardError::Unidentified { alike, .. } = error else { unreachable!() };
            let told = format!("boards with the same cores: {}; give", alike.join(", "));
            assert_eq!(text.contains(&told), !alike.is_empty(), "{text}");
            alike
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(alike(Tree::recorded(of("rpi4"))), ["rpi4"]);
    assert_eq!(alike(Tree::recorded(of("rpi5"))), ["rpi5"]);
    assert_eq!(alike(Tree::recorded(of("rk3588"))), ["rk3588"]);
    assert_eq!(alike(Tree::recorded(of("stm32mp157"))), ["stm32mp157"]);
    let six = ["jetson-orin-nano", "jetson-orin-nx-8gb"];
    assert_eq!(alike(Tree::recorded(of("jetson-orin-nano"))), six);
    let a53 = ["beagleplay", "imx8mp", "rpi-zero-2w", "rpi3"];
    assert_eq!(alike(Tree::recorded(of("rpi3"))), a53);
    // A core that is off shows no id, and a container with a part of the cores shows all.
    assert_eq!(alike(Tree::recorded(of("rpi5")).offline(CoreId(2))), ["rpi5"]);
    assert_eq!(alike(Tree::recorded(of("rk3588")).container(2, true, "4-5")), ["rk3588"]);
    let unlike = Recorded { cores: &[], ..*of("rpi5") };
    assert_eq!(alike(Tree::recorded(&unlike)), [""; 0]);
}

#[test]
fn a_32_bit_kernel_shows_cores_by_cpuinfo_alone() {
    let recorded = MACHINES.iter().find(|m| m.architecture == "armv7").unwrap();
    let tree = Tree::recorded(recorded);
    let machine = tree.machine();
    assert_eq!(machine.cpu_name.as_deref(), Some("ARMv7 Processor rev 5 (v7l)"));
    for core in [0, 1] {
        let cpu = machine.cpu(CoreId(core)).unwrap();
        assert_eq!(cpu.id, Some(CpuId { implementer: 0x41, part: 0xc07 }));
        assert!(cpu.features.contains(&"neon".to_string()), "{cpu:?}");
        assert_eq!(crate::sys::cores::id(tree.root(), CoreId(core)), None, "no register there");
    }
}

#[test]
fn capacities_are_read_and_tell_kinds_apart() {
    let tree = Tree::of(&Board::read("rk3588").unwrap());
    let machine = tree.machine();
    let capacity = |core| machine.cpu(CoreId(core)).unwrap().capacity;
    assert_eq!((capacity(0), capacity(7)), (Some(397), Some(1024)));
    let [little, big] = &core_kinds(tree.root(), &cores("0,7"))[..] else { panic!("two") };
    assert!(little.as_ref().unwrap().contains("capacity 397"), "{little:?}");
    assert!(big.as_ref().unwrap().contains("capacity 1024"), "{big:?}");
}

#[test]
fn each_board_with_its_worker_cores_isolated_still_has_all_workers() {
    for board in boards().iter().filter(|b| b.cores.is_some()) {
        let plan = board.cores.clone().unwrap();
        let machine = Tree::of(board).isolated(&plan.workers).machine();
        // The kernel leaves isolated cores out of what a thread inherits.
        assert!(plan.workers.iter().all(|core| !machine.allowed.contains(core)));
        let check = check(board, &machine);
        assert_eq!(check.differences, vec![], "{}", board.name);
        assert_eq!(check.got.workers, plan.workers);
    }
}

#[test]
fn each_board_with_a_worker_core_offline_says_which() {
    for board in boards().iter().filter(|b| b.cores.is_some()) {
        let plan = board.cores.clone().unwrap();
        let gone = *plan.workers.last().unwrap();
        let machine = Tree::of(board).offline(gone).machine();
        let check = check(board, &machine);
        let wanted = Difference::Core { role: "worker", core: gone, why: "it is offline" };
        assert_eq!(check.differences, vec![wanted], "{}", board.name);
        assert!(!check.got.workers.contains(&gone));
        assert!(!check.got.workers.is_empty(), "{}", board.name);
    }
}

#[test]
fn a_container_with_two_cores_is_told_of_under_both_versions_of_control_groups() {
    for board in boards() {
        for version in [1, 2] {
            for inside in [true, false] {
                let machine = Tree::of(&board).container(version, inside, "0-1").machine();
                assert_eq!(machine.cpuset, Some(cores("0-1")), "{} v{version}", board.name);
                assert_eq!(machine.usable(), cores("0-1"));
                let check = check(&board, &machine);
                let lost: Vec<CoreId> =
                    (check.wanted.workers.iter().copied()).filter(|core| core.0 > 1).collect();
                for core in &lost {
                    let why = "the control group's cpuset does not have it";
                    let wanted = Difference::Core { role: "worker", core: *core, why };
                    assert!(check.differences.contains(&wanted), "{}: {check:?}", board.name);
                }
                assert_eq!(lost.is_empty(), check.differences.is_empty(), "{check:?}");
                assert_eq!(check.got.workers, cores("1"), "{} v{version}", board.name);
                assert_eq!(check.got.io, Some(CoreId(0)));
            }
        }
    }
}

#[test]
fn an_isolated_core_that_is_off_is_told_of_and_the_others_are_kept() {
    for board in boards().iter().filter(|b| b.cores.as_ref().is_some_and(|p| p.workers.len() > 1)) {
        let plan = board.cores.clone().unwrap();
        let gone = plan.workers[0];
        let machine = Tree::of(board).isolated(&plan.workers).offline(gone).machine();
        let check = check(board, &machine);
        let wanted = Difference::Core { role: "worker", core: gone, why: "it is offline" };
        assert_eq!(check.differences, vec![wanted], "{}", board.name);
        assert_eq!(check.got.workers, plan.workers[1..], "{}", board.name);
    }
}

#[test]
fn a_control_group_decides_which_isolated_cores_there_are() {
    let board = Board::read("rpi5").unwrap();
    for version in [1, 2] {
        for inside in [true, false] {
            // The group first: a thread's own list is then without the isolated cores.
            let tree = Tree::of(&board).container(version, inside, "0-2").isolated(&cores("2-3"));
            let machine = tree.machine();
            assert_eq!(machine.usable(), cores("0-2"), "v{version}, inside {inside}");
            let why = "the control group's cpuset does not have it";
            let lost = Difference::Core { role: "worker", core: CoreId(3), why };
            let check = check(&board, &machine);
            assert_eq!(check.differences, vec![lost]);
            assert_eq!(check.got.workers, cores("1-2"), "2 is isolated, and of the group");
        }
    }
}

#[test]
fn limits_are_found_where_both_versions_of_control_groups_are() {
    let board = Board::read("rpi5").unwrap();
    let machine = Tree::of(&board).hybrid("0-2", 1_500, 300).machine();
    assert_eq!(machine.cpuset, Some(cores("0-2")));
    assert_eq!((machine.quota_millicores, machine.memory_mib), (Some(1_500), Some(300)));
    let why = "the control group's cpuset does not have it";
    let lost = Difference::Core { role: "worker", core: CoreId(3), why };
    let quota = Difference::Quota { wanted_millicores: 2_000, got_millicores: 1_500 };
    let memory = Difference::Memory { wanted_mib: 512, got_mib: 300 };
    assert_eq!(check(&board, &machine).differences, vec![lost, quota, memory]);
}

#[test]
fn a_quota_and_a_memory_limit_are_differences() {
    let board = Board::read("rpi5").unwrap();
    for version in [1, 2] {
        let machine = Tree::of(&board).limits(version, 1_500, 300).machine();
        assert_eq!((machine.quota_millicores, machine.memory_mib), (Some(1_500), Some(300)));
        let check = check(&board, &machine);
        let quota = Difference::Quota { wanted_millicores: 3_000, got_millicores: 1_500 };
        let memory = Difference::Memory { wanted_mib: 512, got_mib: 300 };
        assert_eq!(check.differences, vec![quota, memory]);
        assert_eq!(check.got.workers, cores("1"), "as many as the quota can keep busy");
    }
}

#[test]
fn unlimited_groups_limit_nothing() {
    let board = Board::read("rpi5").unwrap();
    for version in [1, 2] {
        let machine = Tree::of(&board).unlimited(version).machine();
        assert_eq!((machine.quota_millicores, machine.cpuset.clone()), (None, None));
        assert_eq!(check(&board, &machine).differences, vec![]);
    }
}

#[test]
fn a_board_on_another_ones_machine_names_every_difference() {
    let (rpi5, rk3588) = (Board::read("rpi5").unwrap(), Board::read("rk3588").unwrap());
    let check_on = |board: &Board, machine: &Board| check(board, &Tree::of(machine).machine());
    let differences = check_on(&rk3588, &rpi5).differences;
    for core in [4, 5, 6, 7] {
        let why = "there is no such core";
        assert!(differences.contains(&Difference::Core {
            role: "worker",
            core: CoreId(core),
            why
        }));
    }
    let wrong: Vec<CoreId> = (differences.iter())
        .filter_map(|d| match d {
            Difference::CoreType { core, .. } => Some(*core),
            _ => None,
        })
        .collect();
    assert_eq!(wrong, cores("0-3"), "Cortex-A76 where the board has Cortex-A55");
    let rpi4 = Board::read("rpi4").unwrap();
    let features = Difference::Features {
        core: CoreId(2),
        missing: vec!["fphp".into(), "asimdhp".into(), "asimddp".into()],
    };
    assert!(check_on(&rpi5, &rpi4).differences.contains(&features));
    let x86 = Board::read("generic-x86_64").unwrap();
    let text = check_on(&rpi5, &x86).differences_text();
    assert!(text.contains("the board is aarch64, this program runs on x86_64"), "{text}");
}

#[test]
fn unlike_cores_are_told_apart_without_the_id_register() {
    let board = Board::read("rk3588").unwrap();
    let machine = Tree::of(&board).without_id_registers().machine();
    assert_eq!(machine.cpu(CoreId(0)).unwrap().id.unwrap().part, 0xd05);
    assert_eq!(machine.cpu(CoreId(7)).unwrap().id.unwrap().part, 0xd0b);
    assert_eq!(check(&board, &machine).differences, vec![]);
}

#[test]
fn kinds_of_cores_are_told_apart() {
    let tree = Tree::of(&Board::read("rk3588").unwrap());
    let kinds = core_kinds(tree.root(), &cores("0,3-5,7"));
    assert!(kinds.iter().all(Option::is_some), "{kinds:?}");
    assert_eq!(kinds[0], kinds[1]);
    assert_ne!(kinds[1], kinds[2]);
    // Another cluster of the same processor at the same clock is the same kind.
    assert!(kinds[2] == kinds[3] && kinds[3] == kinds[4], "{kinds:?}");
    let x86 = Tree::of(&Board::read("generic-x86_64").unwrap());
    assert_eq!(core_kinds(x86.root(), &cores("0-1")), [None, None]);
}

#[test]
fn the_most_specific_name_decides() {
    let evk = Board::read("imx8mp").unwrap();
    let other = Tree::of(&evk).compatible("acme,gateway\0fsl,imx8mp\0").model("Acme Gateway\0");
    let found = identify(&other.machine()).unwrap();
    assert_eq!(found.how, HowFound::Compatible("fsl,imx8mp".into()));
    let by_model = Tree::of(&evk).compatible("acme,unknown\0").model("Raspberry Pi 5 Model B\0");
    let found = identify(&by_model.machine()).unwrap();
    assert_eq!(found.board.name, "rpi5");
    assert_eq!(found.how, HowFound::Model("Raspberry Pi 5 Model B".into()));
}

#[test]
fn what_nobody_knows_is_an_error_that_says_what_the_machine_is() {
    let board = Board::read("rpi5").unwrap();
    let machine = Tree::of(&board).compatible("acme,unknown\0").model("Acme Board\0").machine();
    let text = identify(&machine).unwrap_err().to_string();
    assert!(text.contains("Acme Board") && text.contains("acme,unknown"), "{text}");
    let empty = Machine::read(std::path::Path::new("/nonexistent"), "riscv64");
    assert!(matches!(identify(&empty), Err(BoardError::Unidentified { .. })));
    assert_eq!(empty.usable(), vec![]);
}

#[test]
fn names_and_files_are_resolved_and_wrong_ones_are_named() {
    let machine = Machine::default();
    let named = resolve("rpi4", &machine).unwrap();
    assert_eq!((named.board.name.as_str(), named.how), ("rpi4", HowFound::Named));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/boards/rpi4.toml");
    assert_eq!(resolve(path, &machine).unwrap().board, named.board);
    let text = resolve("rpi-5", &machine).unwrap_err().to_string();
    assert!(text.contains("did you mean \"rpi5\"?"), "{text}");
    let text = resolve("./none.toml", &machine).unwrap_err().to_string();
    assert!(text.contains("./none.toml") && text.contains("can't be read"), "{text}");
}

/// The file of a board with one line replaced.
fn wrong(from: &str, to: &str) -> TomlErrorKind {
    let text = EMBEDDED.iter().find(|(name, _)| *name == "rpi5").unwrap().1;
    assert!(text.contains(from), "{from}");
    let error = Board::parse("rpi5", "rpi5.toml", &text.replacen(from, to, 1)).unwrap_err();
    assert!(error.line >= 1 && error.to_string().contains("rpi5.toml, line "), "{error}");
    *error.kind
}

#[test]
fn mistakes_in_a_board_file_are_found_and_explained() {
    let invalid = |from: &str, to: &str, says: &str| match wrong(from, to) {
        TomlErrorKind::Invalid { message, .. } => {
            assert!(message.contains(says), "{from} -> {to}: {message}");
        }
        other => panic!("{from} -> {to}: {other:?}"),
    };
    invalid("workers = [1, 2, 3]", "workers = [1, 2, 9]", "core 9 is in no cluster");
    invalid("workers = [1, 2, 3]", "workers = [1, 1, 2]", "ascending, each core once");
    invalid("workers = [1, 2, 3]", "workers = []", "names no core");
    invalid("workers = [1, 2, 3]", "workers = [0, 1, 2]", "core 0 has a worker");
    invalid("io = 0", "io = 3", "core 3 has a worker");
    invalid("housekeeping = [0]", "housekeeping = [0, 1]", "core 1 has a worker");
    invalid("architecture = \"aarch64\"", "architecture = \"mips\"", "choose aarch64");
    invalid("aarch64-unknown-linux-gnu", "armv7-unknown-linux-gnueabihf", "not for aarch64");
    invalid("budget_mib = 512", "budget_mib = 4096", "sold with 1024 MiB");
    for version in ["2", "2.", "2.031", "2.31.1", "3.31", "2.999", "bullseye"] {
        let line = format!("glibc = \"{version}\"");
        invalid("glibc = \"2.31\"", &line, "no version of glibc such as");
    }
    invalid("/dev/ttyAMA0", "ttyAMA0", "no absolute path");
    invalid("thermal = \"/", "thermal = \"", "no absolute path");
    let unknown = wrong("l1d_kib", "l1_kib");
    assert!(matches!(unknown, TomlErrorKind::UnknownKey { nearest: Some(_), .. }), "{unknown:?}");
    assert!(matches!(wrong("soc = ", "# soc = "), TomlErrorKind::Missing { .. }));
    assert!(matches!(wrong("part = 0xd0b", "part = 0x1d0b"), TomlErrorKind::OutOfRange { .. }));
    assert!(matches!(wrong("io = 0", "io = \"0\""), TomlErrorKind::WrongType { .. }));
    assert!(matches!(wrong("[memory]", "[memory"), TomlErrorKind::Syntax { .. }));
}

#[test]
fn what_is_not_known_of_a_board_is_told() {
    let text = |board: &Board| {
        let machine = Tree::of(board).machine();
        let found = Found { board: board.clone(), how: HowFound::Named };
        describe(&found, &check(board, &machine))
    };
    let says = |name: &str, part: &str| {
        let text = text(&Board::read(name).unwrap());
        assert!(text.contains(part), "no {part:?} in {text}");
    };
    says("rpi5", "throttled    not published");
    says("rpi5", "capacity not published");
    says("rpi5", "reference    none found");
    says(
        "rpi5",
        "build        aarch64-unknown-linux-gnu, glibc 2.31 and later, processor cortex-a76",
    );
    says("rpi5", "emulated as cortex-a76");
    says("stm32mp157", "features neon");
    says("rk3588", "memory       size not published");
    says("rk3588", "capacity 530 at the same clock");
    let a55 =
        "reference    ncnn resnet18: 210.22 ms, 1 thread on Cortex-A55, fp16 where the core has it";
    says("rk3588", a55);
    says(
        "rpi5",
        "for unit in system.slice user.slice init.scope; do systemctl set-property --runtime $unit \
         AllowedCPUs=0; done",
    );
    // What is known of every board is never left out by a slip.
    for board in boards().iter().filter(|board| !board.fallback) {
        for cluster in &board.clusters {
            let known =
                [cluster.l1i_kib, cluster.l1d_kib, cluster.l2_kib, cluster.frequency_max_mhz];
            assert!(known.iter().all(Option::is_some), "{}: {cluster:?}", board.name);
        }
    }
}

#[test]
fn a_published_figure_says_on_which_core_and_how_it_was_computed() {
    let text = EMBEDDED.iter().find(|(name, _)| *name == "rk3588").unwrap().1;
    let wrong = |from: &str, to: &str| {
        let at = text.find("[[reference]]").unwrap();
        let (facts, figures) = text.split_at(at);
        assert!(figures.contains(from));
        let text = facts.to_string() + &figures.replacen(from, to, 1);
        *Board::parse("rk3588", "rk3588.toml", &text).unwrap_err().kind
    };
    let unknown = wrong("\"Cortex-A76\"", "\"Cortex-A72\"");
    assert!(
        matches!(&unknown, TomlErrorKind::Invalid { message, .. }
        if message.contains("\"Cortex-A72\" is in no cluster")),
        "{unknown:?}"
    );
    for key in ["core_type", "precision"] {
        let kind = wrong(&format!("{key} = "), &format!("# {key} = "));
        assert!(matches!(kind, TomlErrorKind::Missing { .. }), "{key}: {kind:?}");
    }
}

#[test]
fn lists_of_cores_are_read_as_the_kernel_writes_them() {
    use crate::sys::affinity::{core_list, parse_core_list};
    for text in ["0", "0-3", "0-3,6", "1,3,5-7"] {
        assert_eq!(core_list(&parse_core_list(text).unwrap()), text);
    }
    assert_eq!(parse_core_list(""), Some(vec![]));
    assert_eq!(parse_core_list("\n"), Some(vec![]));
    for bad in ["a", "3-1", "0-99999", "-1", "0-"] {
        assert_eq!(parse_core_list(bad), None, "{bad}");
    }
}

#[test]
fn this_machine_has_a_usable_core() {
    let machine = Machine::here();
    assert!(!machine.usable().is_empty(), "{}", describe_machine(&machine));
    let allowed = crate::sys::affinity::allowed().unwrap();
    assert!(allowed.iter().all(|core| machine.usable().contains(core)));
}
