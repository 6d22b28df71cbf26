/* Another version of a model while requests run. Arguments: a fake model (one uint8 input of four), and three
 * manifests to put in the place of its own: another version, one of another signature, one that is none.
 */
#include "support.h"

#include <pthread.h>

static volatile int over;

/* Asks until it is over; how often. */
static void *ask(void *model)
{
    unsigned char in[4] = {7, 1, 2, 3}, out[4];
    corelane_input from = {in, sizeof in};
    corelane_output to = {out, sizeof out};
    size_t asked = 0;

    while (!over) {
        memset(out, 0, sizeof out);
        OK(corelane_model_infer(model, 1, &from, 1, &to, 1, CORELANE_WAIT_FOREVER, NULL, 0));
        CHECK(memcmp(in, out, sizeof in) == 0);
        asked++;
    }
    return (void *)asked;
}

int main(int argc, char **argv)
{
    char manifest[4096];
    corelane_runtime *runtime;
    const corelane_model *model;
    uint32_t changed = 9;
    pthread_t asker;
    void *asked;

    CHECK(argc == 5);
    snprintf(manifest, sizeof manifest, "%s/manifest.toml", argv[1]);
    runtime = start(argv[1]);
    OK(corelane_runtime_find_model(runtime, "fake", &model));
    CHECK(pthread_create(&asker, NULL, ask, (void *)model) == 0);
    GIVES(corelane_runtime_reload(NULL, "fake", &changed), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_runtime_reload(runtime, NULL, &changed), CORELANE_STATUS_INVALID_ARGUMENT);
    GIVES(corelane_runtime_reload(runtime, "none", &changed), CORELANE_STATUS_NOT_FOUND);
    SAYS("there are: fake");
    CHECK(changed == 9);
    OK(corelane_runtime_reload(runtime, "fake", &changed));
    CHECK(changed == 0);
    CHECK(rename(argv[2], manifest) == 0);
    OK(corelane_runtime_reload(runtime, "fake", &changed));
    CHECK(changed == 1);
    OK(corelane_runtime_reload(runtime, "fake", NULL));
    CHECK(rename(argv[3], manifest) == 0);
    GIVES(corelane_runtime_reload(runtime, "fake", &changed), CORELANE_STATUS_CONFIG);
    SAYS("restart to change the signature");
    CHECK(rename(argv[4], manifest) == 0);
    GIVES(corelane_runtime_reload(runtime, "fake", &changed), CORELANE_STATUS_MODEL);
    /* The thread that reloads has ended: this one, the one that asks, and the worker are left. */
    CHECK(threads_are(3));
    over = 1;
    CHECK(pthread_join(asker, &asked) == 0 && (size_t)asked > 0);
    OK(corelane_runtime_stop(runtime, 10000000));
    CHECK(threads_are(1));
    return 0;
}
