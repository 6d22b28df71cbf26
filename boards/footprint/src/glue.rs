//! What a firmware has anyway, with or without corelane: a port, a clock, an entry, a panic handler. It is
//! linked and measured, and never run: the registers are nowhere.

use core::convert::Infallible;
use corelane::client::serial::Port;
use embedded_time::fraction::Fraction;

const DATA: u32 = 0x4000_0000;
const STATUS: u32 = 0x4000_0004;
const TIME: u32 = 0x4000_0008;

fn read(address: u32) -> u32 {
    // SAFETY: any value may be read from a register of the device that this would be.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(address: u32, value: u32) {
    // SAFETY: as above; it writes to no memory.
    unsafe { (address as *mut u32).write_volatile(value) }
}

/// A UART without interrupts.
pub struct Uart;

impl Port for Uart {
    type Error = Infallible;

    fn read(&mut self, into: &mut [u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for place in into {
            if read(STATUS) & 1 == 0 {
                break;
            }
            *place = read(DATA) as u8;
            n += 1;
        }
        Ok(n)
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let mut n = 0;
        for &byte in bytes {
            if read(STATUS) & 2 == 0 {
                break;
            }
            write(DATA, u32::from(byte));
            n += 1;
        }
        Ok(n)
    }
    fn cancelled(&mut self) -> bool {
        read(STATUS) & 4 != 0
    }
}

/// A timer of microseconds.
pub struct Timer;

impl embedded_time::Clock for Timer {
    type T = u32;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);

    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        Ok(embedded_time::Instant::new(read(TIME)))
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

// SAFETY: no other symbol has this name: there is no C library.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    loop {
        crate::work();
    }
}
