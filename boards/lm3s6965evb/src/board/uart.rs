//! A PL011 of the LM3S6965, by its registers.

use super::{CLOCK_HZ, Register};

/// Fields of the registers.
mod bit {
    /// FR: the transmitter sends.
    pub const BUSY: u32 = 1 << 3;
    /// FR: nothing was received.
    pub const RXFE: u32 = 1 << 4;
    /// FR: the transmitter takes nothing.
    pub const TXFF: u32 = 1 << 5;
    /// LCRH: FIFOs on.
    pub const FEN: u32 = 1 << 4;
    /// LCRH: 8 data bits; no parity and 1 stop bit are zeros.
    pub const WLEN_8: u32 = 3 << 5;
    /// CTL: on, with transmitter and receiver.
    pub const ON: u32 = 1 << 9 | 1 << 8 | 1;
    /// IM and ICR: the receive FIFO is filled so far, or holds something for a while.
    pub const RX_AND_TIMEOUT: u32 = 1 << 6 | 1 << 4;
}

/// One of the two UARTs that this firmware uses.
#[derive(Clone, Copy)]
pub struct Uart {
    data: Register,
    flags: Register,
    divisor: Register,
    fraction: Register,
    line: Register,
    control: Register,
    interrupts: Register,
    clear: Register,
}

impl Uart {
    pub const ZERO: Uart = Uart::at(0x4000_C000);
    pub const ONE: Uart = Uart::at(0x4000_D000);

    const fn at(base: u32) -> Uart {
        Uart {
            data: Register(base),
            flags: Register(base + 0x18),
            divisor: Register(base + 0x24),
            fraction: Register(base + 0x28),
            line: Register(base + 0x2C),
            control: Register(base + 0x30),
            interrupts: Register(base + 0x38),
            clear: Register(base + 0x44),
        }
    }
    /// Switches it on: 8N1 with FIFOs; `interrupt` asks for one when something is received.
    pub fn start(self, baud: u32, interrupt: bool) {
        // Sixteen samples a bit; the divisor is in 64ths, rounded.
        let divisor = (CLOCK_HZ * 4 + baud / 2) / baud;
        self.control.write(0);
        self.divisor.write(divisor >> 6);
        self.fraction.write(divisor & 63);
        self.line.write(bit::WLEN_8 | bit::FEN);
        self.interrupts.write(if interrupt { bit::RX_AND_TIMEOUT } else { 0 });
        self.control.write(bit::ON);
    }
    /// Whether the transmitter takes a byte.
    pub fn has_room(self) -> bool {
        self.flags.read() & bit::TXFF == 0
    }
    /// Sends a byte; it is lost if there is no room.
    pub fn put(self, byte: u8) {
        self.data.write(u32::from(byte));
    }
    /// The next byte, if there is one. A damaged byte comes as any other: the link notices.
    pub fn get(self) -> Option<u8> {
        (self.flags.read() & bit::RXFE == 0).then(|| self.data.read() as u8)
    }
    /// Says that the interrupt was seen.
    pub fn acknowledge(self) {
        self.clear.write(bit::RX_AND_TIMEOUT);
    }
    /// Waits until everything is on the line.
    pub fn flush(self) {
        while self.flags.read() & bit::BUSY != 0 {}
    }
}
