/* corelane: embedded inference with pinned workers and no heap on the request path.
 *
 * Generated from the sources (src/capi); a test holds it against them. What holds for all functions
 * comes first, each one's own rule stands at it.
 *
 * NAMES
 * - A function is `corelane_NOUN_VERB` or `corelane_NOUN_PROPERTY`, with a word more where that is
 *   not enough: `corelane_request_submit_callback`. Its first argument is the noun.
 * - A type is `corelane_NOUN`, a constant `CORELANE_NOUN_VALUE`.
 * - A number of bytes is called `bytes`, of microseconds `..._us`, of nanoseconds `..._ns`.
 * - `const` before the thing that a function is about says that the call does not end it.
 *
 * WHO OWNS WHAT
 * - `_new` and `_start` give the caller something that only it may, and must, end: with `_free` and
 *   `_stop` of the same noun. Nothing else is to be ended; `free()` is never right.
 * - What a function is given stays the caller's, and is not kept beyond the call: texts and lists are
 *   copied. `user` pointers are passed on, never looked at.
 * - What a function returns by pointer belongs to its first argument, and is gone with it.
 * - A request that was freed comes round again as another one, at the same address. Freed once more by
 *   mistake it may be somebody else's by then, and nothing can tell: forget a pointer when it is freed.
 * - Each function says its own rule under "Ownership".
 *
 * ERRORS
 * Functions that can fail return a `corelane_status`: 0 is done, above 0 no error (not yet), below
 * 0 an error. `corelane_status_text` has a static text for each, `corelane_error_message` the
 * calling thread's sentence with names and numbers, which every call that fails sets anew. Results are
 * written only on success. A null pointer where there should be none is an error, not a crash. No panic
 * crosses the border: it becomes `CORELANE_STATUS_PANIC`. C++ exceptions must not leave a callback.
 *
 * THREADS
 * - No thread exists before `corelane_runtime_start`; after `corelane_runtime_stop` there is none.
 *   Loading, reloading and stopping run on a thread of their own that ends with the call.
 * - Runtimes and models may be used by any number of threads. A request is used by one thread at a
 *   time; a second one is told `BUSY`. A builder is used by one thread at a time, and the rule is the
 *   caller's to keep.
 * - Callbacks are called by `corelane_runtime_dispatch`, on the thread that calls it, and nowhere
 *   else; a runtime without callbacks needs no dispatch. A callback may call everything but `_dispatch`
 *   and `_stop` of its runtime, which are `BUSY` there; while it waits, as in `_infer`, no other is called.
 * - No function that ends in `_wait`, `_infer`, `_dispatch`, `_start`, `_reload` or `_stop` belongs in a signal
 *   handler; no other one does either.
 *
 * PROCESSES
 * - The library sets no signal handler, changes no signal mask, registers nothing with `atexit`, and
 *   writes to no standard stream, but for the message of a caught panic.
 * - `dlclose` unloads it if every runtime is stopped; it can be loaded and started again.
 * - After `fork` the child has none of the parent's threads. Every function that would need them
 *   returns `FORKED` there (Linux 4.14 and later tell the child apart; earlier ones don't). The
 *   child's copy can't be stopped; its memory is the parent's until written, and `exec` ends it. The
 *   child may start runtimes of its own if no other thread of the parent was inside corelane or the
 *   allocator when it forked. Descriptors are closed by `exec`.
 *
 * VERSIONS
 * The program's version is compared when a builder is made. A `corelane_tensor` and a `corelane_receipt` may
 * get more fields at their ends, so their size is passed along; a `corelane_input` and a `corelane_output`
 * stand in arrays, and stay as they are.
 *
 * MEMORY
 * A program that links the C library has its Rust parts allocate through
 * `CountingAllocator`, so the contract is kept and counted:
 * `corelane_runtime_hot_allocations`. From `corelane_request_new` to `corelane_request_free`, and in
 * `corelane_model_infer` and `corelane_runtime_dispatch`, the calling thread allocates nothing either.
 * A Rust program that links the crate keeps its own allocator: the C library's is compiled in only by
 * `make lib`, which sets `--cfg corelane_c_library`.
 */
#ifndef CORELANE_H
#define CORELANE_H

/** A time to wait that has no end. */
#define CORELANE_WAIT_FOREVER UINT64_MAX

#if defined(__GNUC__) && !defined(__cplusplus)
/* Each enum's name is also that of its integer type; C++ takes the other branch. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wc++-compat"
#endif

#include <stddef.h>
#include <stdint.h>

/**
 * The version of the C interface: the upper half changes when something existing changes, the lower
 * when something is added. A program runs with a library of the same upper half and the same or a
 * larger lower half.
 */
#define CORELANE_ABI_VERSION 65537

/**
 * Axes of one row, at most.
 */
#define CORELANE_ROW_AXES_MAX 7

/**
 * What a function returned: 0 and above is no error, below 0 is one.
 */
enum corelane_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Done.
   */
  CORELANE_STATUS_OK = 0,
  /**
   * The answer is not there yet; no error.
   */
  CORELANE_STATUS_PENDING = 1,
  /**
   * A null pointer, a text that is not UTF-8, or a number that names nothing.
   */
  CORELANE_STATUS_INVALID_ARGUMENT = -1,
  /**
   * The header's version is not one that this library serves.
   */
  CORELANE_STATUS_ABI_MISMATCH = -2,
  /**
   * The configuration is wrong, or contradicts itself.
   */
  CORELANE_STATUS_CONFIG = -3,
  /**
   * A model can't be read, or is not what its manifest says.
   */
  CORELANE_STATUS_MODEL = -4,
  /**
   * A core is not allowed, or a pin did not take.
   */
  CORELANE_STATUS_AFFINITY = -5,
  /**
   * A count or a size is over its limit.
   */
  CORELANE_STATUS_LIMIT = -6,
  /**
   * The operating system refused something.
   */
  CORELANE_STATUS_SYSTEM = -7,
  /**
   * A worker could not start.
   */
  CORELANE_STATUS_WORKER = -8,
  /**
   * No model, tensor or label of that name or number.
   */
  CORELANE_STATUS_NOT_FOUND = -9,
  /**
   * A buffer has another size than the tensor.
   */
  CORELANE_STATUS_WRONG_SIZE = -10,
  /**
   * The request is not in the state that this function needs.
   */
  CORELANE_STATUS_WRONG_STATE = -11,
  /**
   * Another thread uses it at this moment.
   */
  CORELANE_STATUS_BUSY = -12,
  /**
   * Requests are not freed yet.
   */
  CORELANE_STATUS_IN_USE = -13,
  /**
   * The time to wait is over; what was waited for goes on.
   */
  CORELANE_STATUS_TIMEOUT = -14,
  /**
   * The process is the child of a `fork`: the runtime's threads are not in it.
   */
  CORELANE_STATUS_FORKED = -15,
  /**
   * A defect of corelane: a panic was caught.
   */
  CORELANE_STATUS_PANIC = -16,
  /**
   * `max_queue_size` requests wait, or every slot is in use.
   */
  CORELANE_STATUS_QUEUE_FULL = -17,
  /**
   * By measured service times the deadline can't be met.
   */
  CORELANE_STATUS_DEADLINE_UNMEETABLE = -18,
  /**
   * No rows, or more than a request may have.
   */
  CORELANE_STATUS_WRONG_ROWS = -19,
  /**
   * The model has no such priority.
   */
  CORELANE_STATUS_BAD_PRIORITY = -20,
  /**
   * The deadline is over the limit.
   */
  CORELANE_STATUS_DEADLINE_TOO_LONG = -21,
  /**
   * The runtime accepts nothing more.
   */
  CORELANE_STATUS_SHUTTING_DOWN = -22,
  /**
   * The deadline passed while the request waited.
   */
  CORELANE_STATUS_DEADLINE_EXPIRED = -23,
  /**
   * The request was given up.
   */
  CORELANE_STATUS_CANCELLED = -24,
  /**
   * The engine reported an error.
   */
  CORELANE_STATUS_MODEL_FAILED = -25,
  /**
   * The engine panicked; its worker goes on.
   */
  CORELANE_STATUS_MODEL_PANICKED = -26,
  /**
   * This build can't tell.
   */
  CORELANE_STATUS_UNAVAILABLE = -27,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum corelane_status corelane_status;
#else
typedef int32_t corelane_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What workers do when nothing waits.
 */
enum corelane_idle
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Sleep at once: the least power, a wake-up per request.
   */
  CORELANE_IDLE_PARK = 0,
  /**
   * Spin for a time that is given, then sleep.
   */
  CORELANE_IDLE_SPIN = 1,
  /**
   * Spin while that has lately paid.
   */
  CORELANE_IDLE_ADAPTIVE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum corelane_idle corelane_idle;
#else
typedef int32_t corelane_idle;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Element type of a tensor; all are little-endian.
 */
enum corelane_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * IEEE 754 single.
   */
  CORELANE_DTYPE_F32 = 0,
  /**
   * IEEE 754 half.
   */
  CORELANE_DTYPE_F16 = 1,
  /**
   * IEEE 754 double.
   */
  CORELANE_DTYPE_F64 = 2,
  /**
   * Signed 8 bit.
   */
  CORELANE_DTYPE_I8 = 3,
  /**
   * Unsigned 8 bit.
   */
  CORELANE_DTYPE_U8 = 4,
  /**
   * Signed 16 bit.
   */
  CORELANE_DTYPE_I16 = 5,
  /**
   * Unsigned 16 bit.
   */
  CORELANE_DTYPE_U16 = 6,
  /**
   * Signed 32 bit.
   */
  CORELANE_DTYPE_I32 = 7,
  /**
   * Unsigned 32 bit.
   */
  CORELANE_DTYPE_U32 = 8,
  /**
   * Signed 64 bit.
   */
  CORELANE_DTYPE_I64 = 9,
  /**
   * Unsigned 64 bit.
   */
  CORELANE_DTYPE_U64 = 10,
  /**
   * One byte, 0 or 1.
   */
  CORELANE_DTYPE_BOOL = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum corelane_dtype corelane_dtype;
#else
typedef int32_t corelane_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Why a batch was closed.
 */
enum corelane_close_reason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The largest batch that pays was there.
   */
  CORELANE_CLOSE_REASON_FULL = 0,
  /**
   * A preferred size was reached.
   */
  CORELANE_CLOSE_REASON_PREFERRED = 1,
  /**
   * The oldest request had waited as long as the model's delay.
   */
  CORELANE_CLOSE_REASON_DELAY = 2,
  /**
   * Waiting longer would have missed a deadline.
   */
  CORELANE_CLOSE_REASON_DEADLINE = 3,
  /**
   * The worker was idle and took what was there.
   */
  CORELANE_CLOSE_REASON_IDLE = 4,
  /**
   * The runtime is stopping.
   */
  CORELANE_CLOSE_REASON_DRAIN = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum corelane_close_reason corelane_close_reason;
#else
typedef int32_t corelane_close_reason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What a runtime is made from: models, worker cores. It can start any number of runtimes, one after
 * the other or at the same time.
 */
typedef struct corelane_builder corelane_builder;

/**
 * A model of a running runtime.
 */
typedef struct corelane_model corelane_model;

/**
 * A request. One thread uses it at a time; it may be handed to another one.
 */
typedef struct corelane_request corelane_request;

/**
 * A running runtime: its workers serve until it is stopped.
 */
typedef struct corelane_runtime corelane_runtime;

/**
 * What happened to a request that was answered.
 */
typedef struct corelane_receipt {
  /**
   * From submission to the instant a worker took the request.
   */
  uint64_t queue_ns;
  /**
   * Gathering the batch's rows, the whole batch.
   */
  uint64_t compute_input_ns;
  /**
   * Running the model, the whole batch.
   */
  uint64_t compute_infer_ns;
  /**
   * Scattering the batch's rows, the whole batch.
   */
  uint64_t compute_output_ns;
  /**
   * Rows in the batch.
   */
  uint32_t batch_size;
  /**
   * Which worker ran it.
   */
  uint32_t worker;
  /**
   * A `corelane_close_reason`.
   */
  int32_t close_reason;
  /**
   * Zero.
   */
  uint32_t reserved;
} corelane_receipt;

/**
 * Takes a message of `level` (1 error, 2 warning, 3 information, 4 debug, 5 trace). `target` says
 * which part of corelane speaks. Both texts are gone when the function returns. It is called on
 * whichever thread speaks, never on a worker that serves; it must return, throw nothing, and not
 * call `corelane_log_set`.
 */
typedef void (*corelane_log_callback)(int32_t level,
                                      const char *target,
                                      const char *message,
                                      void *user);

/**
 * An input or output of a model.
 */
typedef struct corelane_tensor {
  /**
   * Its name in the ONNX graph; lives as long as the runtime.
   */
  const char *name;
  /**
   * Bytes of one row. A request of `n` rows has `n` times as many.
   */
  uint64_t row_bytes;
  /**
   * Axes of one row, the first `axis_count` of them; the batch axis is not among them.
   */
  uint64_t row_shape[CORELANE_ROW_AXES_MAX];
  /**
   * Axes of one row.
   */
  uint32_t axis_count;
  /**
   * A `corelane_dtype`.
   */
  int32_t dtype;
} corelane_tensor;

/**
 * Bytes to read.
 */
typedef struct corelane_input {
  /**
   * The first byte; no alignment is asked for.
   */
  const void *data;
  /**
   * How many.
   */
  size_t bytes;
} corelane_input;

/**
 * Bytes to write.
 */
typedef struct corelane_output {
  /**
   * The first byte; no alignment is asked for.
   */
  void *data;
  /**
   * How many.
   */
  size_t bytes;
} corelane_output;

/**
 * Is told that a request has ended, on the thread that calls `corelane_runtime_dispatch`. From then
 * on the request is the program's again, to be read and freed, here or later. It must return and
 * throw nothing.
 */
typedef void (*corelane_callback)(struct corelane_request *request,
                                  corelane_status status,
                                  void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Where to read output `index`: `bytes` bytes, rows after rows, aligned for its type.
 *
 * Ownership: the bytes are the request's, and the caller's to read until it is freed.
 *
 * Errors:
 * `NOT_FOUND`: there is no such output; `WRONG_STATE`: it has no answer; `BUSY`, `FORKED`,
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_output(const struct corelane_request *request,
                                        size_t index,
                                        const void **data,
                                        size_t *bytes);

/**
 * Copies output `index` out.
 *
 * Ownership: `data` is the caller's.
 *
 * Errors:
 * `NOT_FOUND`: there is no such output; `WRONG_SIZE`; `WRONG_STATE`: it has no answer; `BUSY`,
 * `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_copy_output(const struct corelane_request *request,
                                             size_t index,
                                             void *data,
                                             size_t bytes);

/**
 * What happened to an answered request. `receipt_bytes` is `sizeof(corelane_receipt)`, as the
 * program knows it.
 *
 * Ownership: `receipt` is the caller's and is filled.
 *
 * Errors:
 * `WRONG_STATE`: it has no answer; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_receipt(const struct corelane_request *request,
                                         struct corelane_receipt *receipt,
                                         size_t receipt_bytes);

/**
 * Rows of a request that is being filled or was answered; 0 otherwise, or if `request` is null.
 *
 * Ownership: nothing changes hands.
 */
uint32_t corelane_request_rows(const struct corelane_request *request);

/**
 * The version of the C interface that this library has.
 *
 * Ownership: nothing changes hands.
 */
uint32_t corelane_abi_version(void);

/**
 * The library's own version, such as "0.1.0".
 *
 * Ownership: the text is static, and lives as long as the library is loaded.
 */
const char *corelane_library_version(void);

/**
 * Makes a builder for a program compiled against version `abi_version`. Programs call
 * `corelane_builder_new`, which passes the header's version.
 *
 * Ownership: the builder is the caller's, until `corelane_builder_free`.
 *
 * Errors:
 * `ABI_MISMATCH`: the library does not serve such programs.
 */
corelane_status corelane_builder_new_abi(uint32_t abi_version, struct corelane_builder **builder);

/**
 * Frees a builder; null is allowed. Runtimes that it started go on.
 *
 * Ownership: the builder is corelane's again, and gone.
 */
void corelane_builder_free(struct corelane_builder *builder);

/**
 * Adds a model: a directory with a manifest, or a bare `.onnx` file. It is read by
 * `corelane_runtime_start`.
 *
 * Ownership: `path` stays the caller's; it is copied.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `LIMIT`: too many models.
 */
corelane_status corelane_builder_add_model(struct corelane_builder *builder, const char *path);

/**
 * Takes everything that a `corelane.toml` says, in place of what the builder holds: models, the cache
 * directory, memory, worker cores or the board that plans them, the idle strategy, `on_load_error` and
 * real-time options. The counters say what came of it: `board`, `realtime`, `not_served`.
 *
 * What only `corelane serve` does is an error here, so that nothing is left out in silence: `metrics`,
 * `metrics_allow_non_loopback`, `[listen]`, `[log]`, and in `[runtime]` `io_core`, `drain_timeout_ms`
 * and a `model_control_mode` other than `none`.
 *
 * `[memory]` is for the whole process: runtimes that run at the same time ask for the same.
 *
 * Ownership: `path` stays the caller's.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `CONFIG`: the message names the key and the line. Then the builder is as before.
 */
corelane_status corelane_builder_read_config(struct corelane_builder *builder,
                                             const char *path);

/**
 * One pinned worker on each of `count` cores. The default is every core that the scheduler allows
 * but the first, which is left to the program. Each runtime takes its cores for itself: two with the
 * default have a worker each on the same cores, which a message of level 2 tells (`corelane_log_set`).
 *
 * Ownership: `cores` stays the caller's; it is copied.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `LIMIT`: none, or too many.
 */
corelane_status corelane_builder_set_cores(struct corelane_builder *builder,
                                           const uint32_t *cores,
                                           size_t count);

/**
 * `workers` workers that the scheduler may move about, for machines where pinning is not allowed.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `LIMIT`: none, or too many.
 */
corelane_status corelane_builder_set_unpinned(struct corelane_builder *builder, size_t workers);

/**
 * What workers do when nothing waits: a `corelane_idle`, and how long `CORELANE_IDLE_SPIN` spins
 * (at most a second). The default is `CORELANE_IDLE_PARK`.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_builder_set_idle(struct corelane_builder *builder,
                                          int32_t idle,
                                          uint32_t spin_us);

/**
 * How often a thread that waits for an answer looks for it before it sleeps. The default is 0.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_builder_set_wait_spins(struct corelane_builder *builder, uint32_t spins);

/**
 * Has messages up to `level` (0 none, 1 error, 2 warning, 3 information, 4 debug, 5 trace) given to
 * `callback`, in place of the one set before. A null `callback` ends that; when the call returns,
 * the former one is not running and will not be called again. May be called before any runtime is
 * started, and at any time.
 *
 * Ownership: `user` stays the program's; corelane only passes it on.
 *
 * Errors:
 * `WRONG_STATE` from within a callback; `UNAVAILABLE` where the program is written in Rust and has
 * installed a logger of its own.
 */
corelane_status corelane_log_set(corelane_log_callback callback, void *user, int32_t level);

/**
 * The model's name; null if `model` is null.
 *
 * Ownership: the text lives as long as the runtime.
 */
const char *corelane_model_name(const struct corelane_model *model);

/**
 * How many inputs the model has; 0 if `model` is null.
 *
 * Ownership: nothing changes hands.
 */
size_t corelane_model_input_count(const struct corelane_model *model);

/**
 * How many outputs the model has; 0 if `model` is null.
 *
 * Ownership: nothing changes hands.
 */
size_t corelane_model_output_count(const struct corelane_model *model);

/**
 * How many rows one request may have; 0 if `model` is null.
 *
 * Ownership: nothing changes hands.
 */
uint32_t corelane_model_rows_max(const struct corelane_model *model);

/**
 * Label `index` of the model's classes; null if there is none.
 *
 * Ownership: the text lives as long as the runtime.
 */
const char *corelane_model_label(const struct corelane_model *model, size_t index);

/**
 * Describes input `index`. `tensor_bytes` is `sizeof(corelane_tensor)`, as the program knows it.
 *
 * Ownership: `tensor` is the caller's and is filled; the name in it lives as long as the runtime.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `NOT_FOUND`: there is no such input.
 */
corelane_status corelane_model_describe_input(const struct corelane_model *model,
                                              size_t index,
                                              struct corelane_tensor *tensor,
                                              size_t tensor_bytes);

/**
 * Describes output `index`. `tensor_bytes` is `sizeof(corelane_tensor)`, as the program knows it.
 *
 * Ownership: `tensor` is the caller's and is filled; the name in it lives as long as the runtime.
 *
 * Errors:
 * `INVALID_ARGUMENT`; `NOT_FOUND`: there is no such output.
 */
corelane_status corelane_model_describe_output(const struct corelane_model *model,
                                               size_t index,
                                               struct corelane_tensor *tensor,
                                               size_t tensor_bytes);

/**
 * One whole request: copies `rows` rows in from the caller's buffers, waits for the answer at most
 * `timeout_us` microseconds (`CORELANE_WAIT_FOREVER`: until it ends), and copies it out. A request
 * whose time is over is given up. `receipt` may be null, else it is filled as by
 * `corelane_request_receipt`.
 *
 * Ownership: all buffers stay the caller's, and are not looked at after the call.
 *
 * Errors:
 * `INVALID_ARGUMENT`, `WRONG_SIZE`, `TIMEOUT`, `FORKED`, or why the request was refused or failed.
 */
corelane_status corelane_model_infer(const struct corelane_model *model,
                                     uint32_t rows,
                                     const struct corelane_input *inputs,
                                     size_t input_count,
                                     const struct corelane_output *outputs,
                                     size_t output_count,
                                     uint64_t timeout_us,
                                     struct corelane_receipt *receipt,
                                     size_t receipt_bytes);

/**
 * Takes a request of `rows` rows for `model`, to be filled in place. What an earlier request left
 * is still in its inputs.
 *
 * Ownership: the request is the caller's, until `corelane_request_free`, whatever becomes of it.
 *
 * Errors:
 * `WRONG_ROWS`; `QUEUE_FULL`: no slot is free, or too many requests are not freed;
 * `SHUTTING_DOWN`; `FORKED`; `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_new(const struct corelane_model *model,
                                     uint32_t rows,
                                     struct corelane_request **request);

/**
 * Frees a request, in whatever state; null is allowed. One that was submitted is given up: it does
 * not run if it still waits, and its callback is not called.
 *
 * Ownership: the request is corelane's again; what `corelane_request_input` and
 * `corelane_request_output` gave is not to be touched any more. Its address comes round again as that
 * of another request, so a second call with it may free that one, and say `OK`.
 *
 * Errors:
 * `BUSY`: another thread uses it, or its callback is due: then nothing has changed, and the callback
 * will be called; `WRONG_STATE`: it is free already; `FORKED`.
 */
corelane_status corelane_request_free(struct corelane_request *request);

/**
 * Where to write input `index`: `bytes` bytes, rows after rows, aligned for its type.
 *
 * Ownership: the bytes are the request's, and the caller's to write until it is submitted.
 *
 * Errors:
 * `NOT_FOUND`: there is no such input; `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`,
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_input(struct corelane_request *request,
                                       size_t index,
                                       void **data,
                                       size_t *bytes);

/**
 * Copies input `index` in.
 *
 * Ownership: `data` stays the caller's, and is not looked at after the call.
 *
 * Errors:
 * `NOT_FOUND`: there is no such input; `WRONG_SIZE`; `WRONG_STATE`: it was submitted; `BUSY`,
 * `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_set_input(struct corelane_request *request,
                                           size_t index,
                                           const void *data,
                                           size_t bytes);

/**
 * Microseconds from submission after which the request is not worth running; 0 takes the model's
 * default. A deadline that can't be met is refused when the request is submitted.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_set_deadline(struct corelane_request *request,
                                              uint32_t deadline_us);

/**
 * Priority; 1 is the highest, 0 takes the model's default. One that the model does not have is
 * refused when the request is submitted.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `WRONG_STATE`: it was submitted; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_set_priority(struct corelane_request *request, uint8_t priority);

/**
 * Hands the request over without waiting: then poll it, or wait for it.
 *
 * Ownership: the request stays the caller's; its inputs are corelane's from here on.
 *
 * Errors:
 * Why it was refused: `QUEUE_FULL`, `DEADLINE_UNMEETABLE`, `BAD_PRIORITY`, `DEADLINE_TOO_LONG`,
 * `SHUTTING_DOWN`; then it has ended, and can only be freed. Or `WRONG_STATE`: it was submitted
 * already; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_submit(struct corelane_request *request);

/**
 * Hands the request over; `callback` is called with it and `user` when it has ended, by the thread
 * that then calls `corelane_runtime_dispatch`: exactly once, unless the request is freed before.
 *
 * Ownership: the request is corelane's until its callback is called; only
 * `corelane_request_free` may be called before. `user` stays the program's.
 *
 * Errors:
 * As `corelane_request_submit`; then the callback is not called.
 */
corelane_status corelane_request_submit_callback(struct corelane_request *request,
                                                 corelane_callback callback,
                                                 void *user);

/**
 * Looks whether the answer is there: `OK` if so, `PENDING` if not yet.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * Why it failed; or `WRONG_STATE`: it was not submitted, or with a callback; `BUSY`, `FORKED`,
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_poll(struct corelane_request *request);

/**
 * Waits for the answer, at most `timeout_us` microseconds; `CORELANE_WAIT_FOREVER` waits until the
 * request ends, which its deadline or its worker brings about.
 *
 * Ownership: nothing changes hands.
 *
 * Errors:
 * `TIMEOUT`: it goes on, and may be waited for again; why it failed; or `WRONG_STATE`: it was not
 * submitted, or with a callback; `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_wait(struct corelane_request *request, uint64_t timeout_us);

/**
 * Submits the request and waits until it ends, which its deadline or its worker brings about.
 *
 * Ownership: the request stays the caller's.
 *
 * Errors:
 * Why it was refused, or failed; or `WRONG_STATE`, `BUSY`, `FORKED`, `INVALID_ARGUMENT`.
 */
corelane_status corelane_request_infer(struct corelane_request *request);

/**
 * Loads, checks and warms up every model, starts the workers, and returns when all are ready. No
 * thread of corelane runs before this call.
 *
 * Ownership: the runtime is the caller's, until `corelane_runtime_stop` succeeds; the builder
 * stays the caller's, and may be freed at once.
 *
 * Errors:
 * `MODEL`, `CONFIG`, `AFFINITY`, `LIMIT`, `WORKER`, `SYSTEM`, `INVALID_ARGUMENT`: the first thing
 * that is not as asked for. Then nothing keeps running. `CONFIG` too where a runtime that runs in this
 * process was started with another `[memory]`.
 */
corelane_status corelane_runtime_start(const struct corelane_builder *builder,
                                       struct corelane_runtime **runtime);

/**
 * Accepts nothing more, waits at most `timeout_us` microseconds (`CORELANE_WAIT_FOREVER`: as long as
 * it takes) until every accepted request has ended, then ends the workers and frees the runtime. No
 * other call with this runtime, its models or its requests may run meanwhile or come later.
 *
 * Ownership: if it returns `OK` or `WORKER` the runtime is gone, with its models. Else it is the
 * caller's still, and the call may be repeated.
 *
 * Errors:
 * `IN_USE`: requests are not freed (nothing has changed); `TIMEOUT`: requests still run; `BUSY`:
 * from within a callback; `WORKER`: a thread that had nothing to do did not end within 10 seconds, so the
 * library must stay loaded; `FORKED`; `INVALID_ARGUMENT`.
 */
corelane_status corelane_runtime_stop(struct corelane_runtime *runtime,
                                      uint64_t timeout_us);

/**
 * Reads the files of the model called `name` again and, if they changed, serves what they hold now, once it is
 * checked and warm. Takes as long as loading does; meanwhile other threads go on asking, and once it returns
 * every answer is the new version's. `changed` may be null, else it is set to 1 if there was another version, to 0
 * if not. Names, tensors and limits of a model never change so. Calls from several threads take turns.
 *
 * Ownership: nothing changes hands: the model and its requests stay what they are; `name` stays the
 * caller's.
 *
 * Errors:
 * The former version serves on. `NOT_FOUND`: the message lists the models; `MODEL`: the files can't be
 * loaded, do not pass the checks, or changed while they were read; `CONFIG`: they differ in what is fixed
 * at the start, which the message names; `SYSTEM`: there is no memory for two versions; `WORKER`: an
 * instance could not be made, or failed its warm-up; `TIMEOUT`: a worker did not end its batch within 10
 * seconds; `SHUTTING_DOWN`; `FORKED`; `INVALID_ARGUMENT`.
 */
corelane_status corelane_runtime_reload(const struct corelane_runtime *runtime,
                                        const char *name,
                                        uint32_t *changed);

/**
 * The model called `name`.
 *
 * Ownership: the model is the runtime's, and gone with it; `name` stays the caller's.
 *
 * Errors:
 * `NOT_FOUND`: the message lists the models; `INVALID_ARGUMENT`; `FORKED`.
 */
corelane_status corelane_runtime_find_model(const struct corelane_runtime *runtime,
                                            const char *name,
                                            const struct corelane_model **model);

/**
 * How many models the runtime serves; 0 if `runtime` is null.
 *
 * Ownership: nothing changes hands.
 */
size_t corelane_runtime_model_count(const struct corelane_runtime *runtime);

/**
 * Model `index`, in the order in which they were added; null if there is none.
 *
 * Ownership: the model is the runtime's, and gone with it.
 */
const struct corelane_model *corelane_runtime_model(const struct corelane_runtime *runtime,
                                                    size_t index);

/**
 * The descriptor of an eventfd, for the program's event loop: when it is readable, call
 * `corelane_runtime_dispatch`. Level or edge triggered; -1 if `runtime` is null or forked.
 *
 * Ownership: the descriptor is the runtime's: not to be read, written or closed.
 */
int corelane_runtime_event_fd(const struct corelane_runtime *runtime);

/**
 * Calls the callbacks of the requests that have ended, on the calling thread. Waits at most
 * `timeout_us` microseconds until there is one; 0 does not wait, `CORELANE_WAIT_FOREVER` has no end.
 * `called` may be null, else it is set to the number of callbacks that were called.
 *
 * Ownership: each request is its program's again when its callback is called.
 *
 * Errors:
 * `BUSY`: another thread dispatches, or this is within a callback; `SYSTEM`; `FORKED`;
 * `INVALID_ARGUMENT`.
 */
corelane_status corelane_runtime_dispatch(const struct corelane_runtime *runtime,
                                          uint64_t timeout_us,
                                          uint32_t *called);

/**
 * Counters and stage histograms as JSON text with a closing zero, as `corelane stats` prints them.
 * `needed` is set to the bytes that the text takes, its zero included; if `bytes` is less, nothing
 * is written. Not for the request path: it allocates.
 *
 * Ownership: `text` is the caller's; it may be null if `bytes` is 0.
 *
 * Errors:
 * `WRONG_SIZE`: the buffer is too short; `FORKED`; `INVALID_ARGUMENT`.
 */
corelane_status corelane_runtime_write_stats(const struct corelane_runtime *runtime,
                                             char *text,
                                             size_t bytes,
                                             size_t *needed);

/**
 * Calls of the system allocator that workers made since they were ready, of all runtimes in the
 * process: 0, if corelane keeps its promise.
 *
 * Ownership: `calls` is the caller's.
 *
 * Errors:
 * `UNAVAILABLE`: the library was built without the counting allocator; `INVALID_ARGUMENT`.
 */
corelane_status corelane_runtime_hot_allocations(uint64_t *calls);

/**
 * The name of a status, such as `queue_full`; `"unknown"` for a number that is none.
 *
 * Ownership: the text is static, and lives as long as the library is loaded.
 */
const char *corelane_status_name(int32_t status);

/**
 * What a status means, in a few words; never null.
 *
 * Ownership: the text is static, and lives as long as the library is loaded.
 */
const char *corelane_status_text(int32_t status);

/**
 * What went wrong in the calling thread's last call that returned an error: a sentence with names
 * and numbers, cut at 511 bytes. Empty before the first error. Calls that succeed leave it as it is.
 *
 * Ownership: the text is the thread's own; it changes with the thread's next error, and is gone
 * with the thread.
 */
const char *corelane_error_message(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#if defined(__GNUC__) && !defined(__cplusplus)
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Makes a builder, if the library serves programs that were compiled with this header.
 *
 * Ownership: the builder is the caller's, until `corelane_builder_free`.
 *
 * Errors: `ABI_MISMATCH`: it does not; the message has both versions.
 */
static inline corelane_status corelane_builder_new(struct corelane_builder **builder)
{
    return corelane_builder_new_abi(CORELANE_ABI_VERSION, builder);
}

#ifdef __cplusplus
}
#endif

#endif /* CORELANE_H */
