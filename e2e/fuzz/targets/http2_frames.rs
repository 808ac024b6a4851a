#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| linkerd_operator::fuzz_targets::http2_frames(data));
