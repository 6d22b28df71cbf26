/* What a configuration file gives a program, or why it can't. Arguments: a file with everything that a
 * program can have (one model of two is not there), the cache directory that it names; a file with a key that
 * only a server knows; a file without [memory]. With one argument: a file that requires locked memory, which
 * the system does not give.
 */
#include "support.h"

#include <sys/mman.h>

static corelane_builder *builder_of(const char *config)
{
    corelane_builder *builder;

    OK(corelane_builder_new(&builder));
    OK(corelane_builder_read_config(builder, config));
    return builder;
}

/* Kilobytes of this process that are locked. */
static long locked(void)
{
    char line[256];

    status_field("VmLck", line, sizeof line);
    return strtol(strchr(line, ':') + 1, NULL, 10);
}

static int may_lock(void)
{
    static char probe[65536];
    int may = mlock(probe, sizeof probe) == 0;

    munlock(probe, sizeof probe);
    return may;
}

int main(int argc, char **argv)
{
    static char stats[65536];
    corelane_builder *builder, *other;
    corelane_runtime *runtime = NULL, *second = NULL;
    size_t needed;

    if (argc == 2) {
        builder = builder_of(argv[1]);
        CHECK(corelane_runtime_start(builder, &runtime) < 0 && runtime == NULL);
        SAYS("RLIMIT_MEMLOCK");
        puts("refused");
        return 0;
    }
    CHECK(argc == 5);
    builder = builder_of(argv[1]);
    /* Refused whole, with the key and its line. */
    GIVES(corelane_builder_read_config(builder, argv[3]), CORELANE_STATUS_CONFIG);
    SAYS("line 2: `runtime.io_core`");
    CHECK(entries(argv[2]) == 0 && locked() == 0);

    OK(corelane_runtime_start(builder, &runtime));
    CHECK(corelane_runtime_model_count(runtime) == 1);
    CHECK(locked() > 0 || !may_lock());
    CHECK(entries(argv[2]) > 0);
    OK(corelane_runtime_write_stats(runtime, stats, sizeof stats, &needed));
    CHECK(strstr(stats, "\"board\":{") != NULL && strstr(stats, "\"got_workers\":[") != NULL);
    CHECK(strstr(stats, "\"not_served\":[{\"path\":") != NULL);
    CHECK(strstr(stats, "/no/such/model") != NULL);

    /* Memory is the process's: another wish is refused while this runtime runs. */
    other = builder_of(argv[4]);
    GIVES(corelane_runtime_start(other, &second), CORELANE_STATUS_CONFIG);
    SAYS("[memory] is for the whole process");
    OK(corelane_runtime_stop(runtime, CORELANE_WAIT_FOREVER));
    CHECK(locked() == 0);
    OK(corelane_runtime_start(other, &second));
    CHECK(locked() == 0);
    OK(corelane_runtime_stop(second, CORELANE_WAIT_FOREVER));

    /* Cores that the program names are no board's. */
    OK(corelane_builder_set_unpinned(builder, 1));
    OK(corelane_runtime_start(builder, &runtime));
    OK(corelane_runtime_write_stats(runtime, stats, sizeof stats, &needed));
    CHECK(strstr(stats, "\"board\":{") == NULL);
    OK(corelane_runtime_stop(runtime, CORELANE_WAIT_FOREVER));
    corelane_builder_free(builder);
    corelane_builder_free(other);
    puts("applied, or refused");
    return 0;
}
