//! CRC-32C (Castagnoli), four bits at a time: a table of 64 bytes, which a microcontroller can spare.

/// The polynomial 0x1EDC6F41, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 4 {
            crc = (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

/// A checksum in the making.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crc(u32);

impl Crc {
    pub const fn new() -> Self {
        Crc(!0)
    }
    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.add_byte(byte);
        }
    }
    pub fn add_byte(&mut self, byte: u8) {
        self.0 ^= u32::from(byte);
        for _ in 0..2 {
            self.0 = (self.0 >> 4) ^ TABLE[(self.0 & 15) as usize];
        }
    }
    pub const fn value(self) -> u32 {
        !self.0
    }
}

/// The checksum of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.add(bytes);
    crc.value()
}
