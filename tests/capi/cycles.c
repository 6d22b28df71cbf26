/* Starts, infers in all three ways, and stops, CYCLES times: what is left must not grow. Arguments: a
 * model, how many cycles.
 */
#include "support.h"

#include <malloc.h>

static void on_end(corelane_request *request, corelane_status status, void *user)
{
    OK(status);
    OK(corelane_request_free(request));
    ++*(int *)user;
}

static void cycle(const char *path)
{
    corelane_runtime *runtime = start(path);
    const corelane_model *model = corelane_runtime_model(runtime, 0);
    corelane_request *request;
    corelane_tensor in, out;
    int called = 0;

    OK(corelane_model_describe_input(model, 0, &in, sizeof in));
    OK(corelane_model_describe_output(model, 0, &out, sizeof out));
    corelane_input from = {calloc(1, (size_t)in.row_bytes), (size_t)in.row_bytes};
    corelane_output to = {calloc(1, (size_t)out.row_bytes), (size_t)out.row_bytes};
    OK(corelane_model_infer(model, 1, &from, 1, &to, 1, CORELANE_WAIT_FOREVER, NULL, 0));

    OK(corelane_request_new(model, 1, &request));
    OK(corelane_request_set_input(request, 0, from.data, from.bytes));
    OK(corelane_request_submit(request));
    while (corelane_request_poll(request) == CORELANE_STATUS_PENDING)
        corelane_request_wait(request, 1000);
    OK(corelane_request_copy_output(request, 0, to.data, to.bytes));
    OK(corelane_request_free(request));

    OK(corelane_request_new(model, 1, &request));
    OK(corelane_request_set_input(request, 0, from.data, from.bytes));
    OK(corelane_request_submit_callback(request, on_end, &called));
    for (int n = 0; called == 0 && n < 1000; n++)
        OK(corelane_runtime_dispatch(runtime, 100000, NULL));
    CHECK(called == 1);

    /* One that is freed while it waits or runs. */
    OK(corelane_request_new(model, 1, &request));
    OK(corelane_request_submit(request));
    OK(corelane_request_free(request));
    OK(corelane_runtime_stop(runtime, 10000000));
    free((void *)from.data);
    free(to.data);
}

/* Bytes of the heap in use, all arenas. */
static size_t heap(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

int main(int argc, char **argv)
{
    int cycles, fds, before;
    size_t settled = 0, end;

    CHECK(argc == 3);
    cycles = atoi(argv[2]);
    before = threads();
    cycle(argv[1]);
    fds = entries("/proc/self/fd");
    for (int n = 1; n < cycles; n++) {
        cycle(argv[1]);
        if (n == cycles / 10)
            settled = heap();
    }
    CHECK(threads_are(before) && entries("/proc/self/fd") == fds);
    end = heap();
    printf("%d cycles; heap in use after a tenth of them %zu bytes, after all %zu\n", cycles,
           settled, end);
    /* A leak of one byte a cycle would show; a page more or less of somebody's cache does not. */
    CHECK(cycles < 100 || end <= settled + (size_t)cycles / 2);
    return 0;
}
