//! Link it into your firmware: Rust, C and C++.
//!
//! corelane is a library first. A device application starts a runtime, keeps it for as long as the
//! device runs, and asks it for inferences, from one thread or from many. The runtime owns its worker
//! threads, one pinned to each core that you give it, and all the memory it will ever use is taken
//! when it starts.
//!
//! | | Rust | C | C++17 |
//! |---|---|---|---|
//! | what you link | the crate | `libcorelane.so` or `.a` | the same |
//! | what you include | [`runtime`](crate::runtime) | `corelane.h` | `corelane.hpp` |
//! | errors | `Result` | a status, and a message a thread | exceptions |
//! | who frees | `Drop` | `_free` and `_stop` | destructors |
//! | event loop | [`Completions`](crate::runtime::Completions) | an eventfd and callbacks | the same |
//!
//! # Rust
//! ```toml
//! [dependencies]
//! corelane = { path = "../corelane" }
//! ```
//! This is `examples/embed.rs`:
//!
//! ```ignore
#![doc = include_str!("../../examples/embed.rs")]
//! ```
//!
//! The crate never installs a global allocator by itself. To have the no-allocation contract counted
//! in your program too, declare [`CountingAllocator`](crate::sys::alloc::CountingAllocator) as yours;
//! operators without a kernel of corelane's own then also get their memory from a private heap, and
//! the contract covers them.
//!
//! # C
//! ```console
//! make lib
//! make install-lib PREFIX=$HOME/corelane
//! export PKG_CONFIG_PATH=$HOME/corelane/lib/pkgconfig LD_LIBRARY_PATH=$HOME/corelane/lib
//! cc -o embed examples/c/embed.c $(pkg-config --cflags --libs corelane)
//! ./embed models/mlp
//! ```
//! Where compiler and loader look by themselves (`sudo make install && sudo ldconfig`, or the packages
//! `corelane-dev` and `libcorelane1` of `make deb`) the variables aren't needed. The library can be inside the
//! program, alone or with all others. It needs a package of its own: of two libraries that lie side by side
//! the linker takes the shared one, with `pkg-config --static` too.
//!
//! ```console
//! cc -o embed examples/c/embed.c $(pkg-config --cflags --libs corelane-static)
//! ./embed models/mlp
//! cc -static -o embed examples/c/embed.c $(pkg-config --cflags --libs corelane-static)
//! ./embed models/mlp
//! ```
//! Under CMake it is `find_package(corelane)`, and `corelane::corelane` or `corelane::static` as a library to
//! link (`examples/c/CMakeLists.txt`); a prefix of your own is named with `-DCMAKE_PREFIX_PATH=$HOME/corelane`.
//!
//! For a board, pkg-config is told of the tree that `boards/build rpi5` has made, or `make install-lib
//! DESTDIR=...`, and of nothing else; for CMake it is `-DCMAKE_PREFIX_PATH=$tree/usr`. The board gets what lies in
//! `$tree/usr/lib/libcorelane.so.1*`, and has `libgcc_s.so.1` or gets that too.
//!
//! ```console
//! tree=$PWD/target/boards/rpi5/c
//! export PKG_CONFIG_LIBDIR=$tree/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tree
//! aarch64-linux-gnu-gcc -o embed examples/c/embed.c $(pkg-config --cflags --libs corelane)
//! qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$tree/usr/lib ./embed models/mlp
//! ```
//! This is `examples/c/embed.c`:
//!
//! ```c
#![doc = include_str!("../../examples/c/embed.c")]
//! ```
//!
//! # C++
//! The header is made of objects that own what the C functions give; there is nothing else to link.
//! This is `examples/cpp/embed.cpp`:
//!
//! ```cpp
#![doc = include_str!("../../examples/cpp/embed.cpp")]
//! ```
//!
//! # A microcontroller
//! No OS, no heap: it asks a server on the board over a UART (`corelane serve --serial`), by
//! [`client::serial`](crate::client::serial) over a protocol that repairs what the line damages
//! ([`wire::link`](crate::wire::link)).
//!
//! ```toml
//! [dependencies]
//! corelane = { path = "../corelane", default-features = false, features = ["defmt"] }
//! ```
//!
//! `boards/lm3s6965evb` is a whole firmware for a Cortex-M3, which runs in QEMU, with its own README. In C
//! it is one file, `examples/c/corelane_client.h`, C99 without anything but `<string.h>`. CI joins both to a
//! real server over lines that flip and drop bytes.
//!
//! What the client adds to a firmware that opens one model and infers with retries, besides the buffers that its
//! user chooses and the stack; the goals are 12 KiB of flash and 1 KiB of RAM. In Rust it is compiled by the
//! profile of `boards/footprint/Cargo.toml` (`opt-level = "z"`, fat link-time optimisation, one codegen unit) and
//! has with it the compiler's routines that copy and clear memory; in C those are the C library's, and are not
//! counted. For RISC-V the compiler must be told to let the linker shorten calls: LLD can from version 15 on, and
//! C compilers ask for it by themselves. `boards/footprint/measure.py` holds the table to what is built:
//!
#![doc = include_str!("../../boards/footprint/table.md")]
//!
//! The stack at its deepest in the firmware above (Cortex-M3, `opt-level = "s"`), which was painted before; the
//! client is a variable of `main` there, so that it is part of both numbers, and the log's buffers are not.
//! `tests/firmware/run.py` holds this table to what the firmware says:
//!
#![doc = include_str!("../../boards/lm3s6965evb/stack.md")]
//!
//! # How large the program is
//! A board's command has everything: two engines, all transports, and the lab that measures them. `boards/build`
//! fails where a program that it builds has over 2 % more or less than this says:
//!
#![doc = include_str!("../../boards/costs.md")]
//!
//! What makes it so large, and what else would, with rustc 1.96, linked by hand from the sources of 2026-11-30,
//! noon:
//!
//! | | bytes |
//! |---|--:|
//! | tract compiled for size, each crate in 16 units | 19 766 272 |
//! | and linked without lists that nobody reads (`boards/linker`) | 18 294 568 |
//! | and in one unit, what only loads for the least size (`boards/small.config`): as it is | 17 007 376 |
//! | as it is, but functions of the same instructions are not folded into one | 17 520 368 |
//! | as it is, but for glibc 2.36, whose loader takes packed relocations (`--glibc 2.36`) | 16 136 904 |
//! | as it is, but at a fixed address, where an attacker finds its code | 16 128 360 |
//! | as it is, but without any operator of ONNX | 12 016 192 |
//!
//! The last loads no model and is for comparison: a goal of 12 MB is out of reach while the command reads all that
//! tract reads. tract registers its operators in one list, whose parts are private, and each keeps alive what
//! infers its shapes, rewrites it and computes it, for every element type; the Fourier transforms (`DFT`, `STFT`)
//! alone are 0.8 MB. The tables for unwinding stay too: a panic in tract while a model loads is an error of that
//! model, and not the end of the process.
//!
//! # A program without libraries
//! `boards/build rpi5 --static` makes one program for any Linux on 64-bit ARM, whatever C library that has, or none:
//! Alpine, Yocto with musl, an initramfs with nothing else in it. It has musl and LLVM's unwinder in it, as Zig
//! compiles them, and the kernel loads it at an address of its choice, like any other. With Rust of rustup or of
//! Debian it is linked from the same (`boards/linker`). Small programs in C and Rust have run so in an emulator
//! without any library, with threads, unwinding and sockets; the whole command has not been built so yet.
//!
//! It opens no shared library, so feature `ort` does not compile for it. The C library is not made so: which musl
//! and which unwinder a firmware has is for its own toolchain to say.
//!
//! # What to know before it is on a device
//! **Three ways to an answer.** *Blocking*: one call that copies in and out
//! (`corelane_model_infer`), or fill, `submit`, `wait`. *Polled*: `submit`, then `poll` whenever it
//! suits you. *Callbacks*: `submit_callback`; the eventfd of `corelane_runtime_event_fd` becomes
//! readable, your loop calls `corelane_runtime_dispatch`, and that calls you back on your own thread.
//! corelane never calls you on a thread of its own, but for messages while it loads.
//!
//! **No copies.** `corelane_request_input` and `_output` are the slot's own memory. The worker reads
//! and writes there too when a request fills its plan alone.
//!
//! **Cores.** The default takes every core that the scheduler allows but the first. Name the cores
//! instead (`corelane_builder_set_cores`), keep your own threads off them, and the device answers in
//! the same time whatever else it does. A core that is not there is an error, not a suggestion.
//!
//! **Memory.** `corelane_runtime_write_stats` says what is taken. From `corelane_request_new` to
//! `_free` neither the calling thread nor a worker calls the allocator; in the C library
//! `corelane_runtime_hot_allocations` counts, for the workers, that it is so.
//!
//! **Bounds.** A queue has `max_queue_size` places. The request after that is refused at once
//! (`CORELANE_STATUS_QUEUE_FULL`), and so is one whose deadline can't be met: design for both.
//!
//! **Stopping.** Free every request, then `corelane_runtime_stop`; it says `IN_USE` if one is left. A
//! stopped runtime leaves no thread, no descriptor, no signal handler and no exit handler, so the
//! library can be unloaded.
//!
//! **Forking.** A child has none of the runtime's threads; its calls return `FORKED`. Fork before
//! you start, or `exec` at once.
//!
//! **Versions.** The header passes its version when a builder is made; a library that does not serve
//! it says `ABI_MISMATCH` with both numbers. The shared library's name (`libcorelane.so.1`) changes
//! with the upper half of that version. Structs that corelane fills may grow at their ends, and their size is
//! passed along.
//!
//! The full rules for C begin the header, and each function's own rule stands at it.
//!
//! # As a service instead
//! `make deb` makes a Debian package of the command with a systemd unit (`packaging/corelane.service`):
//! it tells systemd when it is ready, feeds the watchdog while its I/O thread turns and no worker is
//! stuck in a batch, and runs without privileges. Another process then asks through the Unix socket.
//!
//! An update of a model takes no restart: `systemctl reload corelane`, or `corelane reload`, which waits until the
//! new version serves or says why it does not. What may change so, and what may not, is on the page of
//! [`Reloader`](crate::runtime::Reloader); in a Rust program it is
//! [`Runtime::reload`](crate::runtime::Runtime::reload), in C `corelane_runtime_reload`.
