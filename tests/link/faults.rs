//! Faults, seeded: at least 100,000 frames of each kind. Never a wrong answer accepted, never a
//! request without an end within its deadline, never one executed twice (the world checks these at
//! each request), and after the noise the next request succeeds.
//!
//! Time is simulated and everything follows from the seeds, so what comes out is always the same: it is the
//! table of the page `docs::line`, row by row.

use crate::line::Faults;
use crate::server::Model;
use crate::world::World;
use corelane::client::serial::{Retries, SerialError};
use corelane::units::Micros;

const BAUD: u32 = 921_600;
/// What the documentation shows.
const TABLE: &str = include_str!("../../src/docs/line.md");
/// Rows of it: as many as there are calls of `run`.
const ROWS: usize = 13;
/// Frames that each case has on the line, both directions together.
const FRAMES: u64 = 100_000;
const WITHIN_MS: u32 = 2_000;

const MODELS: [Model; 2] = [
    Model { name: "small", input: 490, output: 8, compute_ns: 200_000 },
    Model { name: "large", input: 3000, output: 3000, compute_ns: 1_000_000 },
];

#[derive(Default)]
struct Tally {
    answered: u64,
    ended: u64,
    payload: u64,
}

fn frames(world: &World) -> u64 {
    let machines = world.machines.borrow();
    machines.up.frames + machines.down.frames
}

fn run(name: &str, faults: Faults, seed: u32, mut meanwhile: impl FnMut(&mut World)) {
    let mut world = World::new(BAUD, 100, (256, 1024), &MODELS, seed);
    world.set_faults(faults);
    let mut models = [None, None];
    let mut tally = Tally::default();
    let mut errors = std::collections::BTreeMap::<String, u64>::new();
    let mut turn = 0;
    let begin = world.clock.ns();
    while frames(&world) < FRAMES {
        meanwhile(&mut world);
        turn += 1;
        let which = turn % 2;
        let model = match &models[which] {
            Some(model) => model,
            None => match world.open(MODELS[which].name, WITHIN_MS) {
                Ok(model) => models[which].insert(model),
                Err(error) => {
                    *errors.entry(format!("open: {error}")).or_default() += 1;
                    continue;
                }
            },
        };
        match world.infer(model, WITHIN_MS) {
            Ok(_) => {
                tally.answered += 1;
                tally.payload += (MODELS[which].input + MODELS[which].output) as u64;
            }
            Err(error) => {
                tally.ended += 1;
                *errors.entry(error.to_string()).or_default() += 1;
                if matches!(error, SerialError::Cancelled) {
                    world.restart_client();
                }
                models = [None, None];
            }
        }
    }
    let took = (world.clock.ns() - begin) as f64 / 1e9;
    let goodput = tally.payload as f64 / took;
    let machines = world.machines.borrow();
    let (up, down) = (machines.server.link.counters(), world.client.counters());
    println!(
        "{name}: {} frames, {} faults, {} answered, {} ended in errors {errors:?}, goodput {:.0} B/s ({:.1} % of the line), retransmits {}, crc errors {}, oversize {}, resyncs {}",
        machines.up.frames + machines.down.frames,
        machines.up.damage + machines.down.damage,
        tally.answered,
        tally.ended,
        goodput,
        goodput * 1000.0 / f64::from(BAUD),
        up.retransmits + down.retransmits,
        up.crc_errors + down.crc_errors,
        up.oversize + down.oversize,
        up.resyncs + down.resyncs,
    );
    let row = format!(
        "| {name} | {} | {} | {} | {:.0} | {:.1} | {} |",
        machines.up.damage + machines.down.damage,
        tally.answered,
        tally.ended,
        goodput,
        goodput * 1000.0 / f64::from(BAUD),
        up.retransmits + down.retransmits,
    );
    println!("{row}");
    drop(machines);
    // One that was to come may not have come yet.
    let mut machines = world.machines.borrow_mut();
    (machines.server_restart_at, machines.client_restart_at) = (None, None);
    drop(machines);
    assert!(tally.answered > 0, "{name}: nothing came through");
    // The noise stops: the next request succeeds.
    world.set_faults(Faults::default());
    let mut model = world.open("large", WITHIN_MS).expect("a clean line");
    let once = Retries { times: 1, pause: Micros(0), after_link_loss: true };
    world.infer_retrying("large", &mut model, WITHIN_MS, once).expect("a clean line");
    world.infer(&model, WITHIN_MS).expect("a clean line");
    assert!(TABLE.lines().any(|line| line == row), "src/docs/line.md should have the row\n{row}");
}

#[test]
fn the_table_has_a_row_for_each_case() {
    assert_eq!(TABLE.lines().skip(2).count(), ROWS);
}

fn quiet(_: &mut World) {}

#[test]
fn clean() {
    run("clean", Faults::default(), 1, quiet);
}

#[test]
fn bit_flips() {
    run("bit flips 1e-4", Faults { flip: 10_000, ..Faults::default() }, 2, quiet);
    run("bit flips 1e-3", Faults { flip: 1_000, ..Faults::default() }, 3, quiet);
}

#[test]
fn lost_bytes() {
    run("lost bytes 1e-4", Faults { lose: 10_000, ..Faults::default() }, 4, quiet);
    run("lost bytes 1e-3", Faults { lose: 1_000, ..Faults::default() }, 5, quiet);
    let clusters = Faults { lose_cluster: 4_000, ..Faults::default() };
    run("8 bytes lost together 2.5e-4", clusters, 6, quiet);
}

#[test]
fn doubled_bytes() {
    run("doubled bytes 1e-3", Faults { double: 1_000, ..Faults::default() }, 7, quiet);
}

#[test]
fn truncated_frames() {
    run("truncated frames 5e-4", Faults { truncate: 2_000, ..Faults::default() }, 8, quiet);
}

#[test]
fn bursts_of_noise() {
    run("bursts of noise 5e-4", Faults { noise: 2_000, ..Faults::default() }, 9, quiet);
}

#[test]
fn storms_of_zeros() {
    run("storms of zeros 1e-3", Faults { zeros: 1_000, ..Faults::default() }, 10, quiet);
}

#[test]
fn everything_at_once() {
    let all = Faults {
        flip: 8_000,
        lose: 8_000,
        lose_cluster: 30_000,
        double: 8_000,
        truncate: 20_000,
        noise: 20_000,
        zeros: 20_000,
    };
    run("everything at once", all, 11, quiet);
}

#[test]
fn the_server_restarts_in_mid_frame() {
    let mut next = 0;
    run("server restarts", Faults::default(), 12, |world| {
        next += 1;
        if next % 5 == 0 {
            let within = world.random.below(7_000);
            let mut machines = world.machines.borrow_mut();
            machines.server_restart_at = Some(machines.up.sent + within);
        }
    });
}

#[test]
fn the_client_restarts_in_mid_frame() {
    let mut next = 0;
    let faults = Faults { flip: 10_000, ..Faults::default() };
    run("client restarts, bit flips 1e-4", faults, 13, |world| {
        next += 1;
        if next % 5 == 0 {
            let within = world.random.below(7_000);
            let mut machines = world.machines.borrow_mut();
            machines.client_restart_at = Some(machines.up.sent + within);
        }
    });
}
