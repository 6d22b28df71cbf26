//! defmt over UART1.
//!
//! A UART, not semihosting: it needs no debugger, and where there is one, a semihosting call stops the
//! core for so long that the line's receiver would overrun. Frames go into a ring that the timer's
//! interrupt empties, so that a log statement takes no longer than copying its bytes, unless the ring is
//! full: then it waits.

use super::Uart;
use super::ring::Ring;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};
use cortex_m::interrupt::{self, Mutex};
use cortex_m::register::primask;

static RING: Ring<1024> = Ring::new();
static ENCODER: Mutex<RefCell<defmt::Encoder>> = Mutex::new(RefCell::new(defmt::Encoder::new()));
/// Whether interrupts were on when the logger was taken.
static WERE_ON: AtomicBool = AtomicBool::new(false);

#[defmt::global_logger]
struct Log;

fn with_encoder(act: impl FnOnce(&mut defmt::Encoder)) {
    interrupt::free(|free| act(&mut ENCODER.borrow(free).borrow_mut()));
}

fn write(bytes: &[u8]) {
    for &byte in bytes {
        while !RING.push(byte) {
            pump();
        }
    }
}

// SAFETY: interrupts are off from `acquire` to `release`, and there is one core, so nobody else can
// acquire it meanwhile.
unsafe impl defmt::Logger for Log {
    fn acquire() {
        let were_on = primask::read().is_active();
        interrupt::disable();
        WERE_ON.store(were_on, Ordering::Relaxed);
        with_encoder(|encoder| encoder.start_frame(write));
    }
    unsafe fn flush() {
        flush();
    }
    unsafe fn release() {
        with_encoder(|encoder| encoder.end_frame(write));
        if WERE_ON.load(Ordering::Relaxed) {
            // SAFETY: `acquire` switched them off, and nothing else is in between that relies on it.
            unsafe { interrupt::enable() };
        }
    }
    unsafe fn write(bytes: &[u8]) {
        with_encoder(|encoder| encoder.write(bytes, write));
    }
}

/// Gives the UART what it has room for.
pub fn pump() {
    // Two consumers, the timer's interrupt and a writer that waits, but one at a time.
    interrupt::free(|_| {
        while Uart::ONE.has_room()
            && let Some(byte) = RING.pop()
        {
            Uart::ONE.put(byte);
        }
    });
}

/// Waits until everything is on the line.
pub fn flush() {
    while !RING.is_empty() {
        pump();
    }
    Uart::ONE.flush();
}
