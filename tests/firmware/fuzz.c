/* The C client against a server that says anything: sound frames of this session with random, cut and mutated
 * messages, and noise. Built with sanitizers; what must not happen is what they find, or a call that does not
 * end in its time.
 *
 *   fuzz ROUNDS SEED
 */
#define CORELANE_CLIENT_IMPLEMENTATION
#include "corelane_client.h"

#include <stdio.h>
#include <stdlib.h>

#define WITHIN_US 200000u
#define LATE_US 50000u

static uint64_t state;
static uint32_t now;
static corelane_client client;
/* Bytes of the line that the client did not read yet. */
static uint8_t line[4096];
static size_t line_len, line_at;
static unsigned long frames, statuses[CORELANE_CLIENT_KEY_WANTED + 1];

static uint32_t below(uint32_t n)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1Du) >> 33) % n;
}

/* Messages as a server has them: a hello's answer, two models, an answer, errors, a goodbye. In those with a
 * request's id, the byte 0xEE stands for it. */
static const uint8_t messages[][64] = {
    {17, 0xC1, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0x80, 0x80, 0x80, 0x20, 0x80, 2, 3},
    {27, 0xC1, 6, 0, 0, 13, 0, 0, 0, 2, 0xEE, 2, 8, 1, 0, 1, 1, 1, 'x', 0, 1, 4, 1, 1, 'y', 9, 1, 1},
    {24, 0xC1, 6, 0, 0, 10, 0, 0, 0, 2, 0xEE, 2, 8, 1, 0, 0, 1, 0, 5, 0, 1, 1, 'y', 0, 0},
    {31, 0xC1, 15, 0, 0, 8, 0, 0, 0, 3, 0xEE, 1, 0xE8, 7, 0xD0, 0x0F, 0xB8, 0x17, 0xA0, 0x1F, 1, 4, 0, 2,
     1, 2, 3, 4, 5, 6, 7, 8},
    {21, 0xC1, 13, 0, 0, 0, 0, 0, 0, 4, 1, 0xEE, 0xAC, 2, 4, 'f', 'u', 'l', 'l', 64, 64},
    {14, 0xC1, 6, 0, 0, 0, 0, 0, 0, 4, 0, 100, 0, 3, 0},
    {9, 0xC1, 1, 0, 0, 0, 0, 0, 0, 9},
    /* A server of version 1. */
    {17, 0xC1, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0x80, 0x80, 0x80, 0x20, 0x80, 2, 3},
    /* One that wants a key. */
    {41, 0xC1, 33, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8},
};

static void say(uint8_t byte)
{
    if (line_len < sizeof line)
        line[line_len++] = byte;
}

/* Puts a frame on the line, sound but for what `spoil` does to it. */
static void frame(uint8_t kind, uint16_t seq, const uint8_t *payload, size_t len, int spoil)
{
    uint8_t unit[1100];
    size_t at = 0, run, total = CL_HEADER + len;
    int zero_after;

    unit[0] = kind;
    unit[1] = (uint8_t)below(256);
    cl_put_u16(unit + 2, below(50) ? client.session : (uint16_t)below(65536));
    cl_put_u16(unit + 4, seq);
    cl_put_u16(unit + 6, (uint16_t)(client.base + (below(8) ? client.furthest_len : below(65536))));
    cl_put_u16(unit + 8, (uint16_t)(below(8) ? 4096 : below(65536)));
    memcpy(unit + CL_HEADER, payload, len);
    cl_put_u32(unit + total, cl_crc(unit, total));
    total += CL_CHECK;
    if (spoil)
        unit[below((uint32_t)total)] ^= (uint8_t)(1u << below(8));
    do {
        for (run = 0; run < 254 && at + run < total && unit[at + run] != 0; run++)
            ;
        zero_after = run < 254 && at + run < total;
        say((uint8_t)(run + 1));
        for (; run > 0; run--)
            say(unit[at++]);
        at += (size_t)zero_after;
    } while (zero_after || at < total);
    say(0);
    frames++;
}

/* What the server says next. */
static void server(void)
{
    uint8_t payload[1024] = {0}, offer[CL_OFFER];
    size_t len = 0, n;
    unsigned more;

    if (below(30) == 0) {
        for (n = below(300); n > 0; n--)
            say((uint8_t)below(256));
        return;
    }
    if (client.phase == CL_OPENING) {
        offer[0] = (uint8_t)(below(10) ? CL_VERSION : below(256));
        cl_put_u16(offer + 1, (uint16_t)(below(2) ? 256 : below(65536)));
        cl_put_u32(offer + 3, client.nonce);
        client.session = (uint16_t)below(65536);
        frame(CL_ACCEPT, 0, offer, below(10) ? CL_OFFER : below(CL_OFFER), below(10) == 0);
        return;
    }
    if (below(6) == 0 || (client.wanted == CL_NOTHING && below(40))) {
        frame((uint8_t)(CL_ACK + below(3)), client.received, payload, 0, below(8) == 0);
        return;
    }
    for (more = below(12) ? 1 : 1 + below(3); more > 0; more--) {
        unsigned which = below(sizeof messages / sizeof messages[0]);
        const uint8_t *message;

        /* Mostly what the client waits for, so that it comes far. */
        if (below(24) && client.wanted == CL_HELLO_OK)
            which = below(8) ? 0 : 7 + below(2);
        else if (below(24) && client.wanted == CL_OPENED)
            which = 1;
        else if (below(24) && client.wanted == CL_ANSWER)
            which = 3;
        message = messages[which];
        for (n = 0; n < message[0] && len < sizeof payload; n++) {
            uint8_t byte = message[1 + n];

            if (byte == 0xEE)
                byte = (uint8_t)client.id;
            if (below(300) == 0)
                byte = (uint8_t)below(256);
            payload[len++] = byte;
        }
    }
    if (below(16) == 0)
        len = below((uint32_t)len + 1);
    if (below(40) == 0)
        for (len = 0; len < 1000; len++)
            payload[len] = (uint8_t)below(256);
    frame(CL_DATA, (uint16_t)(client.received - (below(10) ? 0 : below(100))), payload, len, below(10) == 0);
    if (below(200) == 0)
        frame(CL_RESET, 0, payload, 0, 0);
}

static int read_line(void *context, uint8_t *bytes, size_t len, uint32_t wait_us)
{
    size_t n = 0;

    (void)context;
    (void)wait_us;
    now += 1 + below(2000);
    if (line_at == line_len) {
        line_at = line_len = 0;
        server();
    }
    while (n < len && line_at < line_len)
        bytes[n++] = line[line_at++];
    return (int)n;
}

static int write_line(void *context, const uint8_t *bytes, size_t len)
{
    (void)context;
    (void)bytes;
    now += (uint32_t)len;
    return below(3000) == 0 ? -1 : 0;
}

static uint32_t now_us(void *context)
{
    (void)context;
    return now;
}

static corelane_client_status ended(corelane_client_status status, uint32_t since)
{
    if (now - since > WITHIN_US + LATE_US) {
        printf("a call took %u us of %u\n", (unsigned)(now - since), WITHIN_US);
        exit(1);
    }
    statuses[status]++;
    return status;
}

int main(int argc, char **argv)
{
    corelane_client_port port = {NULL, read_line, write_line, now_us};
    corelane_client_model model;
    corelane_client_receipt receipt;
    corelane_client_encoding encodings[CORELANE_CLIENT_ENCODINGS_MAX];
    unsigned long round, rounds;
    unsigned n;

    if (argc != 3) {
        fprintf(stderr, "fuzz ROUNDS SEED\n");
        return 2;
    }
    rounds = strtoul(argv[1], NULL, 10);
    state = strtoul(argv[2], NULL, 10) * 0x9E3779B97F4A7C15u | 1;
    now = below(0xFFFFFFFFu);
    corelane_client_init(&client, &port, 921600, 1);
    for (round = 0; round < rounds; round++) {
        uint32_t since = now;
        size_t input_len, output_len;
        uint8_t *input, *output;

        corelane_client_status status;
        unsigned asked = below(CORELANE_CLIENT_ENCODINGS_MAX + 2);

        /* One byte on the wire. */
        client.next_id = 1;
        for (n = 0; n < CORELANE_CLIENT_ENCODINGS_MAX; n++) {
            encodings[n].position = (uint8_t)below(3);
            encodings[n].output = (uint8_t)below(2);
            encodings[n].kind = (uint8_t)(below(30) ? below(3) : below(256));
            encodings[n].zero_point = (int8_t)below(256);
            encodings[n].scale = below(30) ? 0.5f : 0;
        }
        status = asked > CORELANE_CLIENT_ENCODINGS_MAX
                     ? corelane_client_open(&client, "model", &model, WITHIN_US)
                     : corelane_client_open_encoded(&client, "model", encodings, asked, &model, WITHIN_US);
        if (ended(status, since) != CORELANE_CLIENT_OK)
            continue;
        input_len = corelane_client_input_len(&model, 1);
        output_len = corelane_client_output_len(&model, 1);
        if (input_len > 65536 || output_len > 65536)
            continue;
        /* Of exactly these lengths, so that a byte too many is found. */
        input = calloc(1, input_len + !input_len);
        output = malloc(output_len + !output_len);
        since = now;
        ended(corelane_client_infer(&client, &model, 1, input, input_len, output, output_len, WITHIN_US,
                                    &receipt),
              since);
        free(input);
        free(output);
    }
    printf("%lu frames; calls that ended as", frames);
    for (n = 0; n <= CORELANE_CLIENT_KEY_WANTED; n++)
        printf(" %u: %lu%s", n, statuses[n], n < CORELANE_CLIENT_KEY_WANTED ? "," : "\n");
    /* Each way out was taken, and each way in. */
    for (n = 0; n <= CORELANE_CLIENT_KEY_WANTED; n++)
        if (statuses[n] == 0) {
            printf("no call ended as %u\n", n);
            return 1;
        }
    return 0;
}
