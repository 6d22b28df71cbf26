//! How much of the line is payload, how long a round trip takes, and what encodings save.

use crate::server::Model;
use crate::world::World;
use corelane::client::serial::{Opening, Retries};
use corelane::units::{Micros, Rows};
use corelane::wire::{Encoding, Place, Scale, TensorEncoding};

const BAUD: u32 = 921_600;
const COMPUTE_NS: u64 = 5_000_000;
/// What the documentation shows.
const TABLE: &str = include_str!("../../src/docs/payload.md");

fn model(name: &'static str, input: usize, output: usize) -> Model {
    Model { name, input, output, compute_ns: COMPUTE_NS }
}

#[test]
fn the_line_carries_payload_and_little_else() {
    let models = [
        model("up", 27 * 1024, 4),
        model("down", 4, 27 * 1024),
        model("both", 27 * 1024, 27 * 1024),
    ];
    let mut rows = Vec::new();
    for (sizes, latency_us) in [((512, 2048), 0), ((512, 2048), 1000), ((1024, 4096), 0)] {
        let mut world = World::new(BAUD, latency_us, sizes, &models, 1);
        for m in models {
            let opened = world.open(m.name, 1000).unwrap();
            let begin = world.clock.ns();
            world.infer(&opened, 2000).unwrap();
            let took = (world.clock.ns() - begin) as f64;
            let bytes = m.input + m.output;
            let ideal = bytes as f64 * 10e9 / f64::from(BAUD);
            let payload = ideal / (took - COMPUTE_NS as f64 - 2000.0 * latency_us as f64);
            let over = took / (ideal + COMPUTE_NS as f64);
            let row = format!(
                "| {} | {} | {latency_us} | {} | {} | {:.1} | {:.2} | {:+.1} |",
                sizes.0,
                sizes.1,
                m.input,
                m.output,
                payload * 100.0,
                took / 1e6,
                over * 100.0 - 100.0
            );
            println!("{row}");
            assert!(payload >= 0.92, "{payload}");
            assert!(over <= 1.10, "{over}");
            rows.push(row);
        }
    }
    let told: Vec<&str> = TABLE.lines().skip(2).collect();
    assert_eq!(told, rows, "src/docs/payload.md should have these rows");
}

#[test]
fn encodings_save_what_they_leave_out() {
    // dscnn_kws: 49 x 10 numbers to 12.
    let kws = Model { name: "kws", input: 490 * 4, output: 12 * 4, compute_ns: COMPUTE_NS };
    let scale = Scale::new(0.05).unwrap();
    let i8 = Encoding::I8 { scale, zero_point: 0 };
    for baud in [115_200, BAUD] {
        let mut as_is = 0.0;
        for encoding in [Encoding::F32, Encoding::F16, i8] {
            let mut world = World::new(baud, 0, (256, 1024), &[kws], 1);
            let encodings = [Place::Input(0), Place::Output(0)];
            let encodings = encodings.map(|place| TensorEncoding { place, encoding });
            let opening = Opening { name: "kws", encodings: &encodings };
            let mut model = world.open(opening, 2_000).unwrap();
            let bytes = model.input_len(Rows(1)) + model.output_len(Rows(1));
            assert_eq!(bytes, (490 + 12) * encoding.element_bytes());
            let begin = world.clock.ns();
            world.infer(&model, 2_000).unwrap();
            let took = (world.clock.ns() - begin) as f64;
            let ideal = bytes as f64 * 10e9 / f64::from(baud) + COMPUTE_NS as f64;
            println!(
                "dscnn_kws at {baud} baud as {encoding}: {bytes} bytes, round trip {:.2} ms with {} ms of compute, {:+.1} % over bytes/baud + compute",
                took / 1e6,
                COMPUTE_NS / 1_000_000,
                took / ideal * 100.0 - 100.0
            );
            // Heads and frames are some 90 bytes, whatever the encoding.
            let over = (took - ideal) * f64::from(baud) / 10e9;
            assert!(over < 130.0, "{over} bytes over");
            match encoding {
                Encoding::F32 => as_is = took,
                _ => assert!(took < as_is),
            }
            // After a new session it is opened again with the same encodings.
            world.restart_client();
            let once = Retries { times: 0, pause: Micros(0), after_link_loss: false };
            world.infer_retrying(opening, &mut model, 2_000, once).unwrap();
            assert_eq!(model.input_len(Rows(1)), 490 * encoding.element_bytes());
        }
    }
}
