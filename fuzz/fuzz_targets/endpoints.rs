#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    corelane_fuzz::endpoints(input);
});
