use super::*;
use crate::engine::ort::library::tests::Scratch;

/// What a driver does that has one GPU, whose memory is the host's. The GPU of this thread, the ways to wait,
/// and streams are kept; a copy without either is an error, as it is with the real one (201, 400).
const CODE: &str = r#"
#include <stddef.h>
#include <string.h>
static int waits, context, streams;
static _Thread_local void *current;
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuGetErrorString(int code, const char **text) { *text = "made up"; return 0; }
int cuDeviceGet(int *device, int number) { if (number) return 101; *device = 7; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (device != 7) return 101;
    *flags = 16 | waits; *active = 1; return 0;
}
int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    if (device != 7 || !(flags & 16)) return 1;
    waits = STUBBORN ? 1 : flags & 7; return 0;
}
int cuDevicePrimaryCtxRetain(void **to, int device) {
    if (device != 7) return 101;
    *to = &context; return 0;
}
int cuCtxSetCurrent(void *to) { current = to; return 0; }
int cuStreamCreate(void **to, unsigned flags) {
    if (!current) return 201;
    if (flags != 1) return 1;
    streams++; *to = &streams; return 0;
}
int cuStreamSynchronize(void *stream) { return stream == &streams ? 0 : 400; }
int cuStreamDestroy_v2(void *stream) { streams--; return stream == &streams ? 0 : 400; }
static int copy(void *to, const void *from, size_t len, void *stream) {
    if (!current) return 201;
    if (stream != &streams) return 400;
    if (!to) return 1;
    memcpy(to, from, len); return 0;
}
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t len, void *stream) {
    return copy((void *)to, from, len, stream);
}
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t len, void *stream) {
    return copy(to, (const void *)from, len, stream);
}
"#;

/// A driver of `code`, stubborn or not; `None` where there is no C compiler. It stays open without its file.
fn open(code: &str, stubborn: u8) -> Option<Result<Driver, String>> {
    let scratch = Scratch::new();
    let path = scratch.library("libdriver.so", code, "", &[&format!("-DSTUBBORN={stubborn}")])?;
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    Some(Driver::open(&name))
}

/// A driver whose GPU's memory is the host's; `None` where there is no C compiler.
pub fn made_up() -> Option<&'static Driver> {
    Some(Box::leak(Box::new(open(CODE, 0)?.unwrap())))
}

#[test]
fn threads_are_made_to_sleep_and_that_is_read_back() {
    let Some(driver) = made_up() else { return };
    driver.sleep_while_waiting(0).unwrap();
    let mut flags = 0;
    // SAFETY: the made-up driver writes both.
    assert_eq!(unsafe { (driver.0.state)(7, &mut flags, &mut 0) }, 0);
    assert_eq!(flags, 16 | SLEEP, "other flags are kept");
    driver.sleep_while_waiting(0).unwrap();
    let said = driver.sleep_while_waiting(1).unwrap_err();
    assert!(said.contains("cuDeviceGet failed with 101 made up"), "{said}");
    let stubborn = open(CODE, 1).unwrap().unwrap();
    let said = stubborn.sleep_while_waiting(0).unwrap_err();
    assert!(said.contains("keeps way 1 to wait instead of 4"), "{said}");
}

#[test]
fn bytes_are_copied_there_and_back() {
    let Some(driver) = made_up() else { return };
    let copies = driver.copies(0).unwrap();
    let mut device = [0u8; 4];
    let (there, mut back) = ([1, 2, 3, 4], [0u8; 4]);
    let address = device.as_mut_ptr() as u64;
    // SAFETY: the made-up driver copies at once, within this host.
    unsafe {
        copies.to_device(address, &there).unwrap();
        copies.wait().unwrap();
        copies.to_host(&mut back, address).unwrap();
    }
    copies.wait().unwrap();
    assert_eq!(back, there);
    // SAFETY: refused before anything is touched.
    let failed = unsafe { copies.to_device(0, &there) }.unwrap_err();
    assert_eq!(failed, Failed(1));
    let error = EngineError::from(failed);
    assert!(error.to_string().contains("failed to copy (CUDA error 1)"), "{error}");
    // On another thread the GPU must be entered first.
    std::thread::scope(|scope| {
        let (driver, context, stream) =
            (copies.driver, copies.context as usize, copies.stream as usize);
        scope.spawn(move || {
            let other = std::mem::ManuallyDrop::new(Copies {
                driver,
                context: context as Context,
                stream: stream as Stream,
            });
            let mut to = [0u8; 1];
            // SAFETY: as above.
            let copied = |to: &mut [u8]| unsafe { other.to_host(to, [9u8].as_ptr() as u64) };
            assert_eq!(copied(&mut to), Err(Failed(201)));
            other.enter().unwrap();
            assert_eq!((copied(&mut to), to), (Ok(()), [9]));
        });
    });
    assert!(driver.copies(1).err().unwrap().contains("cuDeviceGet failed with 101"));
}

#[test]
fn a_driver_that_is_none_is_refused_by_what_it_lacks() {
    let said = Driver::open(c"libcuda-that-is-not-there.so.1").err().unwrap();
    assert!(
        said.contains("libcuda-that-is-not-there.so.1 (of NVIDIA's driver) can't be"),
        "{said}"
    );
    let old = CODE.replace("cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxSetFlags");
    let Some(driver) = open(&old, 0) else { return };
    let said = driver.err().unwrap();
    assert!(said.contains("has no cuDevicePrimaryCtxSetFlags_v2"), "{said}");
    let broken = CODE.replace("return flags ? 1 : 0;", "return 100;");
    let said = open(&broken, 0).unwrap().err().unwrap();
    assert!(said.contains("cuInit failed with 100 made up"), "{said}");
}
