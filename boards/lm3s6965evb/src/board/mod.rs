//! The LM3S6965: clock, timer, line, log, exit. All unsafe code of the firmware is in here: registers, the
//! interrupt handlers' signatures, and symbols of the linker.

mod log;
mod ring;
mod uart;

use core::convert::Infallible;
use core::sync::atomic::{AtomicU32, Ordering};
use corelane::client::serial::{EmbeddedIo, Port};
use cortex_m::interrupt;
use cortex_m::peripheral::syst::SystClkSource;
use cortex_m::peripheral::{NVIC, SCB, SYST};
use cortex_m_rt::{ExceptionFrame, exception};
use cortex_m_semihosting::debug::{self, EXIT_FAILURE, EXIT_SUCCESS};
use embedded_io::{ErrorType, Read, ReadReady, Write};
use embedded_time::fraction::Fraction;
use ring::Ring;
use uart::Uart;

/// What the core runs at: the phase-locked loop's 200 MHz over 4.
const CLOCK_HZ: u32 = 50_000_000;
const TICKS_PER_US: u32 = CLOCK_HZ / 1_000_000;
const TICKS_PER_MS: u32 = CLOCK_HZ / 1_000;

/// A register of a device, by its address.
#[derive(Clone, Copy)]
struct Register(u32);

impl Register {
    fn read(self) -> u32 {
        // SAFETY: registers are only made in this module and its children, with addresses of the
        // LM3S6965's devices that may be read at any time.
        unsafe { (self.0 as *const u32).read_volatile() }
    }
    fn write(self, value: u32) {
        // SAFETY: as above; no device here writes to memory by itself.
        unsafe { (self.0 as *mut u32).write_volatile(value) }
    }
    fn set(self, bits: u32) {
        self.write(self.read() | bits);
    }
}

mod system {
    use super::Register;
    pub const INTERRUPT_STATUS: Register = Register(0x400F_E050);
    pub const RUN_CLOCK: Register = Register(0x400F_E060);
    pub const GATE_UARTS: Register = Register(0x400F_E104);
    pub const GATE_PORTS: Register = Register(0x400F_E108);
    /// Alternate functions and digital enable, of ports A and D.
    pub const FUNCTION_A: Register = Register(0x4000_4420);
    pub const ENABLE_A: Register = Register(0x4000_451C);
    pub const FUNCTION_D: Register = Register(0x4000_7420);
    pub const ENABLE_D: Register = Register(0x4000_751C);
}

/// Bits of the run-mode clock configuration.
mod clock {
    pub const MAIN_OSCILLATOR_OFF: u32 = 1;
    pub const SOURCE: u32 = 3 << 4;
    pub const CRYSTAL: u32 = 15 << 6;
    pub const CRYSTAL_8_MHZ: u32 = 14 << 6;
    pub const BYPASS: u32 = 1 << 11;
    pub const LOOP_OFF: u32 = 1 << 13;
    pub const DIVIDE: u32 = 1 << 22;
    pub const DIVISOR: u32 = 15 << 23;
    pub const DIVISOR_4: u32 = 3 << 23;
    /// Interrupt status: the loop is locked.
    pub const LOCKED: u32 = 1 << 6;
}

/// UART0's interrupt.
const UART0: i16 = 5;

/// What UART0 received and nobody read yet: as many bytes as the client's window lets the server send, and
/// some for the frames around them.
static RECEIVED: Ring<2048> = Ring::new();
/// Milliseconds since the start.
static MILLIS: AtomicU32 = AtomicU32::new(0);

/// Starts clock, timer, UARTs and interrupts. Called once.
pub fn start(baud: u32) -> (Timer, Line) {
    // The order of the data sheet: run without the loop, set it up, wait until it is locked, use it.
    let mut run = system::RUN_CLOCK.read();
    run = (run | clock::BYPASS) & !(clock::DIVIDE | clock::MAIN_OSCILLATOR_OFF);
    system::RUN_CLOCK.write(run);
    run &= !(clock::CRYSTAL | clock::SOURCE | clock::LOOP_OFF);
    run |= clock::CRYSTAL_8_MHZ;
    system::RUN_CLOCK.write(run);
    run = run & !clock::DIVISOR | clock::DIVISOR_4 | clock::DIVIDE;
    system::RUN_CLOCK.write(run);
    while system::INTERRUPT_STATUS.read() & clock::LOCKED == 0 {}
    system::RUN_CLOCK.write(run & !clock::BYPASS);

    // UART0 at PA0 and PA1, UART1 at PD2 and PD3.
    system::GATE_UARTS.set(0b11);
    system::GATE_PORTS.set(0b1001);
    // A gated device must be left alone for a few cycles.
    cortex_m::asm::delay(16);
    system::FUNCTION_A.set(0b11);
    system::ENABLE_A.set(0b11);
    system::FUNCTION_D.set(0b1100);
    system::ENABLE_D.set(0b1100);
    Uart::ZERO.start(baud, true);
    Uart::ONE.start(baud, false);

    if let Some(mut core) = cortex_m::Peripherals::take() {
        core.SYST.set_reload(TICKS_PER_MS - 1);
        core.SYST.set_clock_source(SystClkSource::Core);
        core.SYST.clear_current();
        core.SYST.enable_counter();
        core.SYST.enable_interrupt();
        // SAFETY: the handler shares nothing with the program but atomics.
        unsafe { NVIC::unmask(Interrupt) };
    }
    (Timer, Line(EmbeddedIo(Stream)))
}

#[derive(Clone, Copy)]
struct Interrupt;

// SAFETY: the number is the device's for UART0, and always the same.
unsafe impl interrupt::InterruptNumber for Interrupt {
    fn number(self) -> u16 {
        UART0 as u16
    }
}

#[exception]
fn SysTick() {
    MILLIS.fetch_add(1, Ordering::Relaxed);
    log::pump();
}

#[exception]
unsafe fn DefaultHandler(number: i16) {
    if number != UART0 {
        defmt::panic!("interrupt {=i16}, which nobody asked for", number);
    }
    Uart::ZERO.acknowledge();
    while let Some(byte) = Uart::ZERO.get() {
        // More than the window allows is not the server's; the link takes it for damage.
        RECEIVED.push(byte);
    }
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    defmt::error!("hard fault at {=u32:#010x}", frame.pc());
    exit(false)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    defmt::error!("{}", defmt::Display2Format(info));
    exit(false)
}

/// Microseconds since the start.
pub struct Timer;

impl embedded_time::Clock for Timer {
    type T = u32;
    const SCALING_FACTOR: Fraction = Fraction::new(1, 1_000_000);

    fn try_now(&self) -> Result<embedded_time::Instant<Self>, embedded_time::clock::Error> {
        // Interrupts off, so that the milliseconds stand still; what they miss is pending then.
        let (millis, left) = interrupt::free(|_| {
            let (left, missed) = (SYST::get_current(), SCB::is_pendst_pending());
            // Unless the counter began anew after it was read.
            let missed = missed && left > TICKS_PER_MS / 2;
            (MILLIS.load(Ordering::Relaxed).wrapping_add(u32::from(missed)), left)
        });
        let micros = (TICKS_PER_MS - 1).saturating_sub(left) / TICKS_PER_US;
        Ok(embedded_time::Instant::new(millis.wrapping_mul(1_000).wrapping_add(micros)))
    }
}

/// UART0 as a stream of bytes.
struct Stream;

impl ErrorType for Stream {
    type Error = Infallible;
}

impl ReadReady for Stream {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(!RECEIVED.is_empty())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Infallible> {
        while !into.is_empty() && RECEIVED.is_empty() {
            cortex_m::asm::wfi();
        }
        let mut n = 0;
        for place in into {
            let Some(byte) = RECEIVED.pop() else { break };
            *place = byte;
            n += 1;
        }
        Ok(n)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        while !bytes.is_empty() && !Uart::ZERO.has_room() {}
        let mut n = 0;
        for &byte in bytes {
            if !Uart::ZERO.has_room() {
                break;
            }
            Uart::ZERO.put(byte);
            n += 1;
        }
        Ok(n)
    }
    fn flush(&mut self) -> Result<(), Infallible> {
        Uart::ZERO.flush();
        Ok(())
    }
}

/// The line to the server: UART0, and sleep while there is nothing to do.
pub struct Line(EmbeddedIo<Stream>);

impl Port for Line {
    type Error = Infallible;

    fn read(&mut self, into: &mut [u8]) -> Result<usize, Infallible> {
        self.0.read(into)
    }
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        self.0.write(bytes)
    }
    fn idle(&mut self, micros: u64) {
        // A byte that comes between the look and the sleep waits for the timer, a millisecond at most.
        if micros > 1_000 && RECEIVED.is_empty() {
            cortex_m::asm::wfi();
        }
    }
}

/// Starts since the power came on, this one included, on top of what was in the memory then: unlike
/// those of the last starts, which is all that is wanted.
pub fn boots() -> u32 {
    // SAFETY: not initialised at start, which any bits of memory are a value for.
    #[unsafe(link_section = ".uninit.BOOTS")]
    static BOOTS: AtomicU32 = AtomicU32::new(0);
    static THIS: AtomicU32 = AtomicU32::new(0);
    if THIS.load(Ordering::Relaxed) == 0 {
        THIS.store(BOOTS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1), Ordering::Relaxed);
    }
    THIS.load(Ordering::Relaxed)
}

/// Bytes of the stack that were ever used.
pub fn stack_used() -> usize {
    unsafe extern "C" {
        static _stack_start: u32;
        static _stack_end: u32;
    }
    let (top, bottom) = (&raw const _stack_start, &raw const _stack_end);
    let mut word = bottom;
    // SAFETY: the words between the two symbols are the stack, painted at start; they lie in RAM.
    while word < top && unsafe { word.read_volatile() } == cortex_m_rt::STACK_PAINT_VALUE {
        word = word.wrapping_add(1);
    }
    top as usize - word as usize
}

/// Ends the emulator, with 0 or 1 as its exit code, once the log is out.
pub fn exit(passed: bool) -> ! {
    log::flush();
    debug::exit(if passed { EXIT_SUCCESS } else { EXIT_FAILURE });
    loop {
        cortex_m::asm::wfi();
    }
}
