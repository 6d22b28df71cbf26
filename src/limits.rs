//! Every bound of the crate, in one place, with units last in the name and the relations between
//! them asserted at compile time. A bound that is reached is a typed error with the numbers in it.

// --- names and signatures ---

/// Longest model name, in bytes of ASCII.
pub const MODEL_NAME_LEN_MAX: usize = 64;
/// Longest tensor name that travels, in bytes of UTF-8; longer ONNX names are refused at load.
pub const TENSOR_NAME_LEN_MAX: usize = 64;
/// Inputs of a model, and outputs of a model.
pub const TENSORS_MAX: usize = 8;
/// Axes of a tensor in a signature, the batch axis not counted.
pub const ROW_AXES_MAX: usize = 7;
/// Text that goes with a typed error, in bytes of UTF-8; longer text is cut at a character.
pub const ERROR_TEXT_LEN_MAX: usize = 160;

// --- wire ---

/// Bytes before a header: magic, header length, two reserved, payload length.
pub const FRAME_PREFIX_BYTES: usize = 8;
/// Longest postcard-encoded message header, in bytes. The prefix carries its length in one byte.
pub const FRAME_HEADER_BYTES_MAX: usize = 255;
/// Longest payload of a frame other than `Infer` and its answer (signatures, statistics).
pub const FRAME_BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest payload of an `Infer` frame, and of its answer.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest client name in a `Hello`, in bytes of UTF-8.
pub const CLIENT_NAME_LEN_MAX: usize = 32;
/// Nonce of the authentication challenge, in bytes.
pub const AUTH_NONCE_BYTES: usize = 32;
/// Proof that answers it (HMAC-SHA256), in bytes.
pub const AUTH_PROOF_BYTES: usize = 32;
/// Shortest pre-shared key, in bytes.
pub const AUTH_KEY_BYTES_MIN: usize = 16;
/// Longest pre-shared key, in bytes.
pub const AUTH_KEY_BYTES_MAX: usize = 1024;
/// Tensors within a payload, and within a slot, begin at multiples of this.
pub const TENSOR_ALIGN_BYTES: usize = 8;

/// Encodings in an `OpenEncoded`, in bytes: seven at most for each input and output.
pub const ENCODINGS_BYTES_MAX: usize = 2 * TENSORS_MAX * 7;
/// Ways in which one connection may open models with encodings, over all models.
pub const ENCODED_OPENS_COUNT_MAX: usize = 8;

// --- serial link ---

/// Header of a link frame, in bytes.
pub const LINK_HEADER_BYTES: usize = 10;
/// Checksum of a link frame, in bytes.
pub const LINK_CHECK_BYTES: usize = 4;
/// Shortest receive buffer for a link frame, in bytes: header, an offer or a few bytes, checksum.
pub const LINK_FRAME_BYTES_MIN: usize = 32;
/// Longest link frame before stuffing, in bytes. Longer ones would save little and lose more to an
/// error.
pub const LINK_FRAME_BYTES_MAX: usize = 1024;
/// Bytes of one direction's stream that are sent and not acknowledged; positions are 16 bits.
pub const LINK_WINDOW_BYTES_MAX: usize = 32 * 1024 - 1;
/// Times that the same bytes are sent without progress before the session is given up.
pub const LINK_RESEND_TIMES_MAX: u8 = 10;
/// A side that waits for its peer asks for a sign of life after so long a silence, in milliseconds.
pub const LINK_KEEP_ALIVE_MS: u64 = 500;
/// A session whose peer is silent for so long is over, in milliseconds: while it is waited for, and
/// on the accepting side always.
pub const LINK_SILENCE_MS_MAX: u64 = 5_000;
/// Longest pause between two attempts to open a session, in milliseconds.
pub const LINK_OPEN_PAUSE_MS_MAX: u64 = 1_000;
/// Longest allowance for the peer's own delay in acknowledging, in milliseconds.
pub const LINK_LATENCY_MS_MAX: u64 = 10_000;
/// Slowest line whose timeouts are right.
pub const LINK_BAUD_MIN: u32 = 300;

/// Serial ports of one server.
pub const SERIAL_LISTENERS_MAX: usize = 8;
/// Bytes of each direction that a serial port buffers.
pub const SERIAL_BUFFER_BYTES: usize = 8 * 1024;

// --- runtime ---

/// Models that one runtime serves.
pub const MODELS_MAX: usize = 32;
/// Workers of one runtime; worker sets travel as 64-bit masks.
pub const WORKERS_MAX: usize = 64;
/// Priority levels of a model; 1 is the highest.
pub const PRIORITY_LEVELS_MAX: usize = 4;
/// Compiled batch sizes of a model.
pub const BATCH_SIZES_MAX: usize = 16;
/// Largest batch size.
pub const BATCH_ROWS_MAX: usize = 1024;
/// Requests in one batch; a batch of many single-row requests is the common case.
pub const BATCH_REQUESTS_MAX: usize = 256;
/// Slots of a model: requests waiting, running, being filled or being answered.
pub const SLOTS_PER_MODEL_MAX: usize = 4096;
/// Bytes of all slots of one model.
pub const SLOT_BYTES_PER_MODEL_MAX: usize = 1024 * 1024 * 1024;
/// Default arena budget of one model on one worker, over all its batch sizes.
pub const ARENA_BYTES_MAX_DEFAULT: usize = 1024 * 1024 * 1024;
/// Largest model file that is read.
pub const MODEL_FILE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Largest manifest, configuration, label file, gate or report that is read, in bytes.
pub const TEXT_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Largest `.npy` file that is read, in bytes: goldens, and inputs of the command line.
pub const NPY_FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Largest trace that is read, and largest file of payloads beside one, in bytes.
pub const TRACE_FILE_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Largest file of a measured run that is read back, in bytes: its metrics, a figure, folded stacks.
pub const RUN_FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Nodes and constants of a graph.
pub const GRAPH_NODES_COUNT_MAX: usize = 32 * 1024;
/// Largest tensor of a graph, for one row and in a batch.
pub const GRAPH_TENSOR_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// What may be computed of constants while a graph is typed, all together.
pub const GRAPH_FOLDED_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Alignment of slots and arenas: a cache line, and the widest vector register.
pub const BUFFER_ALIGN_BYTES: usize = 64;

// --- boards and the machine ---

/// Cores of a machine, as many as an affinity set can name.
pub const CORES_MAX: usize = 1024;
/// Kinds of cores that are told apart by their speed.
pub const CORE_KINDS_COUNT_MAX: usize = 4;
/// Largest board file, in bytes.
pub const BOARD_FILE_BYTES_MAX: usize = 64 * 1024;
/// Clusters, serial ports or figures of a board, each.
pub const BOARD_RECORDS_MAX: usize = 64;
/// Most that is read of one file under `/proc` or `/sys`, in bytes; `cpuinfo` of many cores is long.
pub const SYSTEM_FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

// --- ONNX Runtime ---

/// How long a shared library may take to be loaded by the process that tries it, in milliseconds. With
/// reading the file, an answer comes within five seconds.
pub const LIBRARY_TRIAL_MS_MAX: u64 = 4_000;
/// Longest profile that is read to see which provider runs which node, in bytes.
pub const ORT_PROFILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How long a worker that is in a batch is waited for, by a reload and by the end of a runtime, in milliseconds.
pub const WORKER_PATIENCE_MS: u64 = 10_000;
/// How long workers have to end at the least, once a runtime has stopped them: without a batch that takes
/// microseconds, and on a busy machine longer.
pub const WORKER_END_MS_MIN: u64 = 1_000;

// --- transport ---

/// Connections of one server, over all listeners.
pub const CONNECTIONS_MAX: usize = 256;
/// Requests to reload that wait for the one that is carried out.
pub const RELOADS_WAITING_REQUESTS_MAX: usize = 8;
/// Requests in flight on one connection.
pub const IN_FLIGHT_PER_CONNECTION_MAX: usize = 256;
/// Bytes that a connection reads ahead; small frames are parsed from here.
pub const CONNECTION_READ_BYTES: usize = 16 * 1024;
/// Longest answer that a worker sends by itself, in bytes: longer copies are for the I/O thread.
pub const DIRECT_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Longest run for which a worker in the I/O thread's seat lets the connections wait, in microseconds,
/// as its service time was measured.
pub const LONE_RUN_US_MAX: u64 = 50;
/// Requests that one connection must have asked one at a time before its next one is a worker's to read.
pub const LONE_STREAK_COUNT_MIN: u32 = 8;
/// How long a worker stays in the I/O thread's seat when no request comes, in milliseconds.
pub const LONE_IDLE_MS_MAX: u64 = 1_000;
/// How long the seat may stand open, while a model runs, before the I/O thread takes it home, in
/// milliseconds.
pub const SEAT_LOOK_MS: u64 = 100;
// A run that was known to be short ends before anybody looks, and looks end while nothing comes.
const _: () = assert!(LONE_RUN_US_MAX * 100 < SEAT_LOOK_MS * 1_000);
const _: () = assert!(SEAT_LOOK_MS < LONE_IDLE_MS_MAX);
/// Bytes of small answers (not tensors) that wait for a slow reader.
pub const CONNECTION_REPLY_BYTES_MAX: usize = 128 * 1024;
/// A connection whose reader takes nothing for so long is closed, in milliseconds.
pub const WRITE_STALL_MS_MAX: u64 = 5_000;
/// A connection that leaves a frame (or its hello) half sent for so long is closed, in milliseconds.
pub const HALF_FRAME_MS_MAX: u64 = 5_000;

/// What is held by others who keep it waiting longer than so, in milliseconds, is given to who needs it: the
/// slot of a payload that comes too slowly, the place of a connection that has not said hello.
pub const PRESSURE_GRACE_MS: u64 = 50;
/// Longest payload whose slot is taken only when all of it is there, in bytes; half of it holds none.
pub const LATE_SLOT_PAYLOAD_BYTES_MAX: usize = CONNECTION_READ_BYTES / 4;
/// The part of all connections that TCP leaves to others, where there is a Unix socket.
pub const CONNECTIONS_NOT_TCP_PERCENT: usize = 25;
/// Descriptors that a server needs besides those of its connections: listeners, timers, files, metrics.
pub const DESCRIPTORS_BESIDES_CONNECTIONS: usize = METRICS_CONNECTIONS_MAX + 32;

/// A closed connection waits so long for its peer to close too, in milliseconds, so that what was
/// sent last is not lost to a reset.
pub const LINGER_MS_MAX: u64 = 500;
/// Slowest payload that is not called half sent, in bytes per millisecond, after the first
/// `HALF_FRAME_MS_MAX`.
pub const PAYLOAD_BYTES_PER_MS_MIN: u64 = 100;

/// Arrivals that a server remembers, where it records them.
pub const ARRIVALS_ENTRIES_MAX: usize = 4_000_000;
/// The same, where nothing else is asked for.
pub const ARRIVALS_ENTRIES_DEFAULT: usize = 100_000;

/// Payloads that a server remembers, where it records them, in bytes.
pub const ARRIVALS_PAYLOAD_BYTES_MAX: usize = 1024 * 1024 * 1024;

/// Default of `max_queue_size`, unless slots for so many take more than `QUEUE_BYTES_DEFAULT`.
pub const MAX_QUEUE_SIZE_DEFAULT: usize = 64;
/// Bytes of slots for requests that wait, where `max_queue_size` is not set. They are all touched at
/// start; a request of 8 images of 600 KB takes one of 5 MB, whether it has 8 rows or one.
pub const QUEUE_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// Longest deadline that a request may carry, in microseconds (one hour).
pub const TIMEOUT_US_MAX: u32 = 3_600_000_000;
/// Longest `max_queue_delay_microseconds`, in microseconds (one second).
pub const QUEUE_DELAY_US_MAX: u32 = 1_000_000;

// --- log ---

/// Longest record of a thread that serves, in bytes; events have numbers and short names.
pub const LOG_RECORD_BYTES_MAX: usize = 256;
/// Smallest ring of a thread's records, in bytes.
pub const LOG_RING_BYTES_MIN: usize = 512;
/// Largest ring of a thread's records, in bytes.
pub const LOG_RING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The same, where nothing else is asked for: some two thousand records.
pub const LOG_RING_BYTES_DEFAULT: usize = 64 * 1024;
/// Longest message that goes into a log file, in bytes; it is cut there.
pub const LOG_TEXT_BYTES_MAX: usize = 4096;
/// Largest head of a log file, which describes its records, in bytes.
pub const LOG_HEAD_BYTES_MAX: usize = 64 * 1024;
/// Smallest size at which a log file is put aside, in bytes.
pub const LOG_FILE_BYTES_MIN: u64 = 64 * 1024;
/// Largest size at which a log file is put aside, in bytes.
pub const LOG_FILE_BYTES_MAX: u64 = 1 << 40;
/// The same, where nothing else is asked for.
pub const LOG_FILE_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Bytes of lines that wait for a slow reader of standard error; what comes then is lost, and counted.
pub const LOG_PRINT_BYTES_MAX: usize = 256 * 1024;
/// Bytes that are printed at once, in whole lines.
pub const LOG_PRINT_PIECE_BYTES: usize = 4 * 1024;
/// How long a program that ends waits for a reader who takes nothing, in milliseconds.
pub const PRINT_PATIENCE_MS_MAX: u64 = 5_000;
/// How long it waits for such readers at the least, all together, where a drain has left it less, in milliseconds.
pub const PRINT_PATIENCE_MS_MIN: u64 = 2_000;
/// Panics that wait to be told.
pub const PANICS_COUNT_MAX: usize = 8;
/// Longest text of a panic that is told, with its place, in bytes; it is cut there.
pub const PANIC_TEXT_BYTES_MAX: usize = 512;

// --- metrics over HTTP ---

/// Connections of the metrics endpoint at a time.
pub const METRICS_CONNECTIONS_MAX: usize = 16;
/// Longest head of a request to it, in bytes.
pub const METRICS_HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long a request to it and the reading of its answer may take, in milliseconds.
pub const METRICS_PATIENCE_MS_MAX: u64 = 5_000;

// --- lab ---

/// Requests that one run of the load generator records.
pub const LAB_REQUESTS_MAX: usize = 4_000_000;
/// Highest rate of a schedule, in requests per second.
pub const LAB_REQUESTS_PER_S_MAX: u32 = 1_000_000;
/// Longest schedule, in seconds.
pub const LAB_RUN_S_MAX: u32 = 86_400;
/// Timed runs of one figure; each one's time is kept.
pub const LAB_ITERATIONS_COUNT_MAX: u32 = 1_000_000;

const _: () = assert!(FRAME_HEADER_BYTES_MAX <= u8::MAX as usize);
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(FRAME_PREFIX_BYTES + FRAME_HEADER_BYTES_MAX <= CONNECTION_READ_BYTES);
// An error answer (its text, five numbers of ten bytes at most) fits a header.
const _: () = assert!(ERROR_TEXT_LEN_MAX + 5 * 10 + 4 <= FRAME_HEADER_BYTES_MAX);
// The other headers with text, and the challenge, fit too.
const _: () = assert!(CLIENT_NAME_LEN_MAX + 8 <= FRAME_HEADER_BYTES_MAX);
const _: () = assert!(MODEL_NAME_LEN_MAX + 8 <= FRAME_HEADER_BYTES_MAX);
const _: () = assert!(MODEL_NAME_LEN_MAX + ENCODINGS_BYTES_MAX + 12 <= FRAME_HEADER_BYTES_MAX);
const _: () = assert!(AUTH_NONCE_BYTES < FRAME_HEADER_BYTES_MAX);
// The list of models fits a body.
const _: () = assert!(MODELS_MAX * (MODEL_NAME_LEN_MAX + 8) <= FRAME_BODY_BYTES_MAX);
// So does what came of a reload of each, with some text for its reason.
const _: () = assert!(MODELS_MAX * (MODEL_NAME_LEN_MAX + 512) <= FRAME_BODY_BYTES_MAX);
// Whatever one frame is answered with fits the replies of an idle connection.
const _: () = assert!(
    FRAME_PREFIX_BYTES + FRAME_HEADER_BYTES_MAX + FRAME_BODY_BYTES_MAX
        <= CONNECTION_REPLY_BYTES_MAX
);
const _: () = assert!(CONNECTIONS_MAX < u16::MAX as usize);
// A payload that is waited for fits the buffer behind whatever head it has.
const _: () = assert!(
    LATE_SLOT_PAYLOAD_BYTES_MAX + FRAME_PREFIX_BYTES + FRAME_HEADER_BYTES_MAX
        <= CONNECTION_READ_BYTES
);
// Numbers of models opened with encodings follow those of the models; requests name them in a byte.
const _: () = assert!(MODELS_MAX + ENCODED_OPENS_COUNT_MAX <= u16::MAX as usize);
const _: () = assert!(ENCODED_OPENS_COUNT_MAX < u8::MAX as usize);
// Half the space of positions, so that before and after can be told apart.
const _: () = assert!(LINK_WINDOW_BYTES_MAX < 1 << 15);
const _: () = assert!(LINK_FRAME_BYTES_MAX <= LINK_WINDOW_BYTES_MAX);
const _: () = assert!(LINK_HEADER_BYTES + LINK_CHECK_BYTES + 8 <= LINK_FRAME_BYTES_MIN);
// Several signs of life may be lost before a session is.
const _: () = assert!(LINK_SILENCE_MS_MAX >= 4 * LINK_KEEP_ALIVE_MS);
// A ring holds a record, and a log file its head and more than one message.
const _: () = assert!(LOG_RECORD_BYTES_MAX + 2 <= LOG_RING_BYTES_MIN);
const _: () = assert!(LOG_TEXT_BYTES_MAX <= u16::MAX as usize / 2);
const _: () = assert!(LOG_HEAD_BYTES_MAX as u64 <= LOG_FILE_BYTES_MIN);
const _: () = assert!(PRINT_PATIENCE_MS_MIN <= PRINT_PATIENCE_MS_MAX);
// A worker set is one word.
const _: () = assert!(WORKERS_MAX <= u64::BITS as usize);
const _: () = assert!(BATCH_ROWS_MAX <= u16::MAX as usize);
const _: () = assert!(WORKERS_MAX <= CORES_MAX && CORES_MAX <= u16::MAX as usize);
const _: () = assert!(SLOTS_PER_MODEL_MAX <= u16::MAX as usize);
const _: () = assert!(IN_FLIGHT_PER_CONNECTION_MAX <= SLOTS_PER_MODEL_MAX);
const _: () = assert!(GRAPH_FOLDED_BYTES_MAX <= GRAPH_TENSOR_BYTES_MAX);
const _: () = assert!(GRAPH_TENSOR_BYTES_MAX <= MODEL_FILE_BYTES_MAX);
const _: () = assert!(BUFFER_ALIGN_BYTES.is_multiple_of(TENSOR_ALIGN_BYTES));
// One whole signature fits a body: names, shapes and types of every tensor.
const _: () = assert!(
    2 * TENSORS_MAX * (TENSOR_NAME_LEN_MAX + 4 + 5 * ROW_AXES_MAX) + MODEL_NAME_LEN_MAX + 64
        <= FRAME_BODY_BYTES_MAX
);
