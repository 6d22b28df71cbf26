//! A firmware without corelane: it reads, writes and looks at its clock.
#![no_std]
#![no_main]

#[path = "../glue.rs"]
mod glue;

use corelane::client::serial::Port;
use embedded_time::Clock;
use glue::{Timer, Uart};

fn work() {
    let mut bytes = [0; 32];
    let Ok(n) = Uart.read(&mut bytes);
    let Ok(_) = Uart.write(&bytes[..n]);
    if let Ok(now) = Timer.try_now()
        && !Uart.cancelled()
    {
        let Ok(_) = Uart.write(&now.duration_since_epoch().integer().to_le_bytes());
    }
}
