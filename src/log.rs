//! The crate's one log macro. With feature `std` or `log` it writes through the `log` facade; on a
//! microcontroller with feature `defmt` it writes through defmt; otherwise the arguments are
//! type-checked and nothing is written.

/// `event!(warn, "text {}", value)`: level first (`error`, `warn`, `info`, `debug`, `trace`), then
/// a format string with positional `{}` only, which every backend understands.
#[cfg(any(feature = "std", feature = "log"))]
#[allow(unused_macros)]
macro_rules! event {
    ($level:ident, $format:literal $(, $value:expr)* $(,)?) => {
        ::log::$level!($format $(, $value)*)
    };
}

/// See the variant for the `log` facade: this one writes through defmt.
#[cfg(all(feature = "defmt", not(any(feature = "std", feature = "log"))))]
#[allow(unused_macros)]
macro_rules! event {
    ($level:ident, $format:literal $(, $value:expr)* $(,)?) => {
        ::defmt::$level!($format $(, $value)*)
    };
}

/// See the variant for the `log` facade: this one writes nothing.
#[cfg(not(any(feature = "std", feature = "log", feature = "defmt")))]
#[allow(unused_macros)]
macro_rules! event {
    ($level:ident, $format:literal $(, $value:expr)* $(,)?) => {{
        let _ = ($(&$value,)*);
    }};
}
