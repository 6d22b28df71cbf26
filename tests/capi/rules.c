/* The rules that the header states, one after the other. Arguments: a fake model (one uint8 input of
 * four, 20 ms; first byte 238 fails, 221 panics; two requests may wait), and models/mlp.
 */
#include "support.h"

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static int logged;

static void log_line(int32_t level, const char *target, const char *message, void *user)
{
    CHECK(user == &logged && level >= 1 && level <= 5 && target[0] != '\0' && message[0] != '\0');
    GIVES(corelane_log_set(NULL, NULL, 0), CORELANE_STATUS_WRONG_STATE);
    logged++;
}

struct seen {
    int calls;
    corelane_status status;
    corelane_runtime *runtime;
    /* Not null: the callback asks this one too, and waits. */
    const corelane_model *model;
};

static corelane_request *request_of(const corelane_model *model, unsigned char first);

static void seen_callback(corelane_request *request, corelane_status status, void *user)
{
    struct seen *seen = user;

    seen->calls++;
    seen->status = status;
    GIVES(corelane_runtime_dispatch(seen->runtime, 0, NULL), CORELANE_STATUS_BUSY);
    GIVES(corelane_runtime_stop(seen->runtime, 0), CORELANE_STATUS_BUSY);
    OK(corelane_request_free(request));
    if (seen->model != NULL) {
        request = request_of(seen->model, 5);
        OK(corelane_request_infer(request));
        OK(corelane_request_free(request));
    }
}

/* A request with a first byte. */
static corelane_request *request_of(const corelane_model *model, unsigned char first)
{
    corelane_request *request;
    unsigned char bytes[4] = {0};

    bytes[0] = first;
    OK(corelane_request_new(model, 1, &request));
    OK(corelane_request_set_input(request, 0, bytes, sizeof bytes));
    return request;
}

static void nulls_and_numbers(void)
{
    corelane_builder *builder;
    corelane_runtime *runtime = NULL;
    corelane_request *request = NULL;
    const uint32_t cores[] = {70000};

    GIVES(corelane_builder_new(NULL), CORELANE_STATUS_INVALID_ARGUMENT);
    SAYS("builder is a null pointer");
    GIVES(corelane_builder_new_abi(CORELANE_ABI_VERSION + 0x10000u, &builder),
          CORELANE_STATUS_ABI_MISMATCH);
    CHECK(corelane_abi_version() == CORELANE_ABI_VERSION);
    OK(corelane_builder_new(&builder));
    GIVES(corelane_builder_add_model(builder, NULL), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_builder_add_model(builder, "\xff"), CORELANE_STATUS_INVALID_ARGUMENT);
    SAYS("UTF-8");
    GIVES(corelane_builder_set_cores(builder, cores, 1), CORELANE_STATUS_INVALID_ARGUMENT);
    SAYS("70000");
    GIVES(corelane_builder_set_cores(builder, NULL, 2), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_builder_set_cores(builder, cores, 0), CORELANE_STATUS_LIMIT);
    GIVES(corelane_builder_set_unpinned(builder, 1000), CORELANE_STATUS_LIMIT);
    GIVES(corelane_builder_set_idle(builder, 7, 0), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_builder_set_idle(builder, CORELANE_IDLE_SPIN, 2000000),
          CORELANE_STATUS_INVALID_ARGUMENT);
    OK(corelane_builder_set_idle(builder, CORELANE_IDLE_ADAPTIVE, 0));
    OK(corelane_builder_set_wait_spins(builder, 100));
    GIVES(corelane_builder_read_config(builder, "/no/such/file.toml"), CORELANE_STATUS_CONFIG);
    GIVES(corelane_runtime_start(builder, &runtime), CORELANE_STATUS_LIMIT);
    SAYS("models");
    OK(corelane_builder_add_model(builder, "/no/such/model"));
    GIVES(corelane_runtime_start(builder, &runtime), CORELANE_STATUS_MODEL);
    SAYS("/no/such/model");
    CHECK(runtime == NULL);
    GIVES(corelane_runtime_start(NULL, &runtime), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_runtime_stop(NULL, 0), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_request_new(NULL, 1, &request), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_request_submit(NULL), CORELANE_STATUS_INVALID_ARGUMENT);
    OK(corelane_request_free(NULL));
    corelane_builder_free(NULL);
    CHECK(corelane_model_name(NULL) == NULL && corelane_model_rows_max(NULL) == 0);
    CHECK(corelane_runtime_event_fd(NULL) == -1 && corelane_runtime_model(NULL, 0) == NULL);
    CHECK(strcmp(corelane_status_name(12345), "unknown") == 0);
    corelane_builder_free(builder);
}

/* On a thread that no call has failed on yet. */
static void *elsewhere(void *request)
{
    CHECK(corelane_error_message()[0] == '\0');
    GIVES(corelane_request_wait(request, 0), CORELANE_STATUS_MODEL_FAILED);
    SAYS("the model failed");
    return NULL;
}

static void states(const corelane_model *model)
{
    corelane_request *request = request_of(model, 7), *none = NULL;
    unsigned char bytes[4];
    const void *out;
    void *in;
    size_t size;
    corelane_receipt receipt;
    corelane_status status;
    pthread_t id;

    CHECK(corelane_request_rows(request) == 1);
    GIVES(corelane_request_poll(request), CORELANE_STATUS_WRONG_STATE);
    GIVES(corelane_request_output(request, 0, &out, &size), CORELANE_STATUS_WRONG_STATE);
    SAYS("being filled");
    GIVES(corelane_request_input(request, 1, &in, &size), CORELANE_STATUS_NOT_FOUND);
    GIVES(corelane_request_set_input(request, 0, bytes, 3), CORELANE_STATUS_WRONG_SIZE);
    SAYS("has 4 bytes here, the buffer 3");
    OK(corelane_request_submit(request));
    GIVES(corelane_request_submit(request), CORELANE_STATUS_WRONG_STATE);
    GIVES(corelane_request_input(request, 0, &in, &size), CORELANE_STATUS_WRONG_STATE);
    /* A machine that is slow enough has the answer already. */
    status = corelane_request_poll(request);
    CHECK(status == CORELANE_STATUS_PENDING || status == CORELANE_STATUS_OK);
    status = corelane_request_wait(request, 1000);
    CHECK(status == CORELANE_STATUS_TIMEOUT || status == CORELANE_STATUS_OK);
    OK(corelane_request_wait(request, CORELANE_WAIT_FOREVER));
    OK(corelane_request_wait(request, 0));
    OK(corelane_request_output(request, 0, &out, &size));
    CHECK(size == 4 && *(const unsigned char *)out == 7);
    GIVES(corelane_request_copy_output(request, 0, bytes, 5), CORELANE_STATUS_WRONG_SIZE);
    OK(corelane_request_copy_output(request, 0, bytes, 4));
    CHECK(bytes[0] == 7);
    GIVES(corelane_request_output(request, 9, &out, &size), CORELANE_STATUS_NOT_FOUND);
    memset(&receipt, 0xff, sizeof receipt);
    OK(corelane_request_receipt(request, &receipt, sizeof receipt));
    CHECK(receipt.batch_size == 1 && receipt.compute_infer_ns >= 20000000 && receipt.reserved == 0);
    /* A program that knows less of it gets what it knows. */
    memset(&receipt, 0xff, sizeof receipt);
    OK(corelane_request_receipt(request, &receipt, 8));
    CHECK(receipt.compute_input_ns == UINT64_MAX && receipt.queue_ns != UINT64_MAX);
    OK(corelane_request_free(request));
    GIVES(corelane_request_free(request), CORELANE_STATUS_WRONG_STATE);

    GIVES(corelane_request_new(model, 0, &none), CORELANE_STATUS_WRONG_ROWS);
    GIVES(corelane_request_new(model, 99999, &none), CORELANE_STATUS_WRONG_ROWS);
    SAYS("max_request_rows");
    CHECK(none == NULL);
    request = request_of(model, 0);
    OK(corelane_request_set_priority(request, 9));
    GIVES(corelane_request_submit(request), CORELANE_STATUS_BAD_PRIORITY);
    SAYS("model \"slow\": ");
    /* A call that fails says why itself, whatever failed in between. */
    GIVES(corelane_request_input(request, 0, &in, &size), CORELANE_STATUS_WRONG_STATE);
    SAYS("the request is failed");
    GIVES(corelane_request_wait(request, 0), CORELANE_STATUS_BAD_PRIORITY);
    SAYS("priority");
    OK(corelane_request_free(request));
    request = request_of(model, 0);
    OK(corelane_request_set_deadline(request, 10));
    GIVES(corelane_request_submit(request), CORELANE_STATUS_DEADLINE_UNMEETABLE);
    OK(corelane_request_free(request));
    request = request_of(model, 238);
    GIVES(corelane_request_infer(request), CORELANE_STATUS_MODEL_FAILED);
    SAYS("model \"slow\": the model failed");
    GIVES(corelane_request_new(model, 0, &none), CORELANE_STATUS_WRONG_ROWS);
    GIVES(corelane_request_poll(request), CORELANE_STATUS_MODEL_FAILED);
    SAYS("the model failed");
    GIVES(corelane_request_new(model, 0, &none), CORELANE_STATUS_WRONG_ROWS);
    CHECK(pthread_create(&id, NULL, elsewhere, request) == 0 && pthread_join(id, NULL) == 0);
    SAYS("max_request_rows");
    OK(corelane_request_free(request));
    request = request_of(model, 221);
    GIVES(corelane_request_infer(request), CORELANE_STATUS_MODEL_PANICKED);
    SAYS("panicked");
    OK(corelane_request_free(request));
}

/* Two may wait and one runs: more are refused, and those that wait can be given up. */
static void full(corelane_runtime *runtime, const corelane_model *model)
{
    corelane_request *requests[64];
    int count = 0, refused = 0;

    /* The queue is full, or every slot is held by a request that is not freed. */
    while (refused == 0 && count < 64) {
        refused = corelane_request_new(model, 1, &requests[count]) == CORELANE_STATUS_QUEUE_FULL;
        if (!refused)
            refused = corelane_request_submit(requests[count++]) == CORELANE_STATUS_QUEUE_FULL;
    }
    CHECK(refused && count >= 3);
    GIVES(corelane_runtime_stop(runtime, 0), CORELANE_STATUS_IN_USE);
    SAYS("not freed yet");
    for (int n = 0; n < count; n++)
        OK(corelane_request_free(requests[n]));
    /* What was given up is out of the way. */
    OK(corelane_request_infer(requests[0] = request_of(model, 2)));
    OK(corelane_request_free(requests[0]));
}

static void callbacks(corelane_runtime *runtime, const corelane_model *model)
{
    struct seen seen = {.runtime = runtime, .model = model};
    struct pollfd fd = {.fd = corelane_runtime_event_fd(runtime), .events = POLLIN};
    corelane_request *request = request_of(model, 3);
    uint32_t called = 99, late;

    CHECK(fd.fd >= 0);
    GIVES(corelane_request_submit_callback(request, NULL, NULL), CORELANE_STATUS_INVALID_ARGUMENT);
    OK(corelane_request_submit_callback(request, seen_callback, &seen));
    GIVES(corelane_request_wait(request, 0), CORELANE_STATUS_WRONG_STATE);
    SAYS("with a callback");
    CHECK(poll(&fd, 1, 10000) == 1);
    OK(corelane_runtime_dispatch(runtime, 0, &called));
    CHECK(called == 1 && seen.calls == 1 && seen.status == CORELANE_STATUS_OK);
    CHECK(poll(&fd, 1, 0) == 0);
    seen.model = NULL;

    /* A failure comes the same way; dispatch may wait by itself. */
    request = request_of(model, 238);
    OK(corelane_request_submit_callback(request, seen_callback, &seen));
    OK(corelane_runtime_dispatch(runtime, 10000000, &called));
    CHECK(called == 1 && seen.calls == 2 && seen.status == CORELANE_STATUS_MODEL_FAILED);

    /* Freed before it ended: no call. Ended already: the call comes, and freeing has to wait. */
    request = request_of(model, 3);
    OK(corelane_request_submit_callback(request, seen_callback, &seen));
    late = corelane_request_free(request) == CORELANE_STATUS_BUSY;
    OK(corelane_runtime_dispatch(runtime, 60000, &called));
    CHECK(called == late && seen.calls == 2 + (int)late);
    request = request_of(model, 3);
    OK(corelane_request_submit_callback(request, seen_callback, &seen));
    CHECK(poll(&fd, 1, 10000) == 1);
    GIVES(corelane_request_free(request), CORELANE_STATUS_BUSY);
    OK(corelane_runtime_dispatch(runtime, 0, &called));
    CHECK(called == 1 && seen.calls == 3 + (int)late);
}

/* Threads submit while another one dispatches: each callback comes once. */
enum { THREADS = 3, EACH = 2000 };
static const corelane_model *busy_model;
static int delivered;

static void count_callback(corelane_request *request, corelane_status status, void *user)
{
    (void)user;
    CHECK(status == CORELANE_STATUS_OK);
    delivered++;
    OK(corelane_request_free(request));
}

static void *submitter(void *argument)
{
    float row[64] = {0};

    (void)argument;
    for (int n = 0; n < EACH;) {
        corelane_request *request;
        corelane_status status = corelane_request_new(busy_model, 1, &request);
        if (status == CORELANE_STATUS_OK) {
            OK(corelane_request_set_input(request, 0, row, sizeof row));
            status = corelane_request_submit_callback(request, count_callback, NULL);
            n += status == CORELANE_STATUS_OK;
            if (status != CORELANE_STATUS_OK)
                OK(corelane_request_free(request));
        }
        CHECK(status == CORELANE_STATUS_OK || status == CORELANE_STATUS_QUEUE_FULL);
        if (status == CORELANE_STATUS_QUEUE_FULL)
            usleep(100);
    }
    return NULL;
}

static void many_threads(const char *mlp)
{
    corelane_runtime *runtime = start(mlp);
    pthread_t ids[THREADS];

    OK(corelane_runtime_find_model(runtime, "mlp", &busy_model));
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_create(&ids[n], NULL, submitter, NULL) == 0);
    for (int quiet = 0; delivered < THREADS * EACH && quiet < 100;) {
        uint32_t called;
        OK(corelane_runtime_dispatch(runtime, 100000, &called));
        quiet = called > 0 ? 0 : quiet + 1;
    }
    CHECK(delivered == THREADS * EACH);
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(ids[n], NULL) == 0);
    OK(corelane_runtime_stop(runtime, CORELANE_WAIT_FOREVER));
}

/* The child of a fork is told so, at once, and may start a runtime of its own. */
static void forked(corelane_runtime *runtime, const corelane_model *model, const char *path)
{
    corelane_request *request = request_of(model, 1), *other;
    pid_t child = fork();
    int status;

    CHECK(child >= 0);
    if (child == 0) {
        GIVES(corelane_request_submit(request), CORELANE_STATUS_FORKED);
        SAYS("forked");
        GIVES(corelane_request_new(model, 1, &other), CORELANE_STATUS_FORKED);
        GIVES(corelane_request_free(request), CORELANE_STATUS_FORKED);
        GIVES(corelane_runtime_dispatch(runtime, 1000000, NULL), CORELANE_STATUS_FORKED);
        GIVES(corelane_runtime_stop(runtime, 1000000), CORELANE_STATUS_FORKED);
        CHECK(corelane_runtime_event_fd(runtime) == -1);
        runtime = start(path);
        OK(corelane_request_infer(request_of(corelane_runtime_model(runtime, 0), 5)));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(corelane_request_infer(request));
    OK(corelane_request_free(request));
}

/* The signals that a handler catches, without the two that the C library keeps for its threads. */
static unsigned long long handlers(const char *line)
{
    return strtoull(strchr(line, ':') + 1, NULL, 16) & ~(3ull << 31);
}

int main(int argc, char **argv)
{
    char caught[256], now[256], *json;
    corelane_runtime *runtime;
    const corelane_model *model = NULL;
    corelane_tensor tensor;
    size_t needed = 0;
    int before = threads(), fds = entries("/proc/self/fd");

    CHECK(argc == 3);
    status_field("SigCgt", caught, sizeof caught);
    OK(corelane_log_set(log_line, &logged, 4));
    GIVES(corelane_log_set(log_line, NULL, 6), CORELANE_STATUS_INVALID_ARGUMENT);
    nulls_and_numbers();
    CHECK(threads_are(before));
    runtime = start(argv[1]);
    CHECK(logged > 0);
    OK(corelane_log_set(NULL, NULL, 0));
    CHECK(threads_are(before + 1));
    status_field("SigCgt", now, sizeof now);
    CHECK(handlers(caught) == handlers(now));

    GIVES(corelane_runtime_find_model(runtime, "nothing", &model), CORELANE_STATUS_NOT_FOUND);
    SAYS("there are: slow");
    OK(corelane_runtime_find_model(runtime, "slow", &model));
    CHECK(model == corelane_runtime_model(runtime, 0));
    CHECK(corelane_runtime_model_count(runtime) == 1 && corelane_runtime_model(runtime, 1) == NULL);
    CHECK(corelane_model_input_count(model) == 1 && corelane_model_output_count(model) == 1);
    OK(corelane_model_describe_input(model, 0, &tensor, sizeof tensor));
    CHECK(strcmp(tensor.name, "x") == 0 && tensor.row_bytes == 4 && tensor.axis_count == 1);
    CHECK(tensor.row_shape[0] == 4 && tensor.dtype == CORELANE_DTYPE_U8);
    GIVES(corelane_model_describe_output(model, 1, &tensor, sizeof tensor),
          CORELANE_STATUS_NOT_FOUND);
    CHECK(corelane_model_label(model, 0) == NULL);

    states(model);
    full(runtime, model);
    callbacks(runtime, model);
    forked(runtime, model, argv[1]);

    GIVES(corelane_runtime_write_stats(runtime, NULL, 0, &needed), CORELANE_STATUS_WRONG_SIZE);
    CHECK(needed > 100);
    needed += 64; /* numbers may grow by a digit */
    json = malloc(needed);
    CHECK(json != NULL);
    OK(corelane_runtime_write_stats(runtime, json, needed, &needed));
    CHECK(json[0] == '{' && strlen(json) == needed - 1);
    free(json);

    OK(corelane_runtime_stop(runtime, 1000000));
    CHECK(threads_are(before));
    many_threads(argv[2]);
    CHECK(threads_are(before) && entries("/proc/self/fd") == fds);
    puts("every rule holds");
    return 0;
}
