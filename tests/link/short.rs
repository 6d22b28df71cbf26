//! A send buffer that can't hold the request for a model is told at once, with what would do.

use crate::server::Model;
use crate::world::World;
use corelane::client::SessionError;
use corelane::client::serial::{Opening, SerialError};
use corelane::limits::MODEL_NAME_LEN_MAX;
use corelane::wire::{EncodeError, Encoding, Place, TensorEncoding};

const MODEL: Model =
    Model { name: "a_model_with_a_long_name", input: 64, output: 8, compute_ns: 0 };

#[test]
fn a_send_buffer_too_short_for_the_name_is_told_at_once() {
    let min = 8 + MODEL.name.len() + 8;
    let mut world = World::new(921_600, 0, (64, min - 1), &[MODEL], 1);
    let begin = world.clock.ns();
    let refused = world.open(MODEL.name, 60_000).unwrap_err();
    assert_eq!(refused, SerialError::SendBufferTooShort { len: min - 1, min });
    assert_eq!(
        refused.to_string(),
        format!(
            "a send buffer of {} bytes; to open this model it must have at least {min}",
            min - 1
        )
    );
    assert_eq!(world.clock.ns(), begin, "it was not waited for");
    let asked = world.client.request_open::<()>(MODEL.name).unwrap_err();
    assert!(matches!(asked, SerialError::SendBufferTooShort { .. }));
    // As much as it says will do.
    let mut world = World::new(921_600, 0, (64, min), &[MODEL], 1);
    let model = world.open(MODEL.name, 1_000).unwrap();
    world.infer(&model, 1_000).unwrap();
}

#[test]
fn encodings_count_too() {
    let f16 = |at| TensorEncoding { place: Place::Input(at), encoding: Encoding::F16 };
    let encodings = [f16(0), f16(1)];
    let opening = Opening { name: MODEL.name, encodings: &encodings };
    let mut world = World::new(921_600, 0, (64, 48), &[MODEL], 1);
    let min = 8 + MODEL.name.len() + 9 + 14;
    let refused = world.open(opening, 60_000).unwrap_err();
    assert_eq!(refused, SerialError::SendBufferTooShort { len: 48, min });
}

#[test]
fn a_name_that_no_model_has_is_the_names_fault() {
    // Whatever the length of the id before it.
    let name = "n".repeat(MODEL_NAME_LEN_MAX + 8);
    let mut world = World::new(921_600, 0, (64, 512), &[MODEL], 1);
    let refused = world.open(name.as_str(), 1_000).unwrap_err();
    let max = MODEL_NAME_LEN_MAX + 8;
    let long = SessionError::Encode(EncodeError::HeaderTooLong { max });
    assert_eq!(refused, SerialError::Session(long));
}
