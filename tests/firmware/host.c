/* The C client on this machine: a serial terminal as its port, the goldens in files.
 *
 *   host TERMINAL MODELS
 *
 * Opens `mlp` and `dscnn_kws`, sends the goldens' inputs again and again, compares the answers, and has two
 * requests end in their errors. Then `dscnn_kws` again with tensors that travel as halves and as bytes. Ends with 0 if all was right. */
#define _DEFAULT_SOURCE
#define CORELANE_CLIENT_IMPLEMENTATION
#include "corelane_client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 8
#define WITHIN_US 60000000u
#define RETRIES 20
/* Largest difference of a right answer, over the golden's largest value: the default of `tolerance` in a
 * model's manifest. */
#define MISMATCH_MAX 1e-5f

/* The same of an answer in bytes, whose input was rounded to halves: a step of the output and a bit. */
#define ENCODED_MAX (2.0f / 255)

static const char *const status_names[] = {
    "ok", "argument", "port", "deadline", "link lost", "server", "protocol", "version",
};

static int terminal_read(void *context, uint8_t *bytes, size_t len, uint32_t wait_us)
{
    struct pollfd ready = {*(int *)context, POLLIN, 0};
    ssize_t n;

    if (poll(&ready, 1, (int)(wait_us / 1000)) == 0)
        return 0;
    n = read(*(int *)context, bytes, len);
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : (int)n;
}

static int terminal_write(void *context, const uint8_t *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = write(*(int *)context, bytes, len);

        if (n < 0 && errno == EAGAIN) {
            struct pollfd ready = {*(int *)context, POLLOUT, 0};

            poll(&ready, 1, -1);
            continue;
        }
        if (n < 0)
            return -1;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

static uint32_t terminal_now_us(void *context)
{
    struct timespec now;

    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint32_t)now.tv_sec * 1000000u + (uint32_t)(now.tv_nsec / 1000);
}

/* Longest tensor: four rows of `dscnn_kws`. */
#define ELEMENTS_MAX 2048

/* Reads the elements of a NumPy file of f32; returns how many bytes, or ends the program. */
static size_t load(const char *models, const char *model, const char *file, float *elements)
{
    char path[1024];
    uint8_t head[10];
    FILE *stream;
    size_t len = 0;

    snprintf(path, sizeof path, "%s/%s/golden/%s_0.npy", models, model, file);
    stream = fopen(path, "rb");
    if (stream != NULL && fread(head, 1, sizeof head, stream) == sizeof head &&
        fseek(stream, head[8] + 256L * head[9], SEEK_CUR) == 0)
        len = fread(elements, sizeof *elements, ELEMENTS_MAX, stream);
    if (len == 0 || fgetc(stream) != EOF) {
        fprintf(stderr, "%s can't be read, or is too long\n", path);
        exit(2);
    }
    fclose(stream);
    return len * sizeof *elements;
}

static unsigned right;

static int failed(const corelane_client *client, const char *what, corelane_client_status status)
{
    printf("failed after %u rows: %s: %s", right, what, status_names[status]);
    if (status == CORELANE_CLIENT_SERVER)
        printf(", code %u (%" PRIu64 ", %" PRIu64 ")", client->error.code, client->error.a,
               client->error.b);
    printf("\n");
    return 1;
}

/* One golden, again and again. */
static int golden(corelane_client *client, const char *models, const char *name, const char *batch,
                  uint16_t rows)
{
    corelane_client_model model;
    corelane_client_receipt receipt;
    corelane_client_status status;
    static float input[ELEMENTS_MAX], wanted[ELEMENTS_MAX], output[ELEMENTS_MAX];
    char file[64];
    size_t input_len, output_len, n;
    int round, again;

    snprintf(file, sizeof file, "%sinput", batch);
    input_len = load(models, name, file, input);
    snprintf(file, sizeof file, "%soutput", batch);
    output_len = load(models, name, file, wanted);
    for (again = 0;; again++) {
        status = corelane_client_open(client, name, &model, WITHIN_US);
        if (status != CORELANE_CLIENT_LINK_LOST || again == RETRIES)
            break;
    }
    if (status != CORELANE_CLIENT_OK)
        return failed(client, name, status);
    for (round = 0; round < ROUNDS; round++) {
        float worst = 0, largest = 0;

        for (again = 0;; again++) {
            memset(output, 0, output_len);
            status = corelane_client_infer(client, &model, rows, input, input_len, output, output_len,
                                           WITHIN_US, &receipt);
            if (status != CORELANE_CLIENT_LINK_LOST || again == RETRIES)
                break;
        }
        if (status != CORELANE_CLIENT_OK)
            return failed(client, name, status);
        for (n = 0; n < output_len / sizeof *output; n++) {
            largest = fmaxf(largest, fabsf(wanted[n]));
            /* Not a number counts as infinitely far. */
            worst = isnan(output[n]) ? INFINITY : fmaxf(worst, fabsf(wanted[n] - output[n]));
            if (isinf(worst))
                break;
        }
        if (worst > MISMATCH_MAX * largest || receipt.batch_size < rows) {
            printf("failed after %u rows: %s: wrong by %g\n", right, name, (double)(worst / largest));
            return 1;
        }
        right += rows;
    }
    /* Lengths that are not the model's are noticed before anything is sent. */
    status = corelane_client_infer(client, &model, rows, input, input_len - 1, output, output_len, WITHIN_US,
                                   NULL);
    if (status != CORELANE_CLIENT_ARGUMENT)
        return failed(client, "a wrong length", status);
    return 0;
}

/* The conversions, apart from any server: each half comes back, numbers between two go to the nearer one and
 * from the middle to the even one, and bytes agree with the C library's rounding. */
static int conversions(void)
{
    uint32_t half, n, state = 1;

    for (half = 0; half < 0x10000; half++) {
        float value = corelane_client_from_f16((uint16_t)half), next, middle;
        uint32_t magnitude = half & 0x7FFF, even;

        if (magnitude > 0x7C00) {
            if (!isnan(value) || (corelane_client_f16(value) & 0x7FFF) != 0x7E00)
                return printf("failed: half %04x is no NaN\n", half), 1;
            continue;
        }
        if (corelane_client_f16(value) != half)
            return printf("failed: half %04x comes back as %04x\n", half, corelane_client_f16(value)), 1;
        if (magnitude >= 0x7C00)
            continue;
        /* Infinity stands for 65536 here. */
        next = magnitude == 0x7BFF ? copysignf(65536, value) : corelane_client_from_f16((uint16_t)(half + 1));
        middle = (value + next) / 2;
        even = half + (half & 1);
        if (corelane_client_f16(middle) != even || corelane_client_f16(nextafterf(middle, value)) != half ||
            corelane_client_f16(nextafterf(middle, next)) != half + 1)
            return printf("failed: near half %04x\n", half), 1;
    }
    for (n = 0; n < 1000000; n++) {
        float scale = 0.25f, value, wanted;
        int8_t zero_point, byte;

        state = state * 1664525 + 1013904223;
        zero_point = (int8_t)(state >> 24);
        value = ((float)(state >> 8 & 0xFFF) - 2048) / 32;
        wanted = rintf(value / scale) + zero_point;
        wanted = wanted > 127 ? 127 : wanted < -128 ? -128 : wanted;
        byte = corelane_client_i8(value, scale, zero_point);
        if ((float)byte != wanted ||
            corelane_client_i8(corelane_client_from_i8(byte, scale, zero_point), scale, zero_point) != byte)
            return printf("failed: %g is byte %d\n", (double)value, byte), 1;
    }
    if (corelane_client_i8(NAN, 1, 7) != 7 || corelane_client_i8(INFINITY, 1, -128) != 127 ||
        corelane_client_i8(-INFINITY, 1, 0) != -128)
        return printf("failed: numbers that are none\n"), 1;
    return 0;
}

/* Tensors that travel encoded: what is lost is no more than the encodings lose. */
static int encoded(corelane_client *client, const char *models)
{
    static const corelane_client_encoding list[2] = {
        {0, 0, CORELANE_CLIENT_F16, 0, 0},
        /* A softmax: numbers from 0 to 1. */
        {0, 1, CORELANE_CLIENT_I8, -128, 1.0f / 255},
    };
    static float input[ELEMENTS_MAX], wanted[ELEMENTS_MAX];
    static uint16_t halves[ELEMENTS_MAX];
    static int8_t bytes[ELEMENTS_MAX];
    corelane_client_encoding bad = {0, 0, CORELANE_CLIENT_I8, 0, 0};
    corelane_client_model model;
    corelane_client_status status;
    size_t n, inputs = load(models, "dscnn_kws", "input", input) / sizeof *input;
    size_t outputs = load(models, "dscnn_kws", "output", wanted) / sizeof *wanted;
    int again, best = 0, golden_best = 0;

    status = corelane_client_open_encoded(client, "dscnn_kws", &bad, 1, &model, WITHIN_US);
    if (status != CORELANE_CLIENT_ARGUMENT)
        return failed(client, "a scale of 0", status);
    bad.scale = 1;
    bad.position = 1;
    for (again = 0; again < RETRIES; again++) {
        status = corelane_client_open_encoded(client, "dscnn_kws", &bad, 1, &model, WITHIN_US);
        if (status != CORELANE_CLIENT_LINK_LOST)
            break;
    }
    if (status != CORELANE_CLIENT_SERVER || client->error.code != 207 || client->error.a != 1)
        return failed(client, "a tensor that is not there", status);
    for (again = 0; again < RETRIES; again++) {
        status = corelane_client_open_encoded(client, "dscnn_kws", list, 2, &model, WITHIN_US);
        if (status != CORELANE_CLIENT_LINK_LOST)
            break;
    }
    if (status != CORELANE_CLIENT_OK)
        return failed(client, "dscnn_kws, encoded", status);
    if (corelane_client_input_len(&model, 1) != 2 * inputs || corelane_client_output_len(&model, 1) != outputs)
        return printf("failed after %u rows: encoded rows have other lengths\n", right), 1;
    for (n = 0; n < inputs; n++)
        halves[n] = corelane_client_f16(input[n]);
    for (again = 0; again < RETRIES; again++) {
        status = corelane_client_infer(client, &model, 1, halves, 2 * inputs, bytes, outputs, WITHIN_US, NULL);
        if (status != CORELANE_CLIENT_LINK_LOST)
            break;
    }
    if (status != CORELANE_CLIENT_OK)
        return failed(client, "dscnn_kws, encoded", status);
    for (n = 0; n < outputs; n++) {
        float got = corelane_client_from_i8(bytes[n], list[1].scale, list[1].zero_point);

        if (bytes[n] > bytes[best])
            best = (int)n;
        if (wanted[n] > wanted[golden_best])
            golden_best = (int)n;
        if (!(fabsf(got - wanted[n]) <= ENCODED_MAX))
            return printf("failed after %u rows: encoded: %g for %g\n", right, (double)got, (double)wanted[n]), 1;
    }
    if (best != golden_best)
        return printf("failed after %u rows: encoded: another class\n", right), 1;
    right++;
    return 0;
}

/* Requests that must end in their errors. */
static int errors(corelane_client *client)
{
    corelane_client_model model;
    corelane_client_status status;
    static float input[64], output[10];

    status = corelane_client_open(client, "no such model", &model, WITHIN_US);
    if (status != CORELANE_CLIENT_SERVER || client->error.code != 200)
        return failed(client, "a model that is not there", status);
    status = corelane_client_open(client, "mlp", &model, WITHIN_US);
    if (status != CORELANE_CLIENT_OK)
        return failed(client, "mlp", status);
    status = corelane_client_infer(client, &model, 1, input, sizeof input, output, sizeof output, 1, NULL);
    if (status != CORELANE_CLIENT_DEADLINE)
        return failed(client, "a deadline that can't be met", status);
    /* The protocol allows 65535 rows; the model, and the queue, do not. */
    status = corelane_client_infer(client, &model, 0, input, 0, output, 0, WITHIN_US, NULL);
    if (status != CORELANE_CLIENT_ARGUMENT)
        return failed(client, "no rows", status);
    return 0;
}

int main(int argc, char **argv)
{
    static corelane_client client;
    corelane_client_port port = {NULL, terminal_read, terminal_write, terminal_now_us};
    struct termios raw;
    int terminal, code;

    if (argc != 3) {
        fprintf(stderr, "host TERMINAL MODELS\n");
        return 2;
    }
    if (conversions() != 0)
        return 1;
    terminal = open(argv[1], O_RDWR | O_NOCTTY | O_NONBLOCK);
    if (terminal < 0 || tcgetattr(terminal, &raw) != 0) {
        perror(argv[1]);
        return 2;
    }
    cfmakeraw(&raw);
    tcsetattr(terminal, TCSANOW, &raw);
    port.context = &terminal;
    corelane_client_init(&client, &port, 921600, (uint32_t)getpid());
    code = errors(&client) || golden(&client, argv[2], "mlp", "", 1) ||
           golden(&client, argv[2], "mlp", "batch4/", 4) ||
           golden(&client, argv[2], "dscnn_kws", "", 1) ||
           golden(&client, argv[2], "dscnn_kws", "batch4/", 4) || encoded(&client, argv[2]);
    corelane_client_close(&client);
    printf("%" PRIu32 " frames received, %" PRIu32 " units damaged, %" PRIu32 " frames sent, %" PRIu32
           " again\n",
           client.counters.frames_received, client.counters.damaged, client.counters.frames_sent,
           client.counters.retransmits);
    if (code == 0)
        printf("passed: %u rows, all answers right\n", right);
    return code;
}
