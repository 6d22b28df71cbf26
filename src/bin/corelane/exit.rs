//! Exit codes: one table, shown by `--help` and tested.

use std::fmt;

macro_rules! codes {
    ($($number:literal $name:ident $what:literal;)+) => {
        /// Why the program ends. The numbers are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Code { $(#[doc = $what] $name = $number,)+ }

        /// The whole table: number, meaning.
        pub const TABLE: &[(u8, &str)] = &[$(($number, $what),)+];
    };
}

codes! {
    0 Ok "success; a server also where it is told to stop before it is ready, and standard error says so";
    1 Failure "a wrong answer, or a failure that no other code names";
    2 Usage "wrong arguments, or an input file that can't be read";
    3 Config "a configuration, a manifest, a model or a core that can't be used as asked";
    4 Unreachable "an address that can't be bound, reached or kept";
    5 Refused "a request that was refused, or failed";
    6 Unclean "stopped before every accepted request was answered, and every answer taken";
}

/// The table as the end of `--help`.
pub fn help() -> String {
    let mut text = "Exit codes:".to_string();
    for (number, what) in TABLE {
        text.push_str(&format!("\n  {number}  {what}"));
    }
    text
}

/// Why a command failed: the code, and a sentence for standard error.
#[derive(Debug)]
pub struct Exit {
    /// The exit code.
    pub code: Code,
    /// What was wrong, where, and what would be right. Empty where all is said already.
    pub message: String,
}

impl Exit {
    /// An end with a message.
    pub fn new(code: Code, message: impl fmt::Display) -> Exit {
        Exit { code, message: message.to_string() }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What every command returns.
pub type Outcome = Result<(), Exit>;
