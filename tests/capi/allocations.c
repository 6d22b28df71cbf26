/* The no-allocation contract, seen from outside: this program's own malloc family counts every call
 * of the whole process. Arguments: models/mlp and a fake model.
 */
#include "support.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static atomic_long calls;

void *malloc(size_t n) { return atomic_fetch_add(&calls, 1), __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return atomic_fetch_add(&calls, 1), __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return atomic_fetch_add(&calls, 1), __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { return atomic_fetch_add(&calls, 1), __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }

int posix_memalign(void **p, size_t a, size_t n)
{
    *p = memalign(a, n);
    return *p == NULL ? ENOMEM : 0;
}

void free(void *p)
{
    if (p != NULL)
        atomic_fetch_add(&calls, 1);
    __libc_free(p);
}

enum { REQUESTS = 10000 };

static int answered, failed;

static void on_end(corelane_request *request, corelane_status status, void *user)
{
    (void)user;
    status == CORELANE_STATUS_OK ? answered++ : failed++;
    OK(corelane_request_free(request));
}

int main(int argc, char **argv)
{
    corelane_builder *builder;
    corelane_runtime *runtime;
    const corelane_model *models[2];
    int refused = 0, given_up = 0;
    uint64_t hot;
    long before, during;

    CHECK(argc == 3);
    OK(corelane_builder_new(&builder));
    OK(corelane_builder_add_model(builder, argv[1]));
    OK(corelane_builder_add_model(builder, argv[2]));
    OK(corelane_builder_set_unpinned(builder, 2));
    before = atomic_load(&calls);
    OK(corelane_runtime_start(builder, &runtime));
    CHECK(atomic_load(&calls) > before + 100); /* this program's functions are the ones called */
    corelane_builder_free(builder);
    for (int n = 0; n < 2; n++)
        models[n] = corelane_runtime_model(runtime, (size_t)n);

    before = atomic_load(&calls);
    for (int n = 0; n < REQUESTS; n++) {
        const corelane_model *model = models[n % 7 == 0];
        static float in[2 * 64], out[2 * 10];
        static unsigned char small_in[4], small_out[4];
        corelane_request *request;
        corelane_status status;

        if (n % 5 == 0) { /* a whole request between this program's buffers */
            corelane_input from = {in, sizeof in};
            corelane_output to = {out, sizeof out};
            uint32_t rows = 2;
            corelane_receipt receipt;
            if (model == models[1]) {
                small_in[0] = n % 3 ? 1 : 238;
                from = (corelane_input){small_in, sizeof small_in};
                to = (corelane_output){small_out, sizeof small_out};
                rows = 1;
            }
            status = corelane_model_infer(model, rows, &from, 1, &to, 1,
                                          n % 11 ? CORELANE_WAIT_FOREVER : 1, &receipt,
                                          sizeof receipt);
            status == CORELANE_STATUS_OK        ? answered++
            : status == CORELANE_STATUS_TIMEOUT ? given_up++
            : status == CORELANE_STATUS_QUEUE_FULL ? refused++
                                                   : failed++;
            continue;
        }
        status = corelane_request_new(model, 1, &request);
        if (status != CORELANE_STATUS_OK) {
            GIVES(status, CORELANE_STATUS_QUEUE_FULL);
            refused++;
            OK(corelane_runtime_dispatch(runtime, 1000, NULL));
            continue;
        }
        if (n % 13 == 0)
            OK(corelane_request_set_deadline(request, 1 + (uint32_t)n % 500));
        if (n % 3 == 0) { /* with a callback */
            status = corelane_request_submit_callback(request, on_end, NULL);
            if (status == CORELANE_STATUS_OK && n % 17 == 0 &&
                corelane_request_free(request) == CORELANE_STATUS_OK)
                given_up++;
            if (status != CORELANE_STATUS_OK) {
                refused++;
                OK(corelane_request_free(request));
            }
        } else { /* polled */
            status = corelane_request_submit(request);
            if (status != CORELANE_STATUS_OK)
                refused++;
            else {
                while ((status = corelane_request_poll(request)) == CORELANE_STATUS_PENDING)
                    if (corelane_request_wait(request, 50) != CORELANE_STATUS_TIMEOUT)
                        continue;
                status == CORELANE_STATUS_OK ? answered++ : failed++;
            }
            OK(corelane_request_free(request));
        }
        if (n % 4 == 0)
            OK(corelane_runtime_dispatch(runtime, 0, NULL));
    }
    for (int quiet = 0; answered + failed + refused + given_up < REQUESTS && quiet < 100;) {
        uint32_t called;
        OK(corelane_runtime_dispatch(runtime, 100000, &called));
        quiet = called > 0 ? 0 : quiet + 1;
    }
    during = atomic_load(&calls) - before;

    printf("%d requests: %d answered, %d failed, %d refused, %d given up; %ld allocator calls in "
           "the whole process\n",
           REQUESTS, answered, failed, refused, given_up, during);
    CHECK(answered + failed + refused + given_up == REQUESTS);
    CHECK(answered > REQUESTS / 2 && failed > 0 && given_up > 0);
    CHECK(during == 0);
    OK(corelane_runtime_hot_allocations(&hot));
    CHECK(hot == 0);
    OK(corelane_runtime_stop(runtime, 10000000));
    return 0;
}
