/* A client of corelane's serial link for microcontrollers: one file, C99, no heap, no operating system.
 *
 * In one C file, and only there:
 *
 *     #define CORELANE_CLIENT_IMPLEMENTATION
 *     #include "corelane_client.h"
 *
 * Everywhere else, include it without the definition. Then:
 *
 *     static corelane_client client;
 *     corelane_client_model mlp;
 *     float in[64], out[10];
 *
 *     corelane_client_init(&client, &port, 921600, boot_count);
 *     status = corelane_client_open(&client, "mlp", &mlp, 1000000);
 *     if (status == CORELANE_CLIENT_OK)
 *         status = corelane_client_infer(&client, &mlp, 1, in, sizeof in, out, sizeof out, 1000000, NULL);
 *
 * Where the line is the latency, float32 tensors may travel as halves or as bytes: say so with
 * `corelane_client_open_encoded`, and convert with `corelane_client_f16`, `corelane_client_i8` and their
 * inverses. The client itself has no floating point but in those four.
 *
 * What it needs of you is a `corelane_client_port`: bytes out, bytes in, and a clock. Between two calls of
 * `read`, the receiver (its interrupt's or its DMA's buffer) must hold what comes while a frame is sent:
 * CORELANE_CLIENT_WINDOW_BYTES and an eighth more for the frames around them. It need not hold more, whatever
 * the server has to say. A byte that is lost or damaged all the same costs time and nothing else.
 *
 * Byte order: tensors travel little-endian, and are copied as they are; so does this client's machine have to
 * be, or the caller has to swap.
 *
 * One client is used by one thread (or one interrupt level) at a time; several clients are independent.
 *
 * The link and the messages are specified in the crate's documentation, `wire` and `wire::link`; this client
 * speaks version 1 of the link and versions 1 and 2 of the messages. It sends a request at a time, waits after a loss for as long as the line's speed
 * and the allowance say (it does not measure round trips), and never repeats a request by itself.
 */
#ifndef CORELANE_CLIENT_H
#define CORELANE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest frame in bytes, 32 to 1024; the client holds two. The link's overhead is 16 bytes a frame. */
#ifndef CORELANE_CLIENT_FRAME_BYTES
#define CORELANE_CLIENT_FRAME_BYTES 256
#endif
/* What the server may send before it is acknowledged, in bytes, up to 32767. */
#ifndef CORELANE_CLIENT_WINDOW_BYTES
#define CORELANE_CLIENT_WINDOW_BYTES 1024
#endif
/* What both sides' drivers and adapters may add to the line's own time, in microseconds. */
#ifndef CORELANE_CLIENT_LATENCY_US
#define CORELANE_CLIENT_LATENCY_US 50000
#endif
/* Tensors that one model is opened with an encoding for, at most 16; each takes 7 bytes of the client. */
#ifndef CORELANE_CLIENT_ENCODINGS_MAX
#define CORELANE_CLIENT_ENCODINGS_MAX 4
#endif
/* Inputs of a model, and outputs of a model, as the protocol limits them. */
#define CORELANE_CLIENT_TENSORS_MAX 8
/* Longest name of a model, as the protocol limits it. */
#define CORELANE_CLIENT_NAME_LEN_MAX 64

/* How a call ended. */
typedef enum {
    /* Done. */
    CORELANE_CLIENT_OK = 0,
    /* An argument can't be: a name too long, a length other than the model's, no rows. Nothing was asked. */
    CORELANE_CLIENT_ARGUMENT,
    /* The port's `read` or `write` failed. */
    CORELANE_CLIENT_PORT,
    /* The time was up. The server drops the request if it had not begun with it. */
    CORELANE_CLIENT_DEADLINE,
    /* The link's session ended: the server restarted, or the line was silent or useless for too long. The
     * request may or may not have been executed. For a model, asking again costs time and nothing else. */
    CORELANE_CLIENT_LINK_LOST,
    /* The server refused the request or failed: `client.error` says why. */
    CORELANE_CLIENT_SERVER,
    /* What the server said is not the protocol. */
    CORELANE_CLIENT_PROTOCOL,
    /* The server speaks version 1 of the protocol only: it knows no encodings. Nothing was asked. */
    CORELANE_CLIENT_VERSION,
    /* The server wants a proof of a pre-shared key, which this client does not have: a serial line is trusted,
     * and corelane's own server asks for no key on one. */
    CORELANE_CLIENT_KEY_WANTED
} corelane_client_status;

/* How the elements of a float32 tensor travel. */
typedef enum {
    /* As they are, four bytes. */
    CORELANE_CLIENT_F32 = 0,
    /* IEEE 754 half precision, two bytes. */
    CORELANE_CLIENT_F16 = 1,
    /* One signed byte, which stands for (byte - zero point) * scale. */
    CORELANE_CLIENT_I8 = 2
} corelane_client_encoding_kind;

/* What is asked for one tensor. */
typedef struct {
    /* Its position, from 0, among the inputs or the outputs. */
    uint8_t position;
    /* 0: among the inputs, 1: among the outputs. */
    uint8_t output;
    /* A `corelane_client_encoding_kind`. */
    uint8_t kind;
    /* For CORELANE_CLIENT_I8: the byte that stands for 0, and the distance between two values, which must
     * be positive, finite and not subnormal. */
    int8_t zero_point;
    float scale;
} corelane_client_encoding;

/* The line, and time. Each gets `context`. */
typedef struct {
    void *context;
    /* Reads what is there, up to `len` bytes. If nothing is, it may wait for the first byte for up to
     * `wait_us` microseconds (sleep, feed the watchdog), or return at once. Returns how many, or -1. */
    int (*read)(void *context, uint8_t *bytes, size_t len, uint32_t wait_us);
    /* Sends all of the bytes, however long that takes. Returns 0, or -1. */
    int (*write)(void *context, const uint8_t *bytes, size_t len);
    /* Microseconds of any clock that does not stop; it may wrap around, after 2^32 and not before. */
    uint32_t (*now_us)(void *context);
} corelane_client_port;

/* What a server's error says; the codes are in the crate's documentation, `wire::ErrorCode`. */
typedef struct {
    /* Its number. */
    uint16_t code;
    /* Two numbers; the code says of what. */
    uint64_t a, b;
} corelane_client_error;

/* A model of the server. */
typedef struct {
    /* As it was given to `corelane_client_open`, which does not copy it. */
    const char *name;
    /* As they were given to `corelane_client_open_encoded`, which does not copy them; null: none. */
    const corelane_client_encoding *encodings;
    uint8_t encodings_len;
    /* Most rows of one request. */
    uint16_t rows_max;
    /* Lowest priority; 1 is the highest. */
    uint8_t priority_levels;
    /* Whether requests may have several rows. */
    uint8_t batched;
    /* Bytes of one row of each tensor, as it travels. */
    uint32_t input_row_bytes[CORELANE_CLIENT_TENSORS_MAX];
    uint32_t output_row_bytes[CORELANE_CLIENT_TENSORS_MAX];
    uint8_t inputs, outputs;
    /* The client's. */
    uint16_t id, generation;
} corelane_client_model;

/* What happened to a request at the server. */
typedef struct {
    /* Waiting, gathering the batch, computing, scattering it, in nanoseconds. */
    uint64_t queue_ns, compute_input_ns, compute_infer_ns, compute_output_ns;
    /* Rows in the batch. */
    uint16_t batch_size;
    /* Why the batch was closed: 0 full, 1 preferred, 2 delay, 3 deadline, 4 idle, 5 drain. */
    uint8_t close_reason;
    /* Which worker computed it. */
    uint8_t worker;
} corelane_client_receipt;

/* What happened on the line; each counts modulo 2^32. */
typedef struct {
    uint32_t frames_sent, frames_received;
    /* Units of the line that were cut short, wrong in their checksum, or longer than a frame. */
    uint32_t damaged;
    /* Data frames that carried something sent before. */
    uint32_t retransmits;
} corelane_client_counters;

/* One client of one line, about 1 KB with the default frames. Its fields are its own, but for `error` and
 * `counters`. */
typedef struct {
    /* After CORELANE_CLIENT_SERVER. */
    corelane_client_error error;
    corelane_client_counters counters;

    corelane_client_port port;
    uint32_t baud;
    uint32_t nonce;
    uint32_t next_id;
    uint16_t generation;
    uint8_t phase;
    uint8_t status;
    /* Of the protocol, as both speak it in this session. */
    uint8_t version;

    /* The link: our stream. A message is `head`, then `payload`; its first byte is at `base`. */
    const uint8_t *payload;
    size_t payload_len, sent_len, acked_len;
    uint16_t base, edge;
    uint16_t session, peer_frame;
    size_t furthest_len;
    uint8_t head[CORELANE_CLIENT_NAME_LEN_MAX + 24 + 7 * CORELANE_CLIENT_ENCODINGS_MAX];
    uint8_t head_len;
    uint8_t count, round, tries, resend_armed;
    uint32_t resend_at;

    /* The link: the peer's stream. */
    uint16_t received;
    uint8_t next_count, nak_about, due;
    uint32_t last_heard, last_ping;

    /* The unit that is coming in. */
    uint8_t unit[CORELANE_CLIENT_FRAME_BYTES];
    uint16_t unit_len;
    uint32_t unit_line_bytes;
    uint8_t unit_state, unit_left, unit_zero_due;

    /* The message that is coming in. */
    uint8_t in_head[8 + 255];
    uint16_t in_head_len;
    uint32_t in_payload_left;
    uint8_t reply, wanted, mine, refused, leaving;
    uint32_t id;
    corelane_client_model *model;
    uint8_t *output;
    size_t output_len, output_at;
    corelane_client_receipt *receipt;
    struct {
        uint8_t step, tensors, axes, shift, output;
        uint32_t number;
        uint64_t bytes;
    } signature;

    uint8_t frame[CORELANE_CLIENT_FRAME_BYTES];
} corelane_client;

/* Prepares a client; sends nothing. `port` is copied. `seed` should differ from boot to boot: random, or a
 * count of boots, or a timer that ran on. */
void corelane_client_init(corelane_client *client, const corelane_client_port *port, uint32_t baud,
                          uint32_t seed);

/* Opens a model, and a session of the link if there is none. */
corelane_client_status corelane_client_open(corelane_client *client, const char *name,
                                            corelane_client_model *model, uint32_t within_us);

/* The same, with tensors that travel encoded; those that are not listed, and those that are not float32, travel
 * as they are. The list stays where it is. `input` and `output` of `corelane_client_infer` are then as they
 * travel. What the server can't do is an error of its (207 `bad_encoding`). */
corelane_client_status corelane_client_open_encoded(corelane_client *client, const char *name,
                                                    const corelane_client_encoding *encodings, size_t len,
                                                    corelane_client_model *model, uint32_t within_us);

/* Sends rows and waits for the answer. Input and output are all tensors, in order, each beginning at the next
 * multiple of 8 bytes; `corelane_client_input_len` and `_output_len` are their lengths, and must be. The
 * input stays where it is and must not change meanwhile. What `output` holds after an error is no answer.
 * A model that was opened in an earlier session is opened again first. `receipt` may be null. */
corelane_client_status corelane_client_infer(corelane_client *client, corelane_client_model *model,
                                             uint16_t rows, const void *input, size_t input_len,
                                             void *output, size_t output_len, uint32_t within_us,
                                             corelane_client_receipt *receipt);

/* Ends the session and says so to the server. */
void corelane_client_close(corelane_client *client);

/* Bytes of `rows` rows of input, or of output; SIZE_MAX if memory can't hold so many. */
size_t corelane_client_input_len(const corelane_client_model *model, uint16_t rows);
size_t corelane_client_output_len(const corelane_client_model *model, uint16_t rows);

/* A number as it travels, and back. To a half: the nearest, of two as near the even one; from 65520 on that is
 * infinity, and NaN stays NaN. To a byte: the nearest, of two as near the even one before the zero point is
 * added; what lies beyond becomes -128 or 127, and NaN the zero point. */
uint16_t corelane_client_f16(float value);
float corelane_client_from_f16(uint16_t half);
int8_t corelane_client_i8(float value, float scale, int8_t zero_point);
float corelane_client_from_i8(int8_t byte, float scale, int8_t zero_point);

#ifdef __cplusplus
}
#endif
#endif

#ifdef CORELANE_CLIENT_IMPLEMENTATION
#undef CORELANE_CLIENT_IMPLEMENTATION

#include <string.h>

#if CORELANE_CLIENT_FRAME_BYTES < 32 || CORELANE_CLIENT_FRAME_BYTES > 1024
#error "CORELANE_CLIENT_FRAME_BYTES is 32 to 1024"
#endif
#if CORELANE_CLIENT_WINDOW_BYTES < 1 || CORELANE_CLIENT_WINDOW_BYTES > 32767
#error "CORELANE_CLIENT_WINDOW_BYTES is 1 to 32767"
#endif

#if CORELANE_CLIENT_ENCODINGS_MAX < 1 || CORELANE_CLIENT_ENCODINGS_MAX > 16
#error "CORELANE_CLIENT_ENCODINGS_MAX is 1 to 16"
#endif

/* ---- what the protocol says ---- */

enum {
    CL_HEADER = 10,
    CL_CHECK = 4,
    CL_OVERHEAD = CL_HEADER + CL_CHECK,
    CL_OFFER = 7,
    CL_FRAME_MIN = 32,
    CL_FRAME_MAX = 1024,
    /* On the line, no frame with a byte of payload is shorter. */
    CL_DATA_LINE_MIN = CL_OVERHEAD + 3,
    CL_RESEND_TIMES = 10,
    /* Of the link, and of the messages. */
    CL_VERSION = 1,
    CL_MESSAGES_MIN = 1,
    CL_MESSAGES_MAX = 2,
    CL_MAGIC = 0xC1,
    CL_PREFIX = 8
};
#define CL_KEEP_ALIVE_US 500000u
#define CL_SILENCE_US 5000000u
#define CL_OPEN_PAUSE_US_MAX 1000000u
#define CL_TIMEOUT_US_MAX 3600000000u

enum { CL_OPEN = 1, CL_ACCEPT, CL_DATA, CL_ACK, CL_NAK, CL_PING, CL_RESET };
enum { CL_HELLO = 0, CL_OPEN_MODEL = 2, CL_INFER = 3, CL_OPEN_ENCODED = 10 };
enum { CL_HELLO_OK = 0, CL_CHALLENGE = 1, CL_OPENED = 2, CL_ANSWER = 3, CL_ERROR = 4, CL_GOODBYE = 9, CL_NOTHING = 255 };

enum { CL_DOWN, CL_OPENING, CL_UP };
enum { CL_BETWEEN, CL_WITHIN, CL_DISCARDING };
enum { CL_DUE_ACK = 1, CL_DUE_NAK = 2, CL_DUE_PING = 4 };

/* ---- numbers ---- */

static uint16_t cl_u16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | (unsigned)bytes[1] << 8);
}

static void cl_put_u16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

static uint32_t cl_u32(const uint8_t *bytes)
{
    return (uint32_t)cl_u16(bytes) | (uint32_t)cl_u16(bytes + 2) << 16;
}

static void cl_put_u32(uint8_t *bytes, uint32_t value)
{
    cl_put_u16(bytes, (uint16_t)value);
    cl_put_u16(bytes + 2, (uint16_t)(value >> 16));
}

/* CRC-32C, four bits at a time. */
static uint32_t cl_crc(const uint8_t *bytes, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x105EC76Fu, 0x20BD8EDEu, 0x30E349B1u, 0x417B1DBCu, 0x5125DAD3u,
        0x61C69362u, 0x7198540Du, 0x82F63B78u, 0x92A8FC17u, 0xA24BB5A6u, 0xB21572C9u,
        0xC38D26C4u, 0xD3D3E1ABu, 0xE330A81Au, 0xF36E6F75u,
    };
    uint32_t crc = 0xFFFFFFFFu;
    size_t i;

    for (i = 0; i < len; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

/* Whether `a` comes before `b` on a clock that wraps around. */
static int cl_before(uint32_t a, uint32_t b)
{
    return a != b && b - a < 0x80000000u;
}

/* A message's header as it is read: varints, bytes, texts. */
typedef struct {
    const uint8_t *at;
    size_t left;
    int bad;
} cl_reader;

static uint8_t cl_read_byte(cl_reader *reader)
{
    if (reader->left == 0) {
        reader->bad = 1;
        return 0;
    }
    reader->left--;
    return *reader->at++;
}

static uint64_t cl_read_varint(cl_reader *reader, uint64_t max)
{
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;

    do {
        byte = cl_read_byte(reader);
        if (shift > 63 || (shift == 63 && (byte & 0x7F) > 1)) {
            reader->bad = 1;
            return 0;
        }
        value |= (uint64_t)(byte & 0x7F) << shift;
        shift += 7;
    } while (byte & 0x80);
    if (value > max)
        reader->bad = 1;
    return value;
}

static uint8_t *cl_write_varint(uint8_t *out, uint32_t value)
{
    while (value > 0x7F) {
        *out++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *out++ = (uint8_t)value;
    return out;
}

/* ---- the link: frames out ---- */

static uint32_t cl_now(const corelane_client *client)
{
    return client->port.now_us(client->port.context);
}

/* What so many bytes take on the line, ten bits each, in microseconds. */
static uint32_t cl_line_us(const corelane_client *client, size_t bytes)
{
    uint64_t us = (uint64_t)bytes * 10000000u / client->baud;

    return us > 0x3FFFFFFFu ? 0x3FFFFFFFu : (uint32_t)us;
}

/* How long an acknowledgement may take. */
static uint32_t cl_patience(const corelane_client *client)
{
    size_t flight = client->furthest_len - client->acked_len;

    return CORELANE_CLIENT_LATENCY_US +
           cl_line_us(client, 2 * (CORELANE_CLIENT_FRAME_BYTES + (size_t)client->peer_frame) + flight);
}

static void cl_arm(corelane_client *client, uint32_t now)
{
    uint32_t most = cl_patience(client), wait = most;
    unsigned n;

    for (n = 0; n < client->tries && wait < 8 * most; n++)
        wait *= 2;
    client->resend_at = now + wait;
    client->resend_armed = 1;
}

static int cl_fail(corelane_client *client, corelane_client_status status)
{
    if (client->status == CORELANE_CLIENT_OK)
        client->status = (uint8_t)status;
    return -1;
}

/* Bytes on their way to the port. */
typedef struct {
    uint8_t bytes[32];
    size_t len;
} cl_out;

static int cl_flush(corelane_client *client, cl_out *out)
{
    size_t len = out->len;

    out->len = 0;
    if (len > 0 && client->port.write(client->port.context, out->bytes, len) != 0)
        return cl_fail(client, CORELANE_CLIENT_PORT);
    return 0;
}

static int cl_put(corelane_client *client, cl_out *out, uint8_t byte)
{
    out->bytes[out->len++] = byte;
    return out->len == sizeof out->bytes ? cl_flush(client, out) : 0;
}

/* Sends the frame whose payload lies in `client->frame`, behind room for its header. */
static int cl_send_frame(corelane_client *client, uint8_t kind, uint8_t count, uint16_t seq, size_t len)
{
    uint8_t *frame = client->frame;
    size_t total = CL_HEADER + len, at = 0, run;
    cl_out out = {{0}, 0};
    int zero_after;

    frame[0] = kind;
    frame[1] = count;
    cl_put_u16(frame + 2, kind == CL_OPEN ? 0 : client->session);
    cl_put_u16(frame + 4, seq);
    cl_put_u16(frame + 6, client->received);
    cl_put_u16(frame + 8, CORELANE_CLIENT_WINDOW_BYTES);
    if (kind == CL_RESET)
        memset(frame + 4, 0, 6);
    cl_put_u32(frame + total, cl_crc(frame, total));
    total += CL_CHECK;
    /* A delimiter goes before the frame, too: the line may have rung while it was idle. */
    if (cl_put(client, &out, 0) != 0)
        return -1;
    /* Stuffing: a code, and the bytes up to the next zero, 254 at most. */
    do {
        for (run = 0; run < 254 && at + run < total && frame[at + run] != 0; run++)
            ;
        zero_after = run < 254 && at + run < total;
        if (cl_put(client, &out, (uint8_t)(run + 1)) != 0)
            return -1;
        for (; run > 0; run--)
            if (cl_put(client, &out, frame[at++]) != 0)
                return -1;
        at += (size_t)zero_after;
    } while (zero_after || at < total);
    client->counters.frames_sent++;
    return cl_put(client, &out, 0) != 0 ? -1 : cl_flush(client, &out);
}

static size_t cl_message_len(const corelane_client *client)
{
    return client->head_len + client->payload_len;
}

/* Position in the stream of the message's byte `at`. */
static uint16_t cl_position(const corelane_client *client, size_t at)
{
    return (uint16_t)(client->base + at);
}

/* Bytes of the message that the next frame would carry. */
static size_t cl_data_len(const corelane_client *client)
{
    size_t full = (size_t)client->peer_frame - CL_OVERHEAD;
    size_t waiting = cl_message_len(client) - client->sent_len, len = waiting;
    uint16_t allowed = (uint16_t)(client->edge - cl_position(client, client->sent_len));

    if (full > CORELANE_CLIENT_FRAME_BYTES - CL_OVERHEAD)
        full = CORELANE_CLIENT_FRAME_BYTES - CL_OVERHEAD;
    if (allowed >= 0x8000)
        allowed = 0;
    if (len > allowed)
        len = allowed;
    if (len > full)
        len = full;
    /* A frame cut short by the window waits while others are in flight: acknowledgements bring room. */
    if (len < full && len < waiting && client->sent_len > client->acked_len)
        return 0;
    return len;
}

static int cl_send_data(corelane_client *client, size_t len)
{
    uint8_t *to = client->frame + CL_HEADER;
    size_t at = client->sent_len, head = client->head_len, n = 0;

    if (at < head) {
        n = head - at < len ? head - at : len;
        memcpy(to, client->head + at, n);
    }
    if (n < len)
        memcpy(to + n, client->payload + (at + n - head), len - n);
    if (at < client->furthest_len)
        client->counters.retransmits++;
    client->due &= (uint8_t)~CL_DUE_ACK;
    if (cl_send_frame(client, CL_DATA, client->count, cl_position(client, at), len) != 0)
        return -1;
    client->count++;
    client->sent_len += len;
    if (client->sent_len > client->furthest_len)
        client->furthest_len = client->sent_len;
    cl_arm(client, cl_now(client));
    return 0;
}

static int cl_send_open(corelane_client *client)
{
    uint8_t *offer = client->frame + CL_HEADER;

    offer[0] = CL_VERSION;
    cl_put_u16(offer + 1, CORELANE_CLIENT_FRAME_BYTES);
    cl_put_u32(offer + 3, client->nonce);
    return cl_send_frame(client, CL_OPEN, 0, 0, CL_OFFER);
}

/* Says one thing of what there is to say; 0 if there was nothing, 1 if there was, -1 after an error. */
static int cl_transmit(corelane_client *client)
{
    uint16_t seq = cl_position(client, client->sent_len);
    size_t len;

    if (client->phase != CL_UP)
        return 0;
    if (client->due & CL_DUE_NAK) {
        client->due &= (uint8_t)~(CL_DUE_NAK | CL_DUE_ACK);
        return cl_send_frame(client, CL_NAK, client->nak_about, seq, 0) != 0 ? -1 : 1;
    }
    len = cl_data_len(client);
    if (len > 0)
        return cl_send_data(client, len) != 0 ? -1 : 1;
    if (client->due & CL_DUE_PING) {
        client->due &= (uint8_t)~(CL_DUE_PING | CL_DUE_ACK);
        return cl_send_frame(client, CL_PING, 0, seq, 0) != 0 ? -1 : 1;
    }
    if (client->due & CL_DUE_ACK) {
        client->due &= (uint8_t)~CL_DUE_ACK;
        return cl_send_frame(client, CL_ACK, 0, seq, 0) != 0 ? -1 : 1;
    }
    return 0;
}

static void cl_rewind(corelane_client *client)
{
    client->sent_len = client->acked_len;
    client->round = client->count;
}

static void cl_reset_streams(corelane_client *client)
{
    client->payload = NULL;
    client->payload_len = client->sent_len = client->acked_len = client->furthest_len = 0;
    client->head_len = client->count = client->round = client->tries = client->resend_armed = 0;
    client->base = client->edge = client->received = 0;
    client->next_count = client->due = 0;
    client->in_head_len = 0;
    client->in_payload_left = 0;
    client->leaving = 0;
}

static int cl_lose(corelane_client *client, corelane_client_status status)
{
    client->phase = CL_DOWN;
    cl_reset_streams(client);
    return cl_fail(client, status);
}

/* ---- messages in ---- */

static int cl_bad(corelane_client *client)
{
    return cl_fail(client, CORELANE_CLIENT_PROTOCOL);
}

static size_t cl_payload_len(const uint32_t *row_bytes, uint8_t tensors, uint16_t rows)
{
    uint64_t end = 0;
    uint8_t n;

    for (n = 0; n < tensors; n++)
        end = (end + 7) / 8 * 8 + (uint64_t)row_bytes[n] * rows;
    return end > SIZE_MAX ? SIZE_MAX : (size_t)end;
}

/* Steps of reading a signature, byte by byte. */
enum { CL_SIG_BATCHED, CL_SIG_TENSORS, CL_SIG_NAME_LEN, CL_SIG_NAME, CL_SIG_TYPE, CL_SIG_AXES, CL_SIG_AXIS };

/* What comes after a tensor: the next one, the outputs, or nothing. */
static void cl_signature_tensor_done(corelane_client *client)
{
    corelane_client_model *model = client->model;
    uint8_t *n = client->signature.output ? &model->outputs : &model->inputs;
    uint32_t *row_bytes = client->signature.output ? model->output_row_bytes : model->input_row_bytes;

    row_bytes[*n] = (uint32_t)client->signature.bytes;
    ++*n;
    client->signature.step = CL_SIG_NAME_LEN;
    if (*n == client->signature.tensors) {
        client->signature.step = CL_SIG_TENSORS;
        client->signature.output++;
    }
}

/* Bytes of a float32 element of the tensor that is being read, as it travels. */
static uint8_t cl_element_bytes(const corelane_client *client)
{
    const corelane_client_model *model = client->model;
    uint8_t at = client->signature.output ? model->outputs : model->inputs, n;

    for (n = 0; n < model->encodings_len; n++)
        if (model->encodings[n].position == at && model->encodings[n].output == client->signature.output)
            return (uint8_t)(4 >> model->encodings[n].kind);
    return 4;
}

static int cl_signature(corelane_client *client, uint8_t byte)
{
    /* f32, f16, f64, i8, u8, i16, u16, i32, u32, i64, u64, bool. */
    static const uint8_t sizes[12] = {4, 2, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1};
    uint32_t number;

    if (client->signature.output > 1)
        return cl_bad(client);
    if (client->signature.step == CL_SIG_BATCHED) {
        client->model->batched = byte;
        client->signature.step = CL_SIG_TENSORS;
        return byte > 1 ? cl_bad(client) : 0;
    }
    if (client->signature.step == CL_SIG_NAME) {
        if (--client->signature.number == 0)
            client->signature.step = CL_SIG_TYPE;
        return 0;
    }
    /* All others are numbers. */
    if (client->signature.shift > 28 || (client->signature.shift == 28 && (byte & 0x7F) > 15))
        return cl_bad(client);
    client->signature.number |= (uint32_t)(byte & 0x7F) << client->signature.shift;
    client->signature.shift = (uint8_t)(client->signature.shift + 7);
    if (byte & 0x80)
        return 0;
    number = client->signature.number;
    client->signature.number = 0;
    client->signature.shift = 0;
    switch (client->signature.step) {
    case CL_SIG_TENSORS:
        if (number > CORELANE_CLIENT_TENSORS_MAX)
            return cl_bad(client);
        client->signature.tensors = (uint8_t)number;
        if (number == 0)
            client->signature.output++;
        else
            client->signature.step = CL_SIG_NAME_LEN;
        break;
    case CL_SIG_NAME_LEN:
        client->signature.number = number;
        client->signature.step = number > 0 ? CL_SIG_NAME : CL_SIG_TYPE;
        break;
    case CL_SIG_TYPE:
        if (number >= sizeof sizes)
            return cl_bad(client);
        client->signature.bytes = number == 0 ? cl_element_bytes(client) : sizes[number];
        client->signature.step = CL_SIG_AXES;
        break;
    case CL_SIG_AXES:
        if (number > 7)
            return cl_bad(client);
        client->signature.axes = (uint8_t)number;
        client->signature.step = CL_SIG_AXIS;
        if (number == 0)
            cl_signature_tensor_done(client);
        break;
    default:
        client->signature.bytes *= number;
        if (client->signature.bytes > 0xFFFFFFFFu)
            return cl_bad(client);
        if (--client->signature.axes == 0)
            cl_signature_tensor_done(client);
        break;
    }
    return 0;
}

/* The end of a message and its payload. */
static int cl_message_done(corelane_client *client)
{
    client->in_head_len = 0;
    if (!client->mine)
        return 0;
    if (client->reply == CL_OPENED && client->signature.output != 2)
        return cl_bad(client);
    client->wanted = CL_NOTHING;
    client->refused = client->reply == CL_ERROR;
    return 0;
}

static int cl_read_error(corelane_client *client, cl_reader *reader)
{
    uint8_t has_id = cl_read_byte(reader);
    uint32_t id = has_id == 1 ? (uint32_t)cl_read_varint(reader, UINT32_MAX) : 0;
    uint16_t code = (uint16_t)cl_read_varint(reader, UINT16_MAX);
    size_t text = (size_t)cl_read_varint(reader, 160);

    if (has_id > 1 || reader->bad || text > reader->left)
        return cl_bad(client);
    reader->at += text;
    reader->left -= text;
    client->error.code = code;
    client->error.a = cl_read_varint(reader, UINT64_MAX);
    client->error.b = cl_read_varint(reader, UINT64_MAX);
    if (has_id && id != client->id)
        return cl_bad(client);
    client->mine = 1;
    return 0;
}

/* A header is whole. */
static int cl_message(corelane_client *client)
{
    cl_reader reader = {client->in_head + CL_PREFIX, client->in_head[1], 0};
    corelane_client_receipt receipt;
    uint32_t rows = 0;

    client->in_payload_left = cl_u32(client->in_head + 4);
    client->reply = cl_read_byte(&reader);
    client->mine = 0;
    if (client->reply == CL_GOODBYE) {
        client->leaving = 1;
    } else if (client->reply == CL_ERROR) {
        if (client->wanted == CL_NOTHING || cl_read_error(client, &reader) != 0)
            return cl_bad(client);
    } else if (client->reply == CL_CHALLENGE && client->wanted == CL_HELLO_OK) {
        return cl_fail(client, CORELANE_CLIENT_KEY_WANTED);
    } else if (client->reply != client->wanted) {
        return cl_bad(client);
    } else if (client->reply == CL_HELLO_OK) {
        client->version = cl_read_byte(&reader);
        if (client->version < CL_MESSAGES_MIN || client->version > CL_MESSAGES_MAX)
            return cl_bad(client);
        cl_read_varint(&reader, UINT32_MAX);
        cl_read_varint(&reader, UINT16_MAX);
        cl_read_varint(&reader, UINT16_MAX);
        client->mine = 1;
    } else {
        client->mine = cl_read_varint(&reader, UINT32_MAX) == client->id;
        if (client->reply == CL_OPENED) {
            client->model->id = (uint16_t)cl_read_varint(&reader, UINT16_MAX);
            client->model->rows_max = (uint16_t)cl_read_varint(&reader, UINT16_MAX);
            client->model->priority_levels = cl_read_byte(&reader);
            cl_read_varint(&reader, UINT32_MAX);
        } else {
            rows = (uint32_t)cl_read_varint(&reader, UINT16_MAX);
            receipt.queue_ns = cl_read_varint(&reader, UINT64_MAX);
            receipt.compute_input_ns = cl_read_varint(&reader, UINT64_MAX);
            receipt.compute_infer_ns = cl_read_varint(&reader, UINT64_MAX);
            receipt.compute_output_ns = cl_read_varint(&reader, UINT64_MAX);
            receipt.batch_size = (uint16_t)cl_read_varint(&reader, UINT16_MAX);
            receipt.close_reason = (uint8_t)cl_read_varint(&reader, UINT8_MAX);
            receipt.worker = cl_read_byte(&reader);
            if (rows == 0 || client->in_payload_left != client->output_len)
                return cl_bad(client);
            if (client->receipt != NULL)
                *client->receipt = receipt;
        }
        if (!client->mine)
            return cl_bad(client);
    }
    if (reader.bad || reader.left > 0)
        return cl_bad(client);
    return client->in_payload_left == 0 ? cl_message_done(client) : 0;
}

/* The next bytes of the peer's stream. */
static int cl_take_stream(corelane_client *client, const uint8_t *bytes, size_t len)
{
    while (len > 0) {
        if (client->in_payload_left > 0) {
            size_t n = len < client->in_payload_left ? len : client->in_payload_left, i;

            if (client->reply == CL_OPENED) {
                for (i = 0; i < n; i++)
                    if (cl_signature(client, bytes[i]) != 0)
                        return -1;
            } else if (client->reply == CL_ANSWER) {
                memcpy(client->output + client->output_at, bytes, n);
                client->output_at += n;
            }
            bytes += n;
            len -= n;
            client->in_payload_left -= (uint32_t)n;
            if (client->in_payload_left == 0 && cl_message_done(client) != 0)
                return -1;
            continue;
        }
        client->in_head[client->in_head_len++] = *bytes++;
        len--;
        if (client->in_head[0] != CL_MAGIC)
            return cl_bad(client);
        if (client->in_head_len < CL_PREFIX)
            continue;
        if (client->in_head[1] == 0 || cl_u16(client->in_head + 2) != 0)
            return cl_bad(client);
        if (client->in_head_len == CL_PREFIX + client->in_head[1] && cl_message(client) != 0)
            return -1;
    }
    return 0;
}

/* ---- the link: frames in ---- */

/* Something on the line was no frame; if it may have been data, it is asked for again at once. */
static void cl_damage(corelane_client *client)
{
    client->counters.damaged++;
    if (client->phase == CL_UP && client->unit_line_bytes >= CL_DATA_LINE_MIN) {
        client->nak_about = client->next_count++;
        client->due |= CL_DUE_NAK;
    }
}

static void cl_take_ack(corelane_client *client, uint8_t kind, uint8_t count, uint16_t ack, uint16_t credit)
{
    uint16_t acked = cl_position(client, client->acked_len);
    size_t news = (uint16_t)(ack - acked);
    uint32_t now = cl_now(client);

    if (news > client->furthest_len - client->acked_len)
        return;
    if (news > 0) {
        client->acked_len += news;
        if (client->sent_len < client->acked_len)
            client->sent_len = client->acked_len;
        client->tries = 0;
    }
    client->edge = (uint16_t)(ack + (credit > 32767 ? 32767 : credit));
    if (client->acked_len == client->furthest_len)
        client->resend_armed = 0;
    else if (news > 0)
        cl_arm(client, now);
    if (kind == CL_NAK && client->acked_len < client->sent_len) {
        uint8_t in_round = (uint8_t)(client->count - client->round);
        uint8_t about = (uint8_t)(count - client->round);

        /* One that was sent before the sender went back is being repaired already. */
        if (about < 128 && in_round > 0) {
            cl_rewind(client);
            cl_arm(client, now);
        }
    }
}

static int cl_take_data(corelane_client *client, uint8_t count, uint16_t seq, const uint8_t *bytes, size_t len)
{
    uint16_t skip = (uint16_t)(client->received - seq);

    client->next_count = (uint8_t)(count + 1);
    if (skip >= 0x8000) {
        /* Something before it was lost, since a line does not reorder. */
        client->nak_about = count;
        client->due |= CL_DUE_NAK;
        return 0;
    }
    client->due |= CL_DUE_ACK;
    if (skip >= len)
        return 0;
    client->received = (uint16_t)(client->received + (len - skip));
    return cl_take_stream(client, bytes + skip, len - skip);
}

static int cl_unit(corelane_client *client)
{
    const uint8_t *frame = client->unit;
    size_t len = client->unit_len;
    uint16_t session;
    uint8_t kind;

    if (len < CL_OVERHEAD || cl_crc(frame, len - CL_CHECK) != cl_u32(frame + len - CL_CHECK) ||
        frame[0] < CL_OPEN || frame[0] > CL_RESET) {
        cl_damage(client);
        return 0;
    }
    client->counters.frames_received++;
    kind = frame[0];
    session = cl_u16(frame + 2);
    len -= CL_OVERHEAD;
    if (kind == CL_ACCEPT) {
        const uint8_t *offer = frame + CL_HEADER;
        uint16_t credit = cl_u16(frame + 8);

        if (len < CL_OFFER || offer[0] == 0 || cl_u32(offer + 3) != client->nonce)
            return 0;
        if (client->phase == CL_UP && session != client->session)
            return cl_lose(client, CORELANE_CLIENT_LINK_LOST);
        if (client->phase != CL_OPENING)
            return 0;
        client->phase = CL_UP;
        client->session = session;
        client->peer_frame = cl_u16(offer + 1);
        if (client->peer_frame < CL_FRAME_MIN)
            client->peer_frame = CL_FRAME_MIN;
        if (client->peer_frame > CL_FRAME_MAX)
            client->peer_frame = CL_FRAME_MAX;
        client->edge = credit > 32767 ? 32767 : credit;
        client->last_heard = client->last_ping = cl_now(client);
        return 0;
    }
    if (kind == CL_OPEN || client->phase != CL_UP || session != client->session)
        return 0;
    if (kind == CL_RESET)
        return cl_lose(client, CORELANE_CLIENT_LINK_LOST);
    client->last_heard = cl_now(client);
    cl_take_ack(client, kind, frame[1], cl_u16(frame + 6), cl_u16(frame + 8));
    if (kind == CL_DATA)
        return cl_take_data(client, frame[1], cl_u16(frame + 4), frame + CL_HEADER, len);
    if (kind == CL_PING)
        client->due |= CL_DUE_ACK;
    return 0;
}

static void cl_store(corelane_client *client, uint8_t byte)
{
    if (client->unit_len < sizeof client->unit) {
        client->unit[client->unit_len++] = byte;
    } else {
        client->unit_state = CL_DISCARDING;
        cl_damage(client);
    }
}

/* Takes one byte of the line. */
static int cl_take(corelane_client *client, uint8_t byte)
{
    int zero;

    if (byte == 0) {
        uint8_t state = client->unit_state;
        int result = 0;

        client->unit_line_bytes++;
        client->unit_state = CL_BETWEEN;
        if (state == CL_WITHIN && client->unit_left > 0)
            cl_damage(client);
        else if (state == CL_WITHIN)
            result = cl_unit(client);
        client->unit_line_bytes = 0;
        return result;
    }
    client->unit_line_bytes++;
    if (client->unit_state == CL_DISCARDING)
        return 0;
    if (client->unit_state == CL_BETWEEN) {
        client->unit_state = CL_WITHIN;
        client->unit_len = 0;
        client->unit_left = client->unit_zero_due = 0;
    }
    if (client->unit_left > 0) {
        client->unit_left--;
        cl_store(client, byte);
        return 0;
    }
    zero = client->unit_zero_due;
    client->unit_zero_due = byte != 255;
    client->unit_left = (uint8_t)(byte - 1);
    if (zero)
        cl_store(client, 0);
    return 0;
}

/* ---- requests ---- */

typedef struct {
    uint32_t at;
    /* When the initiator asks for a session next, and how long it waits then. */
    uint32_t open_at, pause;
} cl_until;

/* Looks at the clock; -1 if the request is over. Says how long nothing need be done. */
static int cl_poll(corelane_client *client, cl_until *until, uint32_t *idle)
{
    uint32_t now = cl_now(client), next = until->at, ping_at;

    if (!cl_before(now, until->at))
        return cl_fail(client, CORELANE_CLIENT_DEADLINE);
    if (client->phase == CL_OPENING) {
        if (!cl_before(now, until->open_at)) {
            if (cl_send_open(client) != 0)
                return -1;
            until->open_at = now + until->pause;
            if (until->pause < CL_OPEN_PAUSE_US_MAX / 2)
                until->pause *= 2;
        }
        if (cl_before(until->open_at, next))
            next = until->open_at;
    } else {
        if (now - client->last_heard >= CL_SILENCE_US)
            return cl_lose(client, CORELANE_CLIENT_LINK_LOST);
        ping_at = client->last_heard + CL_KEEP_ALIVE_US;
        if (cl_before(ping_at, client->last_ping + CL_KEEP_ALIVE_US))
            ping_at = client->last_ping + CL_KEEP_ALIVE_US;
        if (!cl_before(now, ping_at)) {
            client->due |= CL_DUE_PING;
            client->last_ping = now;
            ping_at = now + CL_KEEP_ALIVE_US;
        }
        if (cl_before(ping_at, next))
            next = ping_at;
        if (client->resend_armed && !cl_before(now, client->resend_at)) {
            if (++client->tries > CL_RESEND_TIMES)
                return cl_lose(client, CORELANE_CLIENT_LINK_LOST);
            cl_rewind(client);
            cl_arm(client, now);
        }
        if (client->resend_armed && cl_before(client->resend_at, next))
            next = client->resend_at;
    }
    *idle = next - now;
    return 0;
}

/* Moves bytes both ways once. */
static int cl_turn(corelane_client *client, cl_until *until)
{
    uint8_t bytes[32];
    uint32_t idle = 0;
    int said, n, i;

    if (cl_poll(client, until, &idle) != 0)
        return -1;
    said = cl_transmit(client);
    if (said < 0)
        return -1;
    n = client->port.read(client->port.context, bytes, sizeof bytes, said ? 0 : idle);
    if (n < 0 || (size_t)n > sizeof bytes)
        return cl_fail(client, CORELANE_CLIENT_PORT);
    for (i = 0; i < n; i++)
        if (cl_take(client, bytes[i]) != 0)
            return -1;
    return 0;
}

/* Writes a message's prefix and number; its fields follow. */
static uint8_t *cl_begin_message(corelane_client *client, uint8_t number)
{
    /* Everything of the last message is acknowledged. */
    client->base = cl_position(client, client->acked_len);
    client->sent_len = client->acked_len = client->furthest_len = 0;
    client->payload = NULL;
    client->payload_len = 0;
    client->resend_armed = client->tries = 0;
    memset(client->head, 0, CL_PREFIX);
    client->head[0] = CL_MAGIC;
    client->head[CL_PREFIX] = number;
    return client->head + CL_PREFIX + 1;
}

/* Sends the message that ends at `end`, and its payload, until `reply` or an error is here as a whole. */
static int cl_exchange(corelane_client *client, cl_until *until, const uint8_t *end, const void *payload,
                       size_t payload_len, uint8_t reply)
{
    client->head_len = (uint8_t)(end - client->head);
    client->head[1] = (uint8_t)(client->head_len - CL_PREFIX);
    cl_put_u32(client->head + 4, (uint32_t)payload_len);
    client->payload = (const uint8_t *)payload;
    client->payload_len = payload_len;
    client->wanted = reply;
    /* An error may come before the payload is sent, but a frame without its end can't be taken back. */
    while (client->wanted != CL_NOTHING || client->acked_len < cl_message_len(client))
        if (cl_turn(client, until) != 0)
            return -1;
    client->payload = NULL;
    if (client->refused)
        return cl_fail(client, CORELANE_CLIENT_SERVER);
    return 0;
}

/* Brings a session up, with its hello. */
static int cl_ready(corelane_client *client, cl_until *until)
{
    uint32_t since = client->last_heard;
    uint8_t *at;

    if (client->phase == CL_UP && client->leaving)
        corelane_client_close(client);
    /* After a silence the server may have given the session up, or restarted: better to know before a
     * request is sent than to lose it. */
    if (client->phase == CL_UP && cl_now(client) - since >= CL_KEEP_ALIVE_US) {
        client->last_heard = cl_now(client);
        client->last_ping = client->last_heard - CL_KEEP_ALIVE_US;
        client->due |= CL_DUE_PING;
        since = client->counters.frames_received;
        while (client->phase == CL_UP && client->counters.frames_received == since)
            if (cl_turn(client, until) != 0 && client->status != CORELANE_CLIENT_LINK_LOST)
                return -1;
        client->status = CORELANE_CLIENT_OK;
    }
    if (client->phase == CL_UP)
        return 0;
    client->nonce = client->nonce * 0x9E3779B1u + 0x7F4A7C15u;
    client->peer_frame = CL_FRAME_MIN;
    cl_reset_streams(client);
    client->phase = CL_OPENING;
    until->open_at = cl_now(client);
    until->pause = cl_patience(client);
    while (client->phase == CL_OPENING)
        if (cl_turn(client, until) != 0)
            return -1;
    client->generation++;
    at = cl_begin_message(client, CL_HELLO);
    *at++ = CL_MESSAGES_MIN;
    *at++ = CL_MESSAGES_MAX;
    *at++ = 1;
    *at++ = 'c';
    return cl_exchange(client, until, at, NULL, 0, CL_HELLO_OK);
}

/* The list of an `OpenEncoded`: its length, then its entries. */
static uint8_t *cl_write_encodings(uint8_t *at, const corelane_client_encoding *encodings, uint8_t len)
{
    uint8_t *list = at++, n;
    uint32_t scale;

    for (n = 0; n < len; n++) {
        *at++ = (uint8_t)(encodings[n].position | (encodings[n].output ? 0x80 : 0));
        *at++ = encodings[n].kind;
        if (encodings[n].kind == CORELANE_CLIENT_I8) {
            memcpy(&scale, &encodings[n].scale, sizeof scale);
            cl_put_u32(at, scale);
            at[4] = (uint8_t)encodings[n].zero_point;
            at += 5;
        }
    }
    /* 16 entries of 7 bytes: one byte of a varint. */
    *list = (uint8_t)(at - list - 1);
    return at;
}

static int cl_open(corelane_client *client, cl_until *until, corelane_client_model *model)
{
    size_t len = strlen(model->name);
    uint8_t *at;

    client->model = model;
    model->inputs = model->outputs = 0;
    memset(&client->signature, 0, sizeof client->signature);
    client->id = client->next_id++;
    if (model->encodings_len > 0 && client->version < CL_MESSAGES_MAX)
        return cl_fail(client, CORELANE_CLIENT_VERSION);
    at = cl_begin_message(client, model->encodings_len > 0 ? CL_OPEN_ENCODED : CL_OPEN_MODEL);
    at = cl_write_varint(at, client->id);
    at = cl_write_varint(at, (uint32_t)len);
    memcpy(at, model->name, len);
    at += len;
    if (model->encodings_len > 0)
        at = cl_write_encodings(at, model->encodings, model->encodings_len);
    if (cl_exchange(client, until, at, NULL, 0, CL_OPENED) != 0)
        return -1;
    model->generation = client->generation;
    return 0;
}

/* A call begins. */
static cl_until cl_begin(corelane_client *client, uint32_t within_us)
{
    cl_until until = {0, 0, 0};

    until.at = cl_now(client) + (within_us > 0x7FFFFFFFu ? 0x7FFFFFFFu : within_us);
    client->status = CORELANE_CLIENT_OK;
    client->receipt = NULL;
    client->output = NULL;
    client->output_len = client->output_at = 0;
    return until;
}

/* A call ends; after errors that leave the conversation anywhere, the session does too. */
static corelane_client_status cl_end(corelane_client *client)
{
    corelane_client_status status = (corelane_client_status)client->status;

    if (status != CORELANE_CLIENT_OK && status != CORELANE_CLIENT_SERVER && status != CORELANE_CLIENT_VERSION)
        corelane_client_close(client);
    return status;
}

void corelane_client_init(corelane_client *client, const corelane_client_port *port, uint32_t baud,
                          uint32_t seed)
{
    memset(client, 0, sizeof *client);
    client->port = *port;
    client->baud = baud < 300 ? 300 : baud;
    client->nonce = seed;
    client->next_id = 1;
    client->peer_frame = CL_FRAME_MIN;
    client->wanted = CL_NOTHING;
}

corelane_client_status corelane_client_open(corelane_client *client, const char *name,
                                            corelane_client_model *model, uint32_t within_us)
{
    return corelane_client_open_encoded(client, name, NULL, 0, model, within_us);
}

/* Whether an entry can be; the server knows the tensors. */
static int cl_encoding_sound(const corelane_client_encoding *encoding)
{
    uint32_t scale;

    memcpy(&scale, &encoding->scale, sizeof scale);
    if (encoding->position >= CORELANE_CLIENT_TENSORS_MAX || encoding->output > 1 ||
        encoding->kind > CORELANE_CLIENT_I8)
        return 0;
    /* Positive, with an exponent that is neither the subnormals' nor infinity's. */
    return encoding->kind != CORELANE_CLIENT_I8 || (scale >= 0x00800000u && scale < 0x7F800000u);
}

corelane_client_status corelane_client_open_encoded(corelane_client *client, const char *name,
                                                    const corelane_client_encoding *encodings, size_t len,
                                                    corelane_client_model *model, uint32_t within_us)
{
    cl_until until = cl_begin(client, within_us);
    size_t n;

    memset(model, 0, sizeof *model);
    if (strlen(name) > CORELANE_CLIENT_NAME_LEN_MAX || len > CORELANE_CLIENT_ENCODINGS_MAX)
        return CORELANE_CLIENT_ARGUMENT;
    for (n = 0; n < len; n++)
        if (!cl_encoding_sound(&encodings[n]))
            return CORELANE_CLIENT_ARGUMENT;
    model->name = name;
    model->encodings = encodings;
    model->encodings_len = (uint8_t)len;
    if (cl_ready(client, &until) == 0)
        cl_open(client, &until, model);
    return cl_end(client);
}

corelane_client_status corelane_client_infer(corelane_client *client, corelane_client_model *model,
                                             uint16_t rows, const void *input, size_t input_len,
                                             void *output, size_t output_len, uint32_t within_us,
                                             corelane_client_receipt *receipt)
{
    cl_until until = cl_begin(client, within_us);
    uint32_t left, way;
    uint8_t *at;

    if (cl_ready(client, &until) != 0)
        return cl_end(client);
    if (model->generation != client->generation && cl_open(client, &until, model) != 0)
        return cl_end(client);
    if (rows == 0 || input_len != corelane_client_input_len(model, rows) ||
        output_len != corelane_client_output_len(model, rows))
        return CORELANE_CLIENT_ARGUMENT;
    client->output = (uint8_t *)output;
    client->output_len = output_len;
    client->receipt = receipt;
    client->id = client->next_id++;
    at = cl_write_varint(cl_begin_message(client, CL_INFER), client->id);
    at = cl_write_varint(at, model->id);
    at = cl_write_varint(at, rows);
    /* The server's time begins when it has everything, and the answer's way is not its. */
    left = until.at - cl_now(client);
    way = cl_line_us(client, input_len + output_len);
    left = left > 0x7FFFFFFFu || left <= way ? 1 : left - way;
    at = cl_write_varint(at, left < CL_TIMEOUT_US_MAX ? left : CL_TIMEOUT_US_MAX);
    /* The model's default priority. */
    *at++ = 0;
    cl_exchange(client, &until, at, input, input_len, CL_ANSWER);
    return cl_end(client);
}

void corelane_client_close(corelane_client *client)
{
    if (client->phase == CL_UP)
        (void)cl_send_frame(client, CL_RESET, 0, 0, 0);
    client->phase = CL_DOWN;
    cl_reset_streams(client);
}

size_t corelane_client_input_len(const corelane_client_model *model, uint16_t rows)
{
    return cl_payload_len(model->input_row_bytes, model->inputs, rows);
}

size_t corelane_client_output_len(const corelane_client_model *model, uint16_t rows)
{
    return cl_payload_len(model->output_row_bytes, model->outputs, rows);
}

/* ---- encodings ---- */

static uint32_t cl_float_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float cl_bits_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t corelane_client_f16(float value)
{
    uint32_t bits = cl_float_bits(value), magnitude = bits & 0x7FFFFFFFu, half, shift;

    if (magnitude > 0x7F800000u) {
        half = 0x7E00;
    } else if (magnitude >= 0x477FF000u) {
        /* 65520 lies between the largest half and the next, which is infinity. */
        half = 0x7C00;
    } else if (magnitude >= 0x38800000u) {
        /* The exponent's bias is 15 and not 127, ten bits of the fraction stay; a carry goes into the
         * exponent, as it should. */
        half = magnitude - (112u << 23);
        half = (half + 0xFFF + (half >> 13 & 1)) >> 13;
    } else {
        /* Subnormal: steps of 2^-24. */
        shift = 126 - (magnitude >> 23);
        half = 0;
        if (shift <= 24) {
            uint32_t fraction = (magnitude & 0x7FFFFF) | (magnitude >> 23 ? 0x800000 : 0);
            uint32_t rest = fraction & ((1u << shift) - 1), middle = 1u << (shift - 1);

            half = fraction >> shift;
            half += rest > middle || (rest == middle && (half & 1));
        }
    }
    return (uint16_t)((bits >> 16 & 0x8000) | half);
}

float corelane_client_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;

    if (exponent == 0)
        /* Steps of 2^-24; both factors and the product are normal, or 0. */
        return cl_bits_float(sign | cl_float_bits((float)fraction * cl_bits_float((127u - 24) << 23)));
    if (exponent == 0x1F)
        return cl_bits_float(sign | 0x7F800000u | (fraction ? 0x400000u | fraction << 13 : 0));
    return cl_bits_float(sign | (exponent + 112) << 23 | fraction << 13);
}

int8_t corelane_client_i8(float value, float scale, int8_t zero_point)
{
    float steps = value / scale;
    uint32_t magnitude;
    int32_t whole;

    if (!(steps == steps))
        steps = 0;
    steps = steps > 256 ? 256 : steps < -256 ? -256 : steps;
    /* To the nearest, of two as near the even one, without the help of the current rounding mode. */
    whole = (int32_t)steps;
    steps = steps < (float)whole ? (float)whole - steps : steps - (float)whole;
    magnitude = (uint32_t)(whole < 0 ? -whole : whole);
    if (steps > 0.5f || (steps == 0.5f && (magnitude & 1)))
        whole += value < 0 ? -1 : 1;
    whole += zero_point;
    return (int8_t)(whole > 127 ? 127 : whole < -128 ? -128 : whole);
}

float corelane_client_from_i8(int8_t byte, float scale, int8_t zero_point)
{
    return (float)(byte - zero_point) * scale;
}

#endif
