/* Serves a model inside this program: blocking, in place, and from an event loop.
 *
 *   cc -o embed embed.c $(pkg-config --cflags --libs corelane)
 *   ./embed models/mlp
 */
#include <corelane.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One way to treat errors: say what was wrong, and stop. */
static void check(corelane_status status, const char *what)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, corelane_error_message(),
                corelane_status_name(status));
        exit(1);
    }
}

/* Called by corelane_runtime_dispatch, on this program's own thread. */
static void answered(corelane_request *request, corelane_status status, void *user)
{
    const void *data;
    size_t bytes;

    check(status, "a request with a callback");
    check(corelane_request_output(request, 0, &data, &bytes), "its output");
    printf("callback: %.3f\n", ((const float *)data)[0]);
    check(corelane_request_free(request), "freeing it");
    *(int *)user += 1;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "models/mlp";
    corelane_builder *builder;
    corelane_runtime *runtime;
    const corelane_model *model;
    corelane_request *request;
    corelane_tensor input, output;

    /* Loaded, checked against its goldens and warm when `start` returns; one pinned worker a core. */
    check(corelane_builder_new(&builder), "a builder");
    check(corelane_builder_add_model(builder, path), path);
    check(corelane_runtime_start(builder, &runtime), "start");
    corelane_builder_free(builder);
    model = corelane_runtime_model(runtime, 0);
    check(corelane_model_describe_input(model, 0, &input, sizeof input), "input 0");
    check(corelane_model_describe_output(model, 0, &output, sizeof output), "output 0");
    printf("%s: %s, %" PRIu64 " bytes a row -> %s, %" PRIu64 " bytes a row\n",
           corelane_model_name(model), input.name, input.row_bytes, output.name, output.row_bytes);

    /* 1. From this program's buffers into this program's buffers, within ten seconds. */
    unsigned char *in = calloc(1, (size_t)input.row_bytes);
    float *out = calloc(1, (size_t)output.row_bytes);
    corelane_input from = {in, (size_t)input.row_bytes};
    corelane_output to = {out, (size_t)output.row_bytes};
    corelane_receipt receipt;
    if (in == NULL || out == NULL)
        return 1;
    check(corelane_model_infer(model, 1, &from, 1, &to, 1, 10000000, &receipt, sizeof receipt),
          "infer");
    printf("blocking: %.3f, %" PRIu64 " us in the model\n", out[0], receipt.compute_infer_ns / 1000);

    /* 2. No copy: the input is written where the worker reads it, the output read where it wrote. */
    void *slot;
    const void *answer;
    size_t bytes;
    check(corelane_request_new(model, 1, &request), "a request");
    check(corelane_request_input(request, 0, &slot, &bytes), "its input");
    memset(slot, 0, bytes);
    check(corelane_request_submit(request), "submit");
    /* ... something else is done here; then: */
    check(corelane_request_wait(request, CORELANE_WAIT_FOREVER), "wait");
    check(corelane_request_output(request, 0, &answer, &bytes), "its output");
    printf("in place: %.3f, %s\n", ((const float *)answer)[0],
           memcmp(answer, out, bytes) == 0 ? "the same" : "another answer");
    check(corelane_request_free(request), "freeing it");

    /* 3. From an event loop: the descriptor says when there is something to dispatch. */
    struct pollfd loop = {.fd = corelane_runtime_event_fd(runtime), .events = POLLIN};
    int done = 0;
    for (int n = 0; n < 4; n++) {
        check(corelane_request_new(model, 1, &request), "a request");
        check(corelane_request_set_input(request, 0, in, (size_t)input.row_bytes), "its input");
        check(corelane_request_submit_callback(request, answered, &done), "submit");
    }
    while (done < 4) {
        if (poll(&loop, 1, 10000) <= 0) {
            fprintf(stderr, "no answer within ten seconds\n");
            return 1;
        }
        check(corelane_runtime_dispatch(runtime, 0, NULL), "dispatch");
    }

    free(in);
    free(out);
    check(corelane_runtime_stop(runtime, 10000000), "stop");
    return 0;
}
