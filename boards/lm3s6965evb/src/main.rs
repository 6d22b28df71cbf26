//! A microcontroller that asks a corelane server for inferences over its UART, for QEMU's
//! `lm3s6965evb` (Cortex-M3, 64 KB of RAM).
//!
//! It opens two models, sends the goldens' inputs from flash, again and again, and holds the answers against
//! the goldens' outputs. Two requests that can't be answered must end in their typed errors. The log says
//! what was wrong; the emulator's exit code, whether anything was.

#![no_std]
#![no_main]

mod board;
mod golden;

use board::{Line, Timer};
use core::convert::Infallible;
use corelane::client::serial::{Retries, SerialClient, SerialError, SerialModel, SerialRequest};
use corelane::units::{Micros, Rows};
use corelane::wire::ErrorCode;
use corelane::wire::link::LinkOptions;
use golden::{GOLDENS, Golden, MISMATCH_MAX, OUTPUT_BYTES_MAX};

/// Speed of the line.
const BAUD: u32 = 921_600;
/// Times that every golden is sent.
const ROUNDS: u32 = 8;
/// How long one request may take, with all its repetitions.
const WITHIN: Micros = Micros(60_000_000);
const RETRIES: Retries = Retries { times: 20, pause: Micros(10_000), after_link_loss: true };

type Client = SerialClient<Timer, &'static mut [u8], &'static mut [u8]>;
type Error = SerialError<Infallible>;

/// Why the firmware gives up.
#[derive(defmt::Format)]
enum Failure {
    /// No answer, or not the error that was due.
    Request(Error),
    /// A request that can't be answered was.
    Answered,
    /// The model takes or gives other lengths than the goldens have.
    Lengths { input: usize, output: usize },
    /// The answer is another.
    Wrong { mismatch: f32, allowed: f32 },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Request(error)
    }
}

struct Firmware {
    client: Client,
    line: Line,
    right: u32,
}

impl Firmware {
    fn open(&mut self, name: &str) -> Result<SerialModel, Error> {
        self.client.open(&mut self.line, name, WITHIN)
    }

    /// Asks for one golden's answer and compares it.
    fn ask(&mut self, model: &mut SerialModel, golden: &Golden) -> Result<(), Failure> {
        let rows = Rows(golden.rows);
        let (input, output) = (model.input_len(rows), model.output_len(rows));
        if input != golden.input.len() || output != golden.output.len() {
            return Err(Failure::Lengths { input, output });
        }
        let mut answer = [0; OUTPUT_BYTES_MAX];
        self.client.infer_retrying(
            &mut self.line,
            (golden.model, model),
            SerialRequest { rows, ..SerialRequest::row(WITHIN) },
            RETRIES,
            || golden.input.iter().copied(),
            &mut |at, bytes| answer[at..at + bytes.len()].copy_from_slice(bytes),
        )?;
        let mismatch = golden.mismatch(&answer[..output]);
        if mismatch.is_nan() || mismatch > MISMATCH_MAX {
            return Err(Failure::Wrong { mismatch, allowed: MISMATCH_MAX });
        }
        self.right += rows.0 as u32;
        Ok(())
    }

    /// Requests that must end in their errors.
    fn errors(&mut self) -> Result<(), Failure> {
        match self.open("no such model") {
            Err(error) if error.code() == Some(ErrorCode::UnknownModel) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Failure::Answered),
        }
        let golden = &GOLDENS[0];
        let model = self.open(golden.model)?;
        let hurry = SerialRequest { rows: Rows(golden.rows), ..SerialRequest::row(Micros(1)) };
        let input = golden.input.iter().copied();
        match self.client.infer(&mut self.line, &model, hurry, input, &mut |_, _| {}) {
            Err(SerialError::Deadline { .. }) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Err(Failure::Answered),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.errors()?;
        for golden in GOLDENS {
            let mut model = self.open(golden.model)?;
            defmt::info!("{=str}, {=u16} rows: {}", golden.model, golden.rows, model);
            for _ in 0..ROUNDS {
                self.ask(&mut model, golden)?;
            }
        }
        Ok(())
    }
}

#[cortex_m_rt::entry]
fn main() -> ! {
    let (timer, line) = board::start(BAUD);
    defmt::info!("boot {=u32}", board::boots());
    // One received frame, and what is sent and not acknowledged.
    let receive = cortex_m::singleton!(: [u8; 256] = [0; 256]).expect("taken once");
    let send = cortex_m::singleton!(: [u8; 512] = [0; 512]).expect("taken once");
    let Ok(client) = Client::new(timer, LinkOptions::new(BAUD), receive, send, board::boots())
    else {
        defmt::unreachable!("the buffers are long enough")
    };
    let mut firmware = Firmware { client, line, right: 0 };
    let before = board::stack_used();
    let result = firmware.run();
    defmt::info!("{}", firmware.client.counters());
    defmt::info!(
        "{=usize} bytes of stack were used, {=usize} of them before the first request; the client is {=usize}",
        board::stack_used(),
        before,
        size_of::<Client>()
    );
    match &result {
        Ok(()) => defmt::info!("passed: {=u32} rows, all answers right", firmware.right),
        Err(failure) => defmt::error!("failed after {=u32} rows: {}", firmware.right, failure),
    }
    board::exit(result.is_ok())
}
