//! How much of the line is payload, and how long a round trip takes, at 921600 baud.

use crate::server::Model;
use crate::world::World;

const BAUD: u32 = 921_600;
const COMPUTE_NS: u64 = 5_000_000;

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
            println!(
                "frames of {} bytes, window {}, latency {latency_us} us, {:>4} ({} in, {} out): payload {:.1} % of the raw rate, round trip {:.2} ms, {:+.1} % over bytes/baud + compute",
                sizes.0,
                sizes.1,
                m.name,
                m.input,
                m.output,
                payload * 100.0,
                took / 1e6,
                over * 100.0 - 100.0
            );
            assert!(payload >= 0.92, "{payload}");
            assert!(over <= 1.10, "{over}");
        }
    }
}
