//! A server that wants a pre-shared key, which no client of a serial line has: told at once.

use crate::server::Model;
use crate::world::World;
use corelane::client::State;
use corelane::client::serial::SerialError;

const MODEL: Model = Model { name: "small", input: 64, output: 8, compute_ns: 0 };

#[test]
fn a_server_that_wants_a_key_is_told_at_once() {
    let mut world = World::new(921_600, 0, (256, 512), &[MODEL], 1);
    world.machines.borrow_mut().server.wants_key = true;
    for _ in 0..2 {
        let begin = world.clock.ns();
        assert_eq!(world.open(MODEL.name, 60_000).unwrap_err(), SerialError::KeyWanted);
        // As long as a session and a hello take on this line.
        assert!(world.clock.ns() - begin < 20_000_000, "it was waited for");
        assert_eq!(world.client.state(), State::Start);
    }
    let told = SerialError::<()>::KeyWanted.to_string();
    assert!(told.contains("pre-shared key"), "{told}");
    // Without one it is served on the same line.
    world.machines.borrow_mut().server.wants_key = false;
    let model = world.open(MODEL.name, 1_000).unwrap();
    world.infer(&model, 1_000).unwrap();
}
