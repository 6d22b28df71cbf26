use super::*;

const H200: &str = "NVIDIA H200, GPU-0a, 580.65.06, 142000, 143771\n";

#[test]
fn the_drivers_answer_is_read() {
    let gpus = parse(&format!("{H200}\nTesla T4, GPU-1b, 580.65.06, 100, 15360\n")).unwrap();
    assert_eq!(gpus.len(), 2);
    assert_eq!((gpus[0].name.as_str(), gpus[0].driver.as_str()), ("NVIDIA H200", "580.65.06"));
    assert_eq!((gpus[1].free_bytes, gpus[1].total_bytes), (100 << 20, 15360 << 20));
    assert_eq!(parse(""), Ok(vec![]));
    for bad in [
        "No devices were found",
        "NVIDIA H200, GPU-0a, 580.65.06, [N/A], 143771",
        "NVIDIA H200, GPU-0a, 580.65.06, 1",
        ", GPU-0a, 580.65.06, 1, 2",
        "a, b, c, 18446744073709551615, 1",
    ] {
        assert!(parse(bad).unwrap_err().contains("nvidia-smi says"), "{bad}");
    }
}

#[test]
fn a_shortage_is_read_from_what_the_library_says() {
    let read = |said: &str| Shortage::read(said).map(|s| (s.asked_bytes, s.left_bytes));
    let limit = "BFCArena::AllocateRawInternal Available memory of 19968 is smaller than requested \
                 bytes of 1572864";
    assert_eq!(read(limit), Some((Some(1_572_864), Some(19_968))));
    let arena = "Failed to allocate memory for requested buffer of size 4294967296";
    assert_eq!(read(arena), Some((Some(4_294_967_296), None)));
    let cuda = "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);";
    assert_eq!(read(cuda), Some((None, None)));
    let cublas = "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0";
    assert_eq!(read(cublas), Some((None, None)));
    assert_eq!(read("No Op registered for Foo"), None);
    // More than a number holds is no number, but memory is short all the same.
    let huge = "Failed to allocate memory for requested buffer of size 99999999999999999999";
    assert_eq!(read(huge), Some((None, None)));
}

#[test]
fn the_sentence_names_what_was_asked_and_what_is_free() {
    let asked = Shortage { asked_bytes: Some(1 << 30), left_bytes: Some(1024) };
    let text = explain(asked, 0, Some(1 << 20), &parse(H200));
    for part in [
        "GPU 0: 1073741824 bytes (1024.0 MiB) were asked for",
        "leaves 1024 bytes",
        "gpu_memory_bytes_max is 1048576",
        "148897792000 bytes (142000.0 MiB) of",
        "free on NVIDIA H200",
        "smaller batches",
    ] {
        assert!(text.contains(part), "{text} lacks {part:?}");
    }
    let unsaid = Shortage { asked_bytes: None, left_bytes: None };
    let text = explain(unsaid, 3, None, &parse(H200));
    assert!(text.contains("more was asked for") && text.contains("shows 1 GPUs"), "{text}");
    let text = explain(unsaid, 0, None, &Err("the tool is gone".into()));
    assert!(text.contains("not known: the tool is gone"), "{text}");
}
