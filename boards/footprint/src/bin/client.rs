//! A firmware that asks for an inference: everything of the client is linked.
#![no_std]
#![no_main]

#[path = "../glue.rs"]
mod glue;

use core::hint::black_box;
use core::sync::atomic::AtomicU8;
use corelane::client::serial::{Retries, SerialClient, SerialRequest};
use corelane::units::Micros;
use corelane::wire::link::LinkOptions;
use glue::{Timer, Uart};

type Client<'b> = SerialClient<Timer, &'b mut [u8], &'b mut [u8]>;

/// As much as a client takes, besides its two buffers, where the size of static variables shows it.
#[used]
static CLIENT: [AtomicU8; size_of::<Client<'static>>()] =
    [const { AtomicU8::new(0) }; size_of::<Client<'static>>()];

const WITHIN: Micros = Micros(1_000_000);
const RETRIES: Retries = Retries { times: 3, pause: Micros(10_000), after_link_loss: true };

fn work() {
    let (mut receive, mut send) = ([0; 256], [0; 512]);
    let options = LinkOptions::new(921_600);
    let Ok(mut client) = Client::new(Timer, options, &mut receive, &mut send, 1) else { return };
    let Ok(mut model) = client.open(&mut Uart, "mlp", WITHIN) else { return };
    let mut answer = [0; 40];
    let result = client.infer_retrying(
        &mut Uart,
        ("mlp", &mut model),
        SerialRequest::row(WITHIN),
        RETRIES,
        || core::iter::repeat_n(1, 256),
        &mut |at, bytes| {
            for (place, byte) in answer.iter_mut().skip(at).zip(bytes) {
                *place = *byte;
            }
        },
    );
    let _ = black_box((result, answer));
}
